//! Streams over several slots against each stream alone.

use crate::Open;
use crate::faulty::FaultyDevice;
use crate::plans::recurrent;
use crate::pools::until;
use crate::random::{Random, f32_bytes};
use crate::tasks::{Woken, block_on, poll_once};
use lanes_core::device::Device;
use lanes_core::lanes::{LanesBuilder, Runnable, Value};
use lanes_core::planned::PlannedModel;
use std::sync::Arc;

const STREAMS: usize = 5;
const CALLS: usize = 12;

/// With every number of slots the device has, up to three, a stream's answers are bit by bit those it gets alone, though
/// its calls are in flight together; one slot more than the device has is refused.
pub fn streams(open: Open<'_>) {
    let device = open(None);
    let builder = |slots: usize| {
        let (plan, signature) = recurrent();
        let model = PlannedModel::new(Arc::clone(&device), plan, signature).expect("the plan fits its signature");
        LanesBuilder::new(model).lanes(STREAMS as u32).max_seats(2).slots(slots)
    };
    let one = builder(1).build().expect("every device has a slot");
    let port = one.signature().inputs[0].clone();
    let mut random = Random(7);
    let inputs: Vec<Vec<Vec<u8>>> =
        (0..STREAMS).map(|_| (0..CALLS).map(|_| f32_bytes(&mut random, port.elements())).collect()).collect();
    let value = |bytes| Value { dtype: port.dtype, shape: &port.shape, bytes };
    let alone: Vec<Vec<Vec<u8>>> = inputs
        .iter()
        .map(|inputs| {
            let stream = one.spawn_blocking().expect("a lane is free");
            let call = |input| stream.call_blocking(&[value(input)]).expect("it is served");
            inputs.iter().map(|input| call(input).bytes(0).expect("one output").to_vec()).collect()
        })
        .collect();
    assert!(alone[0][0] != alone[0][1] && alone[0][0] != alone[1][0], "state and input show in the answer");
    let slots_max = device.capabilities().slots_max;
    for slots in 1..=slots_max.min(3) {
        let runnable: Runnable = builder(slots).build().expect("the device has so many slots");
        let streams: Vec<_> = (0..STREAMS).map(|_| runnable.spawn_blocking().expect("a lane is free")).collect();
        let mut reaper = runnable.reaper();
        for call in 0..CALLS {
            for (at, (stream, inputs)) in streams.iter().zip(&inputs).enumerate() {
                let tag = (call * STREAMS + at) as u64;
                reaper.submit(stream, tag, &[value(&inputs[call])]).expect("there is room");
            }
            // The queue holds four calls a lane.
            let room = 2 * STREAMS;
            while reaper.in_flight() > if call + 1 == CALLS { 0 } else { room } {
                let reaped = reaper.next_blocking().expect("some are in flight");
                let (call, at) = (reaped.tag as usize / STREAMS, reaped.tag as usize % STREAMS);
                let outputs = reaped.result.expect("it is served");
                let same = outputs.bytes(0) == Some(&alone[at][call][..]);
                assert!(same, "{slots} slots: call {call} of stream {at} differs from its stream alone");
            }
        }
        assert_eq!(streams.iter().map(|stream| stream.position()).collect::<Vec<_>>(), [CALLS as u64; STREAMS]);
    }
    if slots_max < 64 {
        let said = builder(slots_max + 1).build().expect_err("one more than there are").to_string();
        let asked = slots_max + 1;
        assert_eq!(said, format!("{asked} slots were asked for, and model recurrent has at most {slots_max}"));
    }
}

/// While a turn flies, the next one is stacked and submitted if there is a slot for it, of the same stream or of another;
/// what finds no slot stays in the queue.
pub fn both_slots(open: Open<'_>) {
    let device = Arc::new(FaultyDevice::new(open(None)));
    if device.capabilities().slots_max < 2 {
        return;
    }
    for slots in 1..=2 {
        for streams in 1..=2 {
            let (plan, signature) = recurrent();
            let model = PlannedModel::new(Arc::<FaultyDevice>::clone(&device), plan, signature).expect("the plan fits");
            let runnable = LanesBuilder::new(model).lanes(3).max_seats(1).slots(slots).build().expect("it is served");
            let port = &runnable.signature().inputs[0];
            let input = f32_bytes(&mut Random(3), port.elements());
            let value = [Value { dtype: port.dtype, shape: &port.shape, bytes: &input }];
            let held: Vec<_> = (0..streams).map(|_| runnable.spawn_blocking().expect("a lane is free")).collect();
            let alone = runnable.spawn_blocking().expect("a lane is free");
            let expected: Vec<_> = (0..3).map(|_| alone.call_blocking(&value).expect("it is served")).collect();
            device.hold();
            let woken = Arc::new(Woken::default());
            let mut calls = Vec::new();
            for at in 0..3 {
                let mut call = held[at % streams].call(&value);
                assert!(poll_once(&mut call, &woken).is_pending());
                calls.push(call);
                let left = (at + 1usize).saturating_sub(slots);
                until("as many fly as there are slots", || runnable.stats().queue_depth == left);
            }
            device.release();
            for (at, call) in calls.into_iter().enumerate() {
                let outputs = block_on(call).expect("it is served");
                assert!(
                    outputs.bytes(0) == expected[at / streams].bytes(0),
                    "{slots} slots, {streams} streams: call {at}"
                );
            }
        }
    }
}
