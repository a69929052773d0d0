//! Ending processes that outlived whoever started them.
//!
//! Every program this crate starts carries marks in its environment, which its children inherit: the root folder, and
//! for a build program its own run. Whoever holds the root's lock may so end everything an earlier life left behind,
//! also what has put itself into another process group. Without `/proc` nothing is found; the agent server still ends
//! by itself then, when its input does.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The root folder a process belongs to.
pub const ROOT_MARK: &str = "_TOWPATH_ROOT";
/// The run of a program a process belongs to.
pub const RUN_MARK: &str = "_TOWPATH_RUN";

/// Ends every process with this mark but the caller's own. How many there were.
pub fn end(name: &str, value: &str) -> usize {
    let wanted = format!("{name}={value}");
    end_all(|pid| is_marked(pid, wanted.as_bytes()))
}

/// Ends every process of a user but those that carry the mark of another root, which has ids of its own to give. How many
/// there were.
pub(crate) fn end_of_user(user: u32, root: &str) -> usize {
    let own = format!("{ROOT_MARK}={root}");
    let any = format!("{ROOT_MARK}=");
    let is_ours = |entry: &[u8]| entry == own.as_bytes() || !entry.starts_with(any.as_bytes());
    end_all(|pid| is_of_user(pid, user) && environment(pid).split(|byte| *byte == 0).all(is_ours))
}

fn end_all(wanted: impl Fn(i32) -> bool) -> usize {
    let mut ended = 0;
    // A process that forks while its siblings are looked at is found in the next round.
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

/// The folder of a process that hides itself is root's: what it is stands inside.
fn is_of_user(pid: i32, user: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    // One that has ended and was not waited for yet cannot be ended again.
    let gone = status.lines().any(|line| line.starts_with("State:\tZ"));
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let real = ids.and_then(|ids| ids.split_whitespace().next()?.parse::<u32>().ok());
    !gone && real == Some(user)
}

fn is_marked(pid: i32, wanted: &[u8]) -> bool {
    environment(pid).split(|byte| *byte == 0).any(|entry| entry == wanted)
}

/// One that has ended and was not waited for yet has none any more.
fn environment(pid: i32) -> Vec<u8> {
    std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default()
}
