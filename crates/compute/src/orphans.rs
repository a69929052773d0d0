//! Ends processes that outlived the process that started them.
//!
//! Every program started by this crate has marks in its environment, which its children inherit: the root folder, and
//! for a build program its run. So the holder of the root's lock can end everything an earlier process left, even in
//! other process groups. Without `/proc` nothing is found; agent servers still end by themselves when their input is
//! closed.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The root folder a process belongs to.
pub const ROOT_MARK: &str = "_TOWPATH_ROOT";
/// The run of a program a process belongs to.
pub const RUN_MARK: &str = "_TOWPATH_RUN";

/// Ends every process with this mark except the caller's own. Returns how many.
pub fn end(name: &str, value: &str) -> usize {
    let wanted = format!("{name}={value}");
    end_all(|pid| is_marked(pid, wanted.as_bytes()))
}

/// Ends every process of a user except those marked with another root, which has its own id range. Returns how many.
pub(crate) fn end_of_user(user: u32, root: &str) -> usize {
    let own = format!("{ROOT_MARK}={root}");
    let any = format!("{ROOT_MARK}=");
    let is_ours = |entry: &[u8]| entry == own.as_bytes() || !entry.starts_with(any.as_bytes());
    end_all(|pid| is_of_user(pid, user) && environment(pid).split(|byte| *byte == 0).all(is_ours))
}

fn end_all(wanted: impl Fn(i32) -> bool) -> usize {
    let mut ended = 0;
    // A process that forks during the scan is found in the next round.
    for _ in 0..5 {
        let found = find(&wanted);
        if found.is_empty() {
            break;
        }
        for pid in found {
            if kill(pid, Signal::SIGKILL).is_ok() {
                ended += 1;
            }
        }
    }
    ended
}

fn find(wanted: impl Fn(i32) -> bool) -> Vec<Pid> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| *pid != own && wanted(*pid))
        .map(Pid::from_raw)
        .collect()
}

/// The folder of a process that hides itself belongs to root; its real owner is inside.
fn is_of_user(pid: i32, user: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    // A zombie cannot be ended again.
    let gone = status.lines().any(|line| line.starts_with("State:\tZ"));
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let real = ids.and_then(|ids| ids.split_whitespace().next()?.parse::<u32>().ok());
    !gone && real == Some(user)
}

fn is_marked(pid: i32, wanted: &[u8]) -> bool {
    environment(pid).split(|byte| *byte == 0).any(|entry| entry == wanted)
}

/// A zombie has no environment.
fn environment(pid: i32) -> Vec<u8> {
    std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default()
}
