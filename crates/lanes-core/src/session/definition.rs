//! A recorded plan with a name for what goes in and out: made once, used anywhere.
//!
//! ```text
//! session.freeze(key, interface) ──> Definition ──┬─ session.instantiate: fresh memory, the same weights and kernels
//! LanedBuilder::build ──────────────────┘         ├─ commands.fragment: part of a larger plan, over regions given
//!                                                 └─ planned: with states, for lanes
//! ```
//!
//! - It holds no device memory, so it outlives the session it was frozen from.
//! - Weights and kernels are shared by all that is made from it.
//! - What it keeps between replays and has no name for is fresh wherever it is used.
//! - Not here: who may use memory (`region`), and the seats of a turn (`lanes`).

use super::Session;
use super::record::{Commands, Recording};
use super::region::{Kind, Region, Store, Weights, invalid};
use crate::device::{Device, DeviceError};
use crate::plan::{self, Argument, Command, KernelId, Plan, Storage, StorageId, Term, WINDOW_ALIGN};
use crate::planned::PlannedModel;
use crate::{DType, Port, Scope, Signature, StateKind, StateSpec};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Names for regions: what a definition takes, gives and carries over. Each names all of one memory.
#[derive(Clone, Debug, Default)]
pub struct Interface {
    inputs: Vec<(Port, Region)>,
    outputs: Vec<(Port, Region)>,
    states: Vec<(StateSpec, Region, Region)>,
}

impl Interface {
    /// Without any name.
    pub fn new() -> Self {
        Self::default()
    }

    /// `region` is input `name`: a tensor of this type and shape.
    #[must_use]
    pub fn input(mut self, name: &str, dtype: DType, shape: &[usize], region: &Region) -> Self {
        self.inputs.push((port(name, dtype, shape), region.clone()));
        self
    }

    /// `region` is output `name`.
    #[must_use]
    pub fn output(mut self, name: &str, dtype: DType, shape: &[usize], region: &Region) -> Self {
        self.outputs.push((port(name, dtype, shape), region.clone()));
        self
    }

    /// What `next` is left with is what `read` holds the next time; `initial` is what it holds at first, zeros if
    /// `None`. The two may be one region. In bindings they are called `name` and `name_next`.
    #[must_use]
    pub fn state(
        mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        initial: Option<Arc<[u8]>>,
        (read, next): (&Region, &Region),
    ) -> Self {
        let (input, output, kind) = (name.to_string(), format!("{name}_next"), StateKind::Replaced);
        let spec = StateSpec { input, output, dtype, lane_shape: shape.to_vec(), initial, kind };
        self.states.push((spec, read.clone(), next.clone()));
        self
    }
}

fn port(name: &str, dtype: DType, shape: &[usize]) -> Port {
    Port { name: name.to_string(), dtype, shape: shape.to_vec(), scope: Scope::Seat }
}

/// A plan, its kernels and its weights, with names for its memory. Cheap to clone.
#[derive(Clone)]
pub struct Definition(Arc<Frozen>);

struct Frozen {
    /// What its images are for; `None` where it was made without a device.
    target: Option<String>,
    plan: Plan,
    /// By storage.
    places: Vec<Place>,
    /// By name; those of states too.
    names: BTreeMap<String, StorageId>,
    inputs: Vec<(Port, StorageId)>,
    outputs: Vec<(Port, StorageId)>,
    states: Vec<(StateSpec, StorageId, StorageId)>,
}

/// What a storage of a definition stands for.
enum Place {
    Memory { label: String, shared: bool },
    Weights(String, Arc<Weights>),
    Scratch(String),
}

/// A definition in a session, with memory of its own.
pub struct Instance {
    key: String,
    regions: BTreeMap<String, Region>,
}

impl Instance {
    /// What its plan is recorded under.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The region of this name.
    ///
    /// # Errors
    /// A name that the definition does not have.
    pub fn region(&self, name: &str) -> Result<&Region, DeviceError> {
        let known = || self.regions.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        self.regions.get(name).ok_or_else(|| invalid(format!("{} has no region {name}; it has {}", self.key, known())))
    }
}

impl Definition {
    pub(super) fn new(
        target: Option<String>,
        recording: &Recording,
        interface: Interface,
    ) -> Result<Self, DeviceError> {
        let plan = &recording.plan;
        let mut names = BTreeMap::new();
        let mut taken = BTreeMap::<StorageId, String>::new();
        let mut name = |name: &str, bytes: usize, region: &Region, again: bool| {
            let (of, label) = (&plan.name, region.label());
            let at = recording.stores.iter().position(|store| Arc::ptr_eq(store, &region.store));
            let Some(at) = at else {
                return Err(invalid(format!("{name} of {of}: nothing recorded touches region {label}")));
            };
            if matches!(region.store.kind, Kind::Weights(_) | Kind::Scratch) {
                return Err(invalid(format!(
                    "{name} of {of}: region {label} is no memory that is kept or handed over"
                )));
            }
            if region.at.joined() != plan::Region::contiguous(0, region.store.bytes) {
                return Err(invalid(format!("{name} of {of}: part of region {label}, and a name is for all of it")));
            }
            if region.bytes() != bytes {
                let found = region.bytes();
                return Err(invalid(format!("{name} of {of}: {bytes} bytes, and region {label} has {found}")));
            }
            let id = StorageId(at as u32);
            if let Some(other) = taken.insert(id, name.to_string()).filter(|_| !again) {
                return Err(invalid(format!("{name} of {of}: region {label} is {other} already")));
            }
            // A state that is changed in place has one name.
            if !again && names.insert(name.to_string(), id).is_some() {
                return Err(invalid(format!("{name} of {of}: the name is taken")));
            }
            Ok(id)
        };
        let Interface { inputs, outputs, states } = interface;
        let mut ports = |ports: Vec<(Port, Region)>| {
            let named = ports.into_iter().map(|(port, region)| {
                let id = name(&port.name, bytes_of(&port.shape, port.dtype), &region, false)?;
                Ok((port, id))
            });
            named.collect::<Result<Vec<_>, DeviceError>>()
        };
        let (inputs, outputs) = (ports(inputs)?, ports(outputs)?);
        let states = states.into_iter().map(|(spec, read, next)| {
            let bytes = bytes_of(&spec.lane_shape, spec.dtype);
            if let Some(initial) = spec.initial.as_ref().filter(|initial| initial.len() != bytes) {
                let (found, of) = (initial.len(), &plan.name);
                let state = &spec.input;
                return Err(invalid(format!("initial value of {state} of {of} is {found} bytes, not {bytes}")));
            }
            let from = name(&spec.input, bytes, &read, false)?;
            let to = name(&spec.output, bytes, &next, Arc::ptr_eq(&read.store, &next.store))?;
            Ok((spec, from, to))
        });
        let states = states.collect::<Result<Vec<_>, _>>()?;
        let place = |store: &Arc<Store>| match &store.kind {
            Kind::Memory { shared, .. } => Place::Memory { label: store.label.clone(), shared: *shared },
            Kind::Named => Place::Memory { label: store.label.clone(), shared: false },
            Kind::Weights(weights) => Place::Weights(store.label.clone(), Arc::clone(weights)),
            Kind::Scratch => Place::Scratch(store.label.clone()),
        };
        let places = recording.stores.iter().map(place).collect();
        Ok(Self(Arc::new(Frozen { target, plan: plan.clone(), places, names, inputs, outputs, states })))
    }

    /// What it was recorded as.
    pub fn name(&self) -> &str {
        &self.0.plan.name
    }

    /// Its names, and the bytes of each.
    pub fn names(&self) -> impl Iterator<Item = (&str, usize)> {
        self.0.names.iter().map(|(name, id)| (name.as_str(), self.0.plan.storages[id.0 as usize].bytes()))
    }

    /// What goes in.
    pub fn inputs(&self) -> impl Iterator<Item = &Port> {
        self.0.inputs.iter().map(|(port, _)| port)
    }

    /// What comes out.
    pub fn outputs(&self) -> impl Iterator<Item = &Port> {
        self.0.outputs.iter().map(|(port, _)| port)
    }

    /// What is carried over.
    pub fn states(&self) -> impl Iterator<Item = &StateSpec> {
        self.0.states.iter().map(|(spec, ..)| spec)
    }

    /// The model that serves lanes with it: inputs and outputs are a call's, states are gathered from the row that a
    /// seat reads and scattered to the row that it writes. Its kernels see the seats of a turn end to end, and are told
    /// how many by [`Index::Seats`](super::Index::Seats).
    ///
    /// # Errors
    /// Another target, a kernel that sees part of what varies by seat, memory kept between replays that is no declared
    /// state, and whatever is wrong with the plan then.
    pub fn planned(&self, device: Arc<dyn Device>) -> Result<PlannedModel, DeviceError> {
        let Frozen { plan, inputs, outputs, states, .. } = &*self.0;
        self.check_target(&*device)?;
        let mut laned = Plan { name: plan.name.clone(), kernels: plan.kernels.clone(), ..Plan::default() };
        for (at, storage) in plan.storages.iter().enumerate() {
            let (id, bytes) = (StorageId(at as u32), storage.bytes());
            let input = inputs.iter().position(|(_, storage)| *storage == id);
            let output = outputs.iter().position(|(_, storage)| *storage == id);
            laned.storage(match (storage, input, output) {
                (_, Some(port), _) => Storage::Input { port, bytes },
                (_, _, Some(port)) => Storage::Output { port, bytes },
                (Storage::Constant { .. }, ..) => storage.clone(),
                _ => Storage::Scratch { bytes },
            });
        }
        let kept: Vec<StorageId> = states
            .iter()
            .enumerate()
            .map(|(state, (spec, ..))| laned.storage(Storage::State { state, bytes: spec.bytes() }))
            .collect();
        let whole = |spec: &StateSpec| plan::Region::contiguous(0, spec.bytes());
        for (state, (spec, read, _)) in kept.iter().zip(states) {
            let row = whole(spec);
            laned.commands.push(Command::Gather { state: *state, row, to: (*read, row) });
        }
        for command in &plan.commands {
            let mut command = command.clone();
            if let Command::Dispatch { label, arguments, .. } = &mut command {
                for argument in arguments {
                    let Argument::Buffer { storage, window: Some(window), .. } = argument else { continue };
                    if !laned.storages[storage.0 as usize].is_shared() {
                        let (name, memory) = (&plan.name, self.0.places[storage.0 as usize].label());
                        return Err(invalid(format!(
                            "{label} of {name} sees bytes {window:?} of {memory}, which has a value a seat: kernels see \
                             all of it"
                        )));
                    }
                }
            }
            laned.commands.push(command);
        }
        for (state, (spec, _, next)) in kept.iter().zip(states) {
            let row = whole(spec);
            laned.commands.push(Command::Scatter { from: (*next, row), state: *state, row });
        }
        let ports = |ports: &[(Port, StorageId)]| ports.iter().map(|(port, _)| port.clone()).collect();
        let signature = Signature {
            name: plan.name.clone(),
            inputs: ports(inputs),
            outputs: ports(outputs),
            states: states.iter().map(|(spec, ..)| spec.clone()).collect(),
        };
        PlannedModel::new(device, laned, signature)
    }

    fn check_target(&self, device: &dyn Device) -> Result<(), DeviceError> {
        let found = &device.capabilities().target;
        match self.0.target.as_ref().filter(|target| *target != found) {
            None => Ok(()),
            Some(target) => {
                let what = format!("definition {} for target {target} on a device of target {found}", self.name());
                Err(DeviceError::Unsupported { what })
            }
        }
    }
}

impl Place {
    fn label(&self) -> &str {
        match self {
            Self::Memory { label, .. } | Self::Weights(label, _) | Self::Scratch(label) => label,
        }
    }
}

/// Bytes of a tensor; a size that no memory has where they pass `usize`.
fn bytes_of(shape: &[usize], dtype: DType) -> usize {
    shape.iter().try_fold(dtype.size(), |bytes, &extent| bytes.checked_mul(extent)).unwrap_or(usize::MAX)
}

impl Session {
    /// Freezes what is recorded under `key`, with names for its memory.
    ///
    /// # Errors
    /// Nothing recorded; a region that is foreign, stale, untouched, weights, part of its memory, of another size than
    /// its name says, or named twice; a name given twice.
    pub fn freeze(&self, key: &str, interface: Interface) -> Result<Definition, DeviceError> {
        let recording = self.recording(key)?;
        let Interface { inputs, outputs, states } = &interface;
        let ports = inputs.iter().chain(outputs).map(|(_, region)| region);
        let named = ports.chain(states.iter().flat_map(|(_, read, next)| [read, next]));
        for region in named {
            region.store.check(&[self.life()])?;
        }
        Definition::new(Some(self.device().capabilities().target.clone()), &recording, interface)
    }

    /// Records `definition` under `key` with fresh memory for all it names, sharing weights and kernels. A state is
    /// where it was left, under its second name: carrying it over to the next replay is a copy.
    ///
    /// # Errors
    /// A definition for another target, and those of allocating and [recording](Self::record).
    pub fn instantiate(&self, key: &str, definition: &Definition) -> Result<Instance, DeviceError> {
        let mut regions = BTreeMap::new();
        for (name, bytes) in definition.names() {
            regions.insert(name.to_string(), self.allocate(name, bytes)?);
        }
        for (spec, ..) in &definition.0.states {
            if let Some(initial) = &spec.initial {
                self.upload(&regions[&spec.input], initial)?;
            }
        }
        let bindings: Vec<_> = regions.iter().map(|(name, region)| (name.as_str(), region)).collect();
        self.record(key, |commands| commands.fragment(definition, &bindings))?;
        Ok(Instance { key: key.to_string(), regions })
    }
}

impl Commands<'_> {
    /// All commands of `definition`, over the regions given for its names: the output of one fragment may be the input
    /// of the next, where it lies. Weights and kernels are shared with every other use of the definition.
    ///
    /// # Errors
    /// A name that the definition does not have, one that has no region, a region of another size, in rows, misaligned,
    /// foreign or stale, weights for what is written, and a definition for another target.
    pub fn fragment(&mut self, definition: &Definition, bindings: &[(&str, &Region)]) -> Result<(), DeviceError> {
        let Frozen { plan, places, names, .. } = &*definition.0;
        if let Some(host) = self.host {
            definition.check_target(host.device)?;
        }
        let of = &plan.name;
        let mut bound = BTreeMap::new();
        for (name, region) in bindings {
            let Some(id) = names.get(*name) else {
                let known = names.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                return Err(invalid(format!("definition {of} has no region {name}; it has {known}")));
            };
            let (bytes, at) = (plan.storages[id.0 as usize].bytes(), region.contiguous("is bound")?);
            if at.row_bytes != bytes || at.offset % WINDOW_ALIGN != 0 {
                let plan::Region { offset, row_bytes, .. } = at;
                return Err(invalid(format!(
                    "{name} of definition {of} is {bytes} bytes from a multiple of {WINDOW_ALIGN} on, and region {} is \
                     {row_bytes} from byte {offset} on",
                    region.label()
                )));
            }
            if bound.insert(*id, (*region).clone()).is_some() {
                return Err(invalid(format!("{name} of definition {of} is bound twice")));
            }
        }
        if let Some(name) = names.iter().find_map(|(name, id)| (!bound.contains_key(id)).then_some(name)) {
            return Err(invalid(format!("{name} of definition {of} has no region")));
        }
        let life = Arc::clone(self.life());
        let mut moved = Vec::with_capacity(places.len());
        for (at, (place, storage)) in places.iter().zip(&plan.storages).enumerate() {
            let region = match (bound.remove(&StorageId(at as u32)), place) {
                (Some(region), _) => region,
                (None, Place::Memory { label, shared }) => match self.host {
                    Some(host) => (host.memory)(label, storage.bytes(), *shared)?,
                    None => self.scratch(label, storage.bytes())?,
                },
                (None, Place::Weights(label, weights)) => {
                    let kind = Kind::Weights(Arc::clone(weights));
                    Region::whole(Store::new(&life, label, storage.bytes(), kind))
                }
                (None, Place::Scratch(label)) => self.scratch(label, storage.bytes())?,
            };
            moved.push((self.storage(&region)?, region.at.offset));
        }
        let kernels: Vec<KernelId> = plan.kernels.iter().map(|image| self.kernel(image)).collect();
        for command in &plan.commands {
            let storages = &self.recording.plan.storages;
            let mut moving = Moving {
                bytes: &|id| plan.storages[id.0 as usize].bytes(),
                to_bytes: &|id| storages[id.0 as usize].bytes(),
                storage: &mut |id| moved[id.0 as usize],
                kernel: &mut |id| kernels[id.0 as usize],
            };
            let mut command = moving.command(command);
            if let Command::Dispatch { label, .. } | Command::Contract(plan::Contraction { label, .. }) = &mut command {
                *label = format!("{of}/{label}");
            }
            self.push(command);
        }
        Ok(())
    }
}

/// Takes a command over to another plan, whose storages may be larger.
pub(super) struct Moving<'a> {
    /// Bytes of a storage here.
    pub bytes: &'a dyn Fn(StorageId) -> usize,
    /// Bytes of a storage there.
    pub to_bytes: &'a dyn Fn(StorageId) -> usize,
    /// Which storage there, and from which byte on.
    pub storage: &'a mut dyn FnMut(StorageId) -> (StorageId, usize),
    /// Which kernel there.
    pub kernel: &'a mut dyn FnMut(KernelId) -> KernelId,
}

impl Moving<'_> {
    pub fn command(&mut self, command: &Command) -> Command {
        match command {
            Command::Dispatch { label, kernel, workload, arguments } => Command::Dispatch {
                label: label.clone(),
                kernel: (self.kernel)(*kernel),
                workload: workload.clone(),
                arguments: arguments.iter().map(|argument| self.argument(argument)).collect(),
            },
            Command::Contract(contraction) => {
                let mut contraction = contraction.clone();
                let (out, base) = (self.storage)(contraction.out);
                contraction.out = out;
                contraction.out_offset += base / 4;
                for term in &mut contraction.terms {
                    let (storage, base) = (self.storage)(term.storage);
                    *term = Term { storage, offset: term.offset + base / 4, ..*term };
                }
                Command::Contract(contraction)
            }
            Command::Copy { from, to } => Command::Copy { from: self.place(*from), to: self.place(*to) },
            Command::Fill { to, pattern } => Command::Fill { to: self.place(*to), pattern: *pattern },
            Command::Gather { state, row, to } => {
                Command::Gather { state: (self.storage)(*state).0, row: *row, to: self.place(*to) }
            }
            Command::Scatter { from, state, row } => {
                Command::Scatter { from: self.place(*from), state: (self.storage)(*state).0, row: *row }
            }
        }
    }

    fn place(&mut self, (storage, region): (StorageId, plan::Region)) -> (StorageId, plan::Region) {
        let (storage, base) = (self.storage)(storage);
        (storage, plan::Region { offset: region.offset + base, ..region })
    }

    fn argument(&mut self, argument: &Argument) -> Argument {
        let Argument::Buffer { storage, window, uses } = argument else {
            return argument.clone();
        };
        let (to, base) = (self.storage)(*storage);
        let seen = window.clone().unwrap_or(0..(self.bytes)(*storage));
        let seen = seen.start + base..seen.end + base;
        let shifted = |(region, access): &(plan::Region, plan::Access)| {
            (plan::Region { offset: region.offset + base, ..*region }, *access)
        };
        Argument::Buffer {
            storage: to,
            window: (seen != (0..(self.to_bytes)(to))).then_some(seen),
            uses: uses.iter().map(shifted).collect(),
        }
    }
}
