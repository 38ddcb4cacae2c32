//! Plans that dispatch kernels: results against a formula, faults contained, threads and seats as with other commands.

use crate::Open;
use crate::random::{self, Random, f32_bytes, port};
use lanes_core::device::{Completion, DeviceError, Outcome, Placement, PrepareOptions, Purpose, RowCheck, StateRows};
use lanes_core::lanes::{Capacity, LanedModel, RowId, SeatRows};
use lanes_core::plan::{Access, Argument, Command, Plan, Region, Scalar, Storage};
use lanes_core::planned::PlannedModel;
use lanes_core::{DType, Scope, Signature, StateKind, StateSpec};
use loom_compiler::{CpuImage, compile_cpu};
use std::collections::BTreeMap;
use std::sync::Arc;

const N: usize = 500;

/// `y[s, i] = x[s, i] * w[i] + x[s, i]`, in one fused step; the item stores `shift` elements further on.
fn text(shift: usize) -> String {
    format!(
        r#"
kernel.def export("mix") @mix(%seats: index) {{
  %one = index.constant 1 : index
  %size = index.constant 64 : index
  %n = index.constant {N} : index
  %total = index.mul %seats, %n : index
  %less = index.constant 63 : index
  %padded = index.add %total, %less : index
  %groups = index.div %padded, %size : index
  kernel.launch.config workgroups(%groups, %one, %one) workgroup_size(%size, %one, %one) : index
}} launch(%seats: index, %x: buffer, %w: buffer, %y: buffer) {{
  %zero = index.constant 0 : offset
  %n = index.constant {N} : index
  %total = index.mul %seats, %n : index
  %wide = index.constant 1000000000 : index
  %xv = buffer.view %x[%zero] : buffer -> view<[%total]xf32>
  %wv = buffer.view %w[%zero] : buffer -> view<{N}xf32>
  %yv = buffer.view %y[%zero] : buffer -> view<[%wide]xf32>
  %item = kernel.workitem.dispatch.id<x> : index
  %live = index.cmp ult, %item, %total : index
  scf.if %live {{
    %at = index.rem %item, %n : index
    %shift = index.constant {shift} : index
    %to = index.add %item, %shift : index
    %a = view.load %xv[%item] : view<[%total]xf32> -> f32
    %b = view.load %wv[%at] : view<{N}xf32> -> f32
    %c = scalar.fmaf %a, %b, %a : f32
    view.store %c, %yv[%to] : f32, view<[%wide]xf32>
  }}
  kernel.return
}}
"#
    )
}

fn image(shift: usize) -> CpuImage {
    compile_cpu("mix.loom", &text(shift), "mix", &BTreeMap::new()).unwrap_or_else(|error| panic!("{error}"))
}

/// `y = x * w + x` on a turn-wide `w`, and `h' = y`.
fn plan(image: CpuImage) -> (Plan, Signature) {
    let mut plan = Plan { name: "mix".into(), ..Plan::default() };
    let (bytes, whole) = (N * 4, Region::contiguous(0, N * 4));
    let x = plan.storage(Storage::Input { port: 0, bytes });
    let w = plan.storage(Storage::SharedInput { port: 1, bytes });
    let y = plan.storage(Storage::Scratch { bytes });
    let out = plan.storage(Storage::Output { port: 0, bytes });
    let state = plan.storage(Storage::State { state: 0, bytes });
    let kernel = plan.kernel(Arc::new(image));
    let buffer = |storage, access| Argument::Buffer { storage, window: None, uses: vec![(whole, access)] };
    plan.commands = vec![
        Command::Dispatch {
            label: "node mix".into(),
            kernel,
            workload: vec![Scalar::Seats],
            arguments: vec![
                Argument::Scalar(Scalar::Seats),
                buffer(x, Access::Read),
                buffer(w, Access::Read),
                buffer(y, Access::Write),
            ],
        },
        Command::Copy { from: (y, whole), to: (out, whole) },
        Command::Scatter { from: (y, whole), state, row: whole },
    ];
    let signature = Signature {
        name: "mix".into(),
        inputs: vec![port("x", N, Scope::Seat), port("w", N, Scope::Turn)],
        outputs: vec![port("y", N, Scope::Seat)],
        states: vec![StateSpec {
            input: "h".into(),
            output: "h_out".into(),
            dtype: DType::F32,
            lane_shape: vec![N],
            initial: None,
            kind: StateKind::Replaced,
        }],
    };
    (plan, signature)
}

fn f32s(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// Every count of seats gives the formula's bits, seat by seat.
pub fn dispatches(open: Open<'_>) {
    let capacity = Capacity { rows: 70, max_seats: 33 };
    let (plan, signature) = plan(image(0));
    let mut model = PlannedModel::new(open(None), plan, signature).expect("the plan fits");
    model.prepare(capacity).expect("it is prepared");
    let mut random = Random(3);
    for seats in 1..=33 {
        let (x, w) = (f32_bytes(&mut random, seats * N), f32_bytes(&mut random, N));
        model.input_mut(0)[..x.len()].copy_from_slice(&x);
        model.input_mut(1).copy_from_slice(&w);
        let turn = random::turn(&mut random, capacity, seats);
        model.run(&turn, &mut Vec::new()).expect("the turn runs");
        let mix = f32s(&x).zip(f32s(&w).collect::<Vec<_>>().into_iter().cycle());
        let expected: Vec<u8> = mix.flat_map(|(x, w)| x.mul_add(w, x).to_le_bytes()).collect();
        assert!(model.output(0)[..x.len()] == expected, "{seats} seats: outputs differ");
        for (seat, rows) in turn.iter().enumerate() {
            let mut row = vec![0; N * 4];
            model.read_row(0, rows.write, &mut row).expect("the row is read");
            assert!(row == expected[seat * N * 4..][..N * 4], "{seats} seats: row of seat {seat}");
        }
    }
}

/// A kernel that oversteps fails its turn with the node's name, leaves every row that the turn was not to write, and the
/// next turn is good.
pub fn faults(open: Open<'_>) {
    let capacity = Capacity { rows: 10, max_seats: 4 };
    let device = open(None);
    let (plan, signature) = plan(image(1 << 20));
    let mut model = PlannedModel::new(Arc::clone(&device), plan, signature).expect("the plan fits");
    model.prepare(capacity).expect("it is prepared");
    let rows = model.states()[0].clone();
    let mut before: Vec<u8> = (0..10 * N * 4).map(|at| at as u8).collect();
    device.write(rows.buffer(), 0, &before).expect("rows are written");
    let turn: Vec<_> = (0..4).map(|seat| SeatRows { read: RowId(9), write: RowId(seat) }).collect();
    for _ in 0..2 {
        match model.run(&turn, &mut Vec::new()) {
            Err(DeviceError::Fault { at, what }) => {
                assert_eq!(at, "node mix");
                assert!(what.contains("mix"), "{what}");
            }
            other => panic!("{other:?}"),
        }
    }
    let mut after = vec![0; before.len()];
    device.read(rows.buffer(), 0, &mut after).expect("rows are read");
    assert!(after.split_off(4 * N * 4) == before.split_off(4 * N * 4));
    device.health().expect("a fault is contained");
}

/// The same in turns that are queued: the one that oversteps says so when it ends, those around it are good.
pub fn later_faults(open: Open<'_>) {
    let capacity = Capacity { rows: 10, max_seats: 4 };
    let device = open(None);
    let prepared = |shift: usize| {
        let (plan, signature) = plan(image(shift));
        let rows =
            device.allocate("rows", Purpose::State, Placement::Device, 10 * N as u64 * 4).expect("there is room");
        let states = [StateRows::new(rows, N * 4, 10).expect("they fit")];
        let options = PrepareOptions { capacity, slots: 1, states: &states, residents: &[], overlap: true };
        device.prepare(&plan.check(&signature).expect("it is valid"), &options).expect("it is prepared")
    };
    let (good, bad) = (prepared(0), prepared(1 << 20));
    let turn: Vec<_> = (0..4).map(|seat| SeatRows { read: RowId(9), write: RowId(seat) }).collect();
    for _ in 0..3 {
        let (held, gate) = Completion::pending();
        let mut check = RowCheck::new(capacity);
        let mut sent = Vec::new();
        for executable in [&good, &bad] {
            let mut slot = device.lease(executable).expect("it is free");
            slot.input_mut(0).expect("it is idle").fill(0);
            let turn = check.check(&turn).expect("the rows are good");
            let ends = device.submit(executable, &mut slot, turn, std::slice::from_ref(&held)).expect("it is queued");
            sent.push((slot, ends));
        }
        gate.complete(Ok(Outcome::default()));
        let (slot, ends) = &sent[0];
        ends.wait().expect("the good one is good");
        assert!(slot.output(0).expect("it is idle").iter().all(|&byte| byte == 0));
        let (slot, ends) = &sent[1];
        match ends.wait() {
            Err(DeviceError::Fault { at, .. }) => assert_eq!(at, "node mix"),
            other => panic!("{other:?}"),
        }
        slot.output(0).expect("a slot whose turn failed is idle");
    }
    device.health().expect("a fault is contained");
}
