//! One GPU as a device: a context, a budget, a thread for what is queued.

use crate::error::{foreign, too_large};
use crate::flight::Flight;
use crate::image::{Modules, Takes, ptx_version};
use crate::memory::{CudaBuffer, Move};
use crate::moves::Movers;
use crate::plan::{CudaExecutable, prepare};
use crate::slot::CudaSlot;
use crate::sys::{self, Context, DeviceFacts, Driver};
use crate::weights::Weights;
use lanes_core::device::{
    Budget, Buffer, Capabilities, Completion, Device, DeviceError, Executable, MemoryReport, Placement, PrepareOptions,
    Purpose, RowOp, Slot, StateRows, TurnRows, Turnstile,
};
use lanes_core::lanes::RowId;
use lanes_core::plan::Checked;
use loom_compiler::ptx::Sm;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tells the handles of one open device from those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceId(u64);

/// How a GPU is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CudaOptions {
    /// The most bytes it may hold; `None` is no limit.
    pub budget: Option<u64>,
}

/// The most slots of one executable.
const SLOTS_MAX: usize = 64;

/// A GPU. Its thread ends when it is dropped; what is queued then ends as [`DeviceError::Cancelled`].
pub struct CudaDevice {
    id: DeviceId,
    ordinal: usize,
    options: CudaOptions,
    capabilities: Capabilities,
    takes: Takes,
    budget: Budget,
    flight: Arc<Flight>,
    weights: Weights,
    modules: Modules,
    movers: Movers,
    context: Arc<Context>,
}

/// What every GPU of this machine is and can do, by ordinal, without opening one.
///
/// # Errors
/// [`DeviceError::Unsupported`] with why there is none: no driver, one that is too old or lacks a symbol, no GPU.
pub fn devices() -> Result<Vec<Capabilities>, DeviceError> {
    let driver = sys::driver()?;
    (0..driver.devices()?).map(|ordinal| Ok(capabilities(driver, &driver.facts(ordinal)?))).collect()
}

fn capabilities(driver: &Driver, facts: &DeviceFacts) -> Capabilities {
    Capabilities {
        backend: "cuda",
        name: facts.name.clone(),
        target: format!("cuda:sm_{}", facts.architecture),
        driver: format!("CUDA {}", sys::version(driver.version)),
        units: facts.multiprocessors,
        memory_bytes: Some(facts.memory_bytes),
        buffer_bytes_max: facts.memory_bytes,
        slots_max: SLOTS_MAX,
        unified: false,
        grid_barrier: false,
        sums: crate::contract::SUMS,
        atomics_64: true,
    }
}

impl CudaDevice {
    /// Opens GPU `ordinal`.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] as [`devices`], and for a GPU older than `sm_75`; [`DeviceError::Invalid`] for an ordinal
    /// past the last; [`DeviceError::Lost`] for a GPU that this process has lost already.
    pub fn open(ordinal: usize, options: CudaOptions) -> Result<Self, DeviceError> {
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let driver = sys::driver()?;
        let facts = driver.facts(ordinal)?;
        if facts.architecture < Sm::LEAST.architecture {
            let (name, found) = (&facts.name, facts.architecture);
            let what = format!("{name} is sm_{found}, and {} or newer is needed", Sm::LEAST);
            return Err(DeviceError::Unsupported { what });
        }
        let context = Context::open(driver, ordinal)?;
        let takes = Takes {
            target: Sm::new(facts.architecture),
            version: ptx_version(driver.version),
            shared_bytes_max: facts.shared_bytes_max,
        };
        let modules = Modules::default();
        let movers = Movers::load(&context, &modules)?;
        let id = DeviceId(OPENED.fetch_add(1, Ordering::Relaxed));
        Ok(Self {
            id,
            ordinal,
            options,
            capabilities: capabilities(driver, &facts),
            takes,
            budget: Budget::new(options.budget),
            flight: Arc::new(Flight::new(Arc::clone(&context))),
            weights: Weights::default(),
            modules,
            movers,
            context,
        })
    }

    pub(crate) fn id(&self) -> DeviceId {
        self.id
    }

    pub(crate) fn takes(&self) -> Takes {
        self.takes
    }

    pub(crate) fn weights(&self) -> &Weights {
        &self.weights
    }

    pub(crate) fn modules(&self) -> &Modules {
        &self.modules
    }

    pub(crate) fn movers(&self) -> &Movers {
        &self.movers
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    fn own(&self, buffer: &Buffer) -> Result<Arc<CudaBuffer>, DeviceError> {
        buffer.object::<CudaBuffer>().filter(|buffer| buffer.device == self.id).ok_or_else(|| foreign("buffer"))
    }
}

impl Device for CudaDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn allocate(&self, what: &str, purpose: Purpose, placement: Placement, bytes: u64) -> Result<Buffer, DeviceError> {
        let len = usize::try_from(bytes).ok().filter(|&len| len <= isize::MAX as usize);
        let len = len.ok_or_else(|| too_large(what.to_string(), bytes))?;
        let charge = self.budget.charge(purpose, what, bytes)?;
        let memory = self.context.allocate(what, len, placement != Placement::Device)?;
        let turnstile = Turnstile::default();
        Ok(Buffer::new(Arc::new(CudaBuffer { memory, turnstile, device: self.id, placement, _charge: charge })))
    }

    fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let buffer = self.own(buffer)?;
        let start = buffer.range(offset, bytes.len())?;
        self.flight.pass(&buffer).write(&self.context, start, bytes)
    }

    fn read(&self, buffer: &Buffer, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let buffer = self.own(buffer)?;
        let start = buffer.range(offset, into.len())?;
        self.flight.pass(&buffer).read(&self.context, start, into)
    }

    fn copy(
        &self,
        from: (&Buffer, u64),
        to: (&Buffer, u64),
        bytes: u64,
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        let len = usize::try_from(bytes).map_err(|_| too_large("a copy".into(), bytes))?;
        let motion = Move::copy((self.own(from.0)?, from.1), (self.own(to.0)?, to.1), len)?;
        self.context.health()?;
        self.flight.motion(motion, after)
    }

    fn map(
        &self,
        buffer: &Buffer,
        offset: u64,
        bytes: usize,
        visit: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        let own = self.own(buffer)?;
        if buffer.placement() == Placement::Device {
            let what = "the host sees no memory placed as Device; Upload, Readback and Shared are mapped".to_string();
            return Err(DeviceError::Invalid { what });
        }
        let start = own.range(offset, bytes)?;
        let mut passage = self.flight.pass(&own);
        self.context.health()?;
        visit(passage.bytes(start, bytes));
        Ok(())
    }

    fn rows(&self, state: &StateRows, op: RowOp) -> Result<Completion, DeviceError> {
        state.check(op)?;
        let (buffer, len) = (self.own(state.buffer())?, state.row_bytes());
        let at = |row: RowId| (Arc::clone(&buffer), u64::from(row.0) * len as u64);
        let motion = match op {
            // A row over itself stays, in its turn.
            RowOp::Copy { from, to } => Move::copy(at(from), at(to), if from == to { 0 } else { len })?,
            RowOp::Fill { row, byte } => Move::fill(at(row), byte, len)?,
            RowOp::Reset { row } => Move::copy(at(state.initial_row()), at(row), len)?,
        };
        self.context.health()?;
        self.flight.motion(motion, &[])
    }

    fn prepare(&self, plan: &Checked<'_>, options: &PrepareOptions<'_>) -> Result<Executable, DeviceError> {
        Ok(Executable::new(Arc::new(prepare(self, plan, options)?)))
    }

    fn lease(&self, executable: &Executable) -> Result<Slot, DeviceError> {
        let executable = executable.object::<CudaExecutable>().filter(|executable| executable.device == self.id);
        Ok(Slot::new(Box::new(CudaSlot::lease(executable.ok_or_else(|| foreign("executable"))?)?)))
    }

    fn submit(
        &self,
        executable: &Executable,
        slot: &mut Slot,
        turn: TurnRows<'_>,
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        let asked = executable.object::<CudaExecutable>().filter(|executable| executable.device == self.id);
        let asked = asked.ok_or_else(|| foreign("executable"))?;
        let slot = slot.object_mut::<CudaSlot>().ok_or_else(|| foreign("slot"))?;
        if !Arc::ptr_eq(&slot.executable, &asked) {
            return Err(DeviceError::Invalid { what: "this slot is of another executable".into() });
        }
        if turn.capacity() != asked.capacity || (asked.has_states && !turn.rows_checked()) {
            let what = format!("a turn checked for {:?}, on a plan of {:?}", turn.capacity(), asked.capacity);
            return Err(DeviceError::Invalid { what });
        }
        slot.idle()?;
        self.context.health()?;
        self.flight.turn(slot, turn, after)
    }

    fn memory(&self) -> MemoryReport {
        MemoryReport { used: self.budget.used(), budget: self.budget.limit(), total: self.capabilities.memory_bytes }
    }

    fn health(&self) -> Result<(), DeviceError> {
        self.context.health()
    }

    fn reopen(&self) -> Result<Arc<dyn Device>, DeviceError> {
        Ok(Arc::new(Self::open(self.ordinal, self.options)?))
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        self.flight.close();
    }
}
