//! Handles to what a device holds. Each owns what it touches, so nothing submitted can outlive its memory.
//!
//! A backend puts its own object behind a handle and gets it back by type; a handle of another backend is an
//! `Option::None` there, never a confusion.

use super::{DeviceError, MemoryUse, Placement, RowOp};
use crate::lanes::{Capacity, RowId};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// What a backend keeps behind a [`Buffer`].
pub trait BufferObject: Any + Send + Sync {
    /// Its size.
    fn bytes(&self) -> u64;
    /// Where it lies.
    fn placement(&self) -> Placement;
}

/// Memory of one device. Clones share it; the last one dropped gives it back.
#[derive(Clone)]
pub struct Buffer(Arc<dyn BufferObject>);

impl Buffer {
    /// For backends: a handle to `object`.
    pub fn new(object: Arc<dyn BufferObject>) -> Self {
        Self(object)
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    /// Where it lies.
    pub fn placement(&self) -> Placement {
        self.0.placement()
    }

    /// Whether the two are handles to one buffer.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// For backends: the object, if it is of this type.
    pub fn object<T: BufferObject>(&self) -> Option<Arc<T>> {
        let any: Arc<dyn Any + Send + Sync> = Arc::<dyn BufferObject>::clone(&self.0);
        any.downcast().ok()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes, {:?})", self.bytes(), self.placement())
    }
}

/// The rows of one state in a buffer: row `r` at `r * row_bytes`. The last is the initial row.
#[derive(Clone, Debug)]
pub struct StateRows {
    buffer: Buffer,
    row_bytes: usize,
    rows: u32,
}

impl StateRows {
    /// `rows` rows of `row_bytes`, or [`DeviceError::Invalid`] when `buffer` is not exactly that long.
    pub fn new(buffer: Buffer, row_bytes: usize, rows: u32) -> Result<Self, DeviceError> {
        let need = u64::try_from(row_bytes).ok().and_then(|bytes| bytes.checked_mul(rows.into()));
        if rows == 0 || need != Some(buffer.bytes()) {
            let what = format!("{rows} rows of {row_bytes} bytes in a buffer of {} bytes", buffer.bytes());
            return Err(DeviceError::Invalid { what });
        }
        Ok(Self { buffer, row_bytes, rows })
    }

    /// The memory.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// How many rows, the initial row among them.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// The row that holds the initial value.
    pub fn initial_row(&self) -> RowId {
        RowId(self.rows - 1)
    }

    /// For backends: that `op` names rows there are, and does not write the initial row.
    pub fn check(&self, op: RowOp) -> Result<(), DeviceError> {
        let (read, written) = match op {
            RowOp::Copy { from, to } => (from, to),
            RowOp::Fill { row, .. } | RowOp::Reset { row } => (self.initial_row(), row),
        };
        if read.0 < self.rows && written < self.initial_row() {
            return Ok(());
        }
        let what = format!("{op:?} on {} rows, the last of which is never written", self.rows);
        Err(DeviceError::Invalid { what })
    }
}

/// What a backend keeps behind an [`Executable`].
pub trait ExecutableObject: Any + Send + Sync {
    /// The room it was prepared for.
    fn capacity(&self) -> Capacity;
    /// Bytes it holds on the device, without the states, which it shares.
    fn memory(&self) -> MemoryUse;
}

/// A plan prepared on one device. Clones share it.
#[derive(Clone)]
pub struct Executable(Arc<dyn ExecutableObject>);

impl Executable {
    /// For backends: a handle to `object`.
    pub fn new(object: Arc<dyn ExecutableObject>) -> Self {
        Self(object)
    }

    /// The room it was prepared for.
    pub fn capacity(&self) -> Capacity {
        self.0.capacity()
    }

    /// Bytes it holds on the device, without the states, which it shares.
    pub fn memory(&self) -> MemoryUse {
        self.0.memory()
    }

    /// For backends: the object, if it is of this type.
    pub fn object<T: ExecutableObject>(&self) -> Option<Arc<T>> {
        let any: Arc<dyn Any + Send + Sync> = Arc::<dyn ExecutableObject>::clone(&self.0);
        any.downcast().ok()
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Executable({:?})", self.capacity())
    }
}

/// What a backend keeps behind a [`Slot`].
pub trait SlotObject: Any + Send {
    /// Where input `port` is stacked, or [`DeviceError::Busy`] while the slot is in flight.
    fn input_mut(&mut self, port: usize) -> Result<&mut [u8], DeviceError>;
    /// What the last turn left in output `port`, or [`DeviceError::Busy`] while the slot is in flight.
    fn output(&self, port: usize) -> Result<&[u8], DeviceError>;
}

/// One in-flight instance of an executable's inputs, outputs and scratch, on lease. Not `Clone`: whoever holds it is
/// alone with its memory. Dropping it gives it back, once its last turn has ended.
pub struct Slot(Box<dyn SlotObject>);

impl Slot {
    /// For backends: a handle to `object`.
    pub fn new(object: Box<dyn SlotObject>) -> Self {
        Self(object)
    }

    /// Where input `port` is stacked: seat `s` at `s * bytes`, room for `max_seats` (one value when shared).
    /// [`DeviceError::Busy`] while the slot is in flight, [`DeviceError::Invalid`] for a port that the plan lacks.
    pub fn input_mut(&mut self, port: usize) -> Result<&mut [u8], DeviceError> {
        self.0.input_mut(port)
    }

    /// Output `port` of the slot's last turn, stacked like the inputs, with the same errors.
    pub fn output(&self, port: usize) -> Result<&[u8], DeviceError> {
        self.0.output(port)
    }

    /// For backends: the object, if it is of this type.
    pub fn object_mut<T: SlotObject>(&mut self) -> Option<&mut T> {
        let any: &mut dyn Any = self.0.as_mut();
        any.downcast_mut()
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slot")
    }
}
