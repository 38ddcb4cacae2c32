//! A specialised kernel: typed SSA values in structured blocks.
//!
//! `Kernel { parameters, launch, body }`; `Body { values, blocks }`; a block is a list of ops; an op owns nested blocks.
//!
//! - Values and blocks are dense per body. A value is defined once: by an op's result or a block's argument.
//! - A use is dominated by its definition: earlier in the same block, or in (or as argument of) an enclosing block.
//! - The last op of a block is its terminator and there is no other in it.
//! - The entry block's arguments are the kernel's parameters, in order.
//! - After specialisation there are no calls, no config, no assumptions; vectors have constant extents; what is constant
//!   is a `Constant`; what is unused is gone.
//! - Not here: meaning of ops (`ops`), arithmetic on their bits (`eval`), text (`syntax`, `build`).

use std::collections::BTreeMap;
use std::fmt;

use crate::build;
use crate::facts::Facts;
use crate::launch::LaunchProgram;
use crate::ops::{Family, Flags, OpKind};
use crate::types::{ScalarType, Type};
use serde::{Deserialize, Serialize};

/// A value of one body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ValueId(pub u32);

/// A block of one body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlockId(pub u32);

impl ValueId {
    /// As an index into [`Body::values`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl BlockId {
    /// As an index into [`Body::blocks`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "^{}", self.0)
    }
}

/// A byte range of the source text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

/// What is known of a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// Its type. View extents and strides may name other values.
    pub ty: Type,
    /// Its bits, when it is defined by a `Constant` (in every lane, for a vector).
    pub constant: Option<u64>,
}

/// One operation. [`OpKind`] says what the lists hold, in which order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Op {
    /// What it does.
    pub kind: OpKind,
    /// Values it reads. Values named by the types of these (a view's extents) are read too.
    pub operands: Vec<ValueId>,
    /// Values it defines.
    pub results: Vec<ValueId>,
    /// Blocks it owns.
    pub blocks: Vec<BlockId>,
    /// Permissions; ignoring them is always correct.
    pub flags: Flags,
    /// Where it was written.
    pub span: Span,
}

impl Op {
    /// The only result, if there is exactly one.
    pub fn result(&self) -> Option<ValueId> {
        match self.results[..] {
            [result] => Some(result),
            _ => None,
        }
    }

    /// Calls `visit` on every value that the op reads: its operands, and what the types of these and of its results name.
    /// Not what its blocks read.
    pub fn each_read(&self, body: &Body, mut visit: impl FnMut(ValueId)) {
        for operand in &self.operands {
            visit(*operand);
        }
        for value in self.operands.iter().chain(&self.results) {
            body.ty(*value).each_value(&mut visit);
        }
    }
}

/// A straight list of ops, the last one a terminator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Values given to the block by its owner: parameters, an induction variable, carried values.
    pub arguments: Vec<ValueId>,
    /// In order of execution.
    pub ops: Vec<Op>,
}

/// The code of a kernel (or of its launch region).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Body {
    /// Indexed by [`ValueId`].
    pub values: Vec<Value>,
    /// Indexed by [`BlockId`]. `blocks[0]` is the entry. Blocks no op owns any more may remain, empty.
    pub blocks: Vec<Block>,
}

impl Body {
    /// The block that execution starts in.
    pub const ENTRY: BlockId = BlockId(0);

    /// The type of `value`.
    pub fn ty(&self, value: ValueId) -> &Type {
        &self.values[value.index()].ty
    }

    /// The bits of `value`, if it is a constant.
    pub fn constant(&self, value: ValueId) -> Option<u64> {
        self.values[value.index()].constant
    }

    /// The block `id`.
    pub fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id.index()]
    }

    /// Every op of every block.
    pub fn ops(&self) -> impl Iterator<Item = &Op> {
        self.blocks.iter().flat_map(|block| &block.ops)
    }

    /// Whether `op`, or one inside its blocks, is one that `test` accepts. Depth is bounded by the syntax.
    pub fn any_within(&self, op: &Op, test: &mut impl FnMut(&Op) -> bool) -> bool {
        test(op) || op.blocks.iter().any(|id| self.block(*id).ops.iter().any(|inner| self.any_within(inner, test)))
    }
}

/// One argument of the device ABI, in the order of the `launch(..)` signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// The SSA name in the source, without `%`.
    pub name: String,
    /// What is passed.
    pub kind: ParameterKind,
}

/// What a launch argument carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ParameterKind {
    /// A binding: bytes.
    Buffer,
    /// A 64-bit slot whose low bits hold the value.
    Scalar(ScalarType),
}

impl ParameterKind {
    /// The slot for a scalar that is written as text, as a config value is: a number, or `true` or `false`.
    ///
    /// # Errors
    /// Text that is no value of the type, and any text for a buffer; the message says what is accepted.
    pub fn slot(self, text: &str) -> Result<u64, String> {
        match self {
            Self::Buffer => Err("a buffer is not written as text".to_owned()),
            Self::Scalar(ty) => build::bound_bits(text, ty),
        }
    }
}

/// SHA-256 of a kernel as it was written: the whole text, the kernel's symbol in it, and the values bound to config that
/// the text declares. It says which kernel this is, whatever a compiler makes of it: every build of one, and every target,
/// gives the same. What a file is called, by which of its names the kernel was asked for, and config that the text does
/// not declare are not part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SourceDigest(pub [u8; 32]);

/// A verified, inlined, config-bound and folded kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The export name, or the symbol's text.
    pub name: String,
    /// Names what it was specialised from; see [`SourceDigest`].
    pub source: SourceDigest,
    /// Launch arguments.
    pub parameters: Vec<Parameter>,
    /// Computes the number of workgroups from workload arguments.
    pub launch: LaunchProgram,
    /// Work-items per workgroup: x, y, z, each at least 1.
    pub workgroup_size: [u32; 3],
    /// Work-items per subgroup: one of [`crate::ops::SUBGROUP_SIZES`].
    pub subgroup_size: u32,
    /// Total bytes of workgroup memory that `Alloca` asks for, each aligned.
    pub workgroup_bytes: u64,
    /// Where the lines of its source begin.
    pub lines: Lines,
    /// What every work-item runs.
    pub body: Body,
    /// By [`ValueId`] of the body.
    pub(crate) facts: Vec<Facts>,
}

/// Where the lines of a source begin, each file's counted from 1, and how the ops of a body that access memory are spelled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// First byte of every line.
    starts: Vec<u32>,
    /// First byte of every file but the first.
    files: Vec<u32>,
    /// By the first byte of the op.
    spellings: BTreeMap<u32, Box<str>>,
}

impl Lines {
    /// Those of `source`, in which further files begin at `files`, and of `body`, built from it.
    pub(crate) fn new(source: &str, files: impl Iterator<Item = u32>, body: &Body) -> Self {
        let accesses = body.ops().filter(|op| {
            matches!(
                op.kind.family(),
                Family::Read | Family::Write | Family::ReadLane | Family::WriteLane | Family::Atomic
            )
        });
        let spellings = accesses.filter_map(|op| {
            let text = source.get(op.span.start as usize..op.span.end as usize)?;
            Some((op.span.start, text.into()))
        });
        let spellings = spellings.collect();
        let breaks = source.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at as u32 + 1);
        Self { starts: std::iter::once(0).chain(breaks).collect(), files: files.collect(), spellings }
    }

    /// The name of the op that begins at byte `at`, if it accesses memory.
    pub fn spelling(&self, at: u32) -> Option<&str> {
        self.spellings.get(&at).map(AsRef::as_ref)
    }

    /// The line that byte `at` is in.
    pub fn line(&self, at: u32) -> u32 {
        let upto = |at: u32| self.starts.partition_point(|start| *start <= at);
        let behind = self.files.partition_point(|file| *file <= at);
        let file = behind.checked_sub(1).map_or(0, |before| self.files[before]);
        (upto(at) - upto(file) + 1) as u32
    }
}

impl Kernel {
    /// What is known of a value of the body wherever it is defined: for the width of an index, the alignment of an access.
    /// Nothing, for a value that is no integer scalar.
    ///
    /// It rests on promises of the source (`index.assume`, `where`), which are never checked.
    pub fn facts(&self, value: ValueId) -> Facts {
        self.facts.get(value.index()).copied().unwrap_or_else(|| Facts::of_type(self.body.ty(value)))
    }

    /// Work-items per workgroup: at most [`MAX_WORKGROUP_ITEMS`].
    pub fn items(&self) -> u32 {
        self.workgroup_size.iter().product()
    }
}

/// The most work-items a workgroup may have.
pub const MAX_WORKGROUP_ITEMS: u32 = 1024;

/// For reading while debugging; not Loom text, and not stable.
impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.workgroup_size;
        write!(f, "kernel {:?} workgroup_size({x}, {y}, {z})", self.name)?;
        self.body.write_block(f, Body::ENTRY, 1)?;
        writeln!(f)
    }
}

impl Body {
    fn write_values(&self, f: &mut fmt::Formatter<'_>, values: &[ValueId]) -> fmt::Result {
        for (at, value) in values.iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            write!(f, "{comma}{value}: {}", self.ty(*value))?;
        }
        Ok(())
    }

    /// ` ^0(%1: i32) {`, the ops, `}`.
    fn write_block(&self, f: &mut fmt::Formatter<'_>, id: BlockId, depth: usize) -> fmt::Result {
        let block = self.block(id);
        write!(f, " {id}(")?;
        self.write_values(f, &block.arguments)?;
        writeln!(f, ") {{")?;
        for op in &block.ops {
            write!(f, "{:1$}", "", 2 * depth)?;
            if !op.results.is_empty() {
                self.write_values(f, &op.results)?;
                write!(f, " = ")?;
            }
            write!(f, "{:?}", op.kind)?;
            for operand in &op.operands {
                match self.constant(*operand) {
                    Some(bits) => write!(f, " {operand}={bits:#x}")?,
                    None => write!(f, " {operand}")?,
                }
            }
            for inner in &op.blocks {
                self.write_block(f, *inner, depth + 1)?;
            }
            writeln!(f)?;
        }
        write!(f, "{:1$}}}", "", 2 * (depth - 1))
    }
}
