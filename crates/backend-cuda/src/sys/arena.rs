//! Which stretches of the pieces of memory that the driver gave are whose.
//!
//! ```text
//! piece  [ taken │ free │ taken │ taken │ free ]      the last taken given back: the piece goes back to the driver
//! ```
//!
//! - Stretches start at multiples of [`ALIGN`], lie apart, and are whole multiples of it long.
//! - A stretch is taken from the shortest free one that it fits, the lowest of those. Free ones that touch are one.
//! - Not here: the driver. Addresses are numbers.

use std::collections::BTreeMap;

/// What the driver's own memory starts at multiples of, in bytes ("CUDA C++ Programming Guide", device memory accesses).
pub(super) const ALIGN: u64 = 256;

/// Pieces by their first byte.
#[derive(Default)]
pub(super) struct Arena(BTreeMap<u64, Piece>);

struct Piece {
    len: u64,
    /// Length by start of what nobody has.
    free: BTreeMap<u64, u64>,
}

/// What a stretch of `len` bytes takes.
pub(super) fn rounded(len: u64) -> Option<u64> {
    len.max(1).checked_next_multiple_of(ALIGN)
}

impl Arena {
    /// The start of a stretch of `len` bytes, which is [`rounded`]; `None` if no piece has room.
    pub fn take(&mut self, len: u64) -> Option<u64> {
        let free = self.0.iter().flat_map(|(&base, piece)| piece.free.iter().map(move |(&at, &room)| (room, at, base)));
        let (room, at, base) = free.filter(|(room, ..)| *room >= len).min()?;
        let free = &mut self.0.get_mut(&base)?.free;
        free.remove(&at);
        if room > len {
            free.insert(at + len, room - len);
        }
        Some(at)
    }

    /// One more piece, whose first `taken` bytes, which are [`rounded`], somebody has: one that nobody took from would never be whole
    /// again, and stay.
    pub fn add(&mut self, base: u64, len: u64, taken: u64) {
        let free = [(base + taken, len - taken)].into_iter().filter(|(_, room)| *room > 0);
        self.0.insert(base, Piece { len, free: free.collect() });
    }

    /// Gives a stretch back; the piece that is whole again by that, which is forgotten.
    pub fn give(&mut self, mut at: u64, mut len: u64) -> Option<u64> {
        let (&base, piece) = self.0.range_mut(..=at).next_back()?;
        if let Some((&before, &room)) = piece.free.range(..at).next_back()
            && before + room == at
        {
            piece.free.remove(&before);
            (at, len) = (before, room + len);
        }
        if let Some(room) = piece.free.remove(&(at + len)) {
            len += room;
        }
        if len == piece.len {
            self.0.remove(&base);
            return Some(base);
        }
        piece.free.insert(at, len);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a list of what is taken: stretches lie in a piece and apart, the shortest room is used, and a piece is given back
        /// exactly when nobody has any of it.
        #[test]
        fn stretches_lie_apart_and_empty_pieces_go(steps in prop::collection::vec((any::<bool>(), 1u64..9, any::<prop::sample::Index>()), 1..120)) {
            let mut arena = Arena::default();
            // Piece, start, length.
            let mut taken = Vec::<(u64, u64, u64)>::new();
            let mut pieces = Vec::<(u64, u64)>::new();
            let mut next = 1 << 20;
            for (takes, units, which) in steps {
                if !takes && !taken.is_empty() {
                    let (base, at, len) = taken.swap_remove(which.index(taken.len()));
                    let is_empty = taken.iter().all(|(other, ..)| *other != base);
                    prop_assert_eq!(arena.give(at, len), is_empty.then_some(base));
                    if is_empty {
                        pieces.retain(|(other, _)| *other != base);
                    }
                    continue;
                }
                let len = units * ALIGN;
                // The gaps between what is taken.
                let mut gaps = Vec::new();
                for &(base, size) in &pieces {
                    let mut edges: Vec<(u64, u64)> = taken.iter().filter(|(of, ..)| *of == base).map(|&(_, at, len)| (at, at + len)).collect();
                    edges.sort_unstable();
                    edges.push((base + size, base + size));
                    let mut from = base;
                    for (start, end) in edges {
                        gaps.push((start - from, from, base));
                        from = end;
                    }
                }
                let expected = gaps.into_iter().filter(|(room, ..)| *room >= len).min();
                match (arena.take(len), expected) {
                    (Some(found), Some((_, at, base))) => {
                        prop_assert_eq!(found, at);
                        taken.push((base, at, len));
                    }
                    (None, None) => {
                        let size = 12 * ALIGN;
                        arena.add(next, size, len);
                        pieces.push((next, size));
                        taken.push((next, next, len));
                        // Some pieces touch, and are two all the same.
                        next += size + if units % 2 == 0 { ALIGN } else { 0 };
                    }
                    (found, expected) => prop_assert!(false, "{found:?}, not {expected:?}"),
                }
            }
        }
    }

    #[test]
    fn lengths_are_whole_units() {
        assert_eq!([0, 1, 256, 257].map(rounded), [Some(256), Some(256), Some(256), Some(512)]);
        assert_eq!(rounded(u64::MAX), None);
    }
}
