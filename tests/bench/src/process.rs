//! What the kernel knows of a process.

use anyhow::{Context, Result};
use std::fs::read_to_string;
use std::time::Duration;

/// User and system time so far.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit(") ").next();
    let fields = fields.context("fields of /proc/pid/stat")?;
    let ticks: u64 = fields
        .split(' ')
        .skip(11)
        .take(2)
        .filter_map(|f| f.parse::<u64>().ok())
        .sum();
    // USER_HZ is 100 on Linux.
    Ok(Duration::from_millis(ticks * 10))
}

/// Resident memory in bytes.
pub fn resident(pid: u32) -> Result<u64> {
    let status = read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.split_whitespace().next());
    Ok(kib.context("VmRSS")?.parse::<u64>()? * 1024)
}
