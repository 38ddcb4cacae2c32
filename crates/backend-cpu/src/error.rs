//! What can go wrong here, as a `DeviceError`.

use crate::tile::Fault;
use lanes_core::device::DeviceError;

/// A handle that another device gave out.
pub(crate) fn foreign(what: &str) -> DeviceError {
    DeviceError::Invalid { what: format!("this {what} belongs to another device") }
}

/// A part of a turn that panicked: a bug of ours, contained.
pub(crate) fn panicked(plan: &str, said: String) -> DeviceError {
    DeviceError::Fault { at: format!("plan {plan}"), what: said }
}

/// Threads that the system would not start.
pub(crate) fn no_threads(threads: usize, error: &std::io::Error) -> DeviceError {
    DeviceError::Unsupported { what: format!("{threads} threads: {error}") }
}

/// Something larger than this machine can address.
pub(crate) fn too_large(what: String, bytes: u64) -> DeviceError {
    DeviceError::TooLarge { what, bytes, limit: isize::MAX as u64 }
}

/// A kernel that overstepped and was stopped.
pub(crate) fn faulted(label: &str, fault: &Fault) -> DeviceError {
    DeviceError::Fault { at: label.to_string(), what: fault.to_string() }
}
