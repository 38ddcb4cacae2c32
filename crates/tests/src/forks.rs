//! Streams of a planned model that fork, go back, and go on elsewhere: always bit-equal to a stream that made the same
//! calls from the start, and never at the cost of memory.

use crate::Open;
use crate::apart::Apart;
use crate::faulty::FaultyDevice;
use crate::plans::recurrent;
use crate::random::{Random, f32_bytes};
use crate::sessions::said;
use lanes_core::device::Device;
use lanes_core::lanes::{LanedModel, LanesBuilder, Runnable, Stream, Value};
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
    let (last, before) = seeds.split_last().expect("there are seeds");
    for seed in before {
        answer(runnable, &stream, *seed);
    }
    answer(runnable, &stream, *last)
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
    let found = said(other.restore_blocking(&bytes));
    assert!(found.starts_with("the snapshot is of model recurrent ("), "{found}");
    assert!(found.contains("), and this is model recurrent ("), "{found}");
    let mut altered = bytes;
    altered[100] ^= 1;
    assert_eq!(said(there.restore_blocking(&altered)), "the snapshot was altered: its checksum does not match");
    altered[100] ^= 1;
    let whole = altered.len();
    for bytes in [&altered[..whole - 1], &altered[..60], &[&altered[..], &[0]].concat()] {
        let found = bytes.len();
        let expected = format!("the snapshot was cut or extended: {found} bytes, and {whole} were written");
        assert_eq!(said(there.restore_blocking(bytes)), expected);
    }
    let expected = "not a snapshot: 10 bytes, which do not begin as one does";
    assert_eq!(said(there.restore_blocking(&altered[..10])), expected);
    altered[8] += 1;
    let expected = "the snapshot has format 2, and this build reads format 1";
    assert_eq!(said(there.restore_blocking(&altered)), expected);
    altered[8] -= 1;
    altered[12..20].copy_from_slice(&((1u64 << 30) + 1).to_le_bytes());
    let expected = "the snapshot has 1073741825 bytes, and at most 1073741824 are accepted";
    assert_eq!(said(there.restore_blocking(&altered)), expected);
    assert_eq!(there.stats().lanes_taken, 2);
}

/// A stream of `here` goes on `there`, on another lane and in company, and back again. The two compute the same bits.
pub fn elsewhere(here: Arc<dyn Device>, there: Arc<dyn Device>) {
    let (here, there) = (serve(here), serve(there));
    let stream = here.spawn_blocking().expect("a lane is free");
    let others: Vec<_> = (0..3).map(|_| there.spawn_blocking().expect("a lane is free")).collect();
    for seed in 0..3 {
        answer(&here, &stream, seed);
        answer(&there, &others[seed as usize], seed);
    }
    let bytes = stream.snapshot_blocking().expect("it is taken");
    let moved = there.restore_blocking(&bytes).expect("same model");
    assert_ne!(moved.lane(), stream.lane());
    assert_eq!(moved.position(), 3);
    assert!(moved.snapshot_blocking().expect("it is taken") == bytes, "nothing was lost on the way");
    for seed in 3..6 {
        assert!(answer(&there, &moved, seed) == answer(&here, &stream, seed), "call {seed}");
    }
    let back = here.restore_blocking(&moved.snapshot_blocking().expect("it is taken")).expect("same model");
    assert!(answer(&here, &back, 6) == replayed(&here, &[0, 1, 2, 3, 4, 5, 6]), "back again");
}

/// Snapshots go from a device to one of another kind, and back.
pub fn another_kind(open: Open<'_>) {
    elsewhere(open(None), Arc::new(FaultyDevice::new(open(None))));
    elsewhere(Arc::new(Apart::new(open(None), false)), open(None));
}

/// What there is no room for, and what is of another runnable or of one that is gone, is refused in words.
pub fn refusals(open: Open<'_>) {
    let serve = || LanesBuilder::new(model(open(None))).lanes(3).checkpoints(1).build().expect("it is served");
    let (runnable, other) = (serve(), serve());
    let stream = runnable.spawn_blocking().expect("a lane is free");
    assert_eq!(said(stream.fork_many_blocking(3)), "3 lanes were asked for, and 2 of 3 are free");
    assert_eq!(runnable.stats().lanes_taken, 1, "all or none");
    let bytes = stream.snapshot_blocking().expect("it is taken");
    let forks = stream.fork_many_blocking(2).expect("lanes are free");
    let full = "1 lane was asked for, and 0 of 3 are free";
    assert_eq!([said(stream.fork_blocking()), said(runnable.spawn_blocking())], [full; 2]);
    assert_eq!(said(runnable.restore_blocking(&bytes)), full);
    let kept = stream.checkpoint_blocking().expect("a checkpoint is free");
    let none = "all 1 checkpoints are held; the builder's `checkpoints` or LANES_CHECKPOINTS makes room";
    assert_eq!(said(forks[0].checkpoint_blocking()), none);
    let foreign = other.spawn_blocking().expect("a lane is free");
    let expected = "the checkpoint belongs to another runnable than the stream on lane0";
    assert_eq!(said(foreign.rollback_blocking(&kept)), expected);
    drop(runnable);
    let closed =
        [said(stream.fork_blocking()), said(stream.snapshot_blocking()), said(stream.rollback_blocking(&kept))];
    assert_eq!(closed, ["closed"; 3]);
}

/// A thousand forks hold the row of their origin, each until it is called.
pub fn thousand(open: Open<'_>) {
    const FORKS: u32 = 1000;
    let device = open(None);
    let builder = LanesBuilder::new(model(Arc::clone(&device))).lanes(FORKS + 2).max_seats(5);
    let runnable = builder.build().expect("it is served");
    let root = runnable.spawn_blocking().expect("a lane is free");
    answer(&runnable, &root, 0);
    let before = device.memory().used;
    let forks = root.fork_many_blocking(FORKS).expect("lanes are free");
    assert_eq!((forks.len(), device.memory().used), (FORKS as usize, before));
    let kept = root.snapshot_blocking().expect("it is taken");
    for at in [0, 499, 999] {
        assert!(forks[at].snapshot_blocking().expect("it is taken") == kept, "fork {at}");
    }
    assert!(answer(&runnable, &forks[499], 7) == replayed(&runnable, &[0, 7]), "one parts");
    for fork in [&forks[0], &forks[999], &root] {
        assert!(fork.snapshot_blocking().expect("it is taken") == kept, "and the others stay");
    }
    assert_eq!(device.memory().used, before);
}
