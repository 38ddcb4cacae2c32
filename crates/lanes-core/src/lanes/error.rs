//! What a caller of a stream can be told: one variant per reaction.

use super::snapshot::SnapshotError;
use super::table::LaneId;
use crate::DType;
use crate::device::DeviceError;
use std::sync::Arc;

/// Why a spawn or a call did not give what was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// Too few lanes are free. Drop a stream, or serve from another runnable.
    #[error("{asked} {} asked for, and {free} of {lanes} are free", if *asked == 1 { "lane was" } else { "lanes were" })]
    Full {
        /// How many were asked for.
        asked: u32,
        /// How many nobody holds.
        free: u32,
        /// How many lanes there are.
        lanes: u32,
    },
    /// Every checkpoint is held. Drop one, or build the runnable with more.
    #[error("all {checkpoints} checkpoints are held; the builder's `checkpoints` or LANES_CHECKPOINTS makes room")]
    NoCheckpoint {
        /// How many there are.
        checkpoints: u32,
    },
    /// The stream has no snapshot, or the snapshot was not restored. No lane has changed.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The queue is at its bound. Nothing was queued; call again later, or use a form that waits.
    #[error("busy: {depth} requests are queued, which is the bound")]
    Busy {
        /// Requests queued when this one was refused.
        depth: usize,
    },
    /// The call is wrong whatever the state. Nothing was queued; correct it.
    #[error(transparent)]
    Invalid(#[from] InputError),
    /// This call and one before it in the same turn brought different values of a shared input. The stream's state is
    /// as it was; call again, and the two will meet no more once they agree.
    #[error("shared input {input}: seat {seat} disagrees with seat {with_seat} of the same turn")]
    Disagrees {
        /// The shared input.
        input: String,
        /// The seat that this call was given, and lost.
        seat: u32,
        /// The earlier seat, which keeps its place.
        with_seat: u32,
    },
    /// The model refused this call because of its data. The stream's state is as it was; others were served.
    #[error("refused: {reason}")]
    Refused {
        /// What was found, where, and what would be accepted.
        reason: String,
    },
    /// The turn failed as a whole. The stream's state is as it was, and the call may be made again.
    #[error("the turn failed")]
    Failed(#[source] Arc<DeviceError>),
    /// The lane has been given to another stream since. Spawn a new stream.
    #[error("stale: {lane} belongs to another stream now")]
    Stale {
        /// The lane that was meant.
        lane: LaneId,
    },
    /// No call will ever be served again. Build another runnable.
    #[error("closed")]
    Closed(#[source] Arc<Closed>),
}

/// Why a runnable serves no more.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Closed {
    /// The last `Runnable` was dropped.
    #[error("the runnable was dropped")]
    Dropped,
    /// The model panicked in a turn; what it said.
    #[error("the model panicked: {0}")]
    Panicked(String),
    /// The device is gone.
    #[error("the device failed for good")]
    Lost(#[source] Arc<DeviceError>),
}

/// What is wrong with the inputs, or the output buffers, of a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// Too few or too many values.
    #[error("{found} {what} were given, and the model has {expected}: {names}")]
    Count {
        /// `inputs` or `outputs`.
        what: &'static str,
        /// How many were given.
        found: usize,
        /// How many the model has.
        expected: usize,
        /// Their names, in order.
        names: String,
    },
    /// An element type that is not the model's.
    #[error("input {name}: found {found}, expected {expected}")]
    DType {
        /// The input.
        name: String,
        /// What was given.
        found: DType,
        /// What the model takes.
        expected: DType,
    },
    /// Another number of axes.
    #[error(
        "input {name}: found rank {} (shape {found:?}), expected rank {} (shape {expected:?})",
        found.len(), expected.len()
    )]
    Rank {
        /// The input.
        name: String,
        /// The shape given.
        found: Vec<usize>,
        /// One seat's shape, without the lane axis.
        expected: Vec<usize>,
    },
    /// The right rank and another extent.
    #[error("input {name}: found shape {found:?}, expected {expected:?}")]
    Shape {
        /// The input.
        name: String,
        /// The shape given.
        found: Vec<usize>,
        /// One seat's shape, without the lane axis.
        expected: Vec<usize>,
    },
    /// A reaper was given a stream of another runnable than its own.
    #[error("the stream on {lane} belongs to another runnable than the reaper")]
    Foreign {
        /// Its lane there.
        lane: LaneId,
    },
    /// A stream was told to go back to a checkpoint of another runnable.
    #[error("the checkpoint belongs to another runnable than the stream on {lane}")]
    ForeignCheckpoint {
        /// The stream's lane.
        lane: LaneId,
    },
    /// The bytes do not fill the shape, or an output buffer has another size than its output.
    #[error("{name}: found {found} bytes, expected {expected}")]
    Bytes {
        /// The input or output.
        name: String,
        /// Bytes given.
        found: usize,
        /// Bytes that the shape takes.
        expected: usize,
    },
}

/// Why a runnable was not built. Nothing is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A knob's value is out of its range.
    #[error("{knob}: found {found}, expected {expected}")]
    Knob {
        /// The builder's method, or the environment variable that stands in for it.
        knob: &'static str,
        /// What was given.
        found: String,
        /// What would be accepted.
        expected: &'static str,
    },
    /// More turns were to be in flight than the model has slots.
    #[error("{found} slots were asked for, and model {model} has at most {most}")]
    Slots {
        /// The model.
        model: String,
        /// Slots asked for, by the builder's `slots` or by `LANES_SLOTS`.
        found: usize,
        /// Slots it has.
        most: usize,
    },
    /// The model did not prepare for this many lanes and seats.
    #[error(
        "the model did not prepare for {lanes} {} and {max_seats} {}",
        if *lanes == 1 { "lane" } else { "lanes" }, if *max_seats == 1 { "seat" } else { "seats" }
    )]
    Prepare {
        /// Lanes asked for.
        lanes: u32,
        /// Seats asked for.
        max_seats: u32,
        /// What it said.
        #[source]
        source: DeviceError,
    },
    /// The model panicked while it was prepared; what it said.
    #[error("the model panicked: {0}")]
    Panicked(String),
    /// The model offers less room for an input than it declares.
    #[error("model {model}: input {input} has {found} bytes of staging, and {expected} are needed")]
    Staging {
        /// The model.
        model: String,
        /// The input.
        input: String,
        /// Bytes offered.
        found: usize,
        /// Bytes of all seats.
        expected: usize,
    },
    /// The worker thread did not start.
    #[error("the worker thread did not start")]
    Thread(#[source] std::io::Error),
}
