//! A plan made ready for this machine: every number that a turn needs, resolved once.
//!
//! - A step names its operands by (storage, offset in a seat, bytes between seats). A chunk has one table of where each
//!   storage starts for its first seat, so a step costs an addition per operand.
//! - What is shared between turns is immutable here. What a turn leaves lies in its slot's memory (`slot`); what lives
//!   within a turn in scratch, which all slots share: turns of one executable run one after the other.
//! - Not here: the order of chunks, and threads (`queue`).

use crate::contract::{self, Packed};
use crate::device::CpuDevice;
use crate::memory::Bytes;
use crate::moves::Runs;
use crate::slot::SlotMemory;
use crate::tile;
use crate::weights::Held;
use lanes_core::device::{Charge, DeviceError, MemoryUse, PrepareOptions, Purpose};
use lanes_core::plan::{
    Argument, Checked, Command, Contraction, KernelId, Precision, Region, Scalar, Storage, StorageId,
};
use lanes_core::scratch::Layout;
use loom_compiler::CpuImage;
use loom_compiler::launch::Geometry;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Bytes of scratch, inputs and outputs that a chunk should have: half of a small second-level cache, the other half
/// being left to weights and rows.
const CHUNK_BYTES: usize = 256 << 10;
/// Fewer seats than this make contractions slow, whatever the cache says.
const CHUNK_SEATS_MIN: usize = 8;
/// More seats than this gain nothing.
const CHUNK_SEATS_MAX: usize = 128;

/// Where an operand lies, given where its storage starts for a chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    /// Index of the storage.
    pub storage: usize,
    /// Bytes from its start.
    pub offset: usize,
    /// Bytes between seats; 0 when one value serves all.
    pub seat_stride: usize,
}

/// One command, ready to run over the seats of a chunk.
pub(crate) enum Step {
    /// Runs from one storage to another, seat by seat.
    Copy { from: Operand, to: Operand, runs: Runs },
    /// The same where all seats of both lie end to end.
    CopyWhole { from: Operand, to: Operand, seat_bytes: usize },
    /// A pattern over runs.
    Fill { to: Operand, row_bytes: usize, stride: usize, rows: usize, pattern: [u8; 4] },
    /// From the row that each seat reads; `from.seat_stride` is the size of a row.
    Gather { from: Operand, to: Operand, runs: Runs },
    /// To the row that each seat writes; `to.seat_stride` is the size of a row.
    Scatter { from: Operand, to: Operand, runs: Runs },
    /// A matrix product.
    Contract { packed: Arc<Packed>, terms: Box<[Operand]>, out: Operand },
    /// A kernel; `geometries[n]` is its launch for `n + 1` seats.
    Dispatch {
        label: Box<str>,
        image: Arc<CpuImage>,
        geometries: Box<[Geometry]>,
        arguments: Box<[Bound]>,
        profile: tile::Profile,
    },
}

/// A launch argument.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    /// A number.
    Bits(u64),
    /// The number of seats of the chunk.
    Seats,
    /// The seats of the chunk in a storage, or all `shared_len` bytes of one that has no seats.
    Buffer { at: Operand, shared_len: usize },
}

/// Where a storage starts for the first seat of a chunk.
pub(crate) enum Base {
    /// One value for all seats, kept by the executable.
    Constant(Arc<[u8]>),
    /// The slot's staging, by place in [`SlotMemory::inputs`].
    Input { port: usize, seat_bytes: usize },
    /// The slot's staging, by place in [`SlotMemory::outputs`].
    Output { port: usize, seat_bytes: usize },
    /// Row 0 of a state.
    State(usize),
    /// A resident's first byte, by binding.
    Resident(usize),
    /// Bytes from the start of the thread's own scratch.
    Scratch(usize),
}

/// Where memory that the executable's buffers hold starts.
pub(crate) struct Start(pub *mut u8);

// SAFETY: a number, until `queue` uses it in a turn that has the buffer to itself.
unsafe impl Send for Start {}
// SAFETY: as above.
unsafe impl Sync for Start {}

/// A plan prepared on a CPU device.
pub struct CpuPlan {
    pub(crate) name: String,
    pub(crate) steps: Box<[Step]>,
    pub(crate) bases: Box<[Base]>,
    /// The rows of each state, in the signature's order.
    pub(crate) states: Box<[Start]>,
    /// The memory of each binding.
    pub(crate) residents: Box<[Start]>,
    /// The most seats of a chunk.
    pub(crate) chunk_seats: usize,
    /// A guess of one seat's work, to tell turns that are worth a second thread.
    pub(crate) seat_ns: usize,
    /// By thread; held by the turn that runs.
    pub(crate) scratch: Mutex<Box<[ThreadMemory]>>,
    charges: Vec<Charge>,
    weights: SharedWeights,
}

impl CpuPlan {
    /// What it holds, and what it shares.
    pub(crate) fn memory(&self) -> MemoryUse {
        let mut memory = MemoryUse::default();
        let matrices = self.weights.matrices.values().map(|held| &held.charge);
        let constants = self.weights.constants.iter().map(|held| &held.charge);
        for charge in self.charges.iter().chain(matrices).chain(constants) {
            *memory.of_mut(charge.purpose()) += charge.bytes();
        }
        memory
    }
}

/// What one thread of a turn writes.
pub(crate) struct ThreadMemory {
    pub scratch: Bytes,
    /// Where each storage starts for the chunk at hand.
    pub bases: Vec<*mut u8>,
    /// The operands of the contraction at hand.
    pub terms: Vec<contract::TermPtr>,
    /// The arguments of the kernel at hand.
    pub arguments: Vec<tile::Arg>,
    /// What kernels keep between their instructions.
    pub tiles: tile::TileScratch,
    /// The first fault of this thread, with the first seat of its chunk.
    pub fault: Option<DeviceError>,
}

// SAFETY: the pointers are leftovers of the chunk run last and are overwritten before they are used.
unsafe impl Send for ThreadMemory {}

/// What other executables of the device may hold too; each counts all of it.
#[derive(Default)]
struct SharedWeights {
    /// By address, columns and precision.
    matrices: HashMap<(usize, usize, Precision), Arc<Held<Packed>>>,
    constants: Vec<Arc<Held<()>>>,
}

/// A plan being prepared.
struct Preparation<'a> {
    device: &'a CpuDevice,
    plan: &'a Checked<'a>,
    seats: usize,
    chunk_seats: usize,
    weights: SharedWeights,
    charges: Vec<Charge>,
}

/// Makes `plan` ready on `device`, with what its slots own. States and residents start where they are given to, in buffers
/// that the caller keeps alive as long as what is made.
pub(crate) fn prepare(
    device: &CpuDevice,
    plan: &Checked<'_>,
    options: &PrepareOptions<'_>,
    states: Box<[Start]>,
    residents: Box<[Start]>,
) -> Result<(CpuPlan, Vec<SlotMemory>), DeviceError> {
    let seats = options.capacity.max_seats as usize;
    let mut preparation =
        Preparation { device, plan, seats, chunk_seats: 0, weights: SharedWeights::default(), charges: Vec::new() };
    let (chunk_seats, layout) = preparation.chunk()?;
    preparation.chunk_seats = chunk_seats;
    let steps = preparation.steps()?;
    let bases = preparation.bases(&layout)?;
    let operands_max = steps.iter().map(Step::operands).max().unwrap_or(0);
    let scratch = preparation.scratch(&layout, operands_max)?;
    let slots = (0..options.slots).map(|_| preparation.slot()).collect::<Result<Vec<_>, _>>()?;
    let plan = CpuPlan {
        name: plan.plan().name.clone(),
        seat_ns: plan.plan().commands.iter().map(seat_ns).sum(),
        steps,
        bases,
        states,
        residents,
        chunk_seats,
        scratch: Mutex::new(scratch),
        charges: preparation.charges,
        weights: preparation.weights,
    };
    Ok((plan, slots))
}

impl Preparation<'_> {
    fn charge(&mut self, purpose: Purpose, what: &str, bytes: usize) -> Result<(), DeviceError> {
        let what = format!("{what} of {}", self.plan.plan().name);
        self.charges.push(self.device.budget().charge(purpose, &what, bytes as u64)?);
        Ok(())
    }

    fn operand(&self, storage: StorageId, offset: usize) -> Operand {
        let kind = &self.plan.plan().storages[storage.0 as usize];
        let seat_stride = if kind.is_shared() { 0 } else { kind.bytes() };
        Operand { storage: storage.0 as usize, offset, seat_stride }
    }

    fn steps(&mut self) -> Result<Box<[Step]>, DeviceError> {
        self.plan.plan().commands.iter().map(|command| self.step(command)).collect()
    }

    fn step(&mut self, command: &Command) -> Result<Step, DeviceError> {
        let runs = |from: &Region, to: &Region| {
            let (row_bytes, rows) = (from.row_bytes, from.rows);
            Runs { row_bytes, rows, from_stride: from.stride, to_stride: to.stride }.joined()
        };
        Ok(match command {
            Command::Copy { from, to } => {
                let (runs, from) = (runs(&from.1, &to.1), self.operand(from.0, from.1.offset));
                let to = self.operand(to.0, to.1.offset);
                let seat_bytes = runs.row_bytes;
                if runs.rows == 1 && from.seat_stride == seat_bytes && to.seat_stride == seat_bytes {
                    Step::CopyWhole { from, to, seat_bytes }
                } else {
                    Step::Copy { from, to, runs }
                }
            }
            Command::Fill { to: (storage, region), pattern } => {
                let Region { offset, row_bytes, stride, rows } = region.joined();
                Step::Fill {
                    to: self.operand(*storage, offset),
                    row_bytes,
                    stride,
                    rows,
                    pattern: pattern.to_le_bytes(),
                }
            }
            Command::Gather { state, row, to } => Step::Gather {
                runs: runs(row, &to.1),
                from: self.operand(*state, row.offset),
                to: self.operand(to.0, to.1.offset),
            },
            Command::Scatter { from, state, row } => Step::Scatter {
                runs: runs(&from.1, row),
                from: self.operand(from.0, from.1.offset),
                to: self.operand(*state, row.offset),
            },
            Command::Contract(contraction) => self.contract(contraction)?,
            Command::Dispatch { label, kernel, workload, arguments } => {
                self.dispatch(label, *kernel, workload, arguments)?
            }
        })
    }

    fn dispatch(
        &mut self,
        label: &str,
        kernel: KernelId,
        workload: &[Scalar],
        arguments: &[Argument],
    ) -> Result<Step, DeviceError> {
        let image = Arc::clone(&self.plan.plan().kernels[kernel.0 as usize]);
        // A chunk has few seats, so its launches are computed here, once for every number.
        let geometry = |seats: usize| {
            let bits = |scalar: &Scalar| match scalar {
                Scalar::Bits(bits) => *bits,
                Scalar::Seats => seats as u64,
            };
            let workload: Vec<u64> = workload.iter().map(bits).collect();
            image
                .launch
                .geometry(&workload)
                .map_err(|error| error.to_string())
                .and_then(|geometry| tile::check_items(&geometry).map(|()| geometry))
                .map_err(|error| DeviceError::Invalid { what: format!("launch of {label} for {seats} seats: {error}") })
        };
        let geometries = (1..=self.chunk_seats).map(geometry).collect::<Result<Box<[_]>, _>>()?;
        self.charge(Purpose::Graphs, label, size_of_val(&*geometries))?;
        let argument = |argument: &Argument| match argument {
            Argument::Scalar(Scalar::Bits(bits)) => Bound::Bits(*bits),
            Argument::Scalar(Scalar::Seats) => Bound::Seats,
            Argument::Buffer { storage, window, .. } => {
                let all = 0..self.plan.plan().storages[storage.0 as usize].bytes();
                let window = window.clone().unwrap_or(all);
                Bound::Buffer { at: self.operand(*storage, window.start), shared_len: window.len() }
            }
        };
        let arguments = arguments.iter().map(argument).collect();
        let profile = tile::Profile::of(image.program());
        Ok(Step::Dispatch { label: label.into(), image, geometries, arguments, profile })
    }

    fn contract(&mut self, contraction: &Contraction) -> Result<Step, DeviceError> {
        // The plan holds its weights while it is prepared, so one address is one matrix; N says how it is cut.
        let Contraction { n, precision, .. } = *contraction;
        let matrix = (Arc::as_ptr(&contraction.weights).cast::<f32>() as usize, n, precision);
        let known = match self.weights.matrices.get(&matrix) {
            Some(known) => Arc::clone(known),
            None => self.device.weights().matrix(&contraction.weights, n, precision, || {
                // Packing allocates, so the most that it will take is charged first: columns in whole vectors of 16,
                // and at most two lines of padding for every vector of them.
                let (columns, each) =
                    (n.next_multiple_of(16), if precision == Precision::Bf16 && n >= 8 { 2 } else { 4 });
                let bytes = contraction.k().saturating_add(8).saturating_mul(columns).saturating_mul(each);
                let what = format!("weights of {} of {}", contraction.label, self.plan.plan().name);
                let charge = self.device.budget().charge(Purpose::Weights, &what, bytes as u64)?;
                Ok((Packed::new(contraction)?, charge))
            })?,
        };
        let packed = Arc::new(Packed::sharing(contraction, &known.value)?);
        self.weights.matrices.insert(matrix, known);
        // Offsets within the seat are the contraction's own.
        let terms = contraction.terms.iter().map(|term| self.operand(term.storage, 0)).collect();
        Ok(Step::Contract { packed, terms, out: self.operand(contraction.out, 0) })
    }

    /// The most seats of a chunk, and where scratch lies for so many.
    fn chunk(&self) -> Result<(usize, Layout), DeviceError> {
        let layout = |seats: usize| {
            let what = || format!("scratch of plan {} for {seats} seats", self.plan.plan().name);
            Layout::of(self.plan, seats).ok_or_else(|| DeviceError::unaddressable(what(), u64::MAX))
        };
        let staged = self.plan.plan().storages.iter().filter(|storage| {
            matches!(storage, Storage::Input { .. } | Storage::Output { .. } | Storage::State { .. })
        });
        let one = staged.map(Storage::bytes).fold(layout(1)?.bytes(), usize::saturating_add);
        let seats = (CHUNK_BYTES / one.max(1)).clamp(CHUNK_SEATS_MIN, CHUNK_SEATS_MAX).min(self.seats);
        Ok((seats, layout(seats)?))
    }

    fn bases(&mut self, layout: &Layout) -> Result<Box<[Base]>, DeviceError> {
        let storages = &self.plan.plan().storages;
        let constants = storages.iter().filter_map(|storage| match storage {
            Storage::Constant { label, bytes } => Some((label, bytes)),
            _ => None,
        });
        for (label, bytes) in constants {
            let held = self.device.weights().constant(bytes, || {
                let what = format!("constant {label} of {}", self.plan.plan().name);
                self.device.budget().charge(Purpose::Weights, &what, bytes.len() as u64)
            })?;
            if !self.weights.constants.iter().any(|known| Arc::ptr_eq(known, &held)) {
                self.weights.constants.push(held);
            }
        }
        let bases = storages.iter().enumerate().map(|(at, storage)| match storage {
            // An `Arc`'s contents follow two counts, so numbers in them are as aligned as counts are.
            Storage::Constant { bytes, .. } => Base::Constant(Arc::clone(bytes)),
            Storage::Input { port, bytes } => Base::Input { port: *port, seat_bytes: *bytes },
            Storage::SharedInput { port, .. } => Base::Input { port: *port, seat_bytes: 0 },
            Storage::Output { port, bytes } => Base::Output { port: *port, seat_bytes: *bytes },
            Storage::State { state, .. } => Base::State(*state),
            Storage::Resident { binding, .. } => Base::Resident(*binding),
            // What no command touches lies nowhere, and nobody looks.
            Storage::Scratch { .. } => Base::Scratch(layout.start(StorageId(at as u32)).unwrap_or(0)),
        });
        Ok(bases.collect())
    }

    fn slot(&mut self) -> Result<SlotMemory, DeviceError> {
        let (mut inputs, mut outputs) =
            (vec![0; self.plan.signature().inputs.len()], vec![0; self.plan.signature().outputs.len()]);
        for storage in &self.plan.plan().storages {
            // `PrepareOptions::check` keeps the products in range.
            match *storage {
                Storage::Input { port, bytes } => inputs[port] = bytes * self.seats,
                Storage::SharedInput { port, bytes } => inputs[port] = bytes,
                Storage::Output { port, bytes } => outputs[port] = bytes * self.seats,
                _ => {}
            }
        }
        // An input that no command reads is still brought by every call, and must land somewhere.
        for (bytes, port) in inputs.iter_mut().zip(&self.plan.signature().inputs) {
            let seats = if port.scope == lanes_core::Scope::Seat { self.seats } else { 1 };
            *bytes = port
                .bytes()
                .checked_mul(seats)
                .ok_or_else(|| DeviceError::unaddressable(port.name.clone(), u64::MAX))?;
        }
        let mut staging = |what: &str, sizes: Vec<usize>| {
            let sum = sizes.iter().fold(0usize, |sum, bytes| sum.saturating_add(*bytes));
            self.charge(Purpose::Staging, what, sum)?;
            sizes.into_iter().map(|bytes| Bytes::zeroed(what, bytes)).collect::<Result<Box<[_]>, _>>()
        };
        let (inputs, outputs) = (staging("inputs", inputs)?, staging("outputs", outputs)?);
        Ok(SlotMemory { inputs, outputs })
    }

    fn scratch(&mut self, layout: &Layout, operands_max: usize) -> Result<Box<[ThreadMemory]>, DeviceError> {
        let threads = self.device.threads();
        self.charge(Purpose::Scratch, "scratch", layout.bytes().saturating_mul(threads))?;
        let tiles = || {
            let mut tiles = tile::TileScratch::default();
            tiles.set_step_limit(self.device.steps_max());
            tiles
        };
        let thread = || {
            Ok(ThreadMemory {
                scratch: Bytes::zeroed("scratch", layout.bytes())?,
                bases: vec![std::ptr::null_mut(); self.plan.plan().storages.len()],
                terms: Vec::with_capacity(operands_max),
                arguments: Vec::with_capacity(operands_max),
                tiles: tiles(),
                fault: None,
            })
        };
        (0..threads).map(|_| thread()).collect()
    }
}

impl Step {
    /// How many it binds by a list.
    fn operands(&self) -> usize {
        match self {
            Self::Contract { terms, .. } => terms.len(),
            Self::Dispatch { arguments, .. } => arguments.len(),
            _ => 0,
        }
    }
}

/// About how long a command takes for one seat: 16 multiply-adds a nanosecond, 4 bytes that a kernel touches, or 32
/// that are only moved.
fn seat_ns(command: &Command) -> usize {
    let bytes = || command.touches().iter().map(|touch| touch.region.bytes()).fold(0, usize::saturating_add);
    match command {
        Command::Contract(contraction) => contraction.weights.len().saturating_mul(contraction.positions) / 16,
        Command::Dispatch { .. } => bytes() / 4,
        _ => bytes() / 32,
    }
}
