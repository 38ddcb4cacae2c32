//! Streams of a planned model that fork, go back, and go on elsewhere: always bit-equal to a stream that made the same
//! calls from the start, and never at the cost of memory.

use crate::Open;
use crate::plans::recurrent;
use crate::random::{Random, f32_bytes};
use lanes_core::device::Device;
use lanes_core::lanes::{LanedModel, LanesBuilder, Runnable, SnapshotError, Stream, StreamError, Value};
use lanes_core::planned::PlannedModel;
use std::sync::Arc;

fn model(device: Arc<dyn Device>) -> PlannedModel {
    let (plan, signature) = recurrent();
    PlannedModel::new(device, plan, signature).expect("the plan fits")
}

fn serve(device: Arc<dyn Device>) -> Runnable {
    LanesBuilder::new(model(device)).lanes(12).max_seats(5).checkpoints(3).build().expect("it is served")
}

/// One frame of input, the same for the same `seed`.
fn frame(runnable: &Runnable, seed: u64) -> Vec<u8> {
    f32_bytes(&mut Random(seed + 1), runnable.signature().inputs[0].elements())
}

/// The bytes that `stream` answers to frame `seed`.
fn answer(runnable: &Runnable, stream: &Stream, seed: u64) -> Vec<u8> {
    let (port, bytes) = (&runnable.signature().inputs[0], frame(runnable, seed));
    let value = Value { dtype: port.dtype, shape: &port.shape, bytes: &bytes };
    let outputs = stream.call_blocking(&[value]).expect("the call is served");
    outputs.bytes(0).expect("there is an output").to_vec()
}

/// What a stream answers to the last of `seeds` that has been asked them all from the start.
fn replayed(runnable: &Runnable, seeds: &[u64]) -> Vec<u8> {
    let stream = runnable.spawn_blocking().expect("a lane is free");
    seeds.iter().fold(None, |_, seed| Some(answer(runnable, &stream, *seed))).expect("there are seeds")
}

/// Forks go on from one row, and part when they are called; the device holds not a byte more.
pub fn forks(open: Open<'_>) {
    let device = open(None);
    let runnable = serve(Arc::clone(&device));
    let root = runnable.spawn_blocking().expect("a lane is free");
    for seed in 0..3 {
        answer(&runnable, &root, seed);
    }
    let (used, bytes) = (device.memory().used, runnable.device_bytes());
    let forks = root.fork_many_blocking(7).expect("lanes are free");
    for (at, fork) in forks.iter().enumerate() {
        let own = 100 + at as u64;
        assert_eq!(fork.position(), 3);
        assert!(answer(&runnable, fork, own) == replayed(&runnable, &[0, 1, 2, own]), "fork {at}");
    }
    // A fork of a fork, and the root, which none of them has moved.
    let again = forks[6].fork_blocking().expect("a lane is free");
    drop(forks);
    assert!(answer(&runnable, &again, 9) == replayed(&runnable, &[0, 1, 2, 106, 9]), "a fork of a fork");
    assert!(answer(&runnable, &root, 3) == replayed(&runnable, &[0, 1, 2, 3]), "the root");
    assert_eq!((device.memory().used, runnable.device_bytes()), (used, bytes));
}

/// A checkpoint is gone back to as often as wanted, by the stream it was taken of and by others.
pub fn checkpoints(open: Open<'_>) {
    let runnable = serve(open(None));
    let (one, two) = (runnable.spawn_blocking().expect("a lane"), runnable.spawn_blocking().expect("a lane"));
    let fresh = one.checkpoint_blocking().expect("a checkpoint is free");
    answer(&runnable, &one, 1);
    let kept = one.checkpoint_blocking().expect("a checkpoint is free");
    answer(&runnable, &one, 2);
    answer(&runnable, &two, 3);
    for (stream, checkpoint, history) in [(&one, &kept, vec![1, 4]), (&two, &kept, vec![1, 4]), (&one, &fresh, vec![4])]
    {
        for _ in 0..2 {
            stream.rollback_blocking(checkpoint).expect("it is of this runnable");
            assert_eq!(stream.position(), history.len() as u64 - 1);
            assert!(answer(&runnable, stream, 4) == replayed(&runnable, &history), "{history:?}");
        }
    }
    one.reset();
    assert!(answer(&runnable, &one, 4) == replayed(&runnable, &[4]), "after a reset");
}

/// A snapshot goes on bit for bit on a device opened anew; one of another model, or altered, is refused in words.
pub fn snapshots(open: Open<'_>) {
    let (here, there) = (serve(open(None)), serve(open(None)));
    let stream = here.spawn_blocking().expect("a lane is free");
    for seed in 0..4 {
        answer(&here, &stream, seed);
    }
    let bytes = stream.snapshot_blocking().expect("it is taken");
    let state_bytes = here.signature().state_bytes_per_lane();
    assert!((state_bytes..state_bytes + 512).contains(&bytes.len()), "{} bytes", bytes.len());
    let (restored, _other) = (there.restore_blocking(&bytes).expect("same model"), there.spawn_blocking());
    assert_eq!(restored.position(), 4);
    for seed in 4..8 {
        assert!(answer(&there, &restored, seed) == answer(&here, &stream, seed), "call {seed}");
    }
    assert!(restored.snapshot_blocking().expect("it is taken") == stream.snapshot_blocking().expect("it is taken"));

    let (mut plan, signature) = recurrent();
    plan.commands.swap(2, 3);
    let other = PlannedModel::new(open(None), plan, signature).expect("the plan fits");
    let identity = |model: &PlannedModel| model.identity().expect("a planned model has one");
    assert_eq!(identity(&model(open(None))), identity(&model(open(None))));
    assert_ne!(identity(&model(open(None))), identity(&other));
    let other = LanesBuilder::new(other).lanes(1).build().expect("it is served");
    let error = other.restore_blocking(&bytes).expect_err("another model");
    let said = error.to_string();
    assert!(said.starts_with("the snapshot is of model recurrent ("), "{said}");
    assert!(said.contains("), and this is model recurrent ("), "{said}");
    let mut altered = bytes;
    altered[100] ^= 1;
    let error = there.restore_blocking(&altered).expect_err("it was altered");
    assert!(matches!(error, StreamError::Snapshot(SnapshotError::Altered)), "{error}");
    assert_eq!(there.stats().lanes_taken, 2);
}
