//! Operators that work element by element, and what is composed of them.

use super::axis;
use super::builder::{Builder, Fault};
use super::nodes::{Call, broadcast_shape};
use crate::graph::{Binary, Op, Unary, ValueId};
use crate::onnx::file;
use crate::tensor::{Element, Tensor};
use half::{bf16, f16};
use lanes_core::DType;

/// A scalar of a floating-point type.
pub(super) fn scalar(value: f64, dtype: DType) -> Tensor {
    fn of<T: Element>(value: T) -> Tensor {
        Tensor::scalar(value)
    }
    match dtype {
        DType::F16 => of(f16::from_f64(value)),
        DType::BF16 => of(bf16::from_f64(value)),
        DType::F64 => of(value),
        _ => of(value as f32),
    }
}

impl Builder<'_> {
    /// The operator's results, if it is one of this file's.
    pub(super) fn elementwise(&mut self, op: &str, call: &Call<'_>) -> Result<Option<Vec<ValueId>>, Fault> {
        let unary = |unary| Some(Op::Unary(unary));
        let attributes = &call.attributes;
        // One operand, any number type.
        let any = match op {
            "Abs" => unary(Unary::Abs),
            "Neg" => unary(Unary::Neg),
            "Relu" => unary(Unary::Relu),
            _ => None,
        };
        if let Some(any) = any {
            let x = call.operand(0)?;
            self.expect_number(x)?;
            return Ok(Some(vec![self.map(any, x)?]));
        }
        let float = match op {
            "Sqrt" => Some(Unary::Sqrt),
            "Exp" => Some(Unary::Exp),
            "Log" => Some(Unary::Log),
            "Erf" => Some(Unary::Erf),
            "Sigmoid" => Some(Unary::Sigmoid),
            "Tanh" => Some(Unary::Tanh),
            "Softplus" => Some(Unary::Softplus),
            "Floor" => Some(Unary::Floor),
            "Ceil" => Some(Unary::Ceil),
            "Round" => Some(Unary::Round),
            "Sin" => Some(Unary::Sin),
            "Cos" => Some(Unary::Cos),
            "LeakyRelu" => Some(Unary::LeakyRelu { alpha: attributes.float("alpha")?.unwrap_or(0.01) }),
            "Gelu" => Some(match attributes.text("approximate")?.unwrap_or("none") {
                "none" => Unary::Gelu,
                "tanh" => Unary::GeluTanh,
                other => {
                    return Err(Fault::Unsupported(format!("approximate {other:?}; none and tanh are supported")));
                }
            }),
            _ => None,
        };
        if let Some(float) = float {
            let x = call.operand(0)?;
            self.expect_float(x)?;
            return Ok(Some(vec![self.map(Op::Unary(float), x)?]));
        }
        let binary = match op {
            "Add" => Some(Binary::Add),
            "Sub" => Some(Binary::Sub),
            "Mul" => Some(Binary::Mul),
            "Div" => Some(Binary::Div),
            "Less" => Some(Binary::Less),
            "LessOrEqual" => Some(Binary::LessOrEqual),
            "Greater" => Some(Binary::Greater),
            "GreaterOrEqual" => Some(Binary::GreaterOrEqual),
            _ => None,
        };
        if let Some(binary) = binary {
            let (a, b) = (call.operand(0)?, call.operand(1)?);
            self.expect_number(a)?;
            return Ok(Some(vec![self.pair(binary, a, b)?]));
        }
        let one = |id: ValueId| Ok(Some(vec![id]));
        match op {
            "Equal" => one(self.pair(Binary::Equal, call.operand(0)?, call.operand(1)?)?),
            "And" | "Or" | "Xor" => {
                let (a, b) = (call.operand(0)?, call.operand(1)?);
                self.expect_bool(a)?;
                one(match op {
                    "And" => self.pair(Binary::And, a, b)?,
                    "Or" => self.pair(Binary::Or, a, b)?,
                    _ => {
                        let equal = self.pair(Binary::Equal, a, b)?;
                        self.map(Op::Unary(Unary::Not), equal)?
                    }
                })
            }
            "Not" => {
                let x = call.operand(0)?;
                self.expect_bool(x)?;
                one(self.map(Op::Unary(Unary::Not), x)?)
            }
            "Pow" => one(self.power(call)?),
            "Min" => one(self.variadic(Binary::Min, call)?),
            "Max" => one(self.variadic(Binary::Max, call)?),
            "Sum" => one(self.variadic(Binary::Add, call)?),
            "Mean" => {
                let sum = self.variadic(Binary::Add, call)?;
                self.expect_float(sum)?;
                one(self.pair_scalar(Binary::Div, sum, call.operands.len() as f64)?)
            }
            "Where" => {
                let (condition, a, b) = (call.operand(0)?, call.operand(1)?, call.operand(2)?);
                self.expect_bool(condition)?;
                self.expect_same_dtype(&[a, b])?;
                one(self.choose(condition, a, b)?)
            }
            "Clip" => one(self.clip(call)?),
            "Cast" | "CastLike" => {
                let x = call.operand(0)?;
                let to = if op == "Cast" {
                    let code =
                        attributes.int("to")?.ok_or_else(|| Fault::Malformed("attribute to is missing".into()))?;
                    i32::try_from(code).ok().and_then(file::dtype).ok_or_else(|| {
                        let name = file::dtype_name(code.clamp(-1, 1000) as i32);
                        Fault::Unsupported(format!("a cast to {name}; {} are supported", file::DTYPES))
                    })?
                } else {
                    self.dtype(call.operand(1)?)
                };
                // Both are about 8-bit floating point, which is refused above.
                attributes.ignore(&["saturate", "round_mode"]);
                one(self.cast(x, to)?)
            }
            "Identity" => one(call.operand(0)?),
            "Dropout" => {
                attributes.ignore(&["ratio", "seed"]);
                call.only_results(1)?;
                let training = call.optional(2).map(|id| self.integers(id, "training_mode")).transpose()?;
                if training.is_some_and(|mode| mode.iter().any(|&mode| mode != 0)) {
                    return Err(Fault::Unsupported("training_mode; inference is supported".into()));
                }
                one(call.operand(0)?)
            }
            "Reciprocal" => {
                let x = call.operand(0)?;
                self.expect_float(x)?;
                let one_ = self.constant(scalar(1.0, self.dtype(x)));
                one(self.pair(Binary::Div, one_, x)?)
            }
            "HardSigmoid" => {
                let (alpha, beta) =
                    (attributes.float("alpha")?.unwrap_or(0.2), attributes.float("beta")?.unwrap_or(0.5));
                one(self.hard_sigmoid(call.operand(0)?, alpha.into(), beta.into())?)
            }
            "HardSwish" => {
                let x = call.operand(0)?;
                let gate = self.hard_sigmoid(x, 1.0 / 6.0, 0.5)?;
                one(self.pair(Binary::Mul, x, gate)?)
            }
            "Mish" => {
                let x = call.operand(0)?;
                self.expect_float(x)?;
                let soft = self.map(Op::Unary(Unary::Softplus), x)?;
                let gate = self.map(Op::Unary(Unary::Tanh), soft)?;
                one(self.pair(Binary::Mul, x, gate)?)
            }
            "PRelu" => {
                let (x, slope) = (call.operand(0)?, call.operand(1)?);
                let scaled = self.pair(Binary::Mul, x, slope)?;
                one(self.where_negative(x, scaled, x)?)
            }
            "Elu" => {
                let x = call.operand(0)?;
                let alpha = attributes.float("alpha")?.unwrap_or(1.0);
                one(self.elu(x, alpha.into(), 1.0)?)
            }
            "Selu" => {
                let x = call.operand(0)?;
                let alpha = attributes.float("alpha")?.unwrap_or(1.673_263_2);
                let gamma = attributes.float("gamma")?.unwrap_or(1.050_701);
                one(self.elu(x, alpha.into(), gamma.into())?)
            }
            _ => Ok(None),
        }
    }

    /// An elementwise op of one operand.
    pub(super) fn map(&mut self, op: Op, x: ValueId) -> Result<ValueId, Fault> {
        self.emit(op, &[x], self.dtype(x), self.shape(x).to_vec(), self.lane(x))
    }

    /// The shape and lanes of operands broadcast against each other.
    fn spread(&mut self, operands: &[ValueId]) -> Result<(Vec<usize>, axis::Lane), Fault> {
        let shapes: Vec<&[usize]> = operands.iter().map(|&id| self.shape(id)).collect();
        let shape = broadcast_shape(&shapes)?;
        let lanes: Vec<_> = operands.iter().map(|&id| (self.lane(id), self.shape(id))).collect();
        let place = axis::broadcast(&lanes, &shape);
        Ok((shape, self.place(place)))
    }

    /// An elementwise op of two operands of one type.
    pub(super) fn pair(&mut self, op: Binary, a: ValueId, b: ValueId) -> Result<ValueId, Fault> {
        self.expect_same_dtype(&[a, b])?;
        let (shape, lane) = self.spread(&[a, b])?;
        let dtype = match op {
            Binary::Equal | Binary::Less | Binary::LessOrEqual | Binary::Greater | Binary::GreaterOrEqual => {
                DType::Bool
            }
            Binary::Add | Binary::Sub | Binary::Mul | Binary::Div | Binary::Pow | Binary::Min | Binary::Max => {
                self.dtype(a)
            }
            Binary::And | Binary::Or => DType::Bool,
        };
        self.emit(Op::Binary(op), &[a, b], dtype, shape, lane)
    }

    /// An elementwise op of a floating-point operand and a constant.
    pub(super) fn pair_scalar(&mut self, op: Binary, a: ValueId, b: f64) -> Result<ValueId, Fault> {
        let b = self.constant(scalar(b, self.dtype(a)));
        self.pair(op, a, b)
    }

    /// `Where`.
    pub(super) fn choose(&mut self, condition: ValueId, a: ValueId, b: ValueId) -> Result<ValueId, Fault> {
        let (shape, lane) = self.spread(&[condition, a, b])?;
        self.emit(Op::Where, &[condition, a, b], self.dtype(a), shape, lane)
    }

    /// `a` where `x` is negative, else `b`.
    fn where_negative(&mut self, x: ValueId, a: ValueId, b: ValueId) -> Result<ValueId, Fault> {
        self.expect_float(x)?;
        let negative = self.pair_scalar(Binary::Less, x, 0.0)?;
        self.choose(negative, a, b)
    }

    /// gamma · (x where x ≥ 0, else alpha·(eˣ − 1)).
    fn elu(&mut self, x: ValueId, alpha: f64, gamma: f64) -> Result<ValueId, Fault> {
        self.expect_float(x)?;
        let power = self.map(Op::Unary(Unary::Exp), x)?;
        let less_one = self.pair_scalar(Binary::Sub, power, 1.0)?;
        let scaled = self.pair_scalar(Binary::Mul, less_one, alpha)?;
        let elu = self.where_negative(x, scaled, x)?;
        if gamma == 1.0 { Ok(elu) } else { self.pair_scalar(Binary::Mul, elu, gamma) }
    }

    fn hard_sigmoid(&mut self, x: ValueId, alpha: f64, beta: f64) -> Result<ValueId, Fault> {
        self.expect_float(x)?;
        let scaled = self.pair_scalar(Binary::Mul, x, alpha)?;
        let shifted = self.pair_scalar(Binary::Add, scaled, beta)?;
        let bounds = [0.0, 1.0].map(|bound| self.constant(scalar(bound, self.dtype(x))));
        let result = (self.dtype(x), self.shape(x).to_vec(), self.lane(x));
        self.emit(Op::Clip, &[shifted, bounds[0], bounds[1]], result.0, result.1, result.2)
    }

    pub(super) fn cast(&mut self, x: ValueId, to: DType) -> Result<ValueId, Fault> {
        if self.dtype(x) == to {
            return Ok(x);
        }
        self.emit(Op::Cast, &[x], to, self.shape(x).to_vec(), self.lane(x))
    }

    /// `Pow`, whose operands may differ in type: the exponent is converted to the base's type, and an integer base
    /// with a fractional exponent is computed in f64.
    fn power(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let (a, b) = (call.operand(0)?, call.operand(1)?);
        self.expect_number(a)?;
        self.expect_number(b)?;
        let float = |dtype| matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
        let (base, exponent) = (self.dtype(a), self.dtype(b));
        if !float(base) && float(exponent) {
            let (wide_a, wide_b) = (self.cast(a, DType::F64)?, self.cast(b, DType::F64)?);
            let power = self.pair(Binary::Pow, wide_a, wide_b)?;
            return self.cast(power, base);
        }
        let b = self.cast(b, base)?;
        self.pair(Binary::Pow, a, b)
    }

    fn variadic(&mut self, op: Binary, call: &Call<'_>) -> Result<ValueId, Fault> {
        let mut result = call.operand(0)?;
        self.expect_number(result)?;
        for at in 1..call.operands.len() {
            result = self.pair(op, result, call.operand(at)?)?;
        }
        Ok(result)
    }

    /// `Clip`: bounds are attributes before opset 11, operands since.
    fn clip(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let x = call.operand(0)?;
        self.expect_number(x)?;
        let dtype = self.dtype(x);
        let bounds = if self.opset < 11 {
            self.expect_float(x)?;
            let mut bound = |name| -> Result<Option<ValueId>, Fault> {
                let value = call.attributes.float(name)?;
                Ok(value.map(|value| self.constant(scalar(value.into(), dtype))))
            };
            [bound("min")?, bound("max")?]
        } else {
            [call.optional(1), call.optional(2)]
        };
        for bound in bounds.iter().flatten() {
            self.expect_same_dtype(&[x, *bound])?;
            if self.shape(*bound).iter().any(|&extent| extent != 1) {
                return Err(Fault::Malformed(format!(
                    "a bound of shape {:?}; a scalar is expected",
                    self.shape(*bound)
                )));
            }
        }
        let mut lanes = vec![(self.lane(x), self.shape(x))];
        lanes.extend(bounds.iter().flatten().map(|&bound| (self.lane(bound), &[][..])));
        // A bound that each lane has of its own has no axis to lay against x's.
        for (lane, _) in lanes.iter_mut().skip(1) {
            *lane = if *lane == axis::Lane::Free { axis::Lane::Free } else { axis::Lane::Gone };
        }
        let place = axis::broadcast(&lanes, self.shape(x));
        let (lane, shape) = (self.place(place), self.shape(x).to_vec());
        Ok(self.emit_all(Op::Clip, vec![Some(x), bounds[0], bounds[1]], vec![(dtype, shape, lane)])?[0])
    }
}
