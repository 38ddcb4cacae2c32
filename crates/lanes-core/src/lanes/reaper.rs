//! One thread that drives many streams: submit many calls, reap what is ready.
//!
//! ```text
//! submit(stream, tag, inputs) --> staged --one lock--> queue --> turns --one lock and one wake a turn--> inbox --> next()
//! ```
//!
//! - Every call submitted is reaped exactly once, with its tag; calls of one stream in the order they were submitted.
//! - Submitted calls are staged until a full turn of them is there, or until the reaper is asked for an answer.
//! - Outputs are read where the turn left them.
//! - Not here: a future per call (`stream`).

use super::error::{InputError, StreamError};
use super::job::{Destination, Job, JobBox, Pooled, keep_waker};
use super::stream::{Stream, outputs};
use super::sync::{DRIVER, block_before, block_on, lock};
use super::value::{Outputs, Value};
use super::worker::Shared;
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// Submits calls of any streams of one runnable, and takes their answers in the order of their turns.
///
/// Dropping it takes its queued calls out of the queue; those that are seated commit, and their answers are dropped.
pub struct Reaper {
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    staged: Vec<JobBox>,
    /// Answers taken from the inbox and not yet handed out.
    taken: VecDeque<JobBox>,
    /// Submitted and not yet handed out.
    in_flight: usize,
    /// Answers that the inbox and `taken` have room for.
    room: usize,
}

/// One answer.
#[derive(Debug)]
pub struct Reaped {
    /// What `submit` was given.
    pub tag: u64,
    /// What `Stream::call` would have given.
    pub result: Result<Outputs, StreamError>,
}

impl Reaper {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        let shared = Arc::clone(shared);
        Self { shared, inbox: Arc::default(), staged: Vec::new(), taken: VecDeque::new(), in_flight: 0, room: 0 }
    }

    /// Makes one call of `stream`; its answer will carry `tag`. The inputs are copied.
    ///
    /// # Errors
    /// `Invalid`, `Busy` at the queue's bound, `Closed`. Nothing was submitted then. Other errors are reaped.
    pub fn submit(&mut self, stream: &Stream, tag: u64, inputs: &[Value<'_>]) -> Result<(), StreamError> {
        if !Arc::ptr_eq(&stream.handle.shared, &self.shared) {
            return Err(InputError::Foreign { lane: stream.lane() }.into());
        }
        let depth = self.shared.depth.load(Ordering::Relaxed).saturating_add(self.staged.len());
        if depth >= self.shared.knobs.queue {
            // The depth reads as boundless once the runnable is closed.
            return Err(match lock(&self.shared.queue).closed() {
                Some(cause) => StreamError::Closed(Arc::clone(cause)),
                None => StreamError::Busy { depth },
            });
        }
        let mut job = stream.job(inputs)?;
        job.hold = Some(Arc::clone(&stream.handle));
        job.to = Destination::Inbox { inbox: Arc::clone(&self.inbox), tag };
        self.staged.push(job);
        self.in_flight += 1;
        if self.in_flight > self.room {
            self.make_room();
        }
        if self.staged.len() >= self.shared.knobs.max_seats as usize {
            self.flush();
        }
        Ok(())
    }

    /// Room for the answers of all that is in flight: how many of them wait at once is chance, and none is to allocate.
    fn make_room(&mut self) {
        self.room = self.in_flight.next_power_of_two();
        self.taken.reserve(self.room - self.taken.len());
        self.inbox.reserve(self.room);
    }

    /// Queues what is staged. Asking for an answer does it too.
    pub fn flush(&mut self) {
        if self.staged.is_empty() {
            return;
        }
        if let Err(cause) = self.shared.submit_all(&mut self.staged) {
            for mut job in self.staged.drain(..) {
                job.result = Err(StreamError::Closed(Arc::clone(&cause)));
                self.taken.push_back(job);
            }
        }
    }

    /// Calls submitted and not yet reaped.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The next answer that is there already.
    pub fn try_next(&mut self) -> Option<Reaped> {
        if self.taken.is_empty() {
            self.flush();
            if self.inbox.has_some() {
                self.inbox.take(&mut self.taken);
            }
        }
        self.hand_out()
    }

    /// The next answer; `None` when nothing is in flight.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Reaped>> {
        if self.taken.is_empty() {
            self.flush();
        }
        if self.taken.is_empty() && self.in_flight > 0 && !self.inbox.take_or_wait(&mut self.taken, cx) {
            return Poll::Pending;
        }
        Poll::Ready(self.hand_out())
    }

    /// The next answer; `None` when nothing is in flight. Dropping the future loses nothing.
    pub fn next_async(&mut self) -> impl Future<Output = Option<Reaped>> {
        poll_fn(|cx| self.poll_next(cx))
    }

    /// `next_async`, waited for on this thread.
    pub fn next_blocking(&mut self) -> Option<Reaped> {
        if let Some(reaped) = self.try_next() {
            return Some(reaped);
        }
        let inbox = Arc::clone(&self.inbox);
        block_on(poll_fn(|cx| self.poll_next(cx)), DRIVER, |_| inbox.has_some())
    }

    /// `next_blocking`, but no longer than until `until`; `None` also when the time has passed.
    pub fn next_before(&mut self, until: Instant) -> Option<Reaped> {
        if let Some(reaped) = self.try_next() {
            return Some(reaped);
        }
        let inbox = Arc::clone(&self.inbox);
        block_before(until, poll_fn(|cx| self.poll_next(cx)), DRIVER, |_| inbox.has_some()).flatten()
    }

    fn hand_out(&mut self) -> Option<Reaped> {
        let mut job = self.taken.pop_front()?;
        self.in_flight -= 1;
        let tag = match std::mem::replace(&mut job.to, Destination::Ticket) {
            Destination::Inbox { tag, .. } => tag,
            Destination::Ticket => unreachable!("an inbox gets the answers that are addressed to it"),
        };
        Some(Reaped { tag, result: outputs(job) })
    }
}

impl fmt::Debug for Reaper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reaper").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        let mut jobs = std::mem::take(&mut self.staged);
        let is_mine =
            |job: &Job| matches!(&job.to, Destination::Inbox { inbox, .. } if Arc::ptr_eq(inbox, &self.inbox));
        lock(&self.shared.queue).remove_calls(is_mine, &mut jobs);
        self.inbox.close(&mut self.taken);
        jobs.extend(self.taken.drain(..));
        for job in jobs {
            drop(Pooled::new(job));
        }
    }
}

/// Where turns leave the answers of one reaper.
#[derive(Default)]
pub(super) struct Inbox {
    state: Mutex<InboxState>,
    /// A hint that `state.jobs` is not empty, read without the lock.
    some: AtomicBool,
}

#[derive(Default)]
struct InboxState {
    jobs: VecDeque<JobBox>,
    waker: Option<Waker>,
    /// The reaper is gone.
    closed: bool,
}

impl Inbox {
    /// Leaves `jobs`, which is empty afterwards. Returns whom to wake, once no lock is held.
    pub fn publish(&self, jobs: &mut Vec<JobBox>) -> Option<Waker> {
        let mut state = lock(&self.state);
        if state.closed {
            drop(state);
            jobs.drain(..).for_each(|job| drop(Pooled::new(job)));
            return None;
        }
        state.jobs.extend(jobs.drain(..));
        self.some.store(true, Ordering::Release);
        state.waker.take()
    }

    /// Room for `jobs` at once.
    fn reserve(&self, jobs: usize) {
        let mut state = lock(&self.state);
        let more = jobs.saturating_sub(state.jobs.len());
        state.jobs.reserve(more);
    }

    fn has_some(&self) -> bool {
        self.some.load(Ordering::Acquire)
    }

    /// Swaps what is there for the empty `taken`.
    fn take(&self, taken: &mut VecDeque<JobBox>) {
        let mut state = lock(&self.state);
        std::mem::swap(&mut state.jobs, taken);
        self.some.store(false, Ordering::Relaxed);
    }

    /// `take`, or leaves `cx`'s waker when nothing is there.
    fn take_or_wait(&self, taken: &mut VecDeque<JobBox>, cx: &mut Context<'_>) -> bool {
        let mut state = lock(&self.state);
        if state.jobs.is_empty() {
            let _replaced = keep_waker(&mut state.waker, cx);
            drop(state);
            return false;
        }
        std::mem::swap(&mut state.jobs, taken);
        self.some.store(false, Ordering::Relaxed);
        true
    }

    fn close(&self, left: &mut VecDeque<JobBox>) {
        let mut state = lock(&self.state);
        state.closed = true;
        left.append(&mut state.jobs);
        let _unused = state.waker.take();
        drop(state);
    }
}
