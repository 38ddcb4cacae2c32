//! Resident memory, kernels and recorded plans on one device: the level below lanes.
//!
//! ```text
//! text ──compile──> Kernel ─┐
//! Region (device, shared, weights) ─┴─ record(key, commands) ──> replay(key) ──> Completion
//!    └── upload, download, readback
//! ```
//!
//! - A session owns its regions and plans: dropping it ends them, and handles that are left are refused by name.
//! - Order between commands, and between replays, follows from what they declare to touch.
//! - After a device failure everything is refused with that one cause.
//! - Not here: what varies per stream (`lanes`), ONNX files (`lanes-model`).
//!
//! `docs/sessions.md` has examples that are run.

mod definition;
mod kernels;
mod laned;
mod measure;
mod memory;
mod order;
mod record;
mod region;
mod replay;
mod trace;

pub use definition::{Definition, Instance, Interface};
pub use kernels::{Index, Kernel, Numbers};
pub use laned::{LanedBuilder, StateRegions};
pub use measure::{Benchmark, Distribution, Profile};
pub use record::{Commands, Product, Window};
pub use region::{Region, Use};
pub use replay::Readback;
pub use trace::Trace;

use crate::compile::{KernelCache, KernelCompiler, KernelSource};
use crate::device::{Completion, Device, DeviceError, Placement};
use crate::inference::{Devices, ModelContext};
use region::{Kind, Life, Store, Weights, invalid};
use replay::Ready;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// How a session is opened.
pub struct SessionBuilder {
    name: String,
    context: Option<ModelContext>,
    target: Option<String>,
    compiler: Option<(Arc<dyn KernelCompiler>, Arc<KernelCache>)>,
    overlap: bool,
}

/// Memory, kernels and plans of one user of a device. Used from any number of threads.
pub struct Session {
    context: ModelContext,
    device: Arc<dyn Device>,
    compiler: Option<(Arc<dyn KernelCompiler>, Arc<KernelCache>)>,
    overlap: bool,
    life: Arc<Life>,
    lost: OnceLock<DeviceError>,
    /// Held while something is submitted; kept for its room.
    order: Mutex<Vec<Completion>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    plans: BTreeMap<String, Arc<Mutex<Ready>>>,
    stores: Vec<Weak<Store>>,
    /// What was submitted and had not ended when it was looked at last.
    pending: Vec<Completion>,
}

impl State {
    /// So that a reset reaches it.
    fn remember(&mut self, store: &Arc<Store>) {
        // Handles that are gone are forgotten when the list would grow: it stays in proportion to what lives.
        if self.stores.len() == self.stores.capacity() {
            self.stores.retain(|store| store.strong_count() > 0);
        }
        self.stores.push(Arc::downgrade(store));
    }
}

impl SessionBuilder {
    /// On a device that is open.
    #[must_use]
    pub fn device(self, device: Arc<dyn Device>) -> Self {
        self.context(ModelContext::new(device))
    }

    /// On device `index` of a backend, opened now.
    #[must_use]
    pub fn index(self, devices: Arc<dyn Devices>, backend: &str, index: usize) -> Self {
        self.context(ModelContext::by_index(devices, backend, index, None))
    }

    /// Inside a context, sharing its device, kernels and budget.
    #[must_use]
    pub fn context(mut self, context: ModelContext) -> Self {
        self.context = Some(context);
        self
    }

    /// Only on a device of this [target](crate::device::Capabilities::target).
    #[must_use]
    pub fn target(mut self, target: impl Into<String>) -> Self {
        self.target = Some(target.into());
        self
    }

    /// With this compiler, keeping images in `cache`, instead of the context's.
    #[must_use]
    pub fn compiler(mut self, compiler: Arc<dyn KernelCompiler>, cache: Arc<KernelCache>) -> Self {
        self.compiler = Some((compiler, cache));
        self
    }

    /// Whether a replay should return before it is done, even on a device whose host does the work.
    #[must_use]
    pub fn overlap(mut self, overlap: bool) -> Self {
        self.overlap = overlap;
        self
    }

    /// The session.
    ///
    /// # Errors
    /// No device given, one that does not open, and one of another target than was asked for.
    pub fn open(self) -> Result<Session, DeviceError> {
        let Self { name, context, target, compiler, overlap } = self;
        let context = context.ok_or_else(|| invalid(format!("session {name} was given no device")))?;
        let device = context.device()?;
        let found = &device.capabilities().target;
        if let Some(expected) = target.filter(|expected| expected != found) {
            let what = format!("session {name} on a device of target {found}, and {expected} was expected");
            return Err(DeviceError::Unsupported { what });
        }
        let life = Life::new(format!("session {name}"));
        let (lost, order, state) = (OnceLock::new(), Mutex::default(), Mutex::default());
        let session = Session { context, device, compiler, overlap, life, lost, order, state };
        session.usable()?;
        Ok(session)
    }
}

impl Session {
    /// A session that errors will call `name`.
    pub fn builder(name: impl Into<String>) -> SessionBuilder {
        SessionBuilder { name: name.into(), context: None, target: None, compiler: None, overlap: false }
    }

    /// Its device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// What it shares with others on its device.
    pub fn context(&self) -> &ModelContext {
        &self.context
    }

    /// `bytes` bytes of zeroed device memory, which errors call `label`.
    ///
    /// # Errors
    /// No bytes, and those of allocating.
    pub fn allocate(&self, label: &str, bytes: usize) -> Result<Region, DeviceError> {
        self.region(label, bytes, Placement::Device)
    }

    /// The same where host and device both reach it: [`map`](Self::map).
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn allocate_shared(&self, label: &str, bytes: usize) -> Result<Region, DeviceError> {
        self.region(label, bytes, Placement::Shared)
    }

    /// Weights: bytes that are shared with whoever holds them, and never written.
    ///
    /// # Errors
    /// No bytes.
    pub fn weights(&self, label: &str, bytes: impl Into<Arc<[u8]>>) -> Result<Region, DeviceError> {
        let bytes = bytes.into();
        self.weights_of(label, bytes.len(), Weights::of_bytes(bytes))
    }

    /// The same from numbers, as the products of [`Commands::contract`] take them: they are not copied for these.
    ///
    /// # Errors
    /// No numbers.
    pub fn weights_f32(&self, label: &str, values: impl Into<Arc<[f32]>>) -> Result<Region, DeviceError> {
        let values = values.into();
        self.weights_of(label, values.len() * 4, Weights::of_floats(values))
    }

    fn weights_of(&self, label: &str, bytes: usize, weights: Weights) -> Result<Region, DeviceError> {
        self.usable()?;
        record::sized(label, bytes)?;
        let store = Store::new(&self.life, label, bytes, Kind::Weights(Arc::new(weights)));
        self.state().remember(&store);
        Ok(Region::whole(store))
    }

    /// Gives the memory of a region back, all of it: what is recorded over it is refused from now on, and so is every
    /// handle to it.
    ///
    /// # Errors
    /// A region that is foreign or stale.
    pub fn free(&self, region: &Region) -> Result<(), DeviceError> {
        region.store.check(&[&self.life])?;
        region.store.free();
        Ok(())
    }

    /// Forgets all plans and gives all memory back, once what was submitted is done with it. Regions that are left are
    /// stale. It does not wait: [`synchronize`](Self::synchronize) does, for what was submitted before it too.
    pub fn reset(&self) {
        // What still runs is not forgotten: who synchronizes waits for it, and hears how it ended.
        let mut state = self.state();
        let (plans, stores) = (std::mem::take(&mut state.plans), std::mem::take(&mut state.stores));
        drop(state);
        drop(plans);
        stores.iter().filter_map(Weak::upgrade).for_each(|store| store.free());
    }

    /// Compiles kernels, many at a time: in the order asked for, equal ones once.
    ///
    /// # Errors
    /// [`DeviceError::Build`] with what is wrong with the text, for all that failed.
    pub fn compile(&self, sources: &[KernelSource]) -> Result<Vec<Kernel>, DeviceError> {
        self.usable()?;
        let images = match &self.compiler {
            Some((compiler, cache)) => self.context.compile_with(&**compiler, cache, sources)?,
            None => self.context.compile(sources)?,
        };
        Ok(images.into_iter().map(Kernel::new).collect())
    }

    /// Records a plan under `key`; one that was recorded before is replaced, and stays where this one is refused.
    ///
    /// # Errors
    /// What `record` gives, what is wrong with the plan, and those of preparing it.
    pub fn record(
        &self,
        key: &str,
        record: impl FnOnce(&mut Commands<'_>) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.usable()?;
        let memory = |label: &str, bytes: usize, shared: bool| {
            self.region(label, bytes, if shared { Placement::Shared } else { Placement::Device })
        };
        let host = record::Host { memory: &memory, device: &*self.device };
        let mut commands = Commands::new(key, Some(&self.life), Some(host));
        record(&mut commands)?;
        let ready = self.note(Ready::new(&*self.device, Arc::new(commands.finish()), self.overlap))?;
        // What was there may take long to drop: not under the lock.
        let before = self.state().plans.insert(key.to_string(), Arc::new(Mutex::new(ready)));
        drop(before);
        Ok(())
    }

    /// Forgets the plan recorded under `key`; whether there was one.
    pub fn forget(&self, key: &str) -> bool {
        let before = self.state().plans.remove(key);
        before.is_some()
    }

    fn life(&self) -> &Arc<Life> {
        &self.life
    }

    // A panic while the lock is held leaves nothing half done: every critical section is one operation on a collection.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cause that lost the device, if it is lost.
    fn usable(&self) -> Result<(), DeviceError> {
        match self.lost.get() {
            Some(cause) => Err(cause.clone()),
            None => self.note(self.device.health()),
        }
    }

    /// `result`, remembered if it says that the device is lost: then the first cause stands for all.
    fn note<T>(&self, result: Result<T, DeviceError>) -> Result<T, DeviceError> {
        let Err(error) = &result else { return result };
        let mut cause = error;
        while let DeviceError::Upstream(earlier) = cause {
            cause = earlier;
        }
        if let DeviceError::Lost(_) = cause {
            return Err(self.lost.get_or_init(|| cause.clone()).clone());
        }
        result
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.life.end();
        self.reset();
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({} on {})", self.life.name, self.device.capabilities().target)
    }
}
