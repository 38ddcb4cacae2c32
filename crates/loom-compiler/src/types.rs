//! Scalar types and the shapes built from them, as the IR holds them.
//!
//! - A dimension is a constant or names an `index` value; after specialisation a vector has constant extents only.
//! - A view's strides are explicit, in elements, one per dimension. A dense view's strides are products of its extents.
//! - Not here: the spelling of types (`syntax`), and which op takes which type (`build`).

use std::fmt;

use crate::ir::ValueId;
use serde::{Deserialize, Serialize};

/// The type of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ScalarType {
    /// A logical coordinate or count: signed, 64 bits.
    Index,
    /// A byte position or size: unsigned, 64 bits, compile-time domain `0..2^63`.
    Offset,
    /// A boolean, or one lane of a mask: 0 or 1.
    I1,
    /// 8 bits without signedness; the op says signed or unsigned.
    I8,
    /// 16 bits without signedness.
    I16,
    /// 32 bits without signedness.
    I32,
    /// 64 bits without signedness.
    I64,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// 8-bit float, 4 exponent bits, no infinity (E4M3FN).
    F8E4M3,
    /// 8-bit float, 5 exponent bits, with infinities.
    F8E5M2,
}

impl ScalarType {
    /// Every scalar type, in the order of the declaration.
    pub const ALL: [Self; 13] = [
        Self::Index,
        Self::Offset,
        Self::I1,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
        Self::F8E4M3,
        Self::F8E5M2,
    ];

    /// Bits of the value: 1 for `i1`, 64 for `index` and `offset`.
    pub const fn bits(self) -> u32 {
        // A table: executors ask for each instruction.
        const BITS: [u8; ScalarType::ALL.len()] = [64, 64, 1, 8, 16, 32, 64, 16, 16, 32, 64, 8, 8];
        BITS[self as usize] as u32
    }

    /// Bytes of one element in memory. An `i1` never lies in memory; its size is given as 1.
    pub const fn bytes(self) -> u64 {
        self.bits().div_ceil(8) as u64
    }

    /// Whether float ops take this type.
    pub const fn is_float(self) -> bool {
        match self {
            Self::F16 | Self::BF16 | Self::F32 | Self::F64 | Self::F8E4M3 | Self::F8E5M2 => true,
            Self::Index | Self::Offset | Self::I1 | Self::I8 | Self::I16 | Self::I32 | Self::I64 => false,
        }
    }

    /// Whether this is `i1`, `i8`, `i16`, `i32` or `i64`: the integers of the `scalar` dialect.
    pub const fn is_integer(self) -> bool {
        !self.is_float() && !self.is_address()
    }

    /// Whether this is `index` or `offset`.
    pub const fn is_address(self) -> bool {
        matches!(self, Self::Index | Self::Offset)
    }

    /// The spelling in Loom text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Offset => "offset",
            Self::I1 => "i1",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F8E4M3 => "f8E4M3",
            Self::F8E5M2 => "f8E5M2",
        }
    }

    /// The type spelled `name`, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.name() == name)
    }
}

impl fmt::Display for ScalarType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An extent or a stride: a constant, or an `index` value that dominates its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Dim {
    /// Known now.
    Static(u64),
    /// Known when the kernel runs.
    Value(ValueId),
}

impl Dim {
    /// The constant, if it is one.
    pub const fn constant(self) -> Option<u64> {
        match self {
            Self::Static(extent) => Some(extent),
            Self::Value(_) => None,
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static(extent) => write!(f, "{extent}"),
            Self::Value(value) => write!(f, "[{value}]"),
        }
    }
}

/// A register value of several lanes, row-major: rank at least 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VectorType {
    /// The type of one lane.
    pub element: ScalarType,
    /// Extents, outermost first. All constant after specialisation.
    pub dims: Vec<Dim>,
}

impl VectorType {
    /// The product of the extents, if all are constant. Verified to be at most [`MAX_LANES`].
    pub fn lanes(&self) -> Option<u64> {
        self.dims.iter().try_fold(1u64, |lanes, dim| lanes.checked_mul(dim.constant()?))
    }
}

/// The most lanes one vector may have. Bounds what a hostile type can make the compiler allocate.
pub const MAX_LANES: u64 = 4096;

/// A typed window on a buffer. The value at run time is (buffer, byte offset); extents and strides are part of the type.
///
/// Element `[i0..ik]` lies at byte `offset + element.bytes() * (i0*strides[0] + .. + ik*strides[k])` of the buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ViewType {
    /// The type of one element.
    pub element: ScalarType,
    /// Extents, outermost first. Rank 0 is legal: one element.
    pub dims: Vec<Dim>,
    /// Element strides, one per extent. A dense view ends in `Static(1)`.
    pub strides: Vec<Dim>,
}

/// What stands for copies that may not have ended yet. It has no bits: only `kernel.async` ops read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Async {
    /// One copy.
    Token,
    /// What is waited for together.
    Group,
}

impl Async {
    /// As it is spelled.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Token => "kernel.async.token",
            Self::Group => "kernel.async.group",
        }
    }

    /// The type spelled `name`, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Token, Self::Group].into_iter().find(|ty| ty.name() == name)
    }
}

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Type {
    /// One number.
    Scalar(ScalarType),
    /// Several numbers in a register.
    Vector(VectorType),
    /// A storage root: a kernel's buffer argument, or scratch.
    Buffer,
    /// A typed window on a buffer.
    View(ViewType),
    /// Copies that may go on.
    Async(Async),
}

impl Type {
    /// The scalar type, if this is a scalar.
    pub const fn scalar(&self) -> Option<ScalarType> {
        match self {
            Self::Scalar(scalar) => Some(*scalar),
            Self::Vector(_) | Self::Buffer | Self::View(_) | Self::Async(_) => None,
        }
    }

    /// The type of one number: of the scalar, of a lane, of an element.
    pub const fn element(&self) -> Option<ScalarType> {
        match self {
            Self::Scalar(element) => Some(*element),
            Self::Vector(vector) => Some(vector.element),
            Self::View(view) => Some(view.element),
            Self::Buffer | Self::Async(_) => None,
        }
    }

    /// Lanes of a register value: 1 for a scalar. `None` for buffers, views, copies, and vectors not yet constant.
    pub fn lanes(&self) -> Option<u64> {
        match self {
            Self::Scalar(_) => Some(1),
            Self::Vector(vector) => vector.lanes(),
            Self::Buffer | Self::View(_) | Self::Async(_) => None,
        }
    }

    /// Calls `visit` on every value that the type names.
    pub fn each_value(&self, mut visit: impl FnMut(ValueId)) {
        let mut each = |dims: &[Dim]| {
            for dim in dims {
                if let Dim::Value(value) = dim {
                    visit(*value);
                }
            }
        };
        match self {
            Self::Scalar(_) | Self::Buffer | Self::Async(_) => {}
            Self::Vector(vector) => each(&vector.dims),
            Self::View(view) => {
                each(&view.dims);
                each(&view.strides);
            }
        }
    }

    /// Replaces every dimension that names a value.
    pub fn map_dims(&mut self, mut map: impl FnMut(ValueId) -> Dim) {
        let mut each = |dims: &mut [Dim]| {
            for dim in dims {
                if let Dim::Value(value) = *dim {
                    *dim = map(value);
                }
            }
        };
        match self {
            Self::Scalar(_) | Self::Buffer | Self::Async(_) => {}
            Self::Vector(vector) => each(&mut vector.dims),
            Self::View(view) => {
                each(&mut view.dims);
                each(&mut view.strides);
            }
        }
    }
}

fn write_dims(f: &mut fmt::Formatter<'_>, dims: &[Dim]) -> fmt::Result {
    dims.iter().try_for_each(|dim| write!(f, "{dim}x"))
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scalar(scalar) => scalar.fmt(f),
            Self::Buffer => f.write_str("buffer"),
            Self::Async(ty) => f.write_str(ty.name()),
            Self::Vector(vector) => {
                f.write_str("vector<")?;
                write_dims(f, &vector.dims)?;
                write!(f, "{}>", vector.element)
            }
            Self::View(view) => {
                f.write_str("view<")?;
                write_dims(f, &view.dims)?;
                write!(f, "{}>", view.element)
            }
        }
    }
}

impl From<ScalarType> for Type {
    fn from(scalar: ScalarType) -> Self {
        Self::Scalar(scalar)
    }
}
