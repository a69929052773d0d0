//! Denied system calls. Those that need missing capabilities are denied twice.

use std::collections::BTreeMap;
use std::io;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// Kernel features that commands do not need and that have been used for container escapes.
const DENIED_CALLS: &[i64] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mbind,
    libc::SYS_migrate_pages,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_move_pages,
    libc::SYS_name_to_handle_at,
    libc::SYS_nfsservctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    // open_tree_attr, which is newer than libc's table. The same number on every architecture.
    467,
];
#[cfg(target_arch = "x86_64")]
const ARCH_DENIED_CALLS: &[i64] = &[
    libc::SYS_ioperm,
    libc::SYS_iopl,
    libc::SYS_modify_ldt,
    libc::SYS_sysfs,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS__sysctl,
];
#[cfg(not(target_arch = "x86_64"))]
const ARCH_DENIED_CALLS: &[i64] = &[];
/// Calls of the x32 ABI have this bit on the same architecture.
#[cfg(target_arch = "x86_64")]
const X32_BIT: i64 = 0x4000_0000;

/// Calls whose flags no filter sees.
#[cfg(target_arch = "x86_64")]
const UNSEEN: &[i64] = &[libc::SYS_clone3, libc::SYS_clone3 | X32_BIT];
#[cfg(not(target_arch = "x86_64"))]
const UNSEEN: &[i64] = &[libc::SYS_clone3];

/// A new user namespace has a root, with access to much more of the kernel.
const NEW_USER_NAMESPACE: u64 = libc::CLONE_NEWUSER as u64;
/// Types input into another process's terminal.
const TIOCSTI: u64 = 0x5412;
/// The same, on a console.
const TIOCLINUX: u64 = 0x541c;
/// `AF_UNIX`, `AF_INET`, `AF_INET6`, and `AF_NETLINK`, which resolvers need.
const ALLOWED_FAMILIES: [u64; 4] = [1, 2, 10, 16];

/// From here on for this process and all it starts.
pub(super) fn apply() -> io::Result<()> {
    let other = |error: seccompiler::BackendError| io::Error::other(format!("the filter of system calls: {error}"));
    let apply = |program: &BpfProgram| {
        seccompiler::apply_filter(program).map_err(|error| io::Error::other(format!("system calls: {error}")))
    };
    apply(&compile(denied_rules().map_err(other)?, libc::EPERM).map_err(other)?)?;
    // Its flags are in memory, invisible to filters. C libraries then fall back to `clone`.
    let unseen = UNSEEN.iter().map(|call| (*call, Vec::new())).collect();
    apply(&compile(unseen, libc::ENOSYS).map_err(other)?)
}

type SyscallRules = BTreeMap<i64, Vec<SeccompRule>>;

fn compile(rules: SyscallRules, errno: i32) -> Result<BpfProgram, seccompiler::BackendError> {
    let errno = u32::try_from(errno).unwrap_or_default();
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno), arch)?;
    filter.try_into()
}

fn denied_rules() -> Result<SyscallRules, seccompiler::BackendError> {
    let mut rules = SyscallRules::new();
    for call in DENIED_CALLS.iter().chain(ARCH_DENIED_CALLS) {
        rules.insert(*call, Vec::new());
    }
    let flags = |flag| SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag);
    for call in [libc::SYS_clone, libc::SYS_unshare] {
        rules.insert(call, vec![SeccompRule::new(vec![flags(NEW_USER_NAMESPACE)?])?]);
    }
    let command = |number| SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, number);
    rules.insert(
        libc::SYS_ioctl,
        vec![
            SeccompRule::new(vec![command(TIOCSTI)?])?,
            SeccompRule::new(vec![command(TIOCLINUX)?])?,
        ],
    );
    let not = |family| SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, family);
    let others = ALLOWED_FAMILIES.into_iter().map(not).collect::<Result<Vec<_>, _>>()?;
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        rules.insert(call, vec![SeccompRule::new(others.clone())?]);
    }
    #[cfg(target_arch = "x86_64")]
    {
        let same: Vec<_> = rules
            .iter()
            .map(|(call, rules)| (call | X32_BIT, rules.clone()))
            .collect();
        rules.extend(same);
        // ioctl and kexec_load have numbers of their own there.
        for call in [514, 528] {
            rules.insert(X32_BIT | call, Vec::new());
        }
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_fits_into_the_kernel() {
        let program = compile(denied_rules().unwrap(), libc::EPERM).unwrap();
        assert!(program.len() < 4096, "{} instructions", program.len());
    }
}
