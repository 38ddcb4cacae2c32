//! Work that is queued: order, back-pressure, cancellation, failures that come later. Everything is held back by a
//! completion that the test itself ends, so nothing here depends on speed.

use crate::Open;
use crate::random::{Random, port};
use lanes_core::device::{
    Buffer, Completer, Completion, Device, DeviceError, Executable, Outcome, Placement, PrepareOptions, Purpose,
    Resident, RowCheck, RowOp, Slot, StateRows,
};
use lanes_core::lanes::{Capacity, RowId, SeatRows};
use lanes_core::plan::{Command, Plan, Region, Storage};
use lanes_core::{Scope, Signature};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

const BYTES: usize = 64;
const CAPACITY: Capacity = Capacity { rows: 1, max_seats: 1 };
const SEATS: [SeatRows; 1] = [SeatRows { read: RowId(0), write: RowId(0) }];
/// Long enough for any machine; nothing waits for it unless it fails.
const LONG: Duration = Duration::from_secs(30);
/// Too short to be reached by what must not happen.
const SHORT: Duration = Duration::from_millis(30);

/// Gives what the resident memory held, and leaves the input there: so every turn tells which one was before it.
pub fn exchange() -> (Plan, Signature) {
    let mut plan = Plan { name: "exchange".into(), ..Plan::default() };
    let x = plan.storage(Storage::Input { port: 0, bytes: BYTES });
    let kept = plan.storage(Storage::Resident { binding: 0, bytes: BYTES });
    let y = plan.storage(Storage::Output { port: 0, bytes: BYTES });
    let whole = Region::contiguous(0, BYTES);
    plan.commands = vec![
        Command::Copy { from: (kept, whole), to: (y, whole) },
        Command::Copy { from: (x, whole), to: (kept, whole) },
    ];
    let (inputs, outputs) = (vec![port("x", BYTES / 4, Scope::Seat)], vec![port("y", BYTES / 4, Scope::Seat)]);
    (plan, Signature { name: "exchange".into(), inputs, outputs, states: vec![] })
}

/// Zeroed memory that the host can see.
pub fn buffer(device: &dyn Device, bytes: usize) -> Buffer {
    device.allocate("test", Purpose::State, Placement::Shared, bytes as u64).expect("there is memory")
}

/// [`exchange`] over `kept`, prepared.
pub fn exchanger(device: &dyn Device, kept: &Buffer, slots: usize, overlap: bool) -> Executable {
    let (plan, signature) = exchange();
    let residents = [Resident { buffer: kept.clone(), offset: 0 }];
    let options = PrepareOptions { capacity: CAPACITY, slots, states: &[], residents: &residents, overlap };
    device.prepare(&plan.check(&signature).expect("it is valid"), &options).expect("it is prepared")
}

/// Submits `slot` with an input of `byte`s.
pub fn send(
    device: &dyn Device,
    executable: &Executable,
    slot: &mut Slot,
    byte: u8,
    after: &[Completion],
) -> Result<Completion, DeviceError> {
    slot.input_mut(0)?.fill(byte);
    device.submit(executable, slot, RowCheck::stateless(CAPACITY).check(&SEATS)?, after)
}

fn ended(completion: &Completion) -> Result<Outcome, DeviceError> {
    completion.wait_timeout(LONG).expect("submitted work ends")
}

fn all(device: &dyn Device, buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.bytes() as usize];
    device.read(buffer, 0, &mut bytes).expect("it is read");
    bytes
}

fn open_gate(gate: Completer) {
    gate.complete(Ok(Outcome::default()));
}

fn fault() -> DeviceError {
    DeviceError::Fault { at: "before".into(), what: "on purpose".into() }
}

/// Slots are apart, busy while in flight, and end in the order submitted, with each turn after the one before it.
pub fn slots(open: Open<'_>) {
    let device = open(None);
    let kept = buffer(&*device, BYTES);
    let count = device.capabilities().slots_max.min(5);
    let executable = exchanger(&*device, &kept, count, true);
    let mut slots: Vec<Slot> = (0..count).map(|_| device.lease(&executable).unwrap()).collect();
    match device.lease(&executable) {
        Err(DeviceError::Busy { depth }) => assert_eq!(depth, count),
        other => panic!("{other:?}"),
    }
    for round in 0..20u8 {
        let (held, gate) = Completion::pending();
        let first = round * count as u8;
        let sent: Vec<Completion> = (first..)
            .zip(&mut slots)
            .map(|(byte, slot)| {
                let completion = send(&*device, &executable, slot, byte, std::slice::from_ref(&held)).unwrap();
                assert!(matches!(slot.input_mut(0), Err(DeviceError::Busy { .. })), "its input is the turn's");
                assert!(matches!(slot.output(0), Err(DeviceError::Busy { .. })), "its output is the turn's");
                let again =
                    RowCheck::stateless(CAPACITY).check(&SEATS).map(|turn| device.submit(&executable, slot, turn, &[]));
                assert!(matches!(again.unwrap(), Err(DeviceError::Busy { .. })), "a slot flies once");
                assert!(!completion.is_done());
                completion
            })
            .collect();
        open_gate(gate);
        ended(&sent[count - 1]).unwrap();
        assert!(sent.iter().all(Completion::is_done), "the last to be submitted is the last to end");
        for (byte, slot) in (first..).zip(&mut slots) {
            assert_eq!(slot.output(0).unwrap(), [byte.saturating_sub(1); BYTES], "turn {byte}");
            assert_eq!(slot.input_mut(0).unwrap(), [byte; BYTES], "staging is the slot's own");
        }
    }
}

/// A turn that need not overlap is queued behind what is, and is run at once where nothing is.
pub fn behind(open: Open<'_>) {
    let device = open(None);
    let kept = buffer(&*device, BYTES);
    let (late, inline) = (exchanger(&*device, &kept, 1, true), exchanger(&*device, &kept, 1, false));
    let (mut late_slot, mut inline_slot) = (device.lease(&late).unwrap(), device.lease(&inline).unwrap());
    send(&*device, &inline, &mut inline_slot, 1, &[]).unwrap().wait().unwrap();
    let (held, gate) = Completion::pending();
    let first = send(&*device, &late, &mut late_slot, 2, &[held]).unwrap();
    let second = send(&*device, &inline, &mut inline_slot, 3, &[]).unwrap();
    assert!(!first.is_done() && !second.is_done());
    open_gate(gate);
    ended(&second).unwrap();
    assert_eq!((late_slot.output(0).unwrap()[0], inline_slot.output(0).unwrap()[0]), (1, 2));
    // What must come after something that has not ended is not waited for by the caller either.
    let (held, gate) = Completion::pending();
    let third = send(&*device, &inline, &mut inline_slot, 4, &[held]).unwrap();
    assert!(!third.is_done());
    open_gate(gate);
    ended(&third).unwrap();
    assert_eq!(all(&*device, &kept), [4; BYTES]);
}

/// A slot dropped in flight comes back when its turn has ended; handles may go in any order.
pub fn dropped(open: Open<'_>) {
    let device = open(None);
    let kept = buffer(&*device, BYTES);
    let executable = exchanger(&*device, &kept, 1, true);
    let mut slot = device.lease(&executable).unwrap();
    let (held, gate) = Completion::pending();
    let sent = send(&*device, &executable, &mut slot, 7, &[held]).unwrap();
    drop(slot);
    assert!(matches!(device.lease(&executable), Err(DeviceError::Busy { depth: 1 })));
    open_gate(gate);
    ended(&sent).unwrap();
    assert_eq!(all(&*device, &kept), [7; BYTES]);
    let mut slot = device.lease(&executable).expect("it has come back");
    let (held, gate) = Completion::pending();
    let sent = send(&*device, &executable, &mut slot, 8, &[held]).unwrap();
    drop((slot, executable));
    open_gate(gate);
    ended(&sent).unwrap();
    assert_eq!(all(&*device, &kept), [8; BYTES]);
    drop(kept);
    assert_eq!(device.memory().used.total(), 0, "nothing is kept by work that has ended");
}

/// Queued work that is cancelled touches nothing and gives back what it held, also while it waits for something that
/// never comes; work that has ended cannot be cancelled.
pub fn cancelled(open: Open<'_>) {
    let device = open(None);
    let kept = buffer(&*device, BYTES);
    let executable = exchanger(&*device, &kept, 3, true);
    let mut slots: Vec<Slot> = (0..3).map(|_| device.lease(&executable).unwrap()).collect();
    let (held, gate) = Completion::pending();
    let first = send(&*device, &executable, &mut slots[0], 1, &[held]).unwrap();
    let second = send(&*device, &executable, &mut slots[1], 2, &[]).unwrap();
    let third = send(&*device, &executable, &mut slots[2], 3, &[]).unwrap();
    second.cancel();
    open_gate(gate);
    assert_eq!(ended(&second).unwrap_err().to_string(), "cancelled");
    ended(&first).unwrap();
    ended(&third).unwrap();
    assert_eq!(slots[2].output(0).unwrap(), [1; BYTES], "the second turn was not there");
    first.cancel();
    assert!(first.wait().is_ok());

    let (never, gate) = Completion::pending();
    let waits = send(&*device, &executable, &mut slots[1], 4, &[never]).unwrap();
    let behind = send(&*device, &executable, &mut slots[0], 5, &[]).unwrap();
    assert!(waits.wait_timeout(SHORT).is_none());
    waits.cancel();
    assert!(matches!(ended(&waits), Err(DeviceError::Cancelled)));
    ended(&behind).unwrap();
    assert_eq!(slots[0].output(0).unwrap(), [3; BYTES]);
    // The slot is its holder's again, and the completer may still be told.
    open_gate(gate);
    ended(&send(&*device, &executable, &mut slots[1], 6, &[]).unwrap()).unwrap();
    assert_eq!(slots[1].output(0).unwrap(), [5; BYTES]);
}

/// What comes after something that fails later is not run and says why; what comes after that names the first cause.
pub fn failed(open: Open<'_>) {
    let device = open(None);
    let kept = buffer(&*device, BYTES);
    let executable = exchanger(&*device, &kept, 3, true);
    let mut slots: Vec<Slot> = (0..3).map(|_| device.lease(&executable).unwrap()).collect();
    let (held, gate) = Completion::pending();
    let first = send(&*device, &executable, &mut slots[0], 1, &[held]).unwrap();
    let second = send(&*device, &executable, &mut slots[1], 2, std::slice::from_ref(&first)).unwrap();
    let copied = device.copy((&kept, 0), (&kept, 32), 32, std::slice::from_ref(&second)).unwrap();
    let healthy = send(&*device, &executable, &mut slots[2], 3, &[]).unwrap();
    gate.complete(Err(fault()));
    for after in [&first, &second, &copied] {
        let said = ended(after).unwrap_err().to_string();
        assert_eq!(said, "an earlier submission failed: fault in before: on purpose");
    }
    ended(&healthy).unwrap();
    assert_eq!(slots[2].output(0).unwrap(), [0; BYTES], "nothing ran before it");
    ended(&send(&*device, &executable, &mut slots[0], 4, &[healthy]).unwrap()).unwrap();
    assert_eq!(slots[0].output(0).unwrap(), [3; BYTES]);
    device.health().unwrap();
}

/// Calls of the host come after what was submitted before on the same buffer, and wait for nothing else.
pub fn host_calls(open: Open<'_>) {
    let device = open(None);
    let (kept, apart) = (buffer(&*device, BYTES), buffer(&*device, BYTES));
    let executable = exchanger(&*device, &kept, 1, true);
    let mut slot = device.lease(&executable).unwrap();
    type Call<'a> = &'a (dyn Fn(&dyn Device, &Buffer, &Buffer) -> u8 + Sync);
    let read: Call<'_> = &|device, kept, _| all(device, kept)[0];
    let write: Call<'_> = &|device, kept, _| {
        device.write(kept, 0, &[50; BYTES]).unwrap();
        all(device, kept)[0]
    };
    let map: Call<'_> = &|device, kept, _| {
        let mut seen = 0;
        device.map(kept, 0, BYTES, &mut |bytes| (seen, bytes[0]) = (bytes[0], 60)).unwrap();
        assert_eq!(all(device, kept)[0], 60);
        seen
    };
    let copy: Call<'_> = &|device, kept, apart| {
        ended(&device.copy((kept, 0), (apart, 0), BYTES as u64, &[]).unwrap()).unwrap();
        all(device, apart)[0]
    };
    let rows: Call<'_> = &|device, kept, _| {
        let state = StateRows::new(kept.clone(), 16, 4).unwrap();
        ended(&device.rows(&state, RowOp::Fill { row: RowId(0), byte: 70 }).unwrap()).unwrap();
        all(device, kept)[16]
    };
    for (byte, expected, call) in [(1, 1, read), (2, 50, write), (3, 3, map), (4, 4, copy), (5, 5, rows)] {
        let (held, gate) = Completion::pending();
        let sent = send(&*device, &executable, &mut slot, byte, &[held]).unwrap();
        // Another buffer is free meanwhile.
        device.write(&apart, 0, &[9; BYTES]).unwrap();
        assert_eq!(all(&*device, &apart), [9; BYTES]);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| call(&*device, &kept, &apart));
            std::thread::sleep(SHORT);
            assert!(!waits.is_finished(), "call {byte} waits for the turn");
            open_gate(gate);
            assert_eq!(waits.join().unwrap(), expected, "call {byte} comes after the turn");
        });
        ended(&sent).unwrap();
    }
}

/// A slot's turn that was not waited for yet, and what it must give.
type Flying = Option<(Completion, Vec<u8>)>;

/// Random turns, copies, writes and reads on three buffers, submitted without waiting, against the same done in order.
pub fn random_order(open: Open<'_>) {
    for seed in 0..12 {
        let (device, mut random) = (open(None), Random(seed));
        let buffers: Vec<Buffer> = (0..3).map(|_| buffer(&*device, BYTES)).collect();
        let mut model = vec![vec![0u8; BYTES]; 3];
        let executables: Vec<Executable> =
            buffers.iter().map(|kept| exchanger(&*device, kept, 2, !random.one_in(3))).collect();
        let mut slots: Vec<(usize, Slot, Flying)> =
            (0..6).map(|at| (at % 3, device.lease(&executables[at % 3]).unwrap(), None)).collect();
        let check = |slot: &Slot, flying: &mut Flying| {
            if let Some((completion, expected)) = flying.take() {
                ended(&completion).unwrap();
                assert_eq!(slot.output(0).unwrap(), expected, "seed {seed}");
            }
        };
        for step in 0..300 {
            match random.below(6) {
                0..=2 => {
                    let (of, slot, flying) = &mut slots[random.below(6)];
                    check(slot, flying);
                    let completion = send(&*device, &executables[*of], slot, step as u8, &[]).unwrap();
                    *flying = Some((completion, std::mem::replace(&mut model[*of], vec![step as u8; BYTES])));
                }
                3 => {
                    let (from, to, len) = (random.below(3), random.below(3), random.within(1, BYTES / 2));
                    // Halves, so that within one buffer they lie apart.
                    let (a, b) = (random.below(BYTES / 2 - len + 1), BYTES / 2 + random.below(BYTES / 2 - len + 1));
                    device.copy((&buffers[from], a as u64), (&buffers[to], b as u64), len as u64, &[]).unwrap();
                    let bytes = model[from][a..a + len].to_vec();
                    model[to][b..b + len].copy_from_slice(&bytes);
                }
                4 => {
                    let (to, at) = (random.below(3), random.below(BYTES));
                    device.write(&buffers[to], at as u64, &[step as u8 ^ 0x55]).unwrap();
                    model[to][at] = step as u8 ^ 0x55;
                }
                _ => {
                    let of = random.below(3);
                    assert_eq!(all(&*device, &buffers[of]), model[of], "seed {seed}, step {step}");
                }
            }
        }
        slots.iter_mut().for_each(|(_, slot, flying)| check(slot, flying));
        for (buffer, expected) in buffers.iter().zip(&model) {
            assert_eq!(&all(&*device, buffer), expected, "seed {seed}");
        }
    }
}

/// The queue is bounded: past its end a submission is `Busy`, nothing of it is queued, and it may be made again.
pub fn bounded(open: Open<'_>) {
    let device = open(None);
    let (from, to) = (buffer(&*device, BYTES), buffer(&*device, BYTES));
    device.write(&from, 0, &[3; BYTES]).unwrap();
    let (held, gate) = Completion::pending();
    let mut queued = Vec::new();
    let depth = loop {
        assert!(queued.len() < 1 << 16, "the queue has no end");
        match device.copy((&from, 0), (&to, 0), 4, std::slice::from_ref(&held)) {
            Ok(completion) => queued.push(completion),
            Err(DeviceError::Busy { depth }) => break depth,
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(depth, queued.len());
    let kept = buffer(&*device, BYTES);
    let executable = exchanger(&*device, &kept, 1, true);
    let mut slot = device.lease(&executable).unwrap();
    let refused = send(&*device, &executable, &mut slot, 1, &[]);
    assert_eq!(refused.unwrap_err().to_string(), format!("busy: {depth} in flight"));
    assert_eq!(slot.input_mut(0).unwrap(), [1; BYTES], "the slot is still its holder's");
    assert_eq!(all(&*device, &kept), [0; BYTES], "and the buffer is not waited for");
    open_gate(gate);
    queued.iter().for_each(|completion| drop(ended(completion).unwrap()));
    ended(&send(&*device, &executable, &mut slot, 1, &[]).unwrap()).unwrap();
    assert_eq!((all(&*device, &to)[..4].to_vec(), all(&*device, &kept)), (vec![3; 4], vec![1; BYTES]));
}

/// A device that is dropped with work queued leaves nobody waiting.
pub fn closed(open: Open<'_>) {
    let device = open(None);
    let kept = buffer(&*device, BYTES);
    let executable = exchanger(&*device, &kept, 2, true);
    let (mut held_slot, mut slot) = (device.lease(&executable).unwrap(), device.lease(&executable).unwrap());
    let (never, _gate) = Completion::pending();
    let first = send(&*device, &executable, &mut held_slot, 1, &[never]).unwrap();
    let second = send(&*device, &executable, &mut slot, 2, &[]).unwrap();
    drop(device);
    for completion in [first, second] {
        assert!(matches!(ended(&completion), Err(DeviceError::Cancelled)));
    }
    assert_eq!(slot.input_mut(0).unwrap(), [2; BYTES], "slots outlive the device");
}

/// The last handle to a device, dropped by whoever wakes it.
struct Drops(Mutex<Option<Arc<dyn Device>>>);
impl Wake for Drops {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().expect("nobody panics").take());
    }
}

/// A task that the device wakes may drop it there.
pub fn closed_by_its_own_task(open: Open<'_>) {
    let device = open(None);
    let kept = buffer(&*device, BYTES);
    let executable = exchanger(&*device, &kept, 2, true);
    let (mut first_slot, mut slot) = (device.lease(&executable).unwrap(), device.lease(&executable).unwrap());
    let ((held, gate), (never, _never)) = (Completion::pending(), Completion::pending());
    let first = send(&*device, &executable, &mut first_slot, 1, &[held]).unwrap();
    let second = send(&*device, &executable, &mut slot, 2, &[never]).unwrap();
    let waker = Waker::from(Arc::new(Drops(Mutex::new(Some(device)))));
    assert!(Pin::new(&mut first.clone()).poll(&mut Context::from_waker(&waker)).is_pending());
    open_gate(gate);
    ended(&first).unwrap();
    assert!(matches!(ended(&second), Err(DeviceError::Cancelled)));
}

/// Several threads swap the contents of two of three buffers, at once and queued, copy and read them. Nothing is lost,
/// nothing is seen half done, and nobody waits in a ring.
pub fn crowd(open: Open<'_>) {
    let device = open(None);
    let buffers: Vec<Buffer> = (0..3).map(|_| buffer(&*device, 4096)).collect();
    for (byte, buffer) in (1..).zip(&buffers) {
        device.write(buffer, 0, &[byte; 4096]).unwrap();
    }
    let mut plan = Plan { name: "swap".into(), ..Plan::default() };
    let [a, b] = [0, 1].map(|binding| plan.storage(Storage::Resident { binding, bytes: 4096 }));
    let kept = plan.storage(Storage::Scratch { bytes: 4096 });
    let whole = Region::contiguous(0, 4096);
    plan.commands =
        [(a, kept), (b, a), (kept, b)].map(|(from, to)| Command::Copy { from: (from, whole), to: (to, whole) }).into();
    let signature = Signature { name: "swap".into(), ..Signature::default() };
    let checked = plan.check(&signature).unwrap();
    let swap = |first: usize, second: usize, overlap: bool| {
        let residents = [first, second].map(|of| Resident { buffer: buffers[of].clone(), offset: 0 });
        let options = PrepareOptions { capacity: CAPACITY, slots: 1, states: &[], residents: &residents, overlap };
        device.prepare(&checked, &options).unwrap()
    };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (device, buffers, swap) = (&device, &buffers, &swap);
            scope.spawn(move || {
                let mut random = Random(thread);
                let pairs = [(0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0)];
                let mut ready: Vec<_> = pairs
                    .iter()
                    .map(|&(first, second)| {
                        let executable = swap(first, second, random.one_in(2));
                        let slot = device.lease(&executable).unwrap();
                        (executable, slot)
                    })
                    .collect();
                for _ in 0..200 {
                    let (executable, slot) = &mut ready[random.below(6)];
                    let mut check = RowCheck::stateless(CAPACITY);
                    let sent = device.submit(executable, slot, check.check(&SEATS).unwrap(), &[]).unwrap();
                    if random.one_in(3) {
                        let bytes = all(&**device, &buffers[random.below(3)]);
                        assert!(bytes.iter().all(|&byte| byte == bytes[0]), "half a swap was seen");
                    }
                    ended(&sent).unwrap();
                }
            });
        }
    });
    let mut left: Vec<u8> = buffers.iter().map(|buffer| all(&*device, buffer)[0]).collect();
    left.sort_unstable();
    assert_eq!(left, [1, 2, 3]);
}

struct Panics;
impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a task of somebody else");
    }
}

/// Code of the host that panics where the device calls it harms nobody else.
pub fn host_panics(open: Open<'_>) {
    let device = open(None);
    let kept = buffer(&*device, BYTES);
    let executable = exchanger(&*device, &kept, 1, true);
    let mut slot = device.lease(&executable).unwrap();
    let waker = Waker::from(Arc::new(Panics));
    for byte in 1..4 {
        let (held, gate) = Completion::pending();
        let sent = send(&*device, &executable, &mut slot, byte, &[held]).unwrap();
        assert!(Pin::new(&mut sent.clone()).poll(&mut Context::from_waker(&waker)).is_pending());
        open_gate(gate);
        ended(&sent).unwrap();
        let visit = || device.map(&kept, 0, BYTES, &mut |_| panic!("a visitor of somebody else"));
        assert!(catch_unwind(AssertUnwindSafe(visit)).is_err());
        assert_eq!(all(&*device, &kept), [byte; BYTES]);
    }
    device.health().unwrap();
}
