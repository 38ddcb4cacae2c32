//! The engine: it forms turns from the queue, starts them, and commits what they wrote once they have ended.
//!
//! ```text
//! queue --seat--> seats --stack--> model.start(slot, rows) --> in flight --ended--> outputs are copied out
//!                                                                 |  lanes point at the rows written
//!                                                                 \--failed--> the rows written are let go, lanes as before
//! ```
//!
//! - Whoever holds the engine holds the baton: the lanes, the rows and the model are touched by nobody else.
//! - A lane moves to another row only when its seat's turn succeeded and the seat was not refused, and turns end in order.
//! - Every call seated is answered exactly once, whatever the model does, a panic included. A turn's outputs are copied
//!   out before its slot is used again, so that nobody who reads slowly holds a turn.
//! - `step` takes the time as a value: a thread is one way to drive it (`worker`). With one slot it waits for the turn
//!   it starts; with several it never waits, and says what to wait for.
//! - Not here: sleeping, waking, and who may take the baton (`worker`).

use super::checkpoint::Kept;
use super::error::{Closed, StreamError};
use super::flight::{Flight, Turn};
use super::job::{Destination, Job, JobBox, ModelInfo, Pooled};
use super::knobs::Knobs;
use super::model::{LanedModel, Refusal};
use super::queue::{Entry, Queue, Request};
use super::reaper::Inbox;
use super::rows::Rows;
use super::stats::TurnCount;
use super::stream::{SpawnSlot, Stream};
use super::sync::lock;
use super::table::{LaneTable, Lease};
use super::worker::Shared;
use crate::device::{Completion, DeviceError, Outcome};
use crate::{Scope, Signature};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Instant;
use tracing::Span;

/// What `Engine::step` came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A turn was started or has ended, or at least something was answered: there may be more.
    Ran,
    /// A turn is forming. Step again at this time, or when it is full, a spawn comes, or a turn in flight ends.
    Lingering(Instant),
    /// Nothing to do until something is queued or a turn in flight ends.
    Idle,
    /// Nothing to do until a turn in flight ends or a spawn comes.
    Occupied,
    /// A caller has claimed the next turn, and waits for the engine: let go, and step again when it has had it.
    Claimed,
    /// Closed: nothing will ever be done again.
    Stopped,
}

pub(super) struct Engine {
    /// `None` once closed.
    model: Option<Box<dyn LanedModel>>,
    info: Arc<ModelInfo>,
    pub(super) table: LaneTable,
    pub(super) rows: Rows,
    pub(super) kept: Kept,
    pub(super) knobs: Knobs,
    /// Inputs of which a turn has one value.
    shared_inputs: Vec<usize>,
    /// Calls of an order below this were left by a full turn: they have waited long enough.
    left_over: u64,
    pub(super) flight: Flight,
    // What follows is empty between steps, and kept so that a turn allocates nothing.
    passed_over: Vec<Entry>,
    refused: Vec<Refusal>,
    answered: Vec<JobBox>,
    spawns: Vec<Arc<SpawnSlot>>,
    operations: Vec<JobBox>,
    again: Vec<JobBox>,
    outbox: Outbox,
}

impl Engine {
    /// An engine over `model`, which has been prepared for `knobs.slots` slots and `knobs.capacity()`.
    pub fn new(model: Box<dyn LanedModel>, info: Arc<ModelInfo>, knobs: Knobs) -> Self {
        let seats = knobs.max_seats as usize;
        let capacity = knobs.capacity();
        let inputs = info.signature.inputs.iter().enumerate();
        Self {
            model: Some(model),
            table: LaneTable::new(knobs.lanes, capacity.initial_row()),
            rows: Rows::new(capacity),
            kept: Kept::new(knobs.checkpoints),
            knobs,
            shared_inputs: inputs.filter(|(_, port)| port.scope == Scope::Turn).map(|(at, _)| at).collect(),
            info,
            left_over: 0,
            flight: Flight::new(knobs.slots, seats),
            passed_over: Vec::with_capacity(knobs.queue),
            refused: Vec::new(),
            answered: Vec::with_capacity(seats),
            spawns: Vec::new(),
            operations: Vec::new(),
            again: Vec::new(),
            // Room for a turn's: which call is the first to sleep is chance, and none is to allocate.
            outbox: Outbox { wakers: Vec::with_capacity(seats), ..Outbox::default() },
        }
    }

    /// Ends the oldest turn in flight if it is over; else serves spawns; else serves operations, and starts a turn if
    /// one is due. Wake `take_wakers` afterwards, with no lock held.
    pub fn step(&mut self, shared: &Arc<Shared>, now: Instant) -> Step {
        shared.nudge.look();
        if let Some((turn, result)) = self.flight.poll(&mut Context::from_waker(&shared.nudge_waker)) {
            self.end(shared, turn, result);
            shared.in_flight.store(!self.flight.is_quiet(), Ordering::Release);
            self.answer(shared, now);
            return Step::Ran;
        }
        let mut queue = lock(&shared.queue);
        // Before all else, an end too: the claimant was promised a turn. Nothing is in flight.
        if queue.claimed {
            return Step::Claimed;
        }
        if queue.closed().is_some() && self.flight.is_quiet() {
            drop(queue);
            self.stop();
            return Step::Stopped;
        }
        while let Some(slot) = queue.pop_spawn() {
            self.spawns.push(slot);
        }
        if !self.spawns.is_empty() {
            queue.settle();
            drop(queue);
            self.serve_spawns(shared);
            // Calls wait no longer than that: the next step is theirs.
            return Step::Ran;
        }
        queue.take_operations(self.flight.lanes(), &mut self.operations);
        let operated = !self.operations.is_empty();
        if operated {
            drop(queue);
            self.serve_operations(shared);
            // Calls wait no longer than that: the turn follows at once.
            queue = lock(&shared.queue);
            if queue.claimed || queue.closed().is_some() {
                return Step::Ran;
            }
        }
        if !self.flight.has_room() {
            return Step::Occupied;
        }
        if self.flight.unseated.is_empty() {
            let Some(head) = queue.head() else {
                return match queue.closed() {
                    Some(_) => Step::Occupied,
                    None if operated => Step::Ran,
                    None => Step::Idle,
                };
            };
            let due = head.arrived() + self.knobs.linger;
            if head.order >= self.left_over && now < due && !queue.fills(shared.full_turn()) {
                return Step::Lingering(due);
            }
        }
        let mut turn = self.flight.form();
        self.seat(&mut queue, &mut turn);
        if turn.seats.is_empty() && self.answered.is_empty() {
            // What is queued waits for operations, and they for turns in flight, or for the next step.
            self.flight.retire(turn);
            return if operated || self.flight.is_quiet() { Step::Ran } else { Step::Occupied };
        }
        shared.in_flight.store(true, Ordering::Release);
        shared.counters.queue_depth(queue.depth());
        drop(queue);
        self.launch(shared, turn, now, true);
        shared.in_flight.store(!self.flight.is_quiet(), Ordering::Release);
        self.answer(shared, now);
        Step::Ran
    }

    /// Runs one turn of `job` alone, or its operation, on the thread of its caller, and gives it back. Nothing is in
    /// flight.
    pub fn run_alone(&mut self, shared: &Arc<Shared>, job: JobBox) -> JobBox {
        if job.op.is_some() {
            return self.operate(shared, job);
        }
        let lane = job.cell.lease.lane;
        self.table.next_turn();
        let arrived = job.arrived;
        let mut turn = self.flight.form();
        self.take_seat(&mut turn, Entry { lane, order: 0, job });
        self.launch(shared, turn, arrived, false);
        self.answered.pop().expect("a seat is answered exactly once")
    }

    /// Whom to wake since the last time.
    pub fn take_wakers(&mut self, wakers: &mut Vec<Waker>) {
        wakers.append(&mut self.outbox.wakers);
    }

    /// Drops the model. A panic there is contained: nobody is left to be told.
    fn stop(&mut self) {
        if let Some(model) = self.model.take() {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(model)));
        }
    }

    fn serve_spawns(&mut self, shared: &Arc<Shared>) {
        self.collect_released(shared);
        for slot in std::mem::take(&mut self.spawns) {
            if !slot.is_awaited() {
                continue;
            }
            // Not under the slot's lock: whoever polls meanwhile would wait for the device.
            let leased = match slot.snapshot() {
                Some(snapshot) => self.restore(shared, snapshot),
                None => self.table.lease().map(|lease| (lease, 0)).ok_or_else(|| self.full(1)),
            };
            let mut unclaimed = leased.as_ref().ok().map(|(lease, _)| *lease);
            let served = slot.deliver(|| {
                unclaimed = None;
                leased.map(|(lease, position)| Stream::new(shared, lease, position))
            });
            self.outbox.wakers.extend(served);
            if let Some(lease) = unclaimed {
                self.release(lease);
            }
        }
    }

    /// Gives back a lane. A late release of an earlier holder is refused by its generation.
    pub(super) fn release(&mut self, lease: Lease) {
        if let Ok(Some(row)) = self.table.release(lease) {
            self.rows.free(row);
        }
    }

    fn serve_operations(&mut self, shared: &Arc<Shared>) {
        for job in std::mem::take(&mut self.operations) {
            let job = self.operate(shared, job);
            self.outbox.deliver(job);
        }
    }

    /// Gives back the lanes whose last handle was dropped.
    pub(super) fn collect_released(&mut self, shared: &Arc<Shared>) {
        shared.releases.collect(|lease| self.release(lease));
    }

    /// Seats calls that lost their seat, then calls from the head of the queue: at most `max_seats`, at most one a lane.
    fn seat(&mut self, queue: &mut Queue, turn: &mut Turn) {
        self.table.next_turn();
        let max_seats = self.knobs.max_seats as usize;
        let is_open = self.flight.unseated.is_empty() || self.seat_again(turn);
        let lanes = queue.ready_lanes() + turn.seats.len();
        // Once every lane that has a call has a seat, the rest of the queue has none to offer.
        while is_open && turn.seats.len() < max_seats.min(lanes) {
            let Some(entry) = queue.pop() else { break };
            if entry.is_operation() {
                // It waits for a call ahead of it, and what its stream asked for since comes after it.
                self.table.pass_over(entry.lane);
            }
            if self.table.is_seated(entry.lane) {
                self.passed_over.push(entry);
            } else {
                self.take_seat(turn, entry);
            }
        }
        while let Some(entry) = self.passed_over.pop() {
            queue.put_back(entry);
        }
        if turn.seats.len() == max_seats {
            self.left_over = queue.next_order();
        }
        queue.settle();
    }

    /// Seats calls that lost their seat. Whether calls from the queue may follow: only once each of these has a seat, or
    /// waits for an earlier one of its lane that has.
    fn seat_again(&mut self, turn: &mut Turn) -> bool {
        let mut is_through = true;
        while let Some(entry) = self.flight.unseated.pop_front() {
            if self.table.is_seated(entry.lane) {
                self.passed_over.push(entry);
                continue;
            }
            // It was seated among others once, so it disagrees with nobody: it waits for a turn of its own.
            if turn.seats.len() == self.knobs.max_seats as usize || self.check_shared(turn, &entry.job).is_err() {
                self.flight.unseated.push_front(entry);
                is_through = false;
                break;
            }
            self.take_seat(turn, entry);
        }
        while let Some(entry) = self.passed_over.pop() {
            self.flight.unseated.push_front(entry);
        }
        is_through
    }

    /// Gives `entry` the next seat, or an answer that says why not.
    fn take_seat(&mut self, turn: &mut Turn, mut entry: Entry) {
        if let Err(error) = self.check_shared(turn, &entry.job) {
            entry.job.result = Err(error);
            return self.answered.push(entry.job);
        }
        match self.table.seat(entry.job.cell.lease, entry.job.epoch, || self.rows.take()) {
            Ok(rows) => {
                self.rows.share(rows.read);
                turn.push(entry, rows);
            }
            Err(_) => {
                entry.job.result = Err(StreamError::Stale { lane: entry.lane });
                self.answered.push(entry.job);
            }
        }
    }

    /// The shared inputs of the first seat are the turn's; a later one that brings others is refused.
    fn check_shared(&self, turn: &Turn, job: &Job) -> Result<(), StreamError> {
        let Some(first) = turn.seats.first() else { return Ok(()) };
        for &port in &self.shared_inputs {
            if job.input(port) != first.job.input(port) {
                let input = self.info.signature.inputs[port].name.clone();
                return Err(StreamError::Disagrees { input, seat: turn.seats.len() as u32, with_seat: 0 });
            }
        }
        Ok(())
    }

    /// Starts the turn, and waits for its end where nothing could be done meanwhile: with one slot, or for a caller alone.
    fn launch(&mut self, shared: &Arc<Shared>, mut turn: Turn, now: Instant, handed_off: bool) {
        turn.count = TurnCount { refused: self.answered.len() as u64, handed_off, ..TurnCount::default() };
        if turn.seats.is_empty() {
            shared.counters.refused(turn.count.refused);
            return self.flight.retire(turn);
        }
        for entry in &turn.seats {
            let wait = now.saturating_duration_since(entry.arrived());
            shared.counters.queue_wait(wait);
            turn.count.queue_wait += wait;
        }
        turn.count.seats = turn.seats.len() as u64;
        turn.began = Instant::now();
        turn.span = tracing::debug_span!("turn", model = %self.info.signature.name, seats = turn.seats.len());
        let waits = self.knobs.slots == 1 || !handed_off;
        let started = catch_unwind(AssertUnwindSafe(|| self.start(&turn)));
        match started.map(|started| started.unwrap_or_else(|error| Completion::ready(Err(error)))) {
            Ok(completion) if waits => self.end(shared, turn, completion.wait()),
            Ok(completion) => self.flight.launch(turn, completion),
            Err(panic) => self.give_up(shared, turn, panicked(&*panic)),
        }
    }

    /// Stacks the inputs and starts the turn. One that does not start has failed like any other, in its order.
    fn start(&mut self, turn: &Turn) -> Result<Completion, DeviceError> {
        let _entered = turn.span.enter();
        let model = self.model.as_mut().expect("a closed engine forms no turn");
        for (at, port) in self.info.signature.inputs.iter().enumerate() {
            let staging = model.slot_input_mut(turn.slot, at);
            let bytes = port.bytes();
            let expected = if port.scope == Scope::Seat { bytes * turn.seats.len() } else { bytes };
            // It had room when the runnable was built, and a model may change its mind.
            if staging.len() < expected {
                return Err(short(&self.info.signature.name, "input", &port.name, staging.len(), expected));
            }
            match port.scope {
                Scope::Turn => staging[..bytes].copy_from_slice(turn.seats[0].job.input(at)),
                Scope::Seat if bytes == 0 => {}
                Scope::Seat => {
                    for (place, entry) in staging.chunks_exact_mut(bytes).zip(&turn.seats) {
                        place.copy_from_slice(entry.job.input(at));
                    }
                }
            }
        }
        model.start(turn.slot, &turn.rows)
    }

    /// The turn has ended: its seats are answered, or wait to be seated again, and its slot is free.
    fn end(&mut self, shared: &Arc<Shared>, mut turn: Turn, result: Result<Outcome, DeviceError>) {
        let span = std::mem::replace(&mut turn.span, Span::none());
        let _turn = span.enter();
        let handed_out = match result {
            Ok(outcome) => catch_unwind(AssertUnwindSafe(|| self.hand_out(&mut turn, outcome))),
            Err(error) => Ok(Err(error)),
        };
        let failed = match handed_out {
            Ok(Ok(())) => None,
            Ok(Err(error @ DeviceError::Lost(_))) => {
                return self.give_up(shared, turn, Closed::Lost(Arc::new(error)));
            }
            Ok(Err(error)) => Some(StreamError::Failed(Arc::new(error))),
            Err(panic) => return self.give_up(shared, turn, panicked(&*panic)),
        };
        self.settle(&mut turn, failed);
        turn.count.time = turn.began.elapsed();
        shared.counters.turn(&turn.count);
        self.flight.retire(turn);
    }

    /// Takes the refusals and copies the outputs to their callers. Nothing is committed yet.
    fn hand_out(&mut self, turn: &mut Turn, outcome: Outcome) -> Result<(), DeviceError> {
        let Signature { outputs, name, .. } = &self.info.signature;
        let model = self.model.as_mut().expect("a closed engine has no turn in flight");
        let seats = turn.seats.len();
        self.refused.clear();
        self.refused.extend(outcome.refused);
        model.finish(turn.slot, seats, &mut self.refused)?;
        turn.count.padded = u64::from(model.padded_seats(seats as u32));
        if let Some(refusal) = self.refused.iter().find(|refusal| refusal.seat as usize >= seats) {
            let what = format!("refused seat {} of a turn with {seats} seats", refusal.seat);
            return Err(DeviceError::Fault { at: name.clone(), what });
        }
        for (at, port) in outputs.iter().enumerate() {
            let stacked = model.slot_output(turn.slot, at);
            let bytes = port.bytes();
            let expected = if port.scope == Scope::Seat { bytes * seats } else { bytes };
            if stacked.len() < expected {
                return Err(short(name, "output", &port.name, stacked.len(), expected));
            }
            for (seat, entry) in turn.seats.iter_mut().enumerate() {
                let start = if port.scope == Scope::Seat { seat * bytes } else { 0 };
                entry.job.output_mut(at).copy_from_slice(&stacked[start..start + bytes]);
            }
        }
        Ok(())
    }

    /// Lanes point at the rows written, but those of seats that came to nothing: void ones, refused ones, and all of a
    /// turn that `failed`.
    fn settle(&mut self, turn: &mut Turn, failed: Option<StreamError>) {
        // A void seat may be what made it fail: the others are no better known than it is.
        let is_unsure = failed.is_some() && turn.is_void.contains(&true);
        if failed.is_none() {
            for Refusal { seat, reason } in self.refused.drain(..) {
                let (result, is_void) = (&mut turn.seats[seat as usize].job.result, turn.is_void[seat as usize]);
                if result.is_ok() && !is_void {
                    *result = Err(StreamError::Refused { reason });
                    turn.count.refused += 1;
                }
            }
        }
        for ((mut entry, rows), is_void) in turn.seats.drain(..).zip(&turn.rows).zip(&turn.is_void) {
            let (lease, epoch) = (entry.job.cell.lease, entry.job.epoch);
            let let_go = if *is_void || is_unsure {
                turn.count.void += 1;
                self.flight.unseat(lease, entry);
                Some(rows.write)
            } else {
                if let Some(error) = &failed {
                    turn.count.failed += 1;
                    entry.job.result = Err(error.clone());
                }
                let mut job = entry.job;
                let let_go = if job.result.is_ok() {
                    job.step += 1;
                    job.cell.commit(epoch);
                    self.table.commit(lease, rows.write, epoch)
                } else {
                    self.flight.lose(lease, rows.write);
                    Some(rows.write)
                };
                self.answered.push(job);
                let_go
            };
            if let Some(row) = let_go {
                self.rows.free(row);
            }
            self.rows.free(rows.read);
        }
        self.flight.unwind(&mut self.table);
    }

    /// Nothing will be served any more: `turn`, what is in flight and what is queued is told the one cause.
    fn give_up(&mut self, shared: &Arc<Shared>, mut turn: Turn, cause: Closed) {
        let cause = Arc::new(cause);
        self.close(shared, &cause);
        let mut entries: Vec<Entry> = self.flight.unseated.drain(..).collect();
        loop {
            for rows in turn.rows.drain(..) {
                self.rows.free(rows.write);
                self.rows.free(rows.read);
            }
            turn.count.failed = turn.seats.len() as u64;
            turn.count.time = turn.began.elapsed();
            shared.counters.turn(&turn.count);
            entries.append(&mut turn.seats);
            self.flight.retire(turn);
            match self.flight.pop() {
                Some(next) => turn = next,
                None => break,
            }
        }
        // A stream's calls are told in their order.
        entries.sort_unstable_by_key(|entry| entry.order);
        for Entry { mut job, .. } in entries {
            job.result = Err(StreamError::Closed(Arc::clone(&cause)));
            self.answered.push(job);
        }
    }

    /// The model, while the engine is not closed.
    pub(super) fn model(&mut self) -> &mut dyn LanedModel {
        &mut **self.model.as_mut().expect("a closed engine does nothing")
    }

    /// Refuses everything from now on, and tells what was queued.
    pub(super) fn close(&mut self, shared: &Arc<Shared>, cause: &Arc<Closed>) {
        let queued = lock(&shared.queue).close(Arc::clone(cause));
        self.outbox.refuse(queued, cause);
        shared.wake_worker();
    }

    /// Hands out what is answered, and queues what has steps left.
    fn answer(&mut self, shared: &Arc<Shared>, now: Instant) {
        for job in self.answered.drain(..) {
            if job.is_finished() {
                self.outbox.deliver(job);
            } else if job.ticket.is_abandoned() {
                job.ticket.reuse();
                drop(Pooled::new(job));
            } else {
                self.again.push(job);
            }
        }
        self.outbox.publish();
        if self.again.is_empty() {
            return;
        }
        let mut queue = lock(&shared.queue);
        let closed = queue.closed().cloned();
        for mut job in self.again.drain(..) {
            if let Some(cause) = &closed {
                job.result = Err(StreamError::Closed(Arc::clone(cause)));
                self.outbox.deliver(job);
            } else {
                job.arrived = now;
                queue.admit(Request::Call(job));
            }
        }
    }
}

impl Entry {
    fn arrived(&self) -> Instant {
        self.job.arrived
    }
}

/// The model gives less memory for a port than the seats of the turn take.
fn short(model: &str, what: &str, port: &str, found: usize, expected: usize) -> DeviceError {
    let what = format!("{what} {port} has {found} bytes, and {expected} are needed");
    DeviceError::Fault { at: format!("model {model}"), what }
}

/// The model panicked, and said what it said.
pub(super) fn panicked(panic: &(dyn Any + Send)) -> Closed {
    Closed::Panicked(said(panic))
}

/// What a panic said, as far as it is text.
pub(super) fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

/// Answers on their way: each reaper gets all of a turn's under one lock and one wake.
#[derive(Default)]
pub(super) struct Outbox {
    inboxes: Vec<(Arc<Inbox>, Vec<JobBox>)>,
    pub wakers: Vec<Waker>,
}

impl Outbox {
    pub fn deliver(&mut self, job: JobBox) {
        match &job.to {
            Destination::Ticket => {
                let ticket = Arc::clone(&job.ticket);
                self.wakers.extend(ticket.deliver(job));
            }
            Destination::Inbox { inbox, .. } => {
                let at = self.inboxes.iter().position(|(other, _)| Arc::ptr_eq(other, inbox));
                let at = at.unwrap_or_else(|| {
                    self.inboxes.push((Arc::clone(inbox), Vec::new()));
                    self.inboxes.len() - 1
                });
                self.inboxes[at].1.push(job);
            }
        }
    }

    pub fn publish(&mut self) {
        for (inbox, jobs) in &mut self.inboxes {
            if !jobs.is_empty() {
                self.wakers.extend(inbox.publish(jobs));
            }
        }
        // A reaper that is gone has left its inbox to us alone.
        self.inboxes.retain(|(inbox, _)| Arc::strong_count(inbox) > 1);
    }

    /// Tells requests that will not be served why.
    pub fn refuse(&mut self, requests: Vec<Request>, cause: &Arc<Closed>) {
        let error = || StreamError::Closed(Arc::clone(cause));
        for request in requests {
            match request {
                Request::Spawn(slot) => self.wakers.extend(slot.deliver(|| Err(error()))),
                Request::Call(mut job) => {
                    job.result = Err(error());
                    self.deliver(job);
                }
            }
        }
        self.publish();
    }
}

#[cfg(test)]
impl Engine {
    /// Takes a lane from its holder and gives it to another, as an eviction would.
    pub fn pass_on(&mut self, lease: Lease) -> Lease {
        self.release(lease);
        self.table.lease().expect("one lane is free")
    }

    /// Collects what was let go, as a spawn and a checkpoint do.
    pub fn collect_all(&mut self, shared: &Arc<Shared>) {
        self.collect_released(shared);
        self.kept.collect(&shared.let_go, &mut self.rows);
    }

    /// Rows that neither a lane nor a seat nor a checkpoint holds.
    pub fn free_rows(&self) -> usize {
        self.rows.free_count()
    }
}
