//! A verified kernel to PTX, the text that NVIDIA's driver compiles for the GPU in hand.
//!
//! ```text
//! Kernel ──emit──> Image { text, parameters, launch, .. }      a module of one `.entry`, readable, source lines beside it
//! ```
//!
//! - A pure function of the kernel and its [`Options`]: the same text every time, and no GPU or SDK to make it.
//! - `.target` and `.version` are the least that the kernel needs, never above what the options allow; a choice between
//!   instructions is made by what they allow.
//! - Results are those of `eval`, bit for bit, but for the payload of a NaN and for the few functions that the standard library
//!   computes on the CPU (`expand` names them), and for products of floats on tensor cores (`tensor`). Nothing is flushed to zero,
//!   fused or approximated.
//! - An asynchronous copy is one (`cp.async`) where the target has it, and accesses are not checked; else it is made at once.
//! - A subgroup is a warp. Who takes part in an exchange is followed through branches and loops as the interpreter defines it.
//! - Pointers are 64 bits; an `index` is held in 32 where facts prove that it fits.
//! - Elements of memory are assumed to lie on multiples of their size, and buffers to start on [`BUFFER_ALIGN`].
//! - What cannot be expressed is [`Unsupported`], which names the op.
//! - Not here: assembling and launching (the backend), the meaning of ops (`ops`, `eval`).

mod arithmetic;
mod atomic;
mod collective;
mod control;
mod convert;
mod copy;
mod early;
mod emitter;
mod fault;
mod fragment;
mod group;
mod memory;
mod tensor;
mod text;
mod vector;

pub use fault::{FAULT_BYTES, Fault, Site, SiteKind};
pub use group::multiplies_in_groups;

use crate::copies;
use crate::ir::{Kernel, Parameter, SourceDigest, Span};
use crate::launch::LaunchProgram;
use crate::types::ScalarType;

/// What every buffer's address is assumed to be a multiple of.
pub const BUFFER_ALIGN: u64 = 16;

/// Bytes of workgroup memory that a kernel may declare; more is asked for at the launch.
pub const STATIC_SHARED_BYTES: u64 = 48 << 10;

/// A compute capability: what a GPU has, or what a text needs. `sm_90a` is architecture 90 with features that no other has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sm {
    /// Ten times the capability: 75, 80, 90.
    pub architecture: u32,
    /// Whether features of this architecture alone may be used.
    pub specific: bool,
}

impl Sm {
    /// The oldest that is emitted for.
    pub const LEAST: Self = Self::new(75);

    /// `sm_NN`.
    pub const fn new(architecture: u32) -> Self {
        Self { architecture, specific: false }
    }

    /// Of `sm_NN` or `sm_NNa`.
    ///
    /// # Errors
    /// Another spelling, or one that is older than [`Self::LEAST`]; the message says what is accepted.
    pub fn parse(text: &str) -> Result<Self, String> {
        let accepted = || format!("`{text}`: sm_75, or a later sm_NN or sm_NNa, is accepted");
        let number = text.strip_prefix("sm_").ok_or_else(accepted)?;
        let (digits, specific) = number.strip_suffix('a').map_or((number, false), |digits| (digits, true));
        let architecture = digits.parse::<u32>().map_err(|_| accepted())?;
        let known = (Self::LEAST.architecture..1000).contains(&architecture) && digits.len() <= 3;
        if known { Ok(Self { architecture, specific }) } else { Err(accepted()) }
    }
}

impl std::fmt::Display for Sm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sm_{}{}", self.architecture, if self.specific { "a" } else { "" })
    }
}

/// A version of the PTX language: `(9, 0)` is 9.0.
pub type Version = (u32, u32);

/// When a kernel may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// When the kernels that its launch comes after have ended.
    Behind,
    /// Before, from sm_90 on: it waits for them by itself before it touches memory that they may write, which is all but the
    /// workgroup's own and some launch arguments. [`Image::waits`] says whether it does.
    Early {
        /// Bit n for launch argument n, of the first 64: a buffer that nobody writes while the kernel, or one before it, runs.
        constants: u64,
    },
}

/// For whom, and how, a kernel is emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The GPU in hand: what it has may be used.
    pub target: Sm,
    /// The newest version of the language that the driver in hand takes.
    pub version: Version,
    /// Whether each access is compared with its buffer's length. A text so made touches no byte outside of its buffers.
    pub checked: bool,
    /// When it may begin.
    pub start: Start,
}

impl Default for Options {
    /// A current data-centre GPU, CUDA 13.0, and whatever launches kernels.
    fn default() -> Self {
        Self { target: Sm::new(90), version: (9, 0), checked: false, start: Start::Behind }
    }
}

/// What a parameter of the `.entry` is, in the order of the text.
///
/// First an address (8 bytes) for each buffer, in the order of bindings; then the scalars in order, 4 bytes each for types of up
/// to 32 bits and 8 for others, as the packed scalars of a launch are: narrower integers are extended, narrower floats followed
/// by zeros. Then, where the kernel asks for them, the lengths of buffers, and the fault record. Each lies on a multiple of its
/// size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// The address of launch argument `argument`, a buffer.
    Buffer {
        /// Its position among all launch arguments.
        argument: usize,
    },
    /// Launch argument `argument`.
    Scalar {
        /// Its position among all launch arguments.
        argument: usize,
        /// Its type.
        ty: ScalarType,
    },
    /// The length in bytes, 64 bits, of launch argument `argument`, a buffer.
    Length {
        /// Its position among all launch arguments.
        argument: usize,
    },
    /// The address of [`FAULT_BYTES`] bytes of device memory, cleared before the launch: see [`Fault`].
    Faults,
}

/// A parameter of the `.entry`, and where it lies in the block of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// What is passed.
    pub passed: Passed,
    /// First byte.
    pub offset: usize,
    /// 4 or 8.
    pub bytes: usize,
}

/// A kernel as PTX, and what is needed to launch it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The export name of the kernel.
    pub name: String,
    /// The name of the `.entry`.
    pub entry: String,
    /// Which kernel it is of; as [`Kernel::source`].
    pub source: SourceDigest,
    /// The module's text.
    pub text: String,
    /// The least target that has what it uses: the text's `.target`.
    pub target: Sm,
    /// The least version that has what it uses: the text's `.version`.
    pub version: Version,
    /// Launch arguments, in order.
    pub parameters: Vec<Parameter>,
    /// Parameters of the `.entry`, in order.
    pub slots: Vec<Slot>,
    /// Computes the number of workgroups from workload arguments.
    pub launch: LaunchProgram,
    /// Workgroup memory that the text declares.
    pub static_shared_bytes: u64,
    /// Workgroup memory that the launch must ask for, beyond [`STATIC_SHARED_BYTES`] by a function attribute.
    pub dynamic_shared_bytes: u64,
    /// Private memory of one item that the text declares, spilled registers not counted.
    pub local_bytes: u64,
    /// The most registers that an item may have so that one workgroup fits a multiprocessor.
    pub registers_max: u32,
    /// Whether each access is compared with its buffer's length.
    pub checked: bool,
    /// Whether it waits for the kernels that its launch comes after by itself, so that it may be launched before they have ended.
    pub waits: bool,
    /// What the fault record's `site` counts.
    pub sites: Vec<Site>,
}

/// What the emitter can not express.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kernel `{kernel}`: {what} at byte {} of the source is not supported on {target}", span.start)]
pub struct Unsupported {
    /// The kernel's export name.
    pub kernel: String,
    /// The op, and what about it.
    pub what: String,
    /// For which target.
    pub target: Sm,
    /// Where it was written.
    pub span: Span,
}

/// Emits `kernel` as PTX. `source` is the text that its spans point into, for comments; without it they name lines alone.
///
/// # Errors
/// Subgroups of 64, and ops that the target does not have; see [`Unsupported`].
pub fn emit(kernel: &Kernel, source: &str, options: &Options) -> Result<Image, Unsupported> {
    let flies = options.target.architecture >= 80 && options.version >= (7, 0) && !options.checked;
    let copied = if flies { copies::in_flight(kernel) } else { copies::at_once(kernel) };
    let kernel = copied.as_ref().unwrap_or(kernel);
    // Accesses name their storage here as in a tile program.
    let settled = crate::tile::settle(kernel).map_err(|crate::tile::Unsupported { kernel, what, span }| {
        Unsupported { kernel, what, target: options.target, span }
    })?;
    emitter::Emitter::new(settled.as_ref().unwrap_or(kernel), source, options)?.run()
}
