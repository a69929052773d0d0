"""The suites as data: what each is for, when it runs, what it needs, and its command."""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable

from testing import junit, rust
from testing.context import Context
from testing.junit import FAILED, PASSED, Case

# Before the build: quick, and what fails most often.
FIRST = "first"
# Side by side, each with servers of its own: one that uses the processors, one that mostly waits.
PROCESSOR, WAITING = "processor", "waiting"
# Alone: its figures are read.
LAST = "last"

PYTHON = "tests/python/requirements.txt"
# The newest tracing client; that of PYTHON is older.
NEWEST = "tests/python/newest/requirements.txt"
# The last client of sandboxes with volumes, templates and pools.
SANDBOX = "tests/python/sandboxes/requirements.txt"
AGENT = "tests/python/agent/requirements.txt"
HOST = "tests/python/host/requirements.txt"

# A suite that hangs is a failure, not a wait for ever.
LIMIT_SECONDS = 2400
# A million operations on both databases, or 200 rounds of each layout.
LONG_LIMIT_SECONDS = 12 * 3600
LONG_INGEST = bool(os.environ.get("TOWPATH_TEST_INGEST_OPERATIONS"))
LONG_SOAK = bool(os.environ.get("TOWPATH_TEST_SOAK_ROUNDS"))
# 500 exports in each layout, or 200 kills of sandboxes.
LONG_KILL_SECONDS = 4 * 3600
LONG_KILL = bool(os.environ.get("TOWPATH_TEST_EXPORT_ROUNDS") or os.environ.get("TOWPATH_TEST_SANDBOX_KILLS"))

# Figures that drills print.
TABLE = re.compile(r"^\|.*", re.MULTILINE)
FAULTS_HEAD = (
    "| fault | hits | accepted | refused | cut off | slowest answer | told by /readyz | back after"
    " | rows compared | tried again |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


@dataclasses.dataclass(frozen=True)
class Suite:
    name: str
    about: str
    lane: str
    command: Callable[[Context], list[str]]
    # What it needs of the machine and of the run: cargo rustfmt clippy build postgres redis node browser.
    needs: frozenset[str] = frozenset()
    # Python packages for it, and for programs that its tests start.
    venvs: tuple[str, ...] = ()
    # What it is about: its PostgreSQL syncs every commit.
    commits: bool = False
    # The suite that a user names, where that has several parts.
    part_of: str | None = None
    # What stands behind `--`; None where nothing may.
    arguments: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    # What it takes on two cores, until a run says so.
    typical_seconds: int = 0
    # It is ended after this long.
    limit_seconds: int = LIMIT_SECONDS
    # Lines of its output that are printed when it ends, behind these headlines.
    shown: re.Pattern | None = None
    headlines: tuple[str, ...] = ()
    # Why it cannot run on this machine, if it cannot.
    unavailable: Callable[[], str | None] = lambda: None
    # How its tests are counted: the report of its command, or what its log says.
    read_log: Callable[[str], list[Case]] | None = None

    @property
    def group(self) -> str:
        return self.part_of or self.name

    def report(self, context: Context) -> pathlib.Path:
        return rust.report(self.name, context) if self.name in rust.AT_ONCE else context.report(self.name)


def plain(*command):
    return lambda context: [*command, *context.arguments]


def rust_tests(name, limit_s=LIMIT_SECONDS):
    return lambda context: rust.tests_command(name, context, limit_s)


def pytest(name, requirements, *options, paths):
    """pytest over `paths`, unless the caller names files."""

    def command(context):
        named = any(".py" in argument and not argument.startswith("-") for argument in context.arguments)
        arguments = [*options, *context.arguments, *(() if named else paths)]
        report = f"--junitxml={context.report(name)}"
        return [context.venv_python(requirements), "-m", "pytest", "-p", "no:cacheprovider", "-ra", report, *arguments]

    return command


def rooted(folder):
    return ("-c", f"{folder}/pytest.ini", "--rootdir", folder)


def unit_tests(context):
    tests = str(pathlib.Path(__file__).with_name("tests"))
    return [sys.executable, tests, "--junit", str(context.report("scripts")), *context.arguments]


def read_contract(log: str) -> list[Case]:
    """One case for each surface and layout, from lines as `contract, agent, embedded: 4 cases …, 0 failures (seed 1, 3.5 s)`."""
    cases = []
    for line in re.findall(r"^contract, \w+, \w+: \d+ cases .*", log, re.MULTILINE):
        name, _, said = line.partition(": ")
        seconds = re.search(r"([\d.]+) s\)", said)
        state = PASSED if ", 0 failures" in said else FAILED
        cases.append(Case(name.replace(", ", "::"), float(seconds[1]) if seconds else 0, state, "" if state == PASSED else said))
    return cases


def no_deny() -> str | None:
    done = subprocess.run(["cargo", "deny", "--version"], stdin=subprocess.DEVNULL, capture_output=True)
    return "cargo-deny is not installed (the suite rust checks bans and sources from Cargo.lock)" if done.returncode else None


def no_advisories() -> str | None:
    """Advisories need their database, which only the network can bring."""
    home = pathlib.Path(os.environ.get("CARGO_HOME") or pathlib.Path.home() / ".cargo")
    return no_deny() or (None if any(home.glob("advisory-db*/*")) else "the database of advisories is not on this machine")


NAMES = "parts of the names of tests"
PYTEST = "arguments of pytest"
# The servers that a test may ask for, and the binary under test.
SERVED = frozenset({"cargo", "build", "postgres", "redis"})

SUITES = (
    Suite(
        "fmt",
        "how Rust files are laid out (cargo fmt --check)",
        FIRST,
        plain("cargo", "fmt", "--all", "--", "--check"),
        frozenset({"cargo", "rustfmt"}),
    ),
    Suite(
        "scripts",
        "unit tests of this command and of scripts/release",
        FIRST,
        unit_tests,
        # One test reads the crates of the clone.
        frozenset({"cargo"}),
        arguments="names of modules, classes or tests, as unittest takes them",
    ),
    Suite(
        "deny",
        "licences, bans and sources of dependencies, where cargo-deny is installed",
        FIRST,
        plain("cargo", "deny", "--offline", "check", "bans", "licenses", "sources"),
        frozenset({"cargo"}),
        unavailable=no_deny,
    ),
    Suite(
        "advisories",
        "known vulnerabilities of dependencies",
        FIRST,
        plain("cargo", "deny", "--offline", "check", "advisories"),
        frozenset({"cargo"}),
        part_of="deny",
        unavailable=no_advisories,
    ),
    Suite(
        "clippy",
        "lints of all crates; a warning is an error",
        PROCESSOR,
        # Behind the tests that run beside it: those have time limits.
        plain(
            *("nice", "-n", "10"),
            *("cargo", "clippy", "--workspace", "--all-targets", "--keep-going", "--", "-D", "warnings"),
        ),
        frozenset({"cargo", "clippy"}),
        typical_seconds=60,
    ),
    Suite(
        "rust",
        "unit and integration tests of every crate, on SQLite and PostgreSQL, and rules about the source tree",
        PROCESSOR,
        rust_tests("rust"),
        SERVED,
        venvs=(PYTHON,),
        arguments=NAMES,
        typical_seconds=600,
        shown=re.compile(r"^security cases, .*", re.MULTILINE),
    ),
    Suite(
        "contract",
        "running servers against their own API descriptions, with generated requests",
        PROCESSOR,
        lambda context: [context.venv_python(PYTHON), "tests/contract/run.py", *context.arguments],
        SERVED,
        venvs=(PYTHON,),
        arguments="see tests/contract/run.py --help",
        typical_seconds=300,
        shown=re.compile(r"^contract, .*", re.MULTILINE),
        read_log=read_contract,
    ),
    Suite(
        "ingest",
        "generated ingest by every route while it is read and exported, compared with a reference merge",
        PROCESSOR,
        rust_tests("ingest", LONG_LIMIT_SECONDS if LONG_INGEST else LIMIT_SECONDS),
        SERVED,
        venvs=(PYTHON,),
        arguments=NAMES,
        typical_seconds=60,
        limit_seconds=LONG_LIMIT_SECONDS if LONG_INGEST else LIMIT_SECONDS,
        shown=re.compile(r"^ingest, .*", re.MULTILINE),
    ),
    Suite(
        "agent",
        "the agent server by its official clients, with graphs as data and in Python: runs, streams, deployments, kills",
        WAITING,
        pytest("agent", AGENT, *rooted("tests/python/agent"), "-n", "4", paths=("tests/python/agent",)),
        SERVED | {"node"},
        venvs=(AGENT,),
        arguments=PYTEST,
        typical_seconds=900,
        shown=TABLE,
    ),
    Suite(
        "kill",
        "the kill drill: processes die at every named point and at random; nothing acknowledged is lost",
        WAITING,
        rust_tests("kill", LONG_KILL_SECONDS if LONG_KILL else LIMIT_SECONDS),
        SERVED,
        venvs=(PYTHON,),
        commits=True,
        arguments=NAMES,
        environment=(("TOWPATH_TEST_KILLS", os.environ.get("TOWPATH_TEST_KILLS") or "110"),),
        typical_seconds=700,
        limit_seconds=LONG_KILL_SECONDS if LONG_KILL else LIMIT_SECONDS,
        shown=re.compile(r"^(?:kill drill, |export drill, |\|).*", re.MULTILINE),
    ),
    Suite(
        "soak",
        "months in rounds of days: a mixed load, a fault in each round; nothing acknowledged is lost, nothing grows without bound",
        WAITING,
        rust_tests("soak", LONG_LIMIT_SECONDS if LONG_SOAK else LIMIT_SECONDS),
        SERVED,
        arguments=NAMES,
        typical_seconds=120,
        limit_seconds=LONG_LIMIT_SECONDS if LONG_SOAK else LIMIT_SECONDS,
        shown=re.compile(r"^(?:soak, |soak: |\|).*", re.MULTILINE),
    ),
    Suite(
        "python",
        "traces and exports by the official SDK, S3, the pages in a browser, docker-compose.yml",
        WAITING,
        pytest(
            "python",
            PYTHON,
            *("-n", "3", "--ignore=tests/python/agent", "--ignore=tests/python/host"),
            paths=("tests/python",),
        ),
        SERVED | {"browser"},
        venvs=(PYTHON, NEWEST, SANDBOX),
        arguments=PYTEST,
        typical_seconds=400,
    ),
    Suite(
        "js",
        "traces, streams and sandboxes by the official JavaScript clients",
        WAITING,
        pytest("js", PYTHON, "-n", "2", paths=("tests/js",)),
        SERVED | {"node"},
        venvs=(PYTHON,),
        arguments=PYTEST,
        typical_seconds=90,
    ),
    Suite(
        "host",
        "the host of Python graphs against a peer that plays the server; needs no build",
        WAITING,
        pytest("host", HOST, *rooted("tests/python/host"), "-n", "3", paths=("tests/python/host",)),
        venvs=(HOST,),
        arguments=PYTEST,
        typical_seconds=120,
    ),
    Suite(
        "faults",
        "slow, silent and cut lines, thousands of slow clients, a database that restarts, full disks; its figures are read",
        LAST,
        rust_tests("faults"),
        SERVED,
        venvs=(PYTHON,),
        commits=True,
        arguments=NAMES,
        typical_seconds=300,
        shown=TABLE,
        headlines=FAULTS_HEAD,
    ),
)

# What a user may name.
GROUPS = tuple(dict.fromkeys(suite.group for suite in SUITES))


def of_groups(groups) -> list[Suite]:
    return [suite for suite in SUITES if suite.group in groups]


def read_cases(suite: Suite, context: Context) -> list[Case]:
    """The tests of a suite that has ended; a report is written where its command writes none."""
    report = context.report(suite.name)
    if suite.read_log:
        cases = suite.read_log(context.log(suite.name).read_text(errors="replace"))
        junit.write(report, suite.name, cases)
        return cases
    source = suite.report(context)
    if source != report and source.exists():
        source.replace(report)
    return junit.read(report)


def shown_lines(suite: Suite, cases: list[Case], log: str) -> list[str]:
    """What the suite wants to be seen, from the output of its tests or else from its log."""
    if not suite.shown:
        return []
    text = "\n".join(case.output for case in cases if case.output) if suite.name in rust.AT_ONCE else log
    lines = suite.shown.findall(text)
    return [*suite.headlines, *lines] if lines else []
