//! One CPU as a device: some threads, some memory, a budget.

use crate::error::{foreign, no_threads, too_large};
use crate::flight::Flight;
use crate::isa::Isa;
use crate::memory::{Bytes, CpuBuffer, Move};
use crate::plan::{CpuExecutable, prepare};
use crate::pool::Pool;
use crate::slot::CpuSlot;
use crate::weights::Weights;
use lanes_core::device::{
    Budget, Buffer, Capabilities, Completion, Device, DeviceError, Executable, MemoryReport, Placement, PrepareOptions,
    Purpose, RowOp, Slot, StateRows, TurnRows, Turnstile,
};
use lanes_core::lanes::RowId;
use lanes_core::plan::Checked;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tells the handles of one open device from those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceId(u64);

/// How a CPU device is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads that a turn may use, the caller's among them; `None` is all the machine has, one means no other thread.
    pub threads: Option<usize>,
    /// The most bytes it may hold; `None` is no limit.
    pub budget: Option<u64>,
}

/// The most slots of one executable: far more than a host that does the work itself can keep busy.
const SLOTS_MAX: usize = 64;

/// The most threads of one device: several times what any machine has, and few enough to ask a system for.
const THREADS_MAX: usize = 4096;

/// The CPU. Its threads end when it is dropped; what is queued then ends as [`DeviceError::Cancelled`].
pub struct CpuDevice {
    id: DeviceId,
    options: CpuOptions,
    capabilities: Capabilities,
    budget: Budget,
    flight: Arc<Flight>,
    weights: Weights,
}

impl CpuDevice {
    /// Starts its threads. [`DeviceError::Invalid`] for no thread at all or more than 4096, [`DeviceError::Unsupported`]
    /// when the system starts no more.
    pub fn open(options: CpuOptions) -> Result<Self, DeviceError> {
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let all = || std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        let threads = options.threads.unwrap_or_else(all);
        if threads == 0 {
            return Err(DeviceError::Invalid { what: "0 threads, and a turn takes at least 1".into() });
        }
        if threads > THREADS_MAX {
            return Err(DeviceError::Invalid {
                what: format!("{threads} threads, and a device has at most {THREADS_MAX}"),
            });
        }
        let pool = Pool::new(threads).map_err(|error| no_threads(threads, &error))?;
        let capabilities = Capabilities {
            backend: "cpu",
            name: cpu_name(),
            target: format!("cpu:{}", Isa::best()),
            driver: Isa::best().to_string(),
            units: threads,
            memory_bytes: memory_bytes(),
            buffer_bytes_max: isize::MAX as u64,
            slots_max: SLOTS_MAX,
            unified: true,
            grid_barrier: false,
            sums: lanes_core::device::Sums::CHAIN,
            atomics_64: true,
        };
        let id = DeviceId(OPENED.fetch_add(1, Ordering::Relaxed));
        let flight = Arc::new(Flight::new(pool));
        Ok(Self { id, options, capabilities, budget: Budget::new(options.budget), flight, weights: Weights::default() })
    }

    /// Threads that a turn may use, the caller's among them.
    pub fn threads(&self) -> usize {
        self.flight.pool.threads()
    }

    /// Parts of turns and of launches that a thread other than the caller's has begun, so far.
    pub fn hand_offs(&self) -> u64 {
        self.flight.pool.handed()
    }

    pub(crate) fn id(&self) -> DeviceId {
        self.id
    }

    pub(crate) fn weights(&self) -> &Weights {
        &self.weights
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    fn own(&self, buffer: &Buffer) -> Result<Arc<CpuBuffer>, DeviceError> {
        buffer.object::<CpuBuffer>().filter(|buffer| buffer.device == self.id).ok_or_else(|| foreign("buffer"))
    }
}

impl Device for CpuDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn allocate(&self, what: &str, purpose: Purpose, placement: Placement, bytes: u64) -> Result<Buffer, DeviceError> {
        let len = usize::try_from(bytes).ok().filter(|&len| len <= isize::MAX as usize);
        let len = len.ok_or_else(|| too_large(what.to_string(), bytes))?;
        let charge = self.budget.charge(purpose, what, bytes)?;
        let (memory, turnstile) = (Bytes::zeroed(what, len)?, Turnstile::default());
        Ok(Buffer::new(Arc::new(CpuBuffer { memory, turnstile, device: self.id, placement, _charge: charge })))
    }

    fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let buffer = self.own(buffer)?;
        let start = buffer.range(offset, bytes.len())?;
        self.flight.pass(&buffer).bytes(start, bytes.len()).copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, buffer: &Buffer, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let buffer = self.own(buffer)?;
        let start = buffer.range(offset, into.len())?;
        into.copy_from_slice(self.flight.pass(&buffer).bytes(start, into.len()));
        Ok(())
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
        visit(self.flight.pass(&own).bytes(start, bytes));
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
        self.flight.motion(motion, &[])
    }

    fn prepare(&self, plan: &Checked<'_>, options: &PrepareOptions<'_>) -> Result<Executable, DeviceError> {
        Ok(Executable::new(Arc::new(prepare(self, plan, options)?)))
    }

    fn lease(&self, executable: &Executable) -> Result<Slot, DeviceError> {
        let executable = executable.object::<CpuExecutable>().filter(|executable| executable.device == self.id);
        Ok(Slot::new(Box::new(CpuSlot::lease(executable.ok_or_else(|| foreign("executable"))?)?)))
    }

    fn submit(
        &self,
        executable: &Executable,
        slot: &mut Slot,
        turn: TurnRows<'_>,
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        let asked = executable.object::<CpuExecutable>().filter(|executable| executable.device == self.id);
        let asked = asked.ok_or_else(|| foreign("executable"))?;
        let slot = slot.object_mut::<CpuSlot>().ok_or_else(|| foreign("slot"))?;
        if !Arc::ptr_eq(&slot.executable, &asked) {
            return Err(DeviceError::Invalid { what: "this slot is of another executable".into() });
        }
        if turn.capacity() != asked.capacity || !(turn.rows_checked() || asked.states.is_empty()) {
            let what = format!("a turn checked for {:?}, on a plan of {:?}", turn.capacity(), asked.capacity);
            return Err(DeviceError::Invalid { what });
        }
        slot.idle()?;
        self.flight.turn(slot, turn, after)
    }

    fn memory(&self) -> MemoryReport {
        MemoryReport { used: self.budget.used(), budget: self.budget.limit(), total: self.capabilities.memory_bytes }
    }

    fn health(&self) -> Result<(), DeviceError> {
        // A CPU that is lost runs nothing that could say so.
        Ok(())
    }

    fn reopen(&self) -> Result<Arc<dyn Device>, DeviceError> {
        Ok(Arc::new(Self::open(self.options)?))
    }
}

impl Drop for CpuDevice {
    fn drop(&mut self) {
        self.flight.close();
    }
}

/// What Linux calls the processor, elsewhere its architecture.
fn cpu_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_string(), |(_, name)| name.trim().to_string())
}

/// The machine's memory, where Linux says so.
fn memory_bytes() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
