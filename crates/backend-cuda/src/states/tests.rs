//! Plans of cells, whose states lie anywhere, against the same plans with every move made, all on an emulated device.

use super::*;
use crate::emulated;
use lanes_core::device::Device;
use lanes_core::lanes::{Capacity, LanedModel, RowId};
use lanes_core::plan::{Access, Activation, Argument, KernelId, Scalar, Term};
use lanes_core::planned::PlannedModel;
use lanes_core::{DType, Scope, Signature, StateKind, StateSpec};
use lanes_tests::random::{self, Random, f32_bytes, port};
use std::collections::BTreeMap;
use std::sync::Arc;

const CAPACITY: Capacity = Capacity { rows: 15, max_seats: 7 };

/// A plan being made, and what may be read: storages with the run of elements that is written.
struct Build {
    plan: Plan,
    signature: Signature,
    made: Vec<(StorageId, usize, usize)>,
    positions: usize,
}

const fn run(first: usize, count: usize) -> Region {
    Region::contiguous(first * ELEMENT, count * ELEMENT)
}

impl Build {
    fn scratch(&mut self, elements: usize) -> StorageId {
        self.plan.storage(Storage::Scratch { bytes: elements * ELEMENT })
    }

    /// A part of a state, `count` elements, somewhere in scratch: the storage and where.
    fn gathered(&mut self, random: &mut Random, state: StorageId, count: usize) -> (StorageId, usize) {
        let room = self.plan.storages[state.0 as usize].bytes() / ELEMENT - count;
        let (before, behind) = if random.one_in(2) { (0, 0) } else { (random.below(5), random.below(5)) };
        let to = self.scratch(before + count + behind);
        if random.one_in(8) {
            let pattern = 0x3f80_0000 * random.below(2) as u32;
            self.plan.commands.push(Command::Fill { to: (to, run(0, before + count + behind)), pattern });
        }
        let first = if random.one_in(2) { 0 } else { random.below(room + 1) };
        self.plan.commands.push(Command::Gather { state, row: run(first, count), to: (to, run(before, count)) });
        if random.one_in(10) {
            let over = random.within(1, count);
            let row = run(random.below(room + 1), over);
            self.plan.commands.push(Command::Gather { state, row, to: (to, run(before, over)) });
        }
        self.made.push((to, before, count));
        (to, before)
    }

    /// A window anywhere in what is made, or the whole of it.
    fn term(&self, random: &mut Random) -> Term {
        let (storage, first, count) = self.made[self.made.len() - 1 - random.below(self.made.len().min(5))];
        let each = count / self.positions;
        if each > 0 && random.one_in(2) {
            return Term { storage, offset: first, position_stride: each, taps: 1, tap_stride: 0, tap_len: each };
        }
        let tap_len = random.within(1, count.min(9));
        let taps = random.within(1, 2);
        let tap_stride = random.below((count - tap_len) / taps + 1);
        let room = count - tap_len - (taps - 1) * tap_stride;
        let position_stride = random.below(room / self.positions + 1);
        let offset = first + random.below(room - (self.positions - 1) * position_stride + 1);
        Term { storage, offset, position_stride, taps, tap_stride, tap_len }
    }

    fn contraction(&mut self, random: &mut Random, n: usize, out: StorageId, precision: Precision) {
        let terms: Vec<Term> = (0..random.within(1, 3)).map(|_| self.term(random)).collect();
        let k: usize = terms.iter().map(Term::k).sum();
        self.plan.commands.push(Command::Contract(Contraction {
            label: "product".into(),
            terms,
            weights: random.f32s(k * n).into(),
            precision,
            bias: random.one_in(2).then(|| random.f32s(n).into()),
            activation: Activation::None,
            positions: self.positions,
            n,
            out,
            out_offset: 0,
            out_position_stride: n,
        }));
    }

    /// A launch that goes on with the contraction before it, as a kernel of its own and as an epilogue.
    fn cell(
        &mut self,
        random: &mut Random,
        n: usize,
        units: usize,
        sums: StorageId,
        memory: &[Elements],
        results: Vec<Elements>,
    ) {
        let positions = self.positions;
        let columns = (0..n / units).map(|group| {
            let at = Elements { storage: sums, offset: group * units, position_stride: n, unit_stride: 1 };
            (Operand::Columns(group * units), at)
        });
        let operands: Vec<(Operand, Elements)> =
            columns.chain(memory.iter().map(|&at| (Operand::Memory(at), at))).collect();
        let (mut body, mut last) = (String::new(), "%operand0".to_owned());
        for at in 1..operands.len() {
            let op = if at % 2 == 0 { "mulf" } else { "addf" };
            body += &format!("  %x{at} = scalar.{op} {last}, %operand{at} : f32\n");
            last = format!("%x{at}");
        }
        body += &format!("  %y0 = scalar.addf {last}, %operand0 : f32\n  %y1 = scalar.subf {last}, %operand0 : f32\n");
        let made: Vec<String> = (0..results.len()).map(|at| format!("%y{at}")).collect();
        let mut text = format!(
            "kernel.def export(\"unit\") @unit(%seats: index) {{
  %one = index.constant 1 : index
  %positions = index.constant {positions} : index
  %units = index.constant {units} : index
  kernel.launch.config workgroups(%units, %positions, %seats) workgroup_size(%one, %one, %one) : index
}} launch(%seats: index"
        );
        let places: Vec<Elements> = operands.iter().map(|(_, at)| *at).chain(results.iter().copied()).collect();
        let mut ids: Vec<StorageId> = places.iter().map(|place| place.storage).collect();
        ids.sort_unstable_by_key(|id| id.0);
        ids.dedup();
        ids.iter().for_each(|id| text += &format!(", %b{}: buffer", id.0));
        text += ") {\n  %start = index.constant 0 : offset\n  %seat = kernel.workgroup.id<z> : index\n";
        text += "  %position = kernel.workgroup.id<y> : index\n  %unit = kernel.workgroup.id<x> : index\n";
        for id in &ids {
            let (id, each) = (id.0, self.plan.storages[id.0 as usize].bytes() / ELEMENT);
            text += &format!(
                "  %each{id} = index.constant {each} : index\n  %all{id} = index.mul %seats, %each{id} : index\n"
            );
            text += &format!("  %v{id} = buffer.view %b{id}[%start] : buffer -> view<[%all{id}]xf32>\n");
        }
        for (at, place) in places.iter().enumerate() {
            for (name, value) in [("o", place.offset), ("p", place.position_stride), ("u", place.unit_stride)] {
                text += &format!("  %{name}{at} = index.constant {value} : index\n");
            }
            text += &format!("  %f{at} = index.madd %seat, %each{}, %o{at} : index\n", place.storage.0);
            text += &format!("  %g{at} = index.madd %position, %p{at}, %f{at} : index\n");
            text += &format!("  %at{at} = index.madd %unit, %u{at}, %g{at} : index\n");
            if at < operands.len() {
                let id = place.storage.0;
                text += &format!("  %operand{at} = view.load %v{id}[%at{at}] : view<[%all{id}]xf32> -> f32\n");
            }
        }
        text += &body;
        for (at, (to, made)) in results.iter().zip(&made).enumerate() {
            let (id, at) = (to.storage.0, operands.len() + at);
            text += &format!("  view.store {made}, %v{id}[%at{at}] : f32, view<[%all{id}]xf32>\n");
        }
        text += "  kernel.return\n}\n";
        let image = loom_compiler::compile_cpu("unit.loom", &text, "unit", &BTreeMap::new());
        self.plan.kernels.push(Arc::new(image.unwrap_or_else(|error| panic!("{error}\n{text}"))));
        let region = |place: &Elements| {
            let last = (positions - 1) * place.position_stride + (units - 1) * place.unit_stride;
            run(place.offset, last + 1)
        };
        let buffer = |&id: &StorageId| {
            let read = operands.iter().filter(|(_, at)| at.storage == id).map(|(_, at)| (region(at), Access::Read));
            let written = results.iter().filter(|at| at.storage == id).map(|at| (region(at), Access::Write));
            // What lies side by side is written as one, or each for itself.
            let mut written: Vec<(Region, Access)> = written.collect();
            if let ([(a, _), (b, _)], true) = (&written[..], random.one_in(2))
                && (a.end() == b.offset)
            {
                written = vec![(Region::contiguous(a.offset, b.end() - a.offset), Access::Write)];
            }
            Argument::Buffer { storage: id, window: None, uses: read.chain(written).collect() }
        };
        let arguments = std::iter::once(Argument::Scalar(Scalar::Seats)).chain(ids.iter().map(buffer)).collect();
        let dispatch = self.plan.commands.len();
        self.plan.commands.push(Command::Dispatch {
            label: "cell".into(),
            kernel: KernelId(self.plan.kernels.len() as u32 - 1),
            workload: vec![Scalar::Seats],
            arguments,
        });
        let operands = operands.into_iter().map(|(operand, _)| operand).collect();
        self.plan.epilogues.push(Epilogue {
            contraction: dispatch - 1,
            dispatch,
            units,
            operands,
            results,
            body,
            made,
        });
    }

    fn output(&mut self, from: (StorageId, usize, usize)) {
        let number = self.signature.outputs.len();
        let (storage, first, count) = from;
        self.signature.outputs.push(port(&format!("y{number}"), count, Scope::Seat));
        let out = self.plan.storage(Storage::Output { port: number, bytes: count * ELEMENT });
        self.plan.commands.push(Command::Copy { from: (storage, run(first, count)), to: (out, run(0, count)) });
    }
}

/// One to three cells, each of states that it, or another, scatters: in whole or in part, once or twice, from storages of their own or
/// halves of one, behind other elements; and what they gather is read by contractions, cells, copies, and again later.
fn cells(seed: u64, precision: Precision) -> (Plan, Signature) {
    let random = &mut Random(seed ^ 0xce11);
    let positions = [1, 1, 2, 3][random.below(4)];
    let units = if random.one_in(3) { random.within(1, 9) } else { 4 * random.within(1, 4) };
    let all = positions * units;
    let name = format!("cells{seed}");
    let plan = Plan { name: name.clone(), ..Plan::default() };
    let mut build = Build { plan, signature: Signature { name, ..Signature::default() }, made: vec![], positions };
    // What a state has around a cell's part is up to six elements, and scattered from here.
    let width = random.within(all, all + 20).max(6);
    build.signature.inputs.push(port("x", width, Scope::Seat));
    let x = build.plan.storage(Storage::Input { port: 0, bytes: width * ELEMENT });
    build.made.push((x, 0, width));
    let layers = random.within(1, 3);
    let mut states = Vec::new();
    for at in 0..2 * layers {
        let elements = all + if random.one_in(2) { 0 } else { random.below(7) };
        build.signature.states.push(StateSpec {
            input: format!("s{at}"),
            output: format!("s{at}_out"),
            dtype: DType::F32,
            lane_shape: vec![elements],
            initial: Some(f32_bytes(random, elements).into()),
            kind: StateKind::Replaced,
        });
        states.push(build.plan.storage(Storage::State { state: at, bytes: elements * ELEMENT }));
    }
    for layer in 0..layers {
        let mut gathered = Vec::new();
        for _ in 0..random.within(1, 3) {
            let state = states[random.below(states.len())];
            gathered.push(build.gathered(random, state, all));
        }
        if random.one_in(5) {
            let &(storage, first) = &gathered[random.below(gathered.len())];
            build.output((storage, first, all));
        }
        let groups = [1, 2, 4][random.below(3)];
        let n = groups * units;
        let sums = build.scratch(positions * n);
        build.contraction(random, n, sums, precision);
        let mut memory = Vec::new();
        for _ in 0..random.below(3) {
            let (storage, offset) = gathered[random.below(gathered.len())];
            let (position_stride, unit_stride) = if random.one_in(3) { (1, positions) } else { (units, 1) };
            memory.push(Elements { storage, offset, position_stride, unit_stride });
        }
        let count = random.within(1, 2);
        let before = if random.one_in(2) { 0 } else { 4 * random.below(2) + random.below(2) };
        let together = count == 2 && random.one_in(2);
        let shared = build.scratch(before + 2 * all);
        let results: Vec<Elements> = (0..count)
            .map(|at| {
                let (storage, offset) = match together {
                    true => (shared, before + at * all),
                    false => (build.scratch(before + all), before),
                };
                Elements { storage, offset, position_stride: units, unit_stride: 1 }
            })
            .collect();
        build.cell(random, n, units, sums, &memory, results.clone());
        build.made.extend(results.iter().map(|to| (to.storage, to.offset, all)));
        for at in 0..2 {
            let from = results[random.below(count)];
            let state = states[2 * layer + at];
            let elements = build.plan.storages[state.0 as usize].bytes() / ELEMENT;
            let first = random.below(elements - all + 1);
            let from = (from.storage, run(from.offset, all));
            build.plan.commands.push(Command::Scatter { from, state, row: run(first, all) });
            for (start, end) in [(0, first), (first + all, elements)] {
                if end > start {
                    let from = (x, run(0, end - start));
                    build.plan.commands.push(Command::Scatter { from, state, row: run(start, end - start) });
                }
            }
            if random.one_in(8) {
                let from = (x, run(0, 1));
                build.plan.commands.push(Command::Scatter { from, state, row: run(first, 1) });
            }
        }
        if random.one_in(3) {
            let result = results[random.below(count)];
            build.output((result.storage, result.offset, all));
        }
    }
    let n = random.within(1, 20);
    let out = build.scratch(positions * n);
    build.contraction(random, n, out, precision);
    build.output((out, 0, positions * n));
    (build.plan, build.signature)
}

/// The same with nothing left out: no hints, and somebody else who reads each gather.
fn moved(plan: &Plan) -> Plan {
    let mut plan = Plan { epilogues: vec![], ..plan.clone() };
    for (id, region) in gathers(&plan) {
        let to = plan.storage(Storage::Scratch { bytes: region.end() });
        plan.commands.push(Command::Copy { from: (id, region), to: (to, region) });
    }
    plan
}

fn gathers(plan: &Plan) -> Vec<(StorageId, Region)> {
    let to = |command: &Command| match command {
        Command::Gather { to, .. } => Some(*to),
        _ => None,
    };
    plan.commands.iter().filter_map(to).collect()
}

/// Outputs, and all rows of states, of some turns.
fn turns(device: &Arc<dyn Device>, seed: u64, plan: Plan, signature: &Signature) -> Vec<Vec<u8>> {
    let mut model = PlannedModel::new(Arc::clone(device), plan.clone(), signature.clone())
        .unwrap_or_else(|error| panic!("seed {seed}: {error}\n{plan:#?}"));
    model.prepare(CAPACITY).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let (mut random, mut all) = (Random(!seed), Vec::new());
    for seats in [7, 5, 1, 3] {
        let bytes = f32_bytes(&mut random, signature.inputs[0].elements() * seats);
        model.input_mut(0)[..bytes.len()].copy_from_slice(&bytes);
        let turn = random::turn(&mut random, CAPACITY, seats);
        model.run(&turn, &mut Vec::new()).expect("the turn runs");
        let outputs = signature.outputs.iter().enumerate();
        all.extend(outputs.map(|(port, of)| model.output(port)[..of.bytes() * seats].to_vec()));
        for (state, of) in signature.states.iter().enumerate() {
            for row in 0..CAPACITY.rows {
                let mut bytes = vec![0; of.bytes()];
                model.read_row(state, RowId(row), &mut bytes).expect("the row is read");
                all.push(bytes);
            }
        }
    }
    all
}

#[test]
fn states_are_what_they_are_with_every_move_made() {
    let (device, _alone) = emulated::alone();
    let device: Arc<dyn Device> = device;
    let first = std::env::var("CELLS_FIRST").ok().and_then(|first| first.parse().ok()).unwrap_or(0);
    let count = std::env::var("CELLS").ok().and_then(|count| count.parse().ok()).unwrap_or(16);
    let (mut read, mut written, mut left) = (0, 0, 0);
    for seed in first..first + count {
        for precision in [Precision::F32, Precision::Bf16] {
            let (plan, signature) = cells(seed, precision);
            let checked = plan.check(&signature).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{plan:#?}"));
            let parts = crate::steps::parts(&checked, 7);
            read += parts.iter().filter(|part| **part == Part::Read).count();
            written += parts.iter().filter(|part| matches!(part, Part::Written(_))).count();
            left += parts
                .iter()
                .zip(&plan.commands)
                .filter(|(part, command)| **part == Part::Alone && matches!(command, Command::Gather { .. }))
                .count();
            let expected = turns(&device, seed, moved(&plan), &signature);
            let found = turns(&device, seed, plan, &signature);
            let differs = expected.iter().zip(&found).position(|(a, b)| a != b);
            assert_eq!(differs, None, "seed {seed}, {precision:?}");
        }
    }
    eprintln!("{read} read, {written} written, {left} gathers left");
    assert!(
        read > count as usize / 2 && written > count as usize / 2,
        "{read} gathers and {written} scatters of {count}"
    );
}
