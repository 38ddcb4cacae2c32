//! A model's slots, each built once and checked against the others.
//!
//! `prepare(context, name, capacity, |slot| inputs, outputs, record) --checked--> PreparedModel`
//!
//! - Slots are alike: the same inputs and outputs, by name, type and shape.
//! - What one slot writes no other touches. What none writes (weights, tables) they share.
//! - Inputs and outputs lie where the host reaches them if its memory is the device's; else each has staging memory.
//! - Not here: what a plan may say (`session`, `plan`).

use super::acquire::PreparedModel;
use super::descriptor::Descriptor;
use super::line::Line;
use super::slot::{Flight, Input, Model, Output, SlotCell, Work};
use super::storage::Storage;
use super::{ModelContext, invalid};
use crate::DType;
use crate::device::{Buffer, DeviceError, Placement, Purpose};
use crate::session::{Commands, Definition, Region, Session};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// An input or output of a prepared model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotPort {
    /// Its name.
    pub name: String,
    /// What it holds; row-major.
    pub desc: Descriptor,
}

/// One slot in the making.
pub struct SlotBuilder<'a> {
    session: &'a Session,
    model: &'a str,
    index: usize,
    inputs: Vec<Place>,
    outputs: Vec<Place>,
    is_recorded: bool,
}

struct Place {
    port: SlotPort,
    region: Region,
    staging: Option<Buffer>,
}

/// Prepares `capacity` slots, calling `build` once for each, in order. All are built in one session of the context, so
/// that they can share weights, kernels and whatever else none of them writes.
///
/// # Errors
/// No slots; what `build` gives; a slot that records nothing, or leaves an output unwritten; slots that differ in inputs
/// or outputs, or touch what another writes, with which and where; and those of opening the device and allocating.
pub fn prepare(
    context: &ModelContext,
    name: &str,
    capacity: usize,
    mut build: impl FnMut(&mut SlotBuilder<'_>) -> Result<(), DeviceError>,
) -> Result<PreparedModel, DeviceError> {
    if capacity == 0 {
        return Err(invalid(format!("model {name} of 0 slots: it takes at least one")));
    }
    let session = Session::builder(format!("of model {name}")).context(context.clone()).overlap(true).open()?;
    let (mut built, mut shared) = (Vec::<(Vec<Place>, Vec<Place>)>::new(), Shared::default());
    for index in 0..capacity {
        let mut slot =
            SlotBuilder { session: &session, model: name, index, inputs: vec![], outputs: vec![], is_recorded: false };
        build(&mut slot)?;
        let SlotBuilder { inputs, outputs, is_recorded, .. } = slot;
        if !is_recorded {
            return Err(invalid(format!("model {name}: slot {index} records nothing")));
        }
        if let Some((first_inputs, first_outputs)) = built.first() {
            alike(name, "input", index, &inputs, first_inputs)?;
            alike(name, "output", index, &outputs, first_outputs)?;
        }
        shared.check(name, index, &session, &inputs, &outputs)?;
        built.push((inputs, outputs));
    }
    let ports = |places: &[Place]| places.iter().map(|place| place.port.clone()).collect::<Vec<_>>();
    let (inputs, outputs) = built.first().map(|slot| (ports(&slot.0), ports(&slot.1))).unwrap_or_default();
    let line = Line::new(capacity);
    let model = Arc::new(Model { name: name.into(), context: context.clone(), session, inputs, outputs, line });
    let cells = built.into_iter().enumerate().map(|(index, (inputs, outputs))| cell(&model, index, inputs, outputs));
    let cells = cells.collect::<Result<_, _>>()?;
    Ok(PreparedModel::new(model, cells))
}

fn key(index: usize) -> String {
    format!("slot {index}")
}

fn cell(
    model: &Arc<Model>,
    index: usize,
    inputs: Vec<Place>,
    outputs: Vec<Place>,
) -> Result<Arc<SlotCell>, DeviceError> {
    let device = model.session.device();
    let host = outputs.iter().map(|place| vec![0; place.port.desc.bytes().div_ceil(8)].into()).collect();
    let inputs = inputs.into_iter().map(|Place { region, staging, .. }| {
        let (buffer, offset) = region.memory()?;
        Ok(Input { buffer, offset, staging })
    });
    let outputs = outputs.into_iter().map(|Place { region, staging, .. }| {
        let (buffer, offset) = region.memory()?;
        let storage = |buffer: Buffer| Storage::new(Arc::clone(device), buffer);
        Ok(Output { storage: storage(buffer), offset, staging: staging.map(storage) })
    });
    let inputs = inputs.collect::<Result<Vec<_>, DeviceError>>()?;
    let outputs = outputs.collect::<Result<Vec<_>, DeviceError>>()?;
    let work = Work { after: Vec::new(), earlier: Vec::new(), host };
    Ok(Arc::new(SlotCell {
        model: Arc::clone(model),
        index,
        key: key(index),
        inputs,
        outputs,
        flight: Mutex::new(Flight::default()),
        work: Mutex::new(work),
    }))
}

/// That slot `index` has the ports of slot 0.
fn alike(model: &str, what: &str, index: usize, places: &[Place], first: &[Place]) -> Result<(), DeviceError> {
    let names = |places: &[Place]| {
        let names: Vec<&str> = places.iter().map(|place| place.port.name.as_str()).collect();
        if names.is_empty() { "none".to_string() } else { names.join(", ") }
    };
    if names(places) != names(first) {
        let (found, expected) = (names(places), names(first));
        return Err(invalid(format!("model {model}: {what}s of slot {index} are {found}, and {expected} in slot 0")));
    }
    for (place, first) in places.iter().zip(first) {
        let (SlotPort { name, desc }, expected) = (&place.port, &first.port.desc);
        if desc != expected {
            return Err(invalid(format!(
                "model {model}: {what} {name} is {desc} in slot {index}, and {expected} in slot 0"
            )));
        }
    }
    Ok(())
}

/// Memory that slots touch: by store, the first slot to do so, and the one that writes it.
#[derive(Default)]
struct Shared(BTreeMap<usize, (usize, Option<usize>)>);

impl Shared {
    fn check(
        &mut self,
        model: &str,
        index: usize,
        session: &Session,
        inputs: &[Place],
        outputs: &[Place],
    ) -> Result<(), DeviceError> {
        let mut touched = session.touched(&key(index))?;
        for place in outputs {
            if !touched.iter().any(|touch| touch.store == place.region.store_id() && touch.is_written) {
                let name = &place.port.name;
                return Err(invalid(format!("model {model}: slot {index} never writes its output {name}")));
            }
        }
        touched.extend(inputs.iter().map(|place| place.region.touched(true)));
        for touch in touched {
            let (first, writer) = self.0.entry(touch.store).or_insert((index, None));
            if touch.is_written {
                writer.get_or_insert(index);
            }
            if let (false, Some(writer)) = (*first == index, *writer) {
                let label = &touch.label;
                return Err(invalid(format!(
                    "model {model}: slots {first} and {index} share region {label}, which slot {writer} writes"
                )));
            }
        }
        Ok(())
    }
}

impl SlotBuilder<'_> {
    /// Which slot it is.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Where to make regions, weights and kernels. It is the same for all slots.
    pub fn session(&self) -> &Session {
        self.session
    }

    /// Memory for input `name`, which the plan is to read.
    ///
    /// # Errors
    /// A name that is taken, a shape without elements, and those of allocating.
    pub fn input(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result<Region, DeviceError> {
        let place = self.place("input", name, Descriptor::new(dtype, shape)?, Placement::Upload)?;
        let region = place.region.clone();
        self.inputs.push(place);
        Ok(region)
    }

    /// Memory for output `name`, which the plan is to write.
    ///
    /// # Errors
    /// As [`input`](Self::input).
    pub fn output(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result<Region, DeviceError> {
        let place = self.place("output", name, Descriptor::new(dtype, shape)?, Placement::Readback)?;
        let region = place.region.clone();
        self.outputs.push(place);
        Ok(region)
    }

    fn place(&self, what: &str, name: &str, desc: Descriptor, staging: Placement) -> Result<Place, DeviceError> {
        let (model, index) = (self.model, self.index);
        if self.inputs.iter().chain(&self.outputs).any(|place| place.port.name == name) {
            return Err(invalid(format!("model {model}: slot {index} has an input or output {name} already")));
        }
        if desc.is_empty() {
            return Err(invalid(format!("model {model}: {what} {name} of slot {index} is {desc}, without elements")));
        }
        let device = self.session.device();
        let label = format!("{what} {name} of slot {index} of {model}");
        let (placement, staging) = if device.capabilities().unified {
            (Placement::Shared, None)
        } else {
            let bytes = desc.bytes() as u64;
            (Placement::Device, Some(device.allocate(&label, Purpose::Staging, staging, bytes)?))
        };
        let region = self.session.region(&label, desc.bytes(), placement)?;
        Ok(Place { port: SlotPort { name: name.into(), desc }, region, staging })
    }

    /// Records what the slot runs.
    ///
    /// # Errors
    /// A second recording, and those of [`Session::record`].
    pub fn record(
        &mut self,
        record: impl FnOnce(&mut Commands<'_>) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let (model, index) = (self.model, self.index);
        if self.is_recorded {
            return Err(invalid(format!("model {model}: slot {index} records twice")));
        }
        self.session.record(&key(index), record)?;
        self.is_recorded = true;
        Ok(())
    }

    /// Inputs, outputs and recording of a definition; weights and kernels are shared with every other slot and use of it.
    ///
    /// # Errors
    /// A definition with states: whoever gets a slot next would find those of whoever had it before. And those of
    /// [`input`](Self::input), [`record`](Self::record) and [`Commands::fragment`].
    pub fn definition(&mut self, definition: &Definition) -> Result<(), DeviceError> {
        if let Some(state) = definition.states().next() {
            let (model, name, state) = (self.model, definition.name(), &state.input);
            return Err(invalid(format!(
                "model {model}: definition {name} has state {state}, and slots keep nothing from one caller to the next"
            )));
        }
        let mut bindings = Vec::new();
        for port in definition.inputs() {
            bindings.push((port.name.as_str(), self.input(&port.name, port.dtype, &port.shape)?));
        }
        for port in definition.outputs() {
            bindings.push((port.name.as_str(), self.output(&port.name, port.dtype, &port.shape)?));
        }
        let bindings: Vec<_> = bindings.iter().map(|(name, region)| (*name, region)).collect();
        self.record(|commands| commands.fragment(definition, &bindings))
    }
}
