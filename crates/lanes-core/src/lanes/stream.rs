//! A stream's handles, and the futures of its calls.
//!
//! ```text
//! Stream (clones share one lane) --call--> Call, a future --await--> Outputs
//!        \--last clone dropped--> the lane's flag: free at the next spawn
//! ```
//!
//! - A call is checked, copied and queued when it is made, before its future is first polled: calls of one stream are
//!   served in the order they were made, whatever is polled first.
//! - A future dropped before its call is seated takes the call out of the queue; once seated, the call commits.
//! - Any executor can poll the futures. The blocking forms are the same calls, waited for on the caller's thread; only
//!   they may take the baton.
//! - Not here: how a call finds its turn (`turn`).

use super::error::{Closed, StreamError};
use super::job::{Job, JobBox, Pooled, StreamCell, Ticket, keep_waker};
use super::queue::Request;
use super::sync::{CALLER, block_on, lock};
use super::table::{LaneId, Lease};
use super::value::{Outputs, Value, check_inputs, check_outputs};
use super::worker::Shared;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use tracing::{Span, debug_span};

/// One client's sequence of calls, and its lease of a lane. Clones share the lane; the last one dropped gives it back,
/// which neither fails nor waits. A call that is still queued or awaited keeps the lane too.
#[derive(Clone)]
pub struct Stream {
    pub(super) handle: Arc<Handle>,
}

/// What the clones of a stream share. Dropping it frees the lane.
pub(super) struct Handle {
    pub cell: Arc<StreamCell>,
    pub shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.releases.release(self.cell.lease);
        self.cell.close_pool();
    }
}

impl Stream {
    pub(super) fn new(shared: &Arc<Shared>, lease: Lease) -> Self {
        shared.releases.leased();
        let cell = Arc::new(StreamCell::new(Arc::clone(&shared.info), lease));
        Self { handle: Arc::new(Handle { cell, shared: Arc::clone(shared) }) }
    }

    /// The lane it holds.
    pub fn lane(&self) -> LaneId {
        self.handle.cell.lease.lane
    }

    /// Calls (of `call_many`: steps) whose state was kept, since the stream began or was last reset. A call counts once
    /// its turn has succeeded, whether or not anybody took the answer.
    pub fn position(&self) -> u64 {
        self.handle.cell.position()
    }

    /// Starts over from the initial state: holds for every call made from now on, and for none made before. Costs
    /// nothing and waits for nothing.
    pub fn reset(&self) {
        self.handle.cell.reset();
    }

    /// One call: one value per input, in the model's order. When the queue is full the call waits for room, behind
    /// those that waited before.
    ///
    /// # Errors
    /// Through the future: `Invalid` (nothing was queued), `Refused` and `Disagrees` (this call's data), `Failed` (the
    /// whole turn), `Closed`. The stream's state has advanced only on success.
    pub fn call(&self, inputs: &[Value<'_>]) -> Call {
        Call(match self.job(inputs) {
            Ok(job) => self.submit(job, self.span()),
            Err(error) => State::Refused(error),
        })
    }

    /// `call`, but a full queue is answered with `Busy` at once, and nothing is queued.
    ///
    /// # Errors
    /// `Busy`, `Invalid` and `Closed` at once; the others of `call` through the future.
    pub fn try_call(&self, inputs: &[Value<'_>]) -> Result<Call, StreamError> {
        let job = self.job(inputs)?;
        let pending = self.pending(&job, self.span());
        match self.handle.shared.try_submit(job) {
            Ok(()) => Ok(Call(State::Waiting(pending))),
            Err((job, error)) => {
                pending.defuse();
                self.handle.cell.put(job);
                Err(error)
            }
        }
    }

    /// `call`, with the outputs copied to the caller's buffers, one per output in the model's order, each exactly as
    /// long as its output. Nothing is allocated once the stream has made a call.
    ///
    /// # Errors
    /// Those of `call`; the buffers are untouched then.
    pub fn call_into<'a, 'b>(&self, inputs: &[Value<'_>], outputs: &'a mut [&'b mut [u8]]) -> CallInto<'a, 'b> {
        let signature = &self.handle.cell.model.signature;
        let job = check_outputs(signature, outputs).map_err(StreamError::from).and_then(|()| self.job(inputs));
        let state = match job {
            Ok(job) => self.submit(job, self.span()),
            Err(error) => State::Refused(error),
        };
        CallInto { state, outputs }
    }

    /// One call per element of `steps`, served in order, one per turn. Between two steps, calls of other clones of this
    /// stream may come.
    ///
    /// # Errors
    /// Those of `call`. Steps before the failed one have committed, as `position` says; none after it has.
    pub fn call_many<'v, S: AsRef<[Value<'v>]>>(&self, steps: &[S]) -> CallMany {
        CallMany(match self.job_of_steps(steps) {
            Ok(Some(job)) => self.submit(job, self.span()),
            Ok(None) => State::Done,
            Err(error) => State::Refused(error),
        })
    }

    /// `call`, waited for. A caller that is alone runs the turn on its own thread.
    ///
    /// # Errors
    /// Those of `call`.
    pub fn call_blocking(&self, inputs: &[Value<'_>]) -> Result<Outputs, StreamError> {
        let job = self.job(inputs)?;
        self.run_or_wait(job).and_then(outputs)
    }

    /// `call_into`, waited for. A caller that is alone runs the turn on its own thread.
    ///
    /// # Errors
    /// Those of `call`; the buffers are untouched then.
    pub fn call_into_blocking(&self, inputs: &[Value<'_>], outputs: &mut [&mut [u8]]) -> Result<(), StreamError> {
        check_outputs(&self.handle.cell.model.signature, outputs)?;
        let job = self.job(inputs)?;
        let job = self.run_or_wait(job)?;
        copy_out(job, outputs)
    }

    /// `call_many`, waited for. A caller that is alone runs the turns on its own thread.
    ///
    /// # Errors
    /// Those of `call_many`.
    pub fn call_many_blocking<'v, S: AsRef<[Value<'v>]>>(&self, steps: &[S]) -> Result<Vec<Outputs>, StreamError> {
        match self.job_of_steps(steps)? {
            Some(job) => self.run_or_wait(job).and_then(outputs_of_steps),
            None => Ok(Vec::new()),
        }
    }

    /// A job with `inputs`, once they have been checked.
    pub(super) fn job(&self, inputs: &[Value<'_>]) -> Result<JobBox, StreamError> {
        check_inputs(&self.handle.cell.model.signature, inputs)?;
        let mut job = self.handle.cell.take();
        job.write(0, inputs);
        job.arrived = Instant::now();
        Ok(job)
    }

    fn job_of_steps<'v, S: AsRef<[Value<'v>]>>(&self, steps: &[S]) -> Result<Option<JobBox>, StreamError> {
        for step in steps {
            check_inputs(&self.handle.cell.model.signature, step.as_ref())?;
        }
        if steps.is_empty() {
            return Ok(None);
        }
        let mut job = self.handle.cell.take_many(steps.len());
        for (at, step) in steps.iter().enumerate() {
            job.write(at, step.as_ref());
        }
        Ok(Some(job))
    }

    fn pending(&self, job: &Job, span: Span) -> Pending {
        Pending { handle: Arc::clone(&self.handle), ticket: Some(Arc::clone(&job.ticket)), span }
    }

    /// For hosts that collect spans; it costs nothing when nobody does.
    fn span(&self) -> Span {
        debug_span!("call", model = %self.handle.shared.info.signature.name, lane = self.lane().index())
    }

    fn submit(&self, job: JobBox, span: Span) -> State {
        let pending = self.pending(&job, span);
        match self.handle.shared.submit(Request::Call(job)) {
            Ok(()) => State::Waiting(pending),
            Err((request, cause)) => {
                pending.defuse();
                if let Request::Call(job) = request {
                    self.handle.cell.put(job);
                }
                State::Refused(StreamError::Closed(cause))
            }
        }
    }

    fn run_or_wait(&self, mut job: JobBox) -> Result<JobBox, StreamError> {
        let _call = self.span().entered();
        loop {
            match self.handle.shared.run_alone(job) {
                Ok(back) if back.is_finished() => return Ok(back),
                // The baton goes back after each turn: somebody may have come.
                Ok(back) => job = back,
                Err(back) => {
                    let waiting = self.submit(back, Span::none());
                    return block_on(waiting, CALLER, State::is_ready);
                }
            }
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("lane", &self.lane()).field("position", &self.position()).finish()
    }
}

/// A queued call that somebody waits for. Dropping it takes the call out of the queue if it is not seated yet.
struct Pending {
    handle: Arc<Handle>,
    /// `None` once answered.
    ticket: Option<Arc<Ticket>>,
    span: Span,
}

impl Pending {
    /// The call was not queued after all.
    fn defuse(mut self) {
        self.ticket = None;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<JobBox> {
        let _call = self.span.enter();
        match self.ticket.as_ref().map(|ticket| ticket.poll(cx)) {
            Some(Poll::Ready(job)) => {
                self.ticket = None;
                Poll::Ready(job)
            }
            _ => Poll::Pending,
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        // First the ticket, so that a call of many steps is not queued again; then the queue.
        let job = ticket.abandon().or_else(|| {
            let job = lock(&self.handle.shared.queue).remove_call(&ticket)?;
            ticket.reuse();
            Some(job)
        });
        if let Some(job) = job {
            self.handle.cell.put(job);
        }
    }
}

/// Where a call's future is.
enum State {
    Refused(StreamError),
    Waiting(Pending),
    Done,
}

impl State {
    /// Whether polling would not wait.
    fn is_ready(&self) -> bool {
        match self {
            Self::Waiting(pending) => pending.ticket.as_ref().is_some_and(|ticket| ticket.is_done()),
            Self::Refused(_) | Self::Done => true,
        }
    }
}

impl Future for State {
    type Output = Result<JobBox, StreamError>;

    /// Stays pending when polled after it has answered.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Self::Waiting(pending) = &mut *self {
            let Poll::Ready(job) = pending.poll(cx) else { return Poll::Pending };
            *self = Self::Done;
            return Poll::Ready(Ok(job));
        }
        match std::mem::replace(&mut *self, Self::Done) {
            Self::Refused(error) => Poll::Ready(Err(error)),
            _ => Poll::Pending,
        }
    }
}

/// The future of one call. Needs no particular executor.
#[must_use = "dropping a call takes it out of the queue"]
pub struct Call(State);

impl Future for Call {
    type Output = Result<Outputs, StreamError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|job| job.and_then(outputs))
    }
}

/// The future of one call whose outputs go to the caller's buffers.
#[must_use = "dropping a call takes it out of the queue"]
pub struct CallInto<'a, 'b> {
    state: State,
    outputs: &'a mut [&'b mut [u8]],
}

impl Future for CallInto<'_, '_> {
    type Output = Result<(), StreamError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready(job) = Pin::new(&mut self.state).poll(cx) else { return Poll::Pending };
        Poll::Ready(job.and_then(|job| copy_out(job, self.outputs)))
    }
}

/// The future of several calls of one stream, in order. Dropping it stops after the step that is seated.
#[must_use = "dropping a call takes it out of the queue"]
pub struct CallMany(State);

impl Future for CallMany {
    type Output = Result<Vec<Outputs>, StreamError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if matches!(self.0, State::Done) {
            // No steps, or polled again after its answer.
            return Poll::Ready(Ok(Vec::new()));
        }
        Pin::new(&mut self.0).poll(cx).map(|job| job.and_then(outputs_of_steps))
    }
}

/// The result of a job that was answered.
pub(super) fn outputs(mut job: JobBox) -> Result<Outputs, StreamError> {
    match std::mem::replace(&mut job.result, Ok(())) {
        Ok(()) => Ok(Outputs::new(job)),
        Err(error) => {
            drop(Outputs::new(job));
            Err(error)
        }
    }
}

fn outputs_of_steps(mut job: JobBox) -> Result<Vec<Outputs>, StreamError> {
    std::mem::replace(&mut job.result, Ok(()))?;
    let job = Pooled::new(job);
    let words = job.cell.model.layout.output_words;
    let steps = (0..job.steps).map(|step| {
        let mut one = job.cell.take();
        one.outputs.copy_from_slice(&job.outputs[step * words..][..words]);
        Outputs::new(one)
    });
    Ok(steps.collect())
}

fn copy_out(job: JobBox, buffers: &mut [&mut [u8]]) -> Result<(), StreamError> {
    let outputs = outputs(job)?;
    for (at, buffer) in buffers.iter_mut().enumerate() {
        buffer.copy_from_slice(outputs.bytes(at).expect("the buffers were counted before the call"));
    }
    Ok(())
}

/// Where a spawn and the lease that answers it meet.
#[derive(Default)]
pub(super) struct SpawnSlot(Mutex<SpawnState>);

#[derive(Default)]
struct SpawnState {
    stream: Option<Result<Stream, StreamError>>,
    waker: Option<Waker>,
}

impl SpawnSlot {
    /// Hands the stream over. Returns whom to wake, once no lock is held.
    pub fn deliver(&self, stream: Result<Stream, StreamError>) -> Option<Waker> {
        let mut slot = lock(&self.0);
        slot.stream = Some(stream);
        slot.waker.take()
    }
}

/// The future of a stream. Needs no particular executor; dropping it gives up the place in the queue.
#[must_use = "dropping a spawn gives it up"]
pub struct Spawn {
    shared: Arc<Shared>,
    slot: Arc<SpawnSlot>,
}

impl Spawn {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        let slot = Arc::<SpawnSlot>::default();
        if let Err((_, cause)) = shared.submit(Request::Spawn(Arc::clone(&slot))) {
            slot.deliver(Err(closed(cause)));
        }
        Self { shared: Arc::clone(shared), slot }
    }

    pub(super) fn wait(self) -> Result<Stream, StreamError> {
        block_on(self, CALLER, |spawn| lock(&spawn.slot.0).stream.is_some())
    }
}

fn closed(cause: Arc<Closed>) -> StreamError {
    StreamError::Closed(cause)
}

impl Future for Spawn {
    type Output = Result<Stream, StreamError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = lock(&self.slot.0);
        match slot.stream.take() {
            Some(stream) => Poll::Ready(stream),
            None => {
                let _replaced = keep_waker(&mut slot.waker, cx);
                drop(slot);
                Poll::Pending
            }
        }
    }
}

impl Drop for Spawn {
    fn drop(&mut self) {
        // One that is served meanwhile is dropped with the slot, which gives its lane back.
        if Arc::strong_count(&self.slot) > 1 {
            lock(&self.shared.queue).remove_spawn(&self.slot);
        }
    }
}
