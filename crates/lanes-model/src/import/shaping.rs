//! Operators that make constants, and those that move elements or rename axes.

use super::axis::{self, Lane};
use super::builder::{Builder, Fault};
use super::nodes::{Call, axes_of, axis_of, broadcast_shape};
use crate::graph::{Op, PadMode, SliceAxis, ValueId};
use crate::tensor::Tensor;
use lanes_core::DType;

/// A `Range` makes at most so many elements.
const RANGE_MAX: f64 = (1u64 << 24) as f64;

impl Builder<'_> {
    /// The operator's results, if it is one of this file's.
    pub(super) fn shaping(&mut self, op: &str, call: &Call<'_>) -> Result<Option<Vec<ValueId>>, Fault> {
        let one = |id: ValueId| Ok(Some(vec![id]));
        match op {
            "Constant" => one(self.literal(call)?),
            "ConstantOfShape" => one(self.constant_of_shape(call)?),
            "Shape" => one(self.shape_of(call)?),
            "Size" => {
                let x = call.operand(0)?;
                let size = self.shape(x).iter().product::<usize>() as i64;
                let lanes = self.lane(x).axis().is_some();
                one(self.constant_of_dims(Tensor::scalar(size), Some(vec![lanes])))
            }
            "Range" => one(self.range(call)?),
            "Concat" => one(self.concat(call)?),
            "Slice" => one(self.slice(call)?),
            "Split" => Ok(Some(self.split(call)?)),
            "Gather" => one(self.gather(call)?),
            "Pad" => one(self.pad(call)?),
            "Reshape" => one(self.reshape(call)?),
            "Flatten" => one(self.flatten(call)?),
            "Squeeze" => one(self.squeeze(call)?),
            "Unsqueeze" => one(self.unsqueeze(call)?),
            "Transpose" => {
                let x = call.operand(0)?;
                let rank = self.shape(x).len();
                let perm = match call.attributes.ints("perm")? {
                    None => (0..rank).rev().collect(),
                    Some(perm) => {
                        let found = perm.iter().map(|&axis| axis_of(axis, rank)).collect::<Result<Vec<_>, _>>()?;
                        if axes_of(perm, rank)?.len() != rank {
                            return Err(Fault::Malformed(format!("perm {perm:?} of a value of rank {rank}")));
                        }
                        found
                    }
                };
                one(self.transposed(x, &perm)?)
            }
            "Expand" => one(self.expand(call)?),
            _ => Ok(None),
        }
    }

    fn literal(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let attributes = &call.attributes;
        let tensor = if let Some(proto) = attributes.tensor("value")? {
            self.data.tensor(proto, &format!("constant {:?}", self.current.name))?
        } else if let Some(value) = attributes.float("value_float")? {
            Tensor::scalar(value)
        } else if let Some(values) = attributes.floats("value_floats")? {
            Tensor::from_vec(vec![values.len()], values.to_vec())
        } else if let Some(value) = attributes.int("value_int")? {
            Tensor::scalar(value)
        } else if let Some(values) = attributes.ints("value_ints")? {
            Tensor::from_vec(vec![values.len()], values.to_vec())
        } else {
            let kinds = "value, value_float, value_floats, value_int and value_ints";
            return Err(Fault::Unsupported(format!("a constant of another kind; {kinds} are supported")));
        };
        Ok(self.constant(tensor))
    }

    fn constant_of_shape(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let shape = extents(&self.integers(call.operand(0)?, "the shape")?)?;
        let value = match call.attributes.tensor("value")? {
            Some(proto) => self.data.tensor(proto, &format!("the value of {:?}", self.current.name))?,
            None => Tensor::scalar(0f32),
        };
        if value.len() != 1 {
            return Err(Fault::Malformed(format!("a value of shape {:?}; one element is expected", value.shape())));
        }
        let dtype = value.dtype();
        let value = self.constant(value.reshaped(Vec::new()));
        self.emit(Op::Expand, &[value], dtype, shape, Lane::Free)
    }

    fn shape_of(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let x = call.operand(0)?;
        let shape = self.shape(x);
        let rank = shape.len() as i64;
        let bound = |at: i64| (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize;
        let start = bound(call.attributes.int("start")?.unwrap_or(0));
        let end = bound(call.attributes.int("end")?.unwrap_or(rank)).max(start);
        let lanes = (start..end).map(|axis| self.lane(x).axis() == Some(axis)).collect();
        let values: Vec<i64> = shape[start..end].iter().map(|&extent| extent as i64).collect();
        Ok(self.constant_of_dims(Tensor::from_vec(vec![values.len()], values), Some(lanes)))
    }

    fn range(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let ids = [call.operand(0)?, call.operand(1)?, call.operand(2)?];
        self.expect_same_dtype(&ids)?;
        let dtype = self.dtype(ids[0]);
        let mut bounds = [0f64; 3];
        for (bound, (&id, what)) in bounds.iter_mut().zip(ids.iter().zip(["its start", "its limit", "its delta"])) {
            let tensor = self.known(id).ok_or_else(|| self.not_known(id, what))?;
            let values: Option<Vec<f64>> = match tensor.to_i64s() {
                Some(values) => Some(values.iter().map(|&value| value as f64).collect()),
                None if dtype == DType::F64 => Some(tensor.values::<f64>().to_vec()),
                None => tensor.to_f32s().map(|values| values.iter().map(|&value| value.into()).collect()),
            };
            match values.as_deref() {
                Some(&[value]) => *bound = value,
                _ => return Err(Fault::Malformed(format!("{what} is no scalar number"))),
            }
        }
        if ids.iter().any(|&id| self.lane_dims(id).contains(&true)) {
            self.note_per_lane("it counts the lanes, and each is the first of its own".into());
        }
        let [start, limit, delta] = bounds;
        let count = ((limit - start) / delta).ceil().max(0.0);
        // A delta of 0 gives no number, or an infinite one.
        if count.is_nan() || count > RANGE_MAX {
            return Err(Fault::Malformed(format!("a range from {start} to {limit} by {delta}")));
        }
        let values: Vec<f64> = (0..count as usize).map(|at| start + at as f64 * delta).collect();
        let wide = self.constant(Tensor::from_vec(vec![values.len()], values));
        self.cast(wide, dtype)
    }

    fn concat(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let operands = (0..call.operands.len()).map(|at| call.operand(at)).collect::<Result<Vec<_>, _>>()?;
        let first = call.operand(0)?;
        self.expect_same_dtype(&operands)?;
        let along = call.attributes.int("axis")?.ok_or_else(|| Fault::Malformed("attribute axis is missing".into()))?;
        let along = axis_of(along, self.shape(first).len())?;
        let mut shape = self.shape(first).to_vec();
        shape[along] = 0;
        for &id in &operands {
            let part = self.shape(id);
            let fits =
                part.len() == shape.len() && (0..shape.len()).all(|axis| axis == along || part[axis] == shape[axis]);
            if !fits {
                let first = self.shape(first);
                return Err(Fault::Malformed(format!("shapes {first:?} and {part:?} do not join along axis {along}")));
            }
            shape[along] = shape[along].saturating_add(part[along]);
        }
        let lanes: Vec<Lane> = operands.iter().map(|&id| self.lane(id)).collect();
        let place = axis::concat(&lanes, along);
        let lane = self.place(place);
        self.emit(Op::Concat { axis: along }, &operands, self.dtype(first), shape, lane)
    }

    /// `Slice`: attributes before opset 10, operands since. Bounds are clamped as the operator says.
    fn slice(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let x = call.operand(0)?;
        let rank = self.shape(x).len();
        let (starts, ends, axes, steps, end_lanes);
        if self.opset < 10 {
            let ints = |name| call.attributes.ints(name).map(|found| found.map(<[i64]>::to_vec));
            starts = ints("starts")?.unwrap_or_default();
            ends = ints("ends")?.unwrap_or_default();
            axes = ints("axes")?;
            steps = None;
            end_lanes = vec![false; ends.len()];
        } else {
            let given = |at: usize, what| call.optional(at).map(|id| self.integers(id, what)).transpose();
            starts = self.integers(call.operand(1)?, "the starts")?;
            ends = self.integers(call.operand(2)?, "the ends")?;
            axes = given(3, "the axes")?;
            steps = given(4, "the steps")?;
            end_lanes = self.lane_dims(call.operand(2)?);
        }
        let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
        let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
        if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
            return Err(Fault::Malformed("starts, ends, axes and steps differ in length".into()));
        }
        axes_of(&axes, rank)?;
        let mut shape = self.shape(x).to_vec();
        let (mut cuts, mut whole) = (Vec::new(), vec![false; rank]);
        for (at, &axis) in axes.iter().enumerate() {
            let axis = axis_of(axis, rank)?;
            let cut = cut(axis, shape[axis], starts[at], ends[at], steps[at])?;
            // Past any extent, or the extent itself.
            let to_the_end = ends[at] >= i64::from(i32::MAX) || end_lanes.get(at) == Some(&true);
            whole[axis] = steps[at] == 1 && starts[at] == 0 && to_the_end;
            shape[axis] = cut.len;
            cuts.push(cut);
        }
        self.cut(x, cuts, |axis| whole[axis])
    }

    /// A slice; axes that are taken whole are left out, and so is a slice that takes everything. `whole` tells
    /// which axes were asked for whole at any extent.
    pub(super) fn cut(
        &mut self,
        x: ValueId,
        cuts: Vec<SliceAxis>,
        whole: impl Fn(usize) -> bool,
    ) -> Result<ValueId, Fault> {
        let lane = self.lane(x);
        let from = self.shape(x).to_vec();
        let full = |cut: &SliceAxis| cut.start == 0 && cut.step == 1 && cut.len == from[cut.axis];
        let baked_whole = |axis: usize| self.baked && cuts.iter().all(|cut| cut.axis != axis || cut.len == 1);
        let place = axis::slice(lane, &cuts, |axis| whole(axis) || baked_whole(axis), self.shape(x));
        let lane = self.place(place);
        let mut shape = from.clone();
        cuts.iter().for_each(|cut| shape[cut.axis] = cut.len);
        let axes: Vec<SliceAxis> = cuts.iter().filter(|cut| !full(cut)).copied().collect();
        if axes.is_empty() {
            return Ok(x);
        }
        self.emit(Op::Slice { axes }, &[x], self.dtype(x), shape, lane)
    }

    fn split(&mut self, call: &Call<'_>) -> Result<Vec<ValueId>, Fault> {
        let x = call.operand(0)?;
        let along = axis_of(call.attributes.int("axis")?.unwrap_or(0), self.shape(x).len())?;
        let extent = self.shape(x)[along];
        let sizes = if self.opset < 13 {
            call.attributes.ints("split")?.map(<[i64]>::to_vec)
        } else {
            call.optional(1).map(|id| self.integers(id, "the sizes")).transpose()?
        };
        let parts = call.wanted.len();
        let sizes = match sizes {
            Some(sizes) => extents(&sizes)?,
            None => {
                let asked = if self.opset < 18 { None } else { call.attributes.int("num_outputs")? };
                if asked.is_some_and(|asked| asked != parts as i64) {
                    return Err(Fault::Malformed(format!("num_outputs is {asked:?} and it has {parts} results")));
                }
                // Equal parts, the last one smaller if they are not.
                let size = extent.div_ceil(parts.max(1));
                (0..parts).map(|part| size.min(extent.saturating_sub(part * size))).collect()
            }
        };
        if sizes.len() != parts || sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size)) != Some(extent) {
            return Err(Fault::Malformed(format!("sizes {sizes:?} for {parts} results of an axis of {extent}")));
        }
        if parts > 1 && self.lane(x).axis() == Some(along) {
            let why = format!("it splits axis {along}, which holds the lanes");
            self.place(Err(why));
        }
        let mut start = 0;
        let mut results = Vec::with_capacity(parts);
        for size in sizes {
            let cut = SliceAxis { axis: along, start, step: 1, len: size };
            results.push(self.cut(x, vec![cut], |_| true)?);
            start += size;
        }
        Ok(results)
    }

    fn gather(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let (x, indices) = (call.operand(0)?, call.operand(1)?);
        if !matches!(self.dtype(indices), DType::I32 | DType::I64) {
            return Err(Fault::Malformed(format!("indices of {}; int32 and int64 are expected", self.dtype(indices))));
        }
        let along = axis_of(call.attributes.int("axis")?.unwrap_or(0), self.shape(x).len())?;
        let picked = self.shape(indices).to_vec();
        let shape = [&self.shape(x)[..along], &picked, &self.shape(x)[along + 1..]].concat();
        let place = if self.baked && self.lane(x).axis() == Some(along) && self.known(indices).is_some() {
            // The file says that there is one entry: it is the lane's own.
            Ok(if picked == [1] { self.lane(x) } else { Lane::Gone })
        } else {
            axis::gather(self.lane(x), self.lane(indices), along, picked.len())
        };
        let lane = self.place(place);
        // One known entry is a slice, and the axis goes or stays as the indices say.
        let known = self.known(indices).and_then(Tensor::to_i64s);
        if let (Some(&[index]), None) = (known.as_deref(), self.known(x)) {
            let extent = self.shape(x)[along];
            let from = if index < 0 { index.saturating_add(extent as i64) } else { index };
            let start = usize::try_from(from).ok().filter(|&start| start < extent);
            let start = start.ok_or_else(|| Fault::Malformed(format!("index {index} into an axis of {extent}")))?;
            let mut cut_shape = self.shape(x).to_vec();
            cut_shape[along] = 1;
            let axes = vec![SliceAxis { axis: along, start, step: 1, len: 1 }];
            let cut =
                if extent == 1 { x } else { self.emit(Op::Slice { axes }, &[x], self.dtype(x), cut_shape, lane)? };
            return self.renamed(cut, shape, lane);
        }
        self.emit(Op::Gather { axis: along }, &[x, indices], self.dtype(x), shape, lane)
    }

    /// `Pad`: attributes before opset 11, operands since, axes since 18. Negative pads cut.
    fn pad(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let x = call.operand(0)?;
        let rank = self.shape(x).len();
        let mode = match call.attributes.text("mode")?.unwrap_or("constant") {
            "constant" => PadMode::Constant,
            "reflect" => PadMode::Reflect,
            "edge" => PadMode::Edge,
            other => {
                let why = format!("mode {other:?}; constant, reflect and edge are supported");
                return Err(Fault::Unsupported(why));
            }
        };
        let (pads, value, axes);
        if self.opset < 11 {
            pads = call.attributes.ints("pads")?.unwrap_or_default().to_vec();
            let fill = call.attributes.float("value")?.unwrap_or(0.0);
            self.expect_float(x)?;
            value = Some(self.constant(super::elementwise::scalar(fill.into(), self.dtype(x))));
            axes = None;
        } else {
            pads = self.integers(call.operand(1)?, "the pads")?;
            value = call.optional(2);
            axes = call.optional(3).map(|id| self.integers(id, "the axes")).transpose()?;
        }
        let axes = match axes {
            Some(axes) => {
                axes_of(&axes, rank)?;
                axes.iter().map(|&axis| axis_of(axis, rank)).collect::<Result<Vec<_>, _>>()?
            }
            None => (0..rank).collect(),
        };
        if pads.len() != 2 * axes.len() {
            return Err(Fault::Malformed(format!(
                "{} pads for {} axes; two an axis are expected",
                pads.len(),
                axes.len()
            )));
        }
        let (mut before, mut after) = (vec![0i64; rank], vec![0i64; rank]);
        for (at, &axis) in axes.iter().enumerate() {
            (before[axis], after[axis]) = (pads[at], pads[at + axes.len()]);
        }
        if let Some(axis) = self.lane(x).axis().filter(|&axis| (before[axis], after[axis]) != (0, 0)) {
            self.place(Err(format!("it pads axis {axis}, which holds the lanes")));
        }
        let x = self.cut_negative(x, &before, &after)?;
        let amount = |pads: &[i64]| pads.iter().map(|&pad| pad.max(0) as usize).collect::<Vec<_>>();
        let (before, after) = (amount(&before), amount(&after));
        if before.iter().chain(&after).all(|&pad| pad == 0) {
            return Ok(x);
        }
        let mut shape = self.shape(x).to_vec();
        for axis in 0..rank {
            let extent = shape[axis];
            let too_far = match mode {
                PadMode::Constant => false,
                PadMode::Edge => extent == 0,
                PadMode::Reflect => before[axis].max(after[axis]) >= extent.max(1),
            };
            if too_far && before[axis] + after[axis] > 0 {
                return Err(Fault::Malformed(format!(
                    "pads of {} and {} by mirror or edge on an axis of {extent}",
                    before[axis], after[axis]
                )));
            }
            shape[axis] = extent.saturating_add(before[axis]).saturating_add(after[axis]);
        }
        let mut operands = vec![Some(x)];
        if let (PadMode::Constant, Some(value)) = (mode, value) {
            self.expect_same_dtype(&[x, value])?;
            if self.shape(value).iter().any(|&extent| extent != 1) {
                return Err(Fault::Malformed("the pad value is no scalar".into()));
            }
            operands.push(Some(value));
        }
        let lane = match (self.lane(x), operands.get(1).copied().flatten().map(|id| self.lane(id))) {
            (Lane::Free, Some(Lane::Gone | Lane::In { .. })) => Lane::Gone,
            (lane, _) => lane,
        };
        let result = (self.dtype(x), shape, lane);
        Ok(self.emit_all(Op::Pad { before, after, mode }, operands, vec![result])?[0])
    }

    fn cut_negative(&mut self, x: ValueId, before: &[i64], after: &[i64]) -> Result<ValueId, Fault> {
        let mut cuts = Vec::new();
        for (axis, &extent) in self.shape(x).iter().enumerate() {
            let (front, back) = (before[axis].min(0).unsigned_abs(), after[axis].min(0).unsigned_abs());
            if front.saturating_add(back) > extent as u64 {
                return Err(Fault::Malformed(format!(
                    "pads of {} and {} on an axis of {extent}",
                    before[axis], after[axis]
                )));
            }
            if front + back > 0 {
                cuts.push(SliceAxis { axis, start: front as usize, step: 1, len: extent - (front + back) as usize });
            }
        }
        self.cut(x, cuts, |_| true)
    }

    /// The same elements in another shape; nothing when the shape is the same and the lanes lie where they did.
    pub(super) fn renamed(&mut self, x: ValueId, shape: Vec<usize>, lane: Lane) -> Result<ValueId, Fault> {
        if self.shape(x) == shape && self.lane(x) == lane {
            return Ok(x);
        }
        self.emit(Op::Reshape, &[x], self.dtype(x), shape, lane)
    }

    fn reshape(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let (x, target) = (call.operand(0)?, call.operand(1)?);
        let wanted = self.integers(target, "the shape")?;
        let mut lane_dims = self.lane_dims(target);
        let allow_zero = call.attributes.flag("allowzero", false)?;
        if wanted.len() > 32 {
            return Err(Fault::Malformed(format!("a shape of {} axes", wanted.len())));
        }
        let from = self.shape(x).to_vec();
        let mut rest = None;
        let mut shape = Vec::with_capacity(wanted.len());
        for (at, &extent) in wanted.iter().enumerate() {
            shape.push(match extent {
                -1 if rest.is_none() => {
                    rest = Some(at);
                    1
                }
                0 if !allow_zero => {
                    // Taken from the operand's axis, lanes and all.
                    lane_dims[at] = self.lane(x).axis() == Some(at);
                    *from
                        .get(at)
                        .ok_or_else(|| Fault::Malformed(format!("extent {at} is to be copied from {from:?}")))?
                }
                extent => usize::try_from(extent).map_err(|_| Fault::Malformed(format!("the shape {wanted:?}")))?,
            });
        }
        let count: usize = from.iter().product();
        let given = crate::tensor::elements(&shape);
        if let (Some(at), Some(given)) = (rest, given.filter(|&given| given > 0 && count.is_multiple_of(given))) {
            shape[at] = count / given;
        }
        if crate::tensor::elements(&shape) != Some(count) {
            return Err(Fault::Malformed(format!("{from:?} does not reshape to {wanted:?}")));
        }
        let place = axis::reshape(self.lane(x), &from, &shape, &lane_dims, rest);
        // In a file that says that there is one lane, no other can be dealt its elements.
        let place = if self.baked { place.or(Ok(Lane::Gone)) } else { place };
        let lane = self.place(place);
        self.note_dropped(x, lane);
        self.renamed(x, shape, lane)
    }

    /// Notes that the lane axis, of an extent that the file leaves open, went where only an extent of 1 can go.
    fn note_dropped(&mut self, x: ValueId, lane: Lane) {
        if let (Some(axis), Lane::Gone, false) = (self.lane(x).axis(), lane, self.baked) {
            self.note_per_lane(format!(
                "it leaves out the lane axis {axis}, as if its extent were 1, which it is for each lane"
            ));
        }
    }

    fn flatten(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let x = call.operand(0)?;
        let from = self.shape(x).to_vec();
        let axis = call.attributes.int("axis")?.unwrap_or(1);
        // The rank itself is accepted: everything is outer then.
        let axis = if axis == from.len() as i64 { from.len() } else { axis_of(axis, from.len())? };
        let shape = vec![from[..axis].iter().product(), from[axis..].iter().product()];
        // It says which side the lane axis goes to.
        let lane_dims =
            [self.lane(x).axis().is_some_and(|at| at < axis), self.lane(x).axis().is_some_and(|at| at >= axis)];
        let place = axis::reshape(self.lane(x), &from, &shape, &lane_dims, None);
        let lane = self.place(place);
        self.renamed(x, shape, lane)
    }

    /// The axes of `Squeeze`, `Unsqueeze` or a reduction: an attribute before opset `since`, an operand since.
    pub(super) fn axes(&mut self, call: &Call<'_>, since: i64) -> Result<Option<Vec<i64>>, Fault> {
        if self.opset < since {
            return Ok(call.attributes.ints("axes")?.map(<[i64]>::to_vec));
        }
        call.optional(1).map(|id| self.integers(id, "the axes")).transpose()
    }

    fn squeeze(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let x = call.operand(0)?;
        let from = self.shape(x).to_vec();
        let axes = match self.axes(call, 13)? {
            Some(axes) => axes_of(&axes, from.len())?,
            None => (0..from.len()).filter(|&axis| from[axis] == 1).collect(),
        };
        if let Some(&axis) = axes.iter().find(|&&axis| from[axis] != 1) {
            return Err(Fault::Malformed(format!("axis {axis} of {from:?} is dropped, and its extent is not 1")));
        }
        let kept = (0..from.len()).filter(|axis| !axes.contains(axis));
        let shape = kept.map(|axis| from[axis]).collect();
        let lane = axis::squeeze(self.lane(x), &axes);
        self.note_dropped(x, lane);
        self.renamed(x, shape, lane)
    }

    fn unsqueeze(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let x = call.operand(0)?;
        let axes = self.axes(call, 13)?.ok_or_else(|| Fault::Malformed("the axes are missing".into()))?;
        let axes = axes_of(&axes, self.shape(x).len().saturating_add(axes.len()))?;
        if axes.len() > 32 {
            return Err(Fault::Malformed(format!("{} axes are put in", axes.len())));
        }
        let mut shape = self.shape(x).to_vec();
        axes.iter().for_each(|&axis| shape.insert(axis, 1));
        self.renamed(x, shape, axis::unsqueeze(self.lane(x), &axes))
    }

    pub(super) fn transposed(&mut self, x: ValueId, perm: &[usize]) -> Result<ValueId, Fault> {
        let from = self.shape(x);
        let shape: Vec<usize> = perm.iter().map(|&axis| from[axis]).collect();
        let lane = axis::transpose(self.lane(x), perm);
        // Axes of extent 1 may change places without moving an element.
        let long = |axes: &mut dyn Iterator<Item = usize>| axes.filter(|&axis| from[axis] != 1).collect::<Vec<_>>();
        if long(&mut perm.iter().copied()) == long(&mut (0..from.len())) {
            return self.renamed(x, shape, lane);
        }
        self.emit(Op::Transpose { perm: perm.to_vec() }, &[x], self.dtype(x), shape, lane)
    }

    fn expand(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let (x, target) = (call.operand(0)?, call.operand(1)?);
        let wanted = extents(&self.integers(target, "the shape")?)?;
        let shape = broadcast_shape(&[self.shape(x), &wanted])?;
        let place = axis::broadcast(&[(self.lane(x), self.shape(x)), (Lane::Free, &wanted)], &shape);
        let lane = self.place(place);
        if self.shape(x) == shape {
            return Ok(x);
        }
        self.emit(Op::Expand, &[x], self.dtype(x), shape, lane)
    }
}

/// Integers as extents.
fn extents(values: &[i64]) -> Result<Vec<usize>, Fault> {
    let converted = values.iter().map(|&extent| usize::try_from(extent).ok()).collect::<Option<Vec<_>>>();
    converted.ok_or_else(|| Fault::Malformed(format!("{values:?} has a negative extent")))
}

/// One axis of a `Slice`: bounds count from the end when negative and are clamped, to where a reversed one may start.
fn cut(axis: usize, extent: usize, start: i64, end: i64, step: i64) -> Result<SliceAxis, Fault> {
    let from_end = |bound: i64| {
        if bound < 0 { bound.saturating_add(extent as i64) } else { bound }
    };
    let (extent, start, end) = (extent as i64, from_end(start), from_end(end));
    let (start, len) = match step {
        0 => return Err(Fault::Malformed("a step of 0".into())),
        1.. => {
            let (start, end) = (start.clamp(0, extent), end.clamp(0, extent));
            (start, (end - start).max(0).div_euclid(step) + i64::from((end - start).max(0).rem_euclid(step) != 0))
        }
        _ => {
            let (start, end) = (start.clamp(-1, extent - 1), end.clamp(-1, extent - 1));
            let back = step.unsigned_abs().min(i64::MAX as u64) as i64;
            (start, (start - end).max(0).div_euclid(back) + i64::from((start - end).max(0).rem_euclid(back) != 0))
        }
    };
    // Of nothing, the start is not looked at.
    let start = if len == 0 { 0 } else { start };
    Ok(SliceAxis { axis, start: start as usize, step: step as isize, len: len as usize })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against Python's own slices of `range(extent)`.
    #[test]
    fn cuts_are_pythons() {
        let of = |extent, start, end, step| {
            let Ok(cut) = cut(0, extent, start, end, step) else { panic!("{start}:{end}:{step} was refused") };
            (0..cut.len).map(|at| cut.start as isize + cut.step * at as isize).collect::<Vec<_>>()
        };
        assert_eq!(of(10, 2, 8, 3), [2, 5]); // range(10)[2:8:3]
        assert_eq!(of(10, -3, i64::MAX, 1), [7, 8, 9]); // range(10)[-3:]
        assert_eq!(of(5, -1, i64::MIN, -1), [4, 3, 2, 1, 0]); // range(5)[::-1]
        assert_eq!(of(5, 100, 0, -2), [4, 2]); // range(5)[100:0:-2]
        assert_eq!(of(5, 3, 3, 1), [0isize; 0]); // range(5)[3:3]
        assert!(cut(0, 5, 0, 5, 0).is_err());
    }
}
