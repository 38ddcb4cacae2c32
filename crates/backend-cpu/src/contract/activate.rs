//! Activations of finished sums: the scalar functions of `loom_compiler::math`, in loops that the compiler vectorises,
//! so that a contraction gives the bits that a kernel of the same function gives.

use lanes_core::plan::Activation;
use loom_compiler::math;

/// max(x, 0): +0 for -0, NaN for NaN. `math::maximum(x, 0.0)`.
#[inline(always)]
pub(super) fn relu(x: f32) -> f32 {
    (if x < 0.0 { 0.0 } else { x }) + 0.0
}

/// Applies `activation` to each element.
#[inline(always)]
pub(super) fn activate(data: &mut [f32], activation: Activation) {
    // One loop each: the choice stays outside, the loops vectorise.
    macro_rules! each {
        ($f:path) => {
            for x in data {
                *x = $f(*x);
            }
        };
    }
    match activation {
        Activation::Relu => each!(relu),
        Activation::Sigmoid => each!(math::logistic),
        Activation::Tanh => each!(math::tanh),
        Activation::Silu => each!(math::silu),
        // `Packed::new` refuses what is not known here.
        _ => {}
    }
}

/// Whether [`activate`] knows it.
pub(super) fn known(activation: Activation) -> bool {
    use Activation::*;
    matches!(activation, None | Relu | Sigmoid | Tanh | Silu)
}
