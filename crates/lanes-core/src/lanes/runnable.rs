//! A model being served: built once, spawned from many times.

use super::error::{BuildError, StreamError};
use super::job::ModelInfo;
use super::knobs::{Asked, Knobs};
use super::model::LanedModel;
use super::reaper::Reaper;
use super::stats::Stats;
use super::stream::{Spawn, Stream};
use super::turn::{Engine, said};
use super::value::Layout;
use super::worker::{Owner, Shared};
use crate::{Scope, Signature};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Sets the knobs of a runnable. Each has an environment variable as a default, which a call here overrides.
pub struct LanesBuilder {
    model: Box<dyn LanedModel>,
    asked: Asked,
}

impl LanesBuilder {
    /// Will serve `model`, which has not been prepared yet.
    pub fn new(model: impl LanedModel + 'static) -> Self {
        Self { model: Box::new(model), asked: Asked::default() }
    }

    /// Streams at once: 1 to 2²⁴; `LANES_MAX_LANES`, else 64. Each costs one row of every state.
    #[must_use]
    pub fn lanes(mut self, lanes: u32) -> Self {
        self.asked.lanes = Some(lanes);
        self
    }

    /// Seats of a turn at most: 1 to 2²⁴, and no more than there are lanes; `LANES_MAX_SEATS`, else as many as lanes.
    #[must_use]
    pub fn max_seats(mut self, seats: u32) -> Self {
        self.asked.max_seats = Some(seats);
        self
    }

    /// How long the oldest call waits for others to share its turn: at most a minute; `LANES_LINGER_US`, else not at
    /// all. The wait ends early when no seat is left, or no stream that could take one; calls that a full turn left
    /// over do not wait again, and spawns and releases never do.
    #[must_use]
    pub fn linger(mut self, linger: Duration) -> Self {
        self.asked.linger = Some(linger);
        self
    }

    /// Requests queued at most: 1 to 2²⁴; `LANES_QUEUE`, else four a lane. Further calls wait for room, or are `Busy`.
    #[must_use]
    pub fn queue(mut self, requests: usize) -> Self {
        self.asked.queue = Some(requests);
        self
    }

    /// Turns in flight at most: 1 to 64, and no more than the model has; `LANES_SLOTS`, else 1. With two, a turn is
    /// stacked while the one before computes, and a stream's next call may be seated before its last has ended. Each
    /// costs `max_seats` rows of every state, and staging. A turn starts as soon as a slot is free: where many streams
    /// call one at a time, `linger` keeps turns from being small.
    #[must_use]
    pub fn slots(mut self, slots: usize) -> Self {
        self.asked.slots = Some(slots);
        self
    }

    /// Checkpoints held at once: 0 to 2²⁴; `LANES_CHECKPOINTS`, else none. Each costs one row of every state.
    #[must_use]
    pub fn checkpoints(mut self, checkpoints: u32) -> Self {
        self.asked.checkpoints = Some(checkpoints);
        self
    }

    /// Prepares the model, binds the metrics, and starts the worker.
    ///
    /// # Errors
    /// A knob out of range (by the builder's or the variable's name), more slots than the model has, a model that does
    /// not prepare or that panics, no thread.
    pub fn build(self) -> Result<Runnable, BuildError> {
        let knobs = Knobs::resolve(self.asked, |name| {
            std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
        })?;
        let mut model = self.model;
        // A panic of the model is contained here as it is in a turn; so is one of its drop.
        let ready = match catch_unwind(AssertUnwindSafe(|| ready(&mut *model, knobs))) {
            Ok(ready) => ready,
            Err(panic) => {
                let _ = catch_unwind(AssertUnwindSafe(|| drop(model)));
                return Err(BuildError::Panicked(said(&*panic)));
            }
        };
        let (signature, device_bytes) = ready?;
        let info = Arc::new(ModelInfo { layout: Layout::new(&signature), signature });
        let engine = Engine::new(model, Arc::clone(&info), knobs);
        let owner = Owner::start(Arc::new(Shared::new(engine, info, knobs))).map_err(BuildError::Thread)?;
        Ok(Runnable { owner: Arc::new(owner), device_bytes })
    }
}

/// Prepares `model`, and asks it all that a runnable has to know: what it declares, and the bytes it holds.
fn ready(model: &mut dyn LanedModel, knobs: Knobs) -> Result<(Signature, u64), BuildError> {
    let Knobs { lanes, max_seats, slots, .. } = knobs;
    let most = model.slots_max();
    if slots > most {
        return Err(BuildError::Slots { model: model.signature().name.clone(), found: slots, most });
    }
    let prepared = model.prepare_slots(knobs.capacity(), slots);
    prepared.map_err(|source| BuildError::Prepare { lanes, max_seats, source })?;
    let signature = model.signature().clone();
    for slot in 0..slots {
        check_staging(model, slot, &signature, max_seats)?;
    }
    let device_bytes = model.device_bytes();
    Ok((signature, device_bytes))
}

fn check_staging(
    model: &mut dyn LanedModel,
    slot: usize,
    signature: &Signature,
    max_seats: u32,
) -> Result<(), BuildError> {
    for (at, port) in signature.inputs.iter().enumerate() {
        let values = if port.scope == Scope::Seat { max_seats as usize } else { 1 };
        let (found, expected) = (model.slot_input_mut(slot, at).len(), port.bytes() * values);
        if found < expected {
            let (model, input) = (signature.name.clone(), port.name.clone());
            return Err(BuildError::Staging { model, input, found, expected });
        }
    }
    Ok(())
}

impl fmt::Debug for LanesBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LanesBuilder").field("model", &self.model.signature().name).field("asked", &self.asked).finish()
    }
}

/// A resident model with a worker that serves its streams. Clones are the same runnable.
///
/// Dropping the last clone ends it: the turns in flight commit, what is queued is answered `Closed`, the worker is
/// joined and the model dropped before the drop returns. Streams that are left answer `Closed` from then on.
#[derive(Clone)]
pub struct Runnable {
    owner: Arc<Owner>,
    device_bytes: u64,
}

impl Runnable {
    /// A new stream, on the lowest free lane, in the initial state. Asked when this is called, before the first poll.
    ///
    /// # Errors
    /// Through the future: `Full` when every lane is held, `Closed`.
    pub fn spawn(&self) -> Spawn {
        Spawn::new(&self.owner.shared)
    }

    /// `spawn`, waited for on this thread.
    ///
    /// # Errors
    /// Those of `spawn`.
    pub fn spawn_blocking(&self) -> Result<Stream, StreamError> {
        self.spawn().wait()
    }

    /// A new stream on the lowest free lane that goes on from `snapshot`, which [`Stream::snapshot`] gave in this or
    /// another process, on this or another device. The snapshot is checked before this returns, and need not be kept.
    ///
    /// # Errors
    /// Through the future: `Snapshot` when it is no unaltered snapshot of this model, or the model takes none; `Full`;
    /// `Closed`.
    pub fn restore(&self, snapshot: &[u8]) -> Spawn {
        Spawn::restore(&self.owner.shared, snapshot)
    }

    /// `restore`, waited for on this thread.
    ///
    /// # Errors
    /// Those of `restore`.
    pub fn restore_blocking(&self, snapshot: &[u8]) -> Result<Stream, StreamError> {
        self.restore(snapshot).wait()
    }

    /// A reaper, with which one thread drives many streams.
    pub fn reaper(&self) -> Reaper {
        Reaper::new(&self.owner.shared)
    }

    /// What the model declares.
    pub fn signature(&self) -> &Signature {
        &self.owner.shared.info.signature
    }

    /// Streams at once.
    pub fn lanes(&self) -> u32 {
        self.owner.shared.knobs.lanes
    }

    /// Seats of a turn at most.
    pub fn max_seats(&self) -> u32 {
        self.owner.shared.knobs.max_seats
    }

    /// Turns in flight at most.
    pub fn slots(&self) -> usize {
        self.owner.shared.knobs.slots
    }

    /// Bytes the model holds on its device: weights, rows, scratch and staging.
    pub fn device_bytes(&self) -> u64 {
        self.device_bytes
    }

    /// What it has done so far. Needs no recorder.
    pub fn stats(&self) -> Stats {
        self.owner.shared.stats()
    }
}

impl fmt::Debug for Runnable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runnable").field("model", &self.signature().name).field("stats", &self.stats()).finish()
    }
}
