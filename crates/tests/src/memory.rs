//! Buffers, budgets and rows.

use crate::Open;
use crate::plans::recurrent;
use lanes_core::device::{DeviceError, Placement, Purpose, RowOp, StateRows};
use lanes_core::lanes::{Capacity, LanedModel, RowId};
use lanes_core::planned::PlannedModel;
use std::sync::Arc;

/// Fresh memory is zero, what is written is read, and ranges past the end are refused.
pub fn transfers(open: Open<'_>) {
    let device = open(None);
    let placements = [Placement::Device, Placement::Upload, Placement::Readback, Placement::Shared];
    for (placement, bytes) in placements.into_iter().zip([100u64, 1, 4096, 0]) {
        let buffer = device.allocate("test", Purpose::Staging, placement, bytes).unwrap();
        assert_eq!((buffer.bytes(), buffer.placement()), (bytes, placement));
        let mut all = vec![9; bytes as usize];
        device.read(&buffer, 0, &mut all).unwrap();
        assert!(all.iter().all(|&byte| byte == 0));
        for offset in [0, bytes / 2, bytes] {
            let written: Vec<u8> = (0..bytes - offset).map(|at| (at * 7 + offset) as u8).collect();
            device.write(&buffer, offset, &written).unwrap();
            all[offset as usize..].copy_from_slice(&written);
            let mut read = vec![0; bytes as usize];
            device.read(&buffer, 0, &mut read).unwrap();
            assert_eq!(read, all);
        }
        for (offset, len) in [(bytes, 1), (0, bytes as usize + 1), (u64::MAX, 2)] {
            let error = device.write(&buffer, offset, &vec![0; len]).unwrap_err();
            assert!(error.to_string().contains(&format!("of a buffer of {bytes} bytes")), "{error}");
            assert!(matches!(device.read(&buffer, offset, &mut vec![0; len]), Err(DeviceError::Invalid { .. })));
        }
        // The same call on a device that did not give the buffer out.
        assert!(matches!(open(None).read(&buffer, 0, &mut []), Err(DeviceError::Invalid { .. })));
    }
    device.health().unwrap();
    device.reopen().unwrap().allocate("test", Purpose::Staging, Placement::Device, 8).unwrap();
}

/// What a model takes is what its report says, is refused one byte below, and comes back.
pub fn budget(open: Open<'_>) {
    let capacity = Capacity { rows: 10, max_seats: 4 };
    let (plan, signature) = recurrent();
    let model = |budget| PlannedModel::new(open(budget), plan.clone(), signature.clone()).unwrap();
    let mut free = model(None);
    free.prepare(capacity).unwrap();
    let need = free.device_bytes();
    assert_eq!(free.device().memory().used, free.memory());
    assert_eq!(free.memory().state, 10 * 256 * 4);
    assert!(free.memory().weights >= plan_weights(&plan), "{:?}", free.memory());
    assert!(free.memory().staging >= 4 * (96 + 64 + 31 * 8) * 4, "{:?}", free.memory());
    let device = Arc::clone(free.device());
    drop(free);
    assert_eq!(device.memory().used.total(), 0, "all of it comes back");

    model(Some(need)).prepare(capacity).unwrap();
    let mut tight = model(Some(need - 1));
    match tight.prepare(capacity) {
        Err(DeviceError::OverBudget { need: more, used, budget, .. }) => {
            assert_eq!(budget, need - 1);
            assert!(used + more > budget && used <= budget);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(tight.device().memory().used.total(), 0, "a refusal holds nothing");
    // Whole rows and seats are counted before the first of them is allocated, and in u64.
    let (row, seat) = (256 * 4, (96 + 64 + 31 * 8) * 4);
    for (rows, max_seats) in [(1000, 1), (2, 1000), (u32::MAX, u32::MAX)] {
        let at_least = u64::from(rows) * row + u64::from(max_seats) * seat;
        match model(Some(100_000)).prepare(Capacity { rows, max_seats }) {
            Err(DeviceError::OverBudget { need, used: 0, budget: 100_000, .. }) => {
                assert!(need >= at_least, "{need} of {at_least} bytes");
            }
            other => panic!("{other:?}"),
        }
    }
    let device = open(Some(1000));
    let held = device.allocate("first", Purpose::State, Placement::Device, 600).unwrap();
    let error = device.allocate("second", Purpose::State, Placement::Device, 401).unwrap_err();
    assert_eq!(error.to_string(), "over budget: second needs 401 bytes, 600 of 1000 are in use");
    assert_eq!(device.memory().budget, Some(1000));
    drop(held);
    device.allocate("second", Purpose::State, Placement::Device, 401).unwrap();
    assert!(matches!(
        open(None).allocate("all", Purpose::State, Placement::Device, u64::MAX),
        Err(DeviceError::TooLarge { .. })
    ));
}

fn plan_weights(plan: &lanes_core::plan::Plan) -> u64 {
    let weights = plan.commands.iter().map(|command| match command {
        lanes_core::plan::Command::Contract(contraction) => contraction.weights.len() * 4,
        _ => 0,
    });
    weights.sum::<usize>() as u64
}

/// Row operations, against a table of rows.
pub fn rows(open: Open<'_>) {
    let device = open(None);
    let buffer = device.allocate("rows", Purpose::State, Placement::Device, 5 * 7).unwrap();
    let mut expected: Vec<Vec<u8>> = (0..5u8).map(|row| (0..7).map(|at| row * 16 + at).collect()).collect();
    device.write(&buffer, 0, &expected.concat()).unwrap();
    assert!(StateRows::new(buffer.clone(), 7, 4).is_err(), "a row too few");
    let state = StateRows::new(buffer.clone(), 7, 5).unwrap();
    let mut step = |op: RowOp, change: &dyn Fn(&mut Vec<Vec<u8>>)| {
        device.rows(&state, op).unwrap().wait().unwrap();
        change(&mut expected);
        let mut read = vec![0; 5 * 7];
        device.read(&buffer, 0, &mut read).unwrap();
        assert_eq!(read, expected.concat(), "{op:?}");
    };
    step(RowOp::Copy { from: RowId(0), to: RowId(2) }, &|rows| rows[2] = rows[0].clone());
    step(RowOp::Copy { from: RowId(4), to: RowId(0) }, &|rows| rows[0] = rows[4].clone());
    step(RowOp::Copy { from: RowId(1), to: RowId(1) }, &|_| {});
    step(RowOp::Fill { row: RowId(3), byte: 0xa5 }, &|rows| rows[3] = vec![0xa5; 7]);
    step(RowOp::Reset { row: RowId(1) }, &|rows| rows[1] = rows[4].clone());
    for op in [
        RowOp::Copy { from: RowId(5), to: RowId(0) },
        RowOp::Copy { from: RowId(0), to: RowId(4) },
        RowOp::Fill { row: RowId(4), byte: 0 },
        RowOp::Reset { row: RowId(9) },
    ] {
        assert!(matches!(device.rows(&state, op), Err(DeviceError::Invalid { .. })), "{op:?}");
    }
}
