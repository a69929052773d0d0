"""The command line."""

import argparse
import dataclasses
import textwrap

from testing.suites import GROUPS, SUITES

ENVIRONMENT = """\
environment:
  CARGO_TARGET_DIR     where cargo builds, and where runs are kept (default: target of the clone)
  XDG_CACHE_HOME       Python environments and npm packages are kept in towpath/ below it (default: ~/.cache)
  PYTHON               the Python that runs this command and makes environments (default: python3)
  TOWPATH_TEST_KILLS   kills that each of the two layouts has to survive in the suite kill (default: 110)
  TOWPATH_TEST_INGEST_OPERATIONS
                       operations on each database in the suite ingest (default: 3000); `long` is a million
  TOWPATH_TEST_EXPORT_ROUNDS
                       exports right after the last 202 in each layout in the suite kill (default: 10); `long` is 500
  TOWPATH_TEST_SANDBOX_KILLS
                       kills in the drill of sandboxes in the suite kill (default: 10)
  TOWPATH_TEST_SANDBOX_COMMANDS
                       commands that write while Towpath is restarted in the suite kill (default: 100)
  TOWPATH_TEST_SOAK_ROUNDS
                       rounds of each layout in the suite soak (default: 9); `long` is 200

What is missing on the machine is installed: Debian packages, Python packages into environments of their own, npm packages into
a folder. PostgreSQL and Redis are private to the run. Each run keeps its logs, JUnit reports and durations in
<target>/test-runs/<time>, the newest 20 runs. docs/testing.md says more."""

EXAMPLES = """\
examples:
  scripts/test                              every suite, the rust tests and the waiting ones side by side
  scripts/test rust -- fences               tests of Rust whose name contains `fences`
  scripts/test agent -- -k crons            arguments of pytest
  scripts/test --changed                    what the changes since the branch left main can affect
  nohup scripts/test --repeat 10 --beside-load >repeat.log 2>&1 &
  scripts/test --history                    how many runs in a row were green on this commit"""


@dataclasses.dataclass(frozen=True)
class Options:
    suites: tuple[str, ...]
    # Whether the caller named none.
    all_suites: bool
    arguments: tuple[str, ...] = ()
    keep: bool = False
    # The commit to compare with; empty for the default one, None for no comparison.
    changed: str | None = None
    repeat: int = 0
    beside_load: bool = False
    history: bool = False


def describe_suites() -> str:
    width = max(map(len, GROUPS)) + 2
    lines = ["suites (all of them when none is named):"]
    for suite in SUITES:
        if suite.part_of:
            continue
        text = suite.about + (f" [-- {suite.arguments}]" if suite.arguments else "")
        lines += textwrap.wrap(
            text, 100, initial_indent=f"  {suite.name:<{width}}", subsequent_indent=" " * (width + 2), break_long_words=False
        )
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/test",
        usage="scripts/test [OPTION…] [SUITE…] [-- ARGUMENT…]",
        description="Runs every check of Towpath on a Debian machine that has cargo and nothing else.",
        epilog="\n\n".join((describe_suites(), EXAMPLES, ENVIRONMENT)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="see below")
    parser.add_argument("--keep", action="store_true", help="leave the folder of the run with the data of its servers")
    parser.add_argument(
        "--changed",
        nargs="?",
        const="",
        metavar="COMMIT",
        help="only suites that changes since COMMIT can affect, with what is not committed (default: the merge base with main,"
        " on main itself the commit before)",
    )
    parser.add_argument("--repeat", type=int, default=0, metavar="N", help="N whole runs on one commit, one after another")
    parser.add_argument("--beside-load", action="store_true", help="beside a process that keeps one core busy")
    parser.add_argument("--history", action="store_true", help="whole runs on this commit, and how many in a row were green")
    return parser


def parse(argv: list[str]) -> Options:
    ours, arguments = argv, []
    if "--" in argv:
        at = argv.index("--")
        ours, arguments = argv[:at], argv[at + 1 :]
    command_line = parser()
    given = command_line.parse_args(ours)
    if given.changed in GROUPS:
        # `--changed rust`: a suite, not a commit.
        given.suites.insert(0, given.changed)
        given.changed = ""
    for suite in given.suites:
        if suite not in GROUPS:
            command_line.error(f"unknown suite `{suite}`; the suites are {' '.join(GROUPS)}")
    if arguments:
        takes = [suite for suite in SUITES if suite.name in given.suites and suite.arguments]
        if len(given.suites) != 1 or not takes:
            command_line.error("arguments behind `--` are for one suite that takes some: name it")
        if given.changed is not None:
            command_line.error("--changed chooses tests, and so do arguments behind `--`: give one of them")
    whole = not given.suites and given.changed is None
    if given.repeat < 0 or (given.repeat and not whole):
        command_line.error("--repeat takes a number of whole runs: name no suites and no --changed")
    chosen = tuple(group for group in GROUPS if not given.suites or group in given.suites)
    return Options(
        suites=chosen,
        all_suites=not given.suites,
        arguments=tuple(arguments),
        keep=given.keep,
        changed=given.changed,
        repeat=given.repeat,
        beside_load=given.beside_load,
        history=given.history,
    )
