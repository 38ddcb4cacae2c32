//! How many bytes a device may hold, and for what it holds them.
//!
//! `charge --> allocate --> (dropped with the memory) refund`
//!
//! - A charge is taken before the allocation it stands for, and refused with the arithmetic; nothing was allocated then.
//! - Dropping a charge refunds it, so whatever owns the memory owns its charge.

use super::DeviceError;
use std::ops::{Add, AddAssign};
use std::sync::{Arc, Mutex, PoisonError};

/// What memory is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Purpose {
    /// Constants and packed weights.
    Weights,
    /// Rows of states.
    State,
    /// What lives within one turn.
    Scratch,
    /// Stacked inputs and outputs.
    Staging,
    /// Commands, kernels and argument blocks.
    Graphs,
}

/// Bytes held, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Constants and packed weights.
    pub weights: u64,
    /// Rows of states.
    pub state: u64,
    /// What lives within one turn.
    pub scratch: u64,
    /// Stacked inputs and outputs.
    pub staging: u64,
    /// Commands, kernels and argument blocks.
    pub graphs: u64,
}

impl MemoryUse {
    /// Bytes over all purposes.
    pub fn total(&self) -> u64 {
        [self.weights, self.state, self.scratch, self.staging, self.graphs].into_iter().fold(0, u64::saturating_add)
    }

    /// The bytes of one purpose.
    pub fn of(&self, purpose: Purpose) -> u64 {
        match purpose {
            Purpose::Weights => self.weights,
            Purpose::State => self.state,
            Purpose::Scratch => self.scratch,
            Purpose::Staging => self.staging,
            Purpose::Graphs => self.graphs,
        }
    }

    /// The bytes of one purpose, to change.
    pub fn of_mut(&mut self, purpose: Purpose) -> &mut u64 {
        match purpose {
            Purpose::Weights => &mut self.weights,
            Purpose::State => &mut self.state,
            Purpose::Scratch => &mut self.scratch,
            Purpose::Staging => &mut self.staging,
            Purpose::Graphs => &mut self.graphs,
        }
    }
}

impl AddAssign for MemoryUse {
    fn add_assign(&mut self, more: Self) {
        for purpose in [Purpose::Weights, Purpose::State, Purpose::Scratch, Purpose::Staging, Purpose::Graphs] {
            let sum = self.of(purpose).saturating_add(more.of(purpose));
            *self.of_mut(purpose) = sum;
        }
    }
}

impl Add for MemoryUse {
    type Output = Self;

    fn add(mut self, more: Self) -> Self {
        self += more;
        self
    }
}

/// A device's account. Clones share it.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Account>);

#[derive(Debug)]
struct Account {
    limit: u64,
    used: Mutex<MemoryUse>,
}

/// Bytes taken from a budget. Dropping it gives them back.
#[derive(Debug)]
pub struct Charge {
    budget: Budget,
    purpose: Purpose,
    bytes: u64,
}

impl Budget {
    /// At most `limit` bytes at once; `None` charges without a limit.
    pub fn new(limit: Option<u64>) -> Self {
        Self(Arc::new(Account { limit: limit.unwrap_or(u64::MAX), used: Mutex::default() }))
    }

    /// Takes `bytes` for `what`, or [`DeviceError::OverBudget`] with need, used and limit, and nothing taken.
    pub fn charge(&self, purpose: Purpose, what: &str, bytes: u64) -> Result<Charge, DeviceError> {
        let mut used = self.0.used.lock().unwrap_or_else(PoisonError::into_inner);
        let total = used.total();
        if total.checked_add(bytes).is_none_or(|sum| sum > self.0.limit) {
            let what = what.to_string();
            return Err(DeviceError::OverBudget { what, need: bytes, used: total, budget: self.0.limit });
        }
        *used.of_mut(purpose) += bytes;
        Ok(Charge { budget: self.clone(), purpose, bytes })
    }

    /// What is held now.
    pub fn used(&self) -> MemoryUse {
        *self.0.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The limit, where one was set.
    pub fn limit(&self) -> Option<u64> {
        (self.0.limit != u64::MAX).then_some(self.0.limit)
    }
}

impl Charge {
    /// Bytes it stands for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What they are held for.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut used = self.budget.0.used.lock().unwrap_or_else(PoisonError::into_inner);
        *used.of_mut(self.purpose) -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_is_refused_with_the_arithmetic_and_refunded_on_drop() {
        let budget = Budget::new(Some(100));
        let weights = budget.charge(Purpose::Weights, "weights of m", 60).unwrap();
        let error = budget.charge(Purpose::State, "rows of h", 41).unwrap_err();
        assert_eq!(error.to_string(), "over budget: rows of h needs 41 bytes, 60 of 100 are in use");
        let state = budget.charge(Purpose::State, "rows of h", 40).unwrap();
        assert_eq!(budget.used(), MemoryUse { weights: 60, state: 40, ..MemoryUse::default() });
        drop(weights);
        assert_eq!(budget.used().total(), 40);
        drop(state);
        assert_eq!(budget.used(), MemoryUse::default());
    }

    #[test]
    fn sizes_near_the_end_of_u64_are_refused_and_do_not_wrap() {
        let budget = Budget::new(None);
        let _held = budget.charge(Purpose::State, "a", u64::MAX - 1).unwrap();
        assert!(matches!(budget.charge(Purpose::Scratch, "b", 2), Err(DeviceError::OverBudget { .. })));
        assert_eq!(budget.limit(), None);
    }
}
