//! Which rows are free, and how many hold each of the others.
//!
//! `max_lanes` held by lanes + `max_seats` being written by each turn in flight + one a checkpoint + the initial row,
//! which is last.
//!
//! - A row is free, or held: by the seat of a turn in flight that writes it, by those that read it, and by lanes and
//!   checkpoints, several of them after a fork. It is free again when the last of them lets it go, so no row that
//!   somebody holds or a turn in flight touches is given out, and none that is held is written again.
//! - `take` cannot run out: a seat writes one row, a checkpoint holds one, and a lane holds at most one that no seat in
//!   flight writes. The row that a released lane pointed at is read by seats that end before the next holder of the lane
//!   commits one, and no stream is restored to that lane before. What a failed seat wrote is read by seats in flight
//!   only, while no turn is formed (`turn`).
//! - The initial row is nobody's: sharing and freeing it does nothing.
//! - Rows that were never taken are above all others, and are not kept: the most rows there may be cost address space for
//!   two lists of them, so that no turn allocates, and work only as they are taken.
//! - Not here: the bytes (the model keeps them).

use super::model::{Capacity, RowId};

pub(super) struct Rows {
    /// Those that were taken and are free, the last one freed last.
    freed: Vec<RowId>,
    /// Of each row that was ever taken: the lowest.
    holders: Vec<u32>,
    initial: RowId,
}

impl Rows {
    /// All rows but the initial one are free.
    pub fn new(capacity: Capacity) -> Self {
        let initial = capacity.initial_row();
        let most = initial.0 as usize;
        Self { freed: Vec::with_capacity(most), holders: Vec::with_capacity(most), initial }
    }

    /// The capacity that `lanes` lanes and `checkpoints` checkpoints need with `slots` turns of `max_seats` in flight.
    pub const fn capacity(lanes: u32, max_seats: u32, slots: usize, checkpoints: u32) -> Capacity {
        Capacity { rows: lanes + slots as u32 * max_seats + checkpoints + 1, max_seats }
    }

    /// A row to write, with one holder. The last one freed comes first: it is the likeliest to be in cache. After those
    /// comes the lowest that was never taken.
    pub fn take(&mut self) -> RowId {
        if let Some(row) = self.freed.pop() {
            self.holders[row.0 as usize] = 1;
            return row;
        }
        let row = RowId(self.holders.len() as u32);
        assert!(row < self.initial, "a lane, a seat or a checkpoint holds more than one row");
        self.holders.push(1);
        row
    }

    /// One more holds `row`, which somebody holds.
    pub fn share(&mut self, row: RowId) {
        if row != self.initial {
            let holders = &mut self.holders[row.0 as usize];
            assert!(*holders > 0, "{row} was shared and nobody holds it");
            *holders += 1;
        }
    }

    /// One holder lets `row` go; it is free once that was the last.
    pub fn free(&mut self, row: RowId) {
        if row != self.initial {
            let holders = &mut self.holders[row.0 as usize];
            assert!(*holders > 0, "{row} was freed twice");
            *holders -= 1;
            if *holders == 0 {
                self.freed.push(row);
            }
        }
    }

    /// How many rows are free.
    #[cfg(test)]
    pub fn free_count(&self) -> usize {
        self.freed.len() + (self.initial.0 as usize - self.holders.len())
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
            lanes in 1u32..6, seats in 1u32..6, slots in 1usize..4, checkpoints in 0u32..3,
            steps in prop::collection::vec((0u8..3, any::<u8>()), 0..96),
        ) {
            let capacity = Rows::capacity(lanes, seats, slots, checkpoints);
            let (mut rows, mut held) = (Rows::new(capacity), BTreeMap::<RowId, u32>::new());
            let most = lanes as usize + seats as usize * slots + checkpoints as usize;
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

    /// The most rows cost what was taken of them: the last one freed first, then the lowest never taken.
    #[test]
    fn rows_that_nobody_took_cost_nothing() {
        let capacity = Rows::capacity(1 << 24, 1, 1, 0);
        let mut rows = Rows::new(capacity);
        let kept = |rows: &Rows| (rows.holders.len(), rows.freed.len(), rows.free_count());
        let most = (1 << 24) + 1;
        assert_eq!(kept(&rows), (0, 0, most));
        let taken: Vec<RowId> = (0..3).map(|_| rows.take()).collect();
        assert_eq!(taken, [RowId(0), RowId(1), RowId(2)]);
        taken[..2].iter().for_each(|row| rows.free(*row));
        assert_eq!(kept(&rows), (3, 2, most - 1));
        let again: Vec<RowId> = (0..3).map(|_| rows.take()).collect();
        assert_eq!(again, [RowId(1), RowId(0), RowId(3)]);
    }

    #[test]
    #[should_panic(expected = "row0 was freed twice")]
    fn a_row_is_freed_once_a_holder() {
        let mut rows = Rows::new(Rows::capacity(1, 1, 1, 0));
        let row = rows.take();
        rows.share(row);
        rows.free(row);
        rows.free(row);
        rows.free(row);
    }
}
