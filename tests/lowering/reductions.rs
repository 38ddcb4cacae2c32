//! Reductions, softmax, running sums and normalisations.

use crate::harness::{Random, case, ints, model, one};
use half::f16;
use lanes::DType::*;
use lanes::onnx::Tensor;
use lanes::onnx::onnx::build::Value;

#[test]
fn reductions_over_every_axis() {
    for op in ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"] {
        for axes in [&[1][..], &[2], &[3], &[1, 3], &[1, 2, 3], &[-1, -2]] {
            for keepdims in [0, 1] {
                let attributes = [("keepdims", Value::from(keepdims))];
                // 3 is unrolled, 20 is not.
                let x: &[usize] = &[3, 20, 4];
                case(one(op, &[(F32, x)], &[ints(axes)], &["x0", "c0"], &attributes, F32)).sums().check();
            }
        }
        for dtype in [F16, BF16, F64, I32, I64, U32, U64] {
            for axis in [1, 2] {
                let (x, axes): (&[usize], _) = (&[3, 20], [ints(&[axis])]);
                case(one(op, &[(dtype, x)], &axes, &["x0", "c0"], &[], dtype)).ints(0..=1000).sums().check();
            }
        }
    }
    for dtype in [I8, U8] {
        for op in ["ReduceMax", "ReduceMin"] {
            case(one(op, &[(dtype, &[3, 20])], &[ints(&[1])], &["x0", "c0"], &[], dtype)).check();
        }
    }
    case(one("ReduceSum", &[(I32, &[20])], &[ints(&[1])], &["x0", "c0"], &[], I32)).check();
    case(one("ReduceMean", &[(I64, &[20])], &[ints(&[1])], &["x0", "c0"], &[], I64)).ints(-1000..=1000).check();
    // An axis of extent 1, and no axis at all.
    case(one("ReduceMean", &[(F32, &[1, 4])], &[ints(&[1])], &["x0", "c0"], &[("keepdims", 0.into())], F32)).check();
    case(one("ReduceSum", &[(F32, &[4])], &[], &["x0"], &[("noop_with_empty_axes", 1.into())], F32)).check();
    // All axes take the lanes in, and are rewritten per lane.
    case(one("ReduceMax", &[(F32, &[3, 4])], &[], &["x0"], &[], F32)).check();
}

#[test]
fn softmax_along_every_axis() {
    for dtype in [F32, F16, BF16, F64] {
        for axis in [1, 2, -1] {
            case(one("Softmax", &[(dtype, &[3, 20])], &[], &["x0"], &[("axis", axis.into())], dtype)).check();
        }
    }
    // Before opset 13 everything from the axis on is one.
    let coerced = model(11, &[(F32, &[3, 4])], &[]).node("Softmax", &["x0"], &["y"], &[("axis", 1.into())]);
    case(coerced.output("y", F32, &["?", "?"])).check();
}

#[test]
fn running_sums() {
    for axis in [1i64, 2] {
        for (exclusive, reverse) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let attributes = [("exclusive", Value::from(exclusive)), ("reverse", Value::from(reverse))];
            for dtype in [F32, F64, I32, I64] {
                let case = case(one(
                    "CumSum",
                    &[(dtype, &[3, 20])],
                    &[Tensor::scalar(axis)],
                    &["x0", "c0"],
                    &attributes,
                    dtype,
                ));
                case.sums().check();
            }
        }
    }
}

#[test]
fn layers_are_normalised() {
    let mut random = Random(21);
    for (axis, own) in [(1, &[3, 20][..]), (2, &[20]), (-1, &[1]), (1, &[20])] {
        for bias in [false, true] {
            let constants = [random.tensor(own), random.tensor(own)];
            let operands = if bias { &["x0", "c0", "c1"][..] } else { &["x0", "c0"] };
            let attributes = [("axis", Value::from(axis)), ("epsilon", 1e-3.into())];
            case(one("LayerNormalization", &[(F32, &[3, 20])], &constants, operands, &attributes, F32)).sums().check();
        }
    }
    let halves = |tensor: &Tensor| {
        let values = tensor.values::<f32>().iter().map(|&x| f16::from_f32(x)).collect();
        Tensor::from_vec(tensor.shape().to_vec(), values)
    };
    let scale = halves(&random.tensor(&[6]));
    case(one("LayerNormalization", &[(F16, &[6])], &[scale], &["x0", "c0"], &[], F16)).sums().check();
}

#[test]
fn batches_are_normalised_by_channel() {
    let mut random = Random(22);
    let mut four = || {
        let variance = Tensor::from_vec(vec![3], vec![0.5f32, 2.0, 1e-3]);
        [random.tensor(&[3]), random.tensor(&[3]), random.tensor(&[3]), variance]
    };
    let operands = ["x0", "c0", "c1", "c2", "c3"];
    for x in [&[3][..], &[3, 5], &[3, 2, 4]] {
        case(one("BatchNormalization", &[(F32, x)], &four(), &operands, &[("epsilon", 1e-3.into())], F32))
            .sums()
            .check();
    }
    // Statistics may be wider than what they normalise.
    case(one("BatchNormalization", &[(F16, &[3, 5])], &four(), &operands, &[], F16)).sums().check();
}
