//! The order that a plan's commands need, found byte by byte, against the edges that are inferred from regions.
//!
//! ```text
//! plan + a turn's rows ──every byte of every seat──> who follows whom ──┬── closure equal, no edge too many
//! plan ──regions──> Hazards ────────────────────────────────────────────┘
//! ```
//!
//! - The oracle reads what each command does from its documentation, element by element, and puts it where it lies: seats
//!   side by side, states at the rows of a turn, scratch where a layout has it.
//! - The rule is one of bytes: a read follows the last write, a write follows the last write and the reads since.
//! - Scratch that shares memory conflicts as a whole, which may be more than its bytes ask for and is never less.
//! - Not here: accumulation, which no command but a kernel does (`lanes_core::hazard` has its own test of it).

use crate::random::{self, Random};
use lanes_core::hazard::Hazards;
use lanes_core::lanes::{Capacity, SeatRows};
use lanes_core::plan::{Activation, Argument, Command, Contraction, Plan, Precision, Region, Storage, StorageId, Term};
use lanes_core::scratch::{Layout, Placement, Value};
use lanes_core::{Scope, Signature};
use std::collections::BTreeSet;

/// For each command, the commands before it that it must follow, one after the other.
type Order = Vec<BTreeSet<usize>>;

/// Everything that is reached over `edges`.
fn closure(edges: &[BTreeSet<usize>]) -> Order {
    let mut reached = Order::new();
    for before in edges {
        let all = before.iter().flat_map(|&at| reached[at].iter().copied().chain([at])).collect();
        reached.push(all);
    }
    reached
}

/// Bytes of one storage that a command touches, one by one: of a seat, or of the row that the seat reads or writes.
struct Touched {
    storage: StorageId,
    bytes: Vec<usize>,
    writes: bool,
    reads: bool,
}

fn run_bytes(region: Region) -> Vec<usize> {
    let runs = (0..region.rows).map(|row| region.offset + row * region.stride);
    runs.flat_map(|start| start..start + region.row_bytes).collect()
}

fn touched(command: &Command) -> Vec<Touched> {
    let read = |storage, bytes| Touched { storage, bytes, writes: false, reads: true };
    let write = |storage, bytes| Touched { storage, bytes, writes: true, reads: false };
    match command {
        Command::Copy { from, to } => vec![read(from.0, run_bytes(from.1)), write(to.0, run_bytes(to.1))],
        Command::Fill { to, .. } => vec![write(to.0, run_bytes(to.1))],
        Command::Gather { state, row, to } => vec![read(*state, run_bytes(*row)), write(to.0, run_bytes(to.1))],
        Command::Scatter { from, state, row } => vec![read(from.0, run_bytes(from.1)), write(*state, run_bytes(*row))],
        Command::Contract(contraction) => {
            let element = |at: usize| at * 4..at * 4 + 4;
            let mut all = Vec::new();
            for term in &contraction.terms {
                let mut bytes = Vec::new();
                for p in 0..contraction.positions {
                    for t in 0..term.taps {
                        for c in 0..term.tap_len {
                            bytes.extend(element(term.offset + p * term.position_stride + t * term.tap_stride + c));
                        }
                    }
                }
                all.push(read(term.storage, bytes));
            }
            let mut bytes = Vec::new();
            for p in 0..contraction.positions {
                for n in 0..contraction.n {
                    bytes.extend(element(contraction.out_offset + p * contraction.out_position_stride + n));
                }
            }
            all.push(write(contraction.out, bytes));
            all
        }
        Command::Dispatch { arguments, .. } => {
            let mut all = Vec::new();
            for argument in arguments {
                let Argument::Buffer { storage, uses, .. } = argument else { continue };
                for (region, access) in uses {
                    let (writes, reads) = (access.writes(), access.reads());
                    all.push(Touched { storage: *storage, bytes: run_bytes(*region), writes, reads });
                }
            }
            all
        }
    }
}

/// Who touched a byte last.
#[derive(Clone, Default)]
struct Byte {
    writer: Option<usize>,
    readers: Vec<usize>,
}

/// The order over all bytes of all seats. Without a layout every storage lies apart.
fn oracle(plan: &Plan, seats: &[SeatRows], layout: Option<&Layout>) -> Order {
    let scratch = plan.storages.len();
    let mut memory: Vec<Vec<Byte>> = vec![Vec::new(); scratch + 1];
    let mut edges = Order::new();
    for (at, command) in plan.commands.iter().enumerate() {
        let mut before = BTreeSet::new();
        // What a command reads it reads before it writes.
        let touched = touched(command);
        for writing in [false, true] {
            for touch in touched.iter().filter(|touch| if writing { touch.writes } else { touch.reads }) {
                let id = touch.storage.0 as usize;
                for (seat, rows) in seats.iter().enumerate() {
                    let (space, start) = match plan.storages[id] {
                        Storage::Constant { .. } | Storage::SharedInput { .. } | Storage::Resident { .. } => (id, 0),
                        Storage::Input { bytes, .. } | Storage::Output { bytes, .. } => (id, seat * bytes),
                        Storage::State { bytes, .. } => {
                            let row = if touch.writes { rows.write } else { rows.read };
                            (id, row.0 as usize * bytes)
                        }
                        Storage::Scratch { bytes } => match layout.and_then(|layout| layout.start(touch.storage)) {
                            Some(start) => (scratch, start + seat * bytes),
                            None => (id, seat * bytes),
                        },
                    };
                    for byte in &touch.bytes {
                        let byte = start + byte;
                        if memory[space].len() <= byte {
                            memory[space].resize(byte + 1, Byte::default());
                        }
                        let byte = &mut memory[space][byte];
                        before.extend(byte.writer);
                        if writing {
                            before.extend(byte.readers.drain(..));
                            byte.writer = Some(at);
                        } else if byte.readers.last() != Some(&at) {
                            byte.readers.push(at);
                        }
                    }
                }
            }
        }
        before.remove(&at);
        edges.push(before);
    }
    closure(&edges)
}

/// The order of `plan` without a layout, and of scratch storages that share memory as wholes.
fn as_wholes(plan: &Plan, apart: &Order, layout: &Layout, seats: usize) -> Order {
    let range = |id: StorageId| match plan.storages[id.0 as usize] {
        Storage::Scratch { bytes } => layout.start(id).map(|start| start..start + bytes * seats),
        _ => None,
    };
    let share = |a: StorageId, b: StorageId| match (range(a), range(b)) {
        (Some(a_range), Some(b_range)) => a != b && a_range.start < b_range.end && b_range.start < a_range.end,
        _ => false,
    };
    let touched: Vec<Vec<Touched>> = plan.commands.iter().map(touched).collect();
    let mut edges = apart.clone();
    for at in 0..touched.len() {
        for earlier in 0..at {
            let mut pairs = touched[at].iter().flat_map(|now| touched[earlier].iter().map(move |then| (now, then)));
            if pairs.any(|(now, then)| (now.writes || then.writes) && share(now.storage, then.storage)) {
                edges[at].insert(earlier);
            }
        }
    }
    closure(&edges)
}

/// What `hazards` orders, once it is sure that no edge of it follows from others, and that levels are what they are said
/// to be.
fn ordered(hazards: &Hazards, commands: usize, what: &str) -> Order {
    let edges: Order = (0..commands)
        .map(|at| hazards.before(at).iter().map(|&earlier| earlier as usize).collect::<BTreeSet<_>>())
        .collect();
    let reached = closure(&edges);
    for (at, before) in edges.iter().enumerate() {
        for edge in before {
            let implied = before.iter().any(|other| reached[*other].contains(edge));
            assert!(!implied, "{what}: edge {edge} -> {at} follows from others");
        }
        let level = before.iter().map(|&edge| hazards.level(edge) + 1).max().unwrap_or(0);
        assert_eq!(hazards.level(at), level, "{what}: level of {at}");
    }
    assert_eq!(hazards.edges(), edges.iter().map(BTreeSet::len).sum::<usize>(), "{what}");
    reached
}

/// Both orders of a plan, apart and laid out for as many seats, are those of the oracle.
fn check(plan: &Plan, signature: &Signature, seats: &[SeatRows], what: &str) -> (Hazards, Hazards) {
    let checked = plan.check(signature).unwrap_or_else(|error| panic!("{what}: {error}\n{plan:#?}"));
    let commands = plan.commands.len();
    let (apart, apart_expected) = (Hazards::of(&checked), oracle(plan, seats, None));
    assert_eq!(ordered(&apart, commands, what), apart_expected, "{what}: {plan:#?}");
    let layout = Layout::of(&checked, seats.len()).expect("scratch of a test is small");
    let laid_out = Hazards::with_layout(&checked, &layout);
    let found = ordered(&laid_out, commands, what);
    assert_eq!(found, as_wholes(plan, &apart_expected, &layout, seats.len()), "{what}, laid out: {plan:#?}");
    for (at, bytes) in oracle(plan, seats, Some(&layout)).iter().enumerate() {
        assert!(bytes.is_subset(&found[at]), "{what}: command {at} follows {:?}, its bytes {bytes:?}", found[at]);
    }
    (apart, laid_out)
}

/// Random plans: overlapping strided regions of scratch and outputs, and states by the rows of random turns.
pub fn random_plans() {
    let capacity = Capacity { rows: 9, max_seats: 3 };
    let (mut edges, mut shared) = (0, 0);
    for seed in 0..200 {
        let (plan, signature) = random::plan(seed);
        let mut random = Random(!seed);
        let seats = random.within(1, 3);
        let turn = random::turn(&mut random, capacity, seats);
        let (apart, laid_out) = check(&plan, &signature, &turn, &format!("seed {seed}"));
        edges += apart.edges();
        shared += usize::from(laid_out != apart);
    }
    // Else little was compared.
    assert!(edges > 1000 && shared > 20, "{edges} edges, {shared} plans whose scratch shares memory");
}

/// Eight heads that write column slices of one buffer, each from scratch of its own, stay independent.
pub fn heads() {
    const HEADS: usize = 8;
    const WIDTH: usize = 8;
    const POSITIONS: usize = 16;
    let mut plan = Plan { name: "heads".into(), ..Plan::default() };
    let bytes = HEADS * WIDTH * POSITIONS * 4;
    let x = plan.storage(Storage::Input { port: 0, bytes });
    let joined = plan.storage(Storage::Scratch { bytes });
    let out = plan.storage(Storage::Output { port: 0, bytes });
    let mut random = Random(5);
    for head in 0..HEADS {
        let columns = |storage| Term {
            storage,
            offset: head * WIDTH,
            position_stride: HEADS * WIDTH,
            taps: 1,
            tap_stride: 0,
            tap_len: WIDTH,
        };
        plan.commands.push(Command::Contract(Contraction {
            label: format!("head{head}"),
            terms: vec![columns(x)],
            weights: random.f32s(WIDTH * WIDTH).into(),
            precision: Precision::F32,
            bias: None,
            activation: Activation::None,
            positions: POSITIONS,
            n: WIDTH,
            out: joined,
            out_offset: head * WIDTH,
            out_position_stride: HEADS * WIDTH,
        }));
    }
    let whole = Region::contiguous(0, bytes);
    plan.commands.push(Command::Copy { from: (joined, whole), to: (out, whole) });
    let signature = Signature {
        name: "heads".into(),
        inputs: vec![random::port("x", bytes / 4, Scope::Seat)],
        outputs: vec![random::port("y", bytes / 4, Scope::Seat)],
        ..Signature::default()
    };
    let turn = random::turn(&mut random, Capacity { rows: 5, max_seats: 2 }, 2);
    let (apart, laid_out) = check(&plan, &signature, &turn, "heads");
    for hazards in [apart, laid_out] {
        assert_eq!(hazards.levels(), [(0..HEADS as u32).collect::<Vec<_>>(), vec![HEADS as u32]]);
    }
}

/// Values with lifetimes, placed by the public planner: byte by byte none is in use twice, no placement is smaller than
/// what is alive at once, equal values are placed equally, and what cannot be placed is refused in words.
pub fn scratch() {
    const COMMANDS: usize = 20;
    for seed in 0..100 {
        let mut random = Random(seed);
        let mut value = || {
            let first = random.below(COMMANDS);
            Value { bytes: random.below(2000), first, last: first + random.below(COMMANDS - first) }
        };
        let values: Vec<Value> = (0..30).map(|_| value()).collect();
        let placement = Placement::of(&values).expect("they are small");
        assert_eq!(placement, Placement::of(&values.clone()).expect("they are small"), "seed {seed}");
        let mut alive_max = 0;
        for command in 0..COMMANDS {
            let mut used = vec![None; placement.bytes()];
            for (at, value) in values.iter().enumerate().filter(|(_, v)| v.first <= command && command <= v.last) {
                for byte in &mut used[placement.start(at)..][..value.bytes] {
                    assert_eq!(byte.replace(at), None, "seed {seed}: values share a byte at command {command}");
                }
            }
            alive_max = alive_max.max(used.iter().flatten().count());
        }
        assert!((alive_max..=placement.bytes()).contains(&placement.least()), "seed {seed}");
    }
    let values = [Value { bytes: 8, first: 0, last: 3 }, Value { bytes: 8, first: 2, last: 1 }];
    let error = Placement::of(&values).expect_err("the second ends before it starts");
    let expected = "scratch value 1 lives from command 2 to 1: the last may not be before the first";
    assert_eq!(error.to_string(), expected);
    let error = Placement::of(&[Value { bytes: usize::MAX, first: 0, last: 0 }]).expect_err("it is no size");
    assert_eq!(error.to_string(), format!("scratch values of more than {} bytes together", isize::MAX));
}
