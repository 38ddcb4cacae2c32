//! What a tensor is, apart from where it lies.
//!
//! `new, strided --checked--> Descriptor --slice, reshape, transpose--> Descriptor, and where it starts`
//!
//! - Holding one proves that its size and every offset in it are numbers, and that no two elements share a byte.
//! - Strides are in elements, never negative, never 0 along more than one element.
//! - Not here: memory (`storage`), and who made what is there (`tensor`).

use super::invalid;
use crate::DType;
use crate::device::DeviceError;
use crate::plan::Region;
use std::fmt;
use std::ops::Range;

/// The most axes of a tensor.
pub const RANK_MAX: usize = 8;

/// How the elements of a tensor lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// End to end, the last axis fastest.
    RowMajor,
    /// By its strides.
    Strided,
}

/// Element type, shape and strides of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    dtype: DType,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

impl Descriptor {
    /// Row-major.
    ///
    /// # Errors
    /// More than [`RANK_MAX`] axes, and a size that no memory has.
    pub fn new(dtype: DType, shape: &[usize]) -> Result<Self, DeviceError> {
        let mut strides = vec![0; shape.len()];
        let mut elements = Some(1_usize);
        for (stride, &extent) in strides.iter_mut().zip(shape).rev() {
            *stride = elements.unwrap_or(0);
            elements = elements.and_then(|elements| elements.checked_mul(extent.max(1)));
        }
        if elements.is_none() {
            return Err(invalid(format!("{dtype} {shape:?} has more elements than memory has bytes")));
        }
        Self { dtype, shape: shape.to_vec(), strides }.checked()
    }

    /// With a stride for each axis, in elements.
    ///
    /// # Errors
    /// Another number of strides than axes, two elements in one place, and what [`new`](Self::new) refuses.
    pub fn strided(dtype: DType, shape: &[usize], strides: &[usize]) -> Result<Self, DeviceError> {
        if shape.len() != strides.len() {
            let (axes, found) = (shape.len(), strides.len());
            return Err(invalid(format!("{dtype} {shape:?} with {found} strides {strides:?}: it has {axes} axes")));
        }
        Self { dtype, shape: shape.to_vec(), strides: strides.to_vec() }.checked()
    }

    fn checked(self) -> Result<Self, DeviceError> {
        let Self { dtype, shape, strides } = &self;
        if shape.len() > RANK_MAX {
            let axes = shape.len();
            return Err(invalid(format!("{dtype} {shape:?} has {axes} axes, and a tensor has at most {RANK_MAX}")));
        }
        if self.is_empty() {
            return Ok(self);
        }
        let last =
            |sum: usize, (&extent, &stride): (&usize, &usize)| sum.checked_add((extent - 1).checked_mul(stride)?);
        let end = shape.iter().zip(strides).try_fold(0, last);
        let bytes = end.and_then(|last| last.checked_add(1)?.checked_mul(dtype.size()));
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(invalid(format!("{dtype} {shape:?} with strides {strides:?} ends past what memory has")));
        }
        // Sorted by stride, each axis steps over all that the ones before it cover.
        let mut axes = self.axes();
        axes.sort_by_key(|axis| axis.1);
        let mut covered = 1;
        for (extent, stride) in axes {
            if stride < covered {
                return Err(invalid(format!("{dtype} {shape:?} with strides {strides:?}: two elements share a place")));
            }
            covered += (extent - 1) * stride;
        }
        Ok(self)
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Elements along each axis.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Elements from one to the next along each axis.
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// How they lie.
    pub fn layout(&self) -> Layout {
        let mut expected = 1;
        for (&extent, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if extent > 1 && stride != expected && !self.is_empty() {
                return Layout::Strided;
            }
            expected *= extent.max(1);
        }
        Layout::RowMajor
    }

    /// How many elements.
    pub fn elements(&self) -> usize {
        if self.is_empty() { 0 } else { self.shape.iter().product() }
    }

    /// Bytes of all elements.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Bytes from its first element to the end of its last.
    pub fn span_bytes(&self) -> usize {
        if self.is_empty() {
            return 0;
        }
        let last: usize = self.shape.iter().zip(&self.strides).map(|(extent, stride)| (extent - 1) * stride).sum();
        (last + 1) * self.dtype.size()
    }

    /// `range` of `axis`, and the bytes before it.
    pub(super) fn slice(&self, axis: usize, range: Range<usize>) -> Result<(Self, usize), DeviceError> {
        let Range { start, end } = range;
        let Some(&extent) = self.shape.get(axis) else {
            let axes = self.shape.len();
            return Err(invalid(format!("axis {axis} of {self} is sliced, and it has {axes}")));
        };
        if start > end || end > extent {
            return Err(invalid(format!("{start}..{end} of axis {axis} of {self}, which has {extent}")));
        }
        let mut part = self.clone();
        part.shape[axis] = end - start;
        let before = if part.is_empty() { 0 } else { start * self.strides[axis] * self.dtype.size() };
        Ok((part, before))
    }

    /// The same elements, row-major, in another shape.
    pub(super) fn reshape(&self, shape: &[usize]) -> Result<Self, DeviceError> {
        if self.layout() != Layout::RowMajor {
            return Err(invalid(format!("{self} is reshaped to {shape:?}, and only what lies end to end can be")));
        }
        let reshaped = Self::new(self.dtype, shape)?;
        if reshaped.elements() != self.elements() {
            let (found, asked) = (self.elements(), reshaped.elements());
            return Err(invalid(format!("{self} of {found} elements is reshaped to {shape:?} of {asked}")));
        }
        Ok(reshaped)
    }

    /// Axis `order[i]` as axis `i`.
    pub(super) fn transpose(&self, order: &[usize]) -> Result<Self, DeviceError> {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..self.shape.len()) {
            return Err(invalid(format!("{self} is transposed by {order:?}, which does not name each axis once")));
        }
        let pick = |from: &[usize]| order.iter().map(|&axis| from[axis]).collect();
        Ok(Self { dtype: self.dtype, shape: pick(&self.shape), strides: pick(&self.strides) })
    }

    /// Extent and stride of every axis along which there is a next element.
    fn axes(&self) -> Vec<(usize, usize)> {
        self.shape.iter().copied().zip(self.strides.iter().copied()).filter(|axis| axis.0 > 1).collect()
    }

    /// Its bytes where it starts at byte `offset`, as few regions as there are.
    pub(super) fn regions(&self, offset: usize) -> Vec<Region> {
        pairs(self, offset, self, offset).into_iter().map(|(region, _)| region).collect()
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.dtype, self.shape)
    }
}

/// The bytes of two descriptors of one dtype and shape, as pairs of regions with the same number of equally long rows:
/// what a copy of one to the other copies. Starts are in bytes.
pub(super) fn pairs(from: &Descriptor, from_at: usize, to: &Descriptor, to_at: usize) -> Vec<(Region, Region)> {
    if from.is_empty() {
        return Vec::new();
    }
    let size = from.dtype.size();
    let strides = from.strides.iter().zip(&to.strides);
    // Extent, and the strides of both in bytes, outermost first as the target has them.
    let mut axes: Vec<_> = from.shape.iter().zip(strides).map(|(&n, (a, b))| (n, a * size, b * size)).collect();
    axes.retain(|axis| axis.0 > 1);
    axes.sort_by_key(|&(_, from, to)| std::cmp::Reverse((to, from)));
    let mut run = size;
    while let Some(&(extent, a, b)) = axes.last() {
        if a != run || b != run {
            break;
        }
        run *= extent;
        axes.pop();
    }
    // The longest axis becomes the rows: fewest regions.
    let longest = (0..axes.len()).max_by_key(|&at| axes[at].0);
    let (rows, a, b) = longest.map_or((1, run, run), |at| axes.remove(at));
    let region = |offset: usize, stride: usize| Region { offset, row_bytes: run, stride, rows };
    let mut starts = vec![(from_at, to_at)];
    for (extent, a, b) in axes {
        let next = |(from, to): &(usize, usize)| {
            let (from, to) = (*from, *to);
            (0..extent).map(move |at| (from + at * a, to + at * b)).collect::<Vec<_>>()
        };
        starts = starts.iter().flat_map(next).collect();
    }
    starts.into_iter().map(|(from, to)| (region(from, a), region(to, b))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Byte offset of every element, in row-major order of the shape.
    fn places(desc: &Descriptor, offset: usize) -> Vec<usize> {
        let mut places = vec![offset];
        for (&extent, &stride) in desc.shape().iter().zip(desc.strides()) {
            let step = stride * desc.dtype().size();
            places = places.iter().flat_map(|start| (0..extent).map(move |at| start + at * step)).collect();
        }
        places
    }

    fn bytes(regions: impl IntoIterator<Item = Region>) -> Vec<usize> {
        let run = |region: Region, row: usize| {
            let start = region.offset + row * region.stride;
            start..start + region.row_bytes
        };
        regions.into_iter().flat_map(|region| (0..region.rows).flat_map(move |row| run(region, row))).collect()
    }

    fn view() -> impl Strategy<Value = (Descriptor, usize)> {
        let shape = prop::collection::vec(1usize..5, 1..4);
        (shape, any::<[u8; 4]>(), 0usize..3).prop_map(|(shape, picks, turns)| {
            let (mut desc, mut offset) = (Descriptor::new(DType::F16, &shape).unwrap(), 0);
            for (axis, pick) in (0..shape.len()).zip(picks) {
                let start = usize::from(pick & 15) % shape[axis];
                let end = start + 1 + usize::from(pick >> 4) % (shape[axis] - start);
                let (part, before) = desc.slice(axis, start..end).unwrap();
                (desc, offset) = (part, offset + before);
            }
            let mut order: Vec<usize> = (0..shape.len()).collect();
            order.rotate_left(turns % shape.len());
            (desc.transpose(&order).unwrap(), offset)
        })
    }

    proptest! {
        #[test]
        fn pairs_copy_each_element_to_its_place((from, at) in view()) {
            let to = Descriptor::new(from.dtype(), from.shape()).unwrap();
            let pairs = pairs(&from, at, &to, 64);
            let copied: std::collections::BTreeMap<usize, usize> =
                bytes(pairs.iter().map(|pair| pair.1)).into_iter().zip(bytes(pairs.iter().map(|pair| pair.0))).collect();
            let expected = places(&to, 64).into_iter().zip(places(&from, at));
            let expected = expected.flat_map(|(to, from)| [(to, from), (to + 1, from + 1)]).collect();
            prop_assert_eq!(copied, expected);
        }

        #[test]
        fn regions_are_its_bytes_each_once((desc, at) in view()) {
            let mut found = bytes(desc.regions(at));
            found.sort_unstable();
            let mut expected: Vec<usize> = places(&desc, at).into_iter().flat_map(|start| [start, start + 1]).collect();
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(desc.span_bytes() + at, places(&desc, at).into_iter().max().unwrap() + 2);
        }

        /// Against all places, looked at one by one. What is let through is safe; nested strides are all let through.
        #[test]
        fn elements_that_share_a_place_are_refused(
            axes in prop::collection::vec((1usize..4, 0usize..9), 1..4),
        ) {
            let (shape, strides): (Vec<_>, Vec<_>) = axes.into_iter().unzip();
            let unchecked = Descriptor { dtype: DType::U8, shape: shape.clone(), strides: strides.clone() };
            let mut all = places(&unchecked, 0);
            all.sort_unstable();
            let apart = all.windows(2).all(|pair| pair[0] < pair[1]);
            let taken = Descriptor::strided(DType::U8, &shape, &strides).is_ok();
            prop_assert!(apart || !taken, "{:?} {:?}", shape, strides);
        }
    }

    #[test]
    fn what_is_no_tensor_is_refused() {
        let said = |result: Result<Descriptor, DeviceError>| result.unwrap_err().to_string();
        assert_eq!(
            said(Descriptor::new(DType::F32, &[usize::MAX, 3])),
            format!("invalid: float32 [{}, 3] has more elements than memory has bytes", usize::MAX)
        );
        assert!(said(Descriptor::new(DType::F32, &[usize::MAX / 4])).contains("ends past what memory has"));
        assert_eq!(
            said(Descriptor::new(DType::F32, &[1; 9])),
            "invalid: float32 [1, 1, 1, 1, 1, 1, 1, 1, 1] has 9 axes, and a tensor has at most 8"
        );
        assert_eq!(
            said(Descriptor::strided(DType::F32, &[2, 2], &[1])),
            "invalid: float32 [2, 2] with 1 strides [1]: it has 2 axes"
        );
        assert_eq!(
            said(Descriptor::strided(DType::F32, &[2, 3], &[2, 1])),
            "invalid: float32 [2, 3] with strides [2, 1]: two elements share a place"
        );
        let desc = Descriptor::new(DType::F32, &[2, 3]).unwrap();
        assert_eq!(
            desc.slice(2, 0..1).unwrap_err().to_string(),
            "invalid: axis 2 of float32 [2, 3] is sliced, and it has 2"
        );
        assert_eq!(
            desc.slice(1, 2..4).unwrap_err().to_string(),
            "invalid: 2..4 of axis 1 of float32 [2, 3], which has 3"
        );
        assert_eq!(said(desc.reshape(&[7])), "invalid: float32 [2, 3] of 6 elements is reshaped to [7] of 7");
        let turned = desc.transpose(&[1, 0]).unwrap();
        assert_eq!((turned.shape(), turned.strides(), turned.layout()), (&[3, 2][..], &[1, 3][..], Layout::Strided));
        assert_eq!(
            said(turned.reshape(&[6])),
            "invalid: float32 [3, 2] is reshaped to [6], and only what lies end to end can be"
        );
        assert_eq!(
            said(desc.transpose(&[0, 0])),
            "invalid: float32 [2, 3] is transposed by [0, 0], which does not name each axis once"
        );
        let empty = Descriptor::new(DType::F32, &[0, usize::MAX]).unwrap();
        assert!(empty.is_empty() && empty.bytes() == 0 && empty.span_bytes() == 0 && empty.regions(0).is_empty());
    }
}
