"""The command: what the caller asked for, as packages, as checks of them, or as notes."""

import pathlib
import shutil
import sys
import tempfile
import time

from releasing import arguments, build, checks, compare, deb, image, installers, npm, payload, project, rpm, tarball, wheel
from releasing.arguments import Options
from releasing.errors import ReleaseError, Unavailable
from releasing.payload import Payload
from releasing.project import Project
from releasing.targets import Target
from testing import machine

MAKERS = {"tarball": tarball, "wheel": wheel, "deb": deb, "rpm": rpm, "image": image, "npm": npm}


def say(*lines: str):
    print(*lines, sep="\n", flush=True)


def main(argv: list[str]) -> int:
    options = arguments.parse(argv)
    try:
        release = project.load()
        out = options.out or machine.target_folder() / "packages" / release.version
        if options.command == arguments.NOTES:
            say(project.notes((project.TOP / "CHANGELOG.md").read_text(), release))
            return 0
        if options.command == arguments.CHECK:
            return checks.run(options, release, out, say)
        if options.reproducible:
            return twice(options, release)
        make(options, release, out, machine.target_folder())
        return 0
    except ReleaseError as error:
        print(f"scripts/release: {error}", file=sys.stderr)
        return 1


def make(options: Options, release: Project, out: pathlib.Path, target_folder: pathlib.Path):
    """All packages, into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    remove_packages(out)
    made: dict[Target, Payload] = {}
    runs_here = options.documents_from
    for target in options.targets:
        try:
            binary = options.binary or build.build(target, options.glibc, target_folder, release.epoch, say)
            runs_here = runs_here or binary
            found = payload.load(release, target, binary, runs_here, options.glibc)
        except Unavailable as missing:
            skip(options, target.label, missing)
            continue
        made[target] = found
        needs = f"glibc {'.'.join(map(str, found.program.glibc))}" if found.program.glibc else "nothing of the system"
        say(f"{target.label}: {binary.stat().st_size / 1e6:.1f} MB, needs {needs}")
        make_packages(options, found, out)
    if not made:
        raise ReleaseError("no package was made")
    make_common(options, release, made, out)
    files = sorted(path for path in out.iterdir() if path.name != "SHA256SUMS")
    (out / "SHA256SUMS").write_text("".join(f"{payload.sha256(path)}  {path.name}\n" for path in files))
    say(f"packages are in {out}")


def remove_packages(out: pathlib.Path):
    """Those of another run, and nothing else that is in the folder."""
    sums = out / "SHA256SUMS"
    if sums.exists():
        for line in sums.read_text().splitlines():
            (out / pathlib.PurePath(line.split("  ", 1)[1]).name).unlink(missing_ok=True)
        sums.unlink()
    left = sorted(path.name for path in out.iterdir())
    if left:
        raise ReleaseError(f"{out} has files that are no packages: {', '.join(left[:3])}")


def skip(options: Options, what: str, missing: Unavailable):
    if options.strict:
        raise ReleaseError(f"{what}: {missing}") from missing
    say(f"skipped {what}: {missing}")


def make_packages(options: Options, found: Payload, out: pathlib.Path):
    for kind, maker in MAKERS.items():
        # A system for musl has packages of its own; a static program in this one would be a second of its name.
        if kind not in options.only or (found.target.is_static and kind in ("deb", "rpm")):
            continue
        began = time.monotonic()
        try:
            content = maker.make(found)
        except Unavailable as missing:
            skip(options, kind, missing)
            continue
        path = out / maker.name(found)
        path.write_bytes(content)
        say(f"  {path.name}: {len(content) / 1e6:.1f} MB, {time.monotonic() - began:.0f} s")


def make_common(options: Options, release: Project, made: dict[Target, Payload], out: pathlib.Path):
    """What is one for all targets."""
    (out / "NOTES.md").write_text(project.notes((project.TOP / "CHANGELOG.md").read_text(), release))
    for target, found in made.items():
        (out / f"towpath-{release.version}-{target.label}.cdx.json").write_bytes(found.sbom)
    if "npm" in options.only:
        (out / npm.main_name(release)).write_bytes(npm.make_main(release, list(made)))
    tarballs = {target: out / tarball.name(found) for target, found in made.items()}
    sums = {target: payload.sha256(path) for target, path in tarballs.items() if path.exists()}
    if sums:
        needed = max(found.glibc for found in made.values())
        script = out / "install.sh"
        script.write_text(installers.install_script(release, sums, needed))
        script.chmod(0o755)
        (out / "towpath.rb").write_text(installers.formula(release, sums))


def twice(options: Options, release: Project) -> int:
    """Builds in two folders, each from nothing. A binary that was given is packaged twice."""
    builds = machine.target_folder() / "reproducible"
    with tempfile.TemporaryDirectory() as folder:
        outs = [pathlib.Path(folder) / name for name in ("first", "second")]
        try:
            for out in outs:
                shutil.rmtree(builds / out.name, ignore_errors=True)
                make(options, release, out, builds / out.name)
        finally:
            shutil.rmtree(builds, ignore_errors=True)
        lines, is_same = compare.folders(*outs)
    say(*lines)
    return 0 if is_same else 1
