//! Which rows are free, and how many hold each of the others.
//!
//! `max_lanes` held by lanes + `max_seats` being written by the one turn in flight + one a checkpoint + the initial row,
//! which is last.
//!
//! - A row is free, or written by one seat of the turn in flight, or held by lanes and checkpoints: by several after a
//!   fork. It is free again when the last of them lets it go.
//! - `take` gives free rows only, so a row that is held is never written.
//! - `take` cannot run out: a lane and a checkpoint hold at most one row, and a seat writes one.
//! - The initial row is nobody's: sharing and freeing it does nothing.
//! - Not here: the bytes (the model keeps them).

use super::model::{Capacity, RowId};

pub(super) struct Rows {
    free: Vec<RowId>,
    /// Of each row but the initial one.
    holders: Vec<u32>,
}

impl Rows {
    /// All rows but the initial one are free.
    pub fn new(capacity: Capacity) -> Self {
        let ordinary = capacity.initial_row().0;
        // Reversed, so that the lowest is taken first.
        Self { free: (0..ordinary).rev().map(RowId).collect(), holders: vec![0; ordinary as usize] }
    }

    /// The capacity that `lanes` lanes and `checkpoints` checkpoints need with one turn of `max_seats` in flight.
    pub const fn capacity(lanes: u32, max_seats: u32, checkpoints: u32) -> Capacity {
        Capacity { rows: lanes + max_seats + checkpoints + 1, max_seats }
    }

    /// A row to write, with one holder. The last one freed comes first: it is the likeliest to be in cache.
    pub fn take(&mut self) -> RowId {
        let row = self.free.pop().expect("a lane, a seat or a checkpoint holds more than one row");
        self.holders[row.0 as usize] = 1;
        row
    }

    /// One more holds `row`, which somebody holds.
    pub fn share(&mut self, row: RowId) {
        if let Some(holders) = self.holders.get_mut(row.0 as usize) {
            assert!(*holders > 0, "{row} was shared and nobody holds it");
            *holders += 1;
        }
    }

    /// One holder lets `row` go; it is free once that was the last.
    pub fn free(&mut self, row: RowId) {
        if let Some(holders) = self.holders.get_mut(row.0 as usize) {
            assert!(*holders > 0, "{row} was freed twice");
            *holders -= 1;
            if *holders == 0 {
                self.free.push(row);
            }
        }
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
    use std::collections::BTreeMap;

    proptest! {
        /// Against a map of counts: a row that is held is never given, nor is the initial row.
        #[test]
        fn a_row_is_given_when_nobody_holds_it(
            lanes in 1u32..6, seats in 1u32..6, checkpoints in 0u32..3,
            steps in prop::collection::vec((0u8..3, any::<u8>()), 0..96),
        ) {
            let capacity = Rows::capacity(lanes, seats, checkpoints);
            let (mut rows, mut held) = (Rows::new(capacity), BTreeMap::<RowId, u32>::new());
            let most = (lanes + seats + checkpoints) as usize;
            for (kind, at) in steps {
                let any = (!held.is_empty()).then(|| *held.keys().nth(at as usize % held.len()).unwrap());
                match (kind, any) {
                    (0, Some(row)) => {
                        rows.share(row);
                        *held.get_mut(&row).unwrap() += 1;
                    }
                    (1, Some(row)) => {
                        rows.free(row);
                        *held.get_mut(&row).unwrap() -= 1;
                        held.retain(|_, holders| *holders > 0);
                    }
                    _ if held.len() < most => {
                        let row = rows.take();
                        prop_assert!(row < capacity.initial_row());
                        prop_assert_eq!(held.insert(row, 1), None);
                    }
                    _ => {}
                }
                rows.share(capacity.initial_row());
                rows.free(capacity.initial_row());
                prop_assert_eq!(rows.free_count(), most - held.len());
            }
        }
    }

    #[test]
    #[should_panic(expected = "row0 was freed twice")]
    fn a_row_is_freed_once_a_holder() {
        let mut rows = Rows::new(Rows::capacity(1, 1, 0));
        let row = rows.take();
        rows.share(row);
        rows.free(row);
        rows.free(row);
        rows.free(row);
    }
}
