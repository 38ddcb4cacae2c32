//! The shared suite, once per number of threads.

use backend_cpu::{CpuDevice, CpuOptions};
use lanes_core::device::Device;
use lanes_core::lanes::{Capacity, LanedModel};
use lanes_core::planned::PlannedModel;
use std::sync::Arc;

fn open(threads: usize, budget: Option<u64>) -> Arc<dyn Device> {
    Arc::new(
        CpuDevice::open(CpuOptions { threads: Some(threads), budget, ..CpuOptions::default() }).expect("threads start"),
    )
}

lanes_tests::conformance!(one_thread, &|budget| crate::open(1, budget));
lanes_tests::conformance!(two_threads, &|budget| crate::open(2, budget));
lanes_tests::conformance!(three_threads, &|budget| crate::open(3, budget));

/// One thread hands nothing over, nor does a turn of one seat; a large turn of three threads does.
#[test]
fn no_device_has_threads_past_all_machines() {
    let error = CpuDevice::open(CpuOptions { threads: Some(1 << 40), ..CpuOptions::default() }).err().unwrap();
    assert_eq!(error.to_string(), "invalid: 1099511627776 threads, and a device has at most 4096");
}

#[test]
fn hand_offs_are_those_of_turns_worth_it() {
    for (threads, seats, expected) in [(1, 33, 0), (3, 1, 0), (3, 33, 2)] {
        let device =
            CpuDevice::open(CpuOptions { threads: Some(threads), ..CpuOptions::default() }).expect("threads start");
        let device = Arc::new(device);
        let (plan, signature) = lanes_tests::plans::recurrent();
        let mut model = PlannedModel::new(Arc::<CpuDevice>::clone(&device), plan, signature).expect("the plan fits");
        let capacity = Capacity { rows: 80, max_seats: 33 };
        model.prepare(capacity).expect("it is prepared");
        let turn = lanes_tests::random::turn(&mut lanes_tests::random::Random(1), capacity, seats);
        model.run(&turn, &mut Vec::new()).expect("the turn runs");
        assert_eq!(device.hand_offs(), expected, "{threads} threads, {seats} seats");
    }
}

/// A stream goes from a device of one thread to one of three and back, and its bits do not tell.
#[test]
fn snapshots_go_on_with_another_number_of_threads() {
    lanes_tests::forks::elsewhere(open(1, None), open(3, None));
    lanes_tests::forks::elsewhere(open(3, None), open(2, None));
}

/// Models that run at the same time on one device share its threads, and each gets its own results.
#[test]
fn models_share_a_device() {
    let device = open(2, None);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| lanes_tests::plans::activations(&|_| Arc::clone(&device)));
        }
    });
}
