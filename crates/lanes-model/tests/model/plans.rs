//! What plans are made of: matrices and constants that are kept once, and elementwise kernels of bounded size.

use super::import;
use lanes_core::DType::{self, F16, F32};
use lanes_core::plan::{Command, Plan, Storage};
use lanes_model::Tensor;
use lanes_model::lower::lower;
use lanes_model::onnx::build::{ModelBuilder, Value};
use std::collections::BTreeSet;

/// Extents of a model's input, as it declares them.
type Dims<'a> = &'a [&'a str];

fn plan(model: ModelBuilder) -> Plan {
    lower(&import(model.encode()).expect("the model imports")).expect("the model lowers").plan
}

/// Addresses and lengths of the distinct matrices and biases of products.
fn matrices(plan: &Plan) -> [BTreeSet<(usize, usize)>; 2] {
    let of = |numbers: &[f32]| (numbers.as_ptr() as usize, numbers.len());
    let products = || {
        plan.commands.iter().filter_map(|command| match command {
            Command::Contract(contraction) => Some(contraction),
            _ => None,
        })
    };
    let biases = products().filter_map(|product| product.bias.as_deref().map(of)).collect();
    [products().map(|product| of(&product.weights)).collect(), biases]
}

/// The same of constants.
fn constants(plan: &Plan) -> BTreeSet<(usize, usize)> {
    let of = |storage: &Storage| match storage {
        Storage::Constant { bytes, .. } => Some((bytes.as_ptr() as usize, bytes.len())),
        _ => None,
    };
    plan.storages.iter().filter_map(of).collect()
}

fn lengths(addresses: &BTreeSet<(usize, usize)>) -> Vec<usize> {
    let mut lengths: Vec<usize> = addresses.iter().map(|&(_, length)| length).collect();
    lengths.sort_unstable();
    lengths
}

/// No two numbers are equal, from one `seed` to the next neither.
fn numbers(dtype: DType, shape: &[usize], seed: usize) -> Tensor {
    let values = (0..shape.iter().product()).map(|at| (seed * 1000 + at) as f32 / 1024.0);
    match dtype {
        F16 => Tensor::from_vec(shape.to_vec(), values.map(half::f16::from_f32).collect()),
        _ => Tensor::from_vec(shape.to_vec(), values.collect::<Vec<f32>>()),
    }
}

#[test]
fn all_steps_of_a_recurrence_share_their_weights() {
    const HIDDEN: usize = 3;
    const WIDTH: usize = 2;
    for (op, gates, attributes, rows) in [
        // Columns of each product; its rows are those of X and H, or of one of them.
        ("RNN", 1, vec![], vec![(1, WIDTH + HIDDEN)]),
        ("GRU", 3, vec![], vec![(2, WIDTH + HIDDEN), (1, WIDTH + HIDDEN)]),
        ("GRU", 3, vec![("linear_before_reset", 1.into())], vec![(2, WIDTH + HIDDEN), (1, WIDTH), (1, HIDDEN)]),
        ("LSTM", 4, vec![], vec![(4, WIDTH + HIDDEN)]),
    ] {
        for dtype in [F32, F16] {
            let mut found = Vec::new();
            for steps in [1, 2, 9] {
                let steps = steps.to_string();
                let mut operands = vec!["x", "w", "r", "b", "", "h"];
                let attributes: Vec<(&str, Value)> =
                    [("hidden_size", Value::from(HIDDEN as i64))].into_iter().chain(attributes.clone()).collect();
                let mut model = ModelBuilder::new(18)
                    .input("x", dtype, &[&steps, "batch", "2"])
                    .input("h", dtype, &["1", "batch", "3"])
                    .output("y", dtype, &["?", "?", "?", "?"])
                    .tensor("w", &numbers(dtype, &[1, gates * HIDDEN, WIDTH], 1))
                    .tensor("r", &numbers(dtype, &[1, gates * HIDDEN, HIDDEN], 2))
                    .tensor("b", &numbers(dtype, &[1, 2 * gates * HIDDEN], 3));
                if op == "LSTM" {
                    operands.extend(["c", "p"]);
                    model =
                        model.input("c", dtype, &["1", "batch", "3"]).tensor("p", &numbers(dtype, &[1, 3 * HIDDEN], 4));
                }
                let plan = plan(model.node(op, &operands, &["y"], &attributes));
                let [weights, biases] = matrices(&plan);
                found.push((lengths(&weights), lengths(&biases), lengths(&constants(&plan))));
            }
            let mut wanted: Vec<usize> = rows.iter().map(|&(columns, rows)| columns * HIDDEN * rows).collect();
            wanted.sort_unstable();
            assert_eq!(found[0].0, wanted, "{op} of {dtype}");
            assert!(found.iter().all(|other| *other == found[0]), "{op} of {dtype}: {found:?}");
        }
    }
}

/// One node after another from `x`, each with constant `w0`, `w1`, …, and what they are made of.
fn repeated(
    op: &str,
    (dtype, dims): (DType, Dims<'_>),
    weights: &[Tensor],
    more: &[(&str, Tensor)],
    attributes: &[(&str, Value)],
) -> Plan {
    let mut model = ModelBuilder::new(18).input("x", dtype, dims);
    for (name, tensor) in more {
        model = model.tensor(name, tensor);
    }
    let mut last = "x".to_owned();
    for (at, weights) in weights.iter().enumerate() {
        let (weight, next) = (format!("w{at}"), format!("y{at}"));
        let operands: Vec<&str> = [&last[..], &weight].into_iter().chain(more.iter().map(|(name, _)| *name)).collect();
        model = model.tensor(&weight, weights).node(op, &operands, &[&next], attributes);
        last = next;
    }
    let any = vec!["?"; dims.len()];
    plan(model.output(&last, dtype, &any))
}

#[test]
fn equal_weights_are_one_matrix() {
    for dtype in [F32, F16] {
        for (op, dims, shape, more, attributes) in [
            ("MatMul", &["batch", "4"][..], &[4, 4][..], vec![], vec![]),
            ("Gemm", &["batch", "4"], &[4, 4], vec![("b", &[4][..])], vec![("transB", 1.into())]),
            ("Conv", &["batch", "4", "6"], &[4, 4, 1], vec![("b", &[4])], vec![]),
            ("Conv", &["batch", "4", "6"], &[4, 2, 1], vec![("b", &[4])], vec![("group", 2.into())]),
        ] {
            let more: Vec<(&str, Tensor)> =
                more.iter().map(|(name, shape)| (*name, numbers(dtype, shape, 7))).collect();
            let one = numbers(dtype, shape, 1);
            let other = numbers(dtype, shape, 2);
            let of = |weights: &[Tensor]| {
                let [weights, biases] = matrices(&repeated(op, (dtype, dims), weights, &more, &attributes));
                (weights.len(), biases.len())
            };
            let (single, biases) = of(std::slice::from_ref(&one));
            assert_eq!(of(&vec![one.clone(); 5]), (single, biases), "{op} of {dtype}");
            // The neighbour that is not to be shared.
            assert_eq!(of(&[one.clone(), other, one]), (2 * single, biases), "{op} of {dtype}");
        }
    }
}

#[test]
fn equal_constants_are_one_whatever_their_names() {
    let mut model = ModelBuilder::new(18).input("x", F32, &["batch", "4"]).output("y7", F32, &["?", "?"]);
    let mut last = "x".to_owned();
    for at in 0..8 {
        let (constant, next) = (format!("c{at}"), format!("y{at}"));
        model = model.tensor(&constant, &numbers(F32, &[4], at / 4));
        // A product between two sums keeps them apart.
        let summed = format!("s{at}");
        model = model.node("Add", &[&last, &constant], &[&summed], &[]);
        model = model.node("Softmax", &[&summed], &[&next], &[]);
        last = next;
    }
    assert_eq!(lengths(&constants(&plan(model))), [16, 16]);
}

/// `count` nodes of `op` in a row.
fn chain(op: &str, count: usize, reversed: bool) -> ModelBuilder {
    let name = |at: usize| if at == 0 { "x".to_owned() } else { format!("v{at}") };
    let mut model = ModelBuilder::new(18).input("x", F32, &["batch", "4"]).output(&name(count), F32, &["?", "?"]);
    for at in 0..count {
        let at = if reversed { count - 1 - at } else { at };
        model = model.node(op, &[&name(at)], &[&name(at + 1)], &[]);
    }
    model
}

#[test]
fn a_chain_is_cut_into_kernels_of_bounded_size() {
    // A whole kernel's worth is one; one more is two.
    assert_eq!(plan(chain("Sin", 128, false)).commands.len(), 1);
    assert_eq!(plan(chain("Sin", 129, false)).commands.len(), 2);
    // Far more than a stack holds of anything that calls itself once a node; and more than an afternoon of whatever takes
    // time in the cube of it.
    for reversed in [false, true] {
        let plan = plan(chain("Sin", 20_000, reversed));
        assert_eq!(plan.commands.len(), 20_000usize.div_ceil(128));
        // The first reads an input, the last writes an output and is shorter.
        assert!(plan.kernels.len() <= 4, "{} kernels", plan.kernels.len());
    }
}

#[test]
fn what_joins_over_a_long_way_is_still_ordered() {
    // Every sum reads the first value and the one before; a softmax in the middle needs what came before it, and is needed.
    let mut model = ModelBuilder::new(18).input("x", F32, &["batch", "4"]).output("y", F32, &["?", "?"]);
    model = model.node("Exp", &["x"], &["first"], &[]);
    let mut last = "first".to_owned();
    for at in 0..1500 {
        let next = format!("v{at}");
        model = match at % 500 {
            250 => model.node("Softmax", &[&last], &[&next], &[]),
            _ => model.node("Add", &[&last, "first"], &[&next], &[]),
        };
        last = next;
    }
    let plan = plan(model.node("Add", &[&last, "first"], &["y"], &[]));
    let softmaxes = 3;
    assert!(plan.commands.len() >= softmaxes + 1500usize.div_ceil(128), "{} commands", plan.commands.len());
    assert!(plan.commands.len() <= 2 * softmaxes + 2 + 1500 / 64, "{} commands", plan.commands.len());
}
