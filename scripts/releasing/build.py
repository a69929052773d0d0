"""Builds the binary in the profile `dist`, with zig as the linker: it has the symbols of every glibc, and musl."""

import os
import pathlib
import shutil
import subprocess

from releasing.errors import ReleaseError, Unavailable
from releasing.project import TOP
from releasing.targets import Target
from testing import machine

PROFILE = "dist"
REQUIREMENTS = pathlib.Path(__file__).with_name("requirements.txt")
# How the standard library of a target is had.
INSTALLED, ADDED, BUILT = "installed", "added by rustup", "built from the component rust-src"


def build(target: Target, glibc: tuple[int, int], folder: pathlib.Path, epoch: int, say) -> pathlib.Path:
    """The path of the program. `folder` is cargo's target folder."""
    try:
        tools = machine.venv(REQUIREMENTS, say) / "bin"
    except machine.SetupError as error:
        raise Unavailable(f"zig cannot be installed from PyPI: {error}") from error
    standard = standard_library(target.triple)
    say(f"{target.label}: standard library {standard}")
    command, environment = cargo_command(target, glibc, standard)
    environment |= {
        "CARGO_TARGET_DIR": str(folder),
        "SOURCE_DATE_EPOCH": str(epoch),
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "RUSTFLAGS": " ".join(flags(target, folder)),
        "CFLAGS": " ".join(f"-ffile-prefix-map={ours}={theirs}" for ours, theirs in renamed(folder)),
        # Of an environment for development: it would change the program.
        "CARGO_INCREMENTAL": "0",
    }
    done = subprocess.run(command, cwd=TOP, env=os.environ | environment)
    if done.returncode != 0:
        raise ReleaseError(f"the build for {target.label} failed: {' '.join(command)}")
    return folder / target.triple / PROFILE / "towpath"


def cargo_command(target: Target, glibc: tuple[int, int], standard: str) -> tuple[list[str], dict[str, str]]:
    # cargo-zigbuild reads the version of glibc from the end of the target.
    triple = target.triple if target.is_static else f"{target.triple}.{glibc[0]}.{glibc[1]}"
    command = ["cargo", "zigbuild", "--locked", "--profile", PROFILE, "--package", "towpath", "--target", triple]
    if standard == BUILT:
        # An option of nightly toolchains that stable ones accept with this variable.
        return [*command, "-Z", "build-std=std,panic_unwind"], {"RUSTC_BOOTSTRAP": "1"}
    return command, {}


def renamed(folder: pathlib.Path) -> list[tuple[str, str]]:
    """Paths of this machine stay out of the program, so that another folder builds the same one."""
    cargo_home = os.environ.get("CARGO_HOME") or str(pathlib.Path.home() / ".cargo")
    # Of several that fit, rustc and clang take the last: the target folder may be inside the clone.
    return [(str(TOP), "/towpath"), (cargo_home, "/cargo"), (str(folder), "/target")]


def flags(target: Target, folder: pathlib.Path) -> list[str]:
    found = [f"--remap-path-prefix={ours}={theirs}" for ours, theirs in renamed(folder)]
    if target.is_static:
        found.append("-Ctarget-feature=+crt-static")
    return found


def standard_library(triple: str) -> str:
    def output(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        return done.stdout.strip() if done.returncode == 0 else ""

    def is_there() -> bool:
        folder = output("rustc", "--print", "target-libdir", "--target", triple)
        return bool(folder) and any(pathlib.Path(folder).glob("libstd-*.rlib"))

    if is_there():
        return INSTALLED
    if shutil.which("rustup") and subprocess.run(["rustup", "target", "add", triple], capture_output=True).returncode == 0:
        if is_there():
            return ADDED
    sources = pathlib.Path(output("rustc", "--print", "sysroot")) / "lib" / "rustlib" / "src" / "rust" / "library"
    if (sources / "std" / "Cargo.toml").is_file():
        return BUILT
    raise Unavailable(f"no standard library for {triple}: `rustup target add {triple}`, or `rustup component add rust-src`")
