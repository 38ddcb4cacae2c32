//! The one bounded queue that spawns, calls and operations on lanes go through.
//!
//! ```text
//! call, operation, spawn --> [waiting: no room yet, FIFO] --> [queued: at most `bound`] --> a turn, a lease
//! ```
//!
//! - `calls` and `spawns` together are at most `bound`. What waits for room belongs to a caller that waits, and leaves
//!   when that caller gives up.
//! - Calls and operations are in order of arrival, so a stream's are too. Spawns are served before calls: they wait for
//!   no turn. So are operations, once nothing of their lane is ahead of them.
//! - A call of several steps keeps its place among its stream's operations, beyond the bound if need be.
//! - The worker is woken only when it sleeps, and once.
//! - Not here: which calls share a turn (`turn`).

use super::error::Closed;
use super::job::{Job, JobBox, Ticket};
use super::stream::SpawnSlot;
use super::table::LaneId;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A call or an operation in the queue.
pub(super) struct Entry {
    /// `job.cell.lease.lane`, here so that a scan of the queue stays in the queue.
    pub lane: LaneId,
    /// Grows by one with each call queued.
    pub order: u64,
    pub job: JobBox,
}

impl Entry {
    /// Whether it is done to a lane, and takes no seat.
    pub fn is_operation(&self) -> bool {
        self.job.op.is_some()
    }
}

pub(super) enum Request {
    /// A call of a stream, or an operation on its lane.
    Call(JobBox),
    Spawn(Arc<SpawnSlot>),
}

impl Request {
    fn is_operation(&self) -> bool {
        matches!(self, Self::Call(job) if job.op.is_some())
    }
}

/// What the worker is doing, as far as those who might wake it care.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sleeper {
    /// It will look at the queue by itself.
    Awake,
    /// It sleeps until something comes.
    Idle,
    /// It sleeps until the linger is over, a turn is full, or a spawn comes.
    Lingering,
    /// It sleeps until a turn ends or a spawn comes: no turn can be formed.
    Occupied,
}

pub(super) struct Queue {
    calls: VecDeque<Entry>,
    spawns: VecDeque<Arc<SpawnSlot>>,
    waiting: VecDeque<Request>,
    /// Queued calls of each lane.
    of_lane: Vec<u32>,
    /// Lanes with a queued call: the seats a turn could have.
    ready_lanes: usize,
    /// Operations among `calls`.
    operations: usize,
    /// Operations among `waiting`.
    operations_waiting: usize,
    /// The last scan for operations that found something else of the lane first.
    met_in: Vec<u64>,
    scan: u64,
    bound: usize,
    next_order: u64,
    pub sleeper: Sleeper,
    /// A caller alone was given the baton and waits for the worker to let go of the engine.
    pub claimed: bool,
    closed: Option<Arc<Closed>>,
    /// `depth()`, for those who do not hold the lock.
    hint: Arc<AtomicUsize>,
}

impl Queue {
    pub fn new(bound: usize, lanes: u32, hint: Arc<AtomicUsize>) -> Self {
        Self {
            calls: VecDeque::with_capacity(bound),
            spawns: VecDeque::new(),
            waiting: VecDeque::new(),
            of_lane: vec![0; lanes as usize],
            ready_lanes: 0,
            operations: 0,
            operations_waiting: 0,
            met_in: vec![0; lanes as usize],
            scan: 0,
            bound,
            next_order: 0,
            sleeper: Sleeper::Awake,
            claimed: false,
            closed: None,
            hint,
        }
    }

    /// Requests queued; never above the bound.
    pub fn depth(&self) -> usize {
        self.calls.len() + self.spawns.len()
    }

    /// Requests that wait for room in the queue.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Lanes with a queued call.
    pub fn ready_lanes(&self) -> usize {
        self.ready_lanes
    }

    /// Why nothing is queued any more.
    pub fn closed(&self) -> Option<&Arc<Closed>> {
        self.closed.as_ref()
    }

    /// Whether a request would have to wait for room.
    pub fn is_full(&self) -> bool {
        self.depth() >= self.bound
    }

    /// Queues a request, or lets it wait for room behind those that do.
    pub fn admit(&mut self, request: Request) {
        let request = match request {
            Request::Call(job) if job.step > 0 => match self.go_on(job) {
                Some(job) => Request::Call(job),
                None => return,
            },
            request => request,
        };
        if self.is_full() || !self.waiting.is_empty() {
            self.operations_waiting += usize::from(request.is_operation());
            self.waiting.push_back(request);
        } else {
            self.place(request);
            self.note_depth();
        }
    }

    /// Whether the worker must be woken; the caller does it, once no lock is held. `seats` make a full turn.
    #[must_use]
    pub fn wakes(&mut self, seats: usize) -> bool {
        let wakes = match self.sleeper {
            Sleeper::Awake => false,
            Sleeper::Idle => self.depth() > 0,
            Sleeper::Lingering => !self.spawns.is_empty() || self.fills(seats),
            Sleeper::Occupied => !self.spawns.is_empty(),
        };
        if wakes {
            self.sleeper = Sleeper::Awake;
        }
        wakes
    }

    /// Whether a turn waits no longer: that could bring it no more seats, or an operation waits for it.
    pub fn fills(&self, seats: usize) -> bool {
        self.ready_lanes >= seats || !self.waiting.is_empty() || self.operations > 0
    }

    /// The oldest call.
    pub fn head(&self) -> Option<&Entry> {
        self.calls.front()
    }

    /// The order that the next call to be queued will have.
    pub fn next_order(&self) -> u64 {
        self.next_order
    }

    /// Takes the oldest call. `settle` follows when the turn is formed.
    pub fn pop(&mut self) -> Option<Entry> {
        let entry = self.calls.pop_front()?;
        self.forget(&entry);
        Some(entry)
    }

    /// Puts back what `pop` gave, at the head; the last popped goes first.
    pub fn put_back(&mut self, entry: Entry) {
        self.remember(&entry);
        self.calls.push_front(entry);
    }

    /// Takes the operations that nothing of their lane is ahead of, in order. Whether there are some that only a turn in
    /// flight is ahead of, which `is_led` says of a lane.
    pub fn take_operations(&mut self, is_led: impl Fn(LaneId) -> bool, taken: &mut Vec<JobBox>) -> bool {
        if self.operations == 0 {
            return false;
        }
        let mut waits = false;
        self.scan += 1;
        for _ in 0..self.calls.len() {
            let Some(entry) = self.calls.pop_front() else { break };
            let met_in = &mut self.met_in[entry.lane.index()];
            let is_next = entry.is_operation() && *met_in != self.scan;
            if is_next && is_led(entry.lane) {
                waits = true;
                *met_in = self.scan;
                self.calls.push_back(entry);
            } else if is_next {
                self.forget(&entry);
                taken.push(entry.job);
            } else {
                *met_in = self.scan;
                self.calls.push_back(entry);
            }
        }
        self.settle();
        waits
    }

    /// Takes the oldest spawn.
    pub fn pop_spawn(&mut self) -> Option<Arc<SpawnSlot>> {
        self.spawns.pop_front()
    }

    /// Lets those who wait for room take what has become free.
    pub fn settle(&mut self) {
        while !self.is_full()
            && let Some(request) = self.waiting.pop_front()
        {
            self.operations_waiting -= usize::from(request.is_operation());
            self.place(request);
        }
        self.note_depth();
    }

    /// Takes a call out of the queue; `None` if it has left it.
    pub fn remove_call(&mut self, ticket: &Arc<Ticket>) -> Option<JobBox> {
        let mut found = Vec::new();
        self.remove_calls(|job| Arc::ptr_eq(&job.ticket, ticket), &mut found);
        found.pop()
    }

    /// Takes all calls that `is_meant` out of the queue.
    pub fn remove_calls(&mut self, is_meant: impl Fn(&Job) -> bool, removed: &mut Vec<JobBox>) {
        for _ in 0..self.calls.len() {
            let Some(entry) = self.calls.pop_front() else { break };
            if is_meant(&entry.job) {
                self.forget(&entry);
                removed.push(entry.job);
            } else {
                self.calls.push_back(entry);
            }
        }
        for _ in 0..self.waiting.len() {
            match self.waiting.pop_front() {
                Some(Request::Call(job)) if is_meant(&job) => {
                    self.operations_waiting -= usize::from(job.op.is_some());
                    removed.push(job);
                }
                Some(request) => self.waiting.push_back(request),
                None => break,
            }
        }
        self.settle();
    }

    /// Takes a spawn out of the queue.
    pub fn remove_spawn(&mut self, slot: &Arc<SpawnSlot>) {
        self.spawns.retain(|other| !Arc::ptr_eq(other, slot));
        self.waiting.retain(|request| !matches!(request, Request::Spawn(other) if Arc::ptr_eq(other, slot)));
        self.settle();
    }

    /// Refuses everything from now on, for the first cause given. What was queued goes to the caller, to be told.
    pub fn close(&mut self, cause: Arc<Closed>) -> Vec<Request> {
        self.closed.get_or_insert(cause);
        self.of_lane.fill(0);
        self.ready_lanes = 0;
        (self.operations, self.operations_waiting) = (0, 0);
        let calls = self.calls.drain(..).map(|entry| Request::Call(entry.job));
        let spawns = self.spawns.drain(..).map(Request::Spawn);
        let told = calls.chain(spawns).chain(self.waiting.drain(..)).collect();
        // Not the depth, which is 0: whoever spins on the hint has to see that something happened.
        self.hint.store(usize::MAX, Ordering::Release);
        told
    }

    /// Queues the next step of a call before what its stream has asked for since; gives it back if that is nothing.
    fn go_on(&mut self, job: JobBox) -> Option<JobBox> {
        let lane = job.cell.lease.lane;
        let is_after = |other: &Job| other.op.is_some() && other.cell.lease.lane == lane;
        let mut place = None;
        if self.operations > 0 {
            place = self.calls.iter().position(|entry| is_after(&entry.job));
        }
        if place.is_none() && self.operations_waiting > 0 {
            let waits = self.waiting.iter().any(|request| matches!(request, Request::Call(other) if is_after(other)));
            place = waits.then_some(self.calls.len());
        }
        let Some(place) = place else { return Some(job) };
        let entry = self.entry(job);
        self.calls.insert(place, entry);
        self.note_depth();
        None
    }

    fn place(&mut self, request: Request) {
        match request {
            Request::Call(job) => {
                let entry = self.entry(job);
                self.calls.push_back(entry);
            }
            Request::Spawn(slot) => self.spawns.push_back(slot),
        }
    }

    /// An entry that is about to be queued.
    fn entry(&mut self, job: JobBox) -> Entry {
        let entry = Entry { lane: job.cell.lease.lane, order: self.next_order, job };
        self.next_order += 1;
        self.remember(&entry);
        entry
    }

    fn remember(&mut self, entry: &Entry) {
        let count = &mut self.of_lane[entry.lane.index()];
        *count += 1;
        self.ready_lanes += usize::from(*count == 1);
        self.operations += usize::from(entry.is_operation());
    }

    fn forget(&mut self, entry: &Entry) {
        let count = &mut self.of_lane[entry.lane.index()];
        *count -= 1;
        self.ready_lanes -= usize::from(*count == 0);
        self.operations -= usize::from(entry.is_operation());
    }

    fn note_depth(&self) {
        if self.closed.is_none() {
            self.hint.store(self.depth(), Ordering::Release);
        }
    }
}
