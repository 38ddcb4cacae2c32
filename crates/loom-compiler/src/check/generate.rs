//! Elements from literals, bit for bit as the language's reference makes them.
//!
//! - A float is computed in f64 and rounded to its type; f16 and bf16 by way of f32, as the reference does it.
//! - An integer outside its type is an error, never wrapped.

use super::Literal;
use super::entropy::mix;
use crate::eval;
use crate::types::ScalarType;

/// The uniform generator: xoroshiro128** (Blackman and Vigna 2018), its state two outputs of splitmix64.
#[derive(Clone, Debug)]
pub struct Uniform(u64, u64);

impl Uniform {
    /// From a seed.
    pub const fn new(seed: u64) -> Self {
        const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;
        let first = mix(seed.wrapping_add(INCREMENT));
        let second = mix(seed.wrapping_add(INCREMENT.wrapping_mul(2)));
        Self(first, if first == 0 && second == 0 { 1 } else { second })
    }

    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        let Self(s0, s1) = *self;
        let output = s0.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s1 ^ s0;
        *self = Self(s0.rotate_left(24) ^ t ^ (t << 16), t.rotate_left(37));
        output
    }

    /// The next integer of `low..=high`.
    pub const fn integer(&mut self, low: i64, high: i64) -> i64 {
        let output = self.bits();
        // The full range has 2^64 values, more than a word counts: every output is one of them, as it is.
        match (high as u64).wrapping_sub(low as u64).wrapping_add(1) {
            0 => output as i64,
            count => low.wrapping_add((output % count) as i64),
        }
    }

    /// The next number of `low..high`.
    pub fn float(&mut self, low: f64, high: f64) -> f64 {
        let unit = (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64);
        low + unit * (high - low)
    }
}

/// The bits of a float of type `ty`.
pub(super) fn float_bits(ty: ScalarType, value: f64) -> u64 {
    match ty {
        ScalarType::F16 | ScalarType::BF16 => eval::from_f64(ty, f64::from(value as f32)),
        _ => eval::from_f64(ty, value),
    }
}

/// The bits of element `at` of an iota; `None` for an integer that its type does not have.
pub(super) fn iota(ty: ScalarType, offset: Literal, step: Literal, at: u64) -> Result<u64, i128> {
    match (offset, step) {
        (Literal::Int(offset), Literal::Int(step)) => {
            let value = i128::from(offset) + i128::from(step) * i128::from(at);
            let limit = i128::from(i64::MAX >> (64 - ty.bits()));
            let (low, high) = match ty {
                ScalarType::Offset => (0, i128::from(i64::MAX)),
                _ => (-limit - 1, limit),
            };
            if value < low || value > high {
                return Err(value);
            }
            Ok(value as u64 & (u64::MAX >> (64 - ty.bits())))
        }
        (offset, step) => Ok(float_bits(ty, as_float(offset) + as_float(step) * at as f64)),
    }
}

/// Element after element of a uniform tensor.
pub(super) fn uniform(generator: &mut Uniform, ty: ScalarType, low: Literal, high: Literal) -> u64 {
    match (low, high) {
        (Literal::Int(low), Literal::Int(high)) => generator.integer(low, high) as u64 & (u64::MAX >> (64 - ty.bits())),
        (low, high) => float_bits(ty, generator.float(as_float(low), as_float(high))),
    }
}

pub(super) fn as_float(literal: Literal) -> f64 {
    match literal {
        Literal::Int(value) => value as f64,
        Literal::Float(value) => value,
    }
}
