//! What each op means. One variant per meaning: `index.add`, `scalar.addi` and `vector.addi` are all [`Binary::AddI`],
//! told apart by the type of their result, and ops that are exact compositions of others (`scf.lookup`,
//! `bitfield.extract`, `index.scale`, `clampf<number>`) are built as those.
//!
//! An op of element type `T` with a vector result works lane by lane; a scalar one is the case of one lane.
//! Values are held as bits in the low end of a `u64` (`i1` as 0 or 1); `eval` computes on them.
//!
//! - Not here: how an op is spelled (`build`), and which values it takes (`ir::Op`).

use crate::fragment::{Format, Fragment, Product};
use serde::{Deserialize, Serialize};

/// One operand, one result, same type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Unary {
    /// `0 - x`, wrapping.
    NegI,
    /// `|x|`, wrapping: `abs(MIN)` is `MIN`.
    AbsI,
    /// Leading zero bits; of zero, the width.
    CtlzI,
    /// Trailing zero bits; of zero, the width.
    CttzI,
    /// Number of one bits.
    CtpopI,
    /// −1, 0 or 1, signed.
    SignI,
    /// Flips the sign bit; NaN payloads are kept. Every float type.
    NegF,
    /// Clears the sign bit; NaN payloads are kept. Every float type.
    AbsF,
    /// −1, 0 (of either zero, keeping its sign) or 1; NaN of NaN.
    SignF,
    /// Toward +inf.
    CeilF,
    /// Toward −inf.
    FloorF,
    /// Toward zero.
    TruncF,
    /// To nearest, ties away from zero.
    RoundF,
    /// To nearest, ties to even.
    RoundEvenF,
    /// e^x.
    ExpF,
    /// e^x as far as `afn` asks for it: see [`math::approximate_exp`](crate::math::approximate_exp).
    ApproximateExpF,
    /// 2^x.
    Exp2F,
    /// e^x − 1.
    Expm1F,
    /// Natural logarithm.
    LogF,
    /// Base-2 logarithm.
    Log2F,
    /// Base-10 logarithm.
    Log10F,
    /// ln(1 + x).
    Log1pF,
    /// Square root, correctly rounded.
    SqrtF,
    /// 1 / sqrt(x).
    RsqrtF,
    /// Cube root.
    CbrtF,
    /// Sine of radians.
    SinF,
    /// Cosine of radians.
    CosF,
    /// Tangent of radians.
    TanF,
    /// Arc sine.
    AsinF,
    /// Arc cosine.
    AcosF,
    /// Arc tangent.
    AtanF,
    /// Hyperbolic sine.
    SinhF,
    /// Hyperbolic cosine.
    CoshF,
    /// Hyperbolic tangent.
    TanhF,
    /// Inverse hyperbolic sine.
    AsinhF,
    /// Inverse hyperbolic cosine.
    AcoshF,
    /// Inverse hyperbolic tangent.
    AtanhF,
    /// Error function.
    ErfF,
    /// 1 − erf(x).
    ErfcF,
    /// sin(2πx).
    SinTurnsF,
    /// cos(2πx).
    CosTurnsF,
    /// 1 / (1 + e^−x), without overflow.
    LogisticF,
    /// x · logistic(x).
    SiluF,
    /// ln(1 + e^x), without overflow.
    SoftplusF,
    /// x · (1 + erf(x/√2)) / 2.
    GeluErfF,
    /// x · (1 + tanh(√(2/π)·(x + 0.044715·x³))) / 2.
    GeluTanhF,
}

impl Unary {
    /// The exponential, as exact as any other function, or as far as `afn` asks for.
    pub const fn exp(approximate: bool) -> Self {
        if approximate { Self::ApproximateExpF } else { Self::ExpF }
    }

    /// Whether it takes floats; else it takes integers.
    pub const fn is_float(self) -> bool {
        match self {
            Self::NegI | Self::AbsI | Self::CtlzI | Self::CttzI | Self::CtpopI | Self::SignI => false,
            Self::NegF
            | Self::AbsF
            | Self::SignF
            | Self::CeilF
            | Self::FloorF
            | Self::TruncF
            | Self::RoundF
            | Self::RoundEvenF
            | Self::ExpF
            | Self::ApproximateExpF
            | Self::Exp2F
            | Self::Expm1F
            | Self::LogF
            | Self::Log2F
            | Self::Log10F
            | Self::Log1pF
            | Self::SqrtF
            | Self::RsqrtF
            | Self::CbrtF
            | Self::SinF
            | Self::CosF
            | Self::TanF
            | Self::AsinF
            | Self::AcosF
            | Self::AtanF
            | Self::SinhF
            | Self::CoshF
            | Self::TanhF
            | Self::AsinhF
            | Self::AcoshF
            | Self::AtanhF
            | Self::ErfF
            | Self::ErfcF
            | Self::SinTurnsF
            | Self::CosTurnsF
            | Self::LogisticF
            | Self::SiluF
            | Self::SoftplusF
            | Self::GeluErfF
            | Self::GeluTanhF => true,
        }
    }
}

/// Two operands, one result, same type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Binary {
    /// Sum, wrapping.
    AddI,
    /// Difference, wrapping.
    SubI,
    /// Product, wrapping.
    MulI,
    /// Signed quotient toward zero. Never traps: `x / 0` is 0, `MIN / −1` is `MIN`.
    DivSI,
    /// Signed remainder with the dividend's sign. `x % 0` is 0, `MIN % −1` is 0.
    RemSI,
    /// Unsigned quotient; `x / 0` is 0. Also `index.div`.
    DivUI,
    /// Unsigned remainder; `x % 0` is 0. Also `index.rem`.
    RemUI,
    /// Signed quotient toward +inf; by 0 it is 0.
    CeilDivSI,
    /// Unsigned quotient rounded up; by 0 it is 0.
    CeilDivUI,
    /// Signed quotient toward −inf; by 0 it is 0.
    FloorDivSI,
    /// Signed minimum.
    MinSI,
    /// Signed maximum.
    MaxSI,
    /// Unsigned minimum.
    MinUI,
    /// Unsigned maximum.
    MaxUI,
    /// Bitwise and; also on `i1`.
    AndI,
    /// Bitwise or; also on `i1`.
    OrI,
    /// Bitwise exclusive or; also on `i1`.
    XorI,
    /// Shift left. The count is masked to the width, as for every shift.
    ShlI,
    /// Arithmetic shift right.
    ShrSI,
    /// Logical shift right.
    ShrUI,
    /// Rotate left.
    RotLI,
    /// Rotate right.
    RotRI,
    /// IEEE sum, rounded once to the type, subnormals kept; so for every float op here.
    AddF,
    /// IEEE difference.
    SubF,
    /// IEEE product.
    MulF,
    /// IEEE quotient.
    DivF,
    /// C `fmod`.
    RemF,
    /// The first operand with the sign bit of the second. Every float type.
    CopySignF,
    /// The other operand when exactly one is NaN; −0 < +0.
    MinNumF,
    /// The other operand when exactly one is NaN; −0 < +0.
    MaxNumF,
    /// NaN when any operand is; −0 < +0.
    MinimumF,
    /// NaN when any operand is; −0 < +0.
    MaximumF,
    /// First operand to the power of the second.
    PowF,
    /// Angle of the point (second, first): C `atan2`.
    Atan2F,
    /// `x · logistic(scale · x)` of (x, scale): `geluf<logistic>`.
    GeluLogisticF,
}

impl Binary {
    /// Whether it takes floats; else it takes integers.
    pub const fn is_float(self) -> bool {
        match self {
            Self::AddI
            | Self::SubI
            | Self::MulI
            | Self::DivSI
            | Self::RemSI
            | Self::DivUI
            | Self::RemUI
            | Self::CeilDivSI
            | Self::CeilDivUI
            | Self::FloorDivSI
            | Self::MinSI
            | Self::MaxSI
            | Self::MinUI
            | Self::MaxUI
            | Self::AndI
            | Self::OrI
            | Self::XorI
            | Self::ShlI
            | Self::ShrSI
            | Self::ShrUI
            | Self::RotLI
            | Self::RotRI => false,
            Self::AddF
            | Self::SubF
            | Self::MulF
            | Self::DivF
            | Self::RemF
            | Self::CopySignF
            | Self::MinNumF
            | Self::MaxNumF
            | Self::MinimumF
            | Self::MaximumF
            | Self::PowF
            | Self::Atan2F
            | Self::GeluLogisticF => true,
        }
    }
}

/// Three operands, one result, same type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Ternary {
    /// `a·b + c` with one rounding.
    FmaF,
    /// `a·b + c`, wrapping. Also `index.madd`.
    FmaI,
    /// `clampf<ordered>` of (value, low, high): `r = value < low ? low : value; r > high ? high : r`, a NaN comparing false.
    ClampOrderedF,
}

/// Comparison of integers, `index` or `offset`. On `i1` signed predicates see true as −1, unsigned as 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the language's own predicates")]
pub enum IntPredicate {
    Eq,
    Ne,
    Slt,
    Sle,
    Sgt,
    Sge,
    Ult,
    Ule,
    Ugt,
    Uge,
}

/// Comparison of floats: `O..` is false when an operand is NaN, `U..` true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the language's own predicates")]
pub enum FloatPredicate {
    Oeq,
    Ogt,
    Oge,
    Olt,
    Ole,
    One,
    Ord,
    Ueq,
    Ugt,
    Uge,
    Ult,
    Ule,
    Une,
    Uno,
}

/// A float in, an `i1` out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Classify {
    /// NaN.
    IsNan,
    /// Plus or minus infinity.
    IsInf,
    /// Neither NaN nor infinite.
    IsFinite,
}

/// A change of type; the operand's and the result's element types say from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Convert {
    /// To a wider integer (or `index`, `offset`), copying the sign bit. `i1` true becomes −1.
    ExtSI,
    /// To a wider integer (or `index`, `offset`), filling with zeros.
    ExtUI,
    /// To a narrower integer: the low bits.
    TruncI,
    /// Signed integer to float, to nearest even.
    SiToF,
    /// Unsigned integer to float, to nearest even.
    UiToF,
    /// Float to signed integer toward zero, saturating; NaN becomes 0.
    FToSi,
    /// Float to unsigned integer toward zero, saturating; NaN becomes 0.
    FToUi,
    /// To a wider float, exactly.
    ExtF,
    /// To a narrower float: to nearest even, overflow to infinity (E4M3: to ±448), NaN stays NaN.
    TruncF,
    /// The same bits. Widths are equal for scalars; a vector may change its lane count, lane 0 in the lowest bits.
    Bitcast,
}

/// What combines the values of a reduction or a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each is the binary op of its name")]
pub enum Combine {
    AddI,
    AddF,
    MulI,
    MulF,
    MinSI,
    MaxSI,
    MinUI,
    MaxUI,
    AndI,
    OrI,
    XorI,
    MinimumF,
    MaximumF,
    MinNumF,
    MaxNumF,
}

impl Combine {
    /// The op that combines two values.
    pub const fn binary(self) -> Binary {
        match self {
            Self::AddI => Binary::AddI,
            Self::AddF => Binary::AddF,
            Self::MulI => Binary::MulI,
            Self::MulF => Binary::MulF,
            Self::MinSI => Binary::MinSI,
            Self::MaxSI => Binary::MaxSI,
            Self::MinUI => Binary::MinUI,
            Self::MaxUI => Binary::MaxUI,
            Self::AndI => Binary::AndI,
            Self::OrI => Binary::OrI,
            Self::XorI => Binary::XorI,
            Self::MinimumF => Binary::MinimumF,
            Self::MaximumF => Binary::MaximumF,
            Self::MinNumF => Binary::MinNumF,
            Self::MaxNumF => Binary::MaxNumF,
        }
    }
}

/// An axis of the launch geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "x, y, z")]
pub enum Axis {
    X,
    Y,
    Z,
}

impl Axis {
    /// 0, 1 or 2.
    pub const fn index(self) -> usize {
        match self {
            Self::X => 0,
            Self::Y => 1,
            Self::Z => 2,
        }
    }
}

/// Where a work-item is. All results are `index`. The flat local id is `x + sx·(y + sy·z)`.
///
/// Workgroup and subgroup sizes are constants, so specialisation leaves none of their ops behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum IdKind {
    /// Position in the workgroup.
    WorkItem(Axis),
    /// Which workgroup.
    WorkGroup(Axis),
    /// Number of workgroups.
    WorkGroupCount(Axis),
    /// `workgroup id · workgroup size + work-item id`.
    Dispatch(Axis),
    /// Flat local id / subgroup size.
    Subgroup,
    /// Flat local id mod subgroup size.
    SubgroupLane,
}

/// Work-items per subgroup, unless a kernel's target record says otherwise.
pub const SUBGROUP_SIZE: u32 = 32;

/// How many sums a reduction over work-items keeps at a time: [`OpKind::SubgroupReduce`] says in which order.
pub const REDUCTION_CHAINS: usize = 32;

/// The numbers of work-items that a subgroup may have.
pub const SUBGROUP_SIZES: [u32; 2] = [SUBGROUP_SIZE, 64];

/// Where a shuffle reads, inside clusters of `width` lanes; `l` is the lane in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ShuffleMode {
    /// Lane `l ^ offset`.
    Xor,
    /// Lane `l − offset`; valid iff `offset <= l`.
    Up,
    /// Lane `l + offset`; valid iff `l + offset < width`.
    Down,
    /// Lane `offset` of the own cluster; valid iff below `width`.
    Index,
}

/// Which memory scratch lives in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Space {
    /// One storage per workgroup.
    Workgroup,
    /// One storage per work-item.
    Private,
}

/// Which values a scan combines for an item: those of the items before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Scan {
    /// Without the item's own value: the first item gets the identity ([`crate::eval::identity`]).
    pub exclusive: bool,
    /// From the last item down, so that items *after* count as before.
    pub reverse: bool,
}

/// What an atomic access does to a cell. `old` is what it held, and the result of the op if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Atomic {
    /// Nothing: gives `old`. No value.
    Load,
    /// Puts the value. No result.
    Store,
    /// Puts the value.
    Exchange,
    /// Puts `old - value`.
    SubI,
    /// Puts `old` combined with the value.
    Combine(Combine),
    /// Of (expected, new): puts `new` if `old` has the bits of `expected`.
    CompareExchange {
        /// The ordering where the cell keeps what it had.
        failure: Ordering,
    },
}

impl Atomic {
    /// How many values it takes.
    pub const fn values(self) -> usize {
        match self {
            Self::Load => 0,
            Self::Store | Self::Exchange | Self::SubI | Self::Combine(_) => 1,
            Self::CompareExchange { .. } => 2,
        }
    }
}

/// What an atomic access orders. Nothing may be assumed beyond it; a stronger one is always correct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the language's own orderings")]
pub enum Ordering {
    Relaxed,
    Acquire,
    Release,
    AcqRel,
    SeqCst,
}

/// Who sees what an atomic access orders. A wider scope is always correct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the language's own scopes")]
pub enum Scope {
    Thread,
    Subgroup,
    Workgroup,
    Device,
    System,
}

/// Who meets at a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BarrierScope {
    /// The work-items of one subgroup.
    Subgroup,
    /// The work-items of one workgroup.
    Workgroup,
}

/// Permissions of a float op; ignoring them is always correct. A set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Flags(pub u16);

impl Flags {
    /// Reorder or regroup.
    pub const REASSOC: Self = Self(1);
    /// No NaN goes in or out.
    pub const NNAN: Self = Self(1 << 1);
    /// No infinity goes in or out.
    pub const NINF: Self = Self(1 << 2);
    /// The sign of zero does not matter.
    pub const NSZ: Self = Self(1 << 3);
    /// A reciprocal may stand for a division.
    pub const ARCP: Self = Self(1 << 4);
    /// A multiply and an add may be fused.
    pub const CONTRACT: Self = Self(1 << 5);
    /// An approximate function will do.
    pub const AFN: Self = Self(1 << 6);
    /// Integer: no signed wrap happens.
    pub const NSW: Self = Self(1 << 7);
    /// Integer: no unsigned wrap happens.
    pub const NUW: Self = Self(1 << 8);
    /// All float permissions.
    pub const FAST: Self = Self(0x7f);

    /// Whether every permission of `other` is given.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The permissions of either.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What an op does. [`crate::ir::Op`] holds its operands, results and blocks in the order written here.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OpKind {
    /// `() -> T`: these bits, in every lane.
    Constant(u64),
    /// `(T) -> T`.
    Unary(Unary),
    /// `(T, T) -> T`.
    Binary(Binary),
    /// `(T, T, T) -> T`.
    Ternary(Ternary),
    /// `(T, T) -> i1`, lane by lane.
    CompareI(IntPredicate),
    /// `(T, T) -> i1`, lane by lane.
    CompareF(FloatPredicate),
    /// `(T) -> i1`, lane by lane.
    Classify(Classify),
    /// `(T) -> U`, lane by lane (a vector `Bitcast` may change the lane count).
    Convert(Convert),
    /// `(cond, a, b) -> T`: `a` if `cond` else `b`. A scalar `cond` selects whole values of any type, buffers and views
    /// too; a vector one selects lane by lane.
    Select,

    /// `(scalar) -> vector`: the scalar in every lane.
    Splat,
    /// `(scalar, ..) -> vector`: one operand per lane.
    FromElements,
    /// `(base, step) -> vector`: `base + lane·step`. Element type integer, `index` or `offset`.
    Iota,
    /// `(low, high, step) -> vector of i1`: lane `i` iff `low + i·step < high`, signed `index`.
    MaskRange,
    /// `(vector, index..) -> scalar or vector`: fewer indices than rank give the trailing sub-vector.
    Extract,
    /// `(value, vector, index..) -> vector`: the inverse of `Extract`.
    Insert,
    /// `(vector, init) -> scalar`: `init` first, then lanes ascending.
    Reduce(Combine),
    /// `(a, b, acc) -> scalar`: `acc = fma(a[i], b[i], acc)`, lanes ascending.
    Dot,
    /// `(a, b, acc) -> vector`: two f16 or bf16 lanes of `a` and of `b` a result lane, widened to f32 and joined by two
    /// fused multiply-adds, the lower lane first.
    Dot2F,
    /// `(a, b, acc) -> vector`: four i8 lanes of `a` and of `b` a result lane; the four products and `acc`, i32, summed
    /// wrapping.
    Dot4I {
        /// Whether lanes of `a` are signed.
        a_signed: bool,
        /// Whether lanes of `b` are.
        b_signed: bool,
    },
    /// `(vector..) -> vector`: result lane `i` is lane `lanes[i]` of the operands' lanes laid end to end. Every static
    /// movement of lanes (slice, concat, broadcast, transpose, shuffle, interleave) is one of these.
    Lanes(Box<[u32]>),
    /// `(vector) -> vector`: the operand, as the payload of a fragment; of an operand, the numbers it holds.
    FragmentLabel(Fragment, Option<Format>),

    /// `() -> buffer`: scratch of `bytes` bytes, uninitialised, a distinct storage at each execution.
    Alloca {
        /// Who shares it.
        space: Space,
        /// Power of two.
        align: u64,
        /// Size.
        bytes: u64,
    },
    /// `() -> buffer`: these bytes, which no op stores to.
    Bytes(Box<[u8]>),
    /// `(buffer, offset) -> view`. No access is made. Extents and strides are in the result's type.
    BufferView,
    /// `(view, index..) -> view`: same element and strides, origin moved to the indices.
    Subview,
    /// `(view) -> view`: same bytes, other extents.
    Refine,
    /// `(buffer) -> offset`: its size in bytes.
    BufferLength,
    /// `(view, index..) -> T`: the element at the indices; a vector covers the trailing axes from there on.
    Load,
    /// `(view, index.., mask, pass) -> vector`: lanes masked off touch no memory and take their lane of `pass`.
    LoadMask,
    /// `(value, view, index..)`.
    Store,
    /// `(value, view, index.., mask)`: lanes masked off touch no memory.
    StoreMask,
    /// `(view, index.., offsets) -> vector`: lane `i` is the element `offsets[i]` beyond the indices on the last axis.
    /// Offsets are a vector of `index`, of the result's shape.
    Gather,
    /// `(view, index.., offsets, mask, pass) -> vector`: as `Gather`; lanes masked off touch no memory and take their lane
    /// of `pass`.
    GatherMask,
    /// `(value, view, index.., offsets)`: the inverse of `Gather`. Lanes write in ascending order; addresses should differ.
    Scatter,
    /// `(value, view, index.., offsets, mask)`: lanes masked off touch no memory.
    ScatterMask,

    /// `(source, target[, mask: i1]) -> token`: moves what the one view covers to the other, of the same element type and the same
    /// constant extents. It may end as late as a wait for a group of it; a false mask moves nothing. Nothing that runs has
    /// this op or the next two as they are built: see `copies`.
    AsyncCopy {
        /// Whether there is a mask.
        masked: bool,
    },
    /// `(token..) -> group`: what is waited for together.
    AsyncGroup,
    /// `(group)`: what the group, and any before it, copies is there for the own work-item; others need a barrier behind it.
    AsyncWait {
        /// How many groups made after that one may go on.
        newer: u32,
    },

    /// `(view, index..) -> vector`: the lane's part of the tile whose first element is at the indices, rows and columns along
    /// the last two axes. The vector has a lane for each slot; one without data is zero.
    FragmentLoad(Fragment),
    /// `(value, view, index..)`: stores the lane's part of the tile; slots without data touch no memory.
    FragmentStore(Fragment),

    /// `(cond) -> (..)`, two blocks without arguments ending in `Yield`: then, else.
    If,
    /// `(low, high, step, init..) -> (..)`, one block with arguments (induction, carried..) ending in `Yield` of the carried.
    /// Half open, ascending, signed for `index`, unsigned for `offset`. A step of zero or less is out of contract.
    For,
    /// `(init..) -> (..)`, two blocks: the first takes the state and ends in `Condition`, the second takes what that
    /// forwards and ends in `Yield` of the state.
    While,
    /// `(selector) -> (..)`, one block per key and a last one for every other value; all end in `Yield`.
    Switch(Box<[i64]>),
    /// `(..)`: ends a block of `If`, `For`, `Switch`, and the second of `While`.
    Yield,
    /// `(cond, forwarded..)`: ends the first block of `While`; false leaves the loop with the forwarded values.
    Condition,
    /// `()`: ends the kernel.
    Return,

    /// `() -> index`.
    Id(IdKind),
    /// `()`: every work-item of the scope arrives before one leaves, and sees what the others wrote before.
    Barrier(BarrierScope),
    /// `(value, offset: i32, width: i32) -> (value, i1)`: another lane's value, and whether it was valid (else the own).
    /// A value may be a vector of rank 1.
    SubgroupShuffle(ShuffleMode),
    /// `(value) -> value`: over the cluster of lanes that `lane` belongs to (below); lanes missing from a partial last
    /// subgroup are left out. Vectors reduce lane element by lane element. The language leaves the order open; here position
    /// `p` of the cluster joins chain `p mod` [`REDUCTION_CHAINS`], each chain ascends, and then chain `c` takes in chain
    /// `c + w`, for `w` = 16, 8, 4, 2, 1: the order of a butterfly, and of vector registers.
    SubgroupReduce {
        /// How values combine.
        combine: Combine,
        /// Lanes per cluster, a power of two: the subgroup size for the whole subgroup.
        size: u32,
        /// Distance between the lanes of one cluster, a power of two.
        stride: u32,
    },
    /// `(value, lane: i32) -> value`: that lane's; unspecified if it does not take part (here: the own).
    SubgroupBroadcast,
    /// `(value) -> value`: that of the lowest lane that takes part.
    SubgroupBroadcastFirst,
    /// `(value) -> value`: clusters as those of `SubgroupReduce`.
    SubgroupScan {
        /// How values combine.
        combine: Combine,
        /// Which.
        scan: Scan,
        /// Lanes per cluster.
        size: u32,
        /// Distance between the lanes of one cluster.
        stride: u32,
    },
    /// `(i1) -> i32 or i64`: bit `l` iff lane `l` takes part and has 1. Of a constant 1 it is the mask of active lanes.
    SubgroupBallot,
    /// `(scalar) -> i32 or i64`: bit `l` iff lane `l` takes part and has the same bits.
    SubgroupMatchAny,
    /// `(scalar) -> (i32 or i64, i1)`: whether all lanes that take part have the same bits; the mask of these lanes, or 0.
    SubgroupMatchAll,
    /// `(value) -> value`: over all work-items of the workgroup by flat id, in the order of `SubgroupReduce`.
    WorkgroupReduce(Combine),
    /// `(value) -> value`: along the work-items of the workgroup by flat id.
    WorkgroupScan(Combine, Scan),

    /// `(value.., view, index..[, offsets[, mask[, pass]]]) -> () or (old)`: one indivisible access to the element at the
    /// indices, or, with a vector of offsets, one per lane, ascending, to the element so far along the last axis. Lanes
    /// masked off touch no memory and give their lane of `pass`. [`Atomic`] says which values there are.
    Atomic {
        /// What happens to the cell.
        atomic: Atomic,
        /// What it orders.
        ordering: Ordering,
        /// Who sees that.
        scope: Scope,
        /// Whether there are offsets.
        gathered: bool,
        /// Whether there is a mask (and with a result, `pass`).
        masked: bool,
    },
    /// `()`: a memory fence without a meeting.
    Fence {
        /// What it orders.
        ordering: Ordering,
        /// Who sees that.
        scope: Scope,
    },
    /// `(cond)`, one block ending in `Return`: work-items with a true condition run it and are gone. What follows, barriers
    /// and collectives included, is for the others alone. Stands in the entry block only.
    Exit,
    /// `(cond)`: a false condition ends the launch with a fault of this text.
    Assert(Box<str>),
    /// `(lhs, rhs, sum) -> sum`: a tile product over the lanes of the subgroup; see [`Product`].
    Mma(Product),
    /// `(vector) -> vector`: the elements of one fragment, laid out as another of the same tile. Slots without data are zero.
    FragmentRepack {
        /// How the operand lies.
        from: Fragment,
        /// How the result lies.
        to: Fragment,
    },
}

/// What passes that do not care for the meaning of single ops need to know of one: [`OpKind::family`] answers for all.
///
/// Each family promises what its ops read, write and meet, so that a pass may answer for a family as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family<'a> {
    /// These bits.
    Constant(u64),
    /// Lane `i` of the result depends on lane `i` of the operands (or on a scalar condition), and on nothing else.
    Element(Element),
    /// The result depends on the operands, and on nothing else.
    Vector,
    /// Storage.
    Scratch(Space),
    /// A place made of another; no access.
    Place,
    /// Reads memory; no other effect.
    Read,
    /// Writes memory, or orders that; no result but a token.
    Write,
    /// Reads memory, a place that depends on which lane of its subgroup the item is; no other effect.
    ReadLane,
    /// Writes memory, likewise; no result.
    WriteLane,
    /// Runs one of its blocks, which gives the results.
    Branch(Branch<'a>),
    /// `For`.
    Counted,
    /// `While`: may not end.
    Unbounded,
    /// Ends a block; no result.
    End(End),
    /// Differs between work-items, without operands.
    Id(IdKind),
    /// Reads the operands of other work-items of the subgroup: of those that run it together.
    Exchange,
    /// Every work-item of a scope arrives before one leaves; whoever else relies on that sees it.
    Meeting,
    /// Reads and writes memory indivisibly, or orders such accesses; may have a result.
    Atomic,
    /// Ends some work-items before the others.
    Exit,
    /// Ends the launch where something does not hold.
    Check,
}

/// An op of [`Family::Element`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the `OpKind` of its name")]
pub enum Element {
    Unary(Unary),
    Binary(Binary),
    Ternary(Ternary),
    CompareI(IntPredicate),
    CompareF(FloatPredicate),
    Classify(Classify),
    Convert(Convert),
    Select,
}

/// An op of [`Family::End`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the `OpKind` of its name")]
pub enum End {
    Yield,
    Condition,
    Return,
}

/// An op of [`Family::Branch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Branch<'a> {
    /// `If`.
    If,
    /// `Switch` of these keys.
    Switch(&'a [i64]),
}

impl Branch<'_> {
    /// Which of the op's blocks runs, by the bits of its first operand.
    pub fn block(self, selector: u64) -> usize {
        match self {
            Self::If => usize::from(selector != 1),
            Self::Switch(keys) => keys.iter().position(|key| *key == selector as i64).unwrap_or(keys.len()),
        }
    }
}

impl OpKind {
    /// Its family.
    pub fn family(&self) -> Family<'_> {
        match self {
            Self::Constant(bits) => Family::Constant(*bits),
            Self::Unary(op) => Family::Element(Element::Unary(*op)),
            Self::Binary(op) => Family::Element(Element::Binary(*op)),
            Self::Ternary(op) => Family::Element(Element::Ternary(*op)),
            Self::CompareI(predicate) => Family::Element(Element::CompareI(*predicate)),
            Self::CompareF(predicate) => Family::Element(Element::CompareF(*predicate)),
            Self::Classify(class) => Family::Element(Element::Classify(*class)),
            Self::Convert(convert) => Family::Element(Element::Convert(*convert)),
            Self::Select => Family::Element(Element::Select),
            Self::Splat
            | Self::FromElements
            | Self::Iota
            | Self::MaskRange
            | Self::Extract
            | Self::Insert
            | Self::Reduce(_)
            | Self::Dot
            | Self::Dot2F
            | Self::Dot4I { .. }
            | Self::Lanes(_)
            | Self::FragmentLabel(..)
            | Self::BufferLength => Family::Vector,
            Self::Alloca { space, .. } => Family::Scratch(*space),
            Self::Bytes(_) | Self::BufferView | Self::Subview | Self::Refine => Family::Place,
            Self::Load | Self::LoadMask | Self::Gather | Self::GatherMask => Family::Read,
            Self::Store
            | Self::StoreMask
            | Self::Scatter
            | Self::ScatterMask
            | Self::AsyncCopy { .. }
            | Self::AsyncGroup
            | Self::AsyncWait { .. } => Family::Write,
            Self::FragmentLoad(_) => Family::ReadLane,
            Self::FragmentStore(_) => Family::WriteLane,
            Self::If => Family::Branch(Branch::If),
            Self::Switch(keys) => Family::Branch(Branch::Switch(keys)),
            Self::For => Family::Counted,
            Self::While => Family::Unbounded,
            Self::Yield => Family::End(End::Yield),
            Self::Condition => Family::End(End::Condition),
            Self::Return => Family::End(End::Return),
            Self::Id(id) => Family::Id(*id),
            Self::SubgroupShuffle(_)
            | Self::SubgroupReduce { .. }
            | Self::SubgroupBroadcast
            | Self::SubgroupBroadcastFirst
            | Self::SubgroupScan { .. }
            | Self::SubgroupBallot
            | Self::SubgroupMatchAny
            | Self::SubgroupMatchAll
            | Self::Mma(_)
            | Self::FragmentRepack { .. } => Family::Exchange,
            // A reduction over the workgroup is a barrier as well.
            Self::Barrier(_) | Self::WorkgroupReduce(_) | Self::WorkgroupScan(..) => Family::Meeting,
            Self::Atomic { .. } | Self::Fence { .. } => Family::Atomic,
            Self::Exit => Family::Exit,
            Self::Assert(_) => Family::Check,
        }
    }
}
