"""A wheel with nothing but the program: pip puts it beside the interpreter, `uvx towpath` runs it."""

import base64
import hashlib

from releasing.archive import File, zipped
from releasing.payload import Payload
from releasing.project import TOP


def name(payload: Payload) -> str:
    return f"towpath-{payload.project.version}-{payload.target.wheel_tag(payload.glibc)}.whl"


def make(payload: Payload) -> bytes:
    stem = f"towpath-{payload.project.version}"
    info = f"{stem}.dist-info"
    tags = expanded(payload.target.wheel_tag(payload.glibc))
    files = [
        File(f"{stem}.data/scripts/towpath", payload.binary, 0o755),
        *(File(f"{info}/licenses/{file.path}", file.content) for file in payload.legal() if file.path != "towpath.cdx.json"),
        # Where PEP 770 wants bills of materials.
        File(f"{info}/sboms/towpath.cdx.json", payload.sbom),
        File(f"{info}/METADATA", metadata(payload).encode()),
        File(f"{info}/WHEEL", wheel_file(tags).encode()),
    ]
    files.append(File(f"{info}/RECORD", record(files, f"{info}/RECORD").encode()))
    return zipped(files, payload.project.epoch)


def expanded(tag: str) -> list[str]:
    """One tag for each platform."""
    python, abi, platforms = tag.split("-")
    return [f"{python}-{abi}-{platform}" for platform in platforms.split(".")]


def wheel_file(tags: list[str]) -> str:
    lines = ["Wheel-Version: 1.0", "Generator: towpath", "Root-Is-Purelib: false", *(f"Tag: {tag}" for tag in tags)]
    return "\n".join(lines) + "\n"


def metadata(payload: Payload) -> str:
    project = payload.project
    legal = [file.path for file in payload.legal() if file.path != "towpath.cdx.json"]
    lines = [
        "Metadata-Version: 2.4",
        "Name: towpath",
        f"Version: {project.version}",
        f"Summary: {project.summary}",
        f"License-Expression: {project.licence}",
        *(f"License-File: {path}" for path in legal),
        f"Project-URL: Source, {project.homepage}",
        "Requires-Python: >=3.8",
        "Description-Content-Type: text/markdown",
        "",
        (TOP / "README.md").read_text(),
    ]
    return "\n".join(lines)


def record(files: list[File], own: str) -> str:
    rows = []
    for file in files:
        data = file.read()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{file.path},sha256={digest},{len(data)}")
    return "\n".join([*rows, f"{own},,"]) + "\n"
