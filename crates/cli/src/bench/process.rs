//! What the system tells of a process, where it tells anything (Linux).

/// CPU time of a process so far in seconds; `self` is this one.
pub fn cpu_seconds(pid: &str) -> Option<f64> {
    /// Of Linux on every machine it runs on today.
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

/// Highest resident memory so far, in MB.
pub fn peak_memory_mb(pid: u32) -> Option<f64> {
    status_mb(pid, "VmHWM:")
}

fn status_mb(pid: u32, field: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kilobytes / 1024.0)
}

/// Open files and sockets.
pub fn files(pid: u32) -> Option<usize> {
    Some(std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count())
}

/// The processes it started, without those that they started.
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

/// Its `stat` from the state on: the name of the program before it stands in brackets and may hold anything.
fn stat(pid: &str) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.to_owned())
}
