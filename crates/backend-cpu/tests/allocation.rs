//! A submission allocates nothing once its slot has made some: run inside `submit`, or queued and waited for. Nor does a
//! copy, queued or not, nor the ledger that says what it comes after.

use backend_cpu::{CpuDevice, CpuOptions};
use lanes_core::device::{Completion, Completions, Device, Ledger, Outcome, PrepareOptions, Resident, RowCheck};
use lanes_core::lanes::{Capacity, RowId, SeatRows};
use lanes_core::plan::Region;
use lanes_tests::counting::Counting;
use lanes_tests::flight::{buffer, exchange};

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

const CAPACITY: Capacity = Capacity { rows: 1, max_seats: 1 };
const SEATS: [SeatRows; 1] = [SeatRows { read: RowId(0), write: RowId(0) }];

/// Allocations of 200 rounds, once warm.
fn allocations(round: impl FnMut(u8)) -> u64 {
    ALLOCATOR.in_rounds(200, round)
}

// Without a harness: its own thread would allocate meanwhile.
fn main() {
    let device = CpuDevice::open(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
    let (kept, apart) = (buffer(&device, 64), buffer(&device, 64));
    let (plan, signature) = exchange();
    let checked = plan.check(&signature).unwrap();
    let residents = [Resident { buffer: kept.clone(), offset: 0 }];
    for overlap in [false, true] {
        let options = PrepareOptions { capacity: CAPACITY, slots: 2, states: &[], residents: &residents, overlap };
        let executable = device.prepare(&checked, &options).unwrap();
        let mut slots = [device.lease(&executable).unwrap(), device.lease(&executable).unwrap()];
        let mut check = RowCheck::stateless(CAPACITY);
        let (mut seen, mut last) = (0u64, [None, None]);
        // What a host keeps to know what comes after what.
        let (mut ledger, mut after, all) = (Ledger::new(), Vec::with_capacity(4), Region::contiguous(0, 64));
        // A fast machine may leave nothing pending while it warms up: the ledger is shown what that is.
        let (pending, completer) = Completion::pending();
        ledger.wrote(all, &pending);
        ledger.reading(all, &mut after);
        completer.complete(Ok(Outcome::default()));
        let each = allocations(|round| {
            // Two slots in turn, each waited for before it is used again, so two are in flight.
            let at = usize::from(round % 2);
            if let Some(completion) = last[at].take() {
                let ended: Result<Outcome, _> = Completion::wait(&completion);
                ended.unwrap();
                seen += slots[at].output(0).unwrap().iter().map(|&byte| u64::from(byte)).sum::<u64>();
            }
            slots[at].input_mut(0).unwrap().fill(1);
            let turn = check.check(&SEATS).unwrap();
            after.clear();
            ledger.reading(all, &mut after);
            let sent = device.submit(&executable, &mut slots[at], turn, &after).unwrap();
            ledger.wrote(all, &sent);
            last[at] = Some(sent);
        });
        assert_eq!(each, 0, "overlap: {overlap}");
        last.into_iter().flatten().for_each(|completion| drop(completion.wait().unwrap()));
        // The first turn saw zeros, the others what the one before left; the two last were not looked at.
        assert_eq!(seen, 217 * 64);
        let mut bytes = [0; 64];
        let transfers = allocations(|_| {
            device.write(&kept, 0, &[2; 64]).unwrap();
            device.copy((&kept, 0), (&apart, 0), 64, &[]).unwrap().wait().unwrap();
            device.read(&apart, 0, &mut bytes).unwrap();
        });
        assert_eq!((transfers, bytes), (0, [2; 64]));
        // Copies that are queued: behind a turn that is held, and behind each other.
        let mut lists = [Vec::with_capacity(2), Vec::with_capacity(2)];
        let mut gates = Completions::new(4);
        let copies = allocations(|round| {
            slots[0].input_mut(0).unwrap().fill(round);
            let (held, gate) = gates.pending();
            let turn = check.check(&SEATS).unwrap();
            let sent = device.submit(&executable, &mut slots[0], turn, std::slice::from_ref(&held)).unwrap();
            lists.iter_mut().for_each(Vec::clear);
            lists[0].push(sent);
            let there = device.copy((&kept, 0), (&apart, 0), 64, &lists[0]).unwrap();
            lists[1].extend([lists[0][0].clone(), there]);
            let back = device.copy((&apart, 0), (&kept, 0), 32, &lists[1]).unwrap();
            assert!(!back.is_done());
            gate.complete(Ok(Outcome::default()));
            back.wait().unwrap();
            device.read(&apart, 0, &mut bytes).unwrap();
            assert_eq!(bytes, [round; 64]);
        });
        assert_eq!(copies, 0, "queued copies, overlap: {overlap}");
        device.write(&kept, 0, &[0; 64]).unwrap();
    }
    // The counter does count.
    assert_ne!(allocations(|_| drop(Completion::pending())), 0);
    println!("submissions_allocate_nothing_after_the_first: ok");
}
