//! `lanes devices`: every device of every backend in this build, and why a backend has none.

use crate::args::DevicesArgs;
use crate::error::CliResult;
use crate::say;
use lanes::OpenOptions;
use serde_json::json;

/// Runs the command.
pub fn run(args: &DevicesArgs) -> CliResult {
    let options = OpenOptions::default();
    let (found, absent) = (lanes::devices(&options), lanes::absent(&options));
    if args.json {
        let devices: Vec<_> = found
            .iter()
            .map(|(index, device)| {
                json!({
                    "backend": device.backend, "index": index, "name": device.name, "driver": device.driver,
                    "memory_bytes": device.memory_bytes,
                    "capabilities": {
                        "units": device.units, "buffer_bytes_max": device.buffer_bytes_max, "slots_max": device.slots_max,
                        "unified": device.unified, "grid_barrier": device.grid_barrier, "atomics_64": device.atomics_64,
                        "clock": device.clock,
                    },
                })
            })
            .collect();
        let absent: Vec<_> = absent.iter().map(|a| json!({"backend": a.backend, "why": a.why})).collect();
        return say::json(&json!({"devices": devices, "absent": absent}));
    }
    let mut lines = Vec::new();
    for (index, device) in found {
        let memory = device
            .memory_bytes
            .map_or("memory unknown".to_owned(), |b| format!("{:.1} GiB", b as f64 / (1u64 << 30) as f64));
        lines.push(format!(
            "{}:{index}  {}  ({}, {} threads, {memory})",
            device.backend, device.name, device.driver, device.units
        ));
    }
    lines.extend(absent.iter().map(|absent| format!("{}  none: {}", absent.backend, absent.why)));
    say::lines(&lines)
}
