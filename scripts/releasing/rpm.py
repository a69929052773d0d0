"""An rpm, made by rpmbuild: its payload and headers have a format of their own."""

import os
import pathlib
import shutil
import subprocess
import tempfile

from releasing import project, system
from releasing.errors import ReleaseError, Unavailable
from releasing.payload import Payload

RELEASE = "1"


def name(payload: Payload) -> str:
    return f"towpath-{payload.project.version}-{RELEASE}.{payload.target.rpm}.rpm"


def make(payload: Payload) -> bytes:
    if not shutil.which("rpmbuild"):
        raise Unavailable("rpmbuild is not installed (Debian: apt-get install rpm)")
    with tempfile.TemporaryDirectory() as folder:
        top = pathlib.Path(folder)
        lay_out(payload, top / "files")
        spec = top / "towpath.spec"
        spec.write_text(spec_file(payload, top / "files"))
        environment = os.environ | {"SOURCE_DATE_EPOCH": str(payload.project.epoch), "LC_ALL": "C", "TZ": "UTC"}
        command = ["rpmbuild", "-bb", "--quiet", "--nodeps", "--target", payload.target.rpm, "--define", f"_topdir {top}", spec]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise ReleaseError(f"rpmbuild failed: {done.stderr.strip()}")
        return (top / "RPMS" / payload.target.rpm / name(payload)).read_bytes()


def lay_out(payload: Payload, folder: pathlib.Path):
    epoch = payload.project.epoch
    for file in system.files(payload):
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.read())
        path.chmod(file.mode)
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (epoch, epoch))


def requires(payload: Payload) -> str:
    """As rpm's own generator names them, so that every distribution knows them."""
    found = []
    if not payload.target.is_static:
        found.append(f"Requires: libc.so.6(GLIBC_{'.'.join(map(str, payload.glibc))})(64bit)")
    if "libgcc_s.so.1" in payload.program.libraries:
        found.append("Requires: libgcc_s.so.1()(64bit)")
    return "\n".join(found)


def spec_file(payload: Payload, folder: pathlib.Path) -> str:
    listed = ["%dir %attr(0750, root, towpath) /etc/towpath", "%dir /usr/share/towpath", "%dir /usr/share/doc/towpath"]
    for file in system.files(payload):
        if file.path in system.CONFIGURATION:
            group = "root" if file.path.endswith(".env") else "towpath"
            mode = "0600" if file.path.endswith(".env") else "0640"
            listed.append(f"%config(noreplace) %attr({mode}, root, {group}) /{file.path}")
        else:
            listed.append(f"%attr({file.mode:04o}, root, root) /{file.path}")
    return project.template(
        "towpath.spec",
        version=payload.project.version,
        summary=payload.project.summary,
        licence=payload.project.licence,
        homepage=payload.project.homepage,
        requires=requires(payload),
        files=str(folder),
        pre=system.script_body("preinst"),
        post=system.script_body("postinst"),
        preun=system.script_body("prerm"),
        postun=system.script_body("postrm"),
        list="\n".join(listed),
    )
