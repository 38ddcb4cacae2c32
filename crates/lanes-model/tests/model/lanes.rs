//! Lane independence: what is refused, what is computed per lane, and that the numbers are each lane's own. Lanes of
//! very different scale are used, so that anything mixed shows.

use crate::{close, import, turn};
use lanes_core::DType::{F32, I64};
use lanes_model::onnx::build::{ModelBuilder, Value};
use lanes_model::{Dim, ImportOptions, Model, ModelError, Tensor, inspect_bytes, load_bytes};

/// Two lanes, of scale 1 and 3·10⁴.
const SMALL: [f32; 4] = [0.5, -1.0, 0.25, 0.75];
const LARGE: [f32; 4] = [3e4, -1.5e4, 2.0e4, 1.0e4];

fn ints(values: &[i64]) -> Tensor {
    Tensor::from_vec(vec![values.len()], values.to_vec())
}

fn floats(shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    Tensor::from_vec(shape.to_vec(), (0..count).map(|at| at as f32 + 1.0).collect())
}

/// A model of one input `x` `[batch, 4]`.
fn rows(opset: i64) -> ModelBuilder {
    ModelBuilder::new(opset).input("x", F32, &["batch", "4"])
}

/// The refusal of a model, as it reads.
#[track_caller]
fn refusal(bytes: Vec<u8>) -> String {
    match import(bytes) {
        Err(ModelError::MixesLanes(mixes)) => mixes.to_string(),
        Err(other) => panic!("failed otherwise: {other}"),
        Ok(_) => panic!("was imported"),
    }
}

/// An op that names the lane axis is refused, and the refusal names the node and the operator.
#[test]
fn ops_that_name_the_lane_axis_are_refused() {
    let wide = |model: ModelBuilder| model.output("y", F32, &["?", "?"]).encode();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("ReduceMean", wide(rows(13).node("ReduceMean", &["x"], &["y"], &[("axes", [0].into())]))),
        ("ReduceMax", wide(rows(18).tensor("a", &ints(&[0])).node("ReduceMax", &["x", "a"], &["y"], &[]))),
        ("Softmax", wide(rows(13).node("Softmax", &["x"], &["y"], &[("axis", 0.into())]))),
        ("LogSoftmax", wide(rows(13).node("LogSoftmax", &["x"], &["y"], &[("axis", (-2).into())]))),
        ("CumSum", wide(rows(13).tensor("a", &Tensor::scalar(0i64)).node("CumSum", &["x", "a"], &["y"], &[]))),
        (
            "ArgMax",
            wide(rows(13).node("ArgMax", &["x"], &["i"], &[]).node("Cast", &["i"], &["y"], &[("to", 1.into())])),
        ),
        ("TopK", wide(rows(13).tensor("k", &ints(&[1])).node("TopK", &["x", "k"], &["y", "i"], &[("axis", 0.into())]))),
        (
            "Concat",
            wide(rows(13).tensor("c", &floats(&[1, 4])).node("Concat", &["x", "c"], &["y"], &[("axis", 0.into())])),
        ),
        // The last lane, in front of all others.
        (
            "Slice",
            wide(
                rows(13)
                    .tensor("from", &ints(&[-1]))
                    .tensor("to", &ints(&[i64::MAX]))
                    .tensor("axes", &ints(&[0]))
                    .node("Slice", &["x", "from", "to", "axes"], &["y"], &[]),
            ),
        ),
        // Lanes in reverse.
        (
            "Slice",
            wide(
                rows(13)
                    .tensor("from", &ints(&[-1]))
                    .tensor("to", &ints(&[i64::MIN]))
                    .tensor("axes", &ints(&[0]))
                    .tensor("step", &ints(&[-1]))
                    .node("Slice", &["x", "from", "to", "axes", "step"], &["y"], &[]),
            ),
        ),
        ("Gather", wide(rows(13).tensor("i", &ints(&[0])).node("Gather", &["x", "i"], &["y"], &[("axis", 0.into())]))),
        ("Pad", wide(rows(13).tensor("p", &ints(&[1, 0, 0, 0])).node("Pad", &["x", "p"], &["y"], &[]))),
        // Every lane with every other.
        (
            "MatMul",
            wide(rows(13).node("Transpose", &["x"], &["t"], &[("perm", [1, 0].into())]).node(
                "MatMul",
                &["x", "t"],
                &["y"],
                &[],
            )),
        ),
        // A sum over lanes.
        (
            "MatMul",
            wide(rows(13).node("Transpose", &["x"], &["t"], &[("perm", [1, 0].into())]).node(
                "MatMul",
                &["t", "x"],
                &["y"],
                &[],
            )),
        ),
        ("Gemm", wide(rows(13).node("Gemm", &["x", "x"], &["y"], &[("transA", 1.into())]))),
        // A constant with a row for each of three lanes.
        ("Add", wide(rows(13).tensor("c", &floats(&[3, 4])).node("Add", &["x", "c"], &["y"], &[]))),
        ("LayerNormalization", {
            let model = rows(17).tensor("s", &floats(&[1, 4]));
            wide(model.node("LayerNormalization", &["x", "s"], &["y"], &[("axis", 0.into())]))
        }),
        ("BatchNormalization", {
            let model = rows(13).tensor("s", &floats(&[1])).node("Transpose", &["x"], &["t"], &[]);
            wide(model.node("BatchNormalization", &["t", "s", "s", "s", "s"], &["y"], &[]))
        }),
        // Lanes as channels.
        ("Conv", {
            let model = rows(13).tensor("a", &ints(&[0])).tensor("w", &floats(&[2, 1, 3]));
            let model = model.node("Unsqueeze", &["x", "a"], &["u"], &[]).node("Conv", &["u", "w"], &["y"], &[]);
            model.output("y", F32, &["?", "?", "?"]).encode()
        }),
        // The lanes where a recurrence has its steps.
        ("LSTM", {
            let model = ModelBuilder::new(14).input("x", F32, &["batch", "1", "4"]);
            let model = model.tensor("w", &floats(&[1, 8, 4])).tensor("r", &floats(&[1, 8, 2]));
            model.node("LSTM", &["x", "w", "r"], &["y"], &[]).output("y", F32, &["?", "?", "?", "?"]).encode()
        }),
        // [batch, 4] read as [4, batch]: elements of one lane become those of another.
        ("Reshape", wide(rows(13).tensor("s", &ints(&[4, -1])).node("Reshape", &["x", "s"], &["y"], &[]))),
    ];
    for (op, bytes) in cases {
        let text = refusal(bytes.clone());
        assert!(text.contains(&format!("{op}_")) && text.contains(&format!("({op})")), "{op}: {text}");
        let found = inspect_bytes(bytes, "test", &ImportOptions::default()).unwrap();
        assert!(!found.lane_independent, "{op}");
        assert_eq!(found.why, Some(text), "{op}");
    }
}

/// The same ops along another axis are no reason to refuse.
#[test]
fn the_same_ops_along_other_axes_are_imported() {
    let wide = |model: ModelBuilder| model.output("y", F32, &["?", "?"]).encode();
    let cases = [
        wide(rows(13).node("ReduceMean", &["x"], &["y"], &[("axes", [1].into())])),
        wide(rows(13).node("Softmax", &["x"], &["y"], &[])),
        wide(rows(13).tensor("a", &Tensor::scalar(1i64)).node("CumSum", &["x", "a"], &["y"], &[])),
        wide(rows(13).tensor("c", &floats(&[1, 4])).node("Add", &["x", "c"], &["y"], &[])),
        wide(rows(13).tensor("w", &floats(&[4, 3])).node("MatMul", &["x", "w"], &["y"], &[])),
        wide(rows(13).tensor("p", &ints(&[0, 1, 0, 1])).node(
            "Pad",
            &["x", "p"],
            &["y"],
            &[("mode", "reflect".into())],
        )),
    ];
    for bytes in cases {
        let model = import(bytes).unwrap();
        assert_eq!(model.per_lane, []);
        assert_eq!(model.lane_axes["y"], 0);
    }
}

/// Two lanes through `model`, against `expected` of each.
fn both_lanes(model: &Model, expected: impl Fn(&[f64]) -> Vec<f64>) {
    let found = turn(model, &[vec![SMALL.to_vec()], vec![LARGE.to_vec()]]);
    for (lane, outputs) in [SMALL, LARGE].iter().zip(found) {
        let lane: Vec<f64> = lane.iter().map(|&x| x.into()).collect();
        close(&outputs[0], &expected(&lane));
    }
}

/// An op that takes the lane axis in by default is computed per lane, and listed.
#[test]
fn ops_that_take_lanes_in_by_default_are_computed_per_lane() {
    let listed = |model: &Model, op: &str| {
        assert!(model.per_lane.iter().any(|note| note.op == op && note.node.starts_with(op)), "{:?}", model.per_lane);
    };
    // A scale of the whole tensor.
    let scaled = rows(13)
        .node("Abs", &["x"], &["abs"], &[])
        .node("ReduceMax", &["abs"], &["peak"], &[("keepdims", 0.into())])
        .node("Div", &["x", "peak"], &["y"], &[])
        .output("y", F32, &["batch", "4"]);
    let model = import(scaled.encode()).unwrap();
    listed(&model, "ReduceMax");
    both_lanes(&model, |x| {
        let peak = x.iter().fold(0f64, |peak, x| peak.max(x.abs()));
        x.iter().map(|x| x / peak).collect()
    });
    // All axes, by name.
    let centred = rows(18)
        .tensor("axes", &ints(&[0, 1]))
        .node("ReduceMean", &["x", "axes"], &["mean"], &[])
        .node("Sub", &["x", "mean"], &["y"], &[])
        .output("y", F32, &["batch", "4"]);
    let model = import(centred.encode()).unwrap();
    listed(&model, "ReduceMean");
    both_lanes(&model, |x| {
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        x.iter().map(|x| x - mean).collect()
    });
    // Softmax of old takes all axes from the one it names.
    let soft = ModelBuilder::new(11)
        .input("x", F32, &["4", "batch"])
        .tensor("small", &Tensor::scalar(1e-4f32))
        .node("Mul", &["x", "small"], &["s"], &[])
        .node("Softmax", &["s"], &["y"], &[("axis", 0.into())])
        .output("y", F32, &["4", "batch"]);
    let model = import(soft.encode()).unwrap();
    listed(&model, "Softmax");
    both_lanes(&model, |x| {
        let powers: Vec<f64> = x.iter().map(|x| (x * f64::from(1e-4f32)).exp()).collect();
        let sum: f64 = powers.iter().sum();
        powers.iter().map(|power| power / sum).collect()
    });
    // The dynamic scale of a quantised model.
    let quantised = rows(13)
        .node("DynamicQuantizeLinear", &["x"], &["q", "scale", "zero"], &[])
        .node("DequantizeLinear", &["q", "scale", "zero"], &["y"], &[])
        .output("y", F32, &["batch", "4"]);
    let model = import(quantised.encode()).unwrap();
    listed(&model, "DynamicQuantizeLinear");
    both_lanes(&model, |x| {
        let (low, high) = x.iter().fold((0f64, 0f64), |(low, high), &x| (low.min(x), high.max(x)));
        // The scale is an f32, as the operator says.
        let scale = f64::from(((high - low) as f32) / 255.0);
        let zero = (-low / scale).round_ties_even().clamp(0.0, 255.0);
        let code = |x: f64| ((x / scale).round_ties_even() + zero).clamp(0.0, 255.0);
        x.iter().map(|&x| (code(x) - zero) * scale).collect()
    });
    // The whole batch as one row.
    let flat = rows(13)
        .tensor("s", &ints(&[4]))
        .node("Reshape", &["x", "s"], &["row"], &[])
        .tensor("t", &ints(&[1, 4]))
        .node("Reshape", &["row", "t"], &["y"], &[])
        .output("y", F32, &["1", "4"]);
    let model = import(flat.encode()).unwrap();
    listed(&model, "Reshape");
    both_lanes(&model, <[f64]>::to_vec);
}

/// Batch and steps merged by the shapes of the values themselves, and taken apart again.
#[test]
fn lanes_are_followed_through_reshapes_by_shape() {
    let model = ModelBuilder::new(13)
        .input("x", F32, &["batch", "2", "2"])
        .tensor("zero", &ints(&[0]))
        .tensor("one", &ints(&[1]))
        .tensor("two", &ints(&[2]))
        .tensor("rest", &ints(&[-1]))
        .tensor("w", &Tensor::from_vec(vec![2, 2], vec![0f32, 1.0, 1.0, 0.0]))
        .node("Shape", &["x"], &["shape"], &[])
        .node("Concat", &["rest", "two"], &["flat"], &[("axis", 0.into())])
        .node("Reshape", &["x", "flat"], &["rows"], &[])
        .node("MatMul", &["rows", "w"], &["swapped"], &[])
        .node("Gather", &["shape", "zero"], &["batch"], &[])
        .node("Gather", &["shape", "one"], &["steps"], &[])
        .node("Concat", &["batch", "steps", "rest"], &["apart"], &[("axis", 0.into())])
        .node("Reshape", &["swapped", "apart"], &["y"], &[])
        .output("y", F32, &["batch", "2", "2"]);
    let model = import(model.encode()).unwrap();
    assert_eq!(model.lane_axes["y"], 0);
    assert_eq!(model.per_lane, []);
    both_lanes(&model, |x| vec![x[1], x[0], x[3], x[2]]);
    // While they are merged, an op over the merged axis would mix them.
    let merged = rows(13)
        .tensor("s", &ints(&[-1, 2]))
        .node("Reshape", &["x", "s"], &["rows"], &[])
        .node("ReduceSum", &["rows", "axes"], &["y"], &[])
        .tensor("axes", &ints(&[0]))
        .output("y", F32, &["1", "2"]);
    assert!(refusal(merged.encode()).contains("ReduceSum_y"));
}

/// A file that says that its batch is 1 may name the axis it lies on wherever no other entry is meant.
#[test]
fn a_baked_batch_is_laned() {
    let model = ModelBuilder::new(13)
        .input("x", F32, &["1", "4"])
        .tensor("i", &Tensor::scalar(0i64))
        .tensor("s", &ints(&[1, 2, 2]))
        .tensor("perm", &ints(&[0]))
        .node("Gather", &["x", "i"], &["row"], &[("axis", 0.into())])
        .node("Reshape", &["row", "s"], &["square"], &[])
        .node("Transpose", &["square"], &["turned"], &[("perm", [0, 2, 1].into())])
        .tensor("t", &ints(&[1, 4]))
        .node("Reshape", &["turned", "t"], &["y"], &[])
        .output("y", F32, &["1", "4"]);
    let model = import(model.encode()).unwrap();
    assert_eq!(model.signature.inputs[0].shape, [4]);
    assert_eq!(model.lane_axes["x"], 0);
    both_lanes(&model, |x| vec![x[0], x[2], x[1], x[3]]);
    // What would mix lanes if there were more is refused here too.
    let model = ModelBuilder::new(13).input("x", F32, &["1", "4"]);
    let model = model.node("ReduceMean", &["x"], &["y"], &[("axes", [0].into())]).output("y", F32, &["1", "4"]);
    assert!(refusal(model.encode()).contains("ReduceMean_y"));
    // A recurrence over [1, 1, 4]: one step or one lane, and the reading that keeps lanes apart is meant.
    let model = ModelBuilder::new(14).input("x", F32, &["1", "1", "4"]).tensor("w", &floats(&[1, 2, 4]));
    let model = model.tensor("r", &floats(&[1, 2, 2])).node("RNN", &["x", "w", "r"], &["y"], &[]);
    let model = import(model.output("y", F32, &["1", "1", "1", "2"]).encode()).unwrap();
    assert_eq!(model.lane_axes["x"], 1);
}

/// A model of steps without a batch: the axis in front is no lane axis once a seat's value is given with all its axes.
#[test]
fn steps_in_front_are_fed_whole() {
    let model = ModelBuilder::new(14)
        .input("x", F32, &["steps", "2"])
        .input("h", F32, &["1", "1", "1"])
        .tensor("one", &ints(&[1]))
        .tensor("w", &Tensor::from_vec(vec![1, 1, 2], vec![1f32, 10.0]))
        .tensor("r", &Tensor::from_vec(vec![1, 1, 1], vec![0.5f32]))
        .node("Unsqueeze", &["x", "one"], &["rows"], &[])
        .node("RNN", &["rows", "w", "r", "", "", "h"], &["y", "hn"], &[("activations", Value::Texts(vec!["Relu"]))])
        .output("y", F32, &["steps", "1", "1", "1"])
        .output("hn", F32, &["1", "1", "1"])
        .encode();
    let why = refusal(model.clone());
    assert!(why.contains("RNN_y") && why.contains("time axis") && why.contains("all its axes"), "{why}");
    let mut options = ImportOptions::default();
    options.shapes.insert("x".into(), vec![2, 2]);
    let model = load_bytes(bytes::Bytes::from(model), "test", &options).unwrap();
    let found = turn(&model, &[vec![vec![1.0, 0.0, 0.0, 1.0]]]);
    close(&found[0][0], &[1.0, 10.5]);
}

/// The lane axis may differ from tensor to tensor.
#[test]
fn lane_axes_differ_per_tensor() {
    let model = ModelBuilder::new(13)
        .input("x", F32, &["batch", "4"])
        .input("state", F32, &["2", "batch", "4"])
        .tensor("zero", &Tensor::scalar(0i64))
        .tensor("axis", &ints(&[0]))
        .node("Gather", &["state", "zero"], &["last"], &[("axis", 0.into())])
        .node("Add", &["x", "last"], &["y"], &[])
        .node("Unsqueeze", &["x", "axis"], &["a"], &[])
        .node("Unsqueeze", &["y", "axis"], &["b"], &[])
        .node("Concat", &["a", "b"], &["stateN"], &[("axis", 0.into())])
        .output("y", F32, &["batch", "4"])
        .output("stateN", F32, &["2", "batch", "4"]);
    let model = import(model.encode()).unwrap();
    assert_eq!((model.lane_axes["x"], model.lane_axes["state"], model.lane_axes["stateN"]), (0, 1, 1));
    assert_eq!(model.signature.states[0].lane_shape, [2, 4]);
}

/// An extent that only the caller knows is asked for by name; until then `inspect` says what it assumed.
#[test]
fn an_open_extent_is_asked_for() {
    let model = ModelBuilder::new(13).input("audio", F32, &["batch", "samples"]);
    let bytes = model.node("Neg", &["audio"], &["y"], &[]).output("y", F32, &["batch", "samples"]).encode();
    let error = import(bytes.clone()).unwrap_err().to_string();
    assert!(
        error.contains("audio") && error.contains("axis 1") && error.contains("samples") && error.contains("--input"),
        "{error}"
    );
    let mut options = ImportOptions::default();
    let found = inspect_bytes(bytes.clone(), "test", &options).unwrap();
    assert!(found.lane_independent && found.assumed.contains_key("samples"));
    assert_eq!(found.inputs[0].shape, [Dim::Named("batch".into()), Dim::Named("samples".into())]);
    options.shapes.insert("audio".into(), vec![576]);
    let model = load_bytes(bytes.clone(), "test", &options).unwrap();
    assert_eq!(model.signature.inputs[0].shape, [576]);
    assert_eq!(inspect_bytes(bytes.clone(), "test", &options).unwrap().inputs[0].shape[1], Dim::Known(576));
    // A shape of another rank is refused, with both.
    options.shapes.insert("audio".into(), vec![2, 3, 4]);
    let error = load_bytes(bytes, "test", &options).unwrap_err().to_string();
    assert!(error.contains("[2, 3, 4]") && error.contains("[batch, samples]"), "{error}");
}

/// An input without lanes, in a file that names its batch, is the same for all.
#[test]
fn inputs_without_the_batch_are_shared() {
    let model = rows(13)
        .input("gain", F32, &["4"])
        .input("mode", I64, &[])
        .node("Mul", &["x", "gain"], &["y"], &[])
        .node("Neg", &["mode"], &["m"], &[])
        .output("y", F32, &["batch", "4"])
        .output("m", I64, &[]);
    let model = import(model.encode()).unwrap();
    let scopes: Vec<_> = model.signature.inputs.iter().map(|port| port.scope).collect();
    assert_eq!(scopes, [lanes_core::Scope::Seat, lanes_core::Scope::Turn, lanes_core::Scope::Turn]);
}

/// A file whose only open axis counts the steps of one stream: read as the batch it is refused; a seat that brings the
/// axis itself, as one step, is served.
#[test]
fn steps_are_no_lanes() {
    let model = ModelBuilder::new(14)
        .input("x", F32, &["steps", "1", "4"])
        .input("h", F32, &["1", "1", "2"])
        .tensor("w", &floats(&[1, 2, 4]))
        .tensor("r", &floats(&[1, 2, 2]))
        .node("RNN", &["x", "w", "r", "", "", "h"], &["y", "hn"], &[])
        .output("y", F32, &["steps", "1", "1", "2"])
        .output("hn", F32, &["1", "1", "2"])
        .encode();
    let text = refusal(model.clone());
    assert!(text.contains("RNN_y") && text.contains("time axis"), "{text}");
    let mut options = ImportOptions::default();
    options.shapes.insert("x".into(), vec![1, 1, 4]);
    let model = load_bytes(model, "test", &options).unwrap();
    assert_eq!((model.signature.states[0].output.as_str(), model.lane_axes["hn"]), ("hn", 1));
}
