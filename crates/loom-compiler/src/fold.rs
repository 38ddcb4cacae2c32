//! What an op comes to before it runs: a constant, one of its operands, or a simpler op.
//!
//! - A fold gives the bits that running the op would give: it computes with `eval`, and rewrites only integers, where
//!   the identities are exact.
//! - A vector constant has one number in every lane, so element-wise ops fold on it as on a scalar.
//! - Not here: reuse of equal ops, and constant control flow (`build`).

use crate::eval;
use crate::ir::{Body, ValueId};
use crate::ops::{Binary, Convert, IntPredicate, OpKind, Ternary};
use crate::types::{ScalarType, Type};

/// What stands for the op.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Folded {
    /// These bits in every lane.
    Constant(u64),
    /// This value.
    Value(ValueId),
    /// This op, of the same result type.
    Op(OpKind, Vec<ValueId>),
}

/// The fold of `kind` over `operands` with a result of type `ty`, if there is one.
pub(crate) fn fold(body: &Body, kind: &OpKind, operands: &[ValueId], ty: &Type) -> Option<Folded> {
    let constant = |at: usize| operands.get(at).and_then(|value| body.constant(*value));
    let element = |at: usize| operands.get(at).and_then(|value| body.ty(*value).element());
    match kind {
        OpKind::Unary(op) => Some(Folded::Constant(eval::unary(*op, element(0)?, constant(0)?))),
        OpKind::Binary(op) => match (constant(0), constant(1)) {
            (Some(a), Some(b)) => Some(Folded::Constant(eval::binary(*op, element(0)?, a, b))),
            (a, b) => fold_binary(*op, element(0)?, operands, a, b),
        },
        OpKind::Ternary(op) => match (constant(0), constant(1), constant(2)) {
            (Some(a), Some(b), Some(c)) => Some(Folded::Constant(eval::ternary(*op, element(0)?, a, b, c))),
            (a, b, c) => fold_ternary(*op, operands, a, b, c),
        },
        OpKind::CompareI(predicate) => match (constant(0), constant(1)) {
            (Some(a), Some(b)) => Some(Folded::Constant(u64::from(eval::compare_int(*predicate, element(0)?, a, b)))),
            _ if operands[0] == operands[1] => Some(Folded::Constant(u64::from(matches!(
                predicate,
                IntPredicate::Eq | IntPredicate::Sle | IntPredicate::Sge | IntPredicate::Ule | IntPredicate::Uge
            )))),
            _ => None,
        },
        OpKind::CompareF(predicate) => {
            let holds = eval::compare_float(*predicate, element(0)?, constant(0)?, constant(1)?);
            Some(Folded::Constant(u64::from(holds)))
        }
        OpKind::Classify(class) => Some(Folded::Constant(u64::from(eval::classify(*class, element(0)?, constant(0)?)))),
        OpKind::Convert(op) => {
            if *op == Convert::Bitcast && body.ty(operands[0]).lanes() != ty.lanes() {
                return None;
            }
            Some(Folded::Constant(eval::convert(*op, element(0)?, ty.element()?, constant(0)?)))
        }
        OpKind::Select => match constant(0) {
            Some(1) => Some(Folded::Value(operands[1])),
            Some(_) => Some(Folded::Value(operands[2])),
            None if operands[1] == operands[2] => Some(Folded::Value(operands[1])),
            None => None,
        },
        OpKind::Splat => Some(Folded::Constant(constant(0)?)),
        OpKind::FromElements => {
            let first = constant(0)?;
            (1..operands.len()).all(|at| constant(at) == Some(first)).then_some(Folded::Constant(first))
        }
        OpKind::Extract => Some(Folded::Constant(constant(0)?)),
        OpKind::Insert => {
            let (part, whole) = (constant(0)?, constant(1)?);
            (part == whole).then_some(Folded::Constant(whole))
        }
        OpKind::Iota => (constant(1)? == 0).then_some(Folded::Op(OpKind::Splat, vec![operands[0]])),
        OpKind::Lanes(_) => {
            let first = constant(0)?;
            (1..operands.len()).all(|at| constant(at) == Some(first)).then_some(Folded::Constant(first))
        }
        // Loops over lanes, memory, places and control: nothing is known before they run.
        OpKind::Constant(_)
        | OpKind::MaskRange
        | OpKind::Reduce(_)
        | OpKind::Dot
        | OpKind::Dot2F
        | OpKind::Dot4I { .. }
        | OpKind::Alloca { .. }
        | OpKind::Bytes(_)
        | OpKind::BufferView
        | OpKind::Subview
        | OpKind::Refine
        | OpKind::BufferLength
        | OpKind::Load
        | OpKind::LoadMask
        | OpKind::Store
        | OpKind::StoreMask
        | OpKind::Gather
        | OpKind::GatherMask
        | OpKind::Scatter
        | OpKind::ScatterMask
        | OpKind::AsyncCopy { .. }
        | OpKind::AsyncGroup
        | OpKind::AsyncWait { .. }
        | OpKind::FragmentLabel(..)
        | OpKind::FragmentLoad(_)
        | OpKind::FragmentStore(_)
        | OpKind::FragmentRepack { .. }
        | OpKind::Mma(_)
        | OpKind::If
        | OpKind::For
        | OpKind::While
        | OpKind::Switch(_)
        | OpKind::Yield
        | OpKind::Condition
        | OpKind::Return
        | OpKind::Id(_)
        | OpKind::Barrier(_)
        | OpKind::SubgroupShuffle(_)
        | OpKind::SubgroupReduce { .. }
        | OpKind::SubgroupBroadcast
        | OpKind::SubgroupBroadcastFirst
        | OpKind::SubgroupScan { .. }
        | OpKind::SubgroupBallot
        | OpKind::SubgroupMatchAny
        | OpKind::SubgroupMatchAll
        | OpKind::WorkgroupReduce(_)
        | OpKind::WorkgroupScan(..)
        | OpKind::Atomic { .. }
        | OpKind::Fence { .. }
        | OpKind::Exit
        | OpKind::Assert(_) => None,
    }
}

/// Integer identities with one constant operand.
fn fold_binary(op: Binary, ty: ScalarType, operands: &[ValueId], a: Option<u64>, b: Option<u64>) -> Option<Folded> {
    if op.is_float() {
        return None;
    }
    let ones = u64::MAX >> (64 - ty.bits());
    let (first, second) = (Folded::Value(operands[0]), Folded::Value(operands[1]));
    match (op, a, b) {
        (Binary::AddI | Binary::OrI | Binary::XorI, Some(0), _) => Some(second),
        (Binary::MulI, Some(1), _) => Some(second),
        (Binary::MulI | Binary::AndI, Some(0), _) => Some(Folded::Constant(0)),
        (Binary::AndI, Some(all), _) if all == ones => Some(second),
        (Binary::OrI, Some(all), _) if all == ones => Some(Folded::Constant(ones)),
        (
            Binary::AddI
            | Binary::SubI
            | Binary::OrI
            | Binary::XorI
            | Binary::ShlI
            | Binary::ShrSI
            | Binary::ShrUI
            | Binary::RotLI
            | Binary::RotRI,
            _,
            Some(0),
        ) => Some(first),
        (Binary::MulI | Binary::DivUI | Binary::CeilDivUI, _, Some(1)) => Some(first),
        // In i1 the bit 1 is −1.
        (Binary::DivSI | Binary::CeilDivSI | Binary::FloorDivSI, _, Some(1)) if ty != ScalarType::I1 => Some(first),
        (Binary::RemUI, _, Some(1)) => Some(Folded::Constant(0)),
        (Binary::MulI | Binary::AndI, _, Some(0)) => Some(Folded::Constant(0)),
        (Binary::AndI, _, Some(all)) if all == ones => Some(first),
        (Binary::OrI, _, Some(all)) if all == ones => Some(Folded::Constant(ones)),
        (Binary::SubI | Binary::XorI, None, None) if operands[0] == operands[1] => Some(Folded::Constant(0)),
        (Binary::AndI | Binary::OrI | Binary::MinSI | Binary::MaxSI | Binary::MinUI | Binary::MaxUI, None, None)
            if operands[0] == operands[1] =>
        {
            Some(first)
        }
        _ => None,
    }
}

fn fold_ternary(op: Ternary, operands: &[ValueId], a: Option<u64>, b: Option<u64>, c: Option<u64>) -> Option<Folded> {
    match (op, a, b, c) {
        (Ternary::FmaI, Some(0), _, _) | (Ternary::FmaI, _, Some(0), _) => Some(Folded::Value(operands[2])),
        (Ternary::FmaI, Some(1), _, _) => {
            Some(Folded::Op(OpKind::Binary(Binary::AddI), vec![operands[1], operands[2]]))
        }
        (Ternary::FmaI, _, Some(1), _) => {
            Some(Folded::Op(OpKind::Binary(Binary::AddI), vec![operands[0], operands[2]]))
        }
        (Ternary::FmaI, _, _, Some(0)) => {
            Some(Folded::Op(OpKind::Binary(Binary::MulI), vec![operands[0], operands[1]]))
        }
        (Ternary::FmaI | Ternary::FmaF | Ternary::ClampOrderedF, ..) => None,
    }
}
