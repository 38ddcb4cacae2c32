//! One plan that passes, and for every sentence of the module's list a change that must not.

use super::*;
use crate::plan::{Access, Activation, KernelId, Precision};
use crate::{DType, Port, StateKind, StateSpec};
use proptest::prelude::*;
use std::sync::Arc;

const WHOLE: Region = Region::contiguous(0, 16);

fn signature() -> Signature {
    let port = |name: &str, scope| Port { name: name.into(), dtype: DType::F32, shape: vec![4], scope };
    Signature {
        name: "m".into(),
        inputs: vec![port("x", Scope::Seat), port("rate", Scope::Turn)],
        outputs: vec![port("y", Scope::Seat)],
        states: vec![StateSpec {
            input: "h".into(),
            output: "h_out".into(),
            dtype: DType::F32,
            lane_shape: vec![4],
            initial: None,
            kind: StateKind::Replaced,
        }],
    }
}

/// Storages 0 to 6: constant, input, shared input, output, state, and two scratches of 16 bytes.
fn plan() -> Plan {
    let mut plan = Plan { name: "p".into(), ..Plan::default() };
    plan.storage(Storage::Constant { label: "c".into(), bytes: vec![0; 16].into() });
    plan.storage(Storage::Input { port: 0, bytes: 16 });
    plan.storage(Storage::SharedInput { port: 1, bytes: 16 });
    plan.storage(Storage::Output { port: 0, bytes: 16 });
    plan.storage(Storage::State { state: 0, bytes: 16 });
    plan.storage(Storage::Scratch { bytes: 16 });
    plan.storage(Storage::Scratch { bytes: 16 });
    plan.kernel(Arc::new(kernel()));
    plan.commands = vec![
        Command::Gather { state: STATE, row: WHOLE, to: (A, WHOLE) },
        Command::Contract(contraction()),
        Command::Copy { from: (B, WHOLE), to: (OUT, WHOLE) },
        Command::Scatter { from: (B, WHOLE), state: STATE, row: WHOLE },
    ];
    plan
}

const CONSTANT: StorageId = StorageId(0);
const INPUT: StorageId = StorageId(1);
const SHARED: StorageId = StorageId(2);
const OUT: StorageId = StorageId(3);
const STATE: StorageId = StorageId(4);
const A: StorageId = StorageId(5);
const B: StorageId = StorageId(6);

/// `b = [x[0..2], rate[1..3], a[0..1], a[2..3]] * W`, at two positions of two columns.
fn contraction() -> Contraction {
    let term = |storage, offset, taps, tap_stride, tap_len| Term {
        storage,
        offset,
        position_stride: 1,
        taps,
        tap_stride,
        tap_len,
    };
    Contraction {
        label: "gemm".into(),
        terms: vec![term(INPUT, 0, 1, 0, 2), term(SHARED, 1, 1, 0, 2), term(A, 0, 2, 2, 1)],
        weights: vec![0.5; 12].into(),
        precision: Precision::F32,
        bias: Some(vec![1.0; 2].into()),
        activation: Activation::None,
        positions: 2,
        n: 2,
        out: B,
        out_offset: 0,
        out_position_stride: 2,
    }
}

fn refused(change: impl FnOnce(&mut Plan), said: &str) {
    let mut plan = plan();
    change(&mut plan);
    let error = plan.check(&signature()).expect_err(said).to_string();
    assert!(error.contains(said), "{error:?} does not say {said:?}");
}

fn contracted(change: impl FnOnce(&mut Contraction), said: &str) {
    refused(
        |plan| {
            let mut contraction = contraction();
            change(&mut contraction);
            plan.commands[1] = Command::Contract(contraction);
        },
        said,
    );
}

/// Takes a number and three buffers, and stores to the last.
fn kernel() -> loom_compiler::CpuImage {
    let text = r#"
kernel.def export("add") @add(%seats: index) {
  %one = index.constant 1 : index
  kernel.launch.config workgroups(%seats, %one, %one) workgroup_size(%one, %one, %one) : index
} launch(%seats: index, %x: buffer, %y: buffer, %z: buffer) {
  %zero = index.constant 0 : offset
  %xv = buffer.view %x[%zero] : buffer -> view<[%seats]xf32>
  %zv = buffer.view %z[%zero] : buffer -> view<[%seats]xf32>
  %item = kernel.workitem.dispatch.id<x> : index
  %a = view.load %xv[%item] : view<[%seats]xf32> -> f32
  view.store %a, %zv[%item] : f32, view<[%seats]xf32>
  kernel.return
}
"#;
    loom_compiler::compile_cpu("add.loom", text, "add", &BTreeMap::new()).unwrap()
}

/// `add` on three buffers: the first uses, then the output, which is what lets it store.
fn dispatch(uses: &[(StorageId, Region, Access)]) -> Command {
    let buffer = |&(storage, region, access)| Argument::Buffer { storage, window: None, uses: vec![(region, access)] };
    let unused = Argument::Buffer { storage: INPUT, window: None, uses: vec![] };
    let mut arguments: Vec<_> = uses.iter().map(buffer).collect();
    arguments.resize(2, unused);
    arguments.insert(0, Argument::Scalar(Scalar::Seats));
    arguments.push(buffer(&(OUT, WHOLE, Access::Write)));
    Command::Dispatch { label: "add".into(), kernel: KernelId(0), workload: vec![Scalar::Seats], arguments }
}

#[test]
fn the_plan_itself_passes() {
    plan().check(&signature()).unwrap();
}

#[test]
fn numbers_name_something() {
    refused(
        |plan| plan.storages[1] = Storage::Input { port: 2, bytes: 16 },
        "storage 1 names input 2, and there are 2",
    );
    refused(|plan| plan.storages[3] = Storage::Output { port: 1, bytes: 16 }, "names output 1, and there are 1");
    refused(|plan| plan.storages[4] = Storage::State { state: 7, bytes: 16 }, "names state 7, and there are 1");
    let copy = Command::Copy { from: (StorageId(9), WHOLE), to: (A, WHOLE) };
    refused(|plan| plan.commands.insert(2, copy), "command 2 (copy) names storage 9, and there are 7");
}

#[test]
fn storages_are_those_of_the_signature_once_each() {
    refused(
        |plan| plan.storages[1] = Storage::Input { port: 0, bytes: 12 },
        "12 bytes per Seat for input 0, which has 16",
    );
    refused(|plan| plan.storages[1] = Storage::Input { port: 1, bytes: 16 }, "16 per Turn");
    refused(|plan| plan.storages[2] = Storage::SharedInput { port: 0, bytes: 16 }, "16 bytes per Turn for input 0");
    refused(|plan| plan.storages[4] = Storage::State { state: 0, bytes: 8 }, "8 bytes per Seat for state 0");
    refused(
        |plan| plan.storages.push(Storage::Input { port: 0, bytes: 16 }),
        "storage 7: input 0 has a storage already",
    );
    refused(|plan| plan.storages[3] = Storage::Scratch { bytes: 16 }, "no storage for output y");
    let stateless = |plan: &mut Plan| {
        plan.storages[4] = Storage::Scratch { bytes: 16 };
        plan.commands.truncate(0);
    };
    refused(stateless, "no storage for state h");
}

#[test]
fn regions_lie_in_their_storage_and_do_not_fold() {
    let to = |region: Region| move |plan: &mut Plan| plan.commands.push(Command::Fill { to: (A, region), pattern: 0 });
    let region = |offset, row_bytes, stride, rows| Region { offset, row_bytes, stride, rows };
    refused(to(region(4, 16, 16, 1)), "in storage 5 of 16 bytes ends past it");
    refused(to(region(0, 4, 8, 3)), "ends past it");
    refused(to(region(0, 0, 4, 4)), "is empty");
    refused(to(region(0, 4, 4, 0)), "is empty");
    refused(to(region(0, 8, 4, 2)), "has runs that overlap");
    refused(to(region(usize::MAX, 4, 4, 1)), "ends past it");
    refused(to(region(0, 4, usize::MAX, 3)), "ends past it");
    refused(to(region(0, usize::MAX, usize::MAX, 2)), "is empty or has more bytes");
    refused(to(region(0, 2, 8, 2)), "runs of 2 bytes, not whole 4-byte patterns");
    let runs = |plan: &mut Plan| plan.commands[2] = Command::Copy { from: (B, region(0, 8, 8, 2)), to: (OUT, WHOLE) };
    refused(runs, "command 2 (copy): 2 runs of 8 bytes go to 1 runs of 16");
    let row = Command::Scatter { from: (B, WHOLE), state: STATE, row: region(4, 16, 16, 1) };
    refused(|plan| plan.commands[3] = row, "command 3 (scatter): Region");
}

#[test]
fn each_kind_of_storage_is_used_as_it_may_be() {
    let copy = |from, to| {
        move |plan: &mut Plan| plan.commands.insert(2, Command::Copy { from: (from, WHOLE), to: (to, WHOLE) })
    };
    refused(copy(B, CONSTANT), "writes storage 0, a constant");
    refused(copy(B, INPUT), "writes storage 1, an input");
    refused(copy(B, SHARED), "writes storage 2, an input");
    refused(copy(B, STATE), "writes storage 4, a state: only a scatter");
    refused(copy(STATE, A), "reads storage 4, a state: only a gather");
    let gather =
        |state, to| move |plan: &mut Plan| plan.commands[0] = Command::Gather { state, row: WHOLE, to: (to, WHOLE) };
    refused(gather(INPUT, A), "gathers from or scatters to storage 1, no state");
    refused(gather(STATE, STATE), "writes storage 4, a state");
    let scatter = Command::Scatter { from: (B, WHOLE), state: A, row: WHOLE };
    refused(|plan| plan.commands[3] = scatter, "gathers from or scatters to storage 5, no state");
    contracted(|it| it.terms[0].storage = STATE, "reads storage 4, a state");
    contracted(|it| it.out = INPUT, "writes storage 1, an input");
    for (storage, access) in [(STATE, Access::Read), (CONSTANT, Access::ReadWrite), (SHARED, Access::Accumulate)] {
        refused(|plan| plan.commands.push(dispatch(&[(storage, WHOLE, access)])), "(add) ");
    }
}

#[test]
fn contractions_are_what_their_lengths_say() {
    contracted(|it| it.weights = vec![0.0; 11].into(), "11 weights for windows [(1, 2), (1, 2), (2, 1)] and 2 columns");
    contracted(|it| it.bias = Some(vec![0.0; 3].into()), "3 bias values for 2 columns");
    contracted(|it| it.positions = 0, "0 positions: none may be 0");
    contracted(|it| (it.terms, it.weights) = (vec![], vec![].into()), "K is 0");
    contracted(|it| it.terms[0].offset = 2, "ends past the 4 elements");
    contracted(|it| it.terms[0].offset = usize::MAX, "ends past the 4 elements");
    contracted(|it| it.terms[1].position_stride = 2, "ends past the 4 elements");
    contracted(|it| it.terms[2].tap_stride = 3, "ends past the 4 elements");
    contracted(|it| it.terms[2].taps = usize::MAX, "12 weights for windows");
    contracted(|it| it.n = usize::MAX, "12 weights for windows");
    contracted(|it| it.out_position_stride = 3, "ends past it");
    contracted(|it| it.out_position_stride = 1, "has runs that overlap");
    contracted(|it| it.out_offset = usize::MAX / 2, "end past any storage");
    contracted(|it| it.out = A, "(gemm) writes bytes of storage 5 that another of its operands touches");
    let odd = |plan: &mut Plan| {
        plan.storages[0] = Storage::Constant { label: "c".into(), bytes: vec![0; 17].into() };
        let mut contraction = contraction();
        contraction.terms[1].storage = CONSTANT;
        plan.commands[1] = Command::Contract(contraction);
    };
    refused(odd, "(gemm): storage 0 of 17 bytes, not whole f32s");
}

/// One position, one run of a window, one row: there is no way from one to the next.
#[test]
fn distances_that_are_never_gone_may_be_any_number() {
    let one = Region { offset: 0, row_bytes: 16, stride: usize::MAX, rows: 1 };
    let mut plan = plan();
    let mut product = Contraction { positions: 1, n: 4, weights: vec![0.5; 24].into(), bias: None, ..contraction() };
    product.out_position_stride = usize::MAX;
    product.terms.iter_mut().for_each(|term| term.position_stride = usize::MAX);
    product.terms[..2].iter_mut().for_each(|term| term.tap_stride = usize::MAX);
    plan.commands = vec![
        Command::Gather { state: STATE, row: one, to: (A, one) },
        Command::Contract(product),
        Command::Copy { from: (B, one), to: (OUT, one) },
        Command::Scatter { from: (B, one), state: STATE, row: one },
    ];
    let signature = signature();
    let hazards = crate::hazard::Hazards::of(&plan.check(&signature).unwrap());
    assert_eq!([0, 1, 2, 3].map(|at| hazards.before(at)), [&[][..], &[0], &[1], &[1]]);
    // The same over two positions does go somewhere.
    contracted(|it| it.terms[0].position_stride = usize::MAX, "ends past the 4 elements");
    contracted(|it| it.terms[2].tap_stride = usize::MAX, "ends past the 4 elements");
    contracted(|it| it.out_position_stride = usize::MAX, "end past any storage");
}

#[test]
fn nothing_is_read_before_it_is_written() {
    refused(
        |plan| drop(plan.commands.remove(0)),
        "command 0 (gemm) reads byte 0 of storage 5 before anything writes it",
    );
    let half = Command::Gather { state: STATE, row: Region::contiguous(0, 12), to: (A, Region::contiguous(0, 12)) };
    refused(|plan| plan.commands[0] = half, "reads byte 12 of storage 5");
    refused(|plan| plan.commands.swap(1, 2), "command 1 (copy) reads byte 0 of storage 6");
    let back = Command::Copy { from: (OUT, WHOLE), to: (A, WHOLE) };
    refused(|plan| plan.commands.insert(0, back), "command 0 (copy) reads byte 0 of storage 3");
    for access in [Access::Read, Access::ReadWrite, Access::Accumulate] {
        let command = dispatch(&[(B, Region::contiguous(4, 4), access)]);
        refused(|plan| plan.commands.insert(0, command), "command 0 (add) reads byte 4 of storage 6");
    }
}

#[test]
fn outputs_and_new_rows_are_written_whole() {
    let part = |offset, bytes| (B, Region::contiguous(offset, bytes));
    let copy = Command::Copy { from: part(0, 12), to: (OUT, Region::contiguous(0, 12)) };
    refused(|plan| plan.commands[2] = copy, "nothing writes byte 12 of output y");
    let scatter = Command::Scatter { from: part(4, 12), state: STATE, row: Region::contiguous(4, 12) };
    refused(|plan| plan.commands[3] = scatter, "nothing writes byte 0 of the new row of state h");
    // Columns side by side are a whole.
    let mut plan = plan();
    plan.commands.truncate(3);
    for (offset, row_bytes) in [(0, 3), (3, 5)] {
        let row = Region { offset, row_bytes, stride: 8, rows: 2 };
        plan.commands.push(Command::Scatter { from: (B, row), state: STATE, row });
    }
    plan.check(&signature()).unwrap();
}

#[test]
fn operands_of_one_command_stay_out_of_each_others_way() {
    let half = Region::contiguous(0, 8);
    refused(
        |plan| plan.commands[2] = Command::Copy { from: (B, half), to: (B, Region::contiguous(4, 8)) },
        "command 2 (copy) writes bytes of storage 6 that another of its operands touches",
    );
    let beside = [(B, half, Access::Read), (B, Region::contiguous(8, 8), Access::Write)];
    let mut plan = plan();
    plan.commands.push(dispatch(&beside));
    plan.check(&signature()).unwrap();
    let across = [(B, half, Access::Read), (B, Region::contiguous(4, 8), Access::Write)];
    refused(|plan| plan.commands.push(dispatch(&across)), "another of its operands");
    // One argument may work in place.
    plan.commands.pop();
    let mut in_place = dispatch(&[]);
    let Command::Dispatch { arguments, .. } = &mut in_place else { unreachable!() };
    let uses = vec![(half, Access::Read), (half, Access::Write)];
    arguments[3] = Argument::Buffer { storage: B, window: None, uses };
    plan.commands.push(in_place);
    plan.check(&signature()).unwrap();
}

#[test]
fn launch_arguments_are_those_of_the_kernel() {
    let dispatched = |change: &dyn Fn(&mut Vec<Scalar>, &mut Vec<Argument>), said: &str| {
        refused(
            |plan| {
                let mut command = dispatch(&[(A, WHOLE, Access::Read)]);
                let Command::Dispatch { workload, arguments, .. } = &mut command else { unreachable!() };
                change(workload, arguments);
                plan.commands.push(command);
            },
            said,
        );
    };
    let seats = || Argument::Scalar(Scalar::Seats);
    dispatched(&|workload, _| workload.clear(), "kernel add: 0 workload arguments, and it has 1");
    dispatched(&|_, arguments| drop(arguments.pop()), "kernel add: 3 arguments, and it has 4");
    dispatched(&|_, arguments| arguments[2] = seats(), "a scalar for argument y, which is a buffer");
    dispatched(&|_, arguments| arguments[0] = arguments[1].clone(), "a buffer for argument seats, which is index");
    // Whatever is declared, the kernel stores to its last argument.
    for (storage, access) in [(CONSTANT, Access::Read), (A, Access::Read)] {
        let read = Argument::Buffer { storage, window: None, uses: vec![(WHOLE, access)] };
        dispatched(&|_, arguments| arguments[3] = read.clone(), "it stores to argument z, which is only read");
    }
    let unused = Argument::Buffer { storage: SHARED, window: None, uses: vec![] };
    dispatched(&|_, arguments| arguments[3] = unused.clone(), "it stores to argument z");
    let state = Argument::Buffer { storage: STATE, window: None, uses: vec![] };
    dispatched(&|_, arguments| arguments[2] = state.clone(), "binds storage 4, a state");
    let unknown = |plan: &mut Plan| {
        plan.kernels.clear();
        plan.commands.push(dispatch(&[]));
    };
    refused(unknown, "command 4 (add) names kernel 0, and there are 0");
}

proptest! {
    /// Against a flag per byte.
    #[test]
    fn runs_know_their_gaps(
        adds in prop::collection::vec((0usize..60, 1usize..12), 0..12),
        asks in prop::collection::vec((0usize..70, 0usize..20), 1..12),
    ) {
        let (mut runs, mut bytes) = (Runs::default(), [false; 100]);
        for (start, length) in adds {
            runs.add(start, start + length);
            bytes[start..start + length].fill(true);
        }
        for (start, length) in asks {
            prop_assert_eq!(runs.gap(start, start + length), (start..start + length).find(|&at| !bytes[at]));
        }
    }
}
