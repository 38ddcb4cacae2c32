//! What a device does, said without when.
//!
//! - What is passed in proves what the work relies on, and is made in this module alone: a [`Stretch`] lies in its memory and
//!   nobody else touches it, a [`Turn`] has its plan's buffers and its slot to itself.
//! - Not here: order, queues, threads (`flight`).

use crate::device::DeviceError;
use crate::lanes::SeatRows;

/// The work of one device. Called from any thread.
pub trait Engine: Send + Sync + Sized + 'static {
    /// What its threads are called after, as `--backend` spells it.
    const NAME: &'static str;
    /// Whether turns go on after [`begin`](Self::begin), in the order begun. Such a device may be lost meanwhile.
    const WATCHED: bool;
    /// Memory of one buffer. Having it gives no access to its bytes.
    type Memory: Send + Sync;
    /// A plan made ready.
    type Plan: Send + Sync;
    /// What one slot owns: where its inputs and outputs lie, and what else a turn of it needs.
    type Staging: Send + Sync;
    /// What tells when a turn that was begun has ended.
    type Mark: Send;

    /// How many bytes there are.
    fn bytes(memory: &Self::Memory) -> usize;

    /// The cause that lost the device, if it is lost.
    fn health(&self) -> Result<(), DeviceError>;

    /// Runs a turn and gives `None`, or begins it on a device that is [watched](Self::WATCHED).
    fn begin(&self, turn: &Turn<'_, Self>) -> Result<Option<Self::Mark>, DeviceError>;

    /// Waits for the end of a turn that was begun, and tells how it ended.
    fn end(&self, turn: &Turn<'_, Self>, mark: Self::Mark) -> Result<(), DeviceError>;

    /// Copies a stretch over another of the same length, after the turns begun before, to its end.
    fn copy(&self, to: Stretch<'_, Self>, from: Stretch<'_, Self>) -> Result<(), DeviceError>;

    /// Repeats a byte, after the turns begun before, to its end.
    fn fill(&self, to: Stretch<'_, Self>, byte: u8) -> Result<(), DeviceError>;

    /// Copies `bytes`, which are as many as the stretch has, into it.
    fn write(&self, to: Stretch<'_, Self>, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Copies the stretch into `into`, which is as long.
    fn read(&self, from: Stretch<'_, Self>, into: &mut [u8]) -> Result<(), DeviceError>;

    /// The bytes themselves, of memory that was not placed as `Device`.
    fn map<'a>(&self, stretch: Stretch<'a, Self>) -> &'a mut [u8];

    /// Where an idle slot's input `port` is stacked, which nobody else looks at; `None` if the plan lacks the port.
    fn input<'a>(slot: Idle<'a, Self>, port: usize) -> Option<&'a mut [u8]>;

    /// What an idle slot's output `port` holds; others may look at it too. `None` if the plan lacks the port.
    fn output<'a>(slot: Idle<'a, Self>, port: usize) -> Option<&'a [u8]>;
}

/// Bytes of one memory. Nobody but whoever holds it touches them, and those of two that live at once lie apart.
pub struct Stretch<'a, E: Engine> {
    pub(super) memory: &'a E::Memory,
    pub(super) start: usize,
    pub(super) len: usize,
}

impl<'a, E: Engine> Stretch<'a, E> {
    /// The memory it lies in.
    pub fn memory(&self) -> &'a E::Memory {
        self.memory
    }

    /// Its first byte's number. `start() + len()` is at most [`Engine::bytes`].
    pub fn start(&self) -> usize {
        self.start
    }

    /// How many bytes.
    #[allow(clippy::len_without_is_empty, reason = "a number of bytes to work on, not a collection")]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// A turn whose time has come. Nobody else touches its slot and, but for turns begun before on a device that is watched,
/// the buffers that its plan was bound to. Seats were checked against the plan's capacity, rows too if it has states.
pub struct Turn<'a, E: Engine> {
    pub(super) plan: &'a E::Plan,
    pub(super) staging: &'a E::Staging,
    pub(super) seats: &'a [SeatRows],
}

impl<'a, E: Engine> Turn<'a, E> {
    /// What is run.
    pub fn plan(&self) -> &'a E::Plan {
        self.plan
    }

    /// The slot's.
    pub fn staging(&self) -> &'a E::Staging {
        self.staging
    }

    /// In seat order; at least one.
    pub fn seats(&self) -> &'a [SeatRows] {
        self.seats
    }
}

/// A slot that no turn touches.
pub struct Idle<'a, E: Engine>(pub(super) &'a E::Staging);

impl<'a, E: Engine> Idle<'a, E> {
    /// What it owns.
    pub fn staging(&self) -> &'a E::Staging {
        self.0
    }
}
