//! What the operands of a contraction are rounded to before they are multiplied.
//!
//! - Rounding is to nearest, ties to even. Products and sums are of 32-bit floats whatever the operands were rounded to, and so
//!   are bias, activation and result: a narrower precision shows in the operands, and nowhere else.
//! - Weights that are rounded lie on the device as they were rounded, in half the memory.
//! - Not here: in which order products are added ([`Capabilities`](crate::device::Capabilities) tells).

use super::{Command, Plan};
use std::fmt;

/// What the operands of a contraction are rounded to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Precision {
    /// Nothing: operands are 32-bit floats.
    #[default]
    F32,
    /// bfloat16, the upper half of a 32-bit float: 8 bits of exponent, 8 of precision.
    Bf16,
}

impl Precision {
    /// As a command line spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }

    /// `x` as an operand.
    pub fn round(self, x: f32) -> f32 {
        match self {
            Self::F32 => x,
            Self::Bf16 => f32::from_bits(u32::from(bf16_bits(x)) << 16),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The bits of `x` in bfloat16, rounded to nearest, ties to even; what is past the largest is infinite. NaN stays NaN, quiet, with
/// the upper bits of its payload.
#[inline(always)]
pub const fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    // Half of the last place that is kept, less one where that place is even: a carry runs into the exponent as it should.
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

impl Plan {
    /// The same with the operands of every contraction rounded to `precision`.
    #[must_use]
    pub fn with_precision(mut self, precision: Precision) -> Self {
        for command in &mut self.commands {
            if let Command::Contract(contraction) = command {
                contraction.precision = precision;
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every bfloat16 stays itself, and what lies between two is rounded to the nearer, in f64; a tie to the even one.
    #[test]
    fn bf16_is_the_nearest() {
        let wide = |bits: u16| f32::from_bits(u32::from(bits) << 16);
        for bits in 0..=u16::MAX {
            let low = wide(bits);
            if low.is_nan() {
                assert!(wide(bf16_bits(low)).is_nan(), "{bits:#x}");
                continue;
            }
            assert_eq!(bf16_bits(low), bits, "{bits:#x}");
            let high = wide(bits.wrapping_add(1));
            // Past the largest is where the next would be if exponents went on: 2^128.
            let above = if high.is_infinite() {
                f64::from(low) + f64::from(low) - f64::from(wide(bits - 1))
            } else {
                f64::from(high)
            };
            if low.is_infinite() || high.is_nan() {
                continue;
            }
            for rest in [1, 0x1234, 0x7fff, 0x8000, 0x8001, 0xcdef, 0xffff] {
                let x = f32::from_bits(low.to_bits() | rest);
                let (under, over) = ((f64::from(x) - f64::from(low)).abs(), (above - f64::from(x)).abs());
                let expected = match under.total_cmp(&over) {
                    std::cmp::Ordering::Less => bits,
                    std::cmp::Ordering::Greater => bits + 1,
                    std::cmp::Ordering::Equal => bits + (bits & 1),
                };
                assert_eq!(bf16_bits(x), expected, "{x:e}");
                assert_eq!(Precision::Bf16.round(x).to_bits(), u32::from(expected) << 16);
                assert_eq!(Precision::F32.round(x).to_bits(), x.to_bits());
            }
        }
        // A NaN whose payload is all in the lower half is no infinity.
        assert!(Precision::Bf16.round(f32::from_bits(0x7f80_0001)).is_nan());
    }
}
