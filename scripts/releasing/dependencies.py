"""What the binary is made of: the crates that `cargo metadata` resolves, with their licences."""

import dataclasses
import json
import pathlib
import subprocess
import tomllib

from releasing.errors import ReleaseError
from releasing.project import TOP
from releasing.targets import Target

BINARY = "towpath"


@dataclasses.dataclass(frozen=True)
class Crate:
    name: str
    version: str
    # An SPDX expression.
    licence: str
    repository: str
    authors: tuple[str, ...]
    folder: pathlib.Path
    # Whether it is of this workspace.
    is_ours: bool
    # Whether it brings a C library.
    is_native: bool
    sha256: str | None
    # `name version` of what it is built from.
    uses: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"{self.name} {self.version}"


def load(target: Target, top: pathlib.Path = TOP) -> list[Crate]:
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target.triple]
    try:
        done = subprocess.run(command, cwd=top, capture_output=True, text=True)
    except OSError as error:
        raise ReleaseError(f"cargo metadata: {error}") from error
    if done.returncode != 0:
        raise ReleaseError(f"cargo metadata failed: {done.stderr.strip()}")
    return of_metadata(json.loads(done.stdout), checksums((top / "Cargo.lock").read_text()))


def checksums(lock: str) -> dict[str, str]:
    return {
        f"{package['name']} {package['version']}": package["checksum"]
        for package in tomllib.loads(lock)["package"]
        if "checksum" in package
    }


def of_metadata(metadata: dict, sums: dict[str, str]) -> list[Crate]:
    """The crates whose code is in the binary, sorted. What builds or tests it stays out."""
    packages = {package["id"]: package for package in metadata["packages"]}
    links = {
        node["id"]: [dep["pkg"] for dep in node["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
        for node in metadata["resolve"]["nodes"]
    }

    def is_linked(package: dict) -> bool:
        """A macro runs in the compiler, and so does what it is built from."""
        return not any("proc-macro" in target["kind"] for target in package["targets"])

    roots = [identity for identity, package in packages.items() if package["name"] == BINARY and package["source"] is None]
    if len(roots) != 1:
        raise ReleaseError(f"the workspace has {len(roots)} packages named `{BINARY}`")
    found, waiting = set(), roots
    while waiting:
        identity = waiting.pop()
        if identity not in found and is_linked(packages[identity]):
            found.add(identity)
            waiting.extend(links[identity])

    def key(identity: str) -> str:
        return f"{packages[identity]['name']} {packages[identity]['version']}"

    crates = []
    for identity in found:
        package = packages[identity]
        crates.append(
            Crate(
                name=package["name"],
                version=package["version"],
                licence=(package["license"] or "").replace("/", " OR "),
                repository=package["repository"] or "",
                authors=tuple(package["authors"]),
                folder=pathlib.Path(package["manifest_path"]).parent,
                is_ours=package["source"] is None,
                is_native=bool(package["links"]),
                sha256=sums.get(key(identity)),
                uses=tuple(sorted(key(used) for used in links[identity] if used in found)),
            )
        )
    return sorted(crates, key=lambda crate: (crate.name, crate.version))
