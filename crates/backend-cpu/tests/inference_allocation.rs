//! An inference from host bytes to host bytes allocates nothing once there was one: no thread of the process does.

use backend_cpu::{CpuDevice, CpuOptions};
use lanes_core::DType;
use lanes_core::inference::{Descriptor, ModelContext, Tensor};
use lanes_tests::counting::Counting;
use lanes_tests::pools::{N, model, round, until};
use lanes_tests::sessions::bytes;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

/// Allocations of 200 rounds, once warm.
fn allocations(mut round: impl FnMut()) -> u64 {
    ALLOCATOR.in_rounds(200, |_| round())
}

// Without a harness: its own thread would allocate meanwhile.
fn main() {
    let device = CpuDevice::open(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
    let pool = model(&ModelContext::new(Arc::new(device)), 4);
    let ([x, b], y) = round(1);
    let (x, b, mut into) = (bytes(&x), bytes(&b), [0; N * 4]);
    let counted = allocations(|| {
        let slot = pool.acquire_blocking().unwrap();
        let outputs = slot.submit_host(&[&x, &b]).unwrap().wait().unwrap();
        outputs.read_into(&mut [&mut into]).unwrap();
    });
    assert_eq!((counted, &into[..]), (0, &bytes(&y)[..]), "one after the other");
    let counted = allocations(|| {
        let fly = || pool.try_acquire().unwrap().submit_with(|port, to| to.copy_from_slice([&x, &b][port])).unwrap();
        let flying = [fly(), fly(), fly(), fly()];
        for inference in flying {
            let mut outputs = inference.wait().unwrap();
            outputs.fetch().unwrap();
            assert_eq!(outputs.get::<f32>(0).unwrap(), y);
        }
    });
    assert_eq!(counted, 0, "all slots in flight, written in place, fetched to the slot's own memory");
    // Tensors of the device as inputs: each is copied to the slot's own memory.
    let tensors = [&x, &b]
        .map(|bytes| Tensor::upload_bytes(pool.context(), Descriptor::new(DType::F32, &[N]).unwrap(), bytes).unwrap());
    let counted = allocations(|| {
        let inference = pool.try_acquire().unwrap().submit(&[&tensors[0], &tensors[1]]).unwrap();
        inference.wait().unwrap().read_into(&mut [&mut into]).unwrap();
    });
    assert_eq!((counted, &into[..]), (0, &bytes(&y)[..]), "tensors of the device");
    // Waiters too: each slot that is given here was waited for on the other thread.
    let held: Vec<_> = (0..3).map(|_| pool.try_acquire().unwrap()).collect();
    let counted = std::thread::scope(|scope| {
        let (send, receive) = std::sync::mpsc::sync_channel::<()>(1);
        let pool = &pool;
        scope.spawn(move || {
            while receive.recv().is_ok() {
                drop(pool.acquire_blocking().unwrap());
            }
        });
        allocations(|| {
            let slot = pool.acquire_blocking().unwrap();
            send.send(()).unwrap();
            until("the other waits", || pool.waiting() == 1);
            drop(slot);
        })
    });
    assert_eq!(counted, 0, "slots that are waited for");
    drop(held);
    // The counter does count.
    assert_ne!(allocations(|| drop(vec![0u8; 8])), 0);
    println!("inferences_of_the_host_allocate_nothing_after_the_first: ok");
}
