//! The engine: it forms turns from the queue, runs them, and commits what they wrote.
//!
//! ```text
//! queue --seat--> seats --stage--> model.run(read row, write row) --ok--> lanes point at the rows written
//!                                                                 --err--> the rows written are free, lanes as before
//! ```
//!
//! - Whoever holds the engine holds the baton: the lanes, the rows and the model are touched by nobody else.
//! - A lane moves to another row only when its seat's turn succeeded and the seat was not refused.
//! - Every seat is answered exactly once per step, whatever the model does, a panic included.
//! - `step` never waits and takes the time as a value: a thread is one way to drive it (`worker`).
//! - Not here: sleeping, waking, and who may take the baton (`worker`).

use super::error::{Closed, StreamError};
use super::job::{Destination, Job, JobBox, ModelInfo, Pooled};
use super::knobs::Knobs;
use super::model::{LanedModel, Refusal, SeatRows};
use super::queue::{Entry, Queue, Request};
use super::reaper::Inbox;
use super::rows::Rows;
use super::stats::TurnCount;
use super::stream::{SpawnSlot, Stream};
use super::sync::lock;
use super::table::LaneTable;
use super::worker::Shared;
use crate::device::DeviceError;
use crate::{Scope, Signature};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

/// What `Engine::step` came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A turn ran, or at least something was answered: there may be more.
    Ran,
    /// A turn is forming. Step again at this time, or when it is full or a spawn comes.
    Lingering(Instant),
    /// Nothing to do until something is queued.
    Idle,
    /// Closed: nothing will ever be done again.
    Stopped,
}

pub(super) struct Engine {
    /// `None` once closed.
    model: Option<Box<dyn LanedModel>>,
    info: Arc<ModelInfo>,
    table: LaneTable,
    rows: Rows,
    knobs: Knobs,
    /// Inputs of which a turn has one value.
    shared_inputs: Vec<usize>,
    /// Calls of an order below this were left by a full turn: they have waited long enough.
    left_over: u64,
    // What follows is empty between turns, and kept so that a turn allocates nothing.
    seats: Vec<Entry>,
    seat_rows: Vec<SeatRows>,
    passed_over: Vec<Entry>,
    refused: Vec<Refusal>,
    answered: Vec<JobBox>,
    spawns: Vec<Arc<SpawnSlot>>,
    again: Vec<JobBox>,
    outbox: Outbox,
}

impl Engine {
    /// An engine over `model`, which has been prepared for `Rows::capacity(knobs.lanes, knobs.max_seats)`.
    pub fn new(model: Box<dyn LanedModel>, info: Arc<ModelInfo>, knobs: Knobs) -> Self {
        let seats = knobs.max_seats as usize;
        let capacity = Rows::capacity(knobs.lanes, knobs.max_seats);
        let inputs = info.signature.inputs.iter().enumerate();
        Self {
            model: Some(model),
            table: LaneTable::new(knobs.lanes, capacity.initial_row()),
            rows: Rows::new(capacity),
            knobs,
            shared_inputs: inputs.filter(|(_, port)| port.scope == Scope::Turn).map(|(at, _)| at).collect(),
            info,
            left_over: 0,
            seats: Vec::with_capacity(seats),
            seat_rows: Vec::with_capacity(seats),
            passed_over: Vec::with_capacity(knobs.queue),
            refused: Vec::new(),
            answered: Vec::with_capacity(seats),
            spawns: Vec::new(),
            again: Vec::new(),
            outbox: Outbox::default(),
        }
    }

    /// Serves spawns, then runs one turn if one is due. Wake `take_wakers` afterwards, with no lock held.
    pub fn step(&mut self, shared: &Arc<Shared>, now: Instant) -> Step {
        let mut queue = lock(&shared.queue);
        if queue.closed().is_some() {
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
        let Some(head) = queue.head() else { return Step::Idle };
        let due = head.arrived() + self.knobs.linger;
        if head.order >= self.left_over && now < due && !queue.fills(shared.full_turn()) {
            return Step::Lingering(due);
        }
        self.seat(&mut queue);
        shared.counters.queue_depth(queue.depth());
        drop(queue);
        self.run(shared, now, true);
        self.answer(shared, now);
        Step::Ran
    }

    /// Runs one turn of `job` alone, on the thread of its caller, and gives it back.
    pub fn run_alone(&mut self, shared: &Arc<Shared>, job: JobBox) -> JobBox {
        let lane = job.cell.lease.lane;
        self.table.next_turn();
        let arrived = job.arrived;
        self.take_seat(Entry { lane, order: 0, job });
        self.run(shared, arrived, false);
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
            let stream = match self.table.lease() {
                Some(lease) => Ok(Stream::new(shared, lease)),
                None => Err(StreamError::Full { lanes: self.knobs.lanes }),
            };
            self.outbox.wakers.extend(slot.deliver(stream));
        }
        shared.counters.lanes_taken(shared.releases.live());
    }

    /// Gives back the lanes whose last handle was dropped.
    fn collect_released(&mut self, shared: &Arc<Shared>) {
        let (table, rows) = (&mut self.table, &mut self.rows);
        shared.releases.collect(|lease| {
            // A late release of an earlier holder is refused by its generation.
            if let Ok(Some(row)) = table.release(lease) {
                rows.free(row);
            }
        });
    }

    /// Seats calls from the head of the queue: at most `max_seats`, at most one a lane.
    fn seat(&mut self, queue: &mut Queue) {
        self.table.next_turn();
        let max_seats = self.knobs.max_seats as usize;
        let lanes = queue.ready_lanes();
        // Once every lane that has a call has a seat, the rest of the queue has none to offer.
        while self.seats.len() < max_seats.min(lanes) {
            let Some(entry) = queue.pop() else { break };
            if self.table.is_seated(entry.lane) {
                self.passed_over.push(entry);
            } else {
                self.take_seat(entry);
            }
        }
        while let Some(entry) = self.passed_over.pop() {
            queue.put_back(entry);
        }
        if self.seats.len() == max_seats {
            self.left_over = queue.next_order();
        }
        queue.settle();
    }

    /// Gives `entry` the next seat, or an answer that says why not.
    fn take_seat(&mut self, mut entry: Entry) {
        if let Err(error) = self.check_shared(&entry.job) {
            entry.job.result = Err(error);
            return self.answered.push(entry.job);
        }
        match self.table.seat(entry.job.cell.lease, entry.job.epoch) {
            Ok(read) => {
                self.seat_rows.push(SeatRows { read, write: self.rows.take() });
                self.seats.push(entry);
            }
            Err(_) => {
                entry.job.result = Err(StreamError::Stale { lane: entry.lane });
                self.answered.push(entry.job);
            }
        }
    }

    /// The shared inputs of the first seat are the turn's; a later one that brings others is refused.
    fn check_shared(&self, job: &Job) -> Result<(), StreamError> {
        let Some(first) = self.seats.first() else { return Ok(()) };
        for &port in &self.shared_inputs {
            if job.input(port) != first.job.input(port) {
                let input = self.info.signature.inputs[port].name.clone();
                return Err(StreamError::Disagrees { input, seat: self.seats.len() as u32, with_seat: 0 });
            }
        }
        Ok(())
    }

    /// Runs the seats and moves them to `answered`, each with its result.
    fn run(&mut self, shared: &Arc<Shared>, now: Instant, handed_off: bool) {
        let mut turn = TurnCount { refused: self.answered.len() as u64, handed_off, ..TurnCount::default() };
        if self.seats.is_empty() {
            return shared.counters.refused(turn.refused);
        }
        for entry in &self.seats {
            let wait = now.saturating_duration_since(entry.arrived());
            shared.counters.queue_wait(wait);
            turn.queue_wait += wait;
        }
        turn.seats = self.seats.len() as u64;
        let began = Instant::now();
        let ran = catch_unwind(AssertUnwindSafe(|| self.run_model(&mut turn)));
        match ran {
            Ok(Ok(())) => self.commit(&mut turn),
            Ok(Err(error)) => self.fail(shared, error, &mut turn),
            Err(panic) => {
                let cause = Arc::new(Closed::Panicked(message(&*panic)));
                self.close(shared, &cause);
                self.give_up(&StreamError::Closed(cause), &mut turn);
            }
        }
        turn.time = began.elapsed();
        shared.counters.turn(&turn);
    }

    /// Stacks, runs, and hands the outputs out. Nothing is committed yet.
    fn run_model(&mut self, turn: &mut TurnCount) -> Result<(), DeviceError> {
        let Signature { inputs, outputs, name, .. } = &self.info.signature;
        let _turn = tracing::debug_span!("turn", model = %name, seats = self.seats.len()).entered();
        let model = self.model.as_mut().expect("a closed engine forms no turn");
        for (at, port) in inputs.iter().enumerate() {
            let staging = model.input_mut(at);
            let bytes = port.bytes();
            match port.scope {
                Scope::Turn => staging[..bytes].copy_from_slice(self.seats[0].job.input(at)),
                Scope::Seat if bytes == 0 => {}
                Scope::Seat => {
                    for (place, entry) in staging.chunks_exact_mut(bytes).zip(&self.seats) {
                        place.copy_from_slice(entry.job.input(at));
                    }
                }
            }
        }
        self.refused.clear();
        model.run(&self.seat_rows, &mut self.refused)?;
        turn.padded = u64::from(model.padded_seats(self.seats.len() as u32));
        if let Some(refusal) = self.refused.iter().find(|refusal| refusal.seat as usize >= self.seats.len()) {
            let what = format!("refused seat {} of a turn with {} seats", refusal.seat, self.seats.len());
            return Err(DeviceError::Fault { at: name.clone(), what });
        }
        for (at, port) in outputs.iter().enumerate() {
            let stacked = model.output(at);
            let bytes = port.bytes();
            for (seat, entry) in self.seats.iter_mut().enumerate() {
                let start = if port.scope == Scope::Seat { seat * bytes } else { 0 };
                entry.job.output_mut(at).copy_from_slice(&stacked[start..start + bytes]);
            }
        }
        Ok(())
    }

    /// The turn succeeded: lanes point at the rows written, but those of refused seats.
    fn commit(&mut self, turn: &mut TurnCount) {
        for Refusal { seat, reason } in self.refused.drain(..) {
            let result = &mut self.seats[seat as usize].job.result;
            if result.is_ok() {
                *result = Err(StreamError::Refused { reason });
                turn.refused += 1;
            }
        }
        for (Entry { mut job, .. }, rows) in self.seats.drain(..).zip(self.seat_rows.drain(..)) {
            let freed = if job.result.is_ok() {
                job.step += 1;
                job.cell.commit(job.epoch);
                self.table.commit(job.cell.lease, rows.write, job.epoch)
            } else {
                Some(rows.write)
            };
            if let Some(row) = freed {
                self.rows.free(row);
            }
            self.answered.push(job);
        }
    }

    /// The turn failed and was contained: no lane has moved, and every seat is told.
    fn fail(&mut self, shared: &Arc<Shared>, error: DeviceError, turn: &mut TurnCount) {
        let is_lost = matches!(error, DeviceError::Lost(_));
        let error = Arc::new(error);
        let told = if is_lost {
            let cause = Arc::new(Closed::Lost(error));
            self.close(shared, &cause);
            StreamError::Closed(cause)
        } else {
            StreamError::Failed(error)
        };
        self.give_up(&told, turn);
    }

    fn give_up(&mut self, error: &StreamError, turn: &mut TurnCount) {
        turn.failed = self.seats.len() as u64;
        for (Entry { mut job, .. }, rows) in self.seats.drain(..).zip(self.seat_rows.drain(..)) {
            self.rows.free(rows.write);
            job.result = Err(error.clone());
            self.answered.push(job);
        }
    }

    /// Refuses everything from now on, and tells what was queued.
    fn close(&mut self, shared: &Arc<Shared>, cause: &Arc<Closed>) {
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

/// What the model said when it panicked.
fn message(panic: &(dyn Any + Send)) -> String {
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
                Request::Spawn(slot) => self.wakers.extend(slot.deliver(Err(error()))),
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
    pub fn pass_on(&mut self, lease: super::table::Lease) -> super::table::Lease {
        if let Some(row) = self.table.release(lease).expect("held until now") {
            self.rows.free(row);
        }
        self.table.lease().expect("one lane is free")
    }

    /// Rows that neither a lane nor a seat holds.
    pub fn free_rows(&self) -> usize {
        self.rows.free_count()
    }
}
