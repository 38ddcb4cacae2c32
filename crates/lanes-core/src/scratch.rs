//! Where scratch lies: storages whose lifetimes are disjoint share memory.
//!
//! ```text
//! bytes ^   ┌──a──┐┌───d───┐
//!       │   └─────┘└───────┘       a and d are never alive at one command
//!       │ ┌────────b────┐ ┌─c─┐
//!       └─┴─────────────┴─┴───┴──> commands, in program order
//! ```
//!
//! - A storage lives from the first command that touches it to the last, both included.
//! - Largest first, each into the smallest gap that holds it (best fit); ties by age, then by number: the same plan has
//!   the same layout everywhere.
//! - Starts are multiples of 64 bytes, a cache line here and the strictest vector alignment.
//! - Not here: the edges that sharing adds (`hazard`).

use crate::plan::{Checked, Place, Storage, StorageId};

/// Every start is a multiple of it.
pub const ALIGN: usize = 64;

/// Bytes wanted from the first to the last command, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// How many.
    pub bytes: usize,
    /// The first command that touches it.
    pub first: usize,
    /// The last one.
    pub last: usize,
}

impl Lifetime {
    /// Whether both are alive at some command.
    pub const fn meets(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Starts of scratch storages in one stretch of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    places: Vec<Option<(usize, Lifetime)>>,
    bytes: usize,
}

impl Layout {
    /// Of the scratch of `plan` for `seats` seats. `None` when the sum of all sizes passes `isize`.
    pub fn of(plan: &Checked<'_>, seats: usize) -> Option<Self> {
        let plan = plan.plan();
        let mut lifetimes = vec![None::<Lifetime>; plan.storages.len()];
        for (at, command) in plan.commands.iter().enumerate() {
            for touch in command.touches() {
                let Place::Storage(StorageId(id)) = touch.place else {
                    continue;
                };
                let Storage::Scratch { bytes } = plan.storages[id as usize] else {
                    continue;
                };
                let lifetime = &mut lifetimes[id as usize];
                let first = lifetime.map_or(at, |lifetime| lifetime.first);
                *lifetime = Some(Lifetime { bytes: bytes.checked_mul(seats)?, first, last: at });
            }
        }
        Self::fit(&lifetimes)
    }

    /// The start of each lifetime, `None` staying `None`; or `None` when the sum of all sizes passes `isize`.
    pub fn fit(lifetimes: &[Option<Lifetime>]) -> Option<Self> {
        let mut order: Vec<usize> = (0..lifetimes.len()).filter(|&at| lifetimes[at].is_some()).collect();
        // Once the sum is a number, every sum below is one.
        order.iter().filter_map(|&at| lifetimes[at]).try_fold(0isize, |sum, lifetime| {
            sum.checked_add_unsigned(lifetime.bytes.checked_next_multiple_of(ALIGN)?)
        })?;
        order.sort_by_key(|&at| lifetimes[at].map(|life| (std::cmp::Reverse(life.bytes), life.first, at)));
        let (mut places, mut bytes) = (vec![None::<(usize, Lifetime)>; lifetimes.len()], 0);
        for at in order {
            let Some(lifetime) = lifetimes[at] else {
                continue;
            };
            let size = lifetime.bytes.next_multiple_of(ALIGN);
            let mut taken: Vec<(usize, usize)> = places
                .iter()
                .flatten()
                .filter(|(_, other)| other.meets(&lifetime))
                .map(|(start, other)| (*start, start + other.bytes.next_multiple_of(ALIGN)))
                .collect();
            taken.sort_unstable();
            let (mut best, mut end) = (None::<(usize, usize)>, 0);
            for (start, past) in taken {
                let gap = start.saturating_sub(end);
                if start > end && gap >= size && best.is_none_or(|(least, _)| gap < least) {
                    best = Some((gap, end));
                }
                end = end.max(past);
            }
            let start = best.map_or(end, |(_, start)| start);
            places[at] = Some((start, lifetime));
            bytes = bytes.max(start + size);
        }
        Some(Self { places, bytes })
    }

    /// Where a storage starts; `None` if it is no scratch, or no command touches it.
    pub fn start(&self, storage: StorageId) -> Option<usize> {
        self.places.get(storage.0 as usize).copied().flatten().map(|(start, _)| start)
    }

    /// Bytes of the whole stretch.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether two storages have memory in common.
    pub fn share(&self, a: StorageId, b: StorageId) -> bool {
        let range = |id: StorageId| {
            let place = self.places.get(id.0 as usize).copied().flatten();
            place.map(|(start, lifetime)| (start, start + lifetime.bytes))
        };
        match (range(a), range(b)) {
            (Some((a, a_end)), Some((b, b_end))) => a < b_end && b < a_end,
            _ => false,
        }
    }

    /// The most bytes alive at one command, each storage rounded up to [`ALIGN`]: no layout is smaller.
    pub fn least(&self) -> usize {
        let alive = |at: usize| {
            let places = self.places.iter().flatten().filter(|(_, life)| life.first <= at && at <= life.last);
            places.map(|(_, life)| life.bytes.next_multiple_of(ALIGN)).sum::<usize>()
        };
        self.places.iter().flatten().map(|(_, life)| alive(life.first)).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lifetimes() -> impl Strategy<Value = Vec<Option<Lifetime>>> {
        let lifetime = (0usize..4000, 0usize..40, 0usize..12).prop_map(|(bytes, first, length)| Lifetime {
            bytes,
            first,
            last: first + length,
        });
        prop::collection::vec(prop::option::weighted(0.9, lifetime), 0..40)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn what_lives_together_lies_apart_and_little_is_lost(lifetimes in lifetimes()) {
            let layout = Layout::fit(&lifetimes).unwrap();
            prop_assert_eq!(&layout, &Layout::fit(&lifetimes).unwrap());
            // Bytes alive at each command, said with one counter per byte.
            let mut least = 0;
            for command in 0..60 {
                let mut used = vec![false; layout.bytes()];
                let mut alive = 0;
                for (at, lifetime) in lifetimes.iter().enumerate() {
                    let start = layout.start(StorageId(at as u32));
                    prop_assert_eq!(start.is_some(), lifetime.is_some());
                    let (Some(life), Some(start)) = (lifetime, start) else { continue };
                    prop_assert_eq!(start % ALIGN, 0);
                    if !(life.first..=life.last).contains(&command) {
                        continue;
                    }
                    alive += life.bytes.next_multiple_of(ALIGN);
                    for byte in &mut used[start..start + life.bytes] {
                        prop_assert!(!*byte, "two live storages share a byte at command {}", command);
                        *byte = true;
                    }
                }
                least = least.max(alive);
            }
            prop_assert_eq!(layout.least(), least);
            // First fit by size is within twice of the least on lifetimes that are nothing special.
            prop_assert!(layout.bytes() <= 2 * least, "{} bytes, and {} would be the least", layout.bytes(), least);
        }
    }

    #[test]
    fn a_chain_takes_no_more_than_two_neighbours() {
        let chain: Vec<_> = (0..30).map(|at| Some(Lifetime { bytes: 640, first: at, last: at + 1 })).collect();
        assert_eq!(Layout::fit(&chain).unwrap().bytes(), 1280);
    }

    #[test]
    fn sizes_that_pass_the_address_space_are_refused() {
        let third = Some(Lifetime { bytes: isize::MAX as usize / 3, first: 0, last: 1 });
        assert!(Layout::fit(&[third, third]).is_some());
        assert!(Layout::fit(&[third, third, third, third]).is_none());
        assert!(Layout::fit(&[Some(Lifetime { bytes: usize::MAX, first: 0, last: 0 })]).is_none());
    }
}
