//! LSTM, GRU and RNN with all their attributes.

use crate::harness::{Random, case};
use half::f16;
use lanes::DType::*;
use lanes::lanes::{Capacity, LanedModel};
use lanes::onnx::onnx::build::{ModelBuilder, Value};
use lanes::onnx::{ImportOptions, Tensor, load_bytes};
use lanes::{OpenOptions, planned};

const INPUT: usize = 3;
const HIDDEN: usize = 5;

/// A recurrence over `steps` steps with its states kept by the lanes. Which optional operands: bias, initial, peepholes.
fn recurrence(op: &str, steps: usize, directions: usize, optional: [bool; 3], more: &[(&str, Value)]) -> ModelBuilder {
    let gates = match op {
        "LSTM" => 4,
        "GRU" => 3,
        _ => 1,
    };
    let batch_first = more.iter().any(|(name, _)| *name == "layout");
    let (steps, width, d, h) = (steps.to_string(), INPUT.to_string(), directions.to_string(), HIDDEN.to_string());
    let x_dims = if batch_first { ["batch", &steps, &width] } else { [&steps[..], "batch", &width] };
    let h_dims = if batch_first { ["batch", &d, &h] } else { [&d[..], "batch", &h] };
    let mut random = Random(directions as u64);
    let mut model = ModelBuilder::new(14)
        .input("x", F32, &x_dims)
        .tensor("w", &random.tensor(&[directions, gates * HIDDEN, INPUT]))
        .tensor("r", &random.tensor(&[directions, gates * HIDDEN, HIDDEN]))
        .tensor("b", &random.tensor(&[directions, 2 * gates * HIDDEN]))
        .tensor("p", &random.tensor(&[directions, 3 * HIDDEN]));
    let [bias, initial, peepholes] = optional;
    let name = |wanted: bool, name: &'static str| if wanted { name } else { "" };
    let mut operands = vec!["x", "w", "r", name(bias, "b"), "", name(initial, "h")];
    let mut results = vec!["y", "next_h"];
    if op == "LSTM" {
        operands.extend([name(initial, "c"), name(peepholes, "p")]);
        results.push("next_c");
    }
    if initial {
        model = model.input("h", F32, &h_dims);
        if op == "LSTM" {
            model = model.input("c", F32, &h_dims);
        }
    }
    let mut model = model
        .node(op, &operands, &results, &[more, &[("hidden_size", (HIDDEN as i64).into())]].concat())
        .output("y", F32, &["?"; 4])
        .output("next_h", F32, &h_dims);
    if op == "LSTM" {
        model = model.output("next_c", F32, &h_dims);
    }
    model
}

#[test]
fn cells_in_every_form() {
    for op in ["LSTM", "GRU", "RNN"] {
        for bias in [false, true] {
            for initial in [false, true] {
                case(recurrence(op, 1, 1, [bias, initial, false], &[])).sums().check();
            }
        }
        for (direction, count) in [("forward", 1), ("reverse", 1), ("bidirectional", 2)] {
            let direction = ("direction", Value::from(direction));
            case(recurrence(op, 3, count, [true, true, false], std::slice::from_ref(&direction))).sums().check();
            let batch_first = [direction, ("layout", 1.into())];
            case(recurrence(op, 3, count, [true, true, false], &batch_first)).sums().check();
        }
        case(recurrence(op, 2, 1, [true, true, false], &[("clip", 0.5.into())])).sums().check();
    }
    let linear = ("linear_before_reset", Value::from(1));
    for bias in [false, true] {
        case(recurrence("GRU", 2, 1, [bias, true, false], std::slice::from_ref(&linear))).sums().check();
        case(recurrence("LSTM", 2, 1, [bias, true, true], &[])).sums().check();
    }
    case(recurrence("LSTM", 2, 1, [true, true, true], &[("input_forget", 1.into()), ("clip", 1.0.into())]))
        .sums()
        .check();
    let both = [linear, ("direction", "bidirectional".into()), ("clip", 0.25.into())];
    case(recurrence("GRU", 2, 2, [true, true, false], &both)).sums().check();
}

#[test]
fn every_activation() {
    for function in [
        "Relu",
        "Tanh",
        "Sigmoid",
        "Affine",
        "LeakyRelu",
        "ThresholdedRelu",
        "ScaledTanh",
        "HardSigmoid",
        "Elu",
        "Softsign",
        "Softplus",
    ] {
        let attributes = [
            ("activations", Value::Texts(vec![function])),
            ("activation_alpha", Value::Floats(vec![0.25])),
            ("activation_beta", Value::Floats(vec![0.5])),
            // Without a bound, growing functions leave f32's range.
            ("clip", 4.0.into()),
        ];
        case(recurrence("RNN", 2, 1, [true, true, false], &attributes)).sums().check();
    }
    let three = [("activations", Value::Texts(vec!["HardSigmoid", "Softsign", "Relu"]))];
    case(recurrence("LSTM", 2, 1, [true, false, true], &three)).sums().check();
    let two = [("activations", Value::Texts(vec!["HardSigmoid", "Elu"])), ("clip", 4.0.into())];
    case(recurrence("GRU", 2, 1, [true, true, false], &two)).sums().check();
}

/// A length that is known cuts the sequence: zeros past it, and the last step is the length's.
#[test]
fn known_lengths() {
    for (op, length) in [("LSTM", 2i32), ("GRU", 0), ("RNN", 3), ("GRU", 1)] {
        let gates =
            [("LSTM", 4), ("GRU", 3), ("RNN", 1)].iter().find(|(name, _)| *name == op).map_or(1, |found| found.1);
        let mut random = Random(11);
        let model = ModelBuilder::new(14)
            .input("x", F32, &["3", "batch", "3"])
            .tensor("w", &random.tensor(&[2, gates * HIDDEN, INPUT]))
            .tensor("r", &random.tensor(&[2, gates * HIDDEN, HIDDEN]))
            .tensor("n", &Tensor::from_vec(vec![1], vec![length]))
            .node(
                op,
                &["x", "w", "r", "", "n"],
                &["y", "y_h"],
                &[("direction", "bidirectional".into()), ("hidden_size", (HIDDEN as i64).into())],
            );
        case(model.output("y", F32, &["?"; 4]).output("y_h", F32, &["?"; 3])).sums().check();
    }
}

/// In half precision each gate rounds as it is stored, so results differ by a few halves' steps.
#[test]
fn cells_of_halves() {
    let mut random = Random(12);
    let mut halves = |shape: &[usize]| {
        let values = (0..shape.iter().product()).map(|_| f16::from_f64(random.unit() / 4.0)).collect();
        Tensor::from_vec(shape.to_vec(), values)
    };
    for (op, gates) in [("LSTM", 4), ("GRU", 3), ("RNN", 1)] {
        let model = ModelBuilder::new(14)
            .input("x", F16, &["2", "batch", "3"])
            .tensor("w", &halves(&[1, gates * HIDDEN, INPUT]))
            .tensor("r", &halves(&[1, gates * HIDDEN, HIDDEN]))
            .tensor("b", &halves(&[1, 2 * gates * HIDDEN]))
            .node(op, &["x", "w", "r", "b"], &["y"], &[("hidden_size", (HIDDEN as i64).into())]);
        case(model.output("y", F16, &["?"; 4])).sums().halves().check();
    }
}

#[test]
fn what_a_device_is_charged_does_not_grow_with_the_steps() {
    for op in ["RNN", "GRU", "LSTM"] {
        let charged = |steps: usize| {
            let bytes = recurrence(op, steps, 2, [true; 3], &[("direction", "bidirectional".into())]).encode();
            let model = load_bytes(bytes, "case", &ImportOptions::default()).expect("the model imports");
            let device =
                lanes::open("cpu", &OpenOptions { threads: Some(1), ..OpenOptions::default() }).expect("cpu opens");
            let mut planned = planned(device.clone(), &model).expect("the model lowers");
            planned.prepare(Capacity { rows: 3, max_seats: 1 }).expect("the device takes the plan");
            assert_eq!(planned.memory().weights, device.memory().used.weights, "{op}");
            planned.memory().weights
        };
        assert!(charged(1) > 0, "{op}");
        assert_eq!(charged(12), charged(1), "{op}");
    }
}
