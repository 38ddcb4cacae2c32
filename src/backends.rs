//! Which backends are compiled in, and how one is opened by name.

use lanes_core::device::{Capabilities, Device, DeviceError};
use lanes_core::inference::Devices;
use std::sync::Arc;

/// How a device is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// CPU threads that a backend may use; all the machine has if `None`.
    pub threads: Option<usize>,
    /// The most bytes the device may hold; no limit if `None`.
    pub budget: Option<u64>,
    /// Turns of loops that one launch of a kernel may take, where the device counts them, as `cpu` does; the device's own limit if
    /// `None`.
    pub steps_max: Option<u64>,
}

/// Why no device of a name is open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// No backend has this name.
    #[error("no backend is called `{found}`; there are cpu, cuda[:N], vulkan[:N] and wgpu[:N]")]
    Unknown {
        /// What was asked for.
        found: String,
    },
    /// The backend exists and is not in this build.
    #[error("backend `{backend}` is not in this build; build with the cargo feature `{backend}`")]
    Unbuilt {
        /// Which.
        backend: &'static str,
    },
    /// The backend has not been written.
    #[error("backend `{backend}` is not written yet; `cpu` and `cuda` are")]
    Unwritten {
        /// Which.
        backend: &'static str,
    },
    /// The backend has fewer devices.
    #[error("backend `{backend}` has no device {index}; it has {count}")]
    Index {
        /// Which.
        backend: &'static str,
        /// What was asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// The device did not open.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A backend without a device in this process, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// Which.
    pub backend: &'static str,
    /// In words.
    pub why: String,
}

/// Opens a device by name: a backend, and after a colon its index.
///
/// # Errors
/// A name that is no backend's, one that is not built or written, an index past the last device, a device that fails.
pub fn open(name: &str, options: &OpenOptions) -> Result<Arc<dyn Device>, BackendError> {
    let unknown = || BackendError::Unknown { found: name.to_owned() };
    let (backend, index) = match name.split_once(':') {
        Some((backend, index)) => {
            // Digits alone: a number of Rust's may have a sign.
            let digits = Some(index).filter(|index| index.bytes().all(|byte| byte.is_ascii_digit()));
            (backend, digits.and_then(|digits| digits.parse::<usize>().ok()).ok_or_else(unknown)?)
        }
        None => (name, 0),
    };
    match backend {
        "cpu" if index > 0 => Err(BackendError::Index { backend: "cpu", index, count: 1 }),
        "cpu" => open_cpu(options),
        "cuda" => open_cuda(index, options),
        "vulkan" => Err(BackendError::Unwritten { backend: "vulkan" }),
        "wgpu" => Err(BackendError::Unwritten { backend: "wgpu" }),
        _ => Err(unknown()),
    }
}

#[cfg(feature = "cpu")]
fn open_cpu(options: &OpenOptions) -> Result<Arc<dyn Device>, BackendError> {
    let OpenOptions { threads, budget, steps_max } = *options;
    let options = backend_cpu::CpuOptions { threads, budget, steps_max };
    Ok(Arc::new(backend_cpu::CpuDevice::open(options)?))
}

#[cfg(not(feature = "cpu"))]
fn open_cpu(_: &OpenOptions) -> Result<Arc<dyn Device>, BackendError> {
    Err(BackendError::Unbuilt { backend: "cpu" })
}

#[cfg(feature = "cuda")]
fn open_cuda(index: usize, options: &OpenOptions) -> Result<Arc<dyn Device>, BackendError> {
    let count = backend_cuda::device_count()?;
    if index >= count {
        return Err(BackendError::Index { backend: "cuda", index, count });
    }
    let options = backend_cuda::CudaOptions { budget: options.budget, ..Default::default() };
    Ok(Arc::new(backend_cuda::CudaDevice::open(index, options)?))
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(_: usize, _: &OpenOptions) -> Result<Arc<dyn Device>, BackendError> {
    Err(BackendError::Unbuilt { backend: "cuda" })
}

#[cfg(feature = "cuda")]
fn cuda_devices() -> Vec<(usize, Capabilities)> {
    // One that does not answer hides no other.
    let count = backend_cuda::device_count().unwrap_or(0);
    (0..count).filter_map(|index| Some((index, backend_cuda::device_capabilities(index).ok()?))).collect()
}

#[cfg(not(feature = "cuda"))]
fn cuda_devices() -> Vec<(usize, Capabilities)> {
    Vec::new()
}

/// Every device of every backend in this build: its index within the backend, and what it says of itself.
pub fn devices(options: &OpenOptions) -> Vec<(usize, Capabilities)> {
    let cpu = open("cpu", options).map(|device| (0, device.capabilities().clone()));
    cpu.into_iter().chain(cuda_devices()).collect()
}

/// Every backend that has no device here that opens, and why: what is wrong with its first.
pub fn absent(options: &OpenOptions) -> Vec<Absent> {
    let why_none = |backend| {
        let why = open(backend, options).err()?;
        let others = if backend == "cuda" { cuda_devices() } else { Vec::new() };
        if others.iter().any(|(index, _)| open(&format!("{backend}:{index}"), options).is_ok()) {
            return None;
        }
        let why = match why {
            // That a backend without a device does not support one is no news.
            BackendError::Device(DeviceError::Unsupported { what }) => what,
            why => why.to_string(),
        };
        Some(Absent { backend, why })
    };
    ["cpu", "cuda", "vulkan", "wgpu"].into_iter().filter_map(why_none).collect()
}

/// The backends of this build, as a source of devices for contexts and sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backends {
    /// CPU threads that a backend may use; all the machine has if `None`.
    pub threads: Option<usize>,
}

impl Devices for Backends {
    fn open(&self, backend: &str, index: usize, budget: Option<u64>) -> Result<Arc<dyn Device>, DeviceError> {
        let options = OpenOptions { threads: self.threads, budget, ..OpenOptions::default() };
        open(&format!("{backend}:{index}"), &options).map_err(|error| match error {
            BackendError::Device(error) => error,
            wrong @ (BackendError::Unknown { .. } | BackendError::Index { .. }) => {
                DeviceError::Invalid { what: wrong.to_string() }
            }
            missing @ (BackendError::Unbuilt { .. } | BackendError::Unwritten { .. }) => {
                DeviceError::Unsupported { what: missing.to_string() }
            }
        })
    }
}

#[cfg(all(test, feature = "cpu"))]
mod tests {
    use super::*;

    #[test]
    fn devices_are_opened_by_backend_and_index() {
        let open = |backend, index| Backends { threads: Some(1) }.open(backend, index, Some(10));
        let device = open("cpu", 0).unwrap();
        assert_eq!((device.capabilities().units, device.memory().budget), (1, Some(10)));
        let said = |backend, index| open(backend, index).map(|_| ()).unwrap_err().to_string();
        assert_eq!(said("cpu", 1), "invalid: backend `cpu` has no device 1; it has 1");
        assert_eq!(said("vulkan", 0), "unsupported: backend `vulkan` is not written yet; `cpu` and `cuda` are");
        if cfg!(not(feature = "cuda")) {
            let why = "unsupported: backend `cuda` is not in this build; build with the cargo feature `cuda`";
            assert_eq!(said("cuda", 1), why);
        }
        assert!(said("abacus", 0).starts_with("invalid: no backend is called `abacus:0`"));
    }
}
