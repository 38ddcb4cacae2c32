//! A replay, and an upload with a readback, allocate nothing once they have run: no thread of the process does.

use backend_cpu::{CpuDevice, CpuOptions};
use lanes_core::session::{Product, Session};
use lanes_tests::counting::Counting;
use lanes_tests::sessions::{N, bytes, elementwise, kernels, numbers};
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

/// Allocations of 200 rounds, once warm.
fn allocations(mut round: impl FnMut()) -> u64 {
    ALLOCATOR.in_rounds(200, |_| round())
}

// Without a harness: its own thread would allocate meanwhile.
fn main() {
    for overlap in [false, true] {
        let device = CpuDevice::open(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
        let session = Session::builder("counted").device(Arc::new(device)).overlap(overlap).open().unwrap();
        let (mul, add) = kernels(&session);
        let [x, y, z] = ["x", "y", "z"].map(|label| session.allocate(label, N * 4).unwrap());
        let w = session.weights_f32("w", numbers(N * N, 1)).unwrap();
        session
            .record("step", |commands| {
                let tmp = commands.scratch("tmp", N * 4)?;
                commands.contract(&Product::new(&x, &w, &tmp))?;
                commands.dispatch(&mul, &[N], &[N], &[tmp.read(), x.read(), y.write()])?;
                commands.dispatch(&add, &[N], &[N], &[tmp.read(), y.read(), z.write()])
            })
            .unwrap();
        // One reads what the other wrote: it is submitted after it.
        session.record("carry", |commands| commands.copy(&z, &x)).unwrap();
        let replays = allocations(|| {
            let first = session.replay("step").unwrap();
            session.replay("carry").unwrap().wait().unwrap();
            assert!(first.is_done());
        });
        assert_eq!(replays, 0, "replays, overlap: {overlap}");
        let value = bytes(&numbers(N, 3));
        let mut back = session.reserve(&[&y, &z]).unwrap();
        let mut into = vec![0; N * 4];
        let transfers = allocations(|| {
            session.upload(&x, &value).unwrap();
            session.replay("step").unwrap();
            session.readback(&mut back).unwrap();
            session.download(&z, &mut into).unwrap();
        });
        assert_eq!(transfers, 0, "transfers, overlap: {overlap}");
        assert_eq!(back.bytes(1), into);
        // The counter does count.
        assert_ne!(allocations(|| drop(session.reserve(&[&y]).unwrap())), 0);
    }
    several_threads();
    println!("replays_and_transfers_allocate_nothing_after_the_first: ok");
}

/// Nor does a launch that several threads run, once each of them has.
fn several_threads() {
    let device = Arc::new(CpuDevice::open(CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap());
    let session = Session::builder("counted").device(Arc::<CpuDevice>::clone(&device)).open().unwrap();
    let items = 1 << 18;
    let kernel = session.compile(&[elementwise("divide", "scalar.divf")]).unwrap().remove(0);
    let [x, y] = ["x", "y"].map(|label| session.allocate(label, items * 4).unwrap());
    session.record("step", |c| c.dispatch(&kernel, &[items], &[items], &[x.read(), x.read(), y.write()])).unwrap();
    let replay = || session.replay("step").unwrap().wait().unwrap();
    let helped = (0..10_000).any(|_| {
        replay();
        device.hand_offs() > 3
    });
    assert!(helped, "nobody ever helps");
    let before = device.hand_offs();
    assert_eq!(allocations(|| drop(replay())), 0, "launches on two threads");
    assert_ne!(device.hand_offs(), before, "nobody helps");
}
