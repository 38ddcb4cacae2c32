//! Memory that lives on between turns: where it is bound, who may write it, what kernels see of it; copies between
//! buffers, and memory shown to the host.

use crate::flight::{buffer, exchange};
use crate::random::{self, Random, f32_bytes, port};
use crate::{Open, reference};
use lanes_core::device::{
    Completion, Device, DeviceError, Placement, PrepareOptions, Purpose, Resident, RowCheck, StateRows,
};
use lanes_core::lanes::{Capacity, RowId, SeatRows};
use lanes_core::plan::{Access, Argument, Command, Plan, Region, Storage};
use lanes_core::{Scope, Signature};
use loom_compiler::compile_cpu;
use std::collections::BTreeMap;
use std::sync::Arc;

const ONE: Capacity = Capacity { rows: 1, max_seats: 1 };

fn seats(count: usize) -> Vec<SeatRows> {
    vec![SeatRows { read: RowId(0), write: RowId(0) }; count]
}

fn read(device: &dyn Device, buffer: &lanes_core::device::Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.bytes() as usize];
    device.read(buffer, 0, &mut bytes).expect("it is read");
    bytes
}

/// `to[i] = from[i] + from[0]` for 8 f32, over what the kernel sees of each as its whole buffer.
const ADD: &str = r#"
kernel.def export("add") @add() {
  %one = index.constant 1 : index
  %size = index.constant 8 : index
  kernel.launch.config workgroups(%one, %one, %one) workgroup_size(%size, %one, %one) : index
} launch(%from: buffer, %to: buffer) {
  %zero = index.constant 0 : offset
  %first = index.constant 0 : index
  %from_view = buffer.view %from[%zero] : buffer -> view<8xf32>
  %to_view = buffer.view %to[%zero] : buffer -> view<8xf32>
  %item = kernel.workitem.dispatch.id<x> : index
  %a = view.load %from_view[%item] : view<8xf32> -> f32
  %b = view.load %from_view[%first] : view<8xf32> -> f32
  %c = scalar.addf %a, %b : f32
  view.store %c, %to_view[%item] : f32, view<8xf32>
  kernel.return
}
"#;

/// A kernel over two windows, bound at two offsets of one buffer: it sees its windows, and writes nothing else.
pub fn windows(open: Open<'_>) {
    let device = open(None);
    let image = compile_cpu("add.loom", ADD, "add", &BTreeMap::new()).unwrap_or_else(|error| panic!("{error}"));
    let mut plan = Plan { name: "windows".into(), ..Plan::default() };
    let from = plan.storage(Storage::Resident { binding: 0, bytes: 80 });
    let to = plan.storage(Storage::Resident { binding: 1, bytes: 64 });
    let kernel = plan.kernel(Arc::new(image));
    let argument = |storage, start: usize, access| Argument::Buffer {
        storage,
        window: Some(start..start + 32),
        uses: vec![(Region::contiguous(start, 32), access)],
    };
    plan.commands = vec![Command::Dispatch {
        label: "add".into(),
        kernel,
        workload: vec![],
        arguments: vec![argument(from, 48, Access::Read), argument(to, 16, Access::Write)],
    }];
    let signature = Signature { name: "windows".into(), ..Signature::default() };
    let buffer = buffer(&*device, 256);
    let values: Vec<f32> = (0..64u8).map(f32::from).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    device.write(&buffer, 0, &bytes).unwrap();
    for (from, to) in [(0u64, 96u64), (128, 16)] {
        let before = read(&*device, &buffer);
        let residents =
            [Resident { buffer: buffer.clone(), offset: from }, Resident { buffer: buffer.clone(), offset: to }];
        let options = PrepareOptions { capacity: ONE, slots: 1, states: &[], residents: &residents, overlap: false };
        let executable = device.prepare(&plan.check(&signature).unwrap(), &options).unwrap();
        let mut slot = device.lease(&executable).unwrap();
        let mut check = RowCheck::stateless(ONE);
        let turn = seats(1);
        device.submit(&executable, &mut slot, check.check(&turn).unwrap(), &[]).unwrap().wait().unwrap();
        let mut expected = before.clone();
        let f32_at = |at: usize| f32::from_le_bytes(before[at..at + 4].try_into().expect("four bytes"));
        let (read_at, written_at) = (from as usize + 48, to as usize + 16);
        for item in 0..8 {
            let sum = f32_at(read_at + item * 4) + f32_at(read_at);
            expected[written_at + item * 4..][..4].copy_from_slice(&sum.to_le_bytes());
        }
        assert_eq!(read(&*device, &buffer), expected, "from byte {from} to byte {to}");
    }
}

/// Random plans that read resident memory for many seats, or write it for one, against the reference.
pub fn random_plans(open: Open<'_>) {
    let device = open(None);
    for seed in 0..60 {
        let (plan, signature) = random::resident_plan(seed);
        let checked = plan.check(&signature).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{plan:#?}"));
        let is_written = checked.resident_written().contains(&true);
        let mut random = Random(!seed);
        let capacity = Capacity { rows: 20, max_seats: if is_written { 1 } else { 9 } };
        // Bindings lie one after the other in one buffer, with something between.
        let sizes: Vec<(usize, usize)> = plan
            .storages
            .iter()
            .filter_map(|storage| match *storage {
                Storage::Resident { binding, bytes } => Some((binding, bytes)),
                _ => None,
            })
            .collect();
        let spans: Vec<(usize, usize)> = sizes
            .iter()
            .scan(16, |start, &(_, bytes)| {
                let at = *start;
                *start += bytes.next_multiple_of(16) + 16;
                Some((at, bytes))
            })
            .collect();
        let memory = buffer(&*device, spans.last().map_or(16, |(at, bytes)| at + bytes) + 64);
        let mut expected = f32_bytes(&mut random, memory.bytes() as usize / 4 + 1);
        expected.truncate(memory.bytes() as usize);
        device.write(&memory, 0, &expected).unwrap();
        let residents: Vec<Resident> =
            spans.iter().map(|&(at, _)| Resident { buffer: memory.clone(), offset: at as u64 }).collect();
        let states: Vec<StateRows> = signature
            .states
            .iter()
            .map(|spec| StateRows::new(buffer(&*device, spec.bytes() * 20), spec.bytes(), 20).unwrap())
            .collect();
        let mut rows: reference::Rows = states.iter().map(|state| vec![vec![0; state.row_bytes()]; 20]).collect();
        let options =
            PrepareOptions { capacity, slots: 1, states: &states, residents: &residents, overlap: seed % 2 == 0 };
        let executable = device.prepare(&checked, &options).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let mut slot = device.lease(&executable).unwrap();
        let mut check = if states.is_empty() { RowCheck::stateless(capacity) } else { RowCheck::new(capacity) };
        for turn in 0..4 {
            let count = random.within(1, capacity.max_seats as usize);
            let seats = random::turn(&mut random, capacity, count);
            let mut inputs = Vec::new();
            for (port, spec) in signature.inputs.iter().enumerate() {
                let copies = if spec.scope == Scope::Seat { count } else { 1 };
                let bytes = f32_bytes(&mut random, spec.elements() * copies);
                slot.input_mut(port).unwrap()[..bytes.len()].copy_from_slice(&bytes);
                inputs.push(bytes);
            }
            let mut kept: Vec<Vec<u8>> = spans.iter().map(|&(at, bytes)| expected[at..at + bytes].to_vec()).collect();
            let outputs =
                reference::run_over(&plan, &signature, &inputs, &seats, &mut rows, &mut kept, device.capabilities());
            for (&(at, bytes), kept) in spans.iter().zip(&kept) {
                expected[at..at + bytes].copy_from_slice(kept);
            }
            device.submit(&executable, &mut slot, check.check(&seats).unwrap(), &[]).unwrap().wait().unwrap();
            for (port, bytes) in outputs.iter().enumerate() {
                assert!(
                    slot.output(port).unwrap()[..bytes.len()] == **bytes,
                    "seed {seed}, turn {turn}: output {port}"
                );
            }
            assert!(read(&*device, &memory) == expected, "seed {seed}, turn {turn}: resident memory");
            for (state, rows) in states.iter().zip(&rows) {
                assert!(read(&*device, state.buffer()) == rows.concat(), "seed {seed}, turn {turn}: rows");
            }
        }
    }
}

/// What cannot be bound is refused, by binding, before anything is prepared.
pub fn refusals(open: Open<'_>) {
    let device = open(None);
    let (plan, signature) = exchange();
    let checked = plan.check(&signature).unwrap();
    let memory = buffer(&*device, 256);
    let said = |device: &dyn Device, plan: &lanes_core::plan::Checked<'_>, max_seats: u32, residents: &[Resident]| {
        let capacity = Capacity { rows: 1, max_seats };
        let options = PrepareOptions { capacity, slots: 1, states: &[], residents, overlap: false };
        device.prepare(plan, &options).expect_err("it does not fit").to_string()
    };
    let at = |offset: u64| Resident { buffer: memory.clone(), offset };
    let refusals = [
        (1, vec![], "invalid: plan exchange: resident memory 0 is bound to nothing: 0 were given"),
        (2, vec![at(0)], "invalid: plan exchange: it writes resident memory 0, which turns of 2 seats cannot share"),
        (
            1,
            vec![at(208)],
            "invalid: plan exchange: resident memory 0: 64 bytes from byte 208 on of a buffer of 256; a start is a \
             multiple of 16, and the end inside",
        ),
        (
            1,
            vec![at(8)],
            "invalid: plan exchange: resident memory 0: 64 bytes from byte 8 on of a buffer of 256; a start is a \
             multiple of 16, and the end inside",
        ),
        (
            1,
            vec![at(u64::MAX - 15)],
            "invalid: plan exchange: resident memory 0: 64 bytes from byte 18446744073709551600 on of a buffer of 256; a \
             start is a multiple of 16, and the end inside",
        ),
    ];
    for (max_seats, residents, expected) in refusals {
        assert_eq!(said(&*device, &checked, max_seats, &residents), expected);
    }
    let foreign = [Resident { buffer: buffer(&*open(None), 64), offset: 0 }];
    assert_eq!(said(&*device, &checked, 1, &foreign), "invalid: this resident memory belongs to another device");

    // Two bindings may share bytes as long as neither is written.
    let mut two = Plan { name: "two".into(), ..Plan::default() };
    let a = two.storage(Storage::Resident { binding: 0, bytes: 64 });
    let b = two.storage(Storage::Resident { binding: 1, bytes: 64 });
    let y = two.storage(Storage::Output { port: 0, bytes: 64 });
    let whole = Region::contiguous(0, 64);
    two.commands = vec![Command::Copy { from: (a, whole), to: (y, whole) }];
    let gives = Signature { name: "two".into(), outputs: vec![port("y", 16, Scope::Seat)], ..Signature::default() };
    let options = |residents| PrepareOptions { capacity: ONE, slots: 1, states: &[], residents, overlap: false };
    let shared = [at(0), at(48)];
    device.prepare(&two.check(&gives).unwrap(), &options(&shared)).expect("both are only read");
    two.commands.push(Command::Fill { to: (b, whole), pattern: 7 });
    let writes = two.check(&gives).unwrap();
    let expected = "invalid: plan two: it writes resident memory 0 or 1, which share bytes";
    assert_eq!(said(&*device, &writes, 1, &shared), expected);
    device.prepare(&writes, &options(&[at(0), at(64)])).expect("they are side by side");

    // A state's rows are its own.
    let (plan, signature) = crate::plans::recurrent();
    let mut plan = plan;
    plan.storage(Storage::Resident { binding: 0, bytes: 64 });
    let rows = device.allocate("rows", Purpose::State, Placement::Device, 6 * 1024).unwrap();
    let states = [StateRows::new(rows.clone(), 1024, 6).unwrap()];
    let residents = [Resident { buffer: rows, offset: 0 }];
    let capacity = Capacity { rows: 6, max_seats: 1 };
    let options = PrepareOptions { capacity, slots: 1, states: &states, residents: &residents, overlap: false };
    assert_eq!(
        device.prepare(&plan.check(&signature).unwrap(), &options).unwrap_err().to_string(),
        "invalid: plan recurrent: resident memory 0 lies in the rows of state h"
    );
}

/// Copies between buffers of all placements and within one, against slices.
pub fn copies(open: Open<'_>) {
    let device = open(None);
    let placements = [Placement::Device, Placement::Upload, Placement::Readback, Placement::Shared];
    let buffers = placements.map(|placement| device.allocate("copied", Purpose::Staging, placement, 100).unwrap());
    let mut model: Vec<Vec<u8>> = (0..4u8).map(|of| (0..100).map(|at| of * 64 + at % 61).collect()).collect();
    for (buffer, bytes) in buffers.iter().zip(&model) {
        device.write(buffer, 0, bytes).unwrap();
    }
    let mut random = Random(17);
    for _ in 0..200 {
        let (from, to, len) = (random.below(4), random.below(4), random.below(50));
        let (a, b) = (random.below(100 - len + 1), random.below(100 - len + 1));
        let copied = device.copy((&buffers[from], a as u64), (&buffers[to], b as u64), len as u64, &[]);
        if from == to && a.abs_diff(b) < len {
            let expected = format!("invalid: {len} bytes copied from byte {a} to byte {b} of one buffer: they overlap");
            assert_eq!(copied.unwrap_err().to_string(), expected);
        } else {
            copied.unwrap().wait().unwrap();
            let bytes = model[from][a..a + len].to_vec();
            model[to][b..b + len].copy_from_slice(&bytes);
        }
        assert_eq!(read(&*device, &buffers[to]), model[to]);
    }
    let past = device.copy((&buffers[0], 90), (&buffers[1], 0), 11, &[]).unwrap_err().to_string();
    assert_eq!(past, "invalid: 11 bytes from byte 90 on of a buffer of 100 bytes");
    let past = device.copy((&buffers[0], 0), (&buffers[1], u64::MAX), 2, &[]).unwrap_err().to_string();
    assert_eq!(past, "invalid: 2 bytes from byte 18446744073709551615 on of a buffer of 100 bytes");
    let foreign = buffer(&*open(None), 100);
    for (from, to) in [(&foreign, &buffers[0]), (&buffers[0], &foreign)] {
        let error = device.copy((from, 0), (to, 0), 1, &[]).unwrap_err();
        assert_eq!(error.to_string(), "invalid: this buffer belongs to another device");
    }
    let failed = Completion::ready(Err(DeviceError::Fault { at: "before".into(), what: "on purpose".into() }));
    let after = device.copy((&buffers[0], 0), (&buffers[1], 0), 100, &[failed]).unwrap();
    let said = after.wait().unwrap_err().to_string();
    assert_eq!(said, "an earlier submission failed: fault in before: on purpose");
    assert_eq!(read(&*device, &buffers[1]), model[1], "nothing was copied");
}

/// Host-visible memory is shown where it lies; other memory and other ranges are not.
pub fn mapped(open: Open<'_>) {
    let device = open(None);
    for placement in [Placement::Upload, Placement::Readback, Placement::Shared] {
        let buffer = device.allocate("mapped", Purpose::Staging, placement, 32).unwrap();
        assert_eq!(buffer.placement(), placement);
        device.write(&buffer, 0, &[5; 32]).unwrap();
        let mut seen = 0;
        device
            .map(&buffer, 8, 16, &mut |bytes| {
                assert_eq!(bytes, [5; 16]);
                bytes.fill(6);
                seen += 1;
            })
            .unwrap();
        assert_eq!(seen, 1);
        assert_eq!(read(&*device, &buffer), [[5; 8], [6; 8], [6; 8], [5; 8]].concat());
        let past = device.map(&buffer, 30, 3, &mut |_| panic!("nothing is shown")).unwrap_err();
        assert_eq!(past.to_string(), "invalid: 3 bytes from byte 30 on of a buffer of 32 bytes");
        let foreign = open(None).map(&buffer, 0, 1, &mut |_| panic!("nothing is shown")).unwrap_err();
        assert_eq!(foreign.to_string(), "invalid: this buffer belongs to another device");
    }
    let hidden = device.allocate("hidden", Purpose::Staging, Placement::Device, 32).unwrap();
    let error = device.map(&hidden, 0, 1, &mut |_| panic!("nothing is shown")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid: the host sees no memory placed as Device; Upload, Readback and Shared are mapped"
    );
}
