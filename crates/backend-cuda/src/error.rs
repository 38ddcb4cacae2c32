//! What can go wrong here, as a `DeviceError`. What the driver says is turned into one in `sys`.

use lanes_core::device::DeviceError;
use loom_compiler::ptx::{Fault, Image, SiteKind};

/// A kernel that overstepped.
pub(crate) fn faulted(label: &str, image: &Image, fault: &Fault) -> DeviceError {
    let Fault { site, index, limit, item: [x, y, z] } = fault;
    let name = &image.name;
    let what = match image.sites.get(*site as usize).map(|site| (&site.kind, site.line)) {
        Some((SiteKind::Assert(text), line)) => {
            format!("kernel `{name}`: {text} (line {line}, work-item {x}, {y}, {z})")
        }
        Some((SiteKind::Access, line)) => {
            format!("kernel `{name}`: byte {index} of a buffer of {limit} bytes (line {line}, work-item {x}, {y}, {z})")
        }
        None => format!("kernel `{name}`: work-item {x}, {y}, {z}"),
    };
    DeviceError::Fault { at: label.to_owned(), what }
}
