//! Matrix products and convolutions.

use crate::harness::{Random, case, ints, model, one};
use half::f16;
use lanes::DType::*;
use lanes::onnx::Tensor;
use lanes::onnx::onnx::build::Value;

fn halved(tensor: &Tensor) -> Tensor {
    Tensor::from_vec(tensor.shape().to_vec(), tensor.values::<f32>().iter().map(|&x| f16::from_f32(x)).collect())
}

fn doubled(tensor: &Tensor) -> Tensor {
    Tensor::from_vec(tensor.shape().to_vec(), tensor.values::<f32>().iter().map(|&x| f64::from(x)).collect())
}

#[test]
fn matmul_by_known_and_by_computed_operands() {
    let mut random = Random(5);
    for (x, w) in
        [(&[7][..], &[7, 5][..]), (&[3, 7], &[7, 5]), (&[2, 3, 7], &[7, 1]), (&[3, 7], &[7]), (&[2, 3, 4], &[2, 4, 5])]
    {
        let w = random.tensor(w);
        case(one("MatMul", &[(F32, x)], std::slice::from_ref(&w), &["x0", "c0"], &[], F32)).sums().check();
        case(one("MatMul", &[(F64, x)], &[doubled(&w)], &["x0", "c0"], &[], F64)).sums().check();
        case(one("MatMul", &[(F16, x)], &[halved(&w)], &["x0", "c0"], &[], F16)).sums().check();
    }
    for (w, x) in [(&[5, 7][..], &[7, 3][..]), (&[7], &[7, 3]), (&[2, 5, 7], &[2, 7, 3])] {
        let w = random.tensor(w);
        case(one("MatMul", &[(F32, x)], &[w], &["c0", "x0"], &[], F32)).sums().check();
    }
    for (a, b) in
        [(&[3, 4][..], &[4, 5][..]), (&[2, 3, 4], &[2, 4, 1]), (&[2, 1, 3, 4], &[1, 2, 4, 5]), (&[2, 3, 4], &[1, 4, 5])]
    {
        for dtype in [F32, F16, F64] {
            case(one("MatMul", &[(dtype, a), (dtype, b)], &[], &["x0", "x1"], &[], dtype)).sums().check();
        }
    }
    // Attention: one operand turned, the other a slice of what both come from.
    let attention = model(18, &[(F32, &[4, 6])], &[])
        .node("Split", &["x0"], &["q", "k"], &[("axis", 2.into()), ("num_outputs", 2.into())])
        .node("Transpose", &["k"], &["t"], &[("perm", [0, 2, 1].into())])
        .node("MatMul", &["q", "t"], &["s"], &[])
        .node("Softmax", &["s"], &["p"], &[])
        .node("MatMul", &["p", "k"], &["y"], &[]);
    case(attention.output("y", F32, &["?", "?"])).sums().check();
}

#[test]
fn gemm_with_all_its_attributes() {
    let mut random = Random(6);
    for trans_b in [0, 1] {
        for c in [None, Some(vec![]), Some(vec![5]), Some(vec![1, 5]), Some(vec![1, 1])] {
            for (alpha, beta) in [(1.0, 1.0), (0.5, -2.0), (2.0, 0.0)] {
                let b = random.tensor(if trans_b == 1 { &[5, 7] } else { &[7, 5] });
                let attributes =
                    [("transB", Value::from(trans_b)), ("alpha", Value::Float(alpha)), ("beta", Value::Float(beta))];
                let mut constants = vec![b];
                let mut operands = vec!["x0", "c0"];
                if let Some(shape) = &c {
                    constants.push(random.tensor(shape));
                    operands.push("c1");
                }
                case(one("Gemm", &[(F32, &[7])], &constants, &operands, &attributes, F32)).sums().check();
            }
        }
    }
    let w = [random.tensor(&[7, 5])];
    case(one("Gemm", &[(F32, &[7]), (F32, &[5])], &w, &["x0", "c0", "x1"], &[("beta", 0.5.into())], F32))
        .sums()
        .check();
    let halves = [halved(&w[0]), halved(&random.tensor(&[5]))];
    case(one("Gemm", &[(F16, &[7])], &halves, &["x0", "c0", "c1"], &[], F16)).sums().check();
    // A column of lanes: A is [K, M].
    let columns = lanes::onnx::onnx::build::ModelBuilder::new(13)
        .input("x0", F32, &["7", "batch"])
        .tensor("c0", &w[0])
        .node("Gemm", &["x0", "c0"], &["y"], &[("transA", 1.into())]);
    case(columns.output("y", F32, &["batch", "5"])).sums().check();
}

/// Products that are added, biased and bent become one.
#[test]
fn products_fuse_with_what_follows() {
    let mut random = Random(7);
    for function in ["Relu", "Sigmoid", "Tanh", "Neg"] {
        let fused = model(
            18,
            &[(F32, &[3, 7]), (F32, &[3, 4])],
            &[random.tensor(&[7, 5]), random.tensor(&[4, 5]), random.tensor(&[5])],
        )
        .node("MatMul", &["x0", "c0"], &["a"], &[])
        .node("MatMul", &["x1", "c1"], &["b"], &[])
        .node("Add", &["a", "b"], &["s"], &[])
        .node("Add", &["c2", "s"], &["t"], &[])
        .node(function, &["t"], &["y"], &[])
        .node("Mul", &["t", "y"], &["z"], &[]);
        case(fused.clone().output("y", F32, &["?", "?"])).sums().check();
        case(fused.clone().output("z", F32, &["?", "?"])).sums().check();
        case(fused.output("s", F32, &["?", "?"]).output("y", F32, &["?", "?"])).sums().check();
    }
    // A row of biases that is not along the last axis, and one that is square: both are no bias.
    for shape in [&[5, 1][..], &[5, 5]] {
        let square = model(18, &[(F32, &[5, 7])], &[random.tensor(&[7, 5]), random.tensor(shape)])
            .node("MatMul", &["x0", "c0"], &["a"], &[])
            .node("Add", &["a", "c1"], &["y"], &[]);
        case(square.output("y", F32, &["?", "?"])).sums().check();
    }
    // Of all rows only some go on: as many elements as a part of every row has.
    for (rows, some) in [(2, 1), (4, 1), (4, 2), (6, 3)] {
        let constants = [random.tensor(&[7, 12]), ints(&[0]), ints(&[some]), ints(&[1])];
        let part = model(18, &[(F32, &[rows, 7])], &constants)
            .node("MatMul", &["x0", "c0"], &["a"], &[])
            .node("Slice", &["a", "c1", "c2", "c3"], &["some"], &[])
            .node("Tanh", &["some"], &["y"], &[]);
        case(part.output("y", F32, &["?", "?"])).sums().check();
    }
}

type Geometry<'a> = (&'a [usize], &'a [usize], &'a [(&'static str, Value)]);

#[test]
fn convolutions_of_every_geometry() {
    let mut random = Random(8);
    let cases: &[Geometry<'_>] = &[
        (&[3, 9], &[4, 3, 3], &[]),
        (&[1, 9], &[4, 1, 3], &[]),
        (&[3, 9], &[1, 3, 1], &[]),
        (&[3, 9], &[4, 3, 3], &[("pads", [1, 2].into()), ("strides", [2].into())]),
        (&[3, 9], &[4, 3, 3], &[("dilations", [2].into()), ("pads", [2, 0].into())]),
        (&[1, 9], &[2, 1, 3], &[("dilations", [2].into()), ("strides", [2].into())]),
        (&[4, 9], &[6, 2, 3], &[("group", 2.into())]),
        (&[4, 9], &[4, 1, 3], &[("group", 4.into()), ("pads", [1, 1].into())]),
        (&[4, 9], &[8, 1, 3], &[("group", 4.into())]),
        (&[20, 40], &[20, 1, 31], &[("group", 20.into())]),
        (&[3, 70], &[3, 1, 65], &[("group", 3.into())]),
        (&[2, 5, 6], &[3, 2, 3, 2], &[]),
        (&[1, 5, 6], &[3, 1, 3, 2], &[("pads", [1, 0, 2, 1].into()), ("strides", [2, 1].into())]),
        (&[2, 5, 6], &[3, 2, 2, 2], &[("dilations", [2, 3].into()), ("pads", [0, 1, 0, 1].into())]),
        (&[4, 5, 6], &[4, 1, 3, 3], &[("group", 4.into()), ("strides", [1, 2].into())]),
        (&[4, 5, 6], &[6, 2, 1, 3], &[("group", 2.into()), ("auto_pad", "SAME_UPPER".into())]),
        (&[2, 3, 4, 5], &[3, 2, 2, 2, 2], &[("pads", [1, 0, 0, 0, 1, 1].into())]),
    ];
    for (x, w, attributes) in cases {
        let constants = [random.tensor(w), random.tensor(&w[..1])];
        for operands in [&["x0", "c0"][..], &["x0", "c0", "c1"]] {
            case(one("Conv", &[(F32, x)], &constants, operands, attributes, F32)).sums().check();
        }
    }
    let halves = [halved(&random.tensor(&[4, 3, 3])), halved(&random.tensor(&[4]))];
    case(one("Conv", &[(F16, &[3, 9])], &halves, &["x0", "c0", "c1"], &[], F16)).sums().check();
}

/// What comes before and after a convolution decides how its operands lie.
#[test]
fn convolutions_in_company() {
    let mut random = Random(9);
    let constants = [random.tensor(&[4, 3, 3]), random.tensor(&[4]), random.tensor(&[5, 4, 2]), random.tensor(&[4, 1])];
    let chain = model(18, &[(F32, &[3, 9])], &constants)
        .node("Conv", &["x0", "c0", "c1"], &["a"], &[("pads", [2, 0].into())])
        .node("Relu", &["a"], &["b"], &[])
        .node("Add", &["b", "c3"], &["c"], &[])
        .node("Conv", &["c", "c2"], &["d"], &[])
        .node("Tanh", &["d"], &["e"], &[])
        .node("Transpose", &["e"], &["y"], &[("perm", [0, 2, 1].into())]);
    case(chain.clone().output("y", F32, &["?", "?"])).sums().check();
    case(chain.output("y", F32, &["?", "?"]).output("b", F32, &["?", "?"]).output("d", F32, &["?", "?"]))
        .sums()
        .check();
    let turned = model(18, &[(F32, &[9, 3])], &constants)
        .node("Transpose", &["x0"], &["t"], &[("perm", [0, 2, 1].into())])
        .node("Conv", &["t", "c0"], &["a"], &[])
        .node("Add", &["a", "c3"], &["y"], &[]);
    case(turned.output("y", F32, &["?", "?"])).sums().check();
    // Frames as a batch within a lane.
    let batched = model(18, &[(F32, &[2, 3, 9])], &[constants[0].clone(), crate::harness::ints(&[-1, 3, 9])])
        .node("Reshape", &["x0", "c1"], &["r"], &[])
        .node("Conv", &["r", "c0"], &["f"], &[])
        .node("Reshape", &["f", "c2"], &["y"], &[])
        .tensor("c2", &crate::harness::ints(&[-1, 2, 4, 7]));
    case(batched.output("y", F32, &["?", "?"])).sums().check();
}
