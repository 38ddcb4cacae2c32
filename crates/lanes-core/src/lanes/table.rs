//! Which lanes are free, who holds the others, and the row each points at.
//!
//! `lease() --> lane2, generation 7 --seat()--> one seat of this turn --commit(row5)--> ... --release()--> lane2 is free`
//!
//! - A lane has at most one lease, and at most one seat per turn.
//! - A generation is never given twice: what an earlier holder of a lane still sends is told from its new holder's.
//! - `free` and the taken lanes are disjoint; together they are `0..lanes`.
//! - Not here: which rows are free (`rows`), and what to do when all lanes are held (the caller).

use super::model::RowId;
use std::collections::BTreeSet;
use std::fmt;

/// One stream's place in the resident state. Displays as `lane2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub(super) u32);

impl LaneId {
    /// Its index, below the number of lanes.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lane{}", self.0)
    }
}

/// A lane as one holder knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    pub lane: LaneId,
    pub generation: u64,
}

/// Why a lane was not seated or not given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneError {
    /// Nobody holds it.
    NotTaken,
    /// Somebody else holds it by now.
    Stale,
    /// It has a seat in this turn already.
    Twice,
}

#[derive(Clone, Copy)]
struct Lane {
    taken: bool,
    generation: u64,
    row: RowId,
    /// The last reset that took effect; see `Lane::read`.
    epoch: u64,
    seated_in: u64,
}

pub(super) struct LaneTable {
    lanes: Vec<Lane>,
    free: BTreeSet<u32>,
    initial: RowId,
    turn: u64,
}

impl LaneTable {
    /// `lanes` free lanes; a fresh lease points at `initial`.
    pub fn new(lanes: u32, initial: RowId) -> Self {
        let lane = Lane { taken: false, generation: 0, row: initial, epoch: 0, seated_in: 0 };
        Self { lanes: vec![lane; lanes as usize], free: (0..lanes).collect(), initial, turn: 1 }
    }

    /// Takes the lowest free lane, so that a busy table stays dense; `None` when all are held.
    pub fn lease(&mut self) -> Option<Lease> {
        let index = self.free.pop_first()?;
        let lane = &mut self.lanes[index as usize];
        let generation = lane.generation + 1;
        *lane = Lane { taken: true, generation, row: self.initial, epoch: 0, seated_in: 0 };
        Some(Lease { lane: LaneId(index), generation })
    }

    /// Gives the lane back. The row it pointed at is free now, unless it was the initial one.
    pub fn release(&mut self, lease: Lease) -> Result<Option<RowId>, LaneError> {
        self.check(lease)?;
        let lane = &mut self.lanes[lease.lane.index()];
        lane.taken = false;
        self.free.insert(lease.lane.0);
        let row = std::mem::replace(&mut lane.row, self.initial);
        Ok(self.kept(row))
    }

    /// Starts another turn: every lane may be seated again.
    pub fn next_turn(&mut self) {
        self.turn += 1;
    }

    /// Whether the lane has a seat in this turn.
    pub fn is_seated(&self, lane: LaneId) -> bool {
        self.lanes[lane.index()].seated_in == self.turn
    }

    /// Gives the lane a seat in this turn, and the row that the seat reads.
    pub fn seat(&mut self, lease: Lease, epoch: u64) -> Result<RowId, LaneError> {
        self.check(lease)?;
        let lane = &mut self.lanes[lease.lane.index()];
        if lane.seated_in == self.turn {
            return Err(LaneError::Twice);
        }
        lane.seated_in = self.turn;
        self.row(lease, epoch)
    }

    /// The row that holds the stream's state: the initial one if it was reset since its last commit, that is if `epoch`
    /// is past the lane's.
    pub fn row(&self, lease: Lease, epoch: u64) -> Result<RowId, LaneError> {
        self.check(lease)?;
        let lane = &self.lanes[lease.lane.index()];
        Ok(if epoch > lane.epoch { self.initial } else { lane.row })
    }

    /// The lane gets no seat in this turn: what follows in its queue has to wait for another.
    pub fn pass_over(&mut self, lane: LaneId) {
        self.lanes[lane.index()].seated_in = self.turn;
    }

    /// Lanes that nobody holds.
    pub fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Points the lane at `row`, which its seat wrote, or which an operation moves it to. Returns the row to free: the
    /// one it pointed at before, or `row` itself if the lane has another holder by now.
    pub fn commit(&mut self, lease: Lease, row: RowId, epoch: u64) -> Option<RowId> {
        if self.check(lease).is_err() {
            return Some(row);
        }
        let lane = &mut self.lanes[lease.lane.index()];
        lane.epoch = lane.epoch.max(epoch);
        let before = std::mem::replace(&mut lane.row, row);
        self.kept(before)
    }

    fn check(&self, lease: Lease) -> Result<(), LaneError> {
        let lane = self.lanes[lease.lane.index()];
        match (lane.taken, lane.generation == lease.generation) {
            (true, true) => Ok(()),
            (false, true) => Err(LaneError::NotTaken),
            // Never given out, or given to somebody since.
            (false, false) if lane.generation == 0 => Err(LaneError::NotTaken),
            (_, false) => Err(LaneError::Stale),
        }
    }

    fn kept(&self, row: RowId) -> Option<RowId> {
        (row != self.initial).then_some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const INITIAL: RowId = RowId(99);

    proptest! {
        /// The table against the plainest model of it: the list of held leases and their rows.
        #[test]
        fn leases_the_lowest_free_lane(max in 1u32..9, steps in prop::collection::vec((any::<u8>(), any::<u8>()), 0..96)) {
            let mut table = LaneTable::new(max, INITIAL);
            let mut held = Vec::<(Lease, RowId)>::new();
            let mut gone = Vec::<Lease>::new();
            for (step, (kind, at)) in steps.into_iter().enumerate() {
                let at = at as usize;
                match kind % 3 {
                    0 if !held.is_empty() => {
                        let (lease, row) = held.swap_remove(at % held.len());
                        prop_assert_eq!(table.release(lease), Ok((row != INITIAL).then_some(row)));
                        prop_assert!(table.release(lease).is_err());
                        gone.push(lease);
                    }
                    1 if !held.is_empty() => {
                        let index = at % held.len();
                        let (lease, row) = &mut held[index];
                        table.next_turn();
                        prop_assert_eq!(table.seat(*lease, 0), Ok(*row));
                        prop_assert_eq!(table.seat(*lease, 0), Err(LaneError::Twice));
                        let wrote = RowId(1000 + step as u32);
                        prop_assert_eq!(table.commit(*lease, wrote, 0), (*row != INITIAL).then_some(*row));
                        *row = wrote;
                    }
                    _ => {
                        let lowest = (0..max).find(|lane| held.iter().all(|(lease, _)| lease.lane.0 != *lane));
                        let leased = table.lease();
                        prop_assert_eq!(leased.map(|lease| lease.lane.0), lowest);
                        held.extend(leased.map(|lease| (lease, INITIAL)));
                    }
                }
                table.next_turn();
                for lease in &gone {
                    let is_last = !gone.iter().chain(held.iter().map(|(lease, _)| lease)).any(|other| {
                        other.lane == lease.lane && other.generation > lease.generation
                    });
                    let expected = if is_last { LaneError::NotTaken } else { LaneError::Stale };
                    prop_assert_eq!(table.seat(*lease, 0), Err(expected));
                    prop_assert!(!table.is_seated(lease.lane));
                    prop_assert_eq!(table.commit(*lease, RowId(7), 0), Some(RowId(7)));
                }
            }
        }
    }

    #[test]
    fn refuses_a_lane_nobody_took() {
        let mut table = LaneTable::new(2, INITIAL);
        let never = Lease { lane: LaneId(1), generation: 1 };
        assert_eq!(table.seat(never, 0), Err(LaneError::NotTaken));
        let lease = table.lease().unwrap();
        table.release(lease).unwrap();
        assert_eq!(table.seat(lease, 0), Err(LaneError::NotTaken));
        assert_eq!(table.release(lease), Err(LaneError::NotTaken));
    }

    #[test]
    fn a_late_release_does_not_free_the_next_holder() {
        let mut table = LaneTable::new(1, INITIAL);
        let first = table.lease().unwrap();
        table.release(first).unwrap();
        let second = table.lease().unwrap();
        assert_eq!(second.lane, first.lane);
        assert_eq!(table.release(first), Err(LaneError::Stale));
        assert_eq!(table.lease(), None, "the second holder keeps it");
        assert_eq!(table.seat(second, 0), Ok(INITIAL));
    }

    #[test]
    fn a_reset_reads_the_initial_row_until_it_commits() {
        let mut table = LaneTable::new(1, INITIAL);
        let lease = table.lease().unwrap();
        table.seat(lease, 0).unwrap();
        assert_eq!(table.commit(lease, RowId(1), 0), None);
        // Reset, and the turn fails: the lane is untouched, and the next call starts over again.
        for _ in 0..2 {
            table.next_turn();
            assert_eq!(table.seat(lease, 1), Ok(INITIAL));
        }
        assert_eq!(table.commit(lease, RowId(2), 1), Some(RowId(1)));
        table.next_turn();
        assert_eq!(table.seat(lease, 1), Ok(RowId(2)));
        // A call that was made before the reset and queued after it does not reset again.
        table.next_turn();
        assert_eq!(table.seat(lease, 0), Ok(RowId(2)));
    }
}
