"""Two npm packages: the program for one machine, and the one that users name, which starts it."""

import json

from releasing import project
from releasing.archive import File, compress, tar
from releasing.payload import Payload
from releasing.project import TOP, Project
from releasing.targets import Target

SCOPE = "@towpath"


def package_of(target: Target) -> str:
    return f"{SCOPE}/cli-linux-{target.npm}" + ("-musl" if target.is_static else "")


def name(payload: Payload) -> str:
    return file_name(package_of(payload.target), payload.project)


def file_name(package: str, release: Project) -> str:
    """As `npm pack` names it."""
    return f"{package.removeprefix('@').replace('/', '-')}-{release.version}.tgz"


def pack(files: list[File], epoch: int) -> bytes:
    return compress(tar(files, epoch, prefix="package/"), "gz")


def common(package: str, release: Project) -> dict:
    return {
        "name": package,
        "version": release.version,
        "description": release.summary,
        "license": release.licence,
        "repository": {"type": "git", "url": f"git+{release.homepage}.git"},
    }


def make(payload: Payload) -> bytes:
    target = payload.target
    described = common(package_of(target), payload.project) | {
        "os": ["linux"],
        "cpu": [target.npm],
        "libc": ["musl" if target.is_static else "glibc"],
        "preferUnplugged": True,
    }
    files = [File("package.json", text(described)), File("bin/towpath", payload.binary, 0o755), *payload.legal()]
    return pack(files, payload.project.epoch)


def main_name(release: Project) -> str:
    return file_name("towpath", release)


def make_main(release: Project, targets: list[Target]) -> bytes:
    """The package that users name; npm installs the optional one that fits the machine."""
    described = common("towpath", release) | {
        "bin": {"towpath": "bin/towpath.js"},
        "engines": {"node": ">=16"},
        "optionalDependencies": {package_of(target): release.version for target in targets},
    }
    files = [
        File("package.json", text(described)),
        File("bin/towpath.js", project.template("towpath.js").encode(), 0o755),
        File("README.md", TOP / "README.md"),
        File("LICENSE", TOP / "LICENSE"),
    ]
    return pack(files, release.epoch)


def text(described: dict) -> bytes:
    return (json.dumps(described, indent=2) + "\n").encode()
