//! Where scratch lies: values whose lifetimes are disjoint share memory.
//!
//! ```text
//! bytes ^   ┌──a──┐┌───d───┐
//!       │   └─────┘└───────┘       a and d are never alive at one command
//!       │ ┌────────b────┐ ┌─c─┐
//!       └─┴─────────────┴─┴───┴──> commands, in program order
//! ```
//!
//! - A value lives from the first command that touches it to the last, both included.
//! - Values are placed one after the other, each into the smallest gap that holds it (best fit). In which order decides how
//!   much is lost, so several are tried, and the best is improved by placing earlier what lies highest.
//! - Nothing is left to chance: the same values have the same placement everywhere.
//! - Starts are multiples of 64 bytes, a cache line here and the strictest vector alignment.
//! - Not here: the edges that sharing adds (`hazard`).
//!
//! ```
//! use lanes_core::scratch::{Placement, Value};
//!
//! // A chain: each command reads what the one before wrote, and the last reads the first again.
//! let values = [
//!     Value { bytes: 4096, first: 0, last: 3 },
//!     Value { bytes: 1000, first: 0, last: 1 },
//!     Value { bytes: 1000, first: 1, last: 2 },
//!     Value { bytes: 900, first: 2, last: 3 },
//! ];
//! let placement = Placement::of(&values)?;
//! assert_eq!(placement.start(3), placement.start(1), "they are never alive together");
//! assert_eq!((placement.bytes(), placement.least()), (6144, 6144));
//! # Ok::<_, lanes_core::scratch::ScratchError>(())
//! ```

use crate::plan::{Checked, Place, Storage, StorageId};
use std::cmp::Reverse;
use std::ops::RangeInclusive;

/// Every start is a multiple of it.
pub const ALIGN: usize = 64;

/// With more values than this only one order is tried: placing takes time in the square of their number.
const MANY: usize = 4096;

/// Pairs of values that improving an order may look at, some ten milliseconds.
const WORK: usize = 1 << 22;

/// Bytes wanted from one command to another, both included. Commands are numbered in program order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// How many.
    pub bytes: usize,
    /// The first command that touches it.
    pub first: usize,
    /// The last one; not before `first`.
    pub last: usize,
}

impl Value {
    /// Whether both are alive at some command.
    pub const fn meets(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Its bytes and those lost behind it. Of a value that was checked.
    const fn size(&self) -> usize {
        self.bytes.next_multiple_of(ALIGN)
    }
}

/// Why values have no placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScratchError {
    /// A lifetime that ends before it starts.
    #[error("scratch value {at} lives from command {first} to {last}: the last may not be before the first")]
    Backwards {
        /// Position among the values.
        at: usize,
        /// As given.
        first: usize,
        /// As given.
        last: usize,
    },
    /// The sum of all sizes is no size.
    #[error("scratch values of more than {} bytes together", isize::MAX)]
    TooLarge,
}

/// Where values lie in one stretch of memory: no two that are alive at one command have a byte in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    values: Vec<Value>,
    starts: Vec<usize>,
    bytes: usize,
}

impl Placement {
    /// Of `values`, whose number is their position.
    ///
    /// # Errors
    /// Sizes that add up to more than `isize::MAX`, and lifetimes that end before they start.
    pub fn of(values: &[Value]) -> Result<Self, ScratchError> {
        // Once the sum is a number, every sum below is one.
        let mut sum = 0isize;
        for (at, &Value { bytes, first, last }) in values.iter().enumerate() {
            if last < first {
                return Err(ScratchError::Backwards { at, first, last });
            }
            let size = bytes.checked_next_multiple_of(ALIGN);
            sum = size.and_then(|size| sum.checked_add_unsigned(size)).ok_or(ScratchError::TooLarge)?;
        }
        let mut placement = Self { values: values.to_vec(), starts: Vec::new(), bytes: usize::MAX };
        let least = placement.least();
        let tries = if values.len() > MANY { 1 } else { ORDERS.len() };
        let mut best = Vec::new();
        for key in &ORDERS[..tries] {
            let mut order: Vec<usize> = (0..values.len()).collect();
            order.sort_by_key(|&at| (key(&values[at]), values[at].first, at));
            if placement.improve(&order) {
                best = order;
            }
            if placement.bytes == least {
                return Ok(placement);
            }
        }
        let mut tries = WORK / values.len().pow(2).max(1);
        while placement.bytes > least {
            // Whatever lies highest goes first, one at a time: it finds the whole stretch free.
            let mut highest = best.clone();
            highest.sort_by_key(|&at| (Reverse(placement.starts[at] + values[at].size()), at));
            let better = highest.into_iter().take(tries).find_map(|at| {
                tries -= 1;
                let rest = best.iter().copied().filter(|&other| other != at);
                let order: Vec<usize> = std::iter::once(at).chain(rest).collect();
                placement.improve(&order).then_some(order)
            });
            match better.or_else(|| placement.moved(&best, &mut tries)) {
                Some(order) => best = order,
                None => break,
            }
        }
        Ok(placement)
    }

    /// `order` with one value moved or two exchanged, if any such order takes less: the first of them, which is kept.
    fn moved(&mut self, order: &[usize], tries: &mut usize) -> Option<Vec<usize>> {
        for from in 0..order.len() {
            for to in 0..order.len() {
                for exchanges in [false, true] {
                    *tries = tries.checked_sub(1)?;
                    let mut moved = order.to_vec();
                    if exchanges {
                        moved.swap(from, to);
                    } else {
                        let at = moved.remove(from);
                        moved.insert(to, at);
                    }
                    if self.improve(&moved) {
                        return Some(moved);
                    }
                }
            }
        }
        None
    }

    /// Places the values in this order, and keeps that if it takes less.
    fn improve(&mut self, order: &[usize]) -> bool {
        let (mut starts, mut bytes) = (vec![0; self.values.len()], 0);
        let mut placed: Vec<usize> = Vec::with_capacity(order.len());
        let mut taken = Vec::new();
        for &at in order {
            let value = &self.values[at];
            taken.clear();
            taken.extend(placed.iter().filter(|&&other| self.values[other].meets(value)).map(|&other| {
                let start: usize = starts[other];
                (start, start + self.values[other].size())
            }));
            taken.sort_unstable();
            let (mut best, mut end) = (None::<(usize, usize)>, 0);
            for &(start, past) in &taken {
                let gap = start.saturating_sub(end);
                if start > end && gap >= value.size() && best.is_none_or(|(least, _)| gap < least) {
                    best = Some((gap, end));
                }
                end = end.max(past);
            }
            starts[at] = best.map_or(end, |(_, start)| start);
            bytes = bytes.max(starts[at] + value.size());
            placed.push(at);
        }
        let better = bytes < self.bytes;
        if better {
            (self.starts, self.bytes) = (starts, bytes);
        }
        better
    }

    /// Where value `at` starts.
    pub fn start(&self, at: usize) -> usize {
        self.starts[at]
    }

    /// Bytes of the whole stretch.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether two values have memory in common.
    pub fn share(&self, a: usize, b: usize) -> bool {
        let range = |at: usize| (self.starts[at], self.starts[at] + self.values[at].bytes);
        let ((a, a_end), (b, b_end)) = (range(a), range(b));
        a < b_end && b < a_end
    }

    /// The most bytes alive at one command, each value rounded up to [`ALIGN`]: no placement is smaller.
    pub fn least(&self) -> usize {
        // What is alive grows only where a lifetime starts. At one command all that starts comes before what ends.
        let starts = self.values.iter().map(|value| (value.first, false, value.size()));
        let ends = self.values.iter().map(|value| (value.last, true, value.size()));
        let mut changes: Vec<(usize, bool, usize)> = starts.chain(ends).collect();
        changes.sort_unstable();
        let (mut alive, mut most) = (0, 0);
        for (_, ends, size) in changes {
            alive = if ends { alive - size } else { alive + size };
            most = most.max(alive);
        }
        most
    }
}

/// What values are sorted by, the smallest key first.
type OrderKey = (Reverse<u128>, Reverse<usize>);

/// Orders to place values in.
const ORDERS: [fn(&Value) -> OrderKey; 4] = [
    |value| (Reverse(value.bytes as u128), Reverse(length(value))),
    |value| (Reverse(value.bytes as u128 * length(value) as u128), Reverse(value.bytes)),
    |value| (Reverse(length(value) as u128), Reverse(value.bytes)),
    // As the program meets them: all keys are equal, and the first command decides.
    |_| (Reverse(0), Reverse(0)),
];

/// How many commands it is alive at, but one.
const fn length(value: &Value) -> usize {
    value.last - value.first
}

/// Where the scratch storages of a plan lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// For each storage of the plan, its number among the values.
    values: Vec<Option<usize>>,
    placement: Placement,
}

impl Layout {
    /// Of the scratch of `plan` for `seats` seats. `None` when the sum of all sizes passes `isize`.
    pub fn of(plan: &Checked<'_>, seats: usize) -> Option<Self> {
        Self::living(plan, seats, |at, _| Some(at..=at))
    }

    /// The same, where what a command touches of a storage lives for all the commands that `lives` tells, itself among them: a
    /// device that does some at once, or keeps what lies there. What lives at no command lies nowhere.
    pub fn living(
        plan: &Checked<'_>,
        seats: usize,
        lives: impl Fn(usize, StorageId) -> Option<RangeInclusive<usize>>,
    ) -> Option<Self> {
        let plan = plan.plan();
        let (mut numbers, mut values) = (vec![None; plan.storages.len()], Vec::<Value>::new());
        for (at, command) in plan.commands.iter().enumerate() {
            for touch in command.touches() {
                let Place::Storage(StorageId(id)) = touch.place else {
                    continue;
                };
                let Storage::Scratch { bytes } = plan.storages[id as usize] else {
                    continue;
                };
                let Some((first, last)) = lives(at, StorageId(id)).map(RangeInclusive::into_inner) else {
                    continue;
                };
                match numbers[id as usize] {
                    Some(number) => {
                        let value: &mut Value = &mut values[number];
                        (value.first, value.last) = (value.first.min(first), value.last.max(last));
                    }
                    None => {
                        numbers[id as usize] = Some(values.len());
                        values.push(Value { bytes: bytes.checked_mul(seats)?, first, last });
                    }
                }
            }
        }
        Some(Self { values: numbers, placement: Placement::of(&values).ok()? })
    }

    fn number(&self, storage: StorageId) -> Option<usize> {
        self.values.get(storage.0 as usize).copied().flatten()
    }

    /// Where a storage starts; `None` if it is no scratch, or lives at no command.
    pub fn start(&self, storage: StorageId) -> Option<usize> {
        self.number(storage).map(|number| self.placement.start(number))
    }

    /// Bytes of the whole stretch.
    pub fn bytes(&self) -> usize {
        self.placement.bytes()
    }

    /// Whether two storages have memory in common.
    pub fn share(&self, a: StorageId, b: StorageId) -> bool {
        match (self.number(a), self.number(b)) {
            (Some(a), Some(b)) => self.placement.share(a, b),
            _ => false,
        }
    }

    /// The most bytes alive at one command, each storage rounded up to [`ALIGN`]: no layout is smaller.
    pub fn least(&self) -> usize {
        self.placement.least()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values(bytes: usize, commands: usize, most: usize) -> impl Strategy<Value = Vec<Value>> {
        let value = (0..bytes, 0..commands, 0..12usize);
        let value = value.prop_map(|(bytes, first, length)| Value { bytes, first, last: first + length });
        prop::collection::vec(value, 0..most)
    }

    /// The least that any placement takes: lowest first, in every order there is. (Taken from the bottom up, the values of
    /// any placement can be let down in that order without one growing.)
    fn optimum(values: &[Value], placed: &mut Vec<(usize, Value)>, left: &mut Vec<usize>, best: &mut usize) {
        let top = placed.iter().map(|(start, value)| start + value.size()).max().unwrap_or(0);
        if left.is_empty() || top >= *best {
            *best = top.min(*best);
            return;
        }
        for turn in 0..left.len() {
            let at = left.remove(turn);
            let fits = |start: usize| {
                placed.iter().all(|(other_start, other)| {
                    !other.meets(&values[at])
                        || start + values[at].size() <= *other_start
                        || other_start + other.size() <= start
                })
            };
            let ends = placed.iter().map(|(start, value)| start + value.size());
            let start = ends.chain([0]).filter(|&start| fits(start)).min().unwrap();
            placed.push((start, values[at]));
            optimum(values, placed, left, best);
            placed.pop();
            left.insert(turn, at);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn what_lives_together_lies_apart_and_little_is_lost(values in values(4000, 40, 40)) {
            let placement = Placement::of(&values).unwrap();
            prop_assert_eq!(&placement, &Placement::of(&values).unwrap());
            // Bytes alive at each command, said with one counter per byte.
            let mut least = 0;
            for command in 0..60 {
                let mut used = vec![false; placement.bytes()];
                let mut alive = 0;
                for (at, value) in values.iter().enumerate() {
                    let start = placement.start(at);
                    prop_assert_eq!(start % ALIGN, 0);
                    if !(value.first..=value.last).contains(&command) {
                        continue;
                    }
                    alive += value.bytes.next_multiple_of(ALIGN);
                    for byte in &mut used[start..start + value.bytes] {
                        prop_assert!(!*byte, "two live values share a byte at command {}", command);
                        *byte = true;
                    }
                }
                least = least.max(alive);
            }
            prop_assert_eq!(placement.least(), least);
            // Lifetimes that are nothing special leave some gaps, even where nothing better is possible: 1.17 times the least
            // was the worst of 1000.
            prop_assert!(placement.bytes() * 10 <= least * 14, "{} bytes, and {} would be the least", placement.bytes(), least);
        }

        #[test]
        fn few_values_lie_as_close_as_they_can(values in values(1000, 12, 8)) {
            let mut best = usize::MAX;
            optimum(&values, &mut Vec::new(), &mut (0..values.len()).collect(), &mut best);
            let placement = Placement::of(&values).unwrap();
            prop_assert!(placement.bytes() >= best);
            // 1.05 times was the worst of 3000.
            prop_assert!(placement.bytes() * 10 <= best * 12, "{} bytes, and {} would do", placement.bytes(), best);
        }
    }

    #[test]
    fn an_order_that_no_single_value_mends_is_mended_by_moving_one_among_the_others() {
        let value = |bytes, first, last| Value { bytes, first, last };
        let values = [value(807, 11, 11), value(769, 8, 11), value(385, 1, 8), value(769, 0, 1), value(1, 3, 11)];
        assert_eq!(Placement::of(&values).unwrap().bytes(), 1728);
    }

    #[test]
    fn a_chain_takes_no_more_than_two_neighbours() {
        let chain: Vec<_> = (0..30).map(|at| Value { bytes: 640, first: at, last: at + 1 }).collect();
        assert_eq!(Placement::of(&chain).unwrap().bytes(), 1280);
        assert_eq!(Placement::of(&[]).unwrap().bytes(), 0);
    }

    #[test]
    fn values_that_are_none_are_refused() {
        let third = Value { bytes: isize::MAX as usize / 3, first: 0, last: 1 };
        assert!(Placement::of(&[third, third]).is_ok());
        assert_eq!(Placement::of(&[third; 4]), Err(ScratchError::TooLarge));
        let all = Value { bytes: usize::MAX, first: 0, last: 0 };
        assert_eq!(Placement::of(&[all]), Err(ScratchError::TooLarge));
        let error = Placement::of(&[third, Value { bytes: 1, first: 2, last: 1 }]).unwrap_err();
        let text = "scratch value 1 lives from command 2 to 1: the last may not be before the first";
        assert_eq!(error.to_string(), text);
        let forever = Value { bytes: 64, first: 0, last: usize::MAX };
        let end = Value { first: usize::MAX, ..forever };
        assert_eq!(Placement::of(&[forever, end, end]).unwrap().least(), 192);
    }
}
