//! A model of several stages, such as an encoder and a decoder: one lease over all of them.
//!
//! ```text
//! StagedStream --stage("encoder")--> Stream on a lane of the encoder's runnable --call--> its own queue, turns and rows
//!      |       --stage("decoder")--> Stream on a lane of the decoder's runnable
//!      \--its place: one of `lanes`, given back when the last handle is dropped
//! ```
//!
//! - A stage is a runnable: it has its own signature, queue, turns, worker and metrics. Stages share no state, so what a
//!   call computes depends on the calls of its own stage alone, and those stay in order.
//! - A place is one lane in every stage. Places are counted once, here, so a stream has all its lanes or none, and two
//!   that are spawned at once never hold half of each other's.
//! - What is done to a stream is asked of every stage before this returns: a fork, a checkpoint, a rollback, a reset and
//!   a snapshot come after every call made before, in any stage, and before every call made after.
//! - Not here: what a stage's caller does with its outputs; they are inputs of the next stage's call.

use super::checkpoint::Checkpoint;
use super::error::{BuildError, InputError, StreamError};
use super::runnable::{LanesBuilder, Runnable};
use super::snapshot::{pack, unpack};
use super::stream::{Operation, Spawn, Stream};
use super::sync::{CALLER, block_on};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

/// A resident model of several stages. Clones are the same; dropping the last one ends every stage, and streams that are
/// left answer `Closed` from then on.
///
/// Calls of a stream are in order within a stage. Between stages there is no order but the caller's: stages share no state,
/// and a call that takes what another stage gave is made once that is there.
#[derive(Clone)]
pub struct Staged {
    inner: Arc<Inner>,
    /// As many as there are names.
    stages: Vec<Runnable>,
}

/// What streams share with their model. It keeps no stage running.
struct Inner {
    names: Vec<String>,
    places: Arc<Places>,
}

/// How many more streams there may be.
struct Places {
    lanes: u32,
    free: AtomicU32,
}

/// Places taken, one a stream that has or will have them. Dropping it gives them back.
struct Taken {
    places: Arc<Places>,
    count: u32,
}

impl Places {
    fn take(self: &Arc<Self>, asked: u32) -> Result<Taken, StreamError> {
        let taken = self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| free.checked_sub(asked));
        match taken {
            Ok(_) => Ok(Taken { places: Arc::clone(self), count: asked }),
            Err(free) => Err(StreamError::Full { asked, free, lanes: self.lanes }),
        }
    }
}

impl Taken {
    /// One place of these.
    fn split(&mut self) -> Self {
        self.count -= 1;
        Self { places: Arc::clone(&self.places), count: 1 }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.places.free.fetch_add(self.count, Ordering::AcqRel);
    }
}

impl Staged {
    /// Builds one runnable a stage, in order, each with the knobs of its builder, but for the lanes: every stage has
    /// `lanes`.
    ///
    /// # Errors
    /// That of the first stage that does not build; none is left running. `Knob` for no stage, and for two of one name.
    pub fn build(lanes: u32, stages: Vec<(&str, LanesBuilder)>) -> Result<Self, BuildError> {
        let refused =
            |found| Err(BuildError::Knob { knob: "stages", found, expected: "one or more of different names" });
        if stages.is_empty() {
            return refused("none".to_owned());
        }
        let mut met = std::collections::BTreeSet::new();
        if let Some((name, _)) = stages.iter().find(|(name, _)| !met.insert(*name)) {
            return refused(format!("two called {name}"));
        }
        let names = stages.iter().map(|(name, _)| (*name).to_owned()).collect();
        let stages = stages.into_iter().map(|(_, builder)| builder.lanes(lanes).build());
        let stages = stages.collect::<Result<_, BuildError>>()?;
        let places = Arc::new(Places { lanes, free: AtomicU32::new(lanes) });
        Ok(Self { inner: Arc::new(Inner { names, places }), stages })
    }

    /// A new stream, with a lane of every stage in its initial state.
    ///
    /// # Errors
    /// Through the future: `Full` when every place is held, `Closed`.
    pub fn spawn(&self) -> StagedOperation<StagedStream> {
        self.start(|runnable, _| runnable.spawn())
    }

    /// `spawn`, waited for on this thread.
    ///
    /// # Errors
    /// Those of `spawn`.
    pub fn spawn_blocking(&self) -> Result<StagedStream, StreamError> {
        self.spawn().wait()
    }

    /// A new stream that goes on from `snapshot`, which [`StagedStream::snapshot`] gave of the same stages.
    ///
    /// # Errors
    /// Through the future: `Snapshot` when it is no unaltered snapshot of these stages, `Full`, `Closed`.
    pub fn restore(&self, snapshot: &[u8]) -> StagedOperation<StagedStream> {
        match unpack(snapshot, self.stages.len()) {
            Ok(parts) => self.start(|runnable, at| runnable.restore(parts[at])),
            Err(error) => StagedOperation::refused(error.into()),
        }
    }

    /// `restore`, waited for on this thread.
    ///
    /// # Errors
    /// Those of `restore`.
    pub fn restore_blocking(&self, snapshot: &[u8]) -> Result<StagedStream, StreamError> {
        self.restore(snapshot).wait()
    }

    /// The runnable of a stage: its signature, its stats, its reaper. `None` for a name that no stage has.
    pub fn stage(&self, name: &str) -> Option<&Runnable> {
        self.inner.at(name).map(|at| &self.stages[at])
    }

    /// The stages' names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.inner.names.iter().map(String::as_str)
    }

    /// A stream of what `ask` asks of each stage.
    fn start(&self, ask: impl Fn(&Runnable, usize) -> Spawn) -> StagedOperation<StagedStream> {
        let place = match self.inner.places.take(1) {
            Ok(place) => place,
            Err(error) => return StagedOperation::refused(error),
        };
        let asked: Vec<_> = self.stages.iter().enumerate().map(|(at, stage)| ask(stage, at)).collect();
        let inner = Arc::clone(&self.inner);
        StagedOperation::new(async move { Ok(StagedStream::new(inner, all(asked).await?, place)) })
    }
}

impl fmt::Debug for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.names().zip(&self.stages)).finish()
    }
}

impl Inner {
    fn at(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|other| other == name)
    }
}

/// One client's sequence of calls to the stages of a model, and its place. Clones share it; the last one dropped gives
/// it back, which neither fails nor waits.
#[derive(Clone)]
pub struct StagedStream {
    handle: Arc<Handle>,
}

struct Handle {
    /// One a stage. Before the place, so that its lanes are free when it is.
    streams: Vec<Stream>,
    _place: Taken,
    inner: Arc<Inner>,
}

impl StagedStream {
    fn new(inner: Arc<Inner>, streams: Vec<Stream>, place: Taken) -> Self {
        Self { handle: Arc::new(Handle { streams, _place: place, inner }) }
    }

    /// The stream of a stage, to call it. A clone of it, or a call of it that is still awaited, keeps the stage's lane
    /// longer than this stream keeps its place. `None` for a name that no stage has.
    pub fn stage(&self, name: &str) -> Option<&Stream> {
        self.handle.inner.at(name).map(|at| &self.handle.streams[at])
    }

    /// Calls of all stages whose state was kept, see [`Stream::position`].
    pub fn position(&self) -> u64 {
        self.handle.streams.iter().map(Stream::position).sum()
    }

    /// Starts every stage over, see [`Stream::reset`].
    pub fn reset(&self) {
        self.handle.streams.iter().for_each(Stream::reset);
    }

    /// A new stream that goes on from here in every stage, see [`Stream::fork`].
    ///
    /// # Errors
    /// Through the future: `Full` when no place was free as this was called, `Closed`.
    pub fn fork(&self) -> StagedOperation<Self> {
        let forks = self.fork_many(1);
        StagedOperation::new(async move { Ok(forks.await?.pop().expect("one was asked for")) })
    }

    /// `fork`, waited for on this thread.
    ///
    /// # Errors
    /// Those of `fork`.
    pub fn fork_blocking(&self) -> Result<Self, StreamError> {
        self.fork().wait()
    }

    /// `count` forks that all go on from here, or none.
    ///
    /// # Errors
    /// Those of `fork`; `Full` when fewer than `count` places were free as this was called.
    pub fn fork_many(&self, count: u32) -> StagedOperation<Vec<Self>> {
        let mut places = match self.handle.inner.places.take(count) {
            Ok(places) => places,
            Err(error) => return StagedOperation::refused(error),
        };
        let (asked, inner) = (self.ask(|stream| stream.fork_many(count)), Arc::clone(&self.handle.inner));
        StagedOperation::new(async move {
            let mut of_stages: Vec<_> = all(asked).await?.into_iter().map(Vec::into_iter).collect();
            let forks = (0..count).map(|_| {
                let streams = of_stages.iter_mut().filter_map(Iterator::next).collect();
                Self::new(Arc::clone(&inner), streams, places.split())
            });
            Ok(forks.collect())
        })
    }

    /// `fork_many`, waited for on this thread.
    ///
    /// # Errors
    /// Those of `fork_many`.
    pub fn fork_many_blocking(&self, count: u32) -> Result<Vec<Self>, StreamError> {
        self.fork_many(count).wait()
    }

    /// Keeps the state of every stage, see [`Stream::checkpoint`].
    ///
    /// # Errors
    /// Through the future: `NoCheckpoint` when a stage has none left, and then none is kept; `Closed`.
    pub fn checkpoint(&self) -> StagedOperation<StagedCheckpoint> {
        let (asked, inner) = (self.ask(Stream::checkpoint), Arc::clone(&self.handle.inner));
        StagedOperation::new(async move { Ok(StagedCheckpoint { parts: all(asked).await?, inner }) })
    }

    /// `checkpoint`, waited for on this thread.
    ///
    /// # Errors
    /// Those of `checkpoint`.
    pub fn checkpoint_blocking(&self) -> Result<StagedCheckpoint, StreamError> {
        self.checkpoint().wait()
    }

    /// Goes back to `to` in every stage, see [`Stream::rollback`].
    ///
    /// # Errors
    /// Through the future: `Invalid` when the checkpoint is of another model, `Closed`.
    pub fn rollback(&self, to: &StagedCheckpoint) -> StagedOperation<()> {
        if !Arc::ptr_eq(&to.inner, &self.handle.inner) {
            let lane = self.handle.streams.first().map(Stream::lane).unwrap_or_default();
            return StagedOperation::refused(InputError::ForeignCheckpoint { lane }.into());
        }
        let pairs = self.handle.streams.iter().zip(&to.parts);
        let asked: Vec<_> = pairs.map(|(stream, part)| stream.rollback(part)).collect();
        StagedOperation::new(async move { all(asked).await.map(drop) })
    }

    /// `rollback`, waited for on this thread.
    ///
    /// # Errors
    /// Those of `rollback`.
    pub fn rollback_blocking(&self, to: &StagedCheckpoint) -> Result<(), StreamError> {
        self.rollback(to).wait()
    }

    /// The states and positions of every stage as bytes, see [`Stream::snapshot`]; [`Staged::restore`] makes a stream
    /// of them.
    ///
    /// # Errors
    /// Through the future: `Snapshot` when a stage gives none or all are too large, `Closed`.
    pub fn snapshot(&self) -> StagedOperation<Vec<u8>> {
        let asked = self.ask(Stream::snapshot);
        StagedOperation::new(async move { Ok(pack(&all(asked).await?)?) })
    }

    /// `snapshot`, waited for on this thread.
    ///
    /// # Errors
    /// Those of `snapshot`.
    pub fn snapshot_blocking(&self) -> Result<Vec<u8>, StreamError> {
        self.snapshot().wait()
    }

    fn ask<T>(&self, ask: impl Fn(&Stream) -> Operation<T>) -> Vec<Operation<T>> {
        self.handle.streams.iter().map(ask).collect()
    }
}

impl fmt::Debug for StagedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.handle.streams).finish()
    }
}

/// A state of every stage, kept to go back to, see [`Checkpoint`].
#[derive(Clone)]
pub struct StagedCheckpoint {
    parts: Vec<Checkpoint>,
    inner: Arc<Inner>,
}

impl fmt::Debug for StagedCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.parts).finish()
    }
}

/// The future of what was asked of every stage. Needs no particular executor; dropping it undoes what was not served.
#[must_use = "dropping an operation takes it out of the queue"]
pub struct StagedOperation<T>(Pin<Box<dyn Future<Output = Result<T, StreamError>> + Send>>);

impl<T: Send + 'static> StagedOperation<T> {
    fn new(future: impl Future<Output = Result<T, StreamError>> + Send + 'static) -> Self {
        Self(Box::pin(future))
    }

    fn refused(error: StreamError) -> Self {
        Self::new(std::future::ready(Err(error)))
    }

    fn wait(self) -> Result<T, StreamError> {
        block_on(self, CALLER, |_| false)
    }
}

impl<T> Future for StagedOperation<T> {
    type Output = Result<T, StreamError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

/// What all of `asked` give, or the first error. Each was queued when it was made, so none waits for another.
async fn all<T>(asked: Vec<impl Future<Output = Result<T, StreamError>>>) -> Result<Vec<T>, StreamError> {
    let mut given = Vec::with_capacity(asked.len());
    for one in asked {
        given.push(one.await?);
    }
    Ok(given)
}
