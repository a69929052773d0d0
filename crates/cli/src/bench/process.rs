//! Process statistics of the system (Linux only).

/// CPU time of a process in seconds; `self` is this one.
pub fn cpu_seconds(pid: &str) -> Option<f64> {
    /// USER_HZ of Linux on all supported machines.
    const TICKS: f64 = 100.0;
    let stat = stat(pid)?;
    let mut fields = stat.split(' ').skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS)
}

/// Resident memory in MB.
pub fn memory_mb(pid: u32) -> Option<f64> {
    status_mb(pid, "VmRSS:")
}

/// Peak resident memory, in MB.
pub fn peak_memory_mb(pid: u32) -> Option<f64> {
    status_mb(pid, "VmHWM:")
}

fn status_mb(pid: u32, field: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kilobytes / 1024.0)
}

pub fn files(pid: u32) -> Option<usize> {
    Some(std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count())
}

/// Its direct child processes.
pub fn children(pid: u32) -> Vec<u32> {
    let Ok(all) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let numbers = all
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parent = |child: &u32| stat(&child.to_string())?.split(' ').nth(1)?.parse::<u32>().ok();
    numbers.filter(|child| parent(child) == Some(pid)).collect()
}

/// Its `stat` from the state on: the program name before it is in brackets and may contain any characters.
fn stat(pid: &str) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.to_owned())
}
