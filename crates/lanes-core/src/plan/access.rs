//! What each command touches, and when two touches meet.
//!
//! - Two regions meet when they share a byte; strided ones are told apart exactly.
//! - A state is two places within one turn: the rows read and the rows written. They never meet (`TurnRows`).

use super::{Access, Argument, Command, Contraction, Region, StorageId, Term};

/// A place that commands of one turn may conflict over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A seat of a storage, or its one shared value.
    Storage(StorageId),
    /// The row of a state that a seat reads.
    RowRead(StorageId),
    /// The row of a state that a seat writes.
    RowWritten(StorageId),
}

/// One declared touch of one region of one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// Where.
    pub place: Place,
    /// Which bytes of it.
    pub region: Region,
    /// How.
    pub access: Access,
}

impl Access {
    /// Whether it sees what was there before.
    pub const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::ReadWrite | Self::Accumulate)
    }

    /// Whether it changes what is there.
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::ReadWrite | Self::Accumulate)
    }

    /// Whether two touches of one byte need an order.
    pub const fn conflicts(self, other: Self) -> bool {
        match (self, other) {
            (Self::Read, Self::Read) | (Self::Accumulate, Self::Accumulate) => false,
            _ => self.writes() || other.writes(),
        }
    }
}

impl Region {
    /// Whether the two share a byte. Exact; takes time in the smaller number of runs.
    /// Both must be in bounds of some storage, so that their ends are numbers.
    pub fn overlaps(&self, other: &Self) -> bool {
        let (a, b) = (self.joined(), other.joined());
        if a.bytes() == 0 || b.bytes() == 0 || a.offset >= b.end() || b.offset >= a.end() {
            return false;
        }
        let (few, many) = if a.rows <= b.rows { (a, b) } else { (b, a) };
        (0..few.rows).any(|row| {
            let start = few.offset + row * few.stride;
            let end = start + few.row_bytes;
            // The first run of `many` that ends past `start`, if it starts before `end`.
            let past = (start + 1).saturating_sub(many.offset + many.row_bytes);
            let first = if many.rows == 1 { usize::from(past > 0) } else { past.div_ceil(many.stride) };
            first < many.rows && many.offset + first * many.stride < end
        })
    }

    /// The same bytes in as few runs as can be.
    pub const fn joined(&self) -> Self {
        if self.rows == 1 || (self.rows > 1 && self.stride == self.row_bytes) {
            Self::contiguous(self.offset, self.row_bytes * self.rows)
        } else {
            *self
        }
    }

    /// One past its last byte, or `None` where that passes `usize`.
    pub const fn checked_end(&self) -> Option<usize> {
        if self.rows == 0 {
            return Some(self.offset);
        }
        let Some(last) = (self.rows - 1).checked_mul(self.stride) else {
            return None;
        };
        let Some(start) = self.offset.checked_add(last) else {
            return None;
        };
        start.checked_add(self.row_bytes)
    }
}

impl Term {
    /// The bytes that one run of its windows reads over all positions, for each run; of a checked plan.
    pub fn reads(&self, positions: usize) -> impl Iterator<Item = Region> + '_ {
        // A distance that is never gone may be any number.
        let (run, step) = (self.tap_len * 4, if positions > 1 { self.position_stride * 4 } else { 0 });
        // Runs that lie end to end are one.
        let (taps, run) = if self.tap_stride == self.tap_len { (1, run * self.taps) } else { (self.taps, run) };
        (0..taps).map(move |tap| {
            let offset = (self.offset + tap * self.tap_stride) * 4;
            if positions > 1 && step >= run {
                Region { offset, row_bytes: run, stride: step, rows: positions }
            } else {
                // Overlapping windows cover everything from the first to the end of the last.
                Region::contiguous(offset, step * (positions - 1) + run)
            }
        })
    }
}

impl Contraction {
    /// The bytes it writes; of a checked plan.
    pub const fn writes(&self) -> Region {
        let row_bytes = self.n * 4;
        let stride = if self.positions > 1 { self.out_position_stride * 4 } else { row_bytes };
        Region { offset: self.out_offset * 4, row_bytes, stride, rows: self.positions }
    }
}

impl Command {
    /// All it touches, reads and writes in no particular order; of a checked plan.
    pub fn touches(&self) -> Vec<Touch> {
        let on = |storage: StorageId, region: Region, access: Access| Touch {
            place: Place::Storage(storage),
            region,
            access,
        };
        match self {
            Self::Dispatch { arguments, .. } => arguments
                .iter()
                .filter_map(|argument| match argument {
                    Argument::Buffer { storage, uses, .. } => Some((storage, uses)),
                    Argument::Scalar(_) => None,
                })
                .flat_map(|(storage, uses)| uses.iter().map(|&(region, access)| on(*storage, region, access)))
                .collect(),
            Self::Contract(contraction) => contraction
                .terms
                .iter()
                .flat_map(|term| term.reads(contraction.positions).map(|region| on(term.storage, region, Access::Read)))
                .chain([on(contraction.out, contraction.writes(), Access::Write)])
                .collect(),
            Self::Copy { from, to } => vec![on(from.0, from.1, Access::Read), on(to.0, to.1, Access::Write)],
            Self::Fill { to, .. } => vec![on(to.0, to.1, Access::Write)],
            Self::Gather { state, row, to } => vec![
                Touch { place: Place::RowRead(*state), region: *row, access: Access::Read },
                on(to.0, to.1, Access::Write),
            ],
            Self::Scatter { from, state, row } => vec![
                on(from.0, from.1, Access::Read),
                Touch { place: Place::RowWritten(*state), region: *row, access: Access::Write },
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// The bytes of a region, one by one.
    fn bytes(region: Region) -> BTreeSet<usize> {
        (0..region.rows)
            .flat_map(|row| (0..region.row_bytes).map(move |at| region.offset + row * region.stride + at))
            .collect()
    }

    fn region() -> impl Strategy<Value = Region> {
        (0usize..40, 1usize..8, 0usize..9, 1usize..7).prop_map(|(offset, row_bytes, gap, rows)| Region {
            offset,
            row_bytes,
            stride: row_bytes + gap,
            rows,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn strided_regions_overlap_exactly_when_their_bytes_do(a in region(), b in region()) {
            let expected = !bytes(a).is_disjoint(&bytes(b));
            prop_assert_eq!(a.overlaps(&b), expected);
            prop_assert_eq!(b.overlaps(&a), expected);
            prop_assert_eq!(bytes(a.joined()), bytes(a));
            prop_assert_eq!(a.checked_end(), bytes(a).last().map(|last| last + 1));
        }

        /// Against reading the elements as the type's documentation spells them.
        #[test]
        fn a_term_reads_its_windows_and_nothing_else(
            (offset, position_stride, taps, tap_stride, tap_len) in (0usize..9, 0usize..12, 1usize..5, 0usize..9, 1usize..6),
            positions in 1usize..6,
        ) {
            let term = Term { storage: StorageId(0), offset, position_stride, taps, tap_stride, tap_len };
            let mut expected = BTreeSet::new();
            for p in 0..positions {
                for t in 0..taps {
                    for c in 0..tap_len {
                        let element = offset + p * position_stride + t * tap_stride + c;
                        expected.extend(element * 4..element * 4 + 4);
                    }
                }
            }
            let read: BTreeSet<_> = term.reads(positions).flat_map(bytes).collect();
            prop_assert_eq!(read, expected);
        }
    }
}
