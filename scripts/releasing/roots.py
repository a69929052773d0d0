"""Bare systems to install packages in: folders with Debian and nothing else, entered with chroot."""

import pathlib
import shutil
import subprocess

from releasing.errors import ReleaseError, Unavailable

SUITE = "bookworm"
# Commands in a root need the file systems of the kernel; the mounts end with the last process.
ENTER = """\
set -e
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
cp /etc/resolv.conf "$1/etc/resolv.conf" 2>/dev/null || true
root=$1
shift
exec chroot "$@"
"""


def bare(folder: pathlib.Path) -> pathlib.Path:
    """A tar of Debian's smallest system."""
    if not shutil.which("mmdebstrap"):
        raise Unavailable("mmdebstrap is not installed (Debian: apt-get install mmdebstrap)")
    path = folder / "bare.tar"
    if not path.exists():
        command = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=ca-certificates", SUITE, path]
        run(command, "mmdebstrap")
    return path


def unpack(tars: list[pathlib.Path], root: pathlib.Path) -> pathlib.Path:
    root.mkdir(parents=True)
    for path in tars:
        run(["tar", "-C", root, "--numeric-owner", "-xpf", path], f"unpacking {path.name}")
    return root


def run(command: list, what: str, environment: dict[str, str] | None = None):
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise ReleaseError(f"{what} failed ({done.returncode}): {(done.stdout + done.stderr).strip()[-2000:]}")


def entered(root: pathlib.Path, *command: str, user: str | None = None, unprivileged: bool = False) -> list[str]:
    """The command line that runs `command` in `root`. Signals reach the program itself: each part replaces the one before."""
    account = [f"--userspec={user}"] if user else []
    inner = ["setpriv", "--no-new-privs", "--", *command] if unprivileged else list(command)
    return ["unshare", "--mount", "--propagation=private", "sh", "-c", ENTER, "enter", str(root), *account, str(root), *inner]
