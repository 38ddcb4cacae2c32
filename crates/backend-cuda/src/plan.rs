//! A plan made ready for one GPU: for every slot and bucket a graph.
//!
//! ```text
//! block, fault records, ──> up ─┬─> gather ─┬─> kernel ─> kernel ─┬─> scatter ─┬─> down ──> outputs, fault records, tick
//! small inputs                  ├───────────┘                     └────────────┤
//! large input ────────────────> pad                            large output ──-┘
//! ```
//!
//! - Commands have exactly the edges of `hazard`, scratch that shares memory included, and those of rows that are packed for them; which of them are one node, `steps` decides. An
//!   upload comes before its readers, a download after its writers.
//! - What is small goes up and comes down by one launch each, what is large by a copy of its own. The last launch writes the turn's
//!   number to the host's tick, which is how the host sees the end.
//! - A slot has staging, in pinned memory of the host and in the device's, laid out alike. Scratch is one for all slots: turns
//!   of one executable run one after the other.
//! - A bucket's graph moves and computes the bucket's number of seats.
//! - Not here: what a turn writes into the block (`queue`).

use crate::contract;
use crate::contract::cell::{self, Cell};
use crate::device::{CudaDevice, CudaEngine};
use crate::image::{self, Kernel, Takes};
use crate::matrices::{self, Packed};
use crate::moves::{CARRIED_MAX, CARRIED_UNIT, Filled, Kind, Moved, RANGES_MAX, Way};
use crate::queue::{BLOCK_HEAD, BLOCK_NUMBER, block_bytes, write_block};
use crate::slot::SlotMemory;
use crate::states::States;
use crate::steps::{self, Commands, Handed, Part, Rows, Step};
use crate::sys::{Address, Memory, Node};
use crate::weights::{Constant, Owner};
use crate::writer::{self, GRID_YZ_MAX, Hand, Seating};
use lanes_core::Scope;
use lanes_core::device::flight::{Bindings, Sample};
use lanes_core::device::{Charge, Device, DeviceError, MemoryUse, PrepareOptions, Purpose, TurnTimes};
use lanes_core::hazard::Hazards;
use lanes_core::lanes::Capacity;
use lanes_core::plan::{
    Argument, Checked, Command, Contraction, Epilogue, KernelId, Place, Precision, Scalar, Storage, StorageId,
};
use lanes_core::scratch::Layout;
use loom_compiler::ptx::{FAULT_BYTES, Image, Passed};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Starts of what lies in staging: what a device's copies like best.
const ALIGN: usize = 256;

/// The most buckets.
const BUCKETS_MAX: usize = 20;

/// A plan prepared on a GPU.
pub struct CudaPlan {
    pub(crate) name: String,
    /// Seats of each bucket, ascending; the last is `max_seats`.
    pub(crate) buckets: Box<[u32]>,
    pub(crate) max_seats: usize,
    /// Commands that report faults, in program order, and what they run.
    pub(crate) faulting: Box<[(String, Arc<Image>)]>,
    /// Where their records lie in staging.
    pub(crate) faults_at: usize,
    /// Where the host sees the number of the last turn that has ended.
    pub(crate) tick_at: usize,
    /// By bucket, the inputs of which the host repeats the first seat's for those that lack.
    pub(crate) repeated: Box<[Vec<Stacked>]>,
    _scratch: Memory,
    _kernels: Vec<Kernel>,
    constants: Vec<Arc<Constant>>,
    charges: Vec<Charge>,
}

impl CudaPlan {
    /// What it holds, and what it shares.
    pub(crate) fn memory(&self) -> MemoryUse {
        let mut memory = MemoryUse::default();
        for charge in self.charges.iter().chain(self.constants.iter().map(|constant| &constant.charge)) {
            *memory.of_mut(charge.purpose()) += charge.bytes();
        }
        memory
    }
}

/// 1, 2, 3, 4, 6, 8, 12, 16, 24 … below `most`, and `most`: at most [`BUCKETS_MAX`], the small ones left out where there
/// would be more.
fn buckets(most: u32) -> Box<[u32]> {
    let powers = (0..32).map(|exponent| 1u32 << exponent);
    let steps = powers.flat_map(|power| [Some(power), (power > 1).then(|| power.saturating_add(power / 2))]);
    let below: Vec<u32> = steps.flatten().take_while(|&bucket| bucket < most).collect();
    let skipped = below.len().saturating_sub(BUCKETS_MAX - 1);
    below.into_iter().skip(skipped).chain([most]).collect()
}

/// An input in staging.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stacked {
    /// Where the first seat's is.
    pub start: usize,
    /// Bytes of a seat.
    pub bytes: usize,
}

/// What is carried up, and by port which inputs are among it.
struct Carried {
    ranges: Vec<Range<usize>>,
    inputs: Vec<Option<Stacked>>,
}

/// Where staging holds what.
struct Staging {
    inputs: Box<[Range<usize>]>,
    outputs: Box<[Range<usize>]>,
    faults: Range<usize>,
    tick_at: usize,
    bytes: usize,
}

/// What a workgroup of a contraction computes, by what it multiplies.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Tile {
    Floats(contract::Tile),
    Matrices(matrices::Tile),
}

/// A plan being prepared.
struct Preparation<'a> {
    device: &'a CudaDevice,
    plan: &'a Checked<'a>,
    takes: Takes,
    capacity: Capacity,
    charges: Vec<Charge>,
    constants: Vec<Arc<Constant>>,
    /// By storage.
    constant_of: HashMap<u32, Address>,
    /// Row 0 of each state, and the first byte of each binding.
    states: Vec<Address>,
    residents: Vec<Address>,
    /// By command: what becomes of it.
    parts: Vec<Part>,
    layout: Layout,
    hazards: Hazards,
    kernels: Vec<Kernel>,
    /// By command: what it launches, if that is a kernel.
    kernel_of: Vec<Option<usize>>,
    /// By command and tile: the kernel of a contraction.
    contraction_of: HashMap<(usize, Tile), usize>,
    /// By contraction of rounded operands: where in scratch its packed rows begin, behind what the layout has.
    packed_of: Vec<Option<usize>>,
    rows: Rows,
    /// What touches states where they lie.
    in_place: States,
    /// By command: whether the turn's rows are there before what it launches may begin.
    is_there: Vec<bool>,
    /// Storages that are states.
    state_ids: Vec<StorageId>,
    /// By launch that packs rows: its kernel.
    packers: Vec<usize>,
    /// By command: its record, if it has one.
    record_of: Vec<Option<usize>>,
    faulting: Vec<(String, Arc<Image>)>,
    /// By command that is a contraction: its weights and its bias.
    weights_of: HashMap<usize, (Address, Option<Address>)>,
}

/// Makes `plan` ready on `device`, with what its slots own. What it is bound to lives as long as what is made.
pub(crate) fn prepare(
    device: &CudaDevice,
    plan: &Checked<'_>,
    options: &PrepareOptions<'_>,
    bound: &Bindings<CudaEngine>,
) -> Result<(CudaPlan, Vec<SlotMemory>), DeviceError> {
    let (preparation, staging, scratch) = Preparation::of(device, plan, options, bound)?;
    let buckets = buckets(options.capacity.max_seats);
    let slots = (0..options.slots).map(|_| preparation.slot(&staging, &scratch, &buckets));
    let slots = slots.collect::<Result<Vec<_>, DeviceError>>()?;
    let plan = CudaPlan {
        name: plan.plan().name.clone(),
        max_seats: options.capacity.max_seats as usize,
        repeated: buckets.iter().map(|&bucket| preparation.repeated(&staging, bucket as usize)).collect(),
        buckets,
        faulting: preparation.faulting.into(),
        faults_at: staging.faults.start,
        tick_at: staging.tick_at,
        _scratch: scratch,
        _kernels: preparation.kernels,
        constants: preparation.constants,
        charges: preparation.charges,
    };
    Ok((plan, slots))
}

/// How long turns of as many seats as `options` have room for take: the whole graph, and the commands alone.
pub(crate) fn measured(
    device: &CudaDevice,
    plan: &Checked<'_>,
    options: &PrepareOptions<'_>,
    bound: &Bindings<CudaEngine>,
    sample: &Sample<'_>,
) -> Result<TurnTimes, DeviceError> {
    let (preparation, staging, scratch) = Preparation::of(device, plan, options, bound)?;
    let (max_seats, context) = (options.capacity.max_seats, device.context());
    let slot = preparation.slot(&staging, &scratch, &[max_seats])?;
    for (range, input) in slot.inputs.iter().zip(sample.inputs) {
        // SAFETY: the slot is this function's alone, and no graph of it runs.
        unsafe { slot.host.bytes(range.start, input.len()) }.copy_from_slice(input);
    }
    let build = Build {
        of: &preparation,
        staging: &staging,
        scratch: &scratch,
        host: slot.host.base(),
        device: slot.device.base(),
    };
    let nodes = build.nodes(max_seats as usize, true, false)?;
    let what = format!("graph of {}", plan.plan().name);
    // SAFETY: as for the slot's own graph, which has these nodes too.
    let compute = unsafe { context.graph(&what, &nodes) }?;
    // SAFETY: as in `queue::begin`. The whole graph comes first and leaves inputs and block where the other one reads them.
    unsafe {
        let block = slot.host.bytes(0, block_bytes(max_seats as usize));
        write_block(block, max_seats as usize, max_seats as usize, sample.seats, 1);
        Ok(TurnTimes {
            turn: context.timed(&what, &slot.graphs[0], sample.times)?,
            compute: context.timed(&what, &compute, sample.times)?,
        })
    }
}

impl<'a> Preparation<'a> {
    /// All that slots share, and what lies where in their staging.
    fn of(
        device: &'a CudaDevice,
        plan: &'a Checked<'a>,
        options: &PrepareOptions<'_>,
        bound: &Bindings<CudaEngine>,
    ) -> Result<(Self, Staging, Memory), DeviceError> {
        let name = &plan.plan().name;
        let states = bound.states.iter().map(|state| state.memory().base()).collect();
        let residents = bound.residents.iter().map(|(buffer, offset)| buffer.memory().base().plus(*offset)).collect();
        let seats = options.capacity.max_seats as usize;
        let parts = steps::parts(plan, seats);
        let layout = steps::layout(plan, &parts, seats);
        let layout = layout
            .ok_or_else(|| DeviceError::unaddressable(format!("scratch of plan {name} for {seats} seats"), u64::MAX))?;
        let hazards = Hazards::with_layout(plan, &layout);
        let commands = plan.plan().commands.len();
        let rows = Rows::of(plan, &parts);
        let in_place = States::of(plan, &parts, &rows);
        // Reports would have more come after the rows, and it is not known yet who makes one.
        let reports = vec![false; commands];
        let steps =
            Commands { plan, hazards: &hazards, parts: &parts, rows: &rows, reports: &reports, states: &in_place };
        let is_there = steps.behind_rows();
        let is_state = |id: &StorageId| matches!(plan.plan().storages[id.0 as usize], Storage::State { .. });
        let state_ids = (0..plan.plan().storages.len() as u32).map(StorageId).filter(is_state).collect();
        let multiplies = |command: &Command| match command {
            Command::Contract(contraction) => contraction.precision != Precision::F32,
            Command::Dispatch { kernel: KernelId(id), .. } => plan.plan().kernels[*id as usize]
                .origin
                .as_ref()
                .is_some_and(|origin| origin.texts.iter().any(|(_, text)| text.contains("vector.mma"))),
            _ => false,
        };
        let takes = device.takes(plan.plan().commands.iter().any(multiplies))?;
        let (packed_of, scratch_bytes) = packed(plan, &rows, &layout, seats).ok_or_else(|| {
            DeviceError::unaddressable(format!("packed rows of plan {name} for {seats} seats"), u64::MAX)
        })?;
        let mut preparation = Self {
            device,
            plan,
            takes,
            capacity: options.capacity,
            charges: Vec::new(),
            constants: Vec::new(),
            constant_of: HashMap::new(),
            states,
            residents,
            parts,
            layout,
            hazards,
            kernels: Vec::new(),
            kernel_of: vec![None; commands],
            contraction_of: HashMap::new(),
            packed_of,
            rows,
            in_place,
            is_there,
            state_ids,
            packers: Vec::new(),
            record_of: vec![None; commands],
            faulting: Vec::new(),
            weights_of: HashMap::new(),
        };
        // Charged first, all that is counted by rows and seats; nothing is allocated if it is too much.
        preparation.charge(Purpose::Scratch, "scratch", scratch_bytes)?;
        preparation.kernels()?;
        let staging = preparation.staging()?;
        for _ in 0..options.slots {
            preparation.charge(Purpose::Staging, "staging", staging.bytes.saturating_mul(2))?;
        }
        preparation.constants()?;
        let scratch = device.context().allocate(&format!("scratch of {name}"), scratch_bytes, false)?;
        Ok((preparation, staging, scratch))
    }
}

impl<'a> Preparation<'a> {
    fn charge(&mut self, purpose: Purpose, what: &str, bytes: usize) -> Result<(), DeviceError> {
        let what = format!("{what} of {}", self.plan.plan().name);
        self.charges.push(self.device.budget().charge(purpose, &what, bytes as u64)?);
        Ok(())
    }

    fn storage(&self, id: StorageId) -> &Storage {
        &self.plan.plan().storages[id.0 as usize]
    }

    /// Bytes between the seats of a storage, or rows of a state; 0 where one value serves all.
    fn seat_stride(&self, id: StorageId) -> usize {
        let storage = self.storage(id);
        if storage.is_shared() { 0 } else { storage.bytes() }
    }

    /// Compiles what the commands launch, each kernel once.
    fn kernels(&mut self) -> Result<(), DeviceError> {
        let plan = self.plan.plan();
        let mut known = HashMap::new();
        for (at, command) in plan.commands.iter().enumerate() {
            let number = match command {
                // Done with its contraction.
                Command::Dispatch { .. } if self.parts[at] != Part::Alone => continue,
                Command::Dispatch { kernel: KernelId(id), .. } => match known.get(id) {
                    Some(&number) => number,
                    None => {
                        let image = image::of_image(&plan.kernels[*id as usize], &self.takes)?;
                        let number = self.load(image)?;
                        known.insert(*id, number);
                        number
                    }
                },
                Command::Contract(contraction) => {
                    self.contraction(at, contraction)?;
                    continue;
                }
                Command::Copy { .. } | Command::Fill { .. } | Command::Gather { .. } | Command::Scatter { .. } => {
                    continue;
                }
            };
            self.kernel_of[at] = Some(number);
            let image = &self.kernels[number].image;
            if image.slots.iter().any(|slot| slot.passed == Passed::Faults) {
                self.record_of[at] = Some(self.faulting.len());
                self.faulting.push((command.label().to_owned(), Arc::clone(image)));
            }
        }
        self.packers()
    }

    fn load(&mut self, image: Image) -> Result<usize, DeviceError> {
        self.charge(Purpose::Graphs, "a kernel", image.text.len())?;
        self.kernels.push(Kernel::load(self.device.context(), self.device.modules(), image)?);
        Ok(self.kernels.len() - 1)
    }

    /// Compiles a contraction, once for each tile that some bucket takes.
    fn contraction(&mut self, at: usize, contraction: &Contraction) -> Result<(), DeviceError> {
        let elements = |storage| self.seat_stride(storage) / 4;
        let contraction = &self.in_place.contraction(at, contraction).clone();
        let terms: Vec<usize> = contraction.terms.iter().map(|term| elements(term.storage)).collect();
        let out = elements(contraction.out);
        let epilogue = self.epilogue_of(at).cloned();
        let more: Vec<usize> =
            epilogue.iter().flat_map(|epilogue| cell::places(epilogue).map(|place| elements(place.storage))).collect();
        let cell = epilogue.as_ref().map(|epilogue| Cell {
            epilogue,
            seat_elements: &more,
            keeps: steps::keeps(self.plan, epilogue),
        });
        let states = self.state_ids.clone();
        let seating = self.seating(&states, self.is_there[at]);
        let hands: Vec<Hand> = self.hands(at).map(|(hand, _)| hand).collect();
        for &seats in &buckets(self.capacity.max_seats) {
            let tile = self.tile(at, contraction, seats as usize);
            if self.contraction_of.contains_key(&(at, tile)) {
                continue;
            }
            let text = match tile {
                Tile::Floats(tile) => contract::text(contraction, &terms, out, tile, seating, cell, &hands),
                Tile::Matrices(tile) => matrices::text(contraction, out, tile, seating, cell, &hands),
            };
            let text = text.ok_or_else(|| DeviceError::Unsupported {
                what: format!("activation {:?} of {} on a GPU", contraction.activation, contraction.label),
            })?;
            let origin = image::text("contract.loom", text, "contract");
            let lefts = match tile {
                Tile::Floats(_) => contraction.terms.iter().map(|term| Some(term.storage)).collect(),
                Tile::Matrices(_) => vec![None],
            };
            let constants = writer::constants(contraction, &lefts, epilogue.as_ref(), hands.len(), seating);
            // Which bytes it touches was proved when the plan was checked.
            let image = image::of_text(&origin, &contraction.label, false, constants, &self.takes)?;
            let number = self.load(image)?;
            self.contraction_of.insert((at, tile), number);
        }
        Ok(())
    }

    const fn seating<'s>(&self, states: &'s [StorageId], is_there: bool) -> Seating<'s> {
        let Capacity { rows, max_seats } = self.capacity;
        Seating { max_seats: max_seats as usize, rows: rows as usize, states, is_there }
    }

    /// Compiles what packs rows.
    fn packers(&mut self) -> Result<(), DeviceError> {
        for launch in 0..self.rows.launches.len() {
            let commands = &self.plan.plan().commands;
            let read =
                self.rows.launches[launch].iter().filter_map(|&at| match (&commands[at], &self.rows.pack_of[at]) {
                    (Command::Contract(contraction), Some(pack)) => {
                        let contraction = self.in_place.contraction(at, contraction);
                        let elements = contraction.terms.iter().map(|term| self.seat_stride(term.storage) / 4);
                        Some((contraction, elements.collect::<Vec<usize>>(), &pack.others))
                    }
                    _ => None,
                });
            let read = read.collect::<Vec<_>>();
            let packed =
                read.iter().map(|(contraction, seat_elements, handed)| Packed { contraction, seat_elements, handed });
            let text = matrices::pack_text(&packed.collect::<Vec<_>>(), self.seating(&self.state_ids, false));
            let origin = image::text("pack.loom", text, "pack");
            let label = read.first().map_or("rows", |(contraction, ..)| contraction.label.as_str());
            let image = image::of_text(&origin, label, false, 0, &self.takes)?;
            let number = self.load(image)?;
            self.packers.push(number);
        }
        Ok(())
    }

    /// What contraction `at` hands on, and to whose rows.
    fn hands(&self, at: usize) -> impl Iterator<Item = (Hand, usize)> {
        let handed = self.rows.handed.iter().filter(move |handed| handed.maker == at);
        handed.filter_map(|&Handed { owner, term, result, from, .. }| match &self.plan.plan().commands[owner] {
            Command::Contract(consumer) => Some((matrices::hand(consumer, term, result, from), owner)),
            _ => None,
        })
    }

    /// What is done with the contraction that command `at` is, and states that it touches.
    fn epilogue_of(&self, at: usize) -> Option<&Epilogue> {
        let Part::Early(late) = self.parts[at] else { return None };
        let Part::Cell(epilogue) = self.parts[late] else { return None };
        Some(&self.in_place.epilogues[epilogue])
    }

    /// The tile of contraction `at` in a turn of `seats` seats.
    fn tile(&self, at: usize, contraction: &Contraction, seats: usize) -> Tile {
        let rows = seats.saturating_mul(contraction.positions);
        let units = self.device.capabilities().units;
        match contraction.precision {
            Precision::F32 => Tile::Floats(contract::Tile::of(contraction, rows, units, self.device.tile())),
            // The check of the options has refused what the GPU has no products of.
            _ => {
                let of_unit = self.epilogue_of(at).map(|epilogue| contraction.n / epilogue.units);
                Tile::Matrices(matrices::Tile::of(contraction, of_unit, rows, units, &self.takes))
            }
        }
    }

    /// Uploads constants and weights, those that no other executable has.
    fn constants(&mut self) -> Result<(), DeviceError> {
        let plan = self.plan.plan();
        for (at, storage) in plan.storages.iter().enumerate() {
            if let Storage::Constant { label, bytes } = storage {
                let address = self.constant(label, Owner::Bytes(Arc::downgrade(bytes)), &|| Cow::Borrowed(bytes))?;
                self.constant_of.insert(at as u32, address);
            }
        }
        for (at, command) in plan.commands.iter().enumerate() {
            let Command::Contract(contraction) = command else { continue };
            let Contraction { label, weights, precision, bias, n, .. } = contraction;
            let units = self.epilogue_of(at).map_or(*n, |epilogue| epilogue.units);
            let packed = || {
                let beside: Cow<'_, [f32]> = match units == *n {
                    true => Cow::Borrowed(weights),
                    false => Cow::Owned(cell::side_by_side(weights, *n, units)),
                };
                match (precision, beside) {
                    (Precision::F32, Cow::Borrowed(weights)) => contract::packed_bytes(weights, contraction.k(), *n),
                    (Precision::F32, beside) => {
                        Cow::Owned(contract::packed_bytes(&beside, contraction.k(), *n).into_owned())
                    }
                    (_, beside) => Cow::Owned(matrices::packed_bytes(&beside, contraction.k(), *n)),
                }
            };
            let owner = Owner::Floats(Arc::downgrade(weights), *n, units, *precision);
            let weights = self.constant(label, owner, &packed)?;
            let bias = bias.as_ref().map(|bias| {
                let owner = Owner::Floats(Arc::downgrade(bias), 0, 0, Precision::F32);
                self.constant(label, owner, &|| Cow::Borrowed(bytemuck::cast_slice(bias)))
            });
            let bias = bias.transpose()?;
            self.weights_of.insert(at, (weights, bias));
        }
        Ok(())
    }

    fn constant<'b>(
        &mut self,
        label: &str,
        owner: Owner,
        bytes: &dyn Fn() -> Cow<'b, [u8]>,
    ) -> Result<Address, DeviceError> {
        let what = format!("constant {label} of {}", self.plan.plan().name);
        let (context, budget) = (self.device.context(), self.device.budget());
        let held = self.device.weights().constant(context, budget, &what, owner, bytes)?;
        let address = held.memory.base();
        if !self.constants.iter().any(|known| Arc::ptr_eq(known, &held)) {
            self.constants.push(held);
        }
        Ok(address)
    }

    fn staging(&self) -> Result<Staging, DeviceError> {
        let seats = self.capacity.max_seats as usize;
        let mut at = block_bytes(seats);
        let records = self.faulting.len().checked_mul(FAULT_BYTES);
        let mut place = |name: &str, bytes: Option<usize>| {
            let start = at.checked_next_multiple_of(ALIGN);
            let range = start.and_then(|start| Some(start..start.checked_add(bytes?)?));
            let range = range.filter(|range| isize::try_from(range.end).is_ok());
            let range = range.ok_or_else(|| DeviceError::unaddressable(format!("staging of {name}"), u64::MAX))?;
            at = range.end;
            Ok::<_, DeviceError>(range)
        };
        let (faults, tick) = (place("fault records", records)?, place("the tick", Some(4))?);
        let signature = self.plan.signature();
        let mut ports = |ports: &[lanes_core::Port]| {
            let place = |port: &lanes_core::Port| {
                let seats = if port.scope == Scope::Seat { seats } else { 1 };
                place(&port.name, port.bytes().checked_mul(seats))
            };
            ports.iter().map(place).collect::<Result<Box<[_]>, _>>()
        };
        let (inputs, outputs) = (ports(&signature.inputs)?, ports(&signature.outputs)?);
        // Whole units are carried, so there is one behind the last byte too.
        let bytes = place("its end", Some(0))?.end;
        Ok(Staging { inputs, outputs, faults, tick_at: tick.start, bytes })
    }

    /// What is carried up for `seats` seats: block, fault records and small inputs.
    fn carried(&self, staging: &Staging, seats: usize) -> Carried {
        let most = self.capacity.max_seats as usize;
        // The rows that they read, and those that they write, which lie further back.
        let writes = (BLOCK_HEAD + 4 * most) / CARRIED_UNIT * CARRIED_UNIT..BLOCK_HEAD + 4 * (most + seats);
        let mut ranges = vec![0..BLOCK_HEAD + 4 * seats, writes, staging.faults.clone()];
        let mut inputs = vec![None; staging.inputs.len()];
        let mut room = CARRIED_MAX;
        for storage in &self.plan.plan().storages {
            let (port, bytes, seats) = match *storage {
                Storage::Input { port, bytes } => (port, bytes, seats),
                Storage::SharedInput { port, bytes } => (port, bytes, 1),
                _ => continue,
            };
            let (start, all) = (staging.inputs[port].start, bytes * seats);
            if inputs[port].is_none() && all > 0 && all <= room && ranges.len() < RANGES_MAX {
                room -= all;
                ranges.push(start..start + all);
                inputs[port] = Some(Stacked { start, bytes });
            }
        }
        Carried { ranges, inputs }
    }

    /// The inputs of which the host repeats the first seat's in a turn that is launched for `seats` seats and has fewer.
    fn repeated(&self, staging: &Staging, seats: usize) -> Vec<Stacked> {
        let inputs = self.carried(staging, seats).inputs.into_iter().zip(&self.plan.signature().inputs);
        inputs.filter(|(_, port)| port.scope == Scope::Seat).filter_map(|(carried, _)| carried).collect()
    }

    fn slot(&self, staging: &Staging, scratch: &Memory, buckets: &[u32]) -> Result<SlotMemory, DeviceError> {
        let (context, what) = (self.device.context(), format!("staging of {}", self.plan.plan().name));
        let host = context.allocate(&what, staging.bytes, true)?;
        let device = context.allocate(&what, staging.bytes, false)?;
        let mut earlier = 0;
        let graphs = buckets.iter().map(|&bucket| {
            // A turn of as many seats as fit has none that lack; nor has one where no smaller turn takes this bucket.
            let exact = bucket == earlier + 1;
            earlier = bucket;
            let build = Build { of: self, staging, scratch, host: host.base(), device: device.base() };
            let nodes = build.nodes(bucket as usize, exact, true)?;
            // SAFETY: nodes name the slot's two memories, which it owns, and scratch, constants, states and residents, which
            // the executable owns. That they stay inside these was proved when the plan was checked, for `max_seats` seats
            // and the rows of the capacity; kernels are checked as they run. When the graph runs, `queue` keeps others away.
            unsafe { context.graph(&format!("graph of {}", self.plan.plan().name), &nodes) }
        });
        let graphs = graphs.collect::<Result<Box<[_]>, DeviceError>>()?;
        Ok(SlotMemory {
            inputs: staging.inputs.clone(),
            outputs: staging.outputs.clone(),
            host,
            device,
            graphs,
            turns: AtomicU32::new(0),
        })
    }
}

/// The graphs of one slot.
struct Build<'a> {
    of: &'a Preparation<'a>,
    staging: &'a Staging,
    scratch: &'a Memory,
    host: Address,
    device: Address,
}

type Nodes<'a> = Vec<(Node<'a>, Vec<usize>)>;

impl<'a> Build<'a> {
    /// The graph for `seats` seats; not `exact` if it is for fewer too. Not `whole` is the commands alone: what the host gives lies
    /// on the device, and what it gets stays there.
    fn nodes(&self, seats: usize, exact: bool, whole: bool) -> Result<Nodes<'a>, DeviceError> {
        let (plan, movers) = (self.of.plan.plan(), self.of.device.movers());
        let most = self.of.capacity.max_seats as usize;
        let mut nodes = Nodes::new();
        let mut add = |node, after: Vec<usize>| {
            nodes.push((node, after));
            nodes.len() - 1
        };
        let too_large = || {
            DeviceError::unaddressable(format!("staging of {} for {most} seats", plan.name), self.staging.bytes as u64)
        };
        // By input port: the node after which it is there.
        let mut there = vec![None; self.staging.inputs.len()];
        let mut up = None;
        if whole {
            let Carried { ranges, inputs } = self.of.carried(self.staging, seats);
            let node = movers.carried(Way::Up, self.host, self.device, &ranges).ok_or_else(too_large)?;
            let first = *up.insert(add(node, Vec::new()));
            for (there, carried) in there.iter_mut().zip(inputs) {
                *there = carried.map(|_| first);
            }
            for storage in &plan.storages {
                match *storage {
                    Storage::Input { port, bytes } if there[port].is_none() && bytes > 0 => {
                        let start = self.staging.inputs[port].start;
                        let mut ready = add(self.up(start..start + bytes * seats), Vec::new());
                        if !exact {
                            let at = self.device.plus(start);
                            let pad = Moved {
                                kind: Kind::Pad,
                                from: at,
                                to: at,
                                row_bytes: bytes,
                                rows: 1,
                                from_stride: bytes,
                                to_stride: bytes,
                                from_seat: bytes,
                                to_seat: bytes,
                            };
                            ready = add(movers.moved(&[pad], self.device, seats, most)?, vec![ready, first]);
                        }
                        there[port] = Some(ready);
                    }
                    Storage::SharedInput { port, bytes } if there[port].is_none() && bytes > 0 => {
                        let start = self.staging.inputs[port].start;
                        there[port] = Some(add(self.up(start..start + bytes), Vec::new()));
                    }
                    _ => {}
                }
            }
        }
        let reports: Vec<bool> = self.of.record_of.iter().map(Option::is_some).collect();
        let commands = Commands {
            plan: self.of.plan,
            hazards: &self.of.hazards,
            parts: &self.of.parts,
            rows: &self.of.rows,
            reports: &reports,
            states: &self.of.in_place,
        };
        let (steps, of_command) = commands.steps(nodes.len(), up, &there);
        for (step, after) in steps {
            nodes.push((self.node(step, seats)?, after));
        }
        if !whole {
            reduce(&mut nodes);
            return Ok(nodes);
        }
        let (mut ranges, mut room) = (vec![self.staging.faults.clone()], CARRIED_MAX);
        for (id, storage) in plan.storages.iter().enumerate() {
            let Storage::Output { port, bytes } = *storage else { continue };
            let (start, all) = (self.staging.outputs[port].start, bytes * seats);
            if all == 0 {
                continue;
            }
            let writes = |command: &Command| {
                let mine = Place::Storage(StorageId(id as u32));
                command.touches().iter().any(|touch| touch.place == mine && touch.access.writes())
            };
            let writers = plan.commands.iter().zip(&of_command).filter(|(command, _)| writes(command));
            let after: Vec<usize> = writers.filter_map(|(_, node)| *node).collect();
            if all <= room && ranges.len() < RANGES_MAX {
                room -= all;
                ranges.push(start..start + all);
            } else {
                nodes.push((self.down(start..start + all), after));
            }
        }
        // All comes before the last node, so that nothing runs on behind the tick.
        let mut is_last = vec![true; nodes.len()];
        nodes.iter().flat_map(|(_, after)| after).for_each(|&earlier| is_last[earlier] = false);
        let last = (0..nodes.len()).filter(|&at| is_last[at]).collect();
        let way = Way::Down { number: self.device.plus(BLOCK_NUMBER), tick: self.host.plus(self.staging.tick_at) };
        nodes.push((movers.carried(way, self.host, self.device, &ranges).ok_or_else(too_large)?, last));
        reduce(&mut nodes);
        Ok(nodes)
    }

    fn node(&self, step: Step, seats: usize) -> Result<Node<'a>, DeviceError> {
        let commands = &self.of.plan.plan().commands;
        let (movers, most) = (self.of.device.movers(), self.of.capacity.max_seats as usize);
        match step {
            Step::Moves(all) => {
                let moved: Vec<Moved> = all.iter().filter_map(|&at| self.moved(&commands[at])).collect();
                let to = all.iter().find_map(|&at| match &commands[at] {
                    Command::Copy { to, .. } | Command::Gather { to, .. } => Some(to.0),
                    Command::Scatter { state, .. } => Some(*state),
                    _ => None,
                });
                let times = to.map_or(seats, |to| self.times(to, seats));
                movers.moved(&moved, self.device, times, most)
            }
            Step::Pack(launch) => {
                let (mut passed, mut first) = (vec![Given::Bits(seats as u64)], None);
                for &at in &self.of.rows.launches[launch] {
                    let Command::Contract(contraction) = &commands[at] else { continue };
                    let terms = &self.of.in_place.contraction(at, contraction).terms;
                    passed.extend(terms.iter().map(|term| Given::Buffer(self.base(term.storage), 0)));
                    passed.push(Given::Buffer(self.packed(at), 0));
                    first.get_or_insert((at, contraction));
                }
                // Only texts that touch states look at it.
                passed.push(Given::Buffer(self.device, 0));
                let (Some((at, contraction)), Some(&kernel)) = (first, self.of.packers.get(launch)) else {
                    return Err(DeviceError::Invalid { what: format!("no kernel packs the rows of launch {launch}") });
                };
                self.launch(at, kernel, &contraction.label, &[seats as u64], &passed, seats)
            }
            Step::Command(at) => self.command(at, &commands[at], seats),
            Step::Cell(epilogue) => {
                let at = self.of.plan.plan().epilogues[epilogue].contraction;
                self.command(at, &commands[at], seats)
            }
        }
    }

    fn up(&self, range: Range<usize>) -> Node<'a> {
        let (to, from) = (self.device.plus(range.start), self.host.plus(range.start));
        Node::Copy { to, from, bytes: range.len() }
    }

    fn down(&self, range: Range<usize>) -> Node<'a> {
        let (to, from) = (self.host.plus(range.start), self.device.plus(range.start));
        Node::Copy { to, from, bytes: range.len() }
    }

    /// Where a storage starts on the device.
    fn base(&self, id: StorageId) -> Address {
        match *self.of.storage(id) {
            Storage::Constant { .. } => self.of.constant_of[&id.0],
            Storage::Input { port, .. } | Storage::SharedInput { port, .. } => {
                self.device.plus(self.staging.inputs[port].start)
            }
            Storage::Output { port, .. } => self.device.plus(self.staging.outputs[port].start),
            Storage::State { state, .. } => self.of.states[state],
            Storage::Resident { binding, .. } => self.of.residents[binding],
            // What no command touches lies nowhere, and nobody looks.
            Storage::Scratch { .. } => self.scratch.base().plus(self.of.layout.start(id).unwrap_or(0)),
        }
    }

    /// Where the packed rows lie that command `at` reads.
    fn packed(&self, at: usize) -> Address {
        self.scratch.base().plus(self.of.packed_of[at].unwrap_or(0))
    }

    fn command(&self, at: usize, command: &Command, seats: usize) -> Result<Node<'a>, DeviceError> {
        match command {
            Command::Copy { .. } | Command::Gather { .. } | Command::Scatter { .. } => {
                self.node(Step::Moves(vec![at]), seats)
            }
            Command::Fill { to: (id, region), pattern } => {
                let region = region.joined();
                let filled = Filled {
                    to: self.base(*id).plus(region.offset),
                    row_bytes: region.row_bytes,
                    rows: region.rows,
                    to_stride: region.stride,
                    to_seat: self.of.seat_stride(*id),
                    pattern: *pattern,
                };
                self.of.device.movers().filled(&filled, self.times(*id, seats))
            }
            Command::Dispatch { label, workload, arguments, .. } => {
                let bits = |scalar: &Scalar| match scalar {
                    Scalar::Bits(bits) => *bits,
                    Scalar::Seats => seats as u64,
                };
                let workload: Vec<u64> = workload.iter().map(bits).collect();
                let passed: Vec<Given> = arguments
                    .iter()
                    .map(|argument| match argument {
                        Argument::Scalar(scalar) => Given::Bits(bits(scalar)),
                        Argument::Buffer { storage, window, .. } => {
                            let window = window.clone().unwrap_or(0..self.of.storage(*storage).bytes());
                            let stride = self.of.seat_stride(*storage);
                            let len = if stride > 0 { stride * seats } else { window.len() };
                            Given::Buffer(self.base(*storage).plus(window.start), len)
                        }
                    })
                    .collect();
                // Every kernel of the plan was loaded.
                self.launch(at, self.of.kernel_of[at].unwrap_or(0), label, &workload, &passed, seats)
            }
            Command::Contract(contraction) => {
                let whole = |id| Given::Buffer(self.base(id), 0);
                let contraction = self.of.in_place.contraction(at, contraction);
                let (weights, bias) = self.of.weights_of[&at];
                // Into memory that all seats share there is one seat: the check of the options sees to it.
                let mut passed = vec![Given::Bits(seats as u64)];
                match contraction.precision {
                    Precision::F32 => passed.extend(contraction.terms.iter().map(|term| whole(term.storage))),
                    _ => passed.push(Given::Buffer(self.packed(at), 0)),
                }
                passed.push(Given::Buffer(weights, 0));
                passed.extend(bias.map(|bias| Given::Buffer(bias, 0)));
                passed.push(whole(contraction.out));
                let more = self.of.epilogue_of(at).map(cell::places).into_iter().flatten();
                passed.extend(more.map(|place| whole(place.storage)));
                passed.extend(self.of.hands(at).map(|(_, owner)| Given::Buffer(self.packed(owner), 0)));
                passed.push(Given::Buffer(self.device, 0));
                let tile = self.of.tile(at, contraction, seats);
                let lacks =
                    || DeviceError::Invalid { what: format!("no kernel of {} for {seats} seats", contraction.label) };
                let kernel = self.of.contraction_of.get(&(at, tile)).copied().ok_or_else(lacks)?;
                self.launch(at, kernel, &contraction.label, &[seats as u64], &passed, seats)
            }
        }
    }

    /// For how many seats something is done to a storage: once where one value serves all.
    fn times(&self, id: StorageId, seats: usize) -> usize {
        if self.of.storage(id).is_shared() { 1 } else { seats }
    }

    /// The runs that a command moves, if it moves any.
    fn moved(&self, command: &Command) -> Option<Moved> {
        let (kind, from, to) = match command {
            Command::Copy { from, to } => (Kind::Seats, *from, *to),
            Command::Gather { state, row, to } => (Kind::Gather, (*state, *row), *to),
            Command::Scatter { from, state, row } => (Kind::Scatter, *from, (*state, *row)),
            Command::Dispatch { .. } | Command::Contract(_) | Command::Fill { .. } => return None,
        };
        let (mut row_bytes, mut rows) = (from.1.row_bytes, from.1.rows);
        let (mut from_stride, mut to_stride) = (from.1.stride, to.1.stride);
        if rows > 1 && from_stride == row_bytes && to_stride == row_bytes {
            (row_bytes, rows) = (row_bytes * rows, 1);
            (from_stride, to_stride) = (row_bytes, row_bytes);
        }
        Some(Moved {
            kind,
            from: self.base(from.0).plus(from.1.offset),
            to: self.base(to.0).plus(to.1.offset),
            row_bytes,
            rows,
            from_stride,
            to_stride,
            from_seat: self.of.seat_stride(from.0),
            to_seat: self.of.seat_stride(to.0),
        })
    }

    fn launch(
        &self,
        at: usize,
        kernel: usize,
        label: &str,
        workload: &[u64],
        given: &[Given],
        seats: usize,
    ) -> Result<Node<'a>, DeviceError> {
        let invalid =
            |error: String| DeviceError::Invalid { what: format!("launch of {label} for {seats} seats: {error}") };
        let kernel = &self.of.kernels[kernel];
        let geometry = kernel.image.launch.geometry(workload).map_err(|error| invalid(error.to_string()))?;
        let [x, y, z] = geometry.workgroups;
        if x == 0 || y == 0 || z == 0 {
            return Ok(Node::Nothing);
        }
        if x > i32::MAX as u32 || y > GRID_YZ_MAX || z > GRID_YZ_MAX {
            return Err(DeviceError::Unsupported {
                what: format!(
                    "launch of {label} for {seats} seats: {x}, {y} and {z} workgroups, and a GPU takes at most {}, {GRID_YZ_MAX} \
                     and {GRID_YZ_MAX}",
                    i32::MAX
                ),
            });
        }
        let parameter = |slot: &loom_compiler::ptx::Slot| {
            let argument =
                |argument: usize| given.get(argument).copied().ok_or_else(|| invalid("an argument lacks".into()));
            Ok(match slot.passed {
                Passed::Buffer { argument: number } => match argument(number)? {
                    Given::Buffer(address, _) => address.address,
                    Given::Bits(_) => return Err(invalid(format!("argument {number} is a buffer"))),
                },
                Passed::Length { argument: number } => match argument(number)? {
                    Given::Buffer(_, len) => len as u64,
                    Given::Bits(_) => return Err(invalid(format!("argument {number} is a buffer"))),
                },
                Passed::Scalar { argument: number, .. } => match argument(number)? {
                    Given::Bits(bits) => bits,
                    Given::Buffer(..) => return Err(invalid(format!("argument {number} is a scalar"))),
                },
                Passed::Faults => {
                    let record = self.of.record_of[at].unwrap_or(0);
                    self.device.plus(self.staging.faults.start + record * FAULT_BYTES).address
                }
            })
        };
        let parameters = kernel.image.slots.iter().map(parameter).collect::<Result<Vec<u64>, DeviceError>>()?;
        Ok(Node::Launch {
            function: &kernel.function,
            grid: [x, y, z],
            block: geometry.workgroup_size,
            shared_bytes: kernel.shared_bytes,
            parameters,
        })
    }
}

/// By contraction of rounded operands, where its packed rows begin behind `layout`, and the bytes of all; `None` if no number tells.
fn packed(plan: &Checked<'_>, rows: &Rows, layout: &Layout, seats: usize) -> Option<(Vec<Option<usize>>, usize)> {
    let mut starts = vec![None; plan.plan().commands.len()];
    let mut bytes = layout.bytes();
    for (at, &owner) in rows.owner_of.iter().enumerate() {
        let (Some(owner), Command::Contract(contraction)) = (owner, &plan.plan().commands[at]) else { continue };
        if owner == at {
            let start = bytes.checked_next_multiple_of(ALIGN)?;
            let all = seats.checked_mul(contraction.positions)?;
            bytes = start.checked_add(all.checked_mul(matrices::row_bytes(contraction))?)?;
            starts[at] = Some(start);
        } else {
            starts[at] = starts[owner];
        }
    }
    isize::try_from(bytes).ok()?;
    Some((starts, bytes))
}

/// Drops the edges that others imply. The driver takes each for a wait: a kernel with two of them starts a microsecond later
/// (a chain of 100 that all came after the upload as well took 211 µs on an H200, and 104 without).
fn reduce<T>(nodes: &mut [(T, Vec<usize>)]) {
    let words = nodes.len().div_ceil(64);
    let mut before: Vec<Vec<u64>> = Vec::with_capacity(nodes.len());
    for (_, after) in nodes.iter_mut() {
        let mut all = vec![0u64; words];
        // The latest first: what comes before it needs no edge.
        after.sort_unstable_by(|a, b| b.cmp(a));
        after.retain(|&earlier| {
            let implied = all[earlier / 64] >> (earlier % 64) & 1 == 1;
            if !implied {
                all.iter_mut().zip(&before[earlier]).for_each(|(all, more)| *all |= more);
                all[earlier / 64] |= 1 << (earlier % 64);
            }
            !implied
        });
        before.push(all);
    }
}

/// A launch argument.
#[derive(Clone, Copy)]
enum Given {
    Bits(u64),
    /// Its first byte, and how many the kernel sees.
    Buffer(Address, usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_that_others_imply_are_dropped() {
        // 0 before all; 1 and 2 side by side; 3 after both; 4 after all four, by way of 3.
        let mut nodes = vec![((), vec![]), ((), vec![0]), ((), vec![0]), ((), vec![2, 0, 1]), ((), vec![1, 3, 0])];
        reduce(&mut nodes);
        let edges: Vec<_> = nodes.into_iter().map(|(_, after)| after).collect();
        assert_eq!(edges, [vec![], vec![0], vec![0], vec![2, 1], vec![3]]);
        // What a chain comes after beside the one before, past a word of the sets.
        let mut nodes: Vec<((), Vec<usize>)> =
            (0..200).map(|at| ((), (0..at).rev().take(3).chain([0]).filter(|&e| e < at).collect())).collect();
        nodes.iter_mut().for_each(|(_, after)| after.dedup());
        reduce(&mut nodes);
        assert!(nodes.iter().enumerate().skip(1).all(|(at, (_, after))| *after == [at - 1]));
    }

    #[test]
    fn buckets_are_few_and_end_with_the_most() {
        assert_eq!(*buckets(1), [1]);
        assert_eq!(*buckets(3), [1, 2, 3]);
        assert_eq!(*buckets(5), [1, 2, 3, 4, 5]);
        assert_eq!(*buckets(64), [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]);
        assert_eq!(*buckets(65), [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 65]);
        let many = buckets(u32::MAX);
        assert_eq!((many.len(), many[19]), (BUCKETS_MAX, u32::MAX));
        assert!(many.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
