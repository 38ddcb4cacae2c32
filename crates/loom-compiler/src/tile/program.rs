//! A tile program: what the CPU runs for a kernel, as plain data.
//!
//! ```text
//! slots     u64 each: arguments, constants, loop counters     one value for the whole tile
//! frame     registers of `capacity` elements                  one value per work-item
//! buffers   bindings, workgroup scratch, private scratch      bytes
//! ```
//!
//! - A tile is `segments × width` work-items, item `i` being item `i % width` of segment `i / width`. What the segments are
//!   depends on the kernel ([`Shape`]). At most `capacity` items.
//! - The work-items of a tile advance together, one instruction at a time; a workgroup whose items meet (barriers,
//!   collectives, workgroup memory) lies in one tile, so that meeting is nothing to do.
//! - An address is affine in the item (`base + l·(i % width) + g·(i / width)`, all three in slots) or in a register.
//! - An executor checks every access; nothing in a program needs to be trusted. Indices into the program's own tables
//!   are in range, and [`Block`]s nest without cycles: a block is only named by instructions of blocks before it.
//! - Not here: how a kernel becomes one (`compile`), and how it is run (`backend-cpu`).

pub use crate::eval::Op;
use crate::fragment::{Fragment, Product};
use crate::ir::Span;
use crate::ops::{Atomic, Combine, IntPredicate, Scan, ShuffleMode};
use crate::types::ScalarType;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// A scalar of the program: an index into its slots, each 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot(pub u32);

/// A register: the byte offset of its first element in the frame, a multiple of 64. It holds `capacity` elements of the
/// type that the instruction names, packed as in memory; an `i1` is a byte, 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Reg(pub u32);

/// A block: an index into [`Program::blocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Block(pub u32);

/// A place in the source, for faults: an index into [`Program::sites`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SiteId(pub u32);

/// How work-items are cut into tiles, and what `g` (the segment) and `l` (the item in it) of a tile mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Shape {
    /// Workgroup borders do not matter: the items along x are one line, `width` of them a segment. `sy = sz = 1`.
    Line {
        /// Segment length: what an item's id is divided by, or nothing, when the whole line is one segment.
        divisor: Option<Slot>,
    },
    /// As `Line`, with one line for each workgroup along y: a segment is a line. `sy = sz = 1`.
    Rows,
    /// A segment is a workgroup along x. `sy = sz = 1`.
    Groups,
    /// A tile lies in one workgroup; its flat id is `g·sx + l`.
    Group,
}

/// `base + l·(i % width) + g·(i / width)` for item `i`; wrapping, in 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Affine {
    /// The value of item 0 of segment 0.
    pub base: Slot,
    /// Per item of a segment.
    pub l: Slot,
    /// Per segment.
    pub g: Slot,
}

/// The byte offsets of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Offsets {
    /// Affine in the item.
    Affine(Affine),
    /// One i64 per item.
    Gather(Reg),
}

/// An access of one element per item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Access {
    /// Index into [`Program::buffers`].
    pub buffer: u32,
    /// Where in the buffer, in bytes.
    pub offsets: Offsets,
    /// For faults.
    pub site: SiteId,
}

/// An operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Source {
    /// A register.
    Reg(Reg),
    /// The same value for every item.
    Slot(Slot),
    /// A register with one element a segment of the tile, for at most [`Program::segments_max`].
    Segment(Reg),
    /// Read from memory by the instruction itself.
    Memory(Access),
}

/// Where a result goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Target {
    /// A register.
    Reg(Reg),
    /// Written to memory by the instruction itself.
    Memory(Access),
}

/// Which active items go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Condition {
    /// All or none: 0 or 1.
    Slot(Slot),
    /// Those whose `value` compares so with `limit`; 64 bits.
    Compare {
        /// The comparison.
        predicate: IntPredicate,
        /// The left side.
        value: Affine,
        /// The right side.
        limit: Slot,
    },
    /// Those whose byte is 1.
    Reg(Reg),
}

/// A scalar instruction: computed once, with [`crate::eval`]'s meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ScalarInst {
    /// What.
    pub op: Op,
    /// Result.
    pub to: Slot,
    /// Operands; the op says how many count.
    pub from: [Slot; 3],
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Inst {
    /// Once for the tile.
    Scalar(ScalarInst),
    /// Reads one element at a byte offset that all items share.
    LoadScalar {
        /// What is read.
        ty: ScalarType,
        /// Result.
        to: Slot,
        /// Index into [`Program::buffers`].
        buffer: u32,
        /// Byte offset.
        offset: Slot,
        /// For faults.
        site: SiteId,
    },
    /// One result per active item.
    Map {
        /// What.
        op: Op,
        /// Result.
        to: Target,
        /// Operands; the op says how many count.
        from: [Source; 3],
    },
    /// Writes the affine value into a register of i64.
    Spread {
        /// Result.
        to: Reg,
        /// What.
        value: Affine,
    },
    /// One result per segment of the tile: what is the same for all items of one, computed once.
    MapSegments {
        /// What.
        op: Op,
        /// Result, one element a segment.
        to: Reg,
        /// Operands, registers of one element a segment, or slots; the op says how many count.
        from: [Source; 3],
    },
    /// Runs `then` with the active items that satisfy `condition`, `otherwise` with the rest; a side without items is
    /// not run.
    If {
        /// Who takes `then`.
        condition: Condition,
        /// Their block.
        then: Block,
        /// The others' block.
        otherwise: Option<Block>,
    },
    /// [`Inst::If`], where one item of each segment satisfies the condition.
    Heads(Box<Heads>),
    /// For `to` from `low` in steps of `step` while below `high`. All items take the same turns.
    For {
        /// The counter.
        to: Slot,
        /// First value.
        low: Slot,
        /// One past the last value.
        high: Slot,
        /// Distance; zero or less ends in a fault.
        step: Slot,
        /// Compares unsigned, for `offset` counters.
        unsigned: bool,
        /// Run each time.
        body: Block,
        /// For faults.
        site: SiteId,
    },
    /// Runs `head`, drops the active items that fail `condition`, runs `body` with the others, and again, until none is
    /// left.
    Loop {
        /// Run before each test.
        head: Block,
        /// Who goes on.
        condition: Condition,
        /// A counter that could pass the end of the numbers, and the last one from which a step does not: who is past it in a
        /// turn, as 64 bits with a sign, leaves after it.
        last: Option<(Affine, Slot)>,
        /// Run after it.
        body: Block,
        /// For faults.
        site: SiteId,
    },
    /// Takes turns of the loop that follows together, as many as can be.
    Turns(Box<Turns>),
    /// In the body of [`Inst::Turns`]: combines what each item holds with a value of each turn, in their order.
    Fold(Box<Fold>),
    /// What was written before is seen before what is written after.
    Fence,
    /// Combines the values of each group of items, in the order of `OpKind::SubgroupReduce`.
    Reduce {
        /// How two values combine.
        combine: Combine,
        /// Their type.
        ty: ScalarType,
        /// Result, for every item of a group.
        to: Landing,
        /// The value of each item.
        from: Source,
        /// What is made of it before.
        term: Term,
        /// Which items form a group.
        group: Group,
    },
    /// Another lane's value.
    Shuffle {
        /// Whose.
        mode: ShuffleMode,
        /// Type of the value.
        ty: ScalarType,
        /// The value read.
        to: Reg,
        /// Whether the lane was valid: `i1`, if anybody asks.
        valid: Option<Reg>,
        /// The value of each item.
        from: Reg,
        /// i32.
        offset: Source,
        /// i32: lanes per cluster.
        width: Source,
    },
    /// Combines, for each item, the values of those before it in its group.
    Scan {
        /// How two values combine.
        combine: Combine,
        /// Which items count.
        scan: Scan,
        /// Their type.
        ty: ScalarType,
        /// Result.
        to: Reg,
        /// The value of each item.
        from: Reg,
        /// Which items form a group.
        group: Group,
    },
    /// One lane's value for the whole subgroup.
    Broadcast {
        /// Type of the value.
        ty: ScalarType,
        /// Result.
        to: Reg,
        /// The value of each item.
        from: Reg,
        /// i32: the lane; the first active one without.
        lane: Option<Source>,
    },
    /// A mask of the active lanes of the subgroup that have a 1.
    Ballot {
        /// i32 or i64.
        ty: ScalarType,
        /// Result.
        to: Reg,
        /// `i1`.
        from: Source,
    },
    /// Masks of the active lanes of the subgroup with equal bits.
    Match {
        /// Type of the value.
        ty: ScalarType,
        /// The value of each item.
        from: Reg,
        /// Type of the mask: i32 or i64.
        mask: ScalarType,
        /// The mask: of the lanes with the item's own bits; with `all`, of all active lanes, or 0.
        to: Reg,
        /// `i1`: whether all active lanes have the same bits.
        all: Option<Reg>,
    },
    /// An indivisible access of each active item, ascending.
    Atomic {
        /// What it does.
        atomic: Atomic,
        /// Type of the cell and of the values.
        ty: ScalarType,
        /// What the cell held.
        to: Option<Reg>,
        /// Values; [`Atomic::values`] says how many count.
        from: [Source; 2],
        /// The cell.
        access: Access,
    },
    /// Ends the launch if the condition is false for an active item.
    Assert {
        /// What must hold.
        condition: Condition,
        /// What the fault says.
        text: Box<str>,
        /// For the fault.
        site: SiteId,
    },
    /// Each active item reads its part of a tile.
    FragmentLoad(Box<TileAccess>),
    /// Each active item writes its part of a tile, those of a subgroup in ascending order.
    FragmentStore(Box<TileAccess>),
    /// A tile product for every subgroup that has an active item. What its other items hold afterwards is unspecified.
    Mma(Box<TileProduct>),
    /// The elements of one fragment laid out as another, for every subgroup that has an active item, likewise.
    FragmentRepack(Box<Repack>),
}

/// A branch that one item of each segment takes.
///
/// Where all items of several segments are active, `body` runs over a tile of one item a segment; else `then` does over those
/// of the tile that satisfy the condition, to the same effect.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Heads {
    /// Who takes it.
    pub condition: Condition,
    /// What they do.
    pub then: Block,
    /// Which item of a segment: none, if it has fewer.
    pub item: Slot,
    /// The same for a tile whose segments are that item.
    pub body: Block,
}

/// Turns of a loop that can be taken together, instruction by instruction: no turn of an item reads what another one wrote,
/// but for what is folded.
///
/// - A batch of turns is a wide tile: each segment of `n` items is one of `turns × n`, turn after turn. The words and the body
///   run once, for the first turn's counter: every affine value that it names moves by as much from turn to turn as from item to item
///   `n` times, which the executor checks. A register then holds the items of all turns, so at most `capacity` in all.
/// - Where nothing but folds is done, turns may lie anywhere, and all of them are one batch.
/// - The executor takes turns only if all items take them, all their accesses are in bounds, and no store touches what
///   another access of the body touches, unless both name the same element for each item and turn.
/// - The loop after it starts where this leaves the counter, and is all there is if nothing can be taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Turns {
    /// The counter of each item. Its base is that of the first turn, and moved past what was taken.
    pub counter: Affine,
    /// One past the last value.
    pub high: Slot,
    /// Distance.
    pub step: Slot,
    /// Compares unsigned, for `offset` counters.
    pub unsigned: bool,
    /// Affine values of the body, each with the slot of how far it moves from turn to turn.
    pub strides: Vec<(Affine, Slot)>,
    /// What these are computed by, from the counter and from what is the same in all turns.
    pub words: Vec<ScalarInst>,
    /// Accesses of the body.
    pub reaches: Vec<Reach>,
    /// Registers that are only folded into, and what each item holds before: if no turn is taken they are filled with it.
    pub starts: Vec<(ScalarType, Reg, Slot)>,
    /// Registers that are the same in all turns: each is repeated into another one, before the body runs.
    pub still: Vec<(ScalarType, Reg, Reg)>,
    /// Whether the body does anything but fold.
    pub wide: bool,
    /// Run for each batch.
    pub body: Block,
    /// Run if no turn is taken, where all are that there are or none: the loop, and the sums that folds make else.
    pub otherwise: Option<Block>,
}

/// An access of the body of [`Turns`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reach {
    /// The access of the first turn.
    pub access: Access,
    /// What is accessed.
    pub ty: ScalarType,
    /// Bytes from turn to turn.
    pub stride: Slot,
    /// Whether it is written.
    pub store: bool,
}

/// `to = op(.., to, ..)` for each turn, where everything else may differ between turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fold {
    /// What.
    pub op: Op,
    /// One element for each item, not for each turn.
    pub to: Reg,
    /// Operands; the op says how many count.
    pub from: [Source; 3],
    /// Which of them is `to`.
    pub at: u32,
    /// Of those in memory: bytes from turn to turn.
    pub strides: [Slot; 3],
    /// Of those in registers: whether there is one element for each item, not for each turn.
    pub still: [bool; 3],
    /// What each item holds before the first turn; without, what is in `to`.
    pub start: Option<Slot>,
    /// A register of one element a segment, for the sum of what the segment's items hold after the last turn: f32, in the
    /// order of `OpKind::SubgroupReduce`. `to` is then left as it may be.
    pub sum: Option<Reg>,
}

/// An access to a tile, one register for each slot of an item's payload.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TileAccess {
    /// How the tile is spread over the lanes of a subgroup.
    pub fragment: Fragment,
    /// Type of the elements, in memory and in the registers.
    pub ty: ScalarType,
    /// By slot. A slot without data is neither written nor read, and a load makes it zero.
    pub registers: Vec<Reg>,
    /// Index into [`Program::buffers`].
    pub buffer: u32,
    /// i64: byte offset of the tile's first element. The items of a subgroup share it as a rule, but need not.
    pub origin: Source,
    /// i64: bytes from one row to the next, and from one column to the next; likewise.
    pub steps: [Source; 2],
    /// For faults.
    pub site: SiteId,
}

/// A product of two tiles added to a third.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TileProduct {
    /// Which product.
    pub product: Product,
    /// Left operand: the type of its registers and one register for each vector lane.
    pub lhs: (ScalarType, Vec<Reg>),
    /// Right operand, likewise.
    pub rhs: (ScalarType, Vec<Reg>),
    /// Type of the sum.
    pub ty: ScalarType,
    /// What is added to, by slot.
    pub from: Vec<Reg>,
    /// The sum, by slot: other registers than those of the operands.
    pub to: Vec<Reg>,
}

/// A change of layout.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Repack {
    /// How the operand lies.
    pub from: Fragment,
    /// How the result lies.
    pub to: Fragment,
    /// Type of the elements.
    pub ty: ScalarType,
    /// The operand, by slot.
    pub values: Vec<Reg>,
    /// The result, by slot: other registers than those of the operand. Slots without data become zero.
    pub results: Vec<Reg>,
}

/// What a reduction combines. Other than values it takes f32 only, and adds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Term {
    /// The values.
    Value,
    /// Their products with others.
    Product(Source),
    /// The squares of their differences from others.
    SquaredDifference(Source),
}

/// Where a reduction leaves its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Landing {
    /// A register: each item has that of its group.
    Reg(Reg),
    /// A slot, for a tile that is one group.
    Slot(Slot),
    /// A register with one element a segment, where groups are segments.
    Segments(Reg),
}

/// The items that a reduction or scan combines, in ascending order of flat id within the workgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Group {
    /// The whole workgroup.
    Workgroup,
    /// Clusters within subgroups: `size` lanes, `stride` apart.
    Lanes {
        /// Lanes per cluster.
        size: u32,
        /// Distance between them.
        stride: u32,
    },
}

/// What a buffer index stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Buffer {
    /// A launch argument, by its position among all.
    Argument(u32),
    /// Scratch of `bytes` per workgroup, one after the other for the workgroups of a tile; starts at this offset of the
    /// scratch memory, for a tile with one workgroup.
    Workgroup {
        /// Size of one workgroup's.
        bytes: u64,
    },
    /// These bytes of [`Program::data`].
    Constant {
        /// Where they begin.
        start: u32,
        /// How many they are.
        len: u32,
    },
    /// Scratch of `bytes` per item, one after the other.
    Private {
        /// Size of one item's.
        bytes: u64,
    },
}

/// Where an instruction that may fault was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// Its spelling, without operands.
    pub op: Cow<'static, str>,
    /// Where.
    pub span: Span,
    /// Line of its first byte, from 1.
    pub line: u32,
}

/// The values that the executor writes into slots before a tile runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Builtin {
    /// Id of segment 0: the first item's id divided by the width (`Line`), its workgroup's id along y (`Rows`) or x
    /// (`Groups`), its flat local id divided by the width (`Group`).
    Segment,
    /// Position of item 0 in its segment.
    First,
    /// Segment · width + first: the id of item 0 on the line, or its flat local id.
    Flat,
    /// Items per segment of this launch.
    Width,
    /// Workgroup id, by axis. Along x only in `Group` tiles.
    WorkGroup(u8),
    /// Number of workgroups, by axis.
    WorkGroupCount(u8),
    /// Bytes of the buffer bound to this launch argument.
    Length(u32),
}

/// A kernel as the tile executor runs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// How items are cut into tiles.
    pub shape: Shape,
    /// Work-items per workgroup: x, y, z.
    pub workgroup_size: [u32; 3],
    /// Work-items per subgroup.
    pub subgroup_size: u32,
    /// Items along x from this one on do nothing, and are left out (`Line` and `Rows`); whether the slot is signed.
    pub clip: Option<(Slot, bool)>,
    /// Whether a workgroup must lie in one tile.
    pub whole_groups: bool,
    /// Whether a tile may hold more than one segment.
    pub many_segments: bool,
    /// Elements of a register: the most items of a tile, and of turns that it takes together.
    pub capacity: u32,
    /// The most items of a tile.
    pub items: u32,
    /// Number of slots.
    pub slots: u32,
    /// Slots with fixed contents.
    pub constants: Vec<(Slot, u64)>,
    /// Slots that hold launch arguments: (slot, position among all arguments, type).
    pub arguments: Vec<(Slot, u32, ScalarType)>,
    /// Slots that the executor sets for every tile (counts: for every launch).
    pub builtins: Vec<(Slot, Builtin)>,
    /// Run once per launch.
    pub prologue: Vec<ScalarInst>,
    /// Bytes of all registers.
    pub frame_bytes: u32,
    /// Named by accesses.
    pub buffers: Vec<Buffer>,
    /// Read-only bytes of the kernel, one buffer's behind the other. Each execution reads a copy of its own, so that a program
    /// that stores to it, as none that was compiled does, changes nothing of the image.
    pub data: Vec<u8>,
    /// `blocks[0]` is run for every tile.
    pub blocks: Vec<Vec<Inst>>,
    /// Named by instructions that may fault.
    pub sites: Vec<Site>,
}

impl Program {
    /// The most segments of a tile. Workgroups that are segments have a length that is known.
    pub fn segments_max(&self) -> u32 {
        match self.shape {
            Shape::Groups => (self.capacity / self.workgroup_size[0].max(1)).max(1),
            Shape::Line { .. } | Shape::Rows | Shape::Group => self.capacity,
        }
    }
}
