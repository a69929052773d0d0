//! A case: what is attempted in a box, and what has to come of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use nix::libc;
use towpath_sandbox::{BoxAgent, Error, ExecRequest};

use crate::fixture::{request, run};

const PROGRAM: &str = include_str!("attempt.py");
/// Calls that attempts make by their names.
const CALLS: &[(&str, libc::c_long)] = &[
    ("acct", libc::SYS_acct),
    ("add_key", libc::SYS_add_key),
    ("adjtimex", libc::SYS_adjtimex),
    ("bpf", libc::SYS_bpf),
    ("capset", libc::SYS_capset),
    ("clock_settime", libc::SYS_clock_settime),
    ("clone", libc::SYS_clone),
    ("clone3", libc::SYS_clone3),
    ("delete_module", libc::SYS_delete_module),
    ("fanotify_init", libc::SYS_fanotify_init),
    ("finit_module", libc::SYS_finit_module),
    ("fsmount", libc::SYS_fsmount),
    ("fsopen", libc::SYS_fsopen),
    ("fspick", libc::SYS_fspick),
    ("init_module", libc::SYS_init_module),
    ("io_uring_setup", libc::SYS_io_uring_setup),
    ("ioctl", libc::SYS_ioctl),
    ("kcmp", libc::SYS_kcmp),
    ("kexec_file_load", libc::SYS_kexec_file_load),
    ("kexec_load", libc::SYS_kexec_load),
    ("keyctl", libc::SYS_keyctl),
    ("mlock", libc::SYS_mlock),
    ("mount", libc::SYS_mount),
    ("mount_setattr", libc::SYS_mount_setattr),
    ("move_mount", libc::SYS_move_mount),
    ("name_to_handle_at", libc::SYS_name_to_handle_at),
    ("open_by_handle_at", libc::SYS_open_by_handle_at),
    ("open_tree", libc::SYS_open_tree),
    ("perf_event_open", libc::SYS_perf_event_open),
    ("pidfd_getfd", libc::SYS_pidfd_getfd),
    ("pivot_root", libc::SYS_pivot_root),
    ("prctl", libc::SYS_prctl),
    ("prlimit64", libc::SYS_prlimit64),
    ("process_vm_readv", libc::SYS_process_vm_readv),
    ("process_vm_writev", libc::SYS_process_vm_writev),
    ("ptrace", libc::SYS_ptrace),
    ("quotactl", libc::SYS_quotactl),
    ("reboot", libc::SYS_reboot),
    ("request_key", libc::SYS_request_key),
    ("sethostname", libc::SYS_sethostname),
    ("setns", libc::SYS_setns),
    ("swapon", libc::SYS_swapon),
    ("syslog", libc::SYS_syslog),
    ("umount2", libc::SYS_umount2),
    ("unshare", libc::SYS_unshare),
    ("userfaultfd", libc::SYS_userfaultfd),
    ("vhangup", libc::SYS_vhangup),
    #[cfg(target_arch = "x86_64")]
    ("iopl", libc::SYS_iopl),
    #[cfg(target_arch = "x86_64")]
    ("modify_ldt", libc::SYS_modify_ldt),
];

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub name: &'static str,
    /// Python statements for `attempt.py`. `@NAME@` is a fact of the host.
    pub attempt: &'static str,
    /// What has to be seen, or several of it between `|`.
    pub as_user: &'static str,
    pub as_root: &'static str,
    /// Why the attempt may succeed.
    pub accepted: Option<&'static str>,
}

pub const fn blocked(name: &'static str, attempt: &'static str, seen: &'static str) -> Case {
    Case {
        name,
        attempt,
        as_user: seen,
        as_root: seen,
        accepted: None,
    }
}

pub const fn accepted(name: &'static str, attempt: &'static str, seen: &'static str, reason: &'static str) -> Case {
    Case {
        accepted: Some(reason),
        ..blocked(name, attempt, seen)
    }
}

impl Case {
    /// Root of the box sees something else.
    pub const fn as_root(self, seen: &'static str) -> Self {
        Self { as_root: seen, ..self }
    }
}

/// Values of the host that attempts name.
#[derive(Debug, Default)]
pub struct HostFacts(Vec<(String, String)>);

impl HostFacts {
    pub fn set(&mut self, name: &str, value: String) {
        self.0.push((format!("@{name}@"), value));
    }

    pub fn fill(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, value) in &self.0 {
            text = text.replace(name, value);
        }
        text
    }
}

/// What the cases of a driver came to.
#[derive(Debug, Default)]
pub struct Tally {
    pub blocked: usize,
    pub accepted: usize,
    pub attempts: usize,
    pub failures: Vec<String>,
    pub skipped: Vec<String>,
}

impl Tally {
    pub fn count(&mut self, accepted: Option<&str>) {
        if accepted.is_some() {
            self.accepted += 1;
        } else {
            self.blocked += 1;
        }
    }

    pub fn compare(&mut self, name: &str, user: &str, expected: &str, seen: &str) {
        self.attempts += 1;
        if !expected.split('|').any(|expected| expected == seen) {
            self.failures
                .push(format!("{name}, as {user}: expected {expected}, saw {seen}"));
        }
    }

    /// A case that is performed once.
    pub fn settle(&mut self, name: &str, expected: &str, seen: &str) {
        self.compare(name, "client", expected, seen);
        self.count(None);
    }

    pub fn skip(&mut self, what: &str, why: &str) {
        self.skipped.push(format!("{what}: {why}"));
    }

    pub fn add(&mut self, other: Self) {
        self.blocked += other.blocked;
        self.accepted += other.accepted;
        self.attempts += other.attempts;
        self.failures.extend(other.failures);
        self.skipped.extend(other.skipped);
    }

    /// The line that the suite prints.
    pub fn summary(&self, driver: &str, users: &[&str]) -> String {
        let mut line = format!(
            "security cases, driver {driver}: {} blocked, {} accepted, {} attempts as {}",
            self.blocked,
            self.accepted,
            self.attempts,
            users.join(" and ")
        );
        if !self.skipped.is_empty() {
            let _ = write!(line, "; skipped: {}", self.skipped.join("; "));
        }
        line
    }
}

/// Performs every case as every user.
pub async fn perform(agent: &BoxAgent, users: &[&str], facts: &HostFacts, cases: &[Case], tally: &mut Tally) {
    for case in cases {
        for user in users {
            let expected = if *user == "root" { case.as_root } else { case.as_user };
            let seen = observe(agent, user, &facts.fill(case.attempt)).await;
            tally.compare(case.name, user, expected, &seen);
        }
        tally.count(case.accepted);
    }
}

/// What the program prints, or how it ended.
pub async fn observe(agent: &BoxAgent, user: &str, attempt: &str) -> String {
    let calls: BTreeMap<_, _> = CALLS.iter().copied().collect();
    let mut attempted = ExecRequest {
        user: Some(user.to_owned()),
        timeout_seconds: 300,
        ..request("exec python3 -B -c \"$PROGRAM\"")
    };
    for (name, value) in [
        ("PROGRAM", PROGRAM.to_owned()),
        ("ATTEMPT", attempt.to_owned()),
        ("CALLS", serde_json::to_string(&calls).unwrap()),
    ] {
        attempted.env.insert(name.to_owned(), value);
    }
    let outcome = run(agent, &attempted).await;
    if outcome.exit_code == 0 {
        outcome.stdout.trim().to_owned()
    } else {
        format!("{outcome:?}")
    }
}

/// The kind of an error, as cases name it.
pub const fn error_kind(error: &Error) -> &'static str {
    match error {
        Error::Invalid(_) => "Invalid",
        Error::Unsupported(_) => "Unsupported",
        Error::Stale { .. } => "Stale",
        Error::NotRunning => "NotRunning",
        Error::NotFound(_) => "NotFound",
        Error::IsDirectory(_) => "IsDirectory",
        Error::Denied(_) => "Denied",
        Error::Range { .. } => "Range",
        Error::Refused(_) => "Refused",
        Error::Busy(_) => "Busy",
        Error::Unreachable(_) => "Unreachable",
        Error::TimedOut(_) => "TimedOut",
        Error::Agent(_) => "Agent",
        Error::Io { .. } => "Io",
    }
}

/// The kind of the error, or `done`.
pub fn result_kind<T>(result: &Result<T, Error>) -> &'static str {
    result.as_ref().map_or_else(error_kind, |_| "done")
}
