//! The shared suite, once per number of threads.

use backend_cpu::{CpuDevice, CpuOptions};
use lanes_core::device::Device;
use std::sync::Arc;

fn open(threads: usize, budget: Option<u64>) -> Arc<dyn Device> {
    Arc::new(CpuDevice::open(CpuOptions { threads: Some(threads), budget }).expect("threads start"))
}

lanes_tests::conformance!(one_thread, &|budget| crate::open(1, budget));
lanes_tests::conformance!(two_threads, &|budget| crate::open(2, budget));
lanes_tests::conformance!(three_threads, &|budget| crate::open(3, budget));
