"""Texts that name the packages of a release with their SHA-256: install.sh and the Homebrew formula."""

from releasing import project
from releasing.errors import ReleaseError
from releasing.project import Project
from releasing.targets import Target

HOMEBREW = {"x86_64": "on_intel", "aarch64": "on_arm"}


def tarball_of(release: Project, target: Target) -> str:
    return f"towpath-{release.version}-{target.label}.tar.gz"


def install_script(release: Project, sums: dict[Target, str], glibc: tuple[int, int]) -> str:
    cases = "\n".join(
        f"    {target.machine}-{target.libc}) name={tarball_of(release, target)} sha256={digest} ;;"
        for target, digest in sums.items()
    )
    needed = ".".join(map(str, glibc))
    return project.template("install.sh", version=release.version, homepage=release.homepage, glibc=needed, cases=cases)


def formula(release: Project, sums: dict[Target, str]) -> str:
    """One tarball for each machine; the one for glibc where there are both."""
    blocks = []
    for machine, block in HOMEBREW.items():
        of_machine = {target.libc: target for target in sums if target.machine == machine}
        target = of_machine.get("gnu") or of_machine.get("musl")
        if target:
            url = f"{release.homepage}/releases/download/v{release.version}/{tarball_of(release, target)}"
            blocks.append(f'  {block} do\n    url "{url}"\n    sha256 "{sums[target]}"\n  end')
    if not blocks:
        raise ReleaseError("a formula needs a tarball")
    return project.template(
        "towpath.rb",
        version=release.version,
        summary=release.summary,
        homepage=release.homepage,
        licence=release.licence,
        cases="\n\n".join(blocks),
    )
