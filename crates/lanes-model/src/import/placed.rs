//! Operators that place entries by index: each becomes slices, joins and comparisons, so that nothing after import
//! has to know them.

use super::axis::{self, Lane};
use super::builder::{Builder, Fault};
use super::nodes::{Call, axis_of};
use crate::graph::{Binary, Op, SliceAxis, ValueId};
use crate::tensor::Tensor;
use lanes_core::DType;

impl Builder<'_> {
    /// The operator's results, if it is one of this file's.
    pub(super) fn placed(&mut self, op: &str, call: &Call<'_>) -> Result<Option<Vec<ValueId>>, Fault> {
        let one = |id: ValueId| Ok(Some(vec![id]));
        match op {
            "ScatterND" => one(self.scatter_nd(call)?),
            "OneHot" => one(self.one_hot(call)?),
            "Trilu" => one(self.triangle(call)?),
            _ => Ok(None),
        }
    }

    /// `ScatterND` whose indices are known and fill a block of the data in order, as an exporter writes
    /// `cache[:, 2:5] = …`.
    fn scatter_nd(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let (data, indices, updates) = (call.operand(0)?, call.operand(1)?, call.operand(2)?);
        let reduction = call.attributes.text("reduction")?.unwrap_or("none");
        if reduction != "none" {
            return Err(Fault::Unsupported(format!("reduction {reduction:?}; none is supported")));
        }
        self.expect_same_dtype(&[data, updates])?;
        let (shape, index_shape) = (self.shape(data).to_vec(), self.shape(indices).to_vec());
        let places = self.integers(indices, "the indices")?;
        let depth = match index_shape.last() {
            Some(&depth) if (1..=shape.len()).contains(&depth) => depth,
            _ => return Err(Fault::Malformed(format!("indices of shape {index_shape:?} into data of {shape:?}"))),
        };
        self.expect_shape(updates, &[&index_shape[..index_shape.len() - 1], &shape[depth..]].concat(), "the updates")?;
        if places.is_empty() {
            return Ok(data);
        }
        let block = block(&places, &shape[..depth])?;
        if let Some(axis) = self.lane(data).axis().filter(|&axis| axis < depth && !self.baked) {
            self.place(Err(format!("it writes to entries of axis {axis}, which holds the lanes")));
        }
        let lens: Vec<usize> = block.iter().map(|&(_, len)| len).chain(shape[depth..].iter().copied()).collect();
        let from = self.shape(updates).to_vec();
        let lane = if from == lens {
            self.lane(updates)
        } else {
            let place = axis::reshape(self.lane(updates), &from, &lens, &vec![false; lens.len()], None);
            let place = if self.baked { place.or(Ok(Lane::Gone)) } else { place };
            self.place(place)
        };
        let updates = self.renamed(updates, lens, lane)?;
        self.replaced(data, &block, updates)
    }

    /// `data` with the block that begins and extends so on its leading axes replaced.
    fn replaced(&mut self, data: ValueId, block: &[(usize, usize)], by: ValueId) -> Result<ValueId, Fault> {
        let shape = self.shape(data).to_vec();
        let Some(axis) = (0..block.len()).find(|&axis| block[axis].1 < shape[axis]) else {
            return Ok(by);
        };
        let (start, len) = block[axis];
        let end = start + len;
        let part =
            |builder: &mut Self, start, len| builder.cut(data, vec![SliceAxis { axis, start, step: 1, len }], |_| true);
        let within = part(self, start, len)?;
        let mut whole = block.to_vec();
        whole[axis] = (0, len);
        let mut parts = Vec::new();
        if start > 0 {
            parts.push(part(self, 0, start)?);
        }
        parts.push(self.replaced(within, &whole, by)?);
        if end < shape[axis] {
            parts.push(part(self, end, shape[axis] - end)?);
        }
        let lanes: Vec<Lane> = parts.iter().map(|&id| self.lane(id)).collect();
        let place = axis::concat(&lanes, axis);
        let lane = self.place(place);
        self.emit(Op::Concat { axis }, &parts, self.dtype(data), shape, lane)
    }

    /// `OneHot`: indices below zero count from the end, and one out of bounds is nowhere.
    fn one_hot(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let (indices, depth, values) = (call.operand(0)?, call.operand(1)?, call.operand(2)?);
        self.expect_number(indices)?;
        let depth = match self.integers(depth, "the depth")?[..] {
            [depth @ 1..=0xff_ffff] => depth,
            ref other => return Err(Fault::Malformed(format!("the depth {other:?}; 1 to 16777215 is expected"))),
        };
        self.expect_shape(values, &[2], "the values")?;
        let rank = self.shape(indices).len() + 1;
        let along = axis_of(call.attributes.int("axis")?.unwrap_or(-1), rank)?;
        let indices = self.cast(indices, DType::I64)?;
        let (zero, extent) = (self.constant(Tensor::scalar(0i64)), self.constant(Tensor::scalar(depth)));
        let below = self.pair(Binary::Less, indices, zero)?;
        let wrapped = self.pair(Binary::Add, indices, extent)?;
        let indices = self.choose(below, wrapped, indices)?;
        let mut shape = self.shape(indices).to_vec();
        shape.insert(along, 1);
        let lane = axis::unsqueeze(self.lane(indices), &[along]);
        let indices = self.renamed(indices, shape, lane)?;
        let mut places = vec![1; rank];
        places[along] = depth as usize;
        let places = self.constant(Tensor::from_vec(places, (0..depth).collect()));
        let here = self.pair(Binary::Equal, indices, places)?;
        let value = |builder: &mut Self, start| {
            let cut = builder.cut(values, vec![SliceAxis { axis: 0, start, step: 1, len: 1 }], |_| true)?;
            builder.renamed(cut, Vec::new(), Lane::Free)
        };
        self.refuse_lanes_among(values, &[0], "picks entries of");
        let (off, on) = (value(self, 0)?, value(self, 1)?);
        self.choose(here, on, off)
    }

    /// `Trilu`: the entries on one side of diagonal `k` of each matrix, zeros on the other.
    fn triangle(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let x = call.operand(0)?;
        let upper = call.attributes.flag("upper", true)?;
        let k = match call.optional(1).map(|id| self.integers(id, "the diagonal")).transpose()?.as_deref() {
            None => 0,
            Some(&[k]) => k,
            Some(other) => return Err(Fault::Malformed(format!("the diagonal {other:?}; one number is expected"))),
        };
        let rank = self.shape(x).len();
        if rank < 2 {
            return Err(Fault::Malformed(format!("an operand of shape {:?}; matrices are expected", self.shape(x))));
        }
        self.refuse_lanes_among(x, &[rank - 2, rank - 1], "cuts matrices along");
        let (rows, columns) = (self.shape(x)[rank - 2], self.shape(x)[rank - 1]);
        let down = (0..rows as i64).map(|row| row.saturating_add(k)).collect();
        let down = self.constant(Tensor::from_vec(vec![rows, 1], down));
        let across = self.constant(Tensor::from_vec(vec![1, columns], (0..columns as i64).collect()));
        let kept = self.pair(if upper { Binary::GreaterOrEqual } else { Binary::LessOrEqual }, across, down)?;
        let zero = self.constant(Tensor::zeros(self.dtype(x), Vec::new()));
        self.choose(kept, x, zero)
    }
}

/// Where the block that `places` names, row by row, begins on each of `extents`, and how far it reaches.
fn block(places: &[i64], extents: &[usize]) -> Result<Vec<(usize, usize)>, Fault> {
    let depth = extents.len();
    let mut rows = Vec::with_capacity(places.len());
    for (at, &place) in places.iter().enumerate() {
        let extent = extents[at % depth];
        let from = if place < 0 { place.saturating_add(extent as i64) } else { place };
        let place = usize::try_from(from).ok().filter(|&place| place < extent);
        rows.push(place.ok_or_else(|| Fault::Malformed(format!("index {} into an axis of {extent}", places[at])))?);
    }
    let block: Vec<(usize, usize)> =
        (0..depth).map(|axis| (rows[axis], rows[rows.len() - depth + axis].saturating_sub(rows[axis]) + 1)).collect();
    let count = block.iter().try_fold(1usize, |count, &(_, len)| count.checked_mul(len));
    let in_order = count == Some(rows.len() / depth)
        && rows.chunks_exact(depth).enumerate().all(|(at, row)| {
            let mut rest = at;
            (0..depth).rev().all(|axis| {
                let (start, len) = block[axis];
                let digit = rest % len;
                rest /= len;
                row[axis] == start + digit
            })
        });
    if in_order {
        return Ok(block);
    }
    Err(Fault::Unsupported(
        "its indices do not fill one block in order; a block, as a slice names it, is supported".into(),
    ))
}
