//! The rows of one turn, checked: what lets a backend run its seats on any threads without looking at them again.

use super::DeviceError;
use crate::lanes::{Capacity, SeatRows};

/// The rows of one turn in seat order. Holding one proves, for `capacity`, that there are 1 to `max_seats` seats, that
/// every row exists, that no two seats write one row, and that no seat reads a row which a seat of the turn writes.
/// The initial row is written by none.
#[derive(Clone, Copy, Debug)]
pub struct TurnRows<'a> {
    seats: &'a [SeatRows],
    capacity: Capacity,
    rows: bool,
}

impl<'a> TurnRows<'a> {
    /// In seat order.
    pub fn seats(&self) -> &'a [SeatRows] {
        self.seats
    }

    /// What it was checked against.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Whether the rows were checked. A model without states has none, and its turns' rows mean nothing.
    pub fn rows_checked(&self) -> bool {
        self.rows
    }
}

/// Makes [`TurnRows`] without allocating: it remembers, per row, the last turn that touched it.
#[derive(Debug)]
pub struct RowCheck {
    capacity: Capacity,
    turn: u64,
    read: Vec<u64>,
    written: Vec<u64>,
}

impl RowCheck {
    /// Checks turns over rows of `capacity`.
    pub fn new(capacity: Capacity) -> Self {
        let rows = capacity.rows as usize;
        Self { capacity, turn: 0, read: vec![0; rows], written: vec![0; rows] }
    }

    /// Checks turns of a model without states: only their number of seats.
    pub fn stateless(capacity: Capacity) -> Self {
        Self { capacity, turn: 0, read: Vec::new(), written: Vec::new() }
    }

    /// The proof, or [`DeviceError::Invalid`] with the seat and the row.
    pub fn check<'a>(&mut self, seats: &'a [SeatRows]) -> Result<TurnRows<'a>, DeviceError> {
        let Capacity { rows, max_seats } = self.capacity;
        if seats.is_empty() || seats.len() > max_seats as usize {
            return Err(invalid(format!("a turn of {} seats, where 1 to {max_seats} are prepared for", seats.len())));
        }
        if self.read.is_empty() {
            return Ok(TurnRows { seats, capacity: self.capacity, rows: false });
        }
        self.turn += 1;
        for (at, seat) in seats.iter().enumerate() {
            let (read, write) = (seat.read.0 as usize, seat.write.0 as usize);
            if seat.read.0 >= rows {
                return Err(invalid(format!("seat {at} reads {}, and there are {rows} rows", seat.read)));
            }
            if seat.write.0 >= rows - 1 {
                let last = self.capacity.initial_row();
                return Err(invalid(format!(
                    "seat {at} writes {}, and only rows below {last} are written",
                    seat.write
                )));
            }
            self.read[read] = self.turn;
            if self.written[write] == self.turn {
                return Err(invalid(format!("seat {at} writes {}, as an earlier seat does", seat.write)));
            }
            self.written[write] = self.turn;
        }
        // Only now are all writes known.
        for (at, seat) in seats.iter().enumerate() {
            if self.read[seat.write.0 as usize] == self.turn {
                return Err(invalid(format!("seat {at} writes {}, which the turn reads", seat.write)));
            }
        }
        Ok(TurnRows { seats, capacity: self.capacity, rows: true })
    }
}

fn invalid(what: String) -> DeviceError {
    DeviceError::Invalid { what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::RowId;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Against the sentence in the type's documentation, said with sets.
        #[test]
        fn lets_through_exactly_the_turns_that_are_safe(
            turns in prop::collection::vec(prop::collection::vec((0u32..8, 0u32..8), 0..6), 1..20),
        ) {
            let capacity = Capacity { rows: 7, max_seats: 4 };
            let mut check = RowCheck::new(capacity);
            for turn in turns {
                let seats: Vec<_> =
                    turn.iter().map(|&(read, write)| SeatRows { read: RowId(read), write: RowId(write) }).collect();
                let reads: BTreeSet<_> = turn.iter().map(|seat| seat.0).collect();
                let writes: BTreeSet<_> = turn.iter().map(|seat| seat.1).collect();
                let safe = (1..=4).contains(&turn.len())
                    && reads.iter().all(|&row| row < 7)
                    && writes.iter().all(|&row| row < 6)
                    && writes.len() == turn.len()
                    && reads.is_disjoint(&writes);
                prop_assert_eq!(check.check(&seats).is_ok(), safe, "{:?}", turn);
            }
        }
    }

    #[test]
    fn a_refusal_names_the_seat_and_the_row() {
        let mut check = RowCheck::new(Capacity { rows: 4, max_seats: 2 });
        let seat = |read, write| SeatRows { read: RowId(read), write: RowId(write) };
        let said = |check: &mut RowCheck, seats: &[SeatRows]| check.check(seats).unwrap_err().to_string();
        assert_eq!(
            said(&mut check, &[seat(3, 3)]),
            "invalid: seat 0 writes row3, and only rows below row3 are written"
        );
        assert_eq!(said(&mut check, &[seat(3, 0), seat(0, 1)]), "invalid: seat 0 writes row0, which the turn reads");
        assert_eq!(said(&mut check, &[seat(3, 0), seat(3, 0)]), "invalid: seat 1 writes row0, as an earlier seat does");
    }
}
