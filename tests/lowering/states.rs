//! States in every position, and what ports may be.

use crate::harness::{Random, case, ints, model};
use lanes::DType::{self, *};
use lanes::onnx::onnx::build::{ModelBuilder, Value};
use lanes::onnx::{Given, ImportOptions, Tensor};

fn with_state(dtype: DType, dims: &[&str]) -> ModelBuilder {
    model(18, &[(F32, &[4, 6])], &[ints(&[1]), ints(&[5]), ints(&[2])]).input("state", dtype, dims)
}

#[test]
fn states_are_kept_by_lane() {
    let sum = with_state(F32, &["batch", "4", "6"]).node("Add", &["state", "x0"], &["next_state"], &[]).output(
        "next_state",
        F32,
        &["batch", "4", "6"],
    );
    // Both the state and an output; the output alone; the state before it is changed.
    case(sum.clone().node("Neg", &["next_state"], &["y"], &[]).output("y", F32, &["?", "?"])).sums().check();
    case(sum.clone().node("Identity", &["next_state"], &["y"], &[]).output("y", F32, &["?", "?"])).sums().check();
    case(sum.clone().node("Identity", &["state"], &["y"], &[]).output("y", F32, &["?", "?"])).sums().check();
    let first = ImportOptions { init: [("state".to_owned(), Given::Number(0.5))].into(), ..ImportOptions::default() };
    case(sum.node("Neg", &["next_state"], &["y"], &[]).output("y", F32, &["?", "?"])).options(first).sums().check();
    for dtype in [F16, I64, I8, Bool, F64] {
        let latch = model(18, &[(dtype, &[5])], &[])
            .input("state", dtype, &["batch", "5"])
            .node("Identity", &["x0"], &["next_state"], &[])
            .node("Identity", &["state"], &["y"], &[])
            .output("next_state", dtype, &["batch", "5"]);
        case(latch.output("y", dtype, &["?", "?"])).check();
    }
}

/// The last columns of what came before and what comes now: the context of a convolution, in either order of axes.
#[test]
fn contexts_slide() {
    let mut random = Random(31);
    let constants = [ints(&[6]), ints(&[8]), ints(&[2]), random.tensor(&[5, 4, 3])];
    let start = || model(18, &[(F32, &[4, 6])], &constants).input("cache", F32, &["batch", "4", "2"]);
    let slide = start()
        .node("Concat", &["cache", "x0"], &["full"], &[("axis", 2.into())])
        .node("Slice", &["full", "c0", "c1", "c2"], &["next_cache"], &[])
        .node("Conv", &["full", "c3"], &["y"], &[])
        .output("next_cache", F32, &["batch", "4", "2"]);
    case(slide.clone().output("y", F32, &["?", "?"])).sums().check();
    case(slide.output("y", F32, &["?", "?"]).output("full", F32, &["?", "?"])).sums().check();
    let turned = model(18, &[(F32, &[6, 4])], &constants)
        .input("cache", F32, &["batch", "2", "4"])
        .node("Concat", &["cache", "x0"], &["full"], &[("axis", 1.into())])
        .node("Transpose", &["full"], &["t"], &[("perm", [0, 2, 1].into())])
        .node("Conv", &["t", "c3"], &["y"], &[])
        .node("Slice", &["full", "c0", "c1", "c4"], &["next_cache"], &[])
        .tensor("c4", &ints(&[1]))
        .output("next_cache", F32, &["batch", "2", "4"]);
    case(turned.output("y", F32, &["?", "?"])).sums().check();
    // The next state is a concatenation that nobody else reads; of the old state, a constant and an input.
    let row = Tensor::from_vec(vec![1, 4, 1], vec![1f32, 2.0, 3.0, 4.0]);
    let queue = model(18, &[(F32, &[4, 1])], &[ints(&[1]), ints(&[2]), ints(&[2]), row])
        .input("cache", F32, &["batch", "4", "3"])
        .node("Slice", &["cache", "c0", "c1", "c2"], &["rest"], &[])
        .node("Concat", &["rest", "c3", "x0"], &["next_cache"], &[("axis", 2.into())])
        .node("Neg", &["cache"], &["y"], &[])
        .output("next_cache", F32, &["batch", "4", "3"]);
    case(queue.output("y", F32, &["?", "?"])).check();
}

#[test]
fn states_may_be_passed_on_and_shared() {
    let passed = with_state(F32, &["batch", "3"])
        .node("Identity", &["state"], &["next_state"], &[])
        .node("Neg", &["x0"], &["y"], &[])
        .output("next_state", F32, &["batch", "3"]);
    case(passed.output("y", F32, &["?", "?"]).output("state", F32, &["?", "?"])).check();
    // Two states that become one value; two that change places.
    let two = |a: &str, b: &str| {
        model(18, &[(F32, &[3])], &[])
            .input("h", F32, &["batch", "3"])
            .input("c", F32, &["batch", "3"])
            .node("Add", &["h", "x0"], &["sum"], &[])
            .node("Sub", &["c", "x0"], &["less"], &[])
            .node("Identity", &[a], &["next_h"], &[])
            .node("Identity", &[b], &["next_c"], &[])
            .node("Mul", &["sum", "less"], &["y"], &[])
            .output("next_h", F32, &["batch", "3"])
            .output("next_c", F32, &["batch", "3"])
            .output("y", F32, &["?", "?"])
    };
    case(two("sum", "sum")).check();
    case(two("c", "h")).check();
    case(two("less", "h")).check();
    case(two("x0", "sum")).check();
}

#[test]
fn lanes_lie_on_any_axis() {
    let turned = ModelBuilder::new(18)
        .input("x", F32, &["3", "batch", "4"])
        .input("state", F32, &["4", "3", "batch"])
        .node("Transpose", &["state"], &["t"], &[("perm", [1, 2, 0].into())])
        .node("Add", &["x", "t"], &["y"], &[])
        .node("Transpose", &["y"], &["next_state"], &[("perm", [2, 0, 1].into())])
        .output("next_state", F32, &["4", "3", "batch"])
        .output("y", F32, &["3", "batch", "4"]);
    case(turned).sums().check();
}

#[test]
fn ports_may_be_inputs_constants_and_each_other() {
    let both = model(18, &[(F32, &[3])], &[Tensor::from_vec(vec![1, 3], vec![1f32, 2.0, 3.0])])
        .node("Neg", &["x0"], &["y"], &[])
        .node("Identity", &["y"], &["again"], &[])
        .node("Identity", &["x0"], &["echo"], &[])
        .node("Identity", &["c0"], &["fixed"], &[]);
    let ports = ["y", "again", "echo", "fixed"].into_iter();
    case(ports.fold(both, |model, name| model.output(name, F32, &["?", "?"]))).check();
    // One value serves the turn: read as a scalar, and as a row.
    let shared = model(18, &[(F32, &[3])], &[])
        .input("rate", F32, &[])
        .input("row", F32, &["3"])
        .node("Mul", &["x0", "rate"], &["a"], &[])
        .node("Sub", &["a", "row"], &["y"], &[]);
    let options = ImportOptions { shared: vec!["rate".into(), "row".into()], ..ImportOptions::default() };
    case(shared.output("y", F32, &["?", "?"])).options(options).check();
}

/// A branch that an input chooses is taken at import.
#[test]
fn folded_branches_lower() {
    let branch =
        |op: &str| ModelBuilder::new(18).node(op, &["x0"], &["out"], &[]).output("out", F32, &["?", "?"]).graph();
    for choice in [0.0, 1.0] {
        let model = model(18, &[(F32, &[3])], &[]).input("choice", Bool, &[]).node(
            "If",
            &["choice"],
            &["y"],
            &[("then_branch", Value::Graph(branch("Neg"))), ("else_branch", Value::Graph(branch("Exp")))],
        );
        let options =
            ImportOptions { fix: [("choice".to_owned(), Given::Number(choice))].into(), ..ImportOptions::default() };
        case(model.output("y", F32, &["?", "?"])).options(options).check();
    }
}
