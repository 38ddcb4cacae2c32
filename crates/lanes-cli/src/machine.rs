//! How much memory the machine has to give, so that what cannot fit is refused in words and not by the kernel.

use crate::error::{CliError, CliResult};

/// Bytes that can still be had: what the system says is available, within the limit of the control group. `None` where
/// neither says.
pub fn available_bytes() -> Option<u64> {
    let system = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| meminfo_available(&text));
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    [system, group].into_iter().flatten().min()
}

fn meminfo_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Refuses to hold `bytes` for `what` beside `held` bytes that are spoken for.
pub fn claim(what: &str, bytes: u128, held: u64) -> CliResult {
    let free = available_bytes().unwrap_or(isize::MAX as u64).saturating_sub(held);
    if bytes > u128::from(free) {
        let text =
            format!("{what} take {bytes} bytes, and the machine has {free} left; ask for fewer streams or turns");
        return Err(CliError::usage(text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_is_read() {
        let text = "MemTotal:       24683656 kB\nMemFree:         1000 kB\nMemAvailable:   18276544 kB\n";
        assert_eq!(meminfo_available(text), Some(18_276_544 * 1024));
        assert_eq!(meminfo_available("MemAvailable: 18276544"), None);
        assert_eq!(meminfo_available("MemAvailable: 99999999999999999 kB"), None);
    }
}
