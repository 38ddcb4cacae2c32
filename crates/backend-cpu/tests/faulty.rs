//! The faulty device around this one: it does what it is told, and nothing when it is not.

use backend_cpu::{CpuDevice, CpuOptions};
use lanes_core::device::{Completion, Device, DeviceError, Ledger, Outcome, Placement, Purpose};
use lanes_core::plan::Region;
use lanes_tests::faulty::{FaultyDevice, Injected};
use lanes_tests::flight::{buffer, exchanger, send};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);

fn open(budget: Option<u64>) -> FaultyDevice {
    FaultyDevice::new(Arc::new(
        CpuDevice::open(CpuOptions { threads: Some(1), budget, ..CpuOptions::default() }).expect("threads start"),
    ))
}

fn ended(completion: &Completion) -> Result<Outcome, DeviceError> {
    completion.wait_timeout(LONG).expect("submitted work ends")
}

// Told nothing, it passes for the device it is around.
lanes_tests::conformance!(unprovoked, &|budget| std::sync::Arc::new(crate::open(budget)));

#[test]
fn a_script_says_which_turns_fail_and_whether_they_ran() {
    for overlap in [false, true] {
        let device = open(None);
        let kept = buffer(&device, 64);
        let executable = exchanger(&device, &kept, 2, overlap);
        let mut slot = device.lease(&executable).unwrap();
        device.script([None, Some(Injected::Unrun), Some(Injected::Ran), None]);
        let expected = [
            (Ok(()), 0),
            (Err("fault in faulty device: injected, and nothing ran"), 0),
            (Err("fault in faulty device: injected after it ran"), 1),
            (Ok(()), 3),
            (Ok(()), 4),
        ];
        for (byte, (result, before)) in (1..).zip(expected) {
            let sent = send(&device, &executable, &mut slot, byte, &[]).unwrap();
            match (ended(&sent), result) {
                (Ok(_), Ok(())) => assert_eq!(slot.output(0).unwrap()[0], before, "turn {byte}"),
                (Err(error), Err(said)) => assert_eq!(error.to_string(), said, "turn {byte}"),
                (found, expected) => panic!("turn {byte}: {found:?}, not {expected:?}"),
            }
        }
        assert_eq!(device.injected(), 2);
        // Chance does both, and the rest is good.
        device.fail_randomly(5, 3);
        let ends: Vec<bool> =
            (0..60).map(|_| ended(&send(&device, &executable, &mut slot, 9, &[]).unwrap()).is_ok()).collect();
        let good = ends.iter().filter(|good| **good).count();
        assert!((25..55).contains(&good), "{good} of 60 turns were good");
        assert_eq!(device.injected() - 2, 60 - good as u64);
        device.health().unwrap();
    }
}

#[test]
fn what_is_held_or_late_ends_in_order_and_can_be_cancelled() {
    let device = open(None);
    let kept = buffer(&device, 64);
    let executable = exchanger(&device, &kept, 4, true);
    let mut slots: Vec<_> = (0..4).map(|_| device.lease(&executable).unwrap()).collect();
    device.hold();
    device.script([None, Some(Injected::Unrun), Some(Injected::Ran), None]);
    let sent: Vec<_> =
        (1..).zip(&mut slots).map(|(byte, slot)| send(&device, &executable, slot, byte, &[]).unwrap()).collect();
    assert!(sent[0].wait_timeout(Duration::from_millis(20)).is_none());
    assert!(slots.iter_mut().all(|slot| matches!(slot.input_mut(0), Err(DeviceError::Busy { .. }))));
    sent[3].cancel();
    device.release();
    assert!(matches!(ended(&sent[3]), Err(DeviceError::Cancelled)));
    assert!(sent.iter().all(Completion::is_done));
    ended(&sent[0]).unwrap();
    assert_eq!(ended(&sent[1]).unwrap_err().to_string(), "fault in faulty device: injected, and nothing ran");
    assert_eq!(ended(&sent[2]).unwrap_err().to_string(), "fault in faulty device: injected after it ran");
    let mut left = [0];
    device.read(&kept, 0, &mut left).unwrap();
    assert_eq!(left, [3], "the third ran, the fourth did not");
    device.delay(Duration::from_millis(30));
    let began = Instant::now();
    ended(&send(&device, &executable, &mut slots[0], 9, &[]).unwrap()).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(30));
}

#[test]
fn a_loss_ends_all_that_is_pending_and_every_later_call_with_one_cause() {
    let device = open(None);
    let kept = buffer(&device, 64);
    let executable = exchanger(&device, &kept, 3, true);
    let mut slots: Vec<_> = (0..3).map(|_| device.lease(&executable).unwrap()).collect();
    device.hold();
    let sent: Vec<_> =
        (1..).zip(&mut slots).map(|(byte, slot)| send(&device, &executable, slot, byte, &[]).unwrap()).collect();
    std::thread::scope(|scope| {
        let mut byte = [0];
        let (device, kept) = (&device, &kept);
        let reads = scope.spawn(move || device.read(kept, 0, &mut byte));
        std::thread::sleep(Duration::from_millis(20));
        device.lose("pulled out");
        device.lose("a second cause, too late");
        let reads = reads.join().unwrap();
        assert_eq!(reads.unwrap_err().to_string(), "device lost: pulled out");
    });
    for completion in &sent {
        assert_eq!(ended(completion).unwrap_err().to_string(), "device lost: pulled out");
    }
    let refused = [
        device.health().unwrap_err(),
        device.allocate("more", Purpose::State, Placement::Device, 1).unwrap_err(),
        device.write(&kept, 0, &[1]).unwrap_err(),
        device.copy((&kept, 0), (&kept, 8), 4, &[]).unwrap_err(),
        device.map(&kept, 0, 1, &mut |_| panic!("nothing is shown")).unwrap_err(),
        device.lease(&executable).unwrap_err(),
        send(&device, &executable, &mut slots[0], 1, &[]).unwrap_err(),
    ];
    assert!(refused.iter().all(|error| error.to_string() == "device lost: pulled out"), "{refused:?}");
    device.reopen().unwrap().health().unwrap();
    let mut left = [9];
    device.inner().read(&kept, 0, &mut left).unwrap();
    assert_eq!(left, [0], "what had not begun never ran");
}

#[test]
fn memory_is_exhausted_for_as_many_calls_as_told() {
    let device = open(None);
    device.exhaust(2);
    for _ in 0..2 {
        let error = device.allocate("rows", Purpose::State, Placement::Device, 64).unwrap_err();
        assert_eq!(error.to_string(), "out of device memory: rows asked for 64 bytes");
    }
    device.allocate("rows", Purpose::State, Placement::Device, 64).unwrap();
}

/// A ledger over this device: a fault poisons what it was to write, being upstream of it does not, an overwrite clears it.
#[test]
fn poison_stays_where_it_was_written() {
    let device = open(None);
    let (a, b) = (buffer(&device, 64), buffer(&device, 64));
    let (on_a, on_b) = (exchanger(&device, &a, 1, true), exchanger(&device, &b, 1, true));
    let (mut slot_a, mut slot_b) = (device.lease(&on_a).unwrap(), device.lease(&on_b).unwrap());
    let (mut ledger_a, mut ledger_b) = (Ledger::new(), Ledger::new());
    let all = Region::contiguous(0, 64);
    device.script([Some(Injected::Ran)]);
    let broken = send(&device, &on_a, &mut slot_a, 1, &[]).unwrap();
    ledger_a.wrote(all, &broken);
    ended(&broken).unwrap_err();
    // A turn over both: it reads `a`, so it is not run, and `b` stays as it was.
    let mut after = Vec::new();
    ledger_a.reading(all, &mut after);
    let upstream = send(&device, &on_b, &mut slot_b, 2, &after).unwrap();
    ledger_b.wrote(all, &upstream);
    let said = ended(&upstream).unwrap_err().to_string();
    assert_eq!(said, "an earlier submission failed: fault in faulty device: injected after it ran");
    assert!(ledger_b.is_clean() && !ledger_a.is_clean());
    let clears = send(&device, &on_a, &mut slot_a, 3, &[]).unwrap();
    ledger_a.wrote(all, &clears);
    ended(&clears).unwrap();
    assert!(ledger_a.is_clean());
}
