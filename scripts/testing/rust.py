"""The build, and the commands that run the test programs it made."""

import dataclasses
import json
import os
import pathlib
import sys

from testing.context import Build, Context, Program

# One resolution of features for the binary and all tests, so that nothing is compiled twice.
BUILD = ("cargo", "build", "--workspace", "--bins", "--tests", "--message-format=json-render-diagnostics")
# Tests of the suites ingest, kill, soak and faults, by a part of their names.
DRILLS = {"ingest": "ingest_fuzz::", "kill": "kill::", "soak": "soak::", "faults": "faults::"}
# How many tests run at a time; None for as many as there are processors.
AT_ONCE = {"rust": None, "ingest": 2, "kill": 4, "soak": 2, "faults": 10}
# Of the time limit of a suite, what is left to end its test programs where nextest does not watch each test.
ENDING_SECONDS = 300
# Rules about the tree: any file can break them.
RULES_PACKAGE = "towpath-tests"
RULES_TESTS = "/^(arrows|dependencies|sources|tree)::/"


def read_build(messages: pathlib.Path) -> Build:
    """What cargo says it built, fresh or not."""
    build = Build()
    for line in messages.read_text(errors="replace").splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("reason") != "compiler-artifact" or not message.get("executable"):
            continue
        target, path = message["target"], message["executable"]
        if message["profile"]["test"]:
            package = package_name(message["package_id"])
            folder = str(pathlib.Path(message["manifest_path"]).parent)
            build.programs.append(Program(package, program_id(package, target), path, folder))
        elif target["name"] == "towpath" and "bin" in target["kind"]:
            build.towpath = pathlib.Path(path)
    return build


def package_name(package_id: str) -> str:
    """`path+file:///clone/crates/store#towpath-store@0.1.0`; a folder of the same name stands for the package's."""
    source, _, rest = package_id.partition("#")
    name, at, _ = rest.rpartition("@")
    return name if at else source.rstrip("/").rpartition("/")[2]


def program_id(package: str, target) -> str:
    kind = target["kind"][0]
    if kind == "test":
        return f"{package}::{target['name']}"
    return f"{package}::{kind}/{target['name']}" if kind in ("bin", "example") else package


def nextest_metadata(context: Context) -> list[tuple[list[str], pathlib.Path]]:
    """Commands that ask cargo what it built, and where their output goes. Runs that are given both ask cargo nothing: cargo
    would wait for clippy, and would build what is edited while the suites run."""
    binaries, cargo = context.run_folder / "binaries.json", context.run_folder / "metadata.json"
    listing = [str(context.nextest), "nextest", "list", "--config-file", str(context.nextest_config)]
    listing += ["--workspace", "--tests", "--list-type", "binaries-only", "--message-format", "json"]
    return [(listing, binaries), (["cargo", "metadata", "--format-version", "1"], cargo)]


def write_nextest_config(context: Context):
    """The configuration of the clone, with reports in the folder of the run: two runs must not share them."""
    context.nextest_config = context.run_folder / "nextest.toml"
    store = f"\n[store]\ndir = {json.dumps(str(context.results / 'nextest'))}\n"
    text = (context.top / ".config" / "nextest.toml").read_text()
    context.nextest_config.write_text(text + store)


def packages_filter(packages: frozenset[str]) -> str:
    """The filterset of the tests of `packages`, and of the rules about the tree."""
    rules = f"(package(={RULES_PACKAGE}) and test({RULES_TESTS}))"
    return " or ".join([*(f"package(={name})" for name in sorted(packages)), rules])


def tests_command(suite: str, context: Context, limit_s: int = 2400) -> list[str]:
    """Runs the tests of `suite`, which is ended after `limit_s`: with nextest, else program by program."""
    if context.nextest:
        command = [str(context.nextest), "nextest", "run", "--config-file", str(context.nextest_config), "--profile", suite]
        command += ["--binaries-metadata", str(context.build.binaries_metadata)]
        command += ["--cargo-metadata", str(context.build.cargo_metadata)]
        if suite == "rust" and context.packages is not None:
            command += ["-E", packages_filter(context.packages)]
        if context.arguments:
            command += ["--success-output", "immediate"]
        return [*command, *context.arguments]
    programs = context.build.programs
    if suite == "rust" and context.packages is not None:
        programs = [program for program in programs if program.package in context.packages | {RULES_PACKAGE}]
    if suite in DRILLS:
        programs = [program for program in programs if program.package == RULES_PACKAGE]
    listed = context.run_folder / f"{suite}.programs.json"
    listed.write_text(json.dumps([dataclasses.asdict(program) for program in programs]))
    processors = os.cpu_count() or 1
    threads = AT_ONCE[suite] or processors
    command = [sys.executable, str(pathlib.Path(__file__).with_name("libtest.py")), str(listed)]
    command += ["--junit", str(context.report(suite)), "--threads", str(threads), "--limit", str(limit_s - ENDING_SECONDS)]
    command += ["--at-once", str(processors if suite == "rust" else 1)]
    if suite in DRILLS:
        command += ["--only", DRILLS[suite]]
    else:
        command += [part for drill in DRILLS.values() for part in ("--skip", drill)]
    return [*command, *(part for name in context.arguments for part in ("--name", name))]


def report(suite: str, context: Context) -> pathlib.Path:
    """Where the command of `suite` writes its report."""
    if context.nextest:
        return context.results / "nextest" / suite / "junit.xml"
    return context.report(suite)
