//! Leases, order after other work, and refusals at prepare and submit.

use crate::Open;
use crate::plans::recurrent;
use lanes_core::device::{
    Completion, Device, DeviceError, Executable, Outcome, Placement, PrepareOptions, Purpose, RowCheck, StateRows,
    TurnTimes,
};
use lanes_core::lanes::{Capacity, LanedModel, RowId, SeatRows};
use lanes_core::planned::PlannedModel;
use std::sync::Arc;
use std::time::Duration;

const CAPACITY: Capacity = Capacity { rows: 6, max_seats: 3 };
const SEAT: SeatRows = SeatRows { read: RowId(5), write: RowId(2) };

fn states(device: &dyn Device) -> Vec<StateRows> {
    let buffer = device.allocate("rows", Purpose::State, Placement::Device, 6 * 256 * 4).unwrap();
    vec![StateRows::new(buffer, 256 * 4, 6).unwrap()]
}

fn prepared(device: &Arc<dyn Device>) -> Executable {
    let (plan, signature) = recurrent();
    let states = states(&**device);
    let options = PrepareOptions { capacity: CAPACITY, slots: 1, states: &states, residents: &[], overlap: false };
    // Plan, signature and state handles end here; the executable goes on.
    device.prepare(&plan.check(&signature).unwrap(), &options).unwrap()
}

/// One slot, one lease; dropped, it may be leased again; it outlives every other handle.
pub fn leases(open: Open<'_>) {
    let device = open(None);
    let executable = prepared(&device);
    assert_eq!(executable.capacity(), CAPACITY);
    let mut slot = device.lease(&executable).unwrap();
    assert!(matches!(device.lease(&executable), Err(DeviceError::Busy { depth: 1 })));
    assert_eq!(slot.input_mut(0).unwrap().len(), 3 * 96 * 4);
    assert!(matches!(slot.input_mut(1), Err(DeviceError::Invalid { .. })));
    assert!(matches!(slot.output(1), Err(DeviceError::Invalid { .. })));
    slot.input_mut(0).unwrap().fill(0);
    let turn = [SEAT];
    let mut check = RowCheck::new(CAPACITY);
    let completion = device.submit(&executable, &mut slot, check.check(&turn).unwrap(), &[]).unwrap();
    assert_eq!(completion.wait().unwrap(), Outcome::default());
    let first = slot.output(0).unwrap().to_vec();
    assert!(first.iter().any(|&byte| byte != 0));
    drop(slot);
    let mut slot = device.lease(&executable).unwrap();
    slot.input_mut(0).unwrap().fill(0);
    // After work that has succeeded it runs.
    device.submit(&executable, &mut slot, check.check(&turn).unwrap(), &[completion]).unwrap().wait().unwrap();
    assert_eq!(slot.output(0).unwrap(), first);
    drop(executable);
    drop(device);
    assert_eq!(slot.output(0).unwrap(), first);
}

/// A submission after one that failed is not run, and says why.
pub fn upstream(open: Open<'_>) {
    let device = open(None);
    let executable = prepared(&device);
    let mut slot = device.lease(&executable).unwrap();
    let failed = Completion::ready(Err(DeviceError::Fault { at: "before".into(), what: "on purpose".into() }));
    let before = slot.output(0).unwrap().to_vec();
    let mut check = RowCheck::new(CAPACITY);
    let completion = device.submit(&executable, &mut slot, check.check(&[SEAT]).unwrap(), &[failed]).unwrap();
    let error = completion.wait().unwrap_err();
    assert_eq!(error.to_string(), "an earlier submission failed: fault in before: on purpose");
    assert_eq!(slot.output(0).unwrap(), before);
}

/// What fits neither the plan nor the capacity is refused, by name, before anything runs.
pub fn refusals(open: Open<'_>) {
    let device = open(None);
    let (plan, signature) = recurrent();
    let (checked, good) = (plan.check(&signature).unwrap(), states(&*device));
    let said = |capacity: Capacity, slots: usize, states: &[StateRows]| {
        device
            .prepare(&checked, &PrepareOptions { capacity, slots, states, residents: &[], overlap: false })
            .unwrap_err()
            .to_string()
    };
    let no_seats = Capacity { max_seats: 0, ..CAPACITY };
    assert_eq!(said(no_seats, 1, &good), "invalid: plan recurrent: 0 seats, 6 rows and 1 slots: none may be 0");
    assert_eq!(said(CAPACITY, 1, &[]), "invalid: plan recurrent: rows of 0 states given, and 1 declared");
    let more_rows = Capacity { rows: 7, ..CAPACITY };
    let found = said(more_rows, 1, &good);
    assert_eq!(found, "invalid: plan recurrent: state h has 7 rows of 1024 bytes, and was given 6 rows of 1024");
    assert!(said(CAPACITY, 1, &states(&*open(None))).contains("belongs to another device"));
    let many = device.capabilities().slots_max + 1;
    assert!(said(CAPACITY, many, &good).starts_with("unsupported: "), "{many} slots");

    let executable = prepared(&device);
    let (other, mut slot) = (prepared(&device), device.lease(&executable).unwrap());
    let mut check = RowCheck::new(CAPACITY);
    let turn = check.check(&[SEAT]).unwrap();
    assert!(matches!(device.submit(&other, &mut slot, turn, &[]), Err(DeviceError::Invalid { .. })));
    let mut larger = RowCheck::new(Capacity { rows: 100, max_seats: 3 });
    let outside = [SeatRows { read: RowId(90), write: RowId(91) }];
    let turn = larger.check(&outside).unwrap();
    assert!(matches!(device.submit(&executable, &mut slot, turn, &[]), Err(DeviceError::Invalid { .. })));
    let mut stateless = RowCheck::stateless(CAPACITY);
    let turn = stateless.check(&outside).unwrap();
    assert!(matches!(device.submit(&executable, &mut slot, turn, &[]), Err(DeviceError::Invalid { .. })));
    assert!(matches!(open(None).lease(&executable), Err(DeviceError::Invalid { .. })));
}

/// A device with a clock times a turn as often as asked, beside a model that serves and is not disturbed; one without says so.
pub fn timed(open: Open<'_>) {
    let (device, (plan, signature)) = (open(None), recurrent());
    let mut model = PlannedModel::new(Arc::clone(&device), plan, signature).unwrap();
    let before = device.memory().used;
    let input = vec![0; 5 * 96 * 4];
    let times = model.measure(5, &[&input], 7).unwrap();
    assert_eq!(device.memory().used, before, "what was made for it is given back");
    assert_eq!(times.is_some(), device.capabilities().clock);
    if let Some(TurnTimes { turn, compute }) = times {
        assert!(turn.len() == 7 && turn.iter().all(|taken| !taken.is_zero()), "{turn:?}");
        assert!(compute.is_empty() || compute.len() == 7, "{compute:?}");
        // The commands are a part of the turn; medians, since a sample may be disturbed.
        let median = |mut samples: Vec<Duration>| {
            samples.sort_unstable();
            samples[samples.len() / 2]
        };
        assert!(compute.is_empty() || median(compute.clone()) <= median(turn.clone()), "{compute:?} of {turn:?}");
    }
    let said = |seats, inputs: &[&[u8]]| model.measure(seats, inputs, 1).unwrap_err().to_string();
    assert_eq!(said(5, &[]), "invalid: inputs of [] bytes for 5 seats of recurrent");
    assert_eq!(said(4, &[&input]), "invalid: inputs of [1920] bytes for 4 seats of recurrent");
    assert_eq!(said(0, &[&[]]), "invalid: turns of 0 seats");
    assert_eq!(device.memory().used, before);

    model.prepare(CAPACITY).unwrap();
    let run = |model: &mut PlannedModel| {
        model.input_mut(0).fill(0);
        model.run(&[SEAT], &mut Vec::new()).unwrap();
        model.output(0)[..(64 + 31 * 8) * 4].to_vec()
    };
    let expected = run(&mut model);
    model.measure(3, &[&input[..3 * 96 * 4]], 2).unwrap();
    assert_eq!(run(&mut model), expected);
}
