//! What the operating system says about this process's memory.

/// The most bytes of physical memory that the process has held so far, pages of mapped files
/// included; `None` where the system does not say (anywhere but Linux).
pub fn peak() -> Option<u64> {
    high_water_mark(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// `VmHWM` of `/proc/[pid]/status` (proc_pid_status(5)), in bytes.
fn high_water_mark(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_found_and_read() {
        let status = "Name:\tx\nVmPeak:\t   10 kB\nVmHWM:\t    2048 kB\nVmRSS:\t  7 kB\n";
        assert_eq!(high_water_mark(status), Some(2 << 20));
        assert_eq!(high_water_mark("Name:\tx\n"), None);
        assert_eq!(high_water_mark("VmHWM:\tmany kB\n"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_large_allocation_shows() {
        let memory = std::hint::black_box(vec![1u8; 32 << 20]);
        assert!(peak().unwrap() >= memory.len() as u64);
    }
}
