//! Runs tile programs: kernels whose work-items advance together, one loop over a tile per op.
//!
//! ```text
//! CpuImage + Geometry + [Arg] ──> for each tile: slots, registers, a range of active items ──> block 0
//! ```
//!
//! - Every access is checked against the length of what it touches; every loop counts against a budget, and so do tiles. A program that
//!   oversteps one stops with a [`Fault`]; what it wrote before stays written.
//! - Items that are masked off touch no memory.
//! - [`run`]: all on the calling thread, workgroups ascending. Nothing is allocated once `scratch` has been used with the image.
//! - A launch that takes long enough is shared by threads (`spread`), if nobody can see in which order its workgroups ran
//!   (`order`): results are the same bits, and the fault is that of the lowest tile.
//! - Not here: cutting a plan into launches (the device), and what ops compute (`loom_compiler::eval`).

mod folds;
mod kernels;
mod memory;
mod order;
mod product;
mod run;
mod spread;

pub(crate) use spread::{Crew, Profile, WORTH_NS, spread};
pub use spread::{Team, TeamKernel};

use loom_compiler::ir::ParameterKind;
use loom_compiler::launch::Geometry;
use loom_compiler::tile::CpuImage;

use crate::isa::Isa;
use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::AtomicU64;

/// One launch argument.
#[derive(Clone, Copy, Debug)]
pub enum Arg {
    /// Memory, by address and length in bytes.
    Buffer {
        /// First byte. Any alignment.
        ptr: *mut u8,
        /// How many bytes.
        len: usize,
    },
    /// A scalar's bits, in the low end.
    Scalar(u64),
}

/// What a buffer of a program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Memory {
    /// A launch argument.
    Argument,
    /// Scratch of a workgroup.
    Workgroup,
    /// Scratch of the work-items.
    Private,
    /// Bytes of the program.
    Constant,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Argument => "buffer argument",
            Self::Workgroup => "workgroup buffer",
            Self::Private => "private buffer",
            Self::Constant => "constant buffer",
        })
    }
}

/// Why a launch stopped before its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// An access outside of its buffer.
    #[error(
        "kernel `{kernel}`: {op} at byte {at} (line {line}) of the source touches bytes {index}..{} of {memory} {buffer}, which has {limit} bytes",
        i128::from(*index) + *bytes as i128
    )]
    OutOfBounds {
        /// The kernel's export name.
        kernel: String,
        /// The op's spelling.
        op: Cow<'static, str>,
        /// Where it was written: the byte in the source.
        at: u32,
        /// And the line, from 1.
        line: u32,
        /// The first byte that was asked for, as a signed offset from the start of what the item may touch.
        index: i64,
        /// How many were asked for: the elements that lie side by side of all items that run together, or one.
        bytes: usize,
        /// What the buffer is.
        memory: Memory,
        /// Position of the buffer among the program's: launch arguments first.
        buffer: u32,
        /// How many bytes the item may touch: the buffer's, the workgroup's part of it, or the item's.
        limit: usize,
    },
    /// An atomic access to a cell that does not start at a multiple of its size.
    #[error(
        "kernel `{kernel}`: {op} at byte {at} (line {line}) of the source touches byte {index} of {memory} {buffer}: not on a boundary of its {bytes} bytes"
    )]
    Misaligned {
        /// The kernel's export name.
        kernel: String,
        /// The op's spelling.
        op: Cow<'static, str>,
        /// Where it was written: the byte in the source.
        at: u32,
        /// And the line, from 1.
        line: u32,
        /// The first byte of the cell, from the buffer's.
        index: i64,
        /// Size of the cell.
        bytes: usize,
        /// What the buffer is.
        memory: Memory,
        /// Position of the buffer among the program's: launch arguments first.
        buffer: u32,
    },
    /// A `kernel.assert` that does not hold.
    #[error(
        "kernel `{kernel}`: kernel.assert {text:?} at byte {at} (line {line}) of the source fails for work-item ({}, {}, {}) of the dispatch",
        item[0], item[1], item[2]
    )]
    Assert {
        /// The kernel's export name.
        kernel: String,
        /// As written; empty without a text.
        text: String,
        /// Where it was written: the byte in the source.
        at: u32,
        /// And the line, from 1.
        line: u32,
        /// The first work-item of those that ran together: its dispatch id.
        item: [u64; 3],
    },
    /// More turns of loops than the budget.
    #[error(
        "kernel `{kernel}`: {op} at byte {at} (line {line}) of the source is still running after {limit} turns of loops: its `steps_max`"
    )]
    Steps {
        /// The kernel's export name.
        kernel: String,
        /// The loop's spelling.
        op: Cow<'static, str>,
        /// Where it was written: the byte in the source.
        at: u32,
        /// And the line, from 1.
        line: u32,
        /// The budget.
        limit: u64,
    },
    /// A thread of the launch panicked: a bug of ours, contained.
    #[error("kernel `{kernel}`: {said}")]
    Panicked {
        /// The kernel's export name.
        kernel: String,
        /// With what message.
        said: String,
    },
    /// The launch does not fit the image.
    #[error("kernel `{kernel}`: {what}")]
    Launch {
        /// The kernel's export name.
        kernel: String,
        /// What was found and what is accepted.
        what: String,
    },
}

/// Turns of loops that one launch may take, and tiles that it may have, unless told otherwise.
pub const STEP_LIMIT: u64 = 1 << 32;

/// Work-items that one launch may have. The smallest kernel runs for a minute over so many, and four bytes for each are
/// more than machines have.
pub const WORK_ITEMS_MAX: u64 = 1 << 36;

/// What is wrong with `geometry`, if it has more than [`WORK_ITEMS_MAX`] work-items.
pub(crate) fn check_items(geometry: &Geometry) -> Result<(), String> {
    let Geometry { workgroups, workgroup_size } = geometry;
    // Nothing times anything is nothing, however much it is.
    let counts = workgroups.iter().chain(workgroup_size);
    let items = counts.clone().try_fold(1u64, |product, &count| product.checked_mul(u64::from(count)));
    if items.is_some_and(|items| items <= WORK_ITEMS_MAX) || counts.clone().any(|&count| count == 0) {
        return Ok(());
    }
    let ([x, y, z], [sx, sy, sz]) = (workgroups, workgroup_size);
    let of = format!("{x} x {y} x {z} workgroups of {sx} x {sy} x {sz} work-items");
    Err(format!("{of}, and a launch has at most {WORK_ITEMS_MAX} work-items in all"))
}

/// Memory that a thread uses for its launches, one after the other. Grows to what the largest needs.
#[derive(Debug)]
pub struct TileScratch {
    isa: Isa,
    step_limit: u64,
    state: run::State,
    /// Of launches that several threads share: turns of loops, by range of tiles.
    turns: Vec<AtomicU64>,
}

impl Default for TileScratch {
    fn default() -> Self {
        Self::new(Isa::best())
    }
}

impl TileScratch {
    /// Scratch for loops of the set `isa`, or of the best one if the machine lacks it.
    pub fn new(isa: Isa) -> Self {
        let isa = if isa.available() { isa } else { Isa::best() };
        Self { isa, step_limit: STEP_LIMIT, state: run::State::default(), turns: Vec::new() }
    }

    /// Stops launches after `turns` turns of loops, or as many tiles: of the whole launch, however many threads share it.
    pub fn set_step_limit(&mut self, turns: u64) {
        self.step_limit = turns;
    }
}

/// Runs every workgroup of `geometry`, ascending, on this thread.
///
/// # Safety
///
/// Each buffer argument is valid for reading and writing `len` bytes until the call returns (for reading only, if the
/// kernel has no store to it), and no other thread writes to it, or reads what the kernel writes, in the meantime, but
/// by atomic accesses to what the kernel accesses by such only. Buffers
/// may overlap: accesses are made through raw pointers.
pub unsafe fn run(image: &CpuImage, geometry: &Geometry, args: &[Arg], scratch: &mut TileScratch) -> Result<(), Fault> {
    check(image, geometry, args)?;
    let loops = kernels::loops(scratch.isa);
    // SAFETY: the caller's promise, and `loops` are for an available set.
    unsafe { run::launch(image, geometry, args, &mut scratch.state, loops, scratch.step_limit, None) }
}

/// [`run`] over slices: each buffer parameter takes the next of `buffers`, each scalar the next of `scalars`.
pub fn run_slices(
    image: &CpuImage,
    geometry: &Geometry,
    buffers: &mut [&mut [u8]],
    scalars: &[u64],
    scratch: &mut TileScratch,
) -> Result<(), Fault> {
    // SAFETY: the slices are borrowed mutably, so nobody else touches them while this runs.
    unsafe { run(image, geometry, &arguments(image, buffers, scalars), scratch) }
}

/// The arguments of [`run_slices`].
fn arguments(image: &CpuImage, buffers: &mut [&mut [u8]], scalars: &[u64]) -> Vec<Arg> {
    let (mut buffers, mut scalars) = (buffers.iter_mut(), scalars.iter());
    let mut args = Vec::with_capacity(image.parameters.len());
    for parameter in &image.parameters {
        let arg = match parameter.kind {
            ParameterKind::Buffer => {
                buffers.next().map(|bytes| Arg::Buffer { ptr: bytes.as_mut_ptr(), len: bytes.len() })
            }
            ParameterKind::Scalar(_) => scalars.next().map(|&bits| Arg::Scalar(bits)),
        };
        args.extend(arg);
    }
    args
}

fn check(image: &CpuImage, geometry: &Geometry, args: &[Arg]) -> Result<(), Fault> {
    let refuse = |what: String| Err(Fault::Launch { kernel: image.name.clone(), what });
    if args.len() != image.parameters.len() {
        return refuse(format!("{} arguments given, {} expected", args.len(), image.parameters.len()));
    }
    for (arg, parameter) in args.iter().zip(&image.parameters) {
        match (arg, parameter.kind) {
            (Arg::Buffer { .. }, ParameterKind::Buffer) | (Arg::Scalar(_), ParameterKind::Scalar(_)) => {}
            (Arg::Buffer { .. }, ParameterKind::Scalar(ty)) => {
                return refuse(format!("a buffer given for `{}`, which is {ty}", parameter.name));
            }
            (Arg::Scalar(_), ParameterKind::Buffer) => {
                return refuse(format!("a scalar given for `{}`, which is a buffer", parameter.name));
            }
        }
    }
    if geometry.workgroup_size != image.program().workgroup_size {
        let (found, accepted) = (geometry.workgroup_size, image.program().workgroup_size);
        return refuse(format!("workgroups of {found:?} items asked for, compiled for {accepted:?}"));
    }
    // The executor multiplies counts: what passes here does not overflow there.
    check_items(geometry).or_else(refuse)
}
