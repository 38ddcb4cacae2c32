//! Contractions whose operands are rounded to bfloat16: the order that a device declares, f64, and seats in company.

use crate::plans::{self, CAPACITY};
use crate::random::{self, Random, port};
use crate::{Open, reference};
use lanes_core::device::{Capabilities, Device, DeviceError, PrepareOptions, RoundedSums};
use lanes_core::lanes::{Capacity, LanedModel, RowId, SeatRows};
use lanes_core::plan::{Activation, Command, Contraction, Plan, Precision, Region, Storage, Term};
use lanes_core::planned::PlannedModel;
use lanes_core::{Scope, Signature};
use std::sync::Arc;

/// The device, if it rounds.
fn rounding(open: Open<'_>) -> Option<Arc<dyn Device>> {
    let device = open(None);
    let has = device.capabilities().has(Precision::Bf16);
    if !has {
        println!("skipped: {} has no products of bf16", device.capabilities().name);
    }
    has.then_some(device)
}

/// Random plans in which some contractions round: bit by bit, where the device tells the order of every sum.
pub fn random_plans(open: Open<'_>) {
    let Some(device) = rounding(open) else { return };
    if !matches!(device.capabilities().bf16, Some(RoundedSums::Chains(_))) {
        println!("skipped: the order of its sums is the hardware's own");
        return;
    }
    for seed in 0..100 {
        let (mut plan, signature) = random::plan(seed);
        let mut random = Random(seed);
        for command in &mut plan.commands {
            if let Command::Contract(contraction) = command
                && !random.one_in(3)
            {
                contraction.precision = Precision::Bf16;
            }
        }
        plans::turns(&device, seed, plan, signature);
    }
}

/// One contraction of up to three terms, over an input of each seat, one that all share, and a constant.
fn contraction(seed: u64) -> (Plan, Signature) {
    let random = &mut Random(seed ^ 0xbf16);
    let mut plan = Plan { name: format!("rounded{seed}"), ..Plan::default() };
    let mut signature = Signature { name: format!("rounded{seed}"), ..Signature::default() };
    // From a few terms that fill no vector, to some that are cut into runs.
    let most = [9, 40, 200, 700][random.below(4)];
    let n = [random.within(1, 9), random.within(1, 70), random.within(60, 300)][random.below(3)];
    let positions = if random.one_in(2) { 1 } else { random.within(2, 5) };
    let mut terms = Vec::new();
    for at in 0..random.within(1, 3) {
        let (taps, tap_len) = (random.within(1, 3), random.within(1, most));
        let tap_stride = random.within(1, tap_len + 3);
        let (offset, position_stride) = (random.below(5), random.within(0, tap_len));
        let elements = offset + (positions - 1) * position_stride + (taps - 1) * tap_stride + tap_len + random.below(4);
        let bytes = elements * 4;
        let storage = plan.storage(match at {
            0 | 1 => {
                let scope = if at == 0 { Scope::Seat } else { Scope::Turn };
                signature.inputs.push(port(&format!("x{at}"), elements, scope));
                match scope {
                    Scope::Seat => Storage::Input { port: at, bytes },
                    Scope::Turn => Storage::SharedInput { port: at, bytes },
                }
            }
            _ => Storage::Constant { label: "c".into(), bytes: random::f32_bytes(random, elements).into() },
        });
        terms.push(Term { storage, offset, position_stride, taps, tap_stride, tap_len });
    }
    let k: usize = terms.iter().map(Term::k).sum();
    signature.outputs.push(port("y", positions * n, Scope::Seat));
    let out = plan.storage(Storage::Output { port: 0, bytes: positions * n * 4 });
    plan.commands.push(Command::Contract(Contraction {
        label: "product".into(),
        terms,
        weights: random.f32s(k * n).into(),
        precision: Precision::Bf16,
        bias: random.one_in(2).then(|| random.f32s(n).into()),
        activation: if random.one_in(2) { Activation::Relu } else { Activation::None },
        positions,
        n,
        out,
        out_offset: 0,
        out_position_stride: n,
    }));
    (plan, signature)
}

/// Random contractions near the sums of rounded operands in f64, and the seats of a turn alone: the same bits.
///
/// A sum of K products that are exact is off by at most two units in the last place of the sum of their magnitudes a step: one for
/// its rounding, or for what hardware cuts off of terms smaller than the largest.
pub fn near(open: Open<'_>) {
    let Some(device) = rounding(open) else { return };
    for seed in 0..60 {
        let (plan, signature) = contraction(seed);
        let mut model = PlannedModel::new(Arc::clone(&device), plan.clone(), signature.clone())
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        model.prepare(CAPACITY).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let mut random = Random(!seed);
        let seats = if seed % 3 == 0 { 33 } else { random.within(1, 33) };
        let inputs = plans::stacked(&mut random, &signature, seats);
        let turn = random::turn(&mut random, CAPACITY, seats);
        let outputs = plans::run(&mut model, &inputs, &turn);
        let Command::Contract(contraction) = &plan.commands[0] else { unreachable!("it has one command") };
        let row = signature.outputs[0].bytes();
        for seat in 0..seats {
            let own = |(port, all): (usize, &Vec<u8>)| match signature.inputs[port].scope {
                Scope::Seat => all.chunks(signature.inputs[port].bytes()).nth(seat).unwrap_or_default().to_vec(),
                Scope::Turn => all.clone(),
            };
            let inputs: Vec<Vec<u8>> = inputs.iter().enumerate().map(own).collect();
            let found = &outputs[0][seat * row..(seat + 1) * row];
            check(contraction, &plan, &inputs, found, &format!("seed {seed}, seat {seat} of {seats}"));
            if seat % 7 == 0 {
                let alone = plans::run(&mut model, &inputs, &turn[..1]);
                assert!(alone[0] == found, "seed {seed}: seat {seat} of {seats} is another one alone");
            }
        }
    }
}

/// One seat of [`near`].
fn check(contraction: &Contraction, plan: &Plan, inputs: &[Vec<u8>], found: &[u8], what: &str) {
    let memory: Vec<Vec<u8>> = plan
        .storages
        .iter()
        .map(|storage| match storage {
            Storage::Input { port, .. } | Storage::SharedInput { port, .. } => inputs[*port].clone(),
            Storage::Constant { bytes, .. } => bytes.to_vec(),
            _ => Vec::new(),
        })
        .collect();
    let rounded = |x: f32| f64::from(half::bf16::from_f32(x).to_f32());
    for position in 0..contraction.positions {
        let left = reference::left(contraction, &memory, position);
        for n in 0..contraction.n {
            let products = left
                .iter()
                .enumerate()
                .map(|(k, &left)| rounded(left) * rounded(contraction.weights[k * contraction.n + n]));
            let (sum, magnitude) =
                products.fold((0.0, 0.0), |(sum, all), product: f64| (sum + product, all + product.abs()));
            let bias = contraction.bias.as_ref().map_or(0.0, |bias| f64::from(bias[n]));
            let mut expected = sum + bias;
            if contraction.activation == Activation::Relu {
                expected = expected.max(0.0);
            }
            let at = (position * contraction.n + n) * 4;
            let found = f64::from(f32::from_le_bytes([found[at], found[at + 1], found[at + 2], found[at + 3]]));
            let tolerance = f64::from(f32::EPSILON) * (2.0 * left.len() as f64 * magnitude + bias.abs());
            assert!(
                (found - expected).abs() <= tolerance,
                "{what}: [{position}, {n}] of K {} and N {} is {found}, not {expected}",
                left.len(),
                contraction.n
            );
        }
    }
}

/// The recurrent model of [`plans`], rounded: every seat of a turn of any size gives the bits that it gives alone.
pub fn company(open: Open<'_>) {
    let Some(device) = rounding(open) else { return };
    let (plan, signature) = plans::recurrent();
    plans::apart(&device, &plan.with_precision(Precision::Bf16), &signature);
}

/// Seats of turns of hundreds, which devices have other tiles and instructions for: the bits of each alone. K is of one run and of several, the
/// last of them short.
pub fn large_company(open: Open<'_>) {
    let Some(device) = rounding(open) else { return };
    let (capacity, mut random) = (Capacity { rows: 2, max_seats: 700 }, Random(41));
    for (k, n) in [(200, 4160), (700, 1030), (40, 4096)] {
        let mut plan = Plan { name: "large".into(), ..Plan::default() };
        let mut signature = Signature { name: "large".into(), ..Signature::default() };
        signature.inputs.push(port("x", k, Scope::Seat));
        signature.outputs.push(port("y", n, Scope::Seat));
        let x = plan.storage(Storage::Input { port: 0, bytes: k * 4 });
        let out = plan.storage(Storage::Output { port: 0, bytes: n * 4 });
        plan.commands.push(Command::Contract(Contraction {
            label: "product".into(),
            terms: vec![Term { storage: x, offset: 0, position_stride: k, taps: 1, tap_stride: 0, tap_len: k }],
            weights: random.f32s(k * n).into(),
            precision: Precision::Bf16,
            bias: Some(random.f32s(n).into()),
            activation: Activation::Relu,
            positions: 1,
            n,
            out,
            out_offset: 0,
            out_position_stride: n,
        }));
        let mut model = PlannedModel::new(Arc::clone(&device), plan, signature.clone()).expect("the plan fits");
        model.prepare(capacity).expect("it is prepared");
        let nobody = SeatRows { read: capacity.initial_row(), write: RowId(0) };
        for seats in [20, 64, 129, 260, 700] {
            let inputs = plans::stacked(&mut random, &signature, seats);
            let together = plans::run(&mut model, &inputs, &vec![nobody; seats]);
            for seat in (0..seats).step_by(seats / 9) {
                let alone = plans::run(&mut model, &[inputs[0][seat * k * 4..][..k * 4].to_vec()], &[nobody]);
                assert!(alone[0] == together[0][seat * n * 4..][..n * 4], "K {k}, N {n}: seat {seat} of {seats}");
            }
        }
    }
}

/// A contraction whose result two others read beside an input, from it or from a copy of it: a device that prepares operands where they
/// are made must give the bits of one that finds them there.
pub fn handed_on(open: Open<'_>) {
    let Some(device) = rounding(open) else { return };
    for seed in 0..30 {
        let outputs = [false, true].map(|is_copied| {
            let (plan, signature) = chained(seed, is_copied);
            let mut model = PlannedModel::new(Arc::clone(&device), plan, signature.clone())
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            model.prepare(CAPACITY).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let mut random = Random(!seed);
            [1, 5, 33].map(|seats| {
                let inputs = plans::stacked(&mut random, &signature, seats);
                let turn = random::turn(&mut random, CAPACITY, seats);
                plans::run(&mut model, &inputs, &turn)
            })
        });
        let [made, copied] = outputs;
        assert!(made == copied, "seed {seed}: what is made is another operand than its copy");
        assert!(made[2].iter().all(|output| output.iter().any(|&byte| byte != 0)), "seed {seed}: it is all zeros");
    }
}

/// The plan of [`handed_on`]: two contractions read what a third makes, or a copy of it, and an input.
pub fn chained(seed: u64, is_copied: bool) -> (Plan, Signature) {
    let random = &mut Random(seed ^ 0xcafe);
    let mut plan = Plan { name: format!("chained{seed}"), ..Plan::default() };
    let mut signature = Signature { name: format!("chained{seed}"), ..Signature::default() };
    let positions = if random.one_in(2) { 1 } else { random.within(2, 3) };
    // Whole pieces of eight, and others.
    let unit = if random.one_in(4) { 1 } else { 8 };
    let (n, width) = (unit * random.within(2, 20), unit * random.within(1, 12));
    let from = unit * random.below(2);
    let count = n - from - unit * random.below(2).min((n - from) / unit - 1);
    signature.inputs.push(port("x", positions * width, Scope::Seat));
    let x = plan.storage(Storage::Input { port: 0, bytes: positions * width * 4 });
    let bytes = positions * n * 4;
    let [y, z] = [0, 1].map(|_| plan.storage(Storage::Scratch { bytes }));
    let term = |storage, offset, position_stride, tap_len| Term {
        storage,
        offset,
        position_stride,
        taps: 1,
        tap_stride: 0,
        tap_len,
    };
    let input = term(x, 0, width, width);
    let contraction = |random: &mut Random, terms: Vec<Term>, n: usize, out| {
        let k: usize = terms.iter().map(Term::k).sum();
        Command::Contract(Contraction {
            label: "product".into(),
            terms,
            weights: random.f32s(k * n).into(),
            precision: Precision::Bf16,
            bias: random.one_in(2).then(|| random.f32s(n).into()),
            activation: if random.one_in(2) { Activation::Tanh } else { Activation::None },
            positions,
            n,
            out,
            out_offset: 0,
            out_position_stride: n,
        })
    };
    let maker = contraction(random, vec![input], n, y);
    plan.commands.push(maker);
    let whole = Region::contiguous(0, bytes);
    if is_copied {
        plan.commands.push(Command::Copy { from: (y, whole), to: (z, whole) });
    }
    let made = term(if is_copied { z } else { y }, from, n, count);
    let terms = if random.one_in(2) { vec![made, input] } else { vec![input, made] };
    for port_number in 0..2 {
        let n = random.within(1, 40);
        signature.outputs.push(port(&format!("y{port_number}"), positions * n, Scope::Seat));
        let out = plan.storage(Storage::Output { port: port_number, bytes: positions * n * 4 });
        let reader = contraction(random, terms.clone(), n, out);
        plan.commands.push(reader);
    }
    (plan, signature)
}

/// A device without such products refuses the plan and names the contraction, the precision and itself.
pub fn refusals(open: Open<'_>) {
    let device = open(None);
    let lacking = Capabilities { bf16: None, ..device.capabilities().clone() };
    let (plan, signature) = contraction(0);
    let checked = plan.check(&signature).unwrap_or_else(|error| panic!("{error}"));
    let capacity = Capacity { rows: 1, max_seats: 1 };
    let options = PrepareOptions { capacity, slots: 1, states: &[], residents: &[], overlap: false };
    let error = options.check(&checked, &lacking).unwrap_err();
    assert!(matches!(error, DeviceError::Unsupported { .. }), "{error}");
    let said = error.to_string();
    assert!(["bf16", "product", "rounded0", &lacking.name].iter().all(|word| said.contains(word)), "{said}");
    let found = options.check(&checked, device.capabilities());
    assert_eq!(found.is_ok(), device.capabilities().has(Precision::Bf16), "{found:?}");
}
