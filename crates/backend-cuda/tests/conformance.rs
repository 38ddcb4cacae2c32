//! The shared suite on the first GPU, where there is one.

use backend_cuda::{CudaDevice, CudaOptions};
use lanes_core::device::DeviceError;
use lanes_tests::Open;
use std::sync::Arc;

/// How the first GPU is opened; where there is none, says why and that a test is left out.
fn gpu() -> Option<Open<'static>> {
    match CudaDevice::open(0, CudaOptions::default()) {
        Ok(_) => Some(&|budget| {
            Arc::new(CudaDevice::open(0, CudaOptions { budget, ..Default::default() }).expect("it opened before"))
        }),
        Err(DeviceError::Unsupported { what }) => {
            eprintln!("left out: {what}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

lanes_tests::conformance!(gpu_0, {
    let Some(open) = crate::gpu() else { return };
    open
});

/// A machine without a driver says so, and one with says what it has; neither panics.
#[test]
fn devices_are_told_or_why_there_are_none() {
    match backend_cuda::devices() {
        Ok(devices) => {
            assert!(!devices.is_empty());
            for device in &devices {
                assert!(device.target.starts_with("cuda:sm_") && device.memory_bytes.is_some(), "{device:?}");
                eprintln!("{device:?}");
            }
            let past = devices.len();
            let error = CudaDevice::open(past, CudaOptions::default()).err().expect("there is no such device");
            assert_eq!(error.to_string(), format!("invalid: CUDA device {past}: there are {past}"));
        }
        Err(DeviceError::Unsupported { what }) => {
            assert!(what.contains("NVIDIA driver"), "{what}");
            for ordinal in [0, 1, usize::MAX] {
                let error = CudaDevice::open(ordinal, CudaOptions::default()).err().expect("there is no driver");
                assert_eq!(error.to_string(), format!("unsupported: {what}"));
            }
        }
        Err(error) => panic!("{error}"),
    }
}

/// Opened and dropped a hundred times, with handles that outlive their device.
#[test]
fn handles_outlive_their_device_in_any_order() {
    let Some(open) = gpu() else { return };
    use lanes_core::device::{Placement, Purpose};
    let mut kept = Vec::new();
    for round in 0..100u8 {
        let device = open(None);
        let buffer = device.allocate("kept", Purpose::State, Placement::Device, 1 << 16).expect("there is room");
        device.write(&buffer, 0, &[round; 16]).expect("it is written");
        let mut back = [0; 16];
        device.read(&buffer, 0, &mut back).expect("it is read");
        assert_eq!(back, [round; 16]);
        kept.push(buffer);
        drop(device);
        if round % 3 == 0 {
            kept.swap_remove(usize::from(round) % kept.len());
        }
    }
}
