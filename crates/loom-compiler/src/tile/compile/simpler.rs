//! Integer ops of registers that another op, or none, does for less: the same bits, always.
//!
//! - A quotient by a power of two is a shift, a remainder some of the bits: kernels that take blocks of weights apart divide for
//!   every element, and no machine divides vectors of integers.
//! - Not here: ops of constants alone, which were folded before, and of affine lanes (`lines`).

use super::{Lane, Word};
use crate::ops::{Binary, Convert};
use crate::tile::program::Op;
use crate::types::ScalarType;

/// What stands for an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Simpler {
    /// The operand with this number, as it is: its register gets a second name. Of 64 bits, so that no loop writes it in place.
    Operand(usize),
    /// An op of the first operand and a constant.
    Op(Op, u64),
}

/// What stands for `op`, if there is something.
pub(super) fn simpler(op: Op, from: &[Lane]) -> Option<Simpler> {
    // A load that has not been made is its user's, who may come after a store.
    let same = |at: usize, ty: ScalarType| ty.bits() == 64 && matches!(from[at], Lane::Reg(_) | Lane::Segment(_));
    let constant = |at: usize| match from[at] {
        Lane::Uniform(Word::Constant(bits)) => Some(bits),
        _ => None,
    };
    match op {
        Op::Convert(Convert::Bitcast, a, b) if is_plain(a) && is_plain(b) && same(0, a) => Some(Simpler::Operand(0)),
        Op::Binary(binary, ty) if is_plain(ty) => {
            if matches!(binary, Binary::AddI | Binary::OrI | Binary::XorI) && constant(0) == Some(0) && same(1, ty) {
                return Some(Simpler::Operand(1));
            }
            let by = constant(1)?;
            let with = |binary, by| Some(Simpler::Op(Op::Binary(binary, ty), by));
            match binary {
                Binary::AddI
                | Binary::SubI
                | Binary::OrI
                | Binary::XorI
                | Binary::ShlI
                | Binary::ShrUI
                | Binary::ShrSI
                    if by == 0 && same(0, ty) =>
                {
                    Some(Simpler::Operand(0))
                }
                Binary::MulI | Binary::DivUI if by == 1 && same(0, ty) => Some(Simpler::Operand(0)),
                Binary::MulI if by.is_power_of_two() => with(Binary::ShlI, u64::from(by.trailing_zeros())),
                Binary::DivUI if by.is_power_of_two() => with(Binary::ShrUI, u64::from(by.trailing_zeros())),
                Binary::RemUI if by.is_power_of_two() => with(Binary::AndI, by - 1),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Whether the type's elements are their bits, all of them: an `i1` is not.
fn is_plain(ty: ScalarType) -> bool {
    matches!(
        ty,
        ScalarType::I8 | ScalarType::I16 | ScalarType::I32 | ScalarType::I64 | ScalarType::Index | ScalarType::Offset
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tile::program::Reg;

    /// Every answer against the op itself, over values with bits at both ends.
    #[test]
    fn what_stands_for_an_op_has_its_bits() {
        let binaries = [
            Binary::AddI,
            Binary::SubI,
            Binary::MulI,
            Binary::DivUI,
            Binary::RemUI,
            Binary::DivSI,
            Binary::AndI,
            Binary::OrI,
            Binary::XorI,
            Binary::ShlI,
            Binary::ShrUI,
            Binary::ShrSI,
        ];
        let mut found = 0;
        for ty in [ScalarType::I8, ScalarType::I16, ScalarType::I32, ScalarType::I64, ScalarType::Index] {
            let mask = u64::MAX >> (64 - ty.bits());
            let values = [0, 1, 2, 3, 7, 8, 9, 100, mask / 2, mask / 2 + 1, mask - 1, mask];
            let constants = (0..ty.bits()).map(|bit| 1 << bit).chain([0, 3, mask]);
            for (by, binary) in constants.flat_map(|by| binaries.map(|binary| (by, binary))) {
                let op = Op::Binary(binary, ty);
                let (held, constant) = (Lane::Reg(Reg(0)), Lane::Uniform(Word::Constant(by)));
                for swapped in [false, true] {
                    let (from, first) = if swapped {
                        ([constant.clone(), held.clone()], 1)
                    } else {
                        ([held.clone(), constant.clone()], 0)
                    };
                    let Some(answer) = simpler(op, &from) else { continue };
                    found += 1;
                    for value in values {
                        let wanted = op.evaluate(if swapped { [by, value, 0] } else { [value, by, 0] });
                        let got = match answer {
                            Simpler::Operand(at) => {
                                assert_eq!(at, first);
                                value
                            }
                            Simpler::Op(op, by) => op.evaluate([value, by, 0]),
                        };
                        assert_eq!(got, wanted, "{op:?} of {value} and {by}, swapped: {swapped}");
                    }
                }
            }
        }
        // Both ends of every list above, and nothing of what has no simpler form.
        assert!(found > 500, "{found}");
    }

    #[test]
    fn a_load_is_left_to_who_makes_it() {
        let op = Op::Convert(Convert::Bitcast, ScalarType::Index, ScalarType::Offset);
        assert_eq!(simpler(op, &[Lane::Reg(Reg(64))]), Some(Simpler::Operand(0)));
        let access = crate::tile::program::Access {
            buffer: 0,
            offsets: crate::tile::program::Offsets::Gather(Reg(0)),
            site: crate::tile::program::SiteId(0),
        };
        assert_eq!(simpler(op, &[Lane::Memory(access)]), None);
        let op = Op::Convert(Convert::Bitcast, ScalarType::F32, ScalarType::I32);
        assert_eq!(simpler(op, &[Lane::Reg(Reg(64))]), None);
    }
}
