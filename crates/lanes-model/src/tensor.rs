//! Host tensors: what constants, initial states and the oracle's values are made of.

use bytes::Bytes;
use half::{bf16, f16};
use lanes_core::DType;
use std::borrow::Cow;

/// A Rust type that is one element of a [`Tensor`], stored as it lies in memory.
pub trait Element: bytemuck::Pod + PartialEq {
    /// The element type it stands for. `bool` is stored as `u8`, so [`DType::Bool`] is read with [`Tensor::bools`].
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => { $(impl Element for $rust { const DTYPE: DType = DType::$dtype; })* };
}

elements!(
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64, i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
);

/// A dense row-major tensor in host memory, little-endian. Cloning shares the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    data: Bytes,
}

/// More elements than any value has: products of a few extents of one shape fit `usize` below it.
const ELEMENTS_MAX: usize = 1 << 40;
/// More axes than any value has.
const RANK_MAX: usize = 32;

/// The number of elements of `shape`; `None` when it has more than 2⁴⁰ (extents of 0 counted as 1) or more than 32
/// axes, which no sound model needs.
pub fn elements(shape: &[usize]) -> Option<usize> {
    let within = |count: usize| (count <= ELEMENTS_MAX).then_some(count);
    let bound =
        shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent.max(1)).and_then(within))?;
    let count = if shape.contains(&0) { 0 } else { bound };
    (shape.len() <= RANK_MAX).then_some(count)
}

impl Tensor {
    /// A tensor over `data`; `None` unless `data` is exactly as long as `shape` and `dtype` say, or a boolean is
    /// neither 0 nor 1.
    pub fn new(dtype: DType, shape: Vec<usize>, data: Bytes) -> Option<Self> {
        let bytes = elements(&shape)?.checked_mul(dtype.size())?;
        let good = data.len() == bytes && (dtype != DType::Bool || data.iter().all(|&byte| byte <= 1));
        good.then_some(Self { dtype, shape, data })
    }

    /// A tensor of `values`, row-major. Panics unless there are as many as `shape` has elements.
    pub fn from_vec<T: Element>(shape: Vec<usize>, values: Vec<T>) -> Self {
        assert_eq!(elements(&shape), Some(values.len()), "shape {shape:?} does not hold {} values", values.len());
        Self { dtype: T::DTYPE, shape, data: Bytes::copy_from_slice(bytemuck::cast_slice(&values)) }
    }

    /// A tensor of truth values, row-major. Panics unless there are as many as `shape` has elements.
    pub fn from_bools(shape: Vec<usize>, values: Vec<bool>) -> Self {
        assert_eq!(elements(&shape), Some(values.len()), "shape {shape:?} does not hold {} values", values.len());
        let bytes: Vec<u8> = values.into_iter().map(u8::from).collect();
        Self { dtype: DType::Bool, shape, data: bytes.into() }
    }

    /// A tensor of rank 0.
    pub fn scalar<T: Element>(value: T) -> Self {
        Self::from_vec(Vec::new(), vec![value])
    }

    /// All zeros. Panics when the size does not fit `usize`: check untrusted shapes with [`elements`] first.
    pub fn zeros(dtype: DType, shape: Vec<usize>) -> Self {
        let bytes = elements(&shape).and_then(|count| count.checked_mul(dtype.size())).expect("the size fits usize");
        Self { dtype, shape, data: vec![0u8; bytes].into() }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The extents, outermost first; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// How many elements.
    pub fn len(&self) -> usize {
        self.data.len() / self.dtype.size()
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The bytes, row-major, little-endian.
    pub fn bytes(&self) -> &Bytes {
        &self.data
    }

    /// The same elements in another shape. Panics unless it has as many elements.
    pub fn reshaped(&self, shape: Vec<usize>) -> Self {
        assert_eq!(elements(&shape), Some(self.len()), "{shape:?} has other elements than {:?}", self.shape);
        Self { dtype: self.dtype, shape, data: self.data.clone() }
    }

    /// The elements as `T`, borrowed when the bytes are aligned for it. Panics unless `T` is the tensor's type.
    pub fn values<T: Element>(&self) -> Cow<'_, [T]> {
        assert_eq!(T::DTYPE, self.dtype, "the tensor holds {}", self.dtype);
        self.cast()
    }

    /// The truth values of a boolean tensor, as bytes 0 and 1. Panics on any other type.
    pub fn bools(&self) -> &[u8] {
        assert_eq!(self.dtype, DType::Bool, "the tensor holds {}", self.dtype);
        &self.data
    }

    /// Elements of any integer or boolean type, widened; `None` for floating-point types, or a u64 past `i64::MAX`.
    pub fn to_i64s(&self) -> Option<Vec<i64>> {
        fn widen<T: Element + Into<i64>>(tensor: &Tensor) -> Option<Vec<i64>> {
            Some(tensor.values::<T>().iter().map(|&value| value.into()).collect())
        }
        match self.dtype {
            DType::I8 => widen::<i8>(self),
            DType::I16 => widen::<i16>(self),
            DType::I32 => widen::<i32>(self),
            DType::I64 => widen::<i64>(self),
            DType::U8 => widen::<u8>(self),
            DType::U16 => widen::<u16>(self),
            DType::U32 => widen::<u32>(self),
            DType::U64 => self.values::<u64>().iter().map(|&value| i64::try_from(value).ok()).collect(),
            DType::Bool => Some(self.data.iter().map(|&byte| byte.into()).collect()),
            _ => None,
        }
    }

    /// Elements of any floating-point type as f32 (f64 is rounded); `None` for the other types.
    pub fn to_f32s(&self) -> Option<Cow<'_, [f32]>> {
        match self.dtype {
            DType::F32 => Some(self.cast()),
            DType::F16 => Some(self.values::<f16>().iter().map(|value| value.to_f32()).collect()),
            DType::BF16 => Some(self.values::<bf16>().iter().map(|value| value.to_f32()).collect()),
            DType::F64 => Some(self.values::<f64>().iter().map(|&value| value as f32).collect()),
            _ => None,
        }
    }

    fn cast<T: Element>(&self) -> Cow<'_, [T]> {
        match bytemuck::try_cast_slice(&self.data) {
            Ok(aligned) => Cow::Borrowed(aligned),
            // The bytes of a file are as aligned as the file has them.
            Err(_) => {
                let mut copy = vec![T::zeroed(); self.len()];
                bytemuck::cast_slice_mut(&mut copy).copy_from_slice(&self.data);
                Cow::Owned(copy)
            }
        }
    }
}
