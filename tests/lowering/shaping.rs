//! Operators that move elements.

use crate::harness::{Random, case, ints, model, one};
use half::f16;
use lanes::DType::*;
use lanes::onnx::Tensor;
use lanes::onnx::onnx::build::Value;

#[test]
fn slices_take_steps_both_ways() {
    for (starts, ends, axes, steps) in [
        (&[1][..], &[4][..], &[1][..], &[1][..]),
        (&[-1], &[i64::MIN], &[1], &[-1]),
        (&[-1], &[i64::MIN], &[2], &[-2]),
        (&[0, 5], &[5, 0], &[1, 2], &[2, -1]),
        (&[3, 1], &[-7, 100], &[1, 2], &[-3, 3]),
    ] {
        let constants = [ints(starts), ints(ends), ints(axes), ints(steps)];
        let operands = ["x0", "c0", "c1", "c2", "c3"];
        for dtype in [F32, F16, I64, U8] {
            case(one("Slice", &[(dtype, &[5, 6])], &constants, &operands, &[], dtype)).check();
        }
        let sum = model(18, &[(F32, &[5, 6])], &constants).node("Slice", &operands, &["part"], &[]).node(
            "Mul",
            &["part", "part"],
            &["y"],
            &[],
        );
        case(sum.output("y", F32, &["?", "?"])).check();
    }
}

#[test]
fn pieces_are_split_and_joined() {
    for axis in [1, -1] {
        let split = model(18, &[(F32, &[4, 6])], &[])
            .node("Split", &["x0"], &["a", "b"], &[("axis", axis.into()), ("num_outputs", 2.into())])
            .node("Neg", &["b"], &["c"], &[])
            .node("Concat", &["c", "a", "b"], &["y"], &[("axis", axis.into())]);
        case(split.output("y", F32, &["?", "?"]).output("b", F32, &["?", "?"])).check();
    }
    let constant = Tensor::from_vec(vec![1, 2], vec![7i64, -8]);
    let mixed =
        model(13, &[(I64, &[3])], &[constant]).node("Concat", &["x0", "c0", "x0"], &["y"], &[("axis", 1.into())]);
    case(mixed.output("y", I64, &["?", "?"])).check();
    for dtype in [Bool, I8, F16, F64] {
        case(one("Concat", &[(dtype, &[3]), (dtype, &[2])], &[], &["x0", "x1"], &[("axis", 1.into())], dtype)).check();
    }
}

#[test]
fn gathers_by_known_indices() {
    for indices in [ints(&[0, 2, 4]), ints(&[-1, -1, 0]), ints(&[3, 2, 1, 0, 4]), Tensor::scalar(-2i64)] {
        for axis in [1, 2] {
            case(one("Gather", &[(F32, &[5, 5])], &[indices.clone()], &["x0", "c0"], &[("axis", axis.into())], F32))
                .check();
        }
    }
    let square = Tensor::from_vec(vec![2, 2], vec![0i32, 1, 1, -1]);
    case(one("Gather", &[(I64, &[3])], &[square], &["x0", "c0"], &[("axis", 1.into())], I64)).check();
}

/// Indices below zero count from the end; one that is out of bounds refuses its own seat and no other.
#[test]
fn gathers_by_computed_indices() {
    let table = Random(3).tensor(&[6, 4]);
    for index in [I32, I64] {
        let embed = || one("Gather", &[(index, &[3])], &[table.clone()], &["c0", "x0"], &[("axis", 0.into())], F32);
        assert_eq!(case(embed()).ints(-6..=5).check(), 0);
        let refused = case(embed()).ints(-7..=6).check();
        assert!((1..15).contains(&refused), "{refused} of 15 are out of bounds");
        assert_eq!(case(embed()).check(), 15, "arbitrary integers are out of bounds");
    }
    for dtype in [F16, I8, Bool, F64] {
        let turned = Tensor::from_vec(vec![3], vec![5i64, 0, 2]);
        let both = model(18, &[(dtype, &[2, 6, 2])], &[turned, ints(&[2])]).node(
            "Gather",
            &["x0", "c0"],
            &["y"],
            &[("axis", 2.into())],
        );
        case(both.output("y", dtype, &["?", "?"])).check();
    }
}

#[test]
fn borders_of_every_mode() {
    let pads = ints(&[0, 1, 2, 0, 2, 1]);
    for mode in ["constant", "reflect", "edge"] {
        let mode = [("mode", Value::from(mode))];
        for dtype in [F32, F16, F64, I8, I32, I64] {
            case(one("Pad", &[(dtype, &[3, 4])], &[pads.clone()], &["x0", "c0"], &mode, dtype)).check();
        }
    }
    let value = |tensor: Tensor, dtype| {
        case(one("Pad", &[(dtype, &[3, 4])], &[pads.clone(), tensor], &["x0", "c0", "c1"], &[], dtype)).check();
    };
    value(Tensor::scalar(-1.5f32), F32);
    value(Tensor::scalar(f32::NEG_INFINITY), F32);
    value(Tensor::scalar(f16::from_f32(2.5)), F16);
    value(Tensor::scalar(-1e300f64), F64);
    value(Tensor::scalar(i64::MAX - 1), I64);
    value(Tensor::scalar(u64::MAX), U64);
    value(Tensor::scalar(-7i32), I32);
    value(Tensor::scalar(-7i8), I8);
    value(Tensor::from_bools(vec![], vec![true]), Bool);
}

#[test]
fn shapes_change_and_axes_turn() {
    let reshaped = model(18, &[(F32, &[4, 6])], &[ints(&[0, 3, 8]), ints(&[0, 24])])
        .node("Transpose", &["x0"], &["t"], &[("perm", [0, 2, 1].into())])
        .node("Reshape", &["t", "c0"], &["r"], &[])
        .node("Neg", &["r"], &["n"], &[])
        .node("Flatten", &["n"], &["y"], &[])
        .node("Reshape", &["x0", "c1"], &["z"], &[]);
    case(reshaped.output("y", F32, &["?", "?"]).output("z", F32, &["?", "?"]).output("t", F32, &["?"; 3])).check();
    let turned = model(18, &[(I8, &[2, 3, 4])], &[])
        .node("Transpose", &["x0"], &["t"], &[("perm", [0, 3, 1, 2].into())])
        .node("Transpose", &["t"], &["y"], &[("perm", [0, 2, 1, 3].into())]);
    case(turned.output("y", I8, &["?", "?"])).check();
    let squeezed = model(18, &[(F64, &[1, 5])], &[ints(&[1]), ints(&[1, 3])])
        .node("Squeeze", &["x0", "c0"], &["s"], &[])
        .node("Unsqueeze", &["s", "c1"], &["y"], &[]);
    case(squeezed.output("y", F64, &["?", "?"])).check();
    let flat = model(18, &[(F32, &[3, 2])], &[ints(&[3, -1])])
        .node("Flatten", &["x0"], &["y"], &[("axis", 1.into())])
        .node("Neg", &["x0"], &["z"], &[]);
    case(flat.output("y", F32, &["?", "?"]).output("z", F32, &["?"; 3])).check();
}

#[test]
fn values_expand() {
    for dtype in [F32, F16, I64, Bool] {
        let wide = model(18, &[(dtype, &[3, 1])], &[ints(&[1, 3, 4]), ints(&[2, 1, 1, 3, 4])]).node(
            "Expand",
            &["x0", "c0"],
            &["y"],
            &[],
        );
        case(wide.output("y", dtype, &["?", "?"])).check();
    }
    let reshaped = model(18, &[(F32, &[3, 1])], &[ints(&[1, 3, 4]), ints(&[0, 2, 6])])
        .node("Expand", &["x0", "c0"], &["e"], &[])
        .node("Reshape", &["e", "c1"], &["r"], &[])
        .node("Concat", &["r", "r"], &["y"], &[("axis", 2.into())]);
    case(reshaped.output("y", F32, &["?", "?"])).check();
}
