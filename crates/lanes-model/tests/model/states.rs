//! Pairing of states, folding of `If`, and a stream that keeps its state from turn to turn.

use crate::import;
use lanes_core::DType::{Bool, F32, I64};
use lanes_core::lanes::{Capacity, LanedModel, RowId, SeatRows};
use lanes_model::onnx::build::{ModelBuilder, Value};
use lanes_model::oracle::OracleModel;
use lanes_model::{Given, ImportOptions, StatePair, Tensor, inspect_bytes, load_bytes};

fn ints(values: &[i64]) -> Tensor {
    Tensor::from_vec(vec![values.len()], values.to_vec())
}

/// `h` and `c` of one shape, their outputs in another order than the inputs.
fn swapped() -> ModelBuilder {
    ModelBuilder::new(13)
        .input("x", F32, &["batch", "2"])
        .input("h", F32, &["batch", "2"])
        .input("c", F32, &["batch", "2"])
        .node("Add", &["h", "x"], &["hn"], &[])
        .node("Sub", &["c", "x"], &["cn"], &[])
        .node("Mul", &["h", "c"], &["y"], &[])
        .output("cn", F32, &["batch", "2"])
        .output("y", F32, &["batch", "2"])
        .output("hn", F32, &["batch", "2"])
}

#[test]
fn states_pair_by_name_and_not_by_place() {
    let model = import(swapped().encode()).unwrap();
    let pairs: Vec<_> = model.signature.states.iter().map(|state| (&state.input[..], &state.output[..])).collect();
    assert_eq!(pairs, [("h", "hn"), ("c", "cn")]);
    assert_eq!(model.signature.outputs.len(), 1);
    assert_eq!(model.signature.state_bytes_per_lane(), 16);

    // Three turns of two streams, each from its own row: h gains x every turn, c loses it.
    let mut options = ImportOptions::default();
    options.init.insert("c".into(), Given::Tensor(Tensor::from_vec(vec![2], vec![1f32, -1.0])));
    let model = load_bytes(swapped().encode(), "test", &options).unwrap();
    let mut laned = OracleModel::new(&model);
    let capacity = Capacity { rows: 5, max_seats: 2 };
    laned.prepare(capacity).unwrap();
    let mut read = [capacity.initial_row(); 2];
    for turn in 0..3 {
        let inputs = [1f32, 2.0, 3e4, -3e4];
        laned.input_mut(0).copy_from_slice(bytemuck::cast_slice(&inputs));
        let write = [RowId((turn % 2) * 2), RowId((turn % 2) * 2 + 1)];
        let rows = [0, 1].map(|seat| SeatRows { read: read[seat], write: write[seat] });
        laned.run(&rows, &mut Vec::new()).unwrap();
        let found = crate::f32s(laned.output(0));
        // h is turn·x, c its initial value less turn·x.
        let steps = turn as f32;
        let wanted = [0, 1, 2, 3].map(|at| steps * inputs[at] * ([1f32, -1.0][at % 2] - steps * inputs[at]));
        assert_eq!(found, wanted);
        read = write;
    }
}

#[test]
fn a_pairing_that_is_not_sure_is_an_error_with_candidates() {
    let two = |outputs: [&'static str; 2]| {
        ModelBuilder::new(13)
            .input("x", F32, &["batch", "2"])
            .input("h", F32, &["batch", "2"])
            .node("Add", &["h", "x"], &[outputs[0]], &[])
            .node("Sub", &["h", "x"], &[outputs[1]], &[])
            .output(outputs[0], F32, &["batch", "2"])
            .output(outputs[1], F32, &["batch", "2"])
            .encode()
    };
    let error = import(two(["hn", "h_out"])).unwrap_err().to_string();
    assert!(error.contains("hn") && error.contains("h_out") && error.contains("--state h="), "{error}");
    // A declaration decides it.
    let declare = |output: &str| ImportOptions {
        states: vec![StatePair { input: "h".into(), output: output.into(), axis: None }],
        ..ImportOptions::default()
    };
    let model = load_bytes(two(["hn", "h_out"]), "test", &declare("h_out")).unwrap();
    assert_eq!(model.signature.states[0].output, "h_out");
    let error = load_bytes(two(["hn", "h_out"]), "test", &declare("nothing")).unwrap_err().to_string();
    assert!(error.contains("nothing") && error.contains("hn"), "{error}");
    // A state that no output is named after.
    let lost = ModelBuilder::new(13)
        .input("x", F32, &["batch", "2"])
        .input("state", F32, &["batch", "2"])
        .node("Add", &["state", "x"], &["y"], &[])
        .node("Sub", &["state", "x"], &["z"], &[])
        .output("y", F32, &["batch", "2"])
        .output("z", F32, &["batch", "2"]);
    let error = import(lost.encode()).unwrap_err().to_string();
    assert!(error.contains("state") && error.contains("y [batch, 2]") && error.contains("z [batch, 2]"), "{error}");
}

#[test]
fn a_state_that_grows_is_refused_by_axis() {
    let grows = |extent: &'static str| {
        ModelBuilder::new(13)
            .input("x", F32, &["batch", "1", "2"])
            .input("past", F32, &["batch", extent, "2"])
            .node("Concat", &["past", "x"], &["present"], &[("axis", 1.into())])
            .node("ReduceSum", &["present", "axes"], &["y"], &[])
            .tensor("axes", &ints(&[1]))
            .output("y", F32, &["batch", "1", "2"])
            .output("present", F32, &["batch", "?", "2"])
            .encode()
    };
    for extent in ["7", "past_length"] {
        let error = import(grows(extent)).unwrap_err().to_string();
        assert!(error.contains("past=present") && error.contains("grows along axis 1"), "{error}");
    }
}

#[test]
fn states_of_other_types_or_shapes_are_no_pair() {
    let model = ModelBuilder::new(13)
        .input("x", F32, &["batch", "2"])
        .input("cache", F32, &["batch", "4"])
        .node("Concat", &["cache", "x"], &["all"], &[("axis", 1.into())])
        .node("Neg", &["x"], &["next_cache"], &[])
        .output("all", F32, &["batch", "6"])
        .output("next_cache", F32, &["batch", "2"]);
    let error = import(model.encode()).unwrap_err().to_string();
    assert!(error.contains("cache=next_cache") && error.contains("[4]") && error.contains("[2]"), "{error}");
}

/// Branches that shift, scale, and one of another rank.
fn branching(condition: ModelBuilder) -> Vec<u8> {
    let then = ModelBuilder::new(13).node("Add", &["x", "x"], &["then_y"], &[]).output("then_y", F32, &["?", "?"]);
    let nested_then = ModelBuilder::new(13).node("Neg", &["x"], &["deep"], &[]).output("deep", F32, &["?", "?"]);
    let nested_else = ModelBuilder::new(13)
        .tensor("axes", &ints(&[2]))
        .node("Unsqueeze", &["x", "axes"], &["deep_else"], &[])
        .output("deep_else", F32, &["?", "?", "?"]);
    // Nested, on the rank of x.
    let other = ModelBuilder::new(13)
        .tensor("rank", &Tensor::scalar(2i64))
        .node("Shape", &["x"], &["shape"], &[])
        .node("Size", &["shape"], &["size"], &[])
        .node("Equal", &["size", "rank"], &["is_flat"], &[])
        .node(
            "If",
            &["is_flat"],
            &["nested_y"],
            &[("then_branch", Value::Graph(nested_then.graph())), ("else_branch", Value::Graph(nested_else.graph()))],
        )
        .output("nested_y", F32, &["?", "?"]);
    condition
        .input("x", F32, &["batch", "2"])
        .node(
            "If",
            &["condition"],
            &["y"],
            &[("then_branch", Value::Graph(then.graph())), ("else_branch", Value::Graph(other.graph()))],
        )
        .output("y", F32, &["batch", "2"])
        .encode()
}

#[test]
fn if_folds_when_its_condition_is_known() {
    let constant = |truth| ModelBuilder::new(13).tensor("condition", &Tensor::from_bools(vec![], vec![truth]));
    for (truth, factor) in [(true, 2f32), (false, -1.0)] {
        let model = import(branching(constant(truth))).unwrap();
        assert_eq!(crate::turn(&model, &[vec![vec![1.0, 3e4]]])[0][0], [factor, factor * 3e4]);
        assert_eq!(model.graph.nodes.len(), 1);
    }
    // By an input that is fixed.
    let by_rate = ModelBuilder::new(13).input("rate", I64, &[]).tensor("wanted", &Tensor::scalar(16000i64)).node(
        "Equal",
        &["rate", "wanted"],
        &["condition"],
        &[],
    );
    let bytes = branching(by_rate);
    let mut options = ImportOptions::default();
    for (rate, factor) in [(16000.0, 2f32), (8000.0, -1.0)] {
        options.fix.insert("rate".into(), Given::Number(rate));
        let model = load_bytes(bytes.clone(), "test", &options).unwrap();
        assert_eq!(crate::turn(&model, &[vec![vec![1.0, 1.0]]])[0][0], [factor; 2]);
        assert_eq!(model.signature.inputs.len(), 1);
    }
    let error = import(bytes).unwrap_err().to_string();
    assert!(error.contains("If_y") && error.contains("\"rate\"") && error.contains("--fix rate="), "{error}");
    // By data of the stream: refused, naming it.
    let by_data = ModelBuilder::new(13).input("condition", Bool, &[]);
    assert!(import(branching(by_data)).unwrap_err().to_string().contains("\"condition\""));
}

#[test]
fn a_shape_that_a_declared_axis_gave_is_refused_with_the_declaration() {
    let model = ModelBuilder::new(18)
        .input("x", F32, &["batch", "4"])
        .input("h", F32, &["batch", "4"])
        .tensor("w", &Tensor::from_vec(vec![4, 4], vec![0f32; 16]))
        .node("MatMul", &["h", "w"], &["turned"], &[])
        .node("Add", &["turned", "x"], &["hn"], &[])
        .node("Neg", &["hn"], &["y"], &[])
        .output("y", F32, &["batch", "4"])
        .output("hn", F32, &["batch", "4"])
        .encode();
    for (axis, says) in [(None, None), (Some(0), None), (Some(1), Some("--state h=hn@1"))] {
        let states = vec![StatePair { input: "h".into(), output: "hn".into(), axis }];
        let options = ImportOptions { states, ..ImportOptions::default() };
        let found = load_bytes(model.clone(), "test", &options).err().map(|error| error.to_string());
        assert_eq!(found.is_some(), says.is_some(), "{found:?}");
        let why = inspect_bytes(model.clone(), "test", &options).unwrap().why;
        for text in [found, why].into_iter().flatten() {
            assert!(text.contains("MatMul") && says.is_some_and(|says| text.contains(says)), "{text}");
        }
    }
}
