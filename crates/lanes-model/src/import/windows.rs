//! Pools and transposed convolutions, in terms of slices and convolutions.

use super::builder::{Builder, Fault};
use super::elementwise::scalar;
use super::nodes::Call;
use crate::graph::{Binary, Op, PadMode, SliceAxis, ValueId, Window};
use crate::tensor::Tensor;

/// A pool has at most so many taps: each becomes a slice.
const TAPS_MAX: usize = 256;
/// No stride, dilation or pad is longer.
const REACH_MAX: usize = 1 << 20;

impl Builder<'_> {
    /// One size for each of `count` entries of an attribute.
    fn sizes(&self, call: &Call<'_>, name: &'static str, count: usize, default: usize) -> Result<Vec<usize>, Fault> {
        let Some(found) = call.attributes.ints(name)? else {
            return Ok(vec![default; count]);
        };
        let size = |&value: &i64| usize::try_from(value).ok().filter(|&value| value <= REACH_MAX);
        let sizes: Option<Vec<usize>> = found.iter().map(size).collect();
        sizes
            .filter(|sizes| sizes.len() == count)
            .ok_or_else(|| Fault::Malformed(format!("{name} {found:?}; {count} sizes up to {REACH_MAX} are expected")))
    }

    /// Refuses `auto_pad` but for what pads nothing or what `pads` says.
    fn explicit_pads(&self, call: &Call<'_>) -> Result<(), Fault> {
        match call.attributes.text("auto_pad")? {
            None | Some("NOTSET" | "VALID") => Ok(()),
            Some(other) => Err(Fault::Unsupported(format!("auto_pad {other:?}; explicit pads are supported"))),
        }
    }

    /// A border of `fill` around the spatial axes, which are those from 2 on.
    fn bordered(&mut self, x: ValueId, front: &[usize], back: &[usize], fill: f64) -> Result<ValueId, Fault> {
        if front.iter().chain(back).all(|&pad| pad == 0) {
            return Ok(x);
        }
        let (before, after) = ([&[0, 0], front].concat(), [&[0, 0], back].concat());
        let extents = self.shape(x).iter().zip(before.iter().zip(&after));
        let shape = extents.map(|(extent, (before, after))| extent + before + after).collect();
        let fill = self.constant(scalar(fill, self.dtype(x)));
        let op = Op::Pad { before, after, mode: PadMode::Constant };
        self.emit(op, &[x, fill], self.dtype(x), shape, self.lane(x))
    }

    /// `MaxPool` or `AveragePool`: the greatest, or the mean, of one strided slice for each tap of the window.
    pub(super) fn pool(&mut self, max: bool, call: &Call<'_>) -> Result<ValueId, Fault> {
        let attributes = &call.attributes;
        let x = call.operand(0)?;
        self.expect_float(x)?;
        self.expect_rank(x, 3..=5, "the operand")?;
        call.only_results(1)?;
        attributes.ignore(&["storage_order"]);
        self.explicit_pads(call)?;
        if attributes.flag("ceil_mode", false)? {
            return Err(Fault::Unsupported("ceil_mode; whole windows are supported".into()));
        }
        if attributes.ints("kernel_shape")?.is_none() {
            return Err(Fault::Malformed("attribute kernel_shape is missing".into()));
        }
        let rank = self.shape(x).len() - 2;
        let kernel = self.sizes(call, "kernel_shape", rank, 1)?;
        let (strides, dilations) = (self.sizes(call, "strides", rank, 1)?, self.sizes(call, "dilations", rank, 1)?);
        let pads = self.sizes(call, "pads", 2 * rank, 0)?;
        let (front, back) = pads.split_at(rank);
        let taps = crate::tensor::elements(&kernel).unwrap_or(usize::MAX);
        if !(1..=TAPS_MAX).contains(&taps) || strides.contains(&0) || dilations.contains(&0) {
            let why = format!("a window of {kernel:?} by {strides:?}; 1 to {TAPS_MAX} taps are supported");
            return Err(Fault::Unsupported(why));
        }
        self.refuse_lanes_among(x, &(2..rank + 2).collect::<Vec<_>>(), "pools over");
        let extents = self.shape(x)[2..].to_vec();
        let mut places = Vec::new();
        for axis in 0..rank {
            let reach = (kernel[axis] - 1) * dilations[axis] + 1;
            let room = (extents[axis] + front[axis] + back[axis]).checked_sub(reach);
            let too_short = || Fault::Malformed(format!("a window of {reach} over {} elements", extents[axis]));
            places.push(room.ok_or_else(too_short)? / strides[axis] + 1);
        }
        let (fill, op) = if max { (f64::NEG_INFINITY, Binary::Max) } else { (0.0, Binary::Add) };
        // `op` over all taps, each tap a slice of the bordered operand.
        let over_taps = |builder: &mut Self, x: ValueId| -> Result<ValueId, Fault> {
            let x = builder.bordered(x, front, back, fill)?;
            let shape = [&builder.shape(x)[..2], &places[..]].concat();
            let mut tapped = None;
            for tap in 0..taps {
                let mut left = tap;
                let mut axes = Vec::new();
                for axis in (0..rank).rev() {
                    let start = left % kernel[axis] * dilations[axis];
                    left /= kernel[axis];
                    axes.push(SliceAxis { axis: axis + 2, start, step: strides[axis] as isize, len: places[axis] });
                }
                let part = builder.emit(Op::Slice { axes }, &[x], builder.dtype(x), shape.clone(), builder.lane(x))?;
                tapped = Some(match tapped {
                    None => part,
                    Some(before) => builder.pair(op, before, part)?,
                });
            }
            tapped.ok_or_else(|| Fault::Malformed("a window without taps".into()))
        };
        let tapped = over_taps(self, x)?;
        if max {
            return Ok(tapped);
        }
        if attributes.flag("count_include_pad", false)? {
            return self.pair_scalar(Binary::Div, tapped, taps as f64);
        }
        // How many taps of each window lie inside: a pool of ones, which folds.
        let shape = [&[1, 1], &extents[..]].concat();
        let ones = self.constant(Tensor::from_vec(shape.clone(), vec![1f32; shape.iter().product()]));
        let ones = self.cast(ones, self.dtype(x))?;
        let counts = over_taps(self, ones)?;
        self.pair(Binary::Div, tapped, counts)
    }

    /// `ConvTranspose`: a convolution by the mirrored kernel, over the operand with zeros between its elements.
    pub(super) fn conv_transpose(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let attributes = &call.attributes;
        let (mut x, w, bias) = (call.operand(0)?, call.operand(1)?, call.optional(2));
        self.expect_float(x)?;
        self.expect_same_dtype(&[x, w])?;
        self.expect_rank(x, 3..=5, "X")?;
        let rank = self.shape(x).len() - 2;
        self.expect_rank(w, rank + 2..=rank + 2, "W")?;
        self.explicit_pads(call)?;
        if attributes.ints("output_shape")?.is_some() {
            return Err(Fault::Unsupported("output_shape; pads and output_padding are supported".into()));
        }
        let group = usize::try_from(attributes.int("group")?.unwrap_or(1)).unwrap_or(0);
        let (channels, per_group) = (self.shape(x)[1], self.shape(w)[1]);
        let empty = self.shape(x).contains(&0) || self.shape(w).contains(&0);
        if group == 0 || channels % group != 0 || self.shape(w)[0] != channels || empty {
            let (x, w) = (self.shape(x), self.shape(w));
            return Err(Fault::Malformed(format!("X has shape {x:?} and W {w:?} in {group} groups")));
        }
        let filters = group * per_group;
        let kernel = self.shape(w)[2..].to_vec();
        if attributes.ints("kernel_shape")?.is_some() && self.sizes(call, "kernel_shape", rank, 1)? != kernel {
            return Err(Fault::Malformed(format!("kernel_shape is not that of W, {:?}", self.shape(w))));
        }
        let (strides, dilations) = (self.sizes(call, "strides", rank, 1)?, self.sizes(call, "dilations", rank, 1)?);
        let (pads, more) = (self.sizes(call, "pads", 2 * rank, 0)?, self.sizes(call, "output_padding", rank, 0)?);
        if strides.contains(&0) || dilations.contains(&0) {
            return Err(Fault::Malformed(format!("strides {strides:?} and dilations {dilations:?}")));
        }
        if let Some(bias) = bias {
            self.expect_same_dtype(&[x, bias])?;
            self.expect_shape(bias, &[filters], "B")?;
        }
        if let Some(axis) = self.lane(x).axis().filter(|&axis| axis > 0) {
            self.place(Err(format!("it convolves over axis {axis}, which holds the lanes; they may lie on axis 0")));
        }
        for axis in (0..rank).filter(|&axis| strides[axis] > 1) {
            x = self.spread_out(x, axis + 2, strides[axis])?;
        }
        // The mirrored kernel reaches as far out as it is long; pads take that back, and may take more.
        let (mut front, mut back) = (vec![0; rank], vec![0; rank]);
        let mut places = Vec::new();
        let mut cuts = Vec::new();
        for axis in 0..rank {
            let reach = (kernel[axis] - 1) * dilations[axis];
            let (out, extent) = ([reach, reach + more[axis]], self.shape(x)[axis + 2]);
            let cut = [out[0].abs_diff(pads[axis]), out[1].abs_diff(pads[rank + axis])];
            front[axis] = if out[0] >= pads[axis] { cut[0] } else { 0 };
            back[axis] = if out[1] >= pads[rank + axis] { cut[1] } else { 0 };
            let start = if front[axis] == 0 { cut[0] } else { 0 };
            let end = if back[axis] == 0 { cut[1] } else { 0 };
            let len = extent.checked_sub(start + end);
            let left = len.and_then(|len| (len + front[axis] + back[axis]).checked_sub(reach)).filter(|&left| left > 0);
            let (Some(len), Some(left)) = (len, left) else {
                return Err(Fault::Malformed(format!("pads {pads:?} leave nothing of axis {}", axis + 2)));
            };
            places.push(left);
            if len < extent {
                cuts.push(SliceAxis { axis: axis + 2, start, step: 1, len });
            }
        }
        let (dtype, lane) = (self.dtype(x), self.lane(x));
        if !cuts.is_empty() {
            let mut shape = self.shape(x).to_vec();
            cuts.iter().for_each(|cut| shape[cut.axis] = cut.len);
            x = self.emit(Op::Slice { axes: cuts }, &[x], dtype, shape, lane)?;
        }
        x = self.bordered(x, &front, &back, 0.0)?;
        // W is [C, M/group, …]: to [M, C/group, …], mirrored.
        let w_lane = self.lane(w);
        let grouped = self.renamed(w, [&[group, channels / group, per_group], &kernel[..]].concat(), w_lane)?;
        let perm: Vec<usize> = [0, 2, 1].into_iter().chain(3..3 + rank).collect();
        let turned = self.transposed(grouped, &perm)?;
        let shape = [&[filters, channels / group], &kernel[..]].concat();
        let flat = self.renamed(turned, shape.clone(), w_lane)?;
        let mirror = |axis: usize| SliceAxis { axis: axis + 2, start: kernel[axis] - 1, step: -1, len: kernel[axis] };
        let axes = (0..rank).map(mirror).collect();
        let weights = self.emit(Op::Slice { axes }, &[flat], dtype, shape, w_lane)?;

        let out = [&[self.shape(x)[0], filters], &places[..]].concat();
        let (strides, zeros) = (vec![1; rank], vec![0; rank]);
        let window = Window { kernel, strides, dilations, pads_begin: zeros.clone(), pads_end: zeros };
        Ok(self.emit_all(Op::Conv { window, group }, vec![Some(x), Some(weights), bias], vec![(dtype, out, lane)])?[0])
    }

    /// `x` with `stride − 1` zeros between neighbours along `axis`: they get an axis of their own, which is padded and
    /// merged again.
    fn spread_out(&mut self, x: ValueId, axis: usize, stride: usize) -> Result<ValueId, Fault> {
        let (dtype, lane, from) = (self.dtype(x), self.lane(x), self.shape(x).to_vec());
        let with = |extent: usize| [&from[..=axis], &[extent], &from[axis + 1..]].concat();
        let apart = self.renamed(x, with(1), lane)?;
        let mut after = vec![0; from.len() + 1];
        after[axis + 1] = stride - 1;
        let op = Op::Pad { before: vec![0; from.len() + 1], after, mode: PadMode::Constant };
        let padded = self.emit(op, &[apart], dtype, with(stride), lane)?;
        let mut shape = from.clone();
        shape[axis] = from[axis] * stride;
        let merged = self.renamed(padded, shape.clone(), lane)?;
        // None after the last.
        shape[axis] -= stride - 1;
        let axes = vec![SliceAxis { axis, start: 0, step: 1, len: shape[axis] }];
        self.emit(Op::Slice { axes }, &[merged], dtype, shape, lane)
    }
}
