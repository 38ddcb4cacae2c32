//! Elementwise functions, in f64 or exact integers.

use super::EvalError;
use super::layout::{expand, strides_of};
use super::numbers::{Numbers, erf};
use crate::graph::{Binary, Unary};
use crate::tensor::Tensor;
use lanes_core::DType;

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// ln(1 + eˣ): the larger exponent is taken out, so that nothing overflows.
pub(super) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// The lesser, NaN if either is.
fn least(a: f64, b: f64) -> f64 {
    if a.is_nan() || a < b { a } else { b }
}

/// The greater, NaN if either is.
fn greatest(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

pub(super) fn unary(op: Unary, x: &Tensor) -> Tensor {
    match Numbers::read(x) {
        Numbers::Float(values) => {
            let f: Box<dyn Fn(f64) -> f64> = match op {
                Unary::Sqrt => Box::new(f64::sqrt),
                Unary::Abs => Box::new(f64::abs),
                Unary::Neg => Box::new(|x| -x),
                Unary::Exp => Box::new(f64::exp),
                Unary::Log => Box::new(f64::ln),
                Unary::Erf => Box::new(erf),
                // `greatest(0, x)` keeps NaN.
                Unary::Relu => Box::new(|x| greatest(0.0, x)),
                Unary::LeakyRelu { alpha } => Box::new(move |x| if x < 0.0 { f64::from(alpha) * x } else { x }),
                Unary::Sigmoid => Box::new(sigmoid),
                Unary::Tanh => Box::new(f64::tanh),
                Unary::Softplus => Box::new(softplus),
                Unary::Gelu => Box::new(|x| 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2))),
                Unary::GeluTanh => Box::new(|x| {
                    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                    0.5 * x * (1.0 + inner.tanh())
                }),
                Unary::Floor => Box::new(f64::floor),
                Unary::Ceil => Box::new(f64::ceil),
                Unary::Round => Box::new(f64::round_ties_even),
                Unary::Sin => Box::new(f64::sin),
                Unary::Cos => Box::new(f64::cos),
                Unary::Not => unreachable!("import gives Not booleans only"),
            };
            Numbers::Float(values.into_iter().map(f).collect()).write(x.dtype(), x.shape())
        }
        Numbers::Int(values) => {
            let f: fn(i128) -> i128 = match op {
                Unary::Abs => i128::abs,
                Unary::Neg => |x| -x,
                Unary::Relu => |x| x.max(0),
                Unary::Not => |x| i128::from(x == 0),
                Unary::Floor | Unary::Ceil | Unary::Round => |x| x,
                other => unreachable!("import gives {other:?} floating point only"),
            };
            Numbers::Int(values.into_iter().map(f).collect()).write(x.dtype(), x.shape())
        }
    }
}

pub(super) fn binary(op: Binary, a: &Tensor, b: &Tensor, dtype: DType, shape: &[usize]) -> Result<Tensor, EvalError> {
    let (at_a, at_b) = (expanded_offsets(a, shape), expanded_offsets(b, shape));
    let pairs = at_a.into_iter().zip(at_b);
    let truth = |values: Vec<bool>| Ok(Tensor::from_bools(shape.to_vec(), values));
    match (Numbers::read(a), Numbers::read(b)) {
        (Numbers::Float(a), Numbers::Float(b)) => {
            let numbers = |f: fn(f64, f64) -> f64| {
                let values = pairs.clone().map(|(i, j)| f(a[i], b[j])).collect();
                Ok(Numbers::Float(values).write(dtype, shape))
            };
            let test = |f: fn(&f64, &f64) -> bool| truth(pairs.clone().map(|(i, j)| f(&a[i], &b[j])).collect());
            match op {
                Binary::Add => numbers(|a, b| a + b),
                Binary::Sub => numbers(|a, b| a - b),
                Binary::Mul => numbers(|a, b| a * b),
                Binary::Div => numbers(|a, b| a / b),
                Binary::Pow => numbers(f64::powf),
                Binary::Min => numbers(least),
                Binary::Max => numbers(greatest),
                Binary::Equal => test(f64::eq),
                Binary::Less => test(f64::lt),
                Binary::LessOrEqual => test(f64::le),
                Binary::Greater => test(f64::gt),
                Binary::GreaterOrEqual => test(f64::ge),
                Binary::And | Binary::Or => unreachable!("import gives And and Or booleans only"),
            }
        }
        (Numbers::Int(a), Numbers::Int(b)) => {
            let numbers = |f: fn(i128, i128) -> Option<i128>| {
                let values = pairs.clone().map(|(i, j)| f(a[i], b[j]).ok_or(EvalError::DivisionByZero));
                Ok(Numbers::Int(values.collect::<Result<_, _>>()?).write(dtype, shape))
            };
            let test = |f: fn(&i128, &i128) -> bool| truth(pairs.clone().map(|(i, j)| f(&a[i], &b[j])).collect());
            match op {
                Binary::Add => numbers(|a, b| Some(a + b)),
                Binary::Sub => numbers(|a, b| Some(a - b)),
                Binary::Mul => numbers(|a, b| Some(a.wrapping_mul(b))),
                Binary::Div => numbers(i128::checked_div),
                Binary::Pow => numbers(|a, b| Some(integer_power(a, b))),
                Binary::Min => numbers(|a, b| Some(a.min(b))),
                Binary::Max => numbers(|a, b| Some(a.max(b))),
                Binary::Equal => test(i128::eq),
                Binary::Less => test(i128::lt),
                Binary::LessOrEqual => test(i128::le),
                Binary::Greater => test(i128::gt),
                Binary::GreaterOrEqual => test(i128::ge),
                Binary::And => test(|a, b| *a != 0 && *b != 0),
                Binary::Or => test(|a, b| *a != 0 || *b != 0),
            }
        }
        _ => unreachable!("import gives both operands one type"),
    }
}

/// a to the b modulo 2¹²⁸, by squaring; of a negative b the reciprocal, truncated.
fn integer_power(a: i128, b: i128) -> i128 {
    if b < 0 {
        return match a {
            1 => 1,
            -1 => 1 - 2 * (b & 1),
            _ => 0,
        };
    }
    let (mut square, mut left, mut power) = (a, b, 1i128);
    while left > 0 {
        if left & 1 == 1 {
            power = power.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        left >>= 1;
    }
    power
}

/// For every element of `shape`, the offset of the element of `tensor` that is broadcast to it.
fn expanded_offsets(tensor: &Tensor, shape: &[usize]) -> Vec<usize> {
    let own = strides_of(tensor.shape());
    let mut strides = vec![0; shape.len()];
    for (from_end, (&stride, &extent)) in own.iter().rev().zip(tensor.shape().iter().rev()).enumerate() {
        strides[shape.len() - 1 - from_end] = if extent == 1 { 0 } else { stride };
    }
    super::layout::offsets(shape, 0, &strides)
}

pub(super) fn clip(x: &Tensor, low: Option<&Tensor>, high: Option<&Tensor>) -> Tensor {
    let shape = x.shape();
    let mut result = x.clone();
    // `Max` first: where the bounds cross, the result is the upper one.
    for (bound, op) in [(low, Binary::Max), (high, Binary::Min)] {
        let Some(bound) = bound else { continue };
        let bound = expand(&bound.reshaped(Vec::new()), shape);
        result = binary(op, &result, &bound, x.dtype(), shape).expect("only a division has no answer");
    }
    result
}

pub(super) fn cast(x: &Tensor, dtype: DType) -> Tensor {
    if x.dtype() == dtype { x.clone() } else { Numbers::read(x).write(dtype, x.shape()) }
}
