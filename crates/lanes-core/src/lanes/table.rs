//! Which lanes are free, who holds the others, and the row each points at.
//!
//! `lease() --> lane2, generation 7 --seat()--> one seat of this turn --commit(row5)--> ... --release()--> lane2 is free`
//!
//! - A lane has at most one lease, and at most one seat per turn. With several turns in flight it may have one in each:
//!   `ahead` is where they lead if they all succeed, and what the next seat reads.
//! - A generation is never given twice: what an earlier holder of a lane still sends is told from its new holder's.
//! - A lane was never leased, or is taken, or was returned; the never leased ones are above all others, and are not kept:
//!   a table takes as much memory, and work to build, as it ever had leases at once.
//! - Not here: which rows are free (`rows`), and what to do when all lanes are held (the caller).

use super::model::{RowId, SeatRows};
use std::collections::BTreeSet;
use std::fmt;

/// One stream's place in the resident state. Displays as `lane2`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    /// The last reset that took effect; see `LaneTable::seat`.
    epoch: u64,
    ahead: Ahead,
    seated_in: u64,
}

/// Row and epoch once the seats in flight have committed; those of the lane when it has none.
#[derive(Clone, Copy)]
struct Ahead {
    row: RowId,
    epoch: u64,
}

pub(super) struct LaneTable {
    /// Those that were ever leased: the lowest.
    lanes: Vec<Lane>,
    /// Those of them that nobody holds.
    returned: BTreeSet<u32>,
    /// How many there are, leased or not.
    count: u32,
    initial: RowId,
    turn: u64,
}

impl Lane {
    fn fresh(generation: u64, initial: RowId) -> Self {
        let ahead = Ahead { row: initial, epoch: 0 };
        Self { taken: true, generation, row: initial, epoch: 0, ahead, seated_in: 0 }
    }
}

impl LaneTable {
    /// `lanes` free lanes; a fresh lease points at `initial`.
    pub fn new(lanes: u32, initial: RowId) -> Self {
        Self { lanes: Vec::new(), returned: BTreeSet::new(), count: lanes, initial, turn: 1 }
    }

    /// Takes the lowest free lane, so that a busy table stays dense; `None` when all are held.
    pub fn lease(&mut self) -> Option<Lease> {
        self.lease_idle(|_| false)
    }

    /// `lease`, of a lane that is not `busy`. One that was never leased is not.
    pub fn lease_idle(&mut self, busy: impl Fn(LaneId) -> bool) -> Option<Lease> {
        let returned = self.returned.iter().copied().find(|index| !busy(LaneId(*index)));
        let index = match returned {
            Some(index) => {
                self.returned.remove(&index);
                index
            }
            None if self.lanes.len() < self.count as usize => {
                self.lanes.push(Lane::fresh(0, self.initial));
                self.lanes.len() as u32 - 1
            }
            None => return None,
        };
        let lane = &mut self.lanes[index as usize];
        let generation = lane.generation + 1;
        *lane = Lane::fresh(generation, self.initial);
        Some(Lease { lane: LaneId(index), generation })
    }

    /// Gives the lane back. The row it pointed at is free now, unless it was the initial one.
    pub fn release(&mut self, lease: Lease) -> Result<Option<RowId>, LaneError> {
        self.check(lease)?;
        let lane = &mut self.lanes[lease.lane.index()];
        lane.taken = false;
        self.returned.insert(lease.lane.0);
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

    /// Gives the lane a seat in this turn, and its rows: it reads where the seats in flight lead, or the initial row if
    /// the stream was reset since, that is if `epoch` is past theirs; it writes what `take` gives.
    pub fn seat(&mut self, lease: Lease, epoch: u64, take: impl FnOnce() -> RowId) -> Result<SeatRows, LaneError> {
        self.check(lease)?;
        let lane = &mut self.lanes[lease.lane.index()];
        if lane.seated_in == self.turn {
            return Err(LaneError::Twice);
        }
        lane.seated_in = self.turn;
        let read = if epoch > lane.ahead.epoch { self.initial } else { lane.ahead.row };
        let write = take();
        lane.ahead = Ahead { row: write, epoch: lane.ahead.epoch.max(epoch) };
        Ok(SeatRows { read, write })
    }

    /// The row that holds the state of a stream that has no seat in flight: the initial one if it was reset since its
    /// last commit.
    pub fn row(&self, lease: Lease, epoch: u64) -> Result<RowId, LaneError> {
        self.check(lease)?;
        let lane = &self.lanes[lease.lane.index()];
        Ok(if epoch > lane.epoch { self.initial } else { lane.row })
    }

    /// Points a lane that has no seat in flight at `row`. Returns the row to free, as `commit` does.
    pub fn point(&mut self, lease: Lease, row: RowId, epoch: u64) -> Option<RowId> {
        let left = self.commit(lease, row, epoch);
        self.rewind(lease);
        left
    }

    /// A seat of the lane came to nothing: it leads to where the lane is. `follow` then adds the seats in flight that
    /// still stand.
    pub fn rewind(&mut self, lease: Lease) {
        if self.check(lease).is_ok() {
            let lane = &mut self.lanes[lease.lane.index()];
            lane.ahead = Ahead { row: lane.row, epoch: lane.epoch };
        }
    }

    /// A seat in flight leads the lane to `row`.
    pub fn follow(&mut self, lease: Lease, row: RowId, epoch: u64) {
        if self.check(lease).is_ok() {
            let lane = &mut self.lanes[lease.lane.index()];
            lane.ahead = Ahead { row, epoch: lane.ahead.epoch.max(epoch) };
        }
    }

    /// The lane gets no seat in this turn: what follows in its queue has to wait for another.
    pub fn pass_over(&mut self, lane: LaneId) {
        self.lanes[lane.index()].seated_in = self.turn;
    }

    /// Lanes that nobody holds.
    pub fn free_count(&self) -> usize {
        self.returned.len() + (self.count as usize - self.lanes.len())
    }

    /// Points the lane at `row`, which its seat wrote. Returns the row to free: the one it pointed at before, or
    /// `row` itself if the lane has another holder by now.
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
        // Never given out, or given to somebody since.
        let lane = self.lanes.get(lease.lane.index()).ok_or(LaneError::NotTaken)?;
        match (lane.taken, lane.generation == lease.generation) {
            (true, true) => Ok(()),
            (false, true) => Err(LaneError::NotTaken),
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
                        let wrote = RowId(1000 + step as u32);
                        let rows = SeatRows { read: *row, write: wrote };
                        prop_assert_eq!(table.seat(*lease, 0, || wrote), Ok(rows));
                        prop_assert_eq!(table.seat(*lease, 0, none), Err(LaneError::Twice));
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
                    prop_assert_eq!(table.seat(*lease, 0, none), Err(expected));
                    prop_assert!(!table.is_seated(lease.lane));
                    prop_assert_eq!(table.commit(*lease, RowId(7), 0), Some(RowId(7)));
                }
            }
        }
    }

    /// A lane that is not seated takes no row.
    fn none() -> RowId {
        panic!("a row was taken")
    }

    /// Seats `lease` to write `write`; the row it reads.
    fn seat(table: &mut LaneTable, lease: Lease, epoch: u64, write: u32) -> RowId {
        table.next_turn();
        let rows = table.seat(lease, epoch, || RowId(write)).unwrap();
        assert_eq!(rows.write, RowId(write));
        rows.read
    }

    /// The most lanes there may be cost what is used of them. Lowest first all the same.
    #[test]
    fn lanes_that_nobody_ever_held_cost_nothing() {
        let most = 1 << 24;
        let mut table = LaneTable::new(most, INITIAL);
        let kept = |table: &LaneTable| (table.lanes.capacity(), table.returned.len(), table.free_count());
        assert_eq!(kept(&table), (0, 0, most as usize));
        let leases: Vec<Lease> = (0..5).map(|_| table.lease().unwrap()).collect();
        for at in [3, 1] {
            table.release(leases[at]).unwrap();
        }
        let (capacity, returned, free) = kept(&table);
        assert!(capacity <= 8, "{capacity}");
        assert_eq!((table.lanes.len(), returned, free), (5, 2, most as usize - 3));
        let idle = table.lease_idle(|lane| lane == LaneId(1));
        assert_eq!(idle.map(|lease| lease.lane), Some(LaneId(3)), "the lowest that is not busy");
        let next: Vec<u32> = (0..3).map(|_| table.lease().unwrap().lane.0).collect();
        assert_eq!(next, [1, 5, 6]);
    }

    #[test]
    fn refuses_a_lane_nobody_took() {
        let mut table = LaneTable::new(2, INITIAL);
        let never = Lease { lane: LaneId(1), generation: 1 };
        assert_eq!(table.seat(never, 0, none), Err(LaneError::NotTaken));
        assert_eq!(table.release(never), Err(LaneError::NotTaken));
        let lease = table.lease().unwrap();
        table.release(lease).unwrap();
        assert_eq!(table.seat(lease, 0, none), Err(LaneError::NotTaken));
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
        assert_eq!(seat(&mut table, second, 0, 1), INITIAL);
    }

    #[test]
    fn a_reset_reads_the_initial_row_until_it_commits() {
        let mut table = LaneTable::new(1, INITIAL);
        let lease = table.lease().unwrap();
        assert_eq!(seat(&mut table, lease, 0, 1), INITIAL);
        assert_eq!(table.commit(lease, RowId(1), 0), None);
        // Reset, and the turn fails: the lane is untouched, and the next call starts over again.
        for _ in 0..2 {
            assert_eq!(seat(&mut table, lease, 1, 2), INITIAL);
            table.rewind(lease);
        }
        assert_eq!(seat(&mut table, lease, 1, 2), INITIAL);
        assert_eq!(table.commit(lease, RowId(2), 1), Some(RowId(1)));
        assert_eq!(seat(&mut table, lease, 1, 3), RowId(2));
        table.rewind(lease);
        // A call that was made before the reset and queued after it does not reset again.
        assert_eq!(seat(&mut table, lease, 0, 3), RowId(2));
    }

    #[test]
    fn a_seat_reads_where_those_in_flight_lead() {
        let mut table = LaneTable::new(1, INITIAL);
        let lease = table.lease().unwrap();
        let reads = [seat(&mut table, lease, 0, 1), seat(&mut table, lease, 0, 2), seat(&mut table, lease, 1, 3)];
        assert_eq!(reads, [INITIAL, RowId(1), INITIAL]);
        assert_eq!(seat(&mut table, lease, 1, 4), RowId(3), "the reset is one of those in flight");
        assert_eq!(table.commit(lease, RowId(1), 0), None);
        // The second fails; the two after the reset still stand.
        table.rewind(lease);
        table.follow(lease, RowId(3), 1);
        table.follow(lease, RowId(4), 1);
        assert_eq!(seat(&mut table, lease, 1, 5), RowId(4));
        assert_eq!(table.commit(lease, RowId(3), 1), Some(RowId(1)));
        assert_eq!(table.commit(lease, RowId(4), 1), Some(RowId(3)));
        // None of them leads the next holder anywhere.
        table.release(lease).unwrap();
        let next = table.lease().unwrap();
        assert_eq!(table.commit(lease, RowId(5), 1), Some(RowId(5)));
        table.rewind(lease);
        table.follow(lease, RowId(5), 1);
        assert_eq!(seat(&mut table, next, 0, 6), INITIAL);
    }
}
