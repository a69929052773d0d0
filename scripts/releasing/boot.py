"""The service under systemd itself, in a container that systemd-nspawn boots."""

import os
import pathlib
import re
import shutil
import subprocess

from releasing import project, roots
from releasing.errors import ReleaseError, Unavailable

SUITE = "trixie"
PACKAGES = "ca-certificates,curl,dbus,procps,python3,systemd,systemd-sysv"
# They would change the machine around the container, or wait for devices.
MASKED = (
    "apt-daily.timer apt-daily-upgrade.timer console-getty.service proc-sys-fs-binfmt_misc.automount systemd-binfmt.service"
    " systemd-journald-audit.socket systemd-random-seed.service systemd-sysctl.service systemd-udev-trigger.service"
    " systemd-udevd.service"
).split()
UNIT = """\
[Unit]
After=basic.target
[Service]
Type=oneshot
ExecStart=/boot.sh
ExecStopPost=/usr/bin/systemctl poweroff --no-block
[Install]
WantedBy=multi-user.target
"""
LIMIT_SECONDS = 300


def run(deb: pathlib.Path, folder: pathlib.Path) -> list[tuple[str, float]]:
    """The steps of `boot.sh` with their seconds."""
    for program, package in (("systemd-nspawn", "systemd-container"), ("mmdebstrap", "mmdebstrap")):
        if not shutil.which(program):
            raise Unavailable(f"{program} is not installed (Debian: apt-get install {package})")
    root = folder / "root"
    roots.run(["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", SUITE, root], "mmdebstrap")
    units = root / "etc/systemd/system"
    for name in MASKED:
        (units / name).unlink(missing_ok=True)
        (units / name).symlink_to("/dev/null")
    shutil.copy(deb, root / "towpath.deb")
    (root / "boot.sh").write_text(project.template("boot.sh"))
    (root / "boot.sh").chmod(0o755)
    (units / "boot.service").write_text(UNIT)
    (units / "multi-user.target.wants").mkdir(exist_ok=True)
    (units / "multi-user.target.wants/boot.service").symlink_to("../boot.service")
    # A network of its own: the port of the service may be taken on this machine.
    command = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network", f"--directory={root}", "--boot"]
    environment = os.environ | {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise ReleaseError(f"the container did not end within {LIMIT_SECONDS} s:\n{result(root)[-2000:]}") from error
    said = result(root)
    if not said:
        raise Unavailable(f"systemd does not start in a container here: {(done.stdout + done.stderr).strip()[-500:]}")
    if not said.endswith("passed\n"):
        raise ReleaseError(said[-3000:])
    return steps(said)


def result(root: pathlib.Path) -> str:
    path = root / "result"
    return path.read_text(errors="replace") if path.exists() else ""


def steps(said: str) -> list[tuple[str, float]]:
    found = [(name, float(moment)) for name, moment in re.findall(r"^step: (\w+) \(([\d.]+)\)$", said, re.MULTILINE)]
    return [(name, following - moment) for (name, moment), (_, following) in zip(found, found[1:])]
