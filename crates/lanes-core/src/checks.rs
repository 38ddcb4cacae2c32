//! Cases of a Loom text on a device: what `loom_compiler::check` runs, with kernels compiled for it and tensors in its
//! memory.
//!
//! ```text
//! Module::with_cases ──> DeviceTarget ──check::run──> a Verdict for each sample
//!                        └ launches of the last sample ──measure──> their time, as one plan
//! ```
//!
//! - Each launch is a plan of one dispatch, waited for; a launch that fails says so where the case asks for it.
//! - A kernel that verifies and does not build for the device is unsupported there, not wrong.
//! - Not here: what a case means and which samples it has (`loom_compiler::check`).

use crate::compile::Passed;
use crate::device::{Device, DeviceError};
use crate::session::{Commands, Distribution, Kernel, Region, Session, Use};
use loom_compiler::Module;
use loom_compiler::check::{Actual, Provided, Requirement, Stop, Target};
use loom_compiler::tile;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Kernels of one module on one device.
pub struct DeviceTarget<'m> {
    session: Session,
    module: &'m Module,
    config: &'m BTreeMap<String, String>,
    kernels: BTreeMap<String, Kernel>,
    storages: BTreeMap<usize, Region>,
    launched: Vec<Launched>,
}

/// A launch, as it is recorded.
#[derive(Clone)]
struct Launched {
    kernel: Kernel,
    workload: Vec<u8>,
    scalars: Vec<u8>,
    buffers: Vec<Bound>,
}

/// What a buffer of a launch is.
#[derive(Clone)]
struct Bound {
    region: Region,
    written: bool,
    /// Whether another buffer of the launch has some of the same bytes.
    shared: bool,
}

/// A launch sees memory that starts on multiples of this.
const ALIGN: u64 = crate::plan::WINDOW_ALIGN as u64;

impl<'m> DeviceTarget<'m> {
    /// Kernels of `module`, of [`Module::with_cases`], with `config` bound.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn new(
        device: Arc<dyn Device>,
        module: &'m Module,
        config: &'m BTreeMap<String, String>,
    ) -> Result<Self, DeviceError> {
        let session = Session::builder("checks").device(device).open()?;
        let (kernels, storages, launched) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Ok(Self { session, module, config, kernels, storages, launched })
    }

    /// How many launches the last sample made.
    pub fn launches(&self) -> usize {
        self.launched.len()
    }

    /// Replays the launches of the last sample as one plan, `rounds` times after `warm_up`: from before a submission to
    /// after its end. Once `time_max` went by, it ends with three rounds or those that it has. Tensors go on from what they
    /// hold.
    ///
    /// # Errors
    /// No launches, and whatever fails when it runs.
    pub fn measure(&self, rounds: usize, warm_up: usize, time_max: Duration) -> Result<Distribution, DeviceError> {
        if self.launched.is_empty() {
            return Err(DeviceError::Invalid { what: "nothing was launched, and so nothing can be measured".into() });
        }
        let record = |commands: &mut Commands<'_>| self.launched.iter().try_for_each(|launch| launch.record(commands));
        self.session.record("all", record)?;
        let (mut times, start) = (Vec::new(), Instant::now());
        for round in 0..rounds.saturating_add(warm_up) {
            if times.len() >= 3 && start.elapsed() >= time_max {
                break;
            }
            let begin = Instant::now();
            self.session.replay("all")?.wait()?;
            if round >= warm_up {
                times.push(begin.elapsed());
            }
        }
        Ok(times.into_iter().collect())
    }

    fn kernel(&mut self, name: &str) -> Result<Kernel, Stop> {
        if let Some(kernel) = self.kernels.get(name) {
            return Ok(kernel.clone());
        }
        let built = self.module.specialise(name, self.config);
        let built = built.map_err(|errors| Stop::Error(format!("kernel `{name}`: {errors}")))?;
        // What verifies and cannot be expressed is no fault of the text.
        let mut image = tile::compile(&built)
            .map_err(|unsupported| Stop::Unsupported(format!("kernel `{name}`: {} on the CPU", unsupported.what)))?;
        // A device that does not run the image compiles its text.
        if self.session.device().capabilities().backend != "cpu" {
            image.origin = Some(Box::new(self.module.origin(name, self.config)));
        }
        let kernel = Kernel::new(Arc::new(image));
        self.kernels.insert(name.to_owned(), kernel.clone());
        Ok(kernel)
    }

    fn region(&self, storage: usize) -> Result<&Region, Stop> {
        self.storages.get(&storage).ok_or_else(|| Stop::Error(format!("storage {storage} has no memory")))
    }

    fn bound(&self, storage: usize, bytes: &Range<u64>, written: bool) -> Result<Bound, Stop> {
        let region = self.region(storage)?;
        let range = bytes.start as usize..bytes.end as usize;
        // Memory has at least one byte; a tensor of none is all of the memory that stands for it.
        let whole = range.is_empty() || (range.start, range.end) == (0, region.bytes());
        let region = if whole { region.clone() } else { region.slice(range).map_err(failed)? };
        Ok(Bound { region, written, shared: false })
    }
}

fn failed(why: DeviceError) -> Stop {
    match why {
        DeviceError::Unsupported { what } => Stop::Unsupported(what),
        other => Stop::Error(other.to_string()),
    }
}

/// The low bytes of each slot, as scalars are packed.
fn packed(slots: impl Iterator<Item = (u64, usize)>) -> Vec<u8> {
    slots.flat_map(|(slot, bytes)| slot.to_le_bytes().into_iter().take(bytes)).collect()
}

fn width(passed: Passed) -> usize {
    match passed {
        Passed::Scalar { bytes, .. } => bytes,
        Passed::Buffer { .. } => 0,
    }
}

impl Launched {
    fn record(&self, commands: &mut Commands<'_>) -> Result<(), DeviceError> {
        let mut uses: Vec<Use> = Vec::new();
        let mut back = Vec::new();
        for Bound { region, written, shared } in &self.buffers {
            let region = match region.start() as u64 % ALIGN {
                0 => region.clone(),
                // A copy that starts where a launch can see it.
                _ => {
                    let copy = commands.scratch("a view's bytes", region.bytes())?;
                    commands.copy(region, &copy)?;
                    if *written {
                        back.push((copy.clone(), region.clone()));
                    }
                    copy
                }
            };
            uses.push(match (written, shared) {
                (true, true) | (false, true) => region.accumulate(),
                (true, false) => region.read_write(),
                (false, false) => region.read(),
            });
        }
        commands.dispatch(&self.kernel, &self.workload[..], &self.scalars[..], &uses)?;
        back.iter().try_for_each(|(copy, region)| commands.copy(copy, region))
    }
}

impl Target for DeviceTarget<'_> {
    fn write(&mut self, storage: usize, bytes: &[u8]) -> Result<(), Stop> {
        let held = self.storages.get(&storage).filter(|region| region.bytes() == bytes.len());
        let region = match held {
            Some(region) => region.clone(),
            None => {
                let region = self.session.allocate(&format!("tensor {storage}"), bytes.len().max(4)).map_err(failed)?;
                self.storages.insert(storage, region.clone());
                region
            }
        };
        if bytes.is_empty() {
            return Ok(());
        }
        let region =
            if region.bytes() == bytes.len() { region } else { region.slice(0..bytes.len()).map_err(failed)? };
        self.session.upload(&region, bytes).map_err(failed)
    }

    fn read(&mut self, storage: usize, into: &mut [u8]) -> Result<(), Stop> {
        if into.is_empty() {
            return Ok(());
        }
        let region = self.region(storage)?;
        let region =
            if region.bytes() == into.len() { region.clone() } else { region.slice(0..into.len()).map_err(failed)? };
        self.session.download(&region, into).map_err(failed)
    }

    fn launch(&mut self, kernel: &str, workload: &[u64], arguments: &mut [Actual]) -> Result<(), Stop> {
        let name = kernel;
        let kernel = self.kernel(name)?;
        let layout = kernel.layout();
        let workload = packed(workload.iter().zip(layout.workload()).map(|(slot, to)| (*slot, width(to.passed))));
        let (mut scalars, mut buffers) = (Vec::new(), Vec::new());
        let mut places: Vec<(usize, Range<u64>)> = Vec::new();
        for (at, (actual, to)) in arguments.iter_mut().zip(layout.launch()).enumerate() {
            match actual {
                Actual::Scalar(slot) => scalars.push((*slot, width(to.passed))),
                Actual::Tensor { storage, bytes, written } => {
                    *written = kernel.image().stores_to(at);
                    buffers.push(self.bound(*storage, bytes, *written)?);
                    places.push((*storage, bytes.clone()));
                }
            }
        }
        for at in 0..places.len() {
            let (storage, bytes) = &places[at];
            let meets = |other: usize| {
                let (other_storage, other_bytes) = &places[other];
                other != at
                    && other_storage == storage
                    && other_bytes.start < bytes.end
                    && bytes.start < other_bytes.end
                    && (buffers[at].written || buffers[other].written)
            };
            let shared = (0..places.len()).any(meets);
            if shared && bytes.start % ALIGN != 0 {
                let what = format!(
                    "kernel `{name}` is given a tensor from byte {} of another one, and both: what it sees in both starts \
                     on multiples of {ALIGN}",
                    bytes.start
                );
                return Err(Stop::Unsupported(what));
            }
            buffers[at].shared = shared;
        }
        let launch = Launched { kernel, workload, scalars: packed(scalars.into_iter()), buffers };
        let done = self.session.record("one", |commands| launch.record(commands));
        let done = done.and_then(|()| self.session.replay("one")?.wait());
        self.launched.push(launch);
        done.map(drop).map_err(|why| match why {
            // What a kernel did wrong begins with its name.
            DeviceError::Fault { what, .. } if what.starts_with("kernel `") => Stop::Error(what),
            why => match failed(why) {
                Stop::Error(why) => Stop::Error(format!("kernel `{name}`: {why}")),
                unsupported => unsupported,
            },
        })
    }

    fn clear(&mut self) {
        self.launched.clear();
        self.session.forget("all");
        self.session.forget("one");
        for region in std::mem::take(&mut self.storages).into_values() {
            // A region of its own session that lives is never refused.
            let _ = self.session.free(&region);
        }
    }

    fn provides(&self, requirement: &Requirement) -> Provided {
        if requirement.provider != "device.memory" {
            return Provided::NotRegistered;
        }
        let Some(total) = self.session.device().capabilities().memory_bytes else {
            return Provided::Unavailable;
        };
        let mut holds = requirement.entries.iter().map(|(key, value)| {
            let value = value.as_ref()?.parse::<u64>().ok()?;
            match key.as_str() {
                "minimum" => Some(total >= value),
                "maximum" => Some(total <= value),
                "equals" => Some(total == value),
                _ => None,
            }
        });
        let all = holds.try_fold(true, |all, holds| holds.map(|holds| all && holds));
        all.map_or(Provided::Unavailable, Provided::Is)
    }
}
