//! What can go wrong here, as a `DeviceError`.

use crate::tile::Fault;
use lanes_core::device::DeviceError;

/// A part of a turn that panicked: a bug of ours, contained.
pub(crate) fn panicked(plan: &str, said: String) -> DeviceError {
    DeviceError::Fault { at: format!("plan {plan}"), what: said }
}

/// Threads that the system would not start.
pub(crate) fn no_threads(threads: usize, error: &std::io::Error) -> DeviceError {
    DeviceError::Unsupported { what: format!("{threads} threads: {error}") }
}

/// A kernel that overstepped and was stopped.
pub(crate) fn faulted(label: &str, fault: &Fault) -> DeviceError {
    DeviceError::Fault { at: label.to_string(), what: fault.to_string() }
}
