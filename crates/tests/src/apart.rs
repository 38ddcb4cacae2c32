//! A device whose memory is not the host's, around one whose memory may be; and a list of what was placed where.
//!
//! - It only says so: the bytes are the inner device's. But memory placed as `Device` is mapped by nobody.

use lanes_core::device::{
    Buffer, Capabilities, Completion, Device, DeviceError, Executable, MemoryReport, Placement, PrepareOptions,
    Purpose, RowOp, Slot, StateRows, TurnRows, TurnTimes,
};
use lanes_core::plan::Checked;
use std::sync::{Arc, Mutex, PoisonError};

/// The device.
pub struct Apart {
    inner: Arc<dyn Device>,
    capabilities: Capabilities,
    placed: Mutex<Vec<(String, Placement)>>,
}

impl Apart {
    /// Around `inner`, with one memory for both as `unified` says.
    pub fn new(inner: Arc<dyn Device>, unified: bool) -> Self {
        let capabilities = Capabilities { unified, ..inner.capabilities().clone() };
        Self { inner, capabilities, placed: Mutex::default() }
    }

    /// What was allocated so far, by label.
    pub fn placed(&self) -> Vec<(String, Placement)> {
        self.placed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Device for Apart {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn allocate(&self, what: &str, purpose: Purpose, placement: Placement, bytes: u64) -> Result<Buffer, DeviceError> {
        self.placed.lock().unwrap_or_else(PoisonError::into_inner).push((what.to_string(), placement));
        self.inner.allocate(what, purpose, placement, bytes)
    }

    fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.write(buffer, offset, bytes)
    }

    fn read(&self, buffer: &Buffer, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(buffer, offset, into)
    }

    fn copy(
        &self,
        from: (&Buffer, u64),
        to: (&Buffer, u64),
        bytes: u64,
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        self.inner.copy(from, to, bytes, after)
    }

    fn map(
        &self,
        buffer: &Buffer,
        offset: u64,
        bytes: usize,
        visit: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        self.inner.map(buffer, offset, bytes, visit)
    }

    fn rows(&self, state: &StateRows, op: RowOp) -> Result<Completion, DeviceError> {
        self.inner.rows(state, op)
    }

    fn prepare(&self, plan: &Checked<'_>, options: &PrepareOptions<'_>) -> Result<Executable, DeviceError> {
        self.inner.prepare(plan, options)
    }

    fn lease(&self, executable: &Executable) -> Result<Slot, DeviceError> {
        self.inner.lease(executable)
    }

    fn submit(
        &self,
        executable: &Executable,
        slot: &mut Slot,
        turn: TurnRows<'_>,
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        self.inner.submit(executable, slot, turn, after)
    }

    fn measure(
        &self,
        plan: &Checked<'_>,
        options: &PrepareOptions<'_>,
        inputs: &[&[u8]],
        turn: TurnRows<'_>,
        samples: usize,
    ) -> Result<Option<TurnTimes>, DeviceError> {
        self.inner.measure(plan, options, inputs, turn, samples)
    }

    fn memory(&self) -> MemoryReport {
        self.inner.memory()
    }

    fn health(&self) -> Result<(), DeviceError> {
        self.inner.health()
    }

    fn reopen(&self) -> Result<Arc<dyn Device>, DeviceError> {
        Ok(Arc::new(Self::new(self.inner.reopen()?, self.capabilities.unified)))
    }
}
