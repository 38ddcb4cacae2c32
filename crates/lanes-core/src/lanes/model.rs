//! What the worker asks of a model: room for rows and seats, a place to stack inputs, and one run over the rows.
//!
//! A model made of plans implements it once for every device (`planned`); another engine, or a test double that
//! fails on demand, implements it directly.
//!
//! ```text
//! one turn at a time   input_mut(port) --> run(seats) ------------------------------------> output(port)
//! several slots        slot_input_mut(slot, port) --> start(slot, seats) --Completion--> finish(slot) --> slot_output(slot, port)
//! ```

use crate::Signature;
use crate::device::{Completion, DeviceError, Outcome};
use std::fmt;

/// One stream's worth of every state: an index on axis 0 of the state buffers. Displays as `row3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowId(pub u32);

impl fmt::Display for RowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "row{}", self.0)
    }
}

/// The rows of one seat of a turn: never equal, and no two seats write one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeatRows {
    /// The row that holds the stream's state now.
    pub read: RowId,
    /// The row that will hold it once the turn has succeeded.
    pub write: RowId,
}

/// How much room a model prepares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Rows of every state. The last is the initial row: `prepare` writes it, and nothing else ever does.
    pub rows: u32,
    /// The most seats one turn has.
    pub max_seats: u32,
}

impl Capacity {
    /// The row every fresh lane points at.
    pub const fn initial_row(self) -> RowId {
        RowId(self.rows - 1)
    }
}

/// What tells a model from every other: equal ones declare the same states and compute the same from them.
pub type Identity = [u8; 32];

/// One seat that a turn refused because of its data; the other seats of the turn are good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The seat's position in the turn.
    pub seat: u32,
    /// What was found, where, and what would be accepted.
    pub reason: String,
}

/// A model that serves turns over rows.
///
/// A turn's answers depend on nothing but each seat's own inputs and the row it reads. A turn that fails may leave
/// anything in the rows it was to write and in the outputs; it leaves every other row as it was.
///
/// A model that runs one turn at a time implements what is required, and nothing else: the worker waits in `run`. One
/// with several slots also implements what is told of slots below, so that the worker stacks a turn while the one before
/// computes. A slot is one turn in flight, with staging and outputs of its own.
pub trait LanedModel: Send {
    /// What it asks for. Never changes.
    fn signature(&self) -> &Signature;

    /// Allocates rows and staging, and writes the initial row. Called once, before anything else below.
    fn prepare(&mut self, capacity: Capacity) -> Result<(), DeviceError>;

    /// Where input `port` is stacked: seat `s` at `s * Port::bytes()`, room for `max_seats`; one value when shared.
    fn input_mut(&mut self, port: usize) -> &mut [u8];

    /// Runs one turn over the stacked inputs of seats `0..seats.len()`. Refused seats are appended to `refused`.
    fn run(&mut self, seats: &[SeatRows], refused: &mut Vec<Refusal>) -> Result<(), DeviceError>;

    /// Output `port` of the last successful run, stacked like the inputs.
    fn output(&self, port: usize) -> &[u8];

    /// Seats that a turn of `seats` seats launches beyond them, for want of a plan of just that size.
    fn padded_seats(&self, seats: u32) -> u32 {
        let _ = seats;
        0
    }

    /// Bytes it holds on its device: weights, rows, scratch and staging.
    fn device_bytes(&self) -> u64;

    /// The most turns that it can have in flight.
    fn slots_max(&self) -> usize {
        1
    }

    /// [`prepare`](Self::prepare) for turns in slots `0..slots`, which is at most `slots_max`. Called instead of it.
    fn prepare_slots(&mut self, capacity: Capacity, slots: usize) -> Result<(), DeviceError> {
        let _ = slots;
        self.prepare(capacity)
    }

    /// [`input_mut`](Self::input_mut) of `slot`, which is not in flight.
    fn slot_input_mut(&mut self, slot: usize, port: usize) -> &mut [u8] {
        let _ = slot;
        self.input_mut(port)
    }

    /// Starts one turn over the inputs stacked in `slot`, which is not in flight, and returns without waiting for it:
    /// the slot is in flight until the completion ends. Turns run, and end, in the order they were started: one may read
    /// rows that turns before it write, and runs as well as it can when those have failed. An error is that of a turn
    /// that failed.
    fn start(&mut self, slot: usize, seats: &[SeatRows]) -> Result<Completion, DeviceError> {
        let _ = slot;
        let mut refused = Vec::new();
        self.run(seats, &mut refused)?;
        Ok(Completion::ready(Ok(Outcome { refused })))
    }

    /// Called once after the turn of `slot`, which had `seats` seats, has ended well: appends the seats it refused beyond
    /// those that its completion told. An error is that of a turn that failed.
    fn finish(&mut self, slot: usize, seats: usize, refused: &mut Vec<Refusal>) -> Result<(), DeviceError> {
        let _ = (slot, seats, refused);
        Ok(())
    }

    /// [`output`](Self::output) of the turn of `slot` that `finish` was called for last.
    fn slot_output(&self, slot: usize, port: usize) -> &[u8] {
        let _ = slot;
        self.output(port)
    }

    /// Which model this is, the same in every process and on every device: a snapshot carries it. With `read_row` and
    /// `write_row` it makes snapshots possible; all three are [`DeviceError::Unsupported`] unless implemented.
    fn identity(&self) -> Result<Identity, DeviceError> {
        Err(no_snapshots(self.signature(), "has no identity"))
    }

    /// Copies what state `state` has in `row`, [`StateSpec::bytes`](crate::StateSpec::bytes) long, as it is after
    /// every turn run so far.
    fn read_row(&self, state: usize, row: RowId, into: &mut [u8]) -> Result<(), DeviceError> {
        let _ = (state, row, into);
        Err(no_snapshots(self.signature(), "does not give its rows"))
    }

    /// Sets what state `state` has in `row`, which no turn in flight reads or writes and which is not the initial row.
    fn write_row(&mut self, state: usize, row: RowId, bytes: &[u8]) -> Result<(), DeviceError> {
        let _ = (state, row, bytes);
        Err(no_snapshots(self.signature(), "does not take rows"))
    }
}

fn no_snapshots(signature: &Signature, why: &str) -> DeviceError {
    DeviceError::Unsupported { what: format!("model {} {why}, so its streams have no snapshots", signature.name) }
}
