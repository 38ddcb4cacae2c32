//! Whether two values agree, and where they first do not.

use super::Relation;
use crate::eval;
use crate::types::ScalarType;

/// Whether one element agrees with what is expected of it.
pub(super) fn agrees(relation: Relation, ty: ScalarType, actual: u64, expected: u64) -> bool {
    match relation {
        Relation::Bitwise => actual == expected,
        Relation::Equal if ty.is_float() => eval::to_f64(ty, actual) == eval::to_f64(ty, expected),
        Relation::Equal => actual == expected,
        Relation::Close { absolute, relative, nan_is_nan } => {
            let (a, e) = (eval::to_f64(ty, actual), eval::to_f64(ty, expected));
            if a.is_nan() || e.is_nan() {
                return nan_is_nan && a.is_nan() && e.is_nan();
            }
            // Equal infinities have no difference to compare.
            a == e || (e.is_finite() && (a - e).abs() <= absolute + relative * e.abs())
        }
    }
}

/// Element `at` of dense bytes.
pub(super) fn element(ty: ScalarType, bytes: &[u8], at: usize) -> u64 {
    let size = ty.bytes() as usize;
    let mut word = [0; 8];
    word[..size].copy_from_slice(&bytes[at * size..][..size]);
    u64::from_le_bytes(word)
}

/// A value for people: a number, and the bits where numbers do not tell.
pub(super) fn shown(relation: Relation, ty: ScalarType, bits: u64) -> String {
    let number = match ty {
        ScalarType::F32 => f32::from_bits(bits as u32).to_string(),
        ty if ty.is_float() => eval::to_f64(ty, bits).to_string(),
        ScalarType::I1 => (bits != 0).to_string(),
        ScalarType::Offset => bits.to_string(),
        ty => eval::signed(ty, bits).to_string(),
    };
    if relation == Relation::Bitwise && ty.is_float() {
        return format!("{number} ({bits:#0width$x})", width = 2 + ty.bits() as usize / 4);
    }
    number
}

/// The first element that does not agree. Both have as many bytes.
pub(super) fn first_difference(relation: Relation, ty: ScalarType, actual: &[u8], expected: &[u8]) -> Option<usize> {
    let count = actual.len() / ty.bytes() as usize;
    if relation == Relation::Bitwise || !ty.is_float() {
        let at = actual.iter().zip(expected).position(|(a, e)| a != e)?;
        return Some(at / ty.bytes() as usize);
    }
    (0..count).find(|at| !agrees(relation, ty, element(ty, actual, *at), element(ty, expected, *at)))
}
