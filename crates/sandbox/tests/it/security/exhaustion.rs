//! What a box may use up. Its limits are 256 MiB of memory, half a processor and 128 processes.

use super::case::{Case, accepted, blocked};

pub const CASES: &[Case] = &[
    blocked(
        "processes",
        "children = []\n\
         try:\n\
         \x20   while len(children) < 1000: children.append(subprocess.Popen(['sleep', '1000']))\n\
         except OSError: seen = 64 < len(children) < 128\n\
         for process in children: process.kill()\n\
         for process in children: process.wait()",
        "True",
    ),
    blocked(
        "threads",
        "import threading\n\
         gate = threading.Event()\n\
         started = 0\n\
         try:\n\
         \x20   for started in range(1000): threading.Thread(target=gate.wait).start()\n\
         except RuntimeError: seen = 64 < started < 128\n\
         gate.set()",
        "True",
    ),
    blocked("memory", "seen = child(lambda: bytearray(1 << 30))", "signal 9"),
    blocked(
        "memory by a file in memory",
        "def fill():\n\
         \x20   own, file = bytearray(64 << 20), os.memfd_create('x')\n\
         \x20   while True: os.write(file, own)\n\
         seen = child(fill)",
        "signal 9",
    ),
    blocked("shared memory", "fill('/dev/shm/x')", "ENOSPC"),
    blocked("tmpfs of /dev", "fill('/dev/x')", "EACCES|ENOSPC"),
    blocked("tmpfs of /run", "fill('/run/x')", "EACCES").as_root("ENOSPC"),
    blocked(
        "locked memory",
        "memory = mmap.mmap(-1, 16 << 20)\n\
         call('mlock', ctypes.addressof(ctypes.c_char.from_buffer(memory)), 16 << 20)",
        "ENOMEM",
    ),
    blocked(
        "open files",
        "files = []\n\
         while True: files.append(os.dup(0))",
        "EMFILE",
    ),
    blocked(
        "sockets",
        "files = []\n\
         while True: files.extend(socket.socketpair())",
        "EMFILE",
    ),
    blocked(
        "zombies",
        "for number in range(300): subprocess.run(['sh', '-c', 'true & exec true'])\n\
         import time\n\
         deadline = time.monotonic() + 30\n\
         while (seen := states().count('Z')) and time.monotonic() < deadline: pass",
        "0",
    ),
    blocked(
        "processor",
        "import time\n\
         begun, used = time.monotonic(), time.process_time()\n\
         while time.process_time() - used < 0.5: pass\n\
         seen = time.monotonic() - begun > 0.75",
        "True",
    ),
    accepted(
        "bytes of the box's own files",
        "seen = fill('/tmp/x', 64)",
        "67108864",
        "the driver has no limit for them: a request with one is refused, volumes have hard limits",
    ),
    accepted(
        "a daemon that left the group of its command",
        "subprocess.Popen(['sleep', '1000'], start_new_session=True, stdout=subprocess.DEVNULL)",
        "done",
        "it counts towards the limits of the box and ends with it",
    ),
];

/// Volumes with a hard limit of 64 MiB.
pub const CASES_OF_VOLUMES: &[Case] = &[
    blocked("volume", "fill('/data/x')", "ENOSPC"),
    blocked(
        "inodes of a volume",
        "os.makedirs('/data/many', exist_ok=True)\n\
         try:\n\
         \x20   for number in range(1000000): os.close(os.open(f'/data/many/{number}', os.O_CREAT | os.O_WRONLY))\n\
         finally: subprocess.run(['rm', '-r', '/data/many'])",
        "ENOSPC",
    ),
    blocked(
        "sparse file beyond a volume",
        "file = os.open('/data/sparse', os.O_CREAT | os.O_WRONLY)\n\
         os.ftruncate(file, 1 << 40)\n\
         seen = os.stat(file).st_blocks\n\
         os.unlink('/data/sparse')",
        "0",
    ),
];
