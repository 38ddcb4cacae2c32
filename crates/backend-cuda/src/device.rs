//! One GPU as a device: a context, a budget, and what its threads do.

use crate::agree::agree;
use crate::binaries::Binaries;
use crate::image::{Modules, Takes, ptx_version};
use crate::moves::Movers;
use crate::plan::{CudaPlan, measured, prepare};
use crate::queue::{self, Mark};
use crate::slot::SlotMemory;
use crate::sys::{self, Context, DeviceFacts, Driver, Memory};
use crate::weights::Weights;
use lanes_core::device::flight::{Backend, Bindings, Engine, Host, Idle, Made, Sample, Stretch, Turn};
use lanes_core::device::{Budget, Capabilities, DeviceError, Placement, PrepareOptions, RoundedSums, TurnTimes};
use lanes_core::plan::Checked;
use loom_compiler::ptx::Sm;
use std::sync::{Arc, OnceLock};

/// How a GPU is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// The most bytes it may hold; `None` is no limit.
    pub budget: Option<u64>,
    /// Rows and columns that a work-item of every contraction has, instead of what the table says: for measuring the table. Bits are
    /// the same.
    pub tile: Option<(usize, usize)>,
    /// Whether what the driver makes of kernels is kept on disk, for the next process: in the folder that `LANES_CACHE_DIR` names, or
    /// in `lanes` among the user's caches. Setting the variable to nothing turns it off too.
    pub kernels_on_disk: bool,
    /// Whether kernels may begin before those that they come after have ended, where the GPU can (sm_90, and a driver for CUDA
    /// 12.3). They then fetch weights, and wait. Bits are the same.
    pub overlaps: bool,
}

impl Default for CudaOptions {
    /// No limit, kernels on disk, and one begins while another ends.
    fn default() -> Self {
        Self { budget: None, tile: None, kernels_on_disk: true, overlaps: true }
    }
}

/// The most slots of one executable.
const SLOTS_MAX: usize = 64;

/// A GPU. Its threads end when it is dropped; what is queued then ends as [`DeviceError::Cancelled`].
pub struct CudaDevice {
    host: Host<CudaEngine>,
    ordinal: usize,
    options: CudaOptions,
    takes: Takes,
    /// Whether four subgroups that multiply at once have the bits of one, once somebody has asked.
    agrees: OnceLock<bool>,
    weights: Weights,
    modules: Modules,
    movers: Movers,
}

/// What a GPU does. Turns, copies and fills are all of one stream, so it does them in the order begun.
pub struct CudaEngine {
    context: Arc<Context>,
}

/// What every GPU of this machine is and can do, by ordinal, without opening one.
///
/// # Errors
/// [`DeviceError::Unsupported`] with why there is none: no driver, one that is too old or lacks a symbol, no GPU.
pub fn devices() -> Result<Vec<Capabilities>, DeviceError> {
    (0..device_count()?).map(device_capabilities).collect()
}

/// How many GPUs this machine has: at least one.
///
/// # Errors
/// As [`devices`].
pub fn device_count() -> Result<usize, DeviceError> {
    sys::driver()?.devices()
}

/// What GPU `ordinal` is and can do, without opening it.
///
/// # Errors
/// As [`devices`]; [`DeviceError::Invalid`] for an ordinal past the last.
pub fn device_capabilities(ordinal: usize) -> Result<Capabilities, DeviceError> {
    let driver = sys::driver()?;
    Ok(capabilities(driver, &driver.facts(ordinal)?))
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
        // The architecture that brought products of bfloat16, and the first driver to take them.
        bf16: (facts.architecture >= 80).then_some(RoundedSums::Matrices(crate::matrices::SUMS)),
        atomics_64: true,
        clock: true,
    }
}

impl CudaDevice {
    /// Opens GPU `ordinal`.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] as [`devices`], and for a GPU older than `sm_75`; [`DeviceError::Invalid`] for an ordinal
    /// past the last; [`DeviceError::Lost`] for a GPU that this process has lost already; [`DeviceError::Fault`] for one that
    /// does not open.
    pub fn open(ordinal: usize, options: CudaOptions) -> Result<Self, DeviceError> {
        Self::on(sys::driver()?, ordinal, options)
    }

    /// Opens GPU `ordinal` of `driver`.
    pub(crate) fn on(driver: &'static Driver, ordinal: usize, options: CudaOptions) -> Result<Self, DeviceError> {
        let facts = driver.facts(ordinal)?;
        if facts.architecture < Sm::LEAST.architecture {
            let (name, found) = (&facts.name, facts.architecture);
            let what = format!("{name} is sm_{found}, and {} or newer is needed", Sm::LEAST);
            return Err(DeviceError::Unsupported { what });
        }
        let context = Context::open(driver, ordinal, options.budget)?;
        let takes = Takes {
            target: Sm { architecture: facts.architecture, specific: facts.architecture == 90 },
            version: ptx_version(driver.version),
            shared_bytes_max: facts.shared_bytes_max,
            overlaps: options.overlaps && facts.architecture >= 90 && driver.overlaps(),
        };
        let target = format!("sm_{}", facts.architecture);
        let binaries = options.kernels_on_disk.then(|| Binaries::of(&target, driver.version)).flatten();
        let modules = Modules::new(binaries);
        let movers = Movers::load(&context, &modules, takes.overlaps)?;
        let engine = CudaEngine { context };
        let host = Host::new(engine, capabilities(driver, &facts), Budget::new(options.budget));
        Ok(Self {
            host,
            ordinal,
            options,
            takes,
            agrees: OnceLock::new(),
            weights: Weights::default(),
            modules,
            movers,
        })
    }

    pub(crate) fn tile(&self) -> Option<(usize, usize)> {
        self.options.tile
    }

    /// What kernels may have that `multiply` matrices, or do not.
    ///
    /// # Errors
    /// What [`agree`] meets, the first time that it is to be known.
    pub(crate) fn takes(&self, multiply: bool) -> Result<Takes, DeviceError> {
        if !multiply || !self.takes.multiplies_in_groups() {
            return Ok(self.takes);
        }
        // Two that ask at once both find the same.
        let agrees = match self.agrees.get() {
            Some(&agrees) => agrees,
            None => {
                let found = agree(self.context(), &self.modules, &self.takes)?;
                *self.agrees.get_or_init(|| found)
            }
        };
        let target = Sm { specific: agrees, ..self.takes.target };
        Ok(Takes { target, ..self.takes })
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
        self.host.budget()
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.host.engine().context
    }
}

impl Backend for CudaDevice {
    type Engine = CudaEngine;

    fn host(&self) -> &Host<CudaEngine> {
        &self.host
    }

    fn zeroed(&self, what: &str, placement: Placement, len: usize) -> Result<Memory, DeviceError> {
        self.context().allocate(what, len, placement != Placement::Device)
    }

    fn ready(
        &self,
        plan: &Checked<'_>,
        options: &PrepareOptions<'_>,
        bound: &Bindings<CudaEngine>,
    ) -> Result<Made<CudaEngine>, DeviceError> {
        let (plan, slots) = prepare(self, plan, options, bound)?;
        Ok(Made { memory: plan.memory(), plan, slots })
    }

    fn measured(
        &self,
        plan: &Checked<'_>,
        options: &PrepareOptions<'_>,
        bound: &Bindings<CudaEngine>,
        turn: &Sample<'_>,
    ) -> Result<Option<TurnTimes>, DeviceError> {
        measured(self, plan, options, bound, turn).map(Some)
    }

    fn anew(&self) -> Result<Self, DeviceError> {
        Self::open(self.ordinal, self.options)
    }
}

impl Engine for CudaEngine {
    const NAME: &'static str = "cuda";
    const WATCHED: bool = true;
    type Memory = Memory;
    type Plan = CudaPlan;
    type Staging = SlotMemory;
    type Mark = Mark;

    fn bytes(memory: &Memory) -> usize {
        memory.len()
    }

    fn health(&self) -> Result<(), DeviceError> {
        self.context.health()
    }

    fn begin(&self, turn: &Turn<'_, Self>) -> Result<Option<Mark>, DeviceError> {
        // SAFETY: what a `Turn` promises until it is ended, and the stream does one after the other.
        unsafe { queue::begin(&self.context, turn.plan(), turn.staging(), turn.seats()) }.map(Some)
    }

    fn end(&self, turn: &Turn<'_, Self>, mark: Mark) -> Result<(), DeviceError> {
        // SAFETY: the mark is of this turn, which `begin` gave it for.
        unsafe { queue::end(&self.context, turn.plan(), turn.staging(), mark) }
    }

    fn copy(&self, to: Stretch<'_, Self>, from: Stretch<'_, Self>) -> Result<(), DeviceError> {
        // SAFETY: stretches are their holders' alone but for what the stream does before, and lie apart.
        unsafe { self.context.copy((to.memory(), to.start()), (from.memory(), from.start()), to.len()) }
    }

    fn fill(&self, to: Stretch<'_, Self>, byte: u8) -> Result<(), DeviceError> {
        // SAFETY: as in `copy`.
        unsafe { self.context.fill((to.memory(), to.start()), byte, to.len()) }
    }

    fn write(&self, to: Stretch<'_, Self>, bytes: &[u8]) -> Result<(), DeviceError> {
        if !to.memory().is_host() {
            return self.context.upload(to.memory(), to.start(), bytes);
        }
        self.context.health()?;
        self.map(to).copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, from: Stretch<'_, Self>, into: &mut [u8]) -> Result<(), DeviceError> {
        if !from.memory().is_host() {
            return self.context.download(from.memory(), from.start(), into);
        }
        self.context.health()?;
        into.copy_from_slice(self.map(from));
        Ok(())
    }

    fn map<'a>(&self, stretch: Stretch<'a, Self>) -> &'a mut [u8] {
        // SAFETY: as in `copy`; whoever maps has waited for the stream.
        unsafe { stretch.memory().bytes(stretch.start(), stretch.len()) }
    }

    fn input<'a>(slot: Idle<'a, Self>, port: usize) -> Option<&'a mut [u8]> {
        let range = slot.staging().inputs.get(port)?;
        // SAFETY: the slot is idle, and nobody else looks at its inputs; those of two ports lie apart.
        Some(unsafe { slot.staging().host.bytes(range.start, range.len()) })
    }

    fn output<'a>(slot: Idle<'a, Self>, port: usize) -> Option<&'a [u8]> {
        let range = slot.staging().outputs.get(port)?;
        // SAFETY: the slot is idle; nothing but a turn writes outputs.
        Some(unsafe { slot.staging().host.bytes(range.start, range.len()) })
    }
}
