//! Plans against the reference; seats alone against seats in company.

use crate::random::{self, Random, f32_bytes, port};
use crate::{Open, reference};
use lanes_core::device::Device;
use lanes_core::lanes::{Capacity, LanedModel, RowId, SeatRows};
use lanes_core::plan::{Activation, Command, Contraction, Plan, Precision, Region, Storage, Term};
use lanes_core::planned::PlannedModel;
use lanes_core::{DType, Scope, Signature, StateKind, StateSpec};
use std::sync::Arc;

/// Room for turns of 1 to 33 seats: every count, and past the usual tiles.
pub(crate) const CAPACITY: Capacity = Capacity { rows: 80, max_seats: 33 };

pub(crate) fn stacked(random: &mut Random, signature: &Signature, seats: usize) -> Vec<Vec<u8>> {
    let size = |scope| if scope == Scope::Seat { seats } else { 1 };
    signature.inputs.iter().map(|port| f32_bytes(random, port.elements() * size(port.scope))).collect()
}

pub(crate) fn run(model: &mut PlannedModel, inputs: &[Vec<u8>], seats: &[SeatRows]) -> Vec<Vec<u8>> {
    for (port, bytes) in inputs.iter().enumerate() {
        model.input_mut(port)[..bytes.len()].copy_from_slice(bytes);
    }
    let mut refused = Vec::new();
    model.run(seats, &mut refused).expect("the turn runs");
    assert_eq!(refused, [], "nothing in the turn could be refused");
    let size = |port: usize| model.signature().outputs[port].bytes() * seats.len();
    (0..model.signature().outputs.len()).map(|port| model.output(port)[..size(port)].to_vec()).collect()
}

fn rows(model: &PlannedModel) -> reference::Rows {
    let read = |state: usize, row: u32| {
        let mut bytes = vec![0; model.signature().states[state].bytes()];
        model.read_row(state, RowId(row), &mut bytes).expect("the row is read");
        bytes
    };
    let states = 0..model.signature().states.len();
    states.map(|state| (0..CAPACITY.rows).map(|row| read(state, row)).collect()).collect()
}

/// Random plans, several turns each, outputs and every row compared after each turn.
pub fn random_plans(open: Open<'_>) {
    let device = open(None);
    for seed in 0..150 {
        let (plan, signature) = random::plan(seed);
        turns(&device, seed, plan, signature);
    }
}

/// Turns of one random plan against the reference.
pub(crate) fn turns(device: &Arc<dyn Device>, seed: u64, plan: Plan, signature: Signature) {
    let mut model = PlannedModel::new(Arc::clone(device), plan.clone(), signature.clone())
        .unwrap_or_else(|error| panic!("seed {seed}: {error}\n{plan:#?}"));
    model.prepare(CAPACITY).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let mut expected_rows = reference::initial_rows(&signature, CAPACITY);
    let mut random = Random(!seed);
    for turn in 0..4 {
        let seats = if turn == 0 { CAPACITY.max_seats as usize } else { random.within(1, 33) };
        let inputs = stacked(&mut random, &signature, seats);
        let seats = random::turn(&mut random, CAPACITY, seats);
        let outputs = run(&mut model, &inputs, &seats);
        let expected = reference::run(&plan, &signature, &inputs, &seats, &mut expected_rows, device.capabilities());
        assert!(outputs == expected, "seed {seed}, turn {turn} of {} seats: outputs differ", seats.len());
        assert!(rows(&model) == expected_rows, "seed {seed}, turn {turn} of {} seats: rows differ", seats.len());
    }
}

/// A recurrent model that is large enough to be cut over threads: `h' = tanh(W [x, h] + b)`, `y = silu(V h')`, and
/// sigmoid of a window over `h'`.
pub fn recurrent() -> (Plan, Signature) {
    const X: usize = 96;
    const H: usize = 256;
    let mut random = Random(7);
    let mut plan = Plan { name: "recurrent".into(), ..Plan::default() };
    let x = plan.storage(Storage::Input { port: 0, bytes: X * 4 });
    let state = plan.storage(Storage::State { state: 0, bytes: H * 4 });
    let (h, next) = (plan.storage(Storage::Scratch { bytes: H * 4 }), plan.storage(Storage::Scratch { bytes: H * 4 }));
    let y = plan.storage(Storage::Output { port: 0, bytes: (64 + 31 * 8) * 4 });
    let whole = |elements: usize| Region::contiguous(0, elements * 4);
    let row = |storage, tap_len| Term { storage, offset: 0, position_stride: 0, taps: 1, tap_stride: 0, tap_len };
    let contraction =
        |label: &str, terms: Vec<Term>, positions, n, out, out_offset, activation, random: &mut Random| {
            let k: usize = terms.iter().map(Term::k).sum();
            Command::Contract(Contraction {
                label: label.into(),
                terms,
                weights: random.f32s(k * n).into_iter().map(|weight| weight / 8.0).collect(),
                precision: Precision::F32,
                bias: Some(random.f32s(n).into()),
                activation,
                positions,
                n,
                out,
                out_offset,
                out_position_stride: n,
            })
        };
    let window = Term { storage: next, offset: 0, position_stride: 8, taps: 2, tap_stride: 8, tap_len: 8 };
    plan.commands = vec![
        Command::Gather { state, row: whole(H), to: (h, whole(H)) },
        contraction("cell", vec![row(x, X), row(h, H)], 1, H, next, 0, Activation::Tanh, &mut random),
        contraction("head", vec![row(next, H)], 1, 64, y, 0, Activation::Silu, &mut random),
        contraction("window", vec![window], 31, 8, y, 64, Activation::Sigmoid, &mut random),
        Command::Scatter { from: (next, whole(H)), state, row: whole(H) },
    ];
    let signature = Signature {
        name: "recurrent".into(),
        inputs: vec![port("x", X, Scope::Seat)],
        outputs: vec![port("y", 64 + 31 * 8, Scope::Seat)],
        states: vec![StateSpec {
            input: "h".into(),
            output: "h_out".into(),
            dtype: DType::F32,
            lane_shape: vec![H],
            initial: Some(f32_bytes(&mut random, H).into()),
            kind: StateKind::Replaced,
        }],
    };
    (plan, signature)
}

/// Every seat of a turn of any size gives the bits that it gives alone, on the same row.
pub fn company(open: Open<'_>) {
    let (plan, signature) = recurrent();
    apart(&open(None), &plan, &signature);
}

/// [`company`] for a model of one input, one state and one output.
pub(crate) fn apart(device: &Arc<dyn Device>, plan: &Plan, signature: &Signature) {
    let model = || {
        let mut model = PlannedModel::new(Arc::clone(device), plan.clone(), signature.clone()).expect("the plan fits");
        model.prepare(CAPACITY).expect("it is prepared");
        model
    };
    let (mut together, mut alone, mut random) = (model(), model(), Random(11));
    let (x, y) = (signature.inputs[0].bytes(), signature.outputs[0].bytes());
    for seats in (1..=33).chain([33, 1, 33]) {
        let inputs = stacked(&mut random, signature, seats);
        let turn = random::turn(&mut random, CAPACITY, seats);
        let outputs = run(&mut together, &inputs, &turn);
        for (seat, rows) in turn.iter().enumerate() {
            let input = vec![inputs[0][seat * x..(seat + 1) * x].to_vec()];
            let output = run(&mut alone, &input, &[*rows]);
            assert!(output[0] == outputs[0][seat * y..(seat + 1) * y], "seat {seat} of {seats}: outputs differ");
        }
        assert!(rows(&together) == rows(&alone), "{seats} seats: rows differ");
    }
}

/// The same model near f64. Sums of K products are off by at most about K/2 units in the last place of the sum of their
/// magnitudes; an activation by a few of its own, and none of the four is steeper than 1.1.
pub fn activations(open: Open<'_>) {
    let (plan, signature) = recurrent();
    let mut model = PlannedModel::new(open(None), plan.clone(), signature.clone()).expect("the plan fits");
    model.prepare(CAPACITY).expect("it is prepared");
    let mut random = Random(13);
    let inputs = stacked(&mut random, &signature, 1);
    let seat = SeatRows { read: CAPACITY.initial_row(), write: RowId(0) };
    let outputs = run(&mut model, &inputs, &[seat]);
    let mut memory: Vec<Vec<u8>> = plan.storages.iter().map(|storage| vec![0; storage.bytes()]).collect();
    memory[0] = inputs[0].clone();
    memory[2] = signature.states[0].initial.as_ref().expect("it has one").to_vec();
    model.read_row(0, RowId(0), &mut memory[3]).expect("the new row is read");
    memory[4] = outputs[0].clone();
    let value = |bytes: &[u8], at: usize| {
        f64::from(f32::from_le_bytes([bytes[at * 4], bytes[at * 4 + 1], bytes[at * 4 + 2], bytes[at * 4 + 3]]))
    };
    for command in &plan.commands {
        let Command::Contract(contraction) = command else {
            continue;
        };
        for position in 0..contraction.positions {
            let left = reference::left(contraction, &memory, position);
            for n in 0..contraction.n {
                let products = left
                    .iter()
                    .enumerate()
                    .map(|(k, &left)| f64::from(left) * f64::from(contraction.weights[k * contraction.n + n]));
                let (sum, magnitude) =
                    products.fold((0.0, 0.0), |(sum, all), product: f64| (sum + product, all + product.abs()));
                let bias = contraction.bias.as_ref().map_or(0.0, |bias| f64::from(bias[n]));
                let x = sum + bias;
                let expected = match contraction.activation {
                    Activation::Tanh => x.tanh(),
                    Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
                    Activation::Silu => x / (1.0 + (-x).exp()),
                    other => panic!("{other:?} is not in this model"),
                };
                let at = contraction.out_offset + position * contraction.out_position_stride + n;
                let found = value(&memory[contraction.out.0 as usize], at);
                let unit = f64::from(f32::EPSILON);
                let tolerance =
                    unit * (left.len() as f64 / 2.0 * (magnitude + bias.abs()) * 1.1 + 4.0 * expected.abs());
                let label = &contraction.label;
                assert!((found - expected).abs() <= tolerance, "{label}[{position}, {n}]: {found}, not {expected}");
            }
        }
    }
}
