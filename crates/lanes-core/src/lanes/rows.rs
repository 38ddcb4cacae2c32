//! Which rows are free.
//!
//! `max_lanes` held by lanes + `max_seats` being written by the one turn in flight + the initial row, which is last.
//!
//! - A row is free, or held by one lane, or written by one seat of the turn in flight.
//! - `take` cannot run out: a lane holds at most one row and a seat writes one.
//! - Not here: the bytes (the model keeps them).

use super::model::{Capacity, RowId};

pub(super) struct Rows {
    free: Vec<RowId>,
    is_free: Vec<bool>,
}

impl Rows {
    /// All rows but the initial one are free.
    pub fn new(capacity: Capacity) -> Self {
        let ordinary = capacity.initial_row().0;
        // Reversed, so that the lowest is taken first.
        Self { free: (0..ordinary).rev().map(RowId).collect(), is_free: vec![true; ordinary as usize] }
    }

    /// The capacity that `lanes` lanes need with one turn of `max_seats` in flight.
    pub const fn capacity(lanes: u32, max_seats: u32) -> Capacity {
        Capacity { rows: lanes + max_seats + 1, max_seats }
    }

    /// A row to write. The last one freed comes first: it is the likeliest to be in cache.
    pub fn take(&mut self) -> RowId {
        let row = self.free.pop().expect("a lane or a seat holds more than one row");
        self.is_free[row.0 as usize] = false;
        row
    }

    /// Gives a row back.
    pub fn free(&mut self, row: RowId) {
        let is_free = &mut self.is_free[row.0 as usize];
        assert!(!*is_free, "{row} was freed twice");
        *is_free = true;
        self.free.push(row);
    }

    /// How many rows are free.
    #[cfg(test)]
    pub fn free_count(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Against a set: what is out is never given again, and never the initial row.
        #[test]
        fn a_row_is_out_once(lanes in 1u32..6, seats in 1u32..6, steps in prop::collection::vec(any::<Option<u8>>(), 0..64)) {
            let capacity = Rows::capacity(lanes, seats);
            let (mut rows, mut out) = (Rows::new(capacity), BTreeSet::new());
            for step in steps {
                match step {
                    Some(at) if !out.is_empty() => {
                        let row = *out.iter().nth(at as usize % out.len()).unwrap();
                        out.remove(&row);
                        rows.free(row);
                    }
                    _ if out.len() < (lanes + seats) as usize => {
                        let row = rows.take();
                        prop_assert!(row < capacity.initial_row());
                        prop_assert!(out.insert(row));
                    }
                    _ => {}
                }
                prop_assert_eq!(rows.free_count(), (lanes + seats) as usize - out.len());
            }
        }
    }

    #[test]
    #[should_panic(expected = "row0 was freed twice")]
    fn a_row_is_freed_once() {
        let mut rows = Rows::new(Rows::capacity(1, 1));
        let row = rows.take();
        rows.free(row);
        rows.free(row);
    }
}
