//! Operators that are rare in streaming models and have an exact form in others: they become those here, so that
//! nothing after import has to know them.

use super::builder::{Builder, Fault};
use super::elementwise::scalar;
use super::nodes::{Call, axis_of};
use crate::graph::{Binary, Op, Reduction, Unary, ValueId};
use crate::tensor::Tensor;
use lanes_core::DType;

impl Builder<'_> {
    /// The operator's results, if it is one of this file's.
    pub(super) fn composed(&mut self, op: &str, call: &Call<'_>) -> Result<Option<Vec<ValueId>>, Fault> {
        let one = |id: ValueId| Ok(Some(vec![id]));
        match op {
            "ArgMax" | "ArgMin" => one(self.arg_extreme(op == "ArgMax", call)?),
            "InstanceNormalization" => one(self.instance_norm(call)?),
            "Tile" => one(self.tile(call)?),
            "MaxPool" | "AveragePool" => one(self.pool(op == "MaxPool", call)?),
            "ConvTranspose" => one(self.conv_transpose(call)?),
            "Sign" => {
                let x = call.operand(0)?;
                self.expect_float(x)?;
                let zero = self.constant(scalar(0.0, self.dtype(x)));
                let above = self.pair(Binary::Greater, x, zero)?;
                let below = self.pair(Binary::Less, x, zero)?;
                let (above, below) = (self.cast(above, self.dtype(x))?, self.cast(below, self.dtype(x))?);
                one(self.pair(Binary::Sub, above, below)?)
            }
            "Softsign" => {
                let x = call.operand(0)?;
                self.expect_float(x)?;
                let size = self.map(Op::Unary(Unary::Abs), x)?;
                let below = self.pair_scalar(Binary::Add, size, 1.0)?;
                one(self.pair(Binary::Div, x, below)?)
            }
            "Swish" => {
                let x = call.operand(0)?;
                self.expect_float(x)?;
                let alpha = call.attributes.float("alpha")?.unwrap_or(1.0);
                let scaled = self.pair_scalar(Binary::Mul, x, alpha.into())?;
                let gate = self.map(Op::Unary(Unary::Sigmoid), scaled)?;
                one(self.pair(Binary::Mul, x, gate)?)
            }
            "Mod" => one(self.remainder(call)?),
            "DynamicQuantizeLinear" => Ok(Some(self.dynamic_quantize(call)?)),
            "QuantizeLinear" => one(self.quantize(call)?),
            "DequantizeLinear" => one(self.dequantize(call)?),
            "MatMulInteger" => one(self.matmul_integer(call)?),
            "TopK" => {
                let x = call.operand(0)?;
                let axis = axis_of(call.attributes.int("axis")?.unwrap_or(-1), self.shape(x).len())?;
                self.refuse_lanes_among(x, &[axis], "sorts along");
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    /// The first (or last) place along an axis that holds its extreme: the least (or greatest) of the places that do.
    fn arg_extreme(&mut self, max: bool, call: &Call<'_>) -> Result<ValueId, Fault> {
        let x = call.operand(0)?;
        self.expect_number(x)?;
        let axis = axis_of(call.attributes.int("axis")?.unwrap_or(0), self.shape(x).len())?;
        let keepdims = call.attributes.flag("keepdims", true)?;
        let last = call.attributes.flag("select_last_index", false)?;
        self.refuse_lanes_among(x, &[axis], "compares entries along");
        let extent = self.shape(x)[axis];
        if extent == 0 {
            return Err(Fault::Malformed(format!("axis {axis} has no entries")));
        }
        let extreme = self.reduced(if max { Reduction::Max } else { Reduction::Min }, x, &[axis], true)?;
        let holds = self.pair(Binary::Equal, x, extreme)?;
        let mut places = vec![1; self.shape(x).len()];
        places[axis] = extent;
        let places = self.constant(Tensor::from_vec(places, (0..extent as i64).collect()));
        // A place that no extreme is at. Where nothing equals it, as with NaN, the first is meant.
        let (beyond, kind) = if last { (0, Reduction::Max) } else { (extent as i64 - 1, Reduction::Min) };
        let beyond = self.constant(Tensor::scalar(beyond));
        let found = self.choose(holds, places, beyond)?;
        self.reduced(kind, found, &[axis], keepdims)
    }

    /// `(x − mean) / √(variance + epsilon) · scale + bias` of every channel of every entry of axis 0.
    fn instance_norm(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let (x, scale, bias) = (call.operand(0)?, call.operand(1)?, call.operand(2)?);
        self.expect_float(x)?;
        self.expect_rank(x, 3..=5, "the operand")?;
        let epsilon = call.attributes.float("epsilon")?.unwrap_or(1e-5);
        let (rank, channels) = (self.shape(x).len(), self.shape(x)[1]);
        let axes: Vec<usize> = (2..rank).collect();
        self.refuse_lanes_among(x, &(1..rank).collect::<Vec<_>>(), "has statistics or a scale along");
        let [mean, variance] = self.statistics(x, &axes)?;
        let raised = self.pair_scalar(Binary::Add, variance, epsilon.into())?;
        let deviation = self.map(Op::Unary(Unary::Sqrt), raised)?;
        let away = self.pair(Binary::Sub, x, mean)?;
        let mut result = self.pair(Binary::Div, away, deviation)?;
        for (op, operand) in [(Binary::Mul, scale), (Binary::Add, bias)] {
            self.expect_shape(operand, &[channels], "a scale or bias")?;
            let mut shape = vec![1; rank];
            shape[1] = channels;
            let operand = self.renamed(operand, shape, self.lane(operand))?;
            result = self.pair(op, result, operand)?;
        }
        Ok(result)
    }

    /// `Mod` of integers: what division leaves, with the divisor's sign, or with `fmod` the dividend's.
    fn remainder(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let (a, b) = (call.operand(0)?, call.operand(1)?);
        let dtype = self.dtype(a);
        if matches!(dtype, DType::Bool | DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
            return Err(Fault::Unsupported(format!("operands of {dtype}; integers are supported")));
        }
        let quotient = self.pair(Binary::Div, a, b)?;
        let multiple = self.pair(Binary::Mul, quotient, b)?;
        let left = self.pair(Binary::Sub, a, multiple)?;
        if call.attributes.flag("fmod", false)? || matches!(dtype, DType::U8 | DType::U16 | DType::U32 | DType::U64) {
            return Ok(left);
        }
        // Division rounds towards zero: what is left has the dividend's sign, and is one divisor off where they differ.
        let zero = self.constant(Tensor::zeros(dtype, Vec::new()));
        let sign = self.pair(Binary::Less, left, zero)?;
        let wanted = self.pair(Binary::Less, b, zero)?;
        let same = self.pair(Binary::Equal, sign, wanted)?;
        let none = self.pair(Binary::Equal, left, zero)?;
        let done = self.pair(Binary::Or, same, none)?;
        let moved = self.pair(Binary::Add, left, b)?;
        self.choose(done, left, moved)
    }

    /// The operand joined to itself along each axis.
    fn tile(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let mut x = call.operand(0)?;
        let repeats = self.integers(call.operand(1)?, "the repeats")?;
        if repeats.len() != self.shape(x).len() {
            return Err(Fault::Malformed(format!("repeats {repeats:?} of a value of shape {:?}", self.shape(x))));
        }
        for (axis, &count) in repeats.iter().enumerate() {
            let count = usize::try_from(count).ok().filter(|&count| count <= 1 << 16);
            let count =
                count.ok_or_else(|| Fault::Malformed(format!("repeats {repeats:?}; 0 to 65536 are expected")))?;
            if count == 1 {
                continue;
            }
            self.refuse_lanes_among(x, &[axis], "repeats");
            let mut shape = self.shape(x).to_vec();
            shape[axis] = shape[axis].saturating_mul(count);
            if count == 0 {
                let zero = self.constant(Tensor::zeros(self.dtype(x), vec![0]));
                let empty = self.renamed(zero, vec![0], super::axis::Lane::Free)?;
                return self.emit(Op::Reshape, &[empty], self.dtype(x), shape, self.lane(x));
            }
            x = self.emit(Op::Concat { axis }, &vec![x; count], self.dtype(x), shape, self.lane(x))?;
        }
        Ok(x)
    }

    /// Scale, zero point and values that span the whole operand, in u8: per lane, of the lane's own values.
    fn dynamic_quantize(&mut self, call: &Call<'_>) -> Result<Vec<ValueId>, Fault> {
        let x = call.operand(0)?;
        if self.dtype(x) != DType::F32 {
            return Err(Fault::Unsupported(format!("an operand of {}; float32 is supported", self.dtype(x))));
        }
        if let Some(axis) = self.lane(x).axis() {
            self.note_per_lane(format!("its scale spans the whole operand, the lane axis {axis} among it"));
        }
        let axes: Vec<usize> = (0..self.shape(x).len()).collect();
        // Zero is always within the span.
        let high = self.reduced(Reduction::Max, x, &axes, false)?;
        let high = self.pair_scalar(Binary::Max, high, 0.0)?;
        let low = self.reduced(Reduction::Min, x, &axes, false)?;
        let low = self.pair_scalar(Binary::Min, low, 0.0)?;
        let span = self.pair(Binary::Sub, high, low)?;
        let scale = self.pair_scalar(Binary::Div, span, 255.0)?;
        // Of all zeros, any scale will do.
        let flat = self.pair_scalar(Binary::Equal, scale, 0.0)?;
        let unit = self.constant(Tensor::scalar(1f32));
        let scale = self.choose(flat, unit, scale)?;
        let zero = self.constant(Tensor::scalar(0f32));
        let below = self.pair(Binary::Sub, zero, low)?;
        let steps = self.pair(Binary::Div, below, scale)?;
        let point = self.saturate(steps, None, DType::U8)?;
        let steps = self.pair(Binary::Div, x, scale)?;
        let values = self.saturate(steps, Some(point), DType::U8)?;
        Ok(vec![values, scale, point])
    }

    /// `x`, rounded half to even, plus a zero point, within the bounds of an integer type.
    fn saturate(&mut self, x: ValueId, point: Option<ValueId>, to: DType) -> Result<ValueId, Fault> {
        let (low, high) = match to {
            DType::U8 => (0.0, 255.0),
            DType::I8 => (-128.0, 127.0),
            DType::U16 => (0.0, 65535.0),
            DType::I16 => (-32768.0, 32767.0),
            other => {
                return Err(Fault::Unsupported(format!("values of {other}; 8- and 16-bit integers are supported")));
            }
        };
        let mut rounded = self.map(Op::Unary(Unary::Round), x)?;
        if let Some(point) = point {
            let point = self.cast(point, self.dtype(x))?;
            rounded = self.pair(Binary::Add, rounded, point)?;
        }
        let bounds = [low, high].map(|bound| self.constant(scalar(bound, self.dtype(x))));
        let result = (self.dtype(rounded), self.shape(rounded).to_vec(), self.lane(rounded));
        let bounded = self.emit(Op::Clip, &[rounded, bounds[0], bounds[1]], result.0, result.1, result.2)?;
        self.cast(bounded, to)
    }

    /// A scale or zero point laid along `axis` of a value of rank `rank`; a scalar stays one.
    fn along(&mut self, id: ValueId, axis: usize, x: ValueId) -> Result<ValueId, Fault> {
        match *self.shape(id) {
            [] | [1] => self.renamed(id, Vec::new(), self.lane(id)),
            [extent] if extent == self.shape(x)[axis] => {
                self.refuse_lanes_among(x, &[axis], "has a scale for each entry of");
                let mut shape = vec![1; self.shape(x).len()];
                shape[axis] = extent;
                self.renamed(id, shape, self.lane(id))
            }
            ref other => {
                Err(Fault::Unsupported(format!("a scale of shape {other:?}; scalars and one axis are supported")))
            }
        }
    }

    /// The axis of `QuantizeLinear` and `DequantizeLinear`, which only a scale that is no scalar needs.
    fn scale_axis(&self, call: &Call<'_>, x: ValueId) -> Result<usize, Fault> {
        if call.attributes.int("block_size")?.is_some_and(|size| size != 0) {
            return Err(Fault::Unsupported("block_size; scales by tensor or axis are supported".into()));
        }
        let axis = call.attributes.int("axis")?;
        let rank = self.shape(x).len();
        match axis {
            None => Ok(1.min(rank.saturating_sub(1))),
            Some(_) if rank == 0 => Ok(0),
            Some(axis) => axis_of(axis, rank),
        }
    }

    fn quantize(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let (x, scale, point) = (call.operand(0)?, call.operand(1)?, call.optional(2));
        self.expect_float(x)?;
        let axis = self.scale_axis(call, x)?;
        call.attributes.ignore(&["saturate", "precision"]);
        let wanted = match call.attributes.int("output_dtype")? {
            None | Some(0) => None,
            Some(code) => crate::onnx::file::dtype(code.clamp(0, 1000) as i32),
        };
        let to = point.map_or(wanted.unwrap_or(DType::U8), |point| self.dtype(point));
        let scale = self.along(scale, axis, x)?;
        let steps = self.pair(Binary::Div, x, scale)?;
        let point = point.map(|point| self.along(point, axis, x)).transpose()?;
        self.saturate(steps, point, to)
    }

    fn dequantize(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let (x, scale, point) = (call.operand(0)?, call.operand(1)?, call.optional(2));
        let axis = self.scale_axis(call, x)?;
        if call.attributes.int("output_dtype")?.is_some_and(|code| code != 0) {
            return Err(Fault::Unsupported("output_dtype; the scale's type is supported".into()));
        }
        self.expect_float(scale)?;
        let to = self.dtype(scale);
        let scale = self.along(scale, axis, x)?;
        let mut steps = self.cast(x, DType::I32)?;
        if let Some(point) = point {
            self.expect_same_dtype(&[x, point])?;
            let point = self.along(point, axis, x)?;
            let point = self.cast(point, DType::I32)?;
            steps = self.pair(Binary::Sub, steps, point)?;
        }
        let steps = self.cast(steps, to)?;
        self.pair(Binary::Mul, steps, scale)
    }

    fn matmul_integer(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let mut operands = [call.operand(0)?, call.operand(1)?];
        for (at, operand) in operands.iter_mut().enumerate() {
            if !matches!(self.dtype(*operand), DType::I8 | DType::U8) {
                return Err(Fault::Malformed(format!(
                    "operands of {}; 8-bit integers are expected",
                    self.dtype(*operand)
                )));
            }
            let x = *operand;
            *operand = self.cast(x, DType::I32)?;
            if let Some(point) = call.optional(2 + at) {
                // One for all, or one for each row of the left or column of the right operand.
                let rank = self.shape(x).len();
                let axis = if at == 0 { rank.saturating_sub(2) } else { rank.saturating_sub(1) };
                let point = self.along(point, axis, x)?;
                let point = self.cast(point, DType::I32)?;
                *operand = self.pair(Binary::Sub, *operand, point)?;
            }
        }
        self.product(operands[0], operands[1])
    }
}
