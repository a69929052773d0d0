"""A Debian package: an `ar` of its format, two tars. It needs no Debian to be made."""

import hashlib

from releasing import system
from releasing.archive import File, compress, tar
from releasing.payload import Payload

REVISION = "1"
DESCRIPTION = """\
 Towpath runs the work of AI agents as durable jobs, takes traces from the langsmith SDK and exports them as Parquet, serves
 LangGraph graphs, builds deployments from git, and runs sandboxes. State is in SQLite, or in PostgreSQL and Redis.
"""


def name(payload: Payload) -> str:
    return f"towpath_{payload.project.version}-{REVISION}_{payload.target.deb}.deb"


def make(payload: Payload) -> bytes:
    epoch = payload.project.epoch
    data = system.files(payload)
    control = [
        File("control", control_file(payload, data).encode()),
        File("conffiles", "".join(f"/{path}\n" for path in system.CONFIGURATION).encode()),
        File("md5sums", md5sums(data).encode()),
        *(File(script, system.script(script).encode(), 0o755) for script in ("preinst", "postinst", "prerm", "postrm")),
    ]
    members = (
        ("debian-binary", b"2.0\n"),
        ("control.tar.xz", compress(tar(control, epoch, dot=True), "xz")),
        ("data.tar.xz", compress(tar(data, epoch, dot=True), "xz")),
    )
    return b"!<arch>\n" + b"".join(member(title, content, epoch) for title, content in members)


def member(title: str, content: bytes, epoch: int) -> bytes:
    head = f"{title:<16}{epoch:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
    return head + content + b"\n" * (len(content) % 2)


def depends(payload: Payload) -> str:
    found = ["ca-certificates", "passwd"]
    if not payload.target.is_static:
        found.append(f"libc6 (>= {'.'.join(map(str, payload.glibc))})")
    if "libgcc_s.so.1" in payload.program.libraries:
        found.append("libgcc-s1 | libgcc1")
    return ", ".join(sorted(found))


def control_file(payload: Payload, data: list[File]) -> str:
    size = sum(len(file.read()) for file in data) // 1024
    return (
        "Package: towpath\n"
        f"Version: {payload.project.version}-{REVISION}\n"
        f"Architecture: {payload.target.deb}\n"
        "Maintainer: Towpath <towpath@users.noreply.github.com>\n"
        f"Installed-Size: {size}\n"
        f"Depends: {depends(payload)}\n"
        "Recommends: git, python3, python3-venv\n"
        "Suggests: postgresql, redis-server\n"
        "Section: net\n"
        "Priority: optional\n"
        f"Homepage: {payload.project.homepage}\n"
        f"Description: {payload.project.summary}\n"
        f"{DESCRIPTION}"
    )


def md5sums(data: list[File]) -> str:
    """For `dpkg --verify`."""
    return "".join(
        f"{hashlib.md5(file.read(), usedforsecurity=False).hexdigest()}  {file.path}\n"
        for file in sorted(data, key=lambda file: file.path)
        if file.path not in system.CONFIGURATION
    )
