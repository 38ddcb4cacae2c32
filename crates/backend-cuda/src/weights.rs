//! Constants that the executables of one device share.
//!
//! ```text
//! prepare ──address, length──> known and alive: shared ─┐
//!                         └──> charged, uploaded, noted ──┴─> Arc held by the executable
//! ```
//!
//! - An entry is for the very `Arc` that it was made from: its `Weak` keeps that address from being used for another.
//! - Bytes are charged once, however many executables hold them.
//! - Entries whose constants are gone are forgotten when the next one is made.

use crate::sys::{Context, Memory};
use lanes_core::device::{Budget, Charge, DeviceError, Purpose};
use lanes_core::plan::Precision;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A constant on the device, with what it is charged.
pub(crate) struct Constant {
    pub memory: Memory,
    pub charge: Charge,
}

/// What was given: nobody else gets its address while this is held.
pub(crate) enum Owner {
    /// A plan's constant.
    Bytes(Weak<[u8]>),
    /// A contraction's bias, or its weights with that many columns, those of each of so many units side by side, rounded to that.
    Floats(Weak<[f32]>, usize, usize, Precision),
}

/// What is made of an [`Owner`].
type Key = ([usize; 4], Precision);

impl Owner {
    /// Address, length, columns, units and precision: what is made of one array depends on these.
    fn key(&self) -> Key {
        match self {
            Self::Bytes(bytes) => ([bytes.as_ptr().cast::<u8>() as usize, bytes.as_ptr().len(), 0, 0], Precision::F32),
            Self::Floats(floats, columns, units, precision) => {
                ([floats.as_ptr().cast::<u8>() as usize, floats.as_ptr().len(), *columns, *units], *precision)
            }
        }
    }
}

/// What was given, and what was made of it.
type Made = (Owner, Weak<Constant>);

/// What is shared on one device, by [`Owner::key`].
#[derive(Default)]
pub(crate) struct Weights(Mutex<HashMap<Key, Made>>);

impl Weights {
    /// What `bytes` makes of what `owner` holds, on the device; it is asked only if no executable has it yet.
    pub fn constant<'a>(
        &self,
        context: &Arc<Context>,
        budget: &Budget,
        what: &str,
        owner: Owner,
        bytes: &dyn Fn() -> Cow<'a, [u8]>,
    ) -> Result<Arc<Constant>, DeviceError> {
        let key = owner.key();
        // Held while uploading, so that two plans with the same weights do not upload them twice.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(constant) = known.get(&key).and_then(|(_, constant)| constant.upgrade()) {
            return Ok(constant);
        }
        let bytes = bytes();
        let charge = budget.charge(Purpose::Weights, what, bytes.len() as u64)?;
        let memory = context.allocate(what, bytes.len(), false)?;
        context.upload(&memory, 0, &bytes)?;
        let constant = Arc::new(Constant { memory, charge });
        known.retain(|_, (_, constant)| constant.strong_count() > 0);
        known.insert(key, (owner, Arc::downgrade(&constant)));
        Ok(constant)
    }
}
