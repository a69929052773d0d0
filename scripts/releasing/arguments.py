"""The command line."""

import argparse
import dataclasses
import pathlib
import re

from releasing.targets import BY_LABEL, DEFAULT, Target

KINDS = ("tarball", "wheel", "deb", "rpm", "image", "npm")
CHECKED = (*KINDS, "install.sh", "service")
BUILD, CHECK, NOTES = "build", "check", "notes"
EPILOG = """\
commands:
  build    builds the binary and makes the packages of it (default)
  check    installs each package where nothing else is, runs the program, and prints what it took; `service` is the deb
           under systemd in a container: start, restart, upgrade, stop, removal, purge
  notes    prints the release notes out of CHANGELOG.md

Packages are in <target>/packages/<version>, with SHA256SUMS, install.sh and the Homebrew formula. The version is that of the
workspace in Cargo.toml. The time of all files is SOURCE_DATE_EPOCH, else that of the commit.

examples:
  scripts/release && scripts/release check
  scripts/release --target x86_64-linux --target aarch64-linux-musl
  scripts/release --binary target/dist/towpath --only deb
  scripts/release --check-reproducible"""


@dataclasses.dataclass(frozen=True)
class Options:
    command: str
    targets: tuple[Target, ...]
    only: tuple[str, ...]
    binary: pathlib.Path | None
    documents_from: pathlib.Path | None
    glibc: tuple[int, int]
    out: pathlib.Path | None
    strict: bool
    reproducible: bool


def version(text: str) -> tuple[int, int]:
    if not re.fullmatch(r"\d+\.\d+", text):
        raise argparse.ArgumentTypeError(f"`{text}` is no version such as 2.28")
    major, minor = text.split(".")
    return int(major), int(minor)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/release",
        description="Builds the packages of Towpath and checks them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("command", nargs="?", choices=(BUILD, CHECK, NOTES), default=BUILD, metavar="COMMAND", help="see below")
    parser.add_argument(
        "--target", action="append", choices=BY_LABEL, metavar="TARGET", help=f"{', '.join(BY_LABEL)} (default: {DEFAULT.label})"
    )
    parser.add_argument("--only", action="append", choices=CHECKED, metavar="KIND", help=f"of {', '.join(CHECKED)}")
    parser.add_argument("--binary", type=pathlib.Path, metavar="PATH", help="package this program instead of building one")
    parser.add_argument(
        "--documents-from",
        type=pathlib.Path,
        metavar="PATH",
        help="a program that runs on this machine and prints completions and manual pages (default: the one that is packaged)",
    )
    parser.add_argument(
        "--glibc", type=version, default=(2, 28), metavar="VERSION", help="the oldest glibc that has to do (default: 2.28)"
    )
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="where packages are put")
    parser.add_argument("--strict", action="store_true", help="fail where a package cannot be made on this machine")
    parser.add_argument("--check-reproducible", action="store_true", help="build everything twice and compare")
    return parser


def parse(argv: list[str]) -> Options:
    command_line = parser()
    given = command_line.parse_args(argv)
    targets = tuple(dict.fromkeys(BY_LABEL[label] for label in given.target or [DEFAULT.label]))
    if given.binary and len(targets) != 1:
        command_line.error("--binary is for one target")
    for path in (given.binary, given.documents_from):
        if path and not path.is_file():
            command_line.error(f"{path} is not a file")
    if given.check_reproducible and given.command != BUILD:
        command_line.error("--check-reproducible builds: it takes no other command")
    return Options(
        command=given.command,
        targets=targets,
        only=tuple(dict.fromkeys(given.only or CHECKED)),
        binary=given.binary and given.binary.resolve(),
        documents_from=given.documents_from and given.documents_from.resolve(),
        glibc=given.glibc,
        out=given.out and given.out.resolve(),
        strict=given.strict,
        reproducible=given.check_reproducible,
    )
