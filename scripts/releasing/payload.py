"""What every package of one binary is made of."""

import dataclasses
import hashlib
import pathlib
import re

from releasing import dependencies, documents, elf, licences, sbom
from releasing.archive import File
from releasing.errors import ReleaseError
from releasing.project import TOP, Project
from releasing.targets import Target

# Libraries of glibc and of the compiler, which every system with glibc has.
SYSTEM = re.compile(r"(libc|libm|libdl|librt|libpthread|libutil|libgcc_s|ld-linux-[\w-]+)\.so\.\d")


@dataclasses.dataclass(frozen=True)
class Payload:
    project: Project
    target: Target
    binary: pathlib.Path
    program: elf.Program
    # Completions and manual pages, below a prefix such as /usr.
    documents: tuple[File, ...]
    # Licences of dependencies, and the bill of materials.
    third_party: bytes
    sbom: bytes

    @property
    def glibc(self) -> tuple[int, int]:
        return self.program.glibc or (2, 17)

    def legal(self) -> list[File]:
        return [
            File("LICENSE", TOP / "LICENSE"),
            File("NOTICE", TOP / "NOTICE"),
            File("THIRD-PARTY-LICENSES.txt", self.third_party),
            File("towpath.cdx.json", self.sbom),
        ]


def load(
    project: Project, target: Target, binary: pathlib.Path, pages_from: pathlib.Path, newest_glibc: tuple[int, int]
) -> Payload:
    program = elf.read(binary)
    admit(program, target, newest_glibc)
    said = documents.version(pages_from)
    if said != project.version:
        raise ReleaseError(f"{pages_from} is version {said}, Cargo.toml says {project.version}")
    crates = dependencies.load(target)
    return Payload(
        project=project,
        target=target,
        binary=binary,
        program=program,
        documents=tuple(documents.made_by(pages_from)),
        third_party=licences.report(crates, licences.toolchain()).encode(),
        sbom=sbom.document(project, target, crates, binary.read_bytes()),
    )


def admit(program: elf.Program, target: Target, newest_glibc: tuple[int, int]):
    """Refuses a program that would not run where its package says it does."""
    if program.machine != target.machine:
        raise ReleaseError(f"the binary is for {program.machine}, the package for {target.machine}")
    if target.is_static and (program.interpreter or program.libraries):
        raise ReleaseError(f"the binary is not static: it needs {program.interpreter or ', '.join(program.libraries)}")
    if not target.is_static and program.glibc is None:
        raise ReleaseError("the binary needs no glibc: package it for a musl target")
    unknown = [library for library in program.libraries if not SYSTEM.fullmatch(library)]
    if unknown:
        raise ReleaseError(f"the binary needs {', '.join(unknown)}, which systems may lack")
    if program.glibc and program.glibc > newest_glibc:
        needs, allowed = (".".join(map(str, version)) for version in (program.glibc, newest_glibc))
        raise ReleaseError(f"the binary needs glibc {needs}; packages are for {allowed} and newer (--glibc changes that)")


def sha256(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
