//! Operators whose form differs between opsets, and recurrences against a plain model. (ONNX's own node cases run
//! through `examples/onnx_cases.rs`, which needs its test data.)

use crate::{close, import, turn};
use lanes_core::DType::F32;
use lanes_model::Tensor;
use lanes_model::onnx::build::{ModelBuilder, Value};

fn ints(values: &[i64]) -> Tensor {
    Tensor::from_vec(vec![values.len()], values.to_vec())
}

/// One lane of `[batch, 4]` through a model of `nodes`.
#[track_caller]
fn check(opset: i64, x: [f32; 4], nodes: impl Fn(ModelBuilder) -> ModelBuilder, wanted: &[f64]) {
    let model = nodes(ModelBuilder::new(opset).input("x", F32, &["batch", "4"])).output("y", F32, &["?", "?"]);
    let model = import(model.encode()).unwrap();
    close(&turn(&model, &[vec![x.to_vec()]])[0][0], wanted);
}

#[test]
fn forms_of_earlier_opsets_mean_the_same() {
    let x = [-2.0, 0.5, 3.0, 8.0];
    let clipped = [-1.0, 0.5, 3.0, 4.0];
    check(7, x, |m| m.node("Clip", &["x"], &["y"], &[("min", (-1f32).into()), ("max", 4f32.into())]), &clipped);
    let bounds = |m: ModelBuilder| m.tensor("low", &Tensor::scalar(-1f32)).tensor("high", &Tensor::scalar(4f32));
    check(11, x, |m| bounds(m).node("Clip", &["x", "low", "high"], &["y"], &[]), &clipped);
    check(13, x, |m| bounds(m).node("Clip", &["x", "", "high"], &["y"], &[]), &[-2.0, 0.5, 3.0, 4.0]);

    let padded = [3.0, 0.5, -2.0, 0.5, 3.0, 8.0, 3.0];
    let reflect = || ("mode", Value::from("reflect"));
    check(7, x, |m| m.node("Pad", &["x"], &["y"], &[("pads", [0, 2, 0, 1].into()), reflect()]), &padded);
    check(11, x, |m| m.tensor("p", &ints(&[0, 2, 0, 1])).node("Pad", &["x", "p"], &["y"], &[reflect()]), &padded);
    let by_axis = |m: ModelBuilder| m.tensor("p", &ints(&[2, 1])).tensor("axes", &ints(&[-1]));
    check(18, x, |m| by_axis(m).node("Pad", &["x", "p", "", "axes"], &["y"], &[reflect()]), &padded);
    check(
        7,
        x,
        |m| m.node("Pad", &["x"], &["y"], &[("pads", [0, 1, 0, -2].into()), ("value", 9f32.into())]),
        &[9.0, -2.0, 0.5],
    );
    let edge = |m: ModelBuilder| {
        m.tensor("p", &ints(&[0, 1, 0, 2])).node("Pad", &["x", "p"], &["y"], &[("mode", "edge".into())])
    };
    check(13, x, edge, &[-2.0, -2.0, 0.5, 3.0, 8.0, 8.0, 8.0]);

    let part = [0.5, 3.0];
    check(
        9,
        x,
        |m| m.node("Slice", &["x"], &["y"], &[("starts", [1].into()), ("ends", [-1].into()), ("axes", [1].into())]),
        &part,
    );
    let given = |m: ModelBuilder| m.tensor("from", &ints(&[1])).tensor("to", &ints(&[-1])).tensor("axes", &ints(&[1]));
    check(10, x, |m| given(m).node("Slice", &["x", "from", "to", "axes"], &["y"], &[]), &part);

    let second = [3.0, 8.0];
    check(11, x, |m| m.node("Split", &["x"], &["a", "y"], &[("axis", 1.into()), ("split", [2, 2].into())]), &second);
    check(
        13,
        x,
        |m| m.tensor("s", &ints(&[1, 3])).node("Split", &["x", "s"], &["y", "b"], &[("axis", 1.into())]),
        &[-2.0],
    );
    check(
        18,
        x,
        |m| m.node("Split", &["x"], &["a", "b", "y"], &[("axis", 1.into()), ("num_outputs", 3.into())]),
        &[0.0; 0],
    );

    let total = [9.5];
    check(11, x, |m| m.node("ReduceSum", &["x"], &["y"], &[("axes", [1].into())]), &total);
    check(13, x, |m| m.tensor("axes", &ints(&[1])).node("ReduceSum", &["x", "axes"], &["y"], &[]), &total);
    check(18, x, |m| m.node("ReduceSum", &["x"], &["y"], &[("noop_with_empty_axes", 1.into())]), &x.map(f64::from));

    let there = |m: ModelBuilder| m.node("Unsqueeze", &["x"], &["u"], &[("axes", [0, 3].into())]);
    check(11, x, |m| there(m).node("Squeeze", &["u"], &["y"], &[("axes", [3, 0].into())]), &x.map(f64::from));
}

/// `auto_pad` keeps `ceil(size / stride)` places; groups keep channels apart.
#[test]
fn convolutions_pad_and_group() {
    let line = |attributes: &[(&str, Value)], wanted: &[f64]| {
        let model = ModelBuilder::new(13)
            .input("x", F32, &["batch", "2", "5"])
            .tensor("w", &Tensor::from_vec(vec![2, 1, 2], vec![1f32, 10.0, 1.0, -1.0]))
            .tensor("b", &Tensor::from_vec(vec![2], vec![0f32, 0.5]))
            .node("Conv", &["x", "w", "b"], &["y"], &[attributes, &[("group", 2.into())]].concat())
            .output("y", F32, &["batch", "2", "?"]);
        let model = import(model.encode()).unwrap();
        let x: Vec<f32> = (1..=10).map(|x| x as f32).collect();
        close(&turn(&model, &[vec![x]])[0][0], wanted);
    };
    // Channel 0 is 1..=5 with weights 1, 10; channel 1 is 6..=10 with weights 1, -1 and bias 0.5.
    line(&[], &[21.0, 32.0, 43.0, 54.0, -0.5, -0.5, -0.5, -0.5]);
    line(&[("auto_pad", "SAME_UPPER".into())], &[21.0, 32.0, 43.0, 54.0, 5.0, -0.5, -0.5, -0.5, -0.5, 10.5]);
    line(&[("auto_pad", "SAME_LOWER".into())], &[10.0, 21.0, 32.0, 43.0, 54.0, -5.5, -0.5, -0.5, -0.5, -0.5]);
    line(&[("auto_pad", "SAME_UPPER".into()), ("strides", [2].into())], &[21.0, 43.0, 5.0, -0.5, -0.5, 10.5]);
    line(&[("pads", [1, 0].into()), ("dilations", [2].into())], &[20.0, 31.0, 42.0, 53.0, -6.5, -1.5, -1.5, -1.5]);
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Cells of one hidden unit and one input, so that the formulas of the operators can be written out.
#[test]
fn recurrences_follow_their_formulas() {
    let steps = [0.5f32, -1.0, 2.0];
    let run = |op: &str, gates: &[f32], more: &[(&str, Value)], inputs: &[&str], output: &str| {
        let count = gates.len();
        let w: Vec<f32> = gates.to_vec();
        let r: Vec<f32> = gates.iter().map(|gate| 0.5 - gate).collect();
        let b: Vec<f32> = (0..2 * count).map(|at| at as f32 / 8.0).collect();
        let model = ModelBuilder::new(14)
            .input("x", F32, &["3", "batch", "1"])
            .tensor("w", &Tensor::from_vec(vec![1, count, 1], w))
            .tensor("r", &Tensor::from_vec(vec![1, count, 1], r))
            .tensor("b", &Tensor::from_vec(vec![1, 2 * count], b))
            .tensor("p", &Tensor::from_vec(vec![1, 3], vec![0.3f32, -0.2, 0.1]))
            .tensor("h0", &Tensor::from_vec(vec![1, 1, 1], vec![0.25f32]))
            .tensor("c0", &Tensor::from_vec(vec![1, 1, 1], vec![-0.5f32]))
            .tensor("lengths", &Tensor::from_vec(vec![1], vec![2i32]))
            .node(op, inputs, &["y", "y_h"], more)
            .output(output, F32, &["?", "?", "?", "?"]);
        let model = import(model.encode()).unwrap();
        turn(&model, &[vec![steps.to_vec()]])[0][0].clone()
    };
    let x: Vec<f64> = steps.iter().map(|&x| x.into()).collect();

    // LSTM with peepholes; gates i, o, f, c.
    let w = [0.7, -0.3, 0.2, 0.9];
    let (mut h, mut c, mut y) = (0.25, -0.5, Vec::new());
    let w64 = w.map(|w: f32| f64::from(w));
    let gate = |at: usize, x: f64, h: f64| w64[at] * x + (0.5 - w64[at]) * h + at as f64 / 8.0 + (at + 4) as f64 / 8.0;
    for &x in &x {
        let i = sigmoid(gate(0, x, h) + f64::from(0.3f32) * c);
        let f = sigmoid(gate(2, x, h) + f64::from(0.1f32) * c);
        let next = f * c + i * gate(3, x, h).tanh();
        let o = sigmoid(gate(1, x, h) - f64::from(0.2f32) * next);
        (h, c) = (o * next.tanh(), next);
        y.push(h);
    }
    close(&run("LSTM", &w, &[], &["x", "w", "r", "b", "", "h0", "c0", "p"], "y"), &y);

    // GRU, both forms; gates z, r, h.
    let w = [0.7, -0.3, 0.9];
    let w64 = w.map(|w: f32| f64::from(w));
    for linear in [false, true] {
        let (mut h, mut y) = (0.25, Vec::new());
        let part = |at: usize, x: f64| w64[at] * x + at as f64 / 8.0;
        let back = |at: usize, h: f64| (0.5 - w64[at]) * h + (at + 3) as f64 / 8.0;
        for &x in &x {
            let z = sigmoid(part(0, x) + back(0, h));
            let r = sigmoid(part(1, x) + back(1, h));
            let candidate = if linear { part(2, x) + r * back(2, h) } else { part(2, x) + back(2, r * h) };
            h = (1.0 - z) * candidate.tanh() + z * h;
            y.push(h);
        }
        let form = [("linear_before_reset", Value::from(i64::from(linear)))];
        close(&run("GRU", &w, &form, &["x", "w", "r", "b", "", "h0"], "y"), &y);
    }

    // RNN from its last step to its first, of which it has two; clipped; another function.
    let more = [
        ("direction", "reverse".into()),
        ("activations", Value::Texts(vec!["ScaledTanh"])),
        ("activation_alpha", Value::Floats(vec![2.0])),
        ("activation_beta", Value::Floats(vec![0.5])),
        ("clip", 0.25f32.into()),
    ];
    let (mut h, mut y) = (0.25, [0.0; 3]);
    for at in [1, 0] {
        let sum: f64 = f64::from(0.7f32) * x[at] + (0.5 - f64::from(0.7f32)) * h + 1.0 / 8.0;
        h = 2.0 * (0.5 * sum.clamp(-0.25, 0.25)).tanh();
        y[at] = h;
    }
    close(&run("RNN", &[0.7], &more, &["x", "w", "r", "b", "lengths", "h0"], "y"), &y);
    close(&run("RNN", &[0.7], &more, &["x", "w", "r", "b", "lengths", "h0"], "y_h"), &[h]);
}

/// Batch first gives what steps first gives, in its own order of axes.
#[test]
fn layout_only_names_axes() {
    let model = |layout: i64| {
        let dims: [&str; 3] = if layout == 1 { ["batch", "3", "2"] } else { ["3", "batch", "2"] };
        let weights = |count: usize| (0..count).map(|at| ((at * 7) % 5) as f32 / 4.0 - 0.5).collect::<Vec<_>>();
        let model = ModelBuilder::new(14)
            .input("x", F32, &dims)
            .tensor("w", &Tensor::from_vec(vec![2, 6, 2], weights(24)))
            .tensor("r", &Tensor::from_vec(vec![2, 6, 2], weights(24)))
            .node(
                "GRU",
                &["x", "w", "r"],
                &["y", "h"],
                &[("layout", layout.into()), ("direction", "bidirectional".into())],
            )
            .output("y", F32, &["?", "?", "?", "?"])
            .output("h", F32, &["?", "?", "?"]);
        import(model.encode()).unwrap()
    };
    let x = [vec![vec![0.5f32, -1.0, 2.0, 0.25, -0.75, 1.5]]];
    let (steps_first, batch_first) = (model(0), model(1));
    assert_eq!(turn(&steps_first, &x), turn(&batch_first, &x));
    assert_eq!((steps_first.lane_axes["y"], batch_first.lane_axes["y"]), (2, 0));
    assert_eq!((steps_first.lane_axes["h"], batch_first.lane_axes["h"]), (1, 0));
}

/// Sums are f64: three f32 that cancel leave the small one.
#[test]
fn sums_are_rounded_once() {
    check(
        13,
        [1e8, 1.0, -1e8, 0.0],
        |m| m.node("ReduceSum", &["x", "a"], &["y"], &[]).tensor("a", &ints(&[1])),
        &[1.0],
    );
}

/// A line of three through `op`, with the weights 1 and 10 where it takes some.
#[track_caller]
fn line(op: &str, opset: i64, attributes: &[(&str, Value)], wanted: &[f64]) {
    let inputs: &[&str] = if op == "ConvTranspose" { &["x", "w"] } else { &["x"] };
    let model = ModelBuilder::new(opset)
        .input("x", F32, &["batch", "1", "3"])
        .tensor("w", &Tensor::from_vec(vec![1, 1, 2], vec![1f32, 10.0]))
        .node(op, inputs, &["y"], attributes)
        .output("y", F32, &["batch", "1", "?"]);
    let model = import(model.encode()).unwrap();
    close(&turn(&model, &[vec![vec![1.0, 2.0, -3.0]]])[0][0], wanted);
    assert_eq!(model.lane_axes["y"], 0);
}

#[test]
fn transposed_convolutions_and_pools_are_composed_exactly() {
    let stride = || ("strides", Value::from([2]));
    line("ConvTranspose", 13, &[], &[1.0, 12.0, 17.0, -30.0]);
    line("ConvTranspose", 13, &[stride()], &[1.0, 10.0, 2.0, 20.0, -3.0, -30.0]);
    line("ConvTranspose", 13, &[stride(), ("pads", [1, 2].into())], &[10.0, 2.0, 20.0]);
    line("ConvTranspose", 13, &[stride(), ("output_padding", [1].into())], &[1.0, 10.0, 2.0, 20.0, -3.0, -30.0, 0.0]);
    line("ConvTranspose", 13, &[("dilations", [2].into())], &[1.0, 2.0, 7.0, 20.0, -30.0]);
    let kernel = || ("kernel_shape", Value::from([2]));
    line("MaxPool", 13, &[kernel()], &[2.0, 2.0]);
    line("MaxPool", 13, &[kernel(), ("pads", [0, 1].into())], &[2.0, 2.0, -3.0]);
    line("AveragePool", 13, &[kernel(), ("pads", [1, 1].into())], &[1.0, 1.5, -0.5, -3.0]);
    line(
        "AveragePool",
        13,
        &[kernel(), ("pads", [1, 1].into()), ("count_include_pad", 1.into())],
        &[0.5, 1.5, -0.5, -1.5],
    );
}

#[test]
fn rarer_operators_are_composed_exactly() {
    let x = [-2.0, 0.5, 3.0, 3.0];
    let to_float = |m: ModelBuilder| m.node("Cast", &["i"], &["y"], &[("to", 1.into())]);
    check(13, x, |m| to_float(m.node("ArgMax", &["x"], &["i"], &[("axis", 1.into())])), &[2.0]);
    let last = || ("select_last_index", Value::from(1));
    check(13, x, |m| to_float(m.node("ArgMax", &["x"], &["i"], &[("axis", 1.into()), last()])), &[3.0]);
    check(13, x, |m| to_float(m.node("ArgMin", &["x"], &["i"], &[("axis", 1.into())])), &[0.0]);
    check(13, x, |m| m.node("Sign", &["x"], &["y"], &[]), &[-1.0, 1.0, 1.0, 1.0]);
    check(
        13,
        x,
        |m| m.tensor("r", &ints(&[1, 2])).node("Tile", &["x", "r"], &["y"], &[]),
        &[-2.0, 0.5, 3.0, 3.0, -2.0, 0.5, 3.0, 3.0],
    );
    check(13, x, |m| m.node("ReduceL2", &["x"], &["y"], &[("axes", [1].into())]), &[22.25f64.sqrt()]);
    check(13, x, |m| m.node("Softsign", &["x"], &["y"], &[]), &[-2.0 / 3.0, 1.0 / 3.0, 0.75, 0.75]);
    // The second and third result of a normalisation.
    let scale = |m: ModelBuilder| m.tensor("s", &Tensor::from_vec(vec![4], vec![1f32; 4]));
    let norm =
        |m: ModelBuilder| m.node("LayerNormalization", &["x", "s"], &["a", "mean", "y"], &[("epsilon", 0f32.into())]);
    let variance = [-3.125f64, -0.625, 1.875, 1.875].map(|x| x * x).iter().sum::<f64>() / 4.0;
    check(17, x, |m| norm(scale(m)), &[1.0 / variance.sqrt()]);
}

/// What an exporter writes for an assignment to a slice, `cache[:, :, 1:3] = new` and `cache[:, 1] = new`.
#[test]
fn a_block_is_scattered() {
    let model = |places: Tensor, updates: &[&str]| {
        ModelBuilder::new(16)
            .input("x", F32, &["1", "2", "3"])
            .input("u", F32, updates)
            .tensor("i", &places)
            .node("ScatterND", &["x", "i", "u"], &["y"], &[])
            .output("y", F32, &["1", "2", "3"])
    };
    let x: Vec<f32> = (0..6).map(|x| x as f32).collect();
    let cells: Vec<i64> = (0..2).flat_map(|row| [-2, 2].map(|column| [0, row, column])).flatten().collect();
    let cells = Tensor::from_vec(vec![1, 2, 2, 3], cells);
    let found = import(model(cells, &["1", "2", "2"]).encode()).unwrap();
    assert_eq!((found.lane_axes["x"], found.lane_axes["y"]), (0, 0));
    let found = turn(&found, &[vec![x.clone(), vec![10.0, 11.0, 12.0, 13.0]]]);
    close(&found[0][0], &[0.0, 10.0, 11.0, 3.0, 12.0, 13.0]);
    let row = Tensor::from_vec(vec![1, 1, 2], vec![0i64, 1]);
    let found = turn(&import(model(row, &["1", "1", "3"]).encode()).unwrap(), &[vec![x, vec![7.0, 8.0, 9.0]]]);
    close(&found[0][0], &[0.0, 1.0, 2.0, 7.0, 8.0, 9.0]);

    // Places that are no block, and places out of bounds.
    for (places, says) in
        [([0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 2], "one block"), ([0, 0, 0, 0, 0, 3, 0, 1, 0, 0, 1, 3], "index 3")]
    {
        let places = Tensor::from_vec(vec![1, 2, 2, 3], places.to_vec());
        let error = import(model(places, &["1", "2", "2"]).encode()).unwrap_err().to_string();
        assert!(error.contains("ScatterND_y") && error.contains(says), "{error}");
    }
    // A batch that the file leaves open is not written to by place.
    let open = ModelBuilder::new(16)
        .input("x", F32, &["batch", "3"])
        .tensor("i", &Tensor::from_vec(vec![1, 1], vec![0i64]))
        .tensor("u", &Tensor::from_vec(vec![1, 3], vec![0f32; 3]))
        .node("ScatterND", &["x", "i", "u"], &["y"], &[])
        .output("y", F32, &["batch", "3"]);
    let error = import(open.encode()).unwrap_err().to_string();
    assert!(error.contains("mixes lanes") && error.contains("axis 0"), "{error}");
}

#[test]
fn places_are_compared_and_counted_in_rings() {
    let to_ints = |m: ModelBuilder| m.node("Cast", &["x"], &["i"], &[("to", 7.into())]);
    let to_float = |m: ModelBuilder| m.node("Cast", &["z"], &["y"], &[("to", 1.into())]);
    let by = |divisor: i64| {
        move |m: ModelBuilder| {
            to_float(to_ints(m).tensor("d", &Tensor::scalar(divisor)).node("Mod", &["i", "d"], &["z"], &[]))
        }
    };
    let x = [-7.0, 7.0, -6.0, 2.0];
    check(13, x, by(3), &[2.0, 1.0, 0.0, 2.0]);
    check(13, x, by(-3), &[-1.0, -2.0, 0.0, -1.0]);
    let c =
        |m: ModelBuilder| m.tensor("d", &Tensor::scalar(3i64)).node("Mod", &["i", "d"], &["z"], &[("fmod", 1.into())]);
    check(13, x, |m| to_float(c(to_ints(m))), &[-1.0, 1.0, 0.0, 2.0]);

    let hot = |m: ModelBuilder| {
        to_ints(m)
            .tensor("depth", &Tensor::scalar(3i64))
            .tensor("values", &Tensor::from_vec(vec![2], vec![-1f32, 1.0]))
            .node("OneHot", &["i", "depth", "values"], &["y"], &[])
    };
    // From the end, and nowhere.
    check(13, [0.0, 2.0, -2.0, 3.0], hot, &[1.0, -1.0, -1.0, -1.0, -1.0, 1.0, -1.0, 1.0, -1.0, -1.0, -1.0, -1.0]);

    let half = |upper: i64, k: i64| {
        move |m: ModelBuilder| {
            m.tensor("s", &ints(&[-1, 2, 2]))
                .tensor("k", &Tensor::scalar(k))
                .node("Reshape", &["x", "s"], &["z"], &[])
                .node("Trilu", &["z", "k"], &["y"], &[("upper", upper.into())])
        }
    };
    let x = [1.0, 2.0, 3.0, 4.0];
    check(14, x, half(1, 0), &[1.0, 2.0, 0.0, 4.0]);
    check(14, x, half(0, 0), &[1.0, 0.0, 3.0, 4.0]);
    check(14, x, half(1, 1), &[0.0, 2.0, 0.0, 0.0]);
    check(14, x, half(0, -1), &[0.0, 0.0, 3.0, 0.0]);
}

/// Attention by heads, as it is written with labels: q and k have two entries, of two heads of two.
#[test]
fn labels_are_summed() {
    let heads = |equation: &'static str, second: &'static str| {
        ModelBuilder::new(13)
            .input("q", F32, &["batch", "2", "2", "2"])
            .input("k", F32, &["batch", "2", "2", "2"])
            .node("Einsum", &["q", second], &["y"], &[("equation", equation.into())])
            .output("y", F32, &["?", "?", "?", "?"])
    };
    let q: Vec<f32> = (1..=8).map(|x| x as f32).collect();
    let k: Vec<f32> = [1, -1, 2, 0, 3, 1, -2, 5].map(|x| x as f32).to_vec();
    let at = |x: &[f32], i: usize, h: usize, d: usize| f64::from(x[4 * i + 2 * h + d]);
    let model = import(heads("bihd, bjhd -> bhij", "k").encode()).unwrap();
    assert_eq!(model.lane_axes["y"], 0);
    let mut wanted = Vec::new();
    for (h, i, j) in (0..8).map(|n| (n >> 2, n >> 1 & 1, n & 1)) {
        wanted.push((0..2).map(|d| at(&q, i, h, d) * at(&k, j, h, d)).sum::<f64>());
    }
    let other: Vec<f32> = q.iter().map(|x| 3.0 * x).collect();
    let found = turn(&model, &[vec![q.clone(), k.clone()], vec![other, k.clone()]]);
    close(&found[0][0], &wanted);
    close(&found[1][0], &wanted.iter().map(|x| 3.0 * x).collect::<Vec<_>>());

    // Merged axes part again, one operand alone is summed, and the result's order is what is asked for.
    let model = import(heads("bihd,bihe->bedh", "k").encode()).unwrap();
    let mut wanted = Vec::new();
    for (e, d, h) in (0..8).map(|n| (n >> 2, n >> 1 & 1, n & 1)) {
        wanted.push((0..2).map(|i| at(&q, i, h, d) * at(&k, i, h, e)).sum::<f64>());
    }
    close(&turn(&model, &[vec![q.clone(), k.clone()]])[0][0], &wanted);
    let model = import(heads("bihd,bjke->bid", "k").encode()).unwrap();
    let total: f64 = k.iter().map(|&x| f64::from(x)).sum();
    let wanted: Vec<f64> = (0..4).map(|n| (0..2).map(|h| at(&q, n >> 1, h, n & 1)).sum::<f64>() * total).collect();
    close(&turn(&model, &[vec![q, k]])[0][0], &wanted);

    for (equation, says) in [
        ("bihd,bjhd->hij", "mixes lanes"),
        ("b...,b...->b", "ellipsis"),
        ("bihh,bihd->bid", "diagonal"),
        ("bi,bj->bij", "equation"),
    ] {
        let error = import(heads(equation, "k").encode()).unwrap_err().to_string();
        assert!(error.contains("Einsum_y") && error.contains(says), "{error}");
    }
}
