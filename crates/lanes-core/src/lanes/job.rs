//! One call on its way: buffers that travel from the caller to the queue, to a turn, and back.
//!
//! ```text
//! StreamCell::take() -> JobBox --queue--> seat of a turn --deliver--> Ticket (a future) or Inbox (a reaper)
//!        ^                                                                         |
//!        +------------------------- Pooled, dropped -------------------------------+
//! ```
//!
//! - A job is owned by exactly one place at a time, so its buffers need no lock; what is handed over is the box.
//! - After a stream's first calls its jobs are reused: a call allocates nothing.
//! - A job in flight holds its stream's lane (`hold`); one that has been answered does not.

use super::error::StreamError;
use super::operation::Op;
use super::reaper::Inbox;
use super::stream::Handle;
use super::sync::lock;
use super::table::Lease;
use super::value::{Layout, Value};
use crate::Signature;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// What every stream of a runnable needs to know of the model.
#[derive(Debug)]
pub(super) struct ModelInfo {
    pub signature: Signature,
    pub layout: Layout,
}

/// Jobs that a stream keeps for its next calls. More than this in flight at once are allocated and freed.
const POOL_MAX: usize = 8;

/// What the handles of a stream share with its jobs. It outlives the lease while results are read.
pub(super) struct StreamCell {
    pub model: Arc<ModelInfo>,
    pub lease: Lease,
    /// Resets asked for.
    epoch: AtomicU64,
    /// The reset that the position below came after.
    committed_epoch: AtomicU64,
    /// Commits, of the streams that this one was forked or restored from too.
    commits: AtomicU64,
    /// `None` once the last handle is gone.
    pool: Mutex<Option<Vec<JobBox>>>,
}

impl StreamCell {
    /// A stream that goes on from `position`.
    pub fn new(model: Arc<ModelInfo>, lease: Lease, position: u64) -> Self {
        let (zero, commits) = (AtomicU64::default, AtomicU64::new(position));
        // Its room comes with the first call: a fork of a thousand streams is not to wait for it.
        let pool = Mutex::new(Some(Vec::new()));
        Self { model, lease, epoch: zero(), committed_epoch: zero(), commits, pool }
    }

    /// A job of one step, its inputs not yet written.
    pub fn take(self: &Arc<Self>) -> JobBox {
        let pooled = lock(&self.pool).as_mut().and_then(Vec::pop);
        let mut job = pooled.unwrap_or_else(|| Job::new(Arc::clone(self), 1));
        job.epoch = self.epoch.load(Ordering::Acquire);
        job
    }

    /// A job of `steps` steps.
    pub fn take_many(self: &Arc<Self>, steps: usize) -> JobBox {
        let mut job = Job::new(Arc::clone(self), steps);
        job.epoch = self.epoch.load(Ordering::Acquire);
        job
    }

    /// Keeps `job` for the next call.
    pub fn put(&self, mut job: JobBox) {
        // Dropping the last handle, of this stream or of a fork, locks a pool: this comes first.
        job.hold = None;
        job.op = None;
        job.to = Destination::Ticket;
        job.step = 0;
        job.result = Ok(());
        if job.steps != 1 {
            return;
        }
        if let Some(pool) = lock(&self.pool).as_mut().filter(|pool| pool.len() < POOL_MAX) {
            pool.reserve_exact(POOL_MAX - pool.len());
            pool.push(job);
        }
    }

    /// Frees the kept jobs and keeps none from now on.
    pub fn close_pool(&self) {
        let pool = lock(&self.pool).take();
        // The jobs hold this cell: they go after the lock has.
        drop(pool);
    }

    /// Makes the calls submitted from now on start from the initial row.
    pub fn reset(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a commit of a call that was submitted at `epoch`. Called by whoever holds the baton.
    pub fn commit(&self, epoch: u64) {
        if epoch > self.committed_epoch.load(Ordering::Relaxed) {
            self.commits.store(1, Ordering::Relaxed);
            // Released after the count, so that whoever sees the epoch sees no older count.
            self.committed_epoch.store(epoch, Ordering::Release);
        } else {
            self.commits.fetch_add(1, Ordering::Release);
        }
    }

    /// Goes on from `position` instead, for what was submitted at `epoch` and after. Called by whoever holds the baton.
    pub fn go_back(&self, position: u64, epoch: u64) {
        // As in `commit`: the position first.
        self.commits.store(position, Ordering::Release);
        self.committed_epoch.fetch_max(epoch, Ordering::AcqRel);
    }

    /// The position that what was submitted at `epoch` finds. Called by whoever holds the baton.
    pub fn position_at(&self, epoch: u64) -> u64 {
        let is_reset = epoch > self.committed_epoch.load(Ordering::Relaxed);
        if is_reset { 0 } else { self.commits.load(Ordering::Relaxed) }
    }

    /// Commits since the last reset.
    pub fn position(&self) -> u64 {
        let epoch = self.epoch.load(Ordering::Acquire);
        if self.committed_epoch.load(Ordering::Acquire) == epoch { self.commits.load(Ordering::Acquire) } else { 0 }
    }
}

/// Who takes the answer.
pub(super) enum Destination {
    /// The future or blocked thread that holds the job's ticket.
    Ticket,
    /// A reaper, which knows the call by `tag`.
    Inbox { inbox: Arc<Inbox>, tag: u64 },
}

/// A job on its way: what is handed over is the box, never its contents.
pub(super) type JobBox = Box<Job>;

pub(super) struct Job {
    pub cell: Arc<StreamCell>,
    /// What is done to the lane instead of a step of the model; nothing for a call.
    pub op: Option<Op>,
    /// Keeps the lane while the call is queued or seated.
    pub hold: Option<Arc<Handle>>,
    pub to: Destination,
    pub ticket: Arc<Ticket>,
    /// `steps` times the inputs of the model, see `Layout`.
    pub inputs: Box<[u64]>,
    pub outputs: Box<[u64]>,
    pub steps: usize,
    /// Steps committed.
    pub step: usize,
    /// Resets of the stream that came before this call.
    pub epoch: u64,
    pub arrived: Instant,
    pub result: Result<(), StreamError>,
}

impl Job {
    fn new(cell: Arc<StreamCell>, steps: usize) -> JobBox {
        let words = |per_step: usize| vec![0; per_step * steps].into_boxed_slice();
        Box::new(Self {
            inputs: words(cell.model.layout.input_words),
            outputs: words(cell.model.layout.output_words),
            cell,
            op: None,
            hold: None,
            to: Destination::Ticket,
            ticket: Arc::default(),
            steps,
            step: 0,
            epoch: 0,
            arrived: Instant::now(),
            result: Ok(()),
        })
    }

    /// Copies the inputs of step `step`, which have been checked.
    pub fn write(&mut self, step: usize, values: &[Value<'_>]) {
        let layout = &self.cell.model.layout;
        let words = &mut self.inputs[step * layout.input_words..][..layout.input_words];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(words);
        for (range, value) in layout.inputs.iter().zip(values) {
            bytes[range.clone()].copy_from_slice(value.bytes);
        }
    }

    /// The bytes of input `port` of the step to run next.
    pub fn input(&self, port: usize) -> &[u8] {
        let layout = &self.cell.model.layout;
        let words = &self.inputs[self.step * layout.input_words..][..layout.input_words];
        &bytemuck::cast_slice(words)[layout.inputs[port].clone()]
    }

    /// Where output `port` of the step that ran goes.
    pub fn output_mut(&mut self, port: usize) -> &mut [u8] {
        let layout = &self.cell.model.layout;
        let words = &mut self.outputs[self.step * layout.output_words..][..layout.output_words];
        &mut bytemuck::cast_slice_mut(words)[layout.outputs[port].clone()]
    }

    /// Whether there is no step left to run.
    pub fn is_finished(&self) -> bool {
        self.result.is_err() || self.step == self.steps
    }
}

/// A job that goes back to its stream's pool when dropped.
pub(super) struct Pooled(Option<JobBox>);

impl Pooled {
    pub fn new(mut job: JobBox) -> Self {
        job.hold = None;
        Self(Some(job))
    }
}

impl Deref for Pooled {
    type Target = Job;
    fn deref(&self) -> &Job {
        self.0.as_ref().expect("taken only by drop")
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(job) = self.0.take() {
            let cell = Arc::clone(&job.cell);
            cell.put(job);
        }
    }
}

/// Keeps `cx`'s waker in `place`. Returns the one it replaces, to be dropped once no lock is held: that runs the host's
/// code, which may well call back.
#[must_use]
pub(super) fn keep_waker(place: &mut Option<Waker>, cx: &Context<'_>) -> Option<Waker> {
    if place.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
        return None;
    }
    place.replace(cx.waker().clone())
}

/// Where a future and the turn that answers it meet.
#[derive(Default)]
pub(super) struct Ticket {
    /// A hint that `slot.job` is there, read without the lock.
    done: AtomicBool,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    job: Option<JobBox>,
    waker: Option<Waker>,
    abandoned: bool,
}

impl Ticket {
    /// Whether the answer is here.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Takes the answer, or leaves `cx`'s waker for it.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<JobBox> {
        let mut slot = lock(&self.slot);
        if let Some(job) = slot.job.take() {
            self.done.store(false, Ordering::Relaxed);
            let _unused = slot.waker.take();
            // Dropping a waker runs the host's code, so the lock goes first.
            drop(slot);
            return Poll::Ready(job);
        }
        let _replaced = keep_waker(&mut slot.waker, cx);
        drop(slot);
        Poll::Pending
    }

    /// Hands the answer over. Returns whom to wake, once no lock is held.
    pub fn deliver(&self, job: JobBox) -> Option<Waker> {
        let mut slot = lock(&self.slot);
        if slot.abandoned {
            slot.abandoned = false;
            drop(slot);
            drop(Pooled::new(job));
            return None;
        }
        slot.job = Some(job);
        self.done.store(true, Ordering::Release);
        slot.waker.take()
    }

    /// Nobody waits any more. Returns the answer if it has come; otherwise `deliver` drops it.
    pub fn abandon(&self) -> Option<JobBox> {
        let mut slot = lock(&self.slot);
        let _unused = slot.waker.take();
        let job = slot.job.take();
        slot.abandoned = job.is_none();
        self.done.store(false, Ordering::Relaxed);
        // As in `poll`.
        drop(slot);
        job
    }

    /// Whether nobody waits.
    pub fn is_abandoned(&self) -> bool {
        lock(&self.slot).abandoned
    }

    /// Undoes `abandon` for a job that was found in the queue.
    pub fn reuse(&self) {
        lock(&self.slot).abandoned = false;
    }
}
