//! A stream's handles, and the futures of its calls.
//!
//! ```text
//! Stream (clones share one lane) --call--> Call, a future --await--> Outputs
//!        \--last clone dropped--> the lane's flag: free at the next spawn
//! ```
//!
//! - A call is checked, copied and queued when it is made, before its future is first polled: calls of one stream are
//!   served in the order they were made, whatever is polled first. So are operations on its lane, in the same order.
//! - A future dropped before its call is seated takes the call out of the queue; once seated, the call commits.
//! - Any executor can poll the futures. The blocking forms are the same calls, waited for on the caller's thread; only
//!   they may take the baton.
//! - Not here: how a call finds its turn (`turn`).

use super::checkpoint::Checkpoint;
use super::error::{InputError, StreamError};
use super::job::{Job, JobBox, Pooled, StreamCell, Ticket, keep_waker};
use super::operation::Op;
use super::queue::Request;
use super::snapshot::Sealed;
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
        self.shared.release(self.cell.lease);
        self.cell.close_pool();
    }
}

impl Stream {
    /// The stream of `lease`, which goes on from `position`.
    pub(super) fn new(shared: &Arc<Shared>, lease: Lease, position: u64) -> Self {
        shared.leased(lease);
        let cell = Arc::new(StreamCell::new(Arc::clone(&shared.info), lease, position));
        Self { handle: Arc::new(Handle { cell, shared: Arc::clone(shared) }) }
    }

    /// The lane it holds.
    pub fn lane(&self) -> LaneId {
        self.handle.cell.lease.lane
    }

    /// Calls (of `call_many`: steps) whose state was kept, since the stream began or was last reset; those of the stream
    /// it was forked or restored from count too. A call counts once its turn has succeeded, whether or not anybody took
    /// the answer.
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
        let state = match self.job_of_steps(steps) {
            Ok(Some(job)) => self.submit(job, self.span()),
            Ok(None) => State::Done,
            Err(error) => State::Refused(error),
        };
        CallMany { is_empty: matches!(state, State::Done), state }
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

    /// A new stream, on the lowest free lane, that goes on from here: from the state and position after every call of
    /// this stream made before, and after a reset made before. Those that a reaper has not flushed are not yet made.
    /// Both streams share one row until the next turn of either, so it costs neither time nor memory of the device.
    ///
    /// Like the other operations on a lane it waits for room in the queue, takes no seat, and lets no later call of
    /// this stream overtake it. Dropping its future before it is served undoes it.
    ///
    /// # Errors
    /// Through the future: `Full`, `Stale`, `Closed`.
    pub fn fork(&self) -> Operation<Stream> {
        self.operation(Op::Fork { count: 1, streams: Vec::new() }, one_stream)
    }

    /// `fork`, waited for on this thread.
    ///
    /// # Errors
    /// Those of `fork`.
    pub fn fork_blocking(&self) -> Result<Stream, StreamError> {
        self.operate_blocking(Op::Fork { count: 1, streams: Vec::new() }, one_stream)
    }

    /// `count` forks that all go on from here, or none.
    ///
    /// # Errors
    /// Those of `fork`; `Full` when fewer than `count` lanes are free.
    pub fn fork_many(&self, count: u32) -> Operation<Vec<Stream>> {
        self.operation(Op::Fork { count, streams: Vec::new() }, all_streams)
    }

    /// `fork_many`, waited for on this thread.
    ///
    /// # Errors
    /// Those of `fork_many`.
    pub fn fork_many_blocking(&self, count: u32) -> Result<Vec<Stream>, StreamError> {
        self.operate_blocking(Op::Fork { count, streams: Vec::new() }, all_streams)
    }

    /// Keeps the state and the position that a fork would go on from. Nothing is copied; the row is one of those that
    /// the builder's `checkpoints` reserved.
    ///
    /// # Errors
    /// Through the future: `NoCheckpoint` when that many are held, `Stale`, `Closed`.
    pub fn checkpoint(&self) -> Operation<Checkpoint> {
        self.operation(Op::Checkpoint(None), checkpoint)
    }

    /// `checkpoint`, waited for on this thread.
    ///
    /// # Errors
    /// Those of `checkpoint`.
    pub fn checkpoint_blocking(&self) -> Result<Checkpoint, StreamError> {
        self.operate_blocking(Op::Checkpoint(None), checkpoint)
    }

    /// Goes back, or over, to the state and position of `to`, which may have been taken of any stream of this runnable:
    /// holds for every call made from now on, and for none made before. The checkpoint stays.
    ///
    /// # Errors
    /// Through the future: `Invalid` when the checkpoint is of another runnable, `Stale`, `Closed`.
    pub fn rollback(&self, to: &Checkpoint) -> Operation<()> {
        match self.check_checkpoint(to) {
            Ok(()) => self.operation(Op::Rollback(to.clone()), |_| ()),
            Err(error) => Operation { state: State::Refused(error), take: |_| () },
        }
    }

    /// `rollback`, waited for on this thread.
    ///
    /// # Errors
    /// Those of `rollback`.
    pub fn rollback_blocking(&self, to: &Checkpoint) -> Result<(), StreamError> {
        self.check_checkpoint(to)?;
        self.operate_blocking(Op::Rollback(to.clone()), |_| ())
    }

    /// The state and the position that a fork would go on from, as bytes: versioned, checksummed, no longer than
    /// [`SNAPSHOT_BYTES_MAX`](super::SNAPSHOT_BYTES_MAX), and of this model alone. [`Runnable::restore`] makes a stream
    /// of them, in another process or on another device too. Other streams wait while the row is read, and at the first
    /// snapshot of a runnable while its model's identity is computed.
    ///
    /// [`Runnable::restore`]: super::Runnable::restore
    ///
    /// # Errors
    /// Through the future: `Snapshot` when the model gives no access to its rows or they are too large, `Stale`,
    /// `Closed`.
    pub fn snapshot(&self) -> Operation<Vec<u8>> {
        self.operation(Op::Snapshot(Vec::new()), snapshot)
    }

    /// `snapshot`, waited for on this thread.
    ///
    /// # Errors
    /// Those of `snapshot`.
    pub fn snapshot_blocking(&self) -> Result<Vec<u8>, StreamError> {
        self.operate_blocking(Op::Snapshot(Vec::new()), snapshot)
    }

    fn check_checkpoint(&self, to: &Checkpoint) -> Result<(), StreamError> {
        if to.is_of(&self.handle.shared) {
            return Ok(());
        }
        Err(InputError::ForeignCheckpoint { lane: self.lane() }.into())
    }

    fn operation<T>(&self, op: Op, take: fn(Op) -> T) -> Operation<T> {
        Operation { state: self.submit(self.job_of(op), self.span()), take }
    }

    fn operate_blocking<T>(&self, op: Op, take: fn(Op) -> T) -> Result<T, StreamError> {
        self.run_or_wait(self.job_of(op)).and_then(|job| came_of(job, take))
    }

    fn job_of(&self, op: Op) -> JobBox {
        let mut job = self.handle.cell.take();
        job.op = Some(op);
        job.arrived = Instant::now();
        job
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

    /// Of a call, or of what stands in line like one, for hosts that collect spans; it costs nothing when nobody does.
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

/// The future of one call. Needs no particular executor. Polled again after its answer, it stays pending.
#[must_use = "dropping a call takes it out of the queue"]
pub struct Call(State);

impl Future for Call {
    type Output = Result<Outputs, StreamError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|job| job.and_then(outputs))
    }
}

/// The future of one call whose outputs go to the caller's buffers. Polled again after its answer, it stays pending.
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

/// The future of several calls of one stream, in order. Dropping it stops after the step that is seated. Polled again
/// after its answer, it stays pending.
#[must_use = "dropping a call takes it out of the queue"]
pub struct CallMany {
    state: State,
    /// There are no steps, and that has not been answered yet.
    is_empty: bool,
}

impl Future for CallMany {
    type Output = Result<Vec<Outputs>, StreamError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if std::mem::take(&mut self.is_empty) {
            return Poll::Ready(Ok(Vec::new()));
        }
        Pin::new(&mut self.state).poll(cx).map(|job| job.and_then(outputs_of_steps))
    }
}

/// The future of an operation on a stream's lane. Needs no particular executor. Polled again after its answer, it stays
/// pending.
#[must_use = "dropping an operation takes it out of the queue"]
pub struct Operation<T> {
    state: State,
    take: fn(Op) -> T,
}

impl<T> Future for Operation<T> {
    type Output = Result<T, StreamError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let take = self.take;
        Pin::new(&mut self.state).poll(cx).map(|job| job.and_then(|job| came_of(job, take)))
    }
}

/// What came of the operation of a job that was answered.
fn came_of<T>(mut job: JobBox, take: fn(Op) -> T) -> Result<T, StreamError> {
    let (result, op) = (std::mem::replace(&mut job.result, Ok(())), job.op.take());
    drop(Pooled::new(job));
    result.map(|()| take(op.expect("an operation keeps what it was")))
}

fn all_streams(op: Op) -> Vec<Stream> {
    match op {
        Op::Fork { streams, .. } => streams,
        _ => unreachable!("the operation was a fork"),
    }
}

fn one_stream(op: Op) -> Stream {
    all_streams(op).pop().expect("a fork of one gave one")
}

fn checkpoint(op: Op) -> Checkpoint {
    match op {
        Op::Checkpoint(Some(checkpoint)) => checkpoint,
        _ => unreachable!("the operation was a checkpoint, and succeeded"),
    }
}

fn snapshot(op: Op) -> Vec<u8> {
    match op {
        Op::Snapshot(bytes) => bytes,
        _ => unreachable!("the operation was a snapshot"),
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
pub(super) struct SpawnSlot {
    /// What the stream goes on from; a fresh one if nothing.
    snapshot: Option<Sealed>,
    state: Mutex<SpawnState>,
}

enum SpawnState {
    Asked(Option<Waker>),
    Served(Result<Stream, StreamError>),
    /// The answer was taken, or nobody waits for it any more.
    Over,
}

impl SpawnSlot {
    /// What the stream goes on from, if it is not fresh.
    pub fn snapshot(&self) -> Option<&Sealed> {
        self.snapshot.as_ref()
    }

    fn new(snapshot: Option<Sealed>) -> Arc<Self> {
        Arc::new(Self { snapshot, state: Mutex::new(SpawnState::Asked(None)) })
    }

    /// Whether somebody waits for it still.
    pub fn is_awaited(&self) -> bool {
        matches!(*lock(&self.state), SpawnState::Asked(_))
    }

    /// Hands over the stream that `serve` makes, which waits for nothing. None is made when nobody waits any more: one
    /// that lives for a moment only would show, as a caller that is not alone. Returns whom to wake, once no lock is
    /// held.
    pub fn deliver(&self, serve: impl FnOnce() -> Result<Stream, StreamError>) -> Option<Waker> {
        let mut slot = lock(&self.state);
        let SpawnState::Asked(waker) = &mut *slot else { return None };
        let waker = waker.take();
        *slot = SpawnState::Served(serve());
        waker
    }

    /// Nobody waits any more. Whether nobody has answered either.
    fn abandon(&self) -> bool {
        let state = std::mem::replace(&mut *lock(&self.state), SpawnState::Over);
        // A stream or a waker is dropped here, with no lock held.
        matches!(state, SpawnState::Asked(_))
    }
}

/// The future of a stream. Needs no particular executor; dropping it gives up the place in the queue. Polled again
/// after its answer, it stays pending.
#[must_use = "dropping a spawn gives it up"]
pub struct Spawn {
    shared: Arc<Shared>,
    slot: Arc<SpawnSlot>,
}

impl Spawn {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self::of(shared, SpawnSlot::new(None))
    }

    /// A spawn of a stream that goes on from `snapshot`.
    pub(super) fn restore(shared: &Arc<Shared>, snapshot: &[u8]) -> Self {
        match Sealed::check(snapshot) {
            Ok(sealed) => Self::of(shared, SpawnSlot::new(Some(sealed))),
            Err(error) => {
                let slot = SpawnSlot::new(None);
                slot.deliver(|| Err(error.into()));
                Self { shared: Arc::clone(shared), slot }
            }
        }
    }

    fn of(shared: &Arc<Shared>, slot: Arc<SpawnSlot>) -> Self {
        if let Err((_, cause)) = shared.submit(Request::Spawn(Arc::clone(&slot))) {
            slot.deliver(|| Err(StreamError::Closed(cause)));
        }
        Self { shared: Arc::clone(shared), slot }
    }

    pub(super) fn wait(self) -> Result<Stream, StreamError> {
        block_on(self, CALLER, |spawn| matches!(*lock(&spawn.slot.state), SpawnState::Served(_)))
    }
}

impl Future for Spawn {
    type Output = Result<Stream, StreamError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = lock(&self.slot.state);
        if let SpawnState::Asked(waker) = &mut *slot {
            let _replaced = keep_waker(waker, cx);
            drop(slot);
            return Poll::Pending;
        }
        match std::mem::replace(&mut *slot, SpawnState::Over) {
            SpawnState::Served(stream) => Poll::Ready(stream),
            // Polled after it has answered.
            SpawnState::Asked(_) | SpawnState::Over => Poll::Pending,
        }
    }
}

impl Drop for Spawn {
    fn drop(&mut self) {
        // First the slot, so that no lane is leased from here on; then the queue.
        if self.slot.abandon() {
            lock(&self.shared.queue).remove_spawn(&self.slot);
        }
    }
}
