//! The turns in flight, and the seats that were built on one that came to nothing.
//!
//! ```text
//! spare --formed, started--> in flight, oldest first --ended--> spare
//!                             |                 \--a lost seat--> later seats of its lane are void
//!                             \--void seats, once ended--> unseated --> the next turns, before the queue
//! ```
//!
//! - Turns end in the order they were started, and each has a slot of its own until then.
//! - A seat is void if it reads a row that a lost seat wrote, or if an earlier call of its stream is void: a stream's
//!   calls stay in order. A seat is lost if it was refused, void, or in a turn that failed.
//! - A void seat is never answered. Once its turn has ended its call is seated again, and only its caller can take it
//!   back no more: it was seated.
//! - While a void seat is in flight no turn is formed: nothing else of its stream can be seated before it, and the rows
//!   of two turns' worth of lost seats never add up.
//! - Not here: where lanes lead (`table`), who is answered what (`turn`).

use super::model::{RowId, SeatRows};
use super::queue::Entry;
use super::stats::TurnCount;
use super::table::{LaneId, LaneTable, Lease};
use crate::device::{Completion, DeviceError, Outcome};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;
use tracing::Span;

/// One turn: forming, or in flight in `slot`. The vectors have one element a seat.
pub(super) struct Turn {
    pub slot: usize,
    pub seats: Vec<Entry>,
    pub rows: Vec<SeatRows>,
    pub is_void: Vec<bool>,
    pub count: TurnCount,
    pub began: Instant,
    /// From the start to the end, for hosts that collect spans.
    pub span: Span,
    completion: Option<Completion>,
}

impl Turn {
    fn new(slot: usize, max_seats: usize) -> Self {
        Self {
            slot,
            seats: Vec::with_capacity(max_seats),
            rows: Vec::with_capacity(max_seats),
            is_void: Vec::with_capacity(max_seats),
            count: TurnCount::default(),
            began: Instant::now(),
            span: Span::none(),
            completion: None,
        }
    }

    pub fn push(&mut self, entry: Entry, rows: SeatRows) {
        self.seats.push(entry);
        self.rows.push(rows);
        self.is_void.push(false);
    }
}

/// A seat that came to nothing.
struct Lost {
    lease: Lease,
    /// What it wrote; `None` makes every later seat of the stream void, whatever it reads.
    row: Option<RowId>,
}

pub(super) struct Flight {
    /// Oldest first.
    turns: VecDeque<Turn>,
    /// Empty turns, one a free slot.
    spare: Vec<Turn>,
    /// Calls whose seat was void, in the order of their turns.
    pub unseated: VecDeque<Entry>,
    /// Void seats in flight.
    void: usize,
    /// Seats lost since `unwind`.
    lost: Vec<Lost>,
}

impl Flight {
    /// Room for `slots` turns of `max_seats`.
    pub fn new(slots: usize, max_seats: usize) -> Self {
        Self {
            turns: VecDeque::with_capacity(slots),
            // Reversed, so that the first slot is taken first.
            spare: (0..slots).rev().map(|slot| Turn::new(slot, max_seats)).collect(),
            unseated: VecDeque::new(),
            void: 0,
            lost: Vec::with_capacity(max_seats),
        }
    }

    /// Whether nothing is in flight, nor waits to be seated again.
    pub fn is_quiet(&self) -> bool {
        self.turns.is_empty() && self.unseated.is_empty()
    }

    /// Whether a call of the lane is in flight, or waits to be seated again.
    pub fn leads(&self, lane: LaneId) -> bool {
        let flying = self.turns.iter().flat_map(|turn| &turn.seats);
        flying.chain(&self.unseated).any(|entry| entry.lane == lane)
    }

    /// Whether a turn may be formed.
    pub fn has_room(&self) -> bool {
        !self.spare.is_empty() && self.void == 0
    }

    /// An empty turn, in a slot that is not in flight.
    pub fn form(&mut self) -> Turn {
        self.spare.pop().expect("a turn is formed only where there is room")
    }

    /// The turn was started after all that are in flight.
    pub fn launch(&mut self, mut turn: Turn, completion: Completion) {
        turn.completion = Some(completion);
        self.turns.push_back(turn);
    }

    /// The oldest turn if it has ended, and how; else `cx` is woken when it has.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Option<(Turn, Result<Outcome, DeviceError>)> {
        let completion = self.turns.front_mut()?.completion.as_mut()?;
        match Pin::new(completion).poll(cx) {
            Poll::Ready(result) => self.pop().map(|turn| (turn, result)),
            Poll::Pending => None,
        }
    }

    /// Takes the oldest turn, ended or not.
    pub fn pop(&mut self) -> Option<Turn> {
        let mut turn = self.turns.pop_front()?;
        turn.completion = None;
        self.void -= turn.is_void.iter().filter(|is_void| **is_void).count();
        Some(turn)
    }

    /// The slot of a turn that is over is free.
    pub fn retire(&mut self, mut turn: Turn) {
        turn.seats.clear();
        turn.rows.clear();
        turn.is_void.clear();
        turn.span = Span::none();
        self.spare.push(turn);
    }

    /// A seat of a turn that has ended was lost, and its call answered; it wrote `row`.
    pub fn lose(&mut self, lease: Lease, row: RowId) {
        self.lost.push(Lost { lease, row: Some(row) });
    }

    /// A seat of a turn that has ended was lost, and its call is to be seated again.
    pub fn unseat(&mut self, lease: Lease, entry: Entry) {
        self.lost.push(Lost { lease, row: None });
        self.unseated.push_back(entry);
    }

    /// Makes void what was built on the seats lost, and leads their lanes to where the seats that stand do.
    pub fn unwind(&mut self, table: &mut LaneTable) {
        let lost = &mut self.lost;
        lost.sort_unstable_by_key(|lost| lost.lease);
        for Lost { lease, .. } in lost.iter() {
            table.rewind(*lease);
        }
        if !lost.is_empty() {
            for turn in &mut self.turns {
                let seats = turn.seats.iter().zip(&turn.rows).zip(&mut turn.is_void);
                for ((Entry { job, .. }, rows), is_void) in seats {
                    let lease = job.cell.lease;
                    let Ok(at) = lost.binary_search_by_key(&lease, |lost| lost.lease) else { continue };
                    if lost[at].row.is_some_and(|row| row != rows.read) {
                        table.follow(lease, rows.write, job.epoch);
                        continue;
                    }
                    lost[at].row = None;
                    if !std::mem::replace(is_void, true) {
                        self.void += 1;
                    }
                }
            }
        }
        lost.clear();
    }
}
