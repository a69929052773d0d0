//! The kernel: system calls, namespaces, mounts, settings, capabilities.

use super::case::{Case, accepted, blocked};

pub const CASES: &[Case] = &[
    // Mounts.
    blocked("mount", "call('mount', b'none', b'/mnt', b'tmpfs', 0, 0)", "EPERM"),
    blocked(
        "mount of control groups",
        "call('mount', b'none', b'/mnt', b'cgroup', 0, 0)",
        "EPERM",
    ),
    blocked("bind mount", "call('mount', b'/usr', b'/mnt', 0, 4096, 0)", "EPERM"),
    blocked(
        "remount of /usr for writing",
        "call('mount', 0, b'/usr', 0, 0x1020, 0)",
        "EPERM",
    ),
    blocked("unmount of /proc", "call('umount2', b'/proc', 2)", "EPERM"),
    blocked("fsopen", "call('fsopen', b'tmpfs', 0)", "EPERM"),
    blocked("fspick", "call('fspick', -100, b'/', 0)", "EPERM"),
    blocked("fsmount", "call('fsmount', 3, 0, 0)", "EPERM"),
    blocked("open_tree of a copy", "call('open_tree', -100, b'/', 1)", "EPERM"),
    blocked("open_tree_attr", "call(467, -100, b'/', 1, 0, 0)", "EPERM"),
    blocked(
        "move_mount",
        "call('move_mount', -100, b'/usr', -100, b'/mnt', 0)",
        "EPERM",
    ),
    blocked(
        "mount_setattr",
        "call('mount_setattr', -100, b'/usr', 0, bytes(32), 32)",
        "EPERM",
    ),
    blocked("pivot_root", "call('pivot_root', b'/', b'/tmp')", "EPERM"),
    blocked(
        "chroot and its break-out",
        "os.makedirs('/tmp/root', exist_ok=True); os.chroot('/tmp/root')",
        "EPERM",
    ),
    blocked(
        "`..` above the root",
        "seen = os.path.samestat(os.stat('/' + '../' * 50), os.stat('/'))",
        "True",
    ),
    // Namespaces.
    blocked("user namespace by unshare", "call('unshare', 0x10000000)", "EPERM"),
    blocked(
        "user namespace by clone",
        "call('clone', 0x10000011, 0, 0, 0, 0)",
        "EPERM",
    ),
    blocked(
        "user namespace by clone with other flags",
        "call('clone', 0x7e020011, 0, 0, 0, 0)",
        "EPERM",
    ),
    blocked(
        "clone3, whose flags no filter sees",
        "call('clone3', bytes(64), 64)",
        "ENOSYS",
    ),
    blocked("mount namespace", "call('unshare', 0x20000)", "EPERM"),
    blocked("network namespace", "call('unshare', 0x40000000)", "EPERM"),
    blocked("control group namespace", "call('unshare', 0x2000000)", "EPERM"),
    blocked(
        "setns",
        "call('setns', os.open('/proc/self/ns/mnt', os.O_RDONLY), 0)",
        "EPERM",
    ),
    blocked("map of users", "write('/proc/self/uid_map', b'0 0 1')", "EPERM"),
    // Parts of the kernel that commands do not need.
    blocked("bpf", "call('bpf', 0, bytes(72), 72)", "EPERM"),
    blocked("io_uring", "call('io_uring_setup', 1, bytes(120))", "EPERM"),
    blocked(
        "perf_event_open",
        "call('perf_event_open', bytes(128), 0, -1, -1, 0)",
        "EPERM",
    ),
    blocked("userfaultfd", "call('userfaultfd', 1)", "EPERM"),
    blocked("keyctl", "call('keyctl', 0, -3, 1)", "EPERM"),
    blocked("add_key", "call('add_key', b'user', b'x', b'x', 1, -3)", "EPERM"),
    blocked("request_key", "call('request_key', b'user', b'x', 0, 0)", "EPERM"),
    blocked("kexec_load", "call('kexec_load', 0, 0, 0, 0)", "EPERM"),
    blocked("kexec_file_load", "call('kexec_file_load', -1, -1, 0, 0, 0)", "EPERM"),
    blocked("init_module", "call('init_module', b'x', 1, b'')", "EPERM"),
    blocked("finit_module", "call('finit_module', 0, b'', 0)", "EPERM"),
    blocked("delete_module", "call('delete_module', b'ext4', 0)", "EPERM"),
    blocked(
        "open_by_handle_at",
        "call('open_by_handle_at', -100, bytes(136), 0)",
        "EPERM",
    ),
    blocked(
        "name_to_handle_at",
        "call('name_to_handle_at', -100, b'/usr', bytes(136), bytes(4), 0)",
        "EPERM",
    ),
    blocked("fanotify", "call('fanotify_init', 0, 0)", "EPERM"),
    blocked("kcmp", "call('kcmp', 1, 1, 0, 0, 0)", "EPERM"),
    blocked("acct", "call('acct', b'/tmp/acct')", "EPERM"),
    blocked("quotactl", "call('quotactl', 0x80000700, 0, 0, 0)", "EPERM"),
    blocked("swapon", "call('swapon', b'/tmp/swap', 0)", "EPERM"),
    blocked("reboot", "call('reboot', 0xfee1dead, 672274793, 0x1234567, 0)", "EPERM"),
    blocked("vhangup", "call('vhangup')", "EPERM"),
    blocked(
        "log of the kernel by syslog",
        "call('syslog', 3, bytes(100), 100)",
        "EPERM",
    ),
    blocked("clock_settime", "call('clock_settime', 0, bytes(16))", "EPERM"),
    blocked("adjtimex", "call('adjtimex', bytes(208))", "EPERM"),
    blocked("sethostname", "call('sethostname', b'other', 5)", "EPERM"),
    // Terminals.
    blocked(
        "TIOCSTI, input of another terminal",
        "import pty; fcntl.ioctl(pty.openpty()[1], 0x5412, b'x')",
        "EPERM",
    ),
    blocked(
        "TIOCSTI with bits that the kernel ignores",
        "import pty; call('ioctl', pty.openpty()[1], 0x100005412, b'x')",
        "EPERM",
    ),
    blocked(
        "TIOCLINUX",
        "import pty; fcntl.ioctl(pty.openpty()[1], 0x541c, b'\\x02')",
        "EPERM",
    ),
    blocked("terminal of the platform", "open('/dev/tty', 'rb')", "ENXIO"),
    // Settings and files of the kernel.
    blocked(
        "core_pattern",
        "write('/proc/sys/kernel/core_pattern', b'|/tmp/x')",
        "EACCES",
    ),
    blocked(
        "modprobe",
        "write('/proc/sys/kernel/modprobe', b'/tmp/x')",
        "EACCES|ENOENT",
    ),
    blocked(
        "binfmt_misc",
        "write('/proc/sys/fs/binfmt_misc/register', b':x:M::x::/tmp/x:C')",
        "ENOENT",
    ),
    blocked(
        "release_agent of control groups",
        "write('/sys/fs/cgroup/release_agent', b'/tmp/x')",
        "ENOENT",
    ),
    blocked(
        "settings of the network",
        "write('/proc/sys/net/ipv4/ip_forward', b'1')",
        "EACCES",
    ),
    blocked(
        "sysrq-trigger",
        "seen = os.path.samestat(os.stat('/proc/sysrq-trigger'), os.stat('/dev/null'))",
        "True|ENOENT",
    ),
    blocked("memory by /proc/kcore", "seen = len(read('/proc/kcore'))", "0|ENOENT"),
    blocked("keys of the kernel", "seen = len(read('/proc/keys'))", "0|ENOENT"),
    blocked(
        "timers of the machine",
        "seen = len(read('/proc/timer_list'))",
        "0|ENOENT",
    ),
    blocked("log of the kernel by /proc/kmsg", "read('/proc/kmsg')", "EPERM|EACCES"),
    blocked(
        "memory maps of the kernel",
        "read('/proc/vmallocinfo')",
        "EACCES|ENOENT",
    ),
    blocked(
        "addresses of the kernel",
        "seen = {int(line.split()[0], 16) for line in open('/proc/kallsyms')}",
        "{0}|set()|ENOENT",
    ),
    blocked("/sys", "seen = os.listdir('/sys')", "[]"),
    // Devices.
    blocked(
        "devices",
        "seen = ' '.join(sorted(os.listdir('/dev')))",
        "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero",
    ),
    blocked(
        "device for a disk",
        "os.mknod('/tmp/disk', 0o60666, os.makedev(254, 0))",
        "EPERM",
    ),
    blocked(
        "device for the memory",
        "os.mknod('/tmp/memory', 0o20666, os.makedev(1, 1))",
        "EPERM",
    ),
    blocked(
        "device for FUSE",
        "os.mknod('/tmp/fuse', 0o20666, os.makedev(10, 229))",
        "EPERM",
    ),
    blocked("mode of a device of the host", "os.chmod('/dev/null', 0o600)", "EPERM"),
    // Rights.
    blocked(
        "all capabilities",
        "call('capset', struct.pack('Ii', 0x20080522, 0), struct.pack('6I', *[0xffffffff] * 6))",
        "EPERM",
    ),
    blocked("the end of no_new_privs", "call('prctl', 38, 0, 0, 0, 0)", "EINVAL"),
    blocked(
        "the end of the filter of system calls",
        "call('prctl', 22, 0, 0, 0, 0)",
        "EINVAL",
    ),
    blocked(
        "capabilities, no_new_privs and the filter",
        "seen = [line.split()[1] for line in open('/proc/self/status') \
         if line.startswith(('CapEff', 'CapBnd', 'NoNewPrivs', 'Seccomp:'))]",
        "['0000000000000000', '00000000000000fb', '1', '2']",
    )
    .as_root("['00000000000000fb', '00000000000000fb', '1', '2']"),
    blocked(
        "capabilities of a file",
        "open('/tmp/capable', 'w').close(); \
         os.setxattr('/tmp/capable', 'security.capability', struct.pack('<5I', 0x2000001, 0x200000, 0, 0, 0))",
        "EPERM",
    ),
    blocked(
        "attributes of the overlay",
        "open('/tmp/opaque', 'w').close(); os.setxattr('/tmp/opaque', 'trusted.overlay.opaque', b'y')",
        "EPERM",
    ),
    blocked(
        "users outside of the map",
        "os.setresuid(70000, 70000, 70000)",
        "EINVAL",
    ),
    blocked(
        "priority over the host",
        "os.setpriority(os.PRIO_PROCESS, 0, -10)",
        "EACCES",
    ),
    blocked(
        "real-time scheduling",
        "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
        "EPERM",
    ),
    blocked(
        "protection from the OOM killer",
        "write('/proc/self/oom_score_adj', b'-1000')",
        "EACCES",
    ),
    blocked(
        "a higher limit of open files",
        "call('prlimit64', 0, 7, struct.pack('2Q', 1 << 30, 1 << 30), 0)",
        "EPERM",
    ),
    accepted(
        "the version of the kernel",
        "seen = len(os.uname().release) > 0",
        "True",
        "boxes share the kernel of the machine, whose version and processors they see",
    ),
];

/// Calls of x86_64.
pub const X86_CASES: &[Case] = &[
    blocked("iopl", "call('iopl', 3)", "EPERM"),
    blocked("modify_ldt", "call('modify_ldt', 0, bytes(16), 16)", "EPERM"),
    blocked(
        "mount by its x32 number",
        "call(0x40000000 | 165, b'none', b'/mnt', b'tmpfs', 0, 0)",
        "EPERM",
    ),
    blocked(
        "kexec_load by its x32 number",
        "call(0x40000000 | 528, 0, 0, 0, 0)",
        "EPERM",
    ),
    // getpid by `int 0x80`, where numbers mean other calls.
    blocked(
        "calls of 32 bits",
        "code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)\n\
         code.write(b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3')\n\
         start = ctypes.addressof(ctypes.c_char.from_buffer(code))\n\
         seen = child(ctypes.CFUNCTYPE(ctypes.c_int)(start))",
        // Without such calls in the kernel the instruction itself is a fault.
        "signal 31|signal 11",
    ),
];
