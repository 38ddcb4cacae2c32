//! What proofs and measurements on hardware need, and nobody else: feature `instruments`.
//!
//! - What the bare driver takes, in the same process and on the same queue as what is compared with it.
//! - What goes wrong on demand: a kernel that traps, a launch that the driver refuses.

use crate::device::CudaDevice;
use crate::sys::Context;
use lanes_core::device::DeviceError;
use std::sync::Arc;
use std::time::Duration;

/// The instruments of one open device.
pub struct Instruments(Arc<Context>);

impl CudaDevice {
    /// Its instruments. They hold the device's context.
    pub fn instruments(&self) -> Instruments {
        Instruments(Arc::clone(self.context()))
    }
}

impl Instruments {
    /// Host time of `rounds` rounds of what no turn can do without: `bytes` bytes of pinned memory up, a graph of one kernel, as many
    /// down, and the wait for the end, in four calls of the driver.
    pub fn bare_turns(&self, bytes: usize, rounds: usize) -> Result<Vec<Duration>, DeviceError> {
        self.0.bare_turns(bytes, rounds)
    }

    /// Device time of a graph of `kernels` trivial kernels, each after the one before.
    pub fn bare_chain(&self, kernels: usize, samples: usize) -> Result<Vec<Duration>, DeviceError> {
        self.0.bare_chain(kernels, samples)
    }

    /// Device time of the driver's own copy of `bytes` bytes within the device.
    pub fn bare_copy(&self, bytes: usize, samples: usize) -> Result<Vec<Duration>, DeviceError> {
        self.0.bare_copy(bytes, samples)
    }

    /// Bytes of the device that nobody holds, other processes included.
    pub fn free_bytes(&self) -> Result<u64, DeviceError> {
        self.0.free_bytes()
    }

    /// Launches a kernel that traps, behind what was launched before.
    pub fn trap(&self) -> Result<(), DeviceError> {
        self.0.trap()
    }

    /// Has the next launch fail with the driver's status `status`, without being made.
    pub fn refuse_launch(&self, status: u32) {
        self.0.refuse_launch(status);
    }
}
