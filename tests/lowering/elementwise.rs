//! Elementwise operators in every type, and what is broadcast.

use crate::harness::{case, ints, model, one};
use half::f16;
use lanes::DType::{self, *};
use lanes::onnx::Tensor;
use lanes::onnx::onnx::build::Value;

const FLOATS: [DType; 4] = [F16, BF16, F32, F64];
const INTS: [DType; 8] = [I8, I16, I32, I64, U8, U16, U32, U64];

#[test]
fn functions_of_one() {
    for dtype in FLOATS {
        for op in [
            "Sqrt",
            "Abs",
            "Neg",
            "Exp",
            "Log",
            "Erf",
            "Relu",
            "LeakyRelu",
            "Sigmoid",
            "Tanh",
            "Softplus",
            "Identity",
            "Floor",
            "Ceil",
            "Round",
            "Sin",
            "Cos",
        ] {
            case(one(op, &[(dtype, &[3, 5])], &[], &["x0"], &[], dtype)).check();
        }
        for approximate in ["none", "tanh"] {
            let attributes = [("approximate", Value::from(approximate))];
            let model = model(20, &[(dtype, &[7])], &[]).node("Gelu", &["x0"], &["y"], &attributes);
            case(model.output("y", dtype, &["?", "?"])).check();
        }
    }
    for dtype in [I8, I16, I32, I64] {
        for op in ["Abs", "Neg", "Relu"] {
            case(one(op, &[(dtype, &[9])], &[], &["x0"], &[], dtype)).check();
        }
    }
    case(one("Not", &[(Bool, &[9])], &[], &["x0"], &[], Bool)).check();
}

#[test]
fn functions_of_two() {
    for dtype in FLOATS.into_iter().chain(INTS) {
        let two: [(DType, &[usize]); 2] = [(dtype, &[3, 5]), (dtype, &[3, 5])];
        for op in ["Add", "Sub", "Mul", "Min", "Max"] {
            case(one(op, &two, &[], &["x0", "x1"], &[], dtype)).check();
        }
        for op in ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"] {
            case(one(op, &two, &[], &["x0", "x1"], &[], Bool)).ints(0..=2).check();
            case(one(op, &two, &[], &["x0", "x1"], &[], Bool)).check();
        }
    }
    for dtype in FLOATS {
        for op in ["Div", "Pow"] {
            case(one(op, &[(dtype, &[3, 5]), (dtype, &[3, 5])], &[], &["x0", "x1"], &[], dtype)).check();
        }
    }
    for op in ["And", "Or", "Equal"] {
        case(one(op, &[(Bool, &[9]), (Bool, &[9])], &[], &["x0", "x1"], &[], Bool)).check();
    }
}

/// Integers divide towards zero; a seat that divides by zero is refused, alone.
#[test]
fn integers_divide() {
    for dtype in INTS {
        let two: [(DType, &[usize]); 2] = [(dtype, &[2]), (dtype, &[2])];
        case(one("Div", &two, &[], &["x0", "x1"], &[], dtype)).ints(1..=100).check();
        let refused = case(one("Div", &two, &[], &["x0", "x1"], &[], dtype)).ints(0..=3).check();
        assert!((1..15).contains(&refused), "{refused} of 15 divide by zero");
    }
    case(one("Div", &[(I32, &[9])], &[Tensor::scalar(-3i32)], &["x0", "c0"], &[], I32)).check();
    case(one("Div", &[(I64, &[9])], &[Tensor::scalar(-1i64)], &["x0", "c0"], &[], I64)).check();
}

#[test]
fn powers_have_exponents_of_other_types() {
    for exponent in [-2.0f32, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 7.0] {
        for dtype in FLOATS {
            case(one("Pow", &[(dtype, &[9])], &[Tensor::scalar(exponent)], &["x0", "c0"], &[], dtype)).check();
        }
    }
    case(one("Pow", &[(I32, &[9])], &[Tensor::scalar(2f32)], &["x0", "c0"], &[], I32)).check();
    case(one("Pow", &[(F32, &[3])], &[ints(&[2, -1, 3])], &["x0", "c0"], &[], F32)).check();
    case(one("Pow", &[(F32, &[3]), (I64, &[3])], &[], &["x0", "x1"], &[], F32)).ints(-3..=3).check();
}

#[test]
fn operands_broadcast() {
    let column = Tensor::from_vec(vec![4, 1], vec![1f32, -2.0, 3.0, -4.0]);
    for (a, b) in [(&[3, 4, 5][..], &[1, 4, 1][..]), (&[1, 5], &[4, 5]), (&[4, 1], &[4, 5]), (&[2, 1, 3], &[2, 4, 1])] {
        case(one("Sub", &[(F32, a), (F32, b)], &[], &["x0", "x1"], &[], F32)).check();
    }
    case(one("Mul", &[(F32, &[4, 5])], &[column], &["c0", "x0"], &[], F32)).check();
    case(one("Add", &[(F32, &[4, 5])], &[Tensor::scalar(0.5f32)], &["c0", "x0"], &[], F32)).check();
    case(one("Add", &[(F32, &[])], &[Tensor::scalar(0.5f32)], &["c0", "x0"], &[], F32)).check();
}

#[test]
fn choices_and_bounds() {
    for dtype in FLOATS.into_iter().chain(INTS).chain([Bool]) {
        case(one(
            "Where",
            &[(Bool, &[3, 1]), (dtype, &[1, 4]), (dtype, &[3, 4])],
            &[],
            &["x0", "x1", "x2"],
            &[],
            dtype,
        ))
        .check();
    }
    let bounds = [Tensor::scalar(-0.25f32), Tensor::scalar(100f32)];
    for operands in [&["x0", "c0", "c1"][..], &["x0", "", "c1"], &["x0", "c0"], &["x0"]] {
        case(one("Clip", &[(F32, &[9])], &bounds, operands, &[], F32)).check();
    }
    let halves = [Tensor::scalar(f16::from_f32(-0.5)), Tensor::scalar(f16::from_f32(0.5))];
    case(one("Clip", &[(F16, &[9])], &halves, &["x0", "c0", "c1"], &[], F16)).check();
    let integers = [Tensor::scalar(-3i64), Tensor::scalar(i64::MAX - 1)];
    case(one("Clip", &[(I64, &[9])], &integers, &["x0", "c0", "c1"], &[], I64)).check();
}

#[test]
fn every_type_casts_to_every_other() {
    for from in FLOATS.into_iter().chain(INTS).chain([Bool]) {
        let targets: Vec<DType> = FLOATS.into_iter().chain(INTS).chain([Bool]).collect();
        let mut all = model(13, &[(from, &[9])], &[]);
        for (n, &to) in targets.iter().enumerate() {
            let name = format!("y{n}");
            all = all.node("Cast", &["x0"], &[&name], &[("to", code(to).into())]).output(&name, to, &["?", "?"]);
        }
        case(all).check();
    }
}

/// `TensorProto.DataType`.
fn code(dtype: DType) -> i64 {
    match dtype {
        F32 => 1,
        U8 => 2,
        I8 => 3,
        U16 => 4,
        I16 => 5,
        I32 => 6,
        I64 => 7,
        Bool => 9,
        F16 => 10,
        F64 => 11,
        U32 => 12,
        U64 => 13,
        BF16 => 16,
        other => panic!("{other} has no code here"),
    }
}

/// Chains fuse; what is used twice, or is an output on the way, stays what it was.
#[test]
fn chains_keep_their_meaning() {
    let chain = model(13, &[(F32, &[4, 6]), (F32, &[1, 6])], &[])
        .node("Add", &["x0", "x1"], &["a"], &[])
        .node("Sigmoid", &["a"], &["b"], &[])
        .node("Mul", &["a", "b"], &["c"], &[])
        .node("ReduceMax", &["c"], &["d"], &[("axes", [2].into())])
        .node("Sub", &["c", "d"], &["e"], &[])
        .node("Exp", &["e"], &["f"], &[])
        .node("Add", &["f", "b"], &["g"], &[]);
    case(chain.output("c", F32, &["?", "?"]).output("g", F32, &["?", "?"])).check();
}

#[test]
fn chains_of_more_than_one_kernel() {
    for dtype in FLOATS {
        // What crosses from one kernel to the next: floats, truths, and values from far before.
        let mut chain = model(18, &[(dtype, &[3, 5]), (dtype, &[1, 5])], &[]);
        let name = |at: usize| if at == 0 { "x0".to_owned() } else { format!("v{at}") };
        for at in 0..400usize {
            let (last, next, far) = (name(at), name(at + 1), name(at.saturating_sub(90)));
            chain = match at % 8 {
                0 => chain.node("Neg", &[&last], &[&next], &[]),
                1 => chain.node("Max", &[&last, &far], &[&next], &[]),
                2 => chain.node("Sub", &[&last, "x1"], &[&next], &[]),
                3 => chain.node("Less", &[&last, &far], &[&format!("t{at}")], &[]).node("Neg", &[&last], &[&next], &[]),
                4 => chain.node("Abs", &[&last], &[&next], &[]),
                5 => chain.node("Where", &[&format!("t{}", at - 2), &last, &far], &[&next], &[]),
                6 => chain.node("Relu", &[&last], &[&next], &[]),
                _ => chain.node("Min", &[&last, "x0"], &[&next], &[]),
            };
        }
        case(chain.output(&name(400), dtype, &["?"; 3])).check();
    }
}
