//! Recorded commands over declared storage.
//!
//! ```text
//! constants ─┐
//! inputs ────┤                                           ┌─> outputs
//! state rows ┴─ gather ─> dispatch, contract, copy, fill ┴─ scatter ─> state rows
//! ```
//!
//! - A plan says what is computed for *each seat*. Per-seat storage is seat-contiguous: seat `s` of a storage with `n`
//!   bytes a seat lies at `s * n` from the storage's start. Offsets, strides and regions below are within one seat.
//! - A command treats seats independently. A backend may therefore run a plan over any sub-range of the seats, in
//!   any order and on any number of threads, and every seat's bits stay the same.
//! - Commands are in program order; what may overlap is inferred from declared access (`hazard`).
//! - Not here: where scratch lies (the device plans it from lifetimes at prepare), and driver objects.

mod access;
mod check;
mod epilogue;
mod identity;
mod precision;

pub use access::{Place, Touch};
pub use check::{COMMANDS_MAX, Checked, PlanError};
pub use epilogue::{Elements, Epilogue, Operand};
pub use identity::identity;
pub use precision::{Precision, bf16_bits};

use loom_compiler::CpuImage;
use std::ops::Range;
use std::sync::Arc;

/// Starts of [windows](Argument::Buffer) are multiples of it: the strictest alignment of a kernel's element.
pub const WINDOW_ALIGN: usize = 16;

/// A storage of one plan: an index into [`Plan::storages`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorageId(pub u32);

/// A kernel of one plan: an index into [`Plan::kernels`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelId(pub u32);

/// Where bytes of a plan live. Sizes are in bytes.
#[derive(Clone, Debug)]
pub enum Storage {
    /// Immutable bytes, the same for every seat; uploaded once at prepare.
    Constant {
        /// For errors and traces.
        label: String,
        /// The contents.
        bytes: Arc<[u8]>,
    },
    /// Stacked input `port`: `bytes` a seat.
    Input {
        /// Index into the signature's inputs.
        port: usize,
        /// One seat's size.
        bytes: usize,
    },
    /// An input that one value serves for a whole turn.
    SharedInput {
        /// Index into the signature's inputs.
        port: usize,
        /// The value's size.
        bytes: usize,
    },
    /// Stacked output `port`: `bytes` a seat.
    Output {
        /// Index into the signature's outputs.
        port: usize,
        /// One seat's size.
        bytes: usize,
    },
    /// The rows of state `state`; only [`Command::Gather`] and [`Command::Scatter`] may name it.
    State {
        /// Index into the signature's states.
        state: usize,
        /// One row's size.
        bytes: usize,
    },
    /// Part of a buffer that lives on between turns, bound when the plan is prepared. One value, not one a seat: a plan
    /// that writes any is prepared for turns of one seat. A device orders submissions over such memory, and reading
    /// what an earlier one left there is what it is for.
    Resident {
        /// Index into [`PrepareOptions::residents`](crate::device::PrepareOptions::residents).
        binding: usize,
        /// Its size.
        bytes: usize,
    },
    /// Memory that lives within one turn. Undefined before its first write in the turn.
    Scratch {
        /// One seat's size.
        bytes: usize,
    },
}

impl Storage {
    /// Bytes of one seat, row or shared value of it.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Constant { bytes, .. } => bytes.len(),
            Self::Input { bytes, .. }
            | Self::SharedInput { bytes, .. }
            | Self::Output { bytes, .. }
            | Self::State { bytes, .. }
            | Self::Resident { bytes, .. }
            | Self::Scratch { bytes } => *bytes,
        }
    }

    /// Whether one value serves all seats.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Constant { .. } | Self::SharedInput { .. } | Self::Resident { .. })
    }
}

/// Equally long runs of bytes at equal distances: `rows` runs of `row_bytes`, `stride` apart, the first at `offset`.
/// Within one seat of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Bytes from the seat's start to the first run.
    pub offset: usize,
    /// Length of each run in bytes.
    pub row_bytes: usize,
    /// Bytes from the start of one run to the next; at least `row_bytes` when `rows > 1`.
    pub stride: usize,
    /// How many runs.
    pub rows: usize,
}

impl Region {
    /// One run of `bytes` at `offset`.
    pub const fn contiguous(offset: usize, bytes: usize) -> Self {
        Self { offset, row_bytes: bytes, stride: bytes, rows: 1 }
    }

    /// All bytes it covers.
    pub const fn bytes(&self) -> usize {
        self.row_bytes * self.rows
    }

    /// One past the last byte it covers, within the seat.
    pub const fn end(&self) -> usize {
        if self.rows == 0 { self.offset } else { self.offset + (self.rows - 1) * self.stride + self.row_bytes }
    }
}

/// How a command touches a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes all of it, reads none.
    Write,
    /// Reads and writes.
    ReadWrite,
    /// Order-free atomic updates: two of them need no order between them.
    Accumulate,
}

/// A declared touch of one region of one storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The storage.
    pub storage: StorageId,
    /// Where in a seat of it.
    pub region: Region,
    /// How.
    pub access: Access,
}

/// A number that a launch needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// The raw bits of the value in the low bits, as the kernel's argument type reads them.
    Bits(u64),
    /// The number of seats being run.
    Seats,
}

/// One launch argument of a kernel, in the order of its signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// A `buffer`: starts at seat 0 of the storage, so the kernel sees whole seats `bytes` apart; `uses` are all the
    /// bytes of a seat that the kernel touches through this argument.
    Buffer {
        /// The storage it binds.
        storage: StorageId,
        /// The bytes of a shared storage that the kernel sees as its buffer; `None` is all of it. The start is a
        /// multiple of [`WINDOW_ALIGN`].
        window: Option<Range<usize>>,
        /// Every region it touches, with the access; within the storage, not the window, and inside the window.
        uses: Vec<(Region, Access)>,
    },
    /// A scalar.
    Scalar(Scalar),
}

/// What is applied to a contraction's sum, elementwise, before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
#[non_exhaustive]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// max(x, 0); NaN stays NaN.
    Relu,
    /// 1 / (1 + e^-x).
    Sigmoid,
    /// tanh x.
    Tanh,
    /// x / (1 + e^-x).
    Silu,
}

/// One stretch of a contraction's left operand. For position `p`, its K elements are, for `t` in `0..taps` and `c` in
/// `0..tap_len`, the f32 at element `offset + p*position_stride + t*tap_stride + c` of the seat: a row of a matrix
/// (`taps` 1), or the window of a convolution over channels-last data, read in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Where it is read: per-seat storage, or a constant or shared input (the same for every seat).
    pub storage: StorageId,
    /// First element.
    pub offset: usize,
    /// Elements between positions.
    pub position_stride: usize,
    /// Runs of a window.
    pub taps: usize,
    /// Elements between runs.
    pub tap_stride: usize,
    /// Elements of a run.
    pub tap_len: usize,
}

impl Term {
    /// How much of K it covers.
    pub const fn k(&self) -> usize {
        self.taps * self.tap_len
    }
}

/// `out[p, n] = activation(Σ_k left[p, k] · weights[k, n] + bias[n])` for every seat and every position `p`, in f32.
///
/// `left[p]` is the terms' elements one after the other; it and the weights are rounded to the precision first. The order of the
/// sum over k is a function of K, N and the device only, never of seats ([`Capabilities`](crate::device::Capabilities) tells it);
/// then the bias is added, then the activation.
#[derive(Clone, Debug)]
pub struct Contraction {
    /// For errors and traces: the node it came from.
    pub label: String,
    /// The left operand, stretch by stretch; their `k()` add up to K.
    pub terms: Vec<Term>,
    /// `[K, N]`, row-major.
    pub weights: Arc<[f32]>,
    /// What `left` and `weights` are rounded to.
    pub precision: Precision,
    /// `[N]`.
    pub bias: Option<Arc<[f32]>>,
    /// Applied last.
    pub activation: Activation,
    /// Positions per seat.
    pub positions: usize,
    /// N.
    pub n: usize,
    /// Where the result goes: per-seat storage, or resident memory.
    pub out: StorageId,
    /// First element of the result in a seat.
    pub out_offset: usize,
    /// Elements between positions of the result; its columns are contiguous.
    pub out_position_stride: usize,
}

impl Contraction {
    /// K: the length of every sum.
    pub fn k(&self) -> usize {
        self.terms.iter().map(Term::k).sum()
    }
}

/// One recorded command.
#[derive(Clone, Debug)]
pub enum Command {
    /// Runs a kernel. Its geometry comes from its launch region over `workload`.
    Dispatch {
        /// For errors and traces: the node it came from.
        label: String,
        /// Which kernel.
        kernel: KernelId,
        /// Workload arguments, in order.
        workload: Vec<Scalar>,
        /// Launch arguments, in order.
        arguments: Vec<Argument>,
    },
    /// A matrix product, a convolution over channels-last data, or the products of a recurrent cell.
    Contract(Contraction),
    /// Copies `from` to `to`, run by run; both have the same `row_bytes` and `rows`. They do not overlap.
    Copy {
        /// Where from: any storage but a state.
        from: (StorageId, Region),
        /// Where to: an output, resident memory or scratch.
        to: (StorageId, Region),
    },
    /// Repeats a 4-byte pattern over a region whose `row_bytes` is a multiple of 4.
    Fill {
        /// Where to: an output, resident memory or scratch.
        to: (StorageId, Region),
        /// The pattern, little-endian.
        pattern: u32,
    },
    /// Copies part of the row each seat *reads* into the seat's own storage.
    Gather {
        /// The state storage.
        state: StorageId,
        /// Which bytes of the row, as runs.
        row: Region,
        /// Where to: an output or scratch, same runs.
        to: (StorageId, Region),
    },
    /// Copies from the seat's own storage into part of the row each seat *writes*. All scatters of a turn together
    /// write every byte of the row.
    Scatter {
        /// Where from.
        from: (StorageId, Region),
        /// The state storage.
        state: StorageId,
        /// Which bytes of the row, as runs.
        row: Region,
    },
}

impl Command {
    /// What errors and traces call it: the node a kernel or contraction came from, or the kind of move.
    pub fn label(&self) -> &str {
        match self {
            Self::Dispatch { label, .. } => label,
            Self::Contract(contraction) => &contraction.label,
            Self::Copy { .. } => "copy",
            Self::Fill { .. } => "fill",
            Self::Gather { .. } => "gather",
            Self::Scatter { .. } => "scatter",
        }
    }
}

/// A recorded plan, as data. [`Plan::check`] makes it one that a device takes.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// For errors, metrics and traces.
    pub name: String,
    /// Storage, named by [`StorageId`].
    pub storages: Vec<Storage>,
    /// Compiled kernels, named by [`KernelId`].
    pub kernels: Vec<Arc<CpuImage>>,
    /// In program order.
    pub commands: Vec<Command>,
    /// Which launches may be done with the contraction that they go on with.
    pub epilogues: Vec<Epilogue>,
}

impl Plan {
    /// Adds a storage.
    pub fn storage(&mut self, storage: Storage) -> StorageId {
        self.storages.push(storage);
        StorageId(self.storages.len() as u32 - 1)
    }

    /// Adds a kernel.
    pub fn kernel(&mut self, kernel: Arc<CpuImage>) -> KernelId {
        self.kernels.push(kernel);
        KernelId(self.kernels.len() as u32 - 1)
    }
}
