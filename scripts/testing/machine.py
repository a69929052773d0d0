"""What the suites need from the machine, installed where it is missing: Debian packages, components of the toolchain, Python
environments, npm packages, a prebuilt cargo-nextest."""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

TESTING = pathlib.Path(__file__).resolve().parent
TOP = TESTING.parents[1]


class SetupError(Exception):
    """Something that the suites need is not there."""


def cache_folder() -> pathlib.Path:
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "towpath"


def target_folder() -> pathlib.Path:
    """Where cargo builds: `CARGO_TARGET_DIR`, else `target` of the clone."""
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or TOP / "target").absolute()


def postgres_programs() -> pathlib.Path | None:
    """The folder of initdb and pg_ctl. Debian has one per version, not on the PATH."""

    def version(program):
        return [int(digits) for digits in re.findall(r"\d+", str(program))]

    found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=version)
    if found:
        return found[-1].parent
    program = shutil.which("initdb")
    return pathlib.Path(program).parent if program else None


def missing_packages(needs) -> list[str]:
    """Debian packages for what `needs` names and the machine lacks."""

    def lacks(*programs):
        return not any(shutil.which(program) for program in programs)

    packages = []
    if "cargo" in needs and lacks("cc"):
        packages += ["gcc", "libc6-dev"]
    if "postgres" in needs and postgres_programs() is None:
        packages += ["postgresql"]
    if "redis" in needs and lacks("redis-server"):
        packages += ["redis-server"]
    if "browser" in needs and lacks("chromium", "google-chrome"):
        packages += ["chromium", "fonts-dejavu-core"]
    if "node" in needs:
        # Debian's own Node is new enough for the clients.
        packages += [name for program, name in (("node", "nodejs"), ("npm", "npm")) if lacks(program)]
    return packages


def prepare(needs):
    """Installs packages and components of the toolchain."""
    if "cargo" in needs and not shutil.which("cargo"):
        raise SetupError("cargo is not on the PATH: install it from https://rustup.rs")
    packages = missing_packages(needs)
    if packages:
        done = subprocess.run([TESTING / "install-packages", *packages], stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise SetupError(f"no {' '.join(packages)}")
    # Minimal installations and rust-toolchain files come without these two.
    for component in ("rustfmt", "clippy"):
        program = component.removeprefix("rust")
        if component not in needs or succeeds("cargo", program, "--version"):
            continue
        if not succeeds("rustup", "component", "add", component):
            raise SetupError(f"cargo {program} is missing: rustup component add {component}")


def succeeds(*command) -> bool:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:
        return False
    return done.returncode == 0


def venv(requirements: pathlib.Path, say) -> pathlib.Path:
    """The folder of a Python environment with these packages, made where it is missing."""
    kind = digest(sys.version, requirements.read_text())

    def fill(folder, run):
        run(sys.executable, "-m", "venv", folder)
        run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements)

    return cached(f"venv-{kind}", f"the Python environment of {requirements.relative_to(TOP)}", fill, say)


def node_modules(say) -> pathlib.Path:
    """The official JavaScript clients, in exactly the versions of the lock file."""
    source = TOP / "tests" / "js"
    lock = source / "package-lock.json"
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout

    def fill(folder, run):
        folder.mkdir()
        for file in (source / "package.json", lock):
            shutil.copy(file, folder)
        run("npm", "ci", "--prefix", folder, "--ignore-scripts", "--no-audit", "--no-fund")

    return cached(f"node-{digest(version, lock.read_text())}", "the npm packages of tests/js", fill, say) / "node_modules"


def nextest(say) -> pathlib.Path | None:
    """cargo-nextest: the installed one, else a prebuilt one; None where there is none for this machine."""
    installed = shutil.which("cargo-nextest")
    if installed:
        return pathlib.Path(installed)
    try:
        program = venv(TESTING / "requirements.txt", say) / "bin" / "cargo-nextest"
    except SetupError as error:
        say(f"no prebuilt cargo-nextest, the test programs run without it: {str(error).splitlines()[-1]}")
        return None
    return program if program.exists() else None


def digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def cached(name: str, what: str, fill, say) -> pathlib.Path:
    """A folder of the cache that `fill` makes once, whole or not at all."""
    folder = cache_folder() / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    complete = folder / ".complete"
    with folder.with_name(f"{name}.lock").open("w") as lock:
        # Two runs at a time must not make it at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if complete.exists():
            return folder
        say(f"making {what} in {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        log = folder.with_name(f"{name}.log")
        with log.open("w") as output:

            def run(*command):
                done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=output, stderr=output)
                if done.returncode != 0:
                    raise SetupError(f"cannot make {what}, `{command[0]}` failed:\n{log.read_text(errors='replace')}")

            try:
                fill(folder, run)
            except OSError as error:
                raise SetupError(f"cannot make {what}: {error}") from error
        complete.touch()
    with contextlib.suppress(OSError):
        log.unlink()
    return folder
