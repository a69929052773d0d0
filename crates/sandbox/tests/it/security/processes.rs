//! The agent of the box, other processes, and what the host left open.

use super::case::{Case, accepted, blocked};

pub const CASES: &[Case] = &[
    // The agent, which is the first process of the box. Users do not see it.
    blocked("root of the agent", "os.listdir('/proc/1/root/')", "ENOENT").as_root("EACCES"),
    blocked("working directory of the agent", "os.listdir('/proc/1/cwd/')", "ENOENT").as_root("EACCES"),
    blocked("descriptors of the agent", "os.readlink('/proc/1/fd/0')", "ENOENT").as_root("EACCES"),
    blocked("socket of the agent", "open('/proc/1/fd/0', 'rb')", "ENOENT").as_root("EACCES"),
    blocked(
        "descriptors of the agent by pidfd_getfd",
        "call('pidfd_getfd', os.pidfd_open(1), 0, 0)",
        "EPERM",
    ),
    blocked("memory of the agent", "open('/proc/1/mem', 'rb')", "ENOENT").as_root("EACCES"),
    blocked("memory map of the agent", "read('/proc/1/maps')", "ENOENT").as_root("EACCES"),
    blocked("environment of the agent", "read('/proc/1/environ')", "ENOENT").as_root("EACCES"),
    blocked(
        "namespaces of the agent",
        "os.open('/proc/1/ns/mnt', os.O_RDONLY)",
        "ENOENT",
    )
    .as_root("EACCES"),
    blocked(
        "program of the agent by /proc/1/exe",
        "open('/proc/1/exe', 'r+b')",
        "ENOENT",
    )
    .as_root("EACCES"),
    blocked(
        "program of the agent by its path",
        "open('/run/towpath/agent', 'r+b')",
        "EACCES|EROFS",
    ),
    blocked(
        "removal of the agent's program",
        "os.unlink('/run/towpath/agent')",
        "EACCES|EBUSY",
    ),
    blocked(
        "program of the command by /proc/self/exe",
        "open('/proc/self/exe', 'r+b')",
        "EACCES|EROFS",
    ),
    blocked("ptrace of the agent", "call('ptrace', 16, 1, 0, 0)", "EPERM"),
    blocked(
        "ptrace of the agent without a stop",
        "call('ptrace', 0x4206, 1, 0, 0)",
        "EPERM",
    ),
    blocked(
        "reading the agent's memory",
        "call('process_vm_readv', 1, struct.pack('2Q', id(seen), 1), 1, struct.pack('2Q', 0x400000, 1), 1, 0)",
        "EPERM",
    ),
    blocked(
        "writing the agent's memory",
        "call('process_vm_writev', 1, struct.pack('2Q', id(seen), 1), 1, struct.pack('2Q', 0x400000, 1), 1, 0)",
        "EPERM",
    ),
    blocked(
        "SIGKILL to the agent",
        "os.kill(1, 9); os.kill(1, 0); seen = 'ignored'",
        "EPERM",
    )
    .as_root("ignored"),
    blocked(
        "SIGSTOP to the agent",
        "os.kill(1, 19); os.kill(1, 0); seen = 'ignored'",
        "EPERM",
    )
    .as_root("ignored"),
    blocked(
        "SIGTERM to the agent",
        "os.kill(1, 15); os.kill(1, 0); seen = 'ignored'",
        "EPERM",
    )
    .as_root("ignored"),
    blocked(
        "socket of the agent by its name",
        "socket.socket(socket.AF_UNIX).connect('agent.sock')",
        "ENOENT",
    ),
    accepted(
        "limits of the agent",
        "soft, hard = resource.prlimit(1, resource.RLIMIT_NOFILE)\n\
         resource.prlimit(1, resource.RLIMIT_NOFILE, (soft - 1, hard - 1))",
        "EPERM",
        "root of a box may starve the agent of its own box; stopping and starting the box mends it",
    )
    .as_root("done"),
    // Others.
    blocked("processes of the host", "os.kill(@PID@, 0)", "ESRCH"),
    blocked("descriptor of a process of the host", "os.pidfd_open(@PID@)", "ESRCH"),
    blocked(
        "number of processes in sight",
        "seen = len([name for name in os.listdir('/proc') if name.isdecimal()]) < 10",
        "True",
    ),
    blocked(
        "processes of root seen by the user",
        "sleeper = subprocess.Popen(['sleep', '1000'])\n\
         user = ['setpriv', '--reuid=1000', '--regid=1000', '--clear-groups']\n\
         command = [*user, 'cat', f'/proc/{sleeper.pid}/status'] if os.getuid() == 0 else ['cat', '/proc/1/status']\n\
         seen = len(output(*command))\n\
         sleeper.kill()",
        "0",
    ),
    blocked(
        "open descriptors of the host",
        "numbers = os.listdir('/proc/self/fd')\n\
         seen = [number for number in numbers if int(number) > 2 and os.path.exists(f'/proc/self/fd/{number}')]",
        "[]",
    ),
    blocked(
        "shared memory of the host",
        "seen = len(open('/proc/sysvipc/shm').readlines())",
        "1",
    ),
    blocked("message queues of the host", "os.listdir('/dev/mqueue')", "ENOENT"),
    // Programs with more rights.
    blocked(
        "set-user-id program of the overlay",
        "seen = output('/var/lib/set-user-id', '-u')",
        "1000",
    )
    .as_root("0"),
    blocked(
        "set-user-id program of a volume",
        "seen = output('/data/set-user-id', '-u')",
        "1000",
    )
    .as_root("0"),
    blocked(
        "set-user-id programs of the host",
        "seen = bool(os.statvfs('/usr').f_flag & os.ST_NOSUID)",
        "True",
    ),
    // Files of the host.
    blocked("file of the host", "read('@SECRET@')", "ENOENT"),
    blocked(
        "file of the host by /proc/self/root",
        "read('/proc/self/root@SECRET@')",
        "ENOENT",
    ),
    blocked(
        "paths of the host in the options of the root",
        "seen = any('@FOLDER@' in line for line in open('/proc/self/mountinfo') if line.split()[4] == '/')",
        "False",
    ),
    accepted(
        "path of the platform's program among mounts",
        "lines = [line for line in open('/proc/self/mountinfo') if line.split()[4] == '/run/towpath/agent']\n\
         seen = '@PROGRAM@' in lines[0]",
        "True",
        "the kernel names what a mount shows; the path opens nothing in the box",
    ),
    blocked(
        "users of the host",
        "seen = [line.split(':')[0] for line in open('/etc/passwd')]",
        "['root', 'user', 'nobody']|['root']",
    ),
    blocked("passwords of the host", "read('/etc/shadow')", "ENOENT"),
    blocked("programs of the host", "open('/usr/bin/x', 'w')", "EACCES|EROFS"),
    blocked(
        "variables of the platform",
        "own = 'ATTEMPT CALLS HOME LANG LC_CTYPE LOGNAME OF_BOX PATH PROGRAM PWD SHLVL USER _'\n\
         seen = sorted(set(os.environ) - set(own.split()))",
        "[]",
    ),
];
