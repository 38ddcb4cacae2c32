//! One CPU as a device: some threads, some memory, a budget.

use crate::error::no_threads;
use crate::isa::Isa;
use crate::memory::Bytes;
use crate::plan::{CpuPlan, Start, prepare};
use crate::pool::Pool;
use crate::queue;
use crate::slot::{self, SlotMemory};
use crate::weights::Weights;
use lanes_core::device::flight::{Backend, Bindings, Engine, Host, Idle, Made, Stretch, Turn};
use lanes_core::device::{Budget, Capabilities, DeviceError, Placement, PrepareOptions, RoundedSums, Sums};
use lanes_core::plan::Checked;

/// How a CPU device is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads that a turn may use, the caller's among them; `None` is all the machine has, one means no other thread.
    pub threads: Option<usize>,
    /// The most bytes it may hold; `None` is no limit.
    pub budget: Option<u64>,
    /// Turns of loops that one launch of a kernel may take, and tiles that it may have; more is a fault of the launch. `None` is
    /// [`tile::STEP_LIMIT`](crate::tile::STEP_LIMIT).
    pub steps_max: Option<u64>,
}

/// The most slots of one executable: far more than a host that does the work itself can keep busy.
const SLOTS_MAX: usize = 64;

/// The most threads of one device: several times what any machine has, and few enough to ask a system for.
const THREADS_MAX: usize = 4096;

/// The CPU. Its threads end when it is dropped; what is queued then ends as [`DeviceError::Cancelled`].
pub struct CpuDevice {
    host: Host<CpuEngine>,
    options: CpuOptions,
    weights: Weights,
}

/// What a CPU does.
pub struct CpuEngine {
    pool: Pool,
}

impl CpuDevice {
    /// Starts its threads. [`DeviceError::Invalid`] for no thread at all or more than 4096, [`DeviceError::Unsupported`]
    /// when the system starts no more.
    pub fn open(options: CpuOptions) -> Result<Self, DeviceError> {
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
            sums: Sums::CHAIN,
            bf16: Some(RoundedSums::Chains(Sums::CHAIN)),
            atomics_64: true,
            clock: false,
        };
        let host = Host::new(CpuEngine { pool }, capabilities, Budget::new(options.budget));
        Ok(Self { host, options, weights: Weights::default() })
    }

    /// Threads that a turn may use, the caller's among them.
    pub fn threads(&self) -> usize {
        self.host.engine().pool.threads()
    }

    /// Parts of turns and of launches that a thread other than the caller's has begun, so far.
    pub fn hand_offs(&self) -> u64 {
        self.host.engine().pool.handed()
    }

    /// Turns of loops that one launch may take.
    pub(crate) fn steps_max(&self) -> u64 {
        self.options.steps_max.unwrap_or(crate::tile::STEP_LIMIT)
    }

    pub(crate) fn weights(&self) -> &Weights {
        &self.weights
    }

    pub(crate) fn budget(&self) -> &Budget {
        self.host.budget()
    }
}

impl Backend for CpuDevice {
    type Engine = CpuEngine;

    fn host(&self) -> &Host<CpuEngine> {
        &self.host
    }

    fn zeroed(&self, what: &str, _: Placement, len: usize) -> Result<Bytes, DeviceError> {
        Bytes::zeroed(what, len)
    }

    fn ready(
        &self,
        plan: &Checked<'_>,
        options: &PrepareOptions<'_>,
        bound: &Bindings<CpuEngine>,
    ) -> Result<Made<CpuEngine>, DeviceError> {
        made(self, plan, options, bound)
    }

    fn anew(&self) -> Result<Self, DeviceError> {
        Self::open(self.options)
    }
}

impl Engine for CpuEngine {
    const NAME: &'static str = "cpu";
    const WATCHED: bool = false;
    type Memory = Bytes;
    type Plan = CpuPlan;
    type Staging = SlotMemory;
    /// A turn ends where it is begun.
    type Mark = std::convert::Infallible;

    fn bytes(memory: &Bytes) -> usize {
        memory.len()
    }

    fn health(&self) -> Result<(), DeviceError> {
        // A CPU that is lost runs nothing that could say so.
        Ok(())
    }

    fn begin(&self, turn: &Turn<'_, Self>) -> Result<Option<Self::Mark>, DeviceError> {
        // SAFETY: what a `Turn` promises, and no turn is begun before the one before has ended.
        unsafe { queue::run(&self.pool, turn.plan(), turn.staging(), turn.seats()) }.map(|()| None)
    }

    fn end(&self, _: &Turn<'_, Self>, mark: Self::Mark) -> Result<(), DeviceError> {
        match mark {}
    }

    fn copy(&self, to: Stretch<'_, Self>, from: Stretch<'_, Self>) -> Result<(), DeviceError> {
        // SAFETY: a `Stretch` lies in its memory and is its holder's alone, and two of them lie apart.
        unsafe { to.memory().at(to.start()).copy_from_nonoverlapping(from.memory().at(from.start()), to.len()) };
        Ok(())
    }

    fn fill(&self, to: Stretch<'_, Self>, byte: u8) -> Result<(), DeviceError> {
        // SAFETY: as in `copy`.
        unsafe { to.memory().at(to.start()).write_bytes(byte, to.len()) };
        Ok(())
    }

    fn write(&self, to: Stretch<'_, Self>, bytes: &[u8]) -> Result<(), DeviceError> {
        self.map(to).copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, from: Stretch<'_, Self>, into: &mut [u8]) -> Result<(), DeviceError> {
        into.copy_from_slice(self.map(from));
        Ok(())
    }

    fn map<'a>(&self, stretch: Stretch<'a, Self>) -> &'a mut [u8] {
        // SAFETY: as in `copy`, for as long as the stretch would live; every byte is initialised.
        unsafe { std::slice::from_raw_parts_mut(stretch.memory().at(stretch.start()), stretch.len()) }
    }

    fn input<'a>(slot: Idle<'a, Self>, port: usize) -> Option<&'a mut [u8]> {
        // SAFETY: the slot is idle, and nobody else looks at its inputs.
        unsafe { slot::input(slot.staging(), port) }
    }

    fn output<'a>(slot: Idle<'a, Self>, port: usize) -> Option<&'a [u8]> {
        // SAFETY: the slot is idle.
        unsafe { slot::output(slot.staging(), port) }
    }
}

/// Makes `plan` ready for whatever engine has the memory and the plans of this one.
pub(crate) fn made<E: Engine<Memory = Bytes, Plan = CpuPlan, Staging = SlotMemory>>(
    device: &CpuDevice,
    plan: &Checked<'_>,
    options: &PrepareOptions<'_>,
    bound: &Bindings<E>,
) -> Result<Made<E>, DeviceError> {
    let states = bound.states.iter().map(|state| Start(state.memory().base())).collect();
    // An offset that passes the end is of a binding that no command names.
    let residents = bound.residents.iter().map(|(buffer, offset)| Start(buffer.memory().at(*offset))).collect();
    let (plan, slots) = prepare(device, plan, options, states, residents)?;
    Ok(Made { memory: plan.memory(), plan, slots })
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
