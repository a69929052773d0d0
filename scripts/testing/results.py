"""What a run found: the outcome of each suite, the lines that report it, the summary that is kept."""

import collections
import dataclasses
import json
import pathlib
import re
import shutil

from testing.junit import FAILED, PASSED, SKIPPED, Case
from testing.processes import Finished

KEPT_RUNS = 20
SLOWEST = 30
LOG_LINES = 1500
# What tests print that skip themselves.
SKIP_LINE = re.compile(r"^skipped: .*", re.MULTILINE | re.IGNORECASE)
# What says in a log why a suite failed without a failing test.
FAILURE_LINE = re.compile(r"^(error(\[E\d+\])?: .*|ERROR .*|FAILED .*|\s+(FAIL|TIMEOUT|SIG[A-Z]+) \[.*)$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one suite ended."""

    suite: str
    lane: str
    began: float
    finished: Finished
    cases: tuple[Case, ...] = ()
    # Lines that the suite wants to be seen, such as tables of figures.
    shown: tuple[str, ...] = ()

    def count(self, state) -> int:
        return sum(case.state == state for case in self.cases)

    @property
    def passed(self) -> int:
        return self.count(PASSED)

    @property
    def failed(self) -> int:
        """A suite that fails without a failing test (it did not compile, it hung) counts as one failure."""
        failed = self.count(FAILED)
        return failed or int(self.finished.code != 0)

    def line(self) -> str:
        parts = [f"{self.suite:<12} {'FAILED' if self.failed else 'ok':<7} {self.finished.seconds:6.1f} s"]
        parts.append(f"{self.finished.user + self.finished.system:7.1f} s of processor")
        if self.cases or self.failed:
            parts.append(f"{self.passed} passed, {self.failed} failed, {self.count(SKIPPED)} skipped")
        return "   ".join(parts)

    def skips(self) -> list[str]:
        """Why tests were skipped, each reason once with its count."""
        reasons = collections.Counter()
        for case in self.cases:
            if case.state == SKIPPED:
                reasons[f"skipped: {case.message}"] += 1
            else:
                reasons.update(set(SKIP_LINE.findall(case.output)))
        return [f"{reason} ({count} {'test' if count == 1 else 'tests'})" for reason, count in sorted(reasons.items())]

    def first_failure(self) -> str | None:
        if not self.failed:
            return None
        for case in self.cases:
            if case.state == FAILED:
                return f"{self.suite}: {case.name}: {first_line(case.message)}"
        ending = "reached its time limit" if self.finished.timed_out else f"ended with {self.finished.code}"
        return f"{self.suite}: {ending} without a failing test"

    def failure_report(self, log: pathlib.Path) -> list[str]:
        """The end of the log, and what to look for in it."""
        text = log.read_text(errors="replace") if log.exists() else ""
        lines = [f"---- {self.suite}: the end of {log}", *text.splitlines()[-LOG_LINES:]]
        names = [f"FAILED {case.name}: {first_line(case.message)}" for case in self.cases if case.state == FAILED]
        lines += names or sorted({found[0] for found in FAILURE_LINE.finditer(text)})
        if self.finished.timed_out:
            lines.append(f"---- {self.suite}: ended after {self.finished.seconds:.0f} s, its time limit")
        return [*lines, "----"]

    def summary(self) -> dict:
        return {
            "lane": self.lane,
            "began": round(self.began, 1),
            "seconds": round(self.finished.seconds, 1),
            "user_seconds": round(self.finished.user, 1),
            "system_seconds": round(self.finished.system, 1),
            "passed": self.passed,
            "failed": self.failed,
            "skipped": self.count(SKIPPED),
        }


def first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0][:300] if lines else "no message"


def totals(outcomes: list[Outcome]) -> tuple[int, int]:
    return sum(outcome.passed for outcome in outcomes), sum(outcome.failed for outcome in outcomes)


def slowest(outcomes: list[Outcome]) -> list[tuple[float, str, str]]:
    """Seconds, suite and name of the tests that took longest."""
    all_cases = [(case.seconds, outcome.suite, case.name) for outcome in outcomes for case in outcome.cases]
    return sorted(all_cases, reverse=True)[:SLOWEST]


def summary(outcomes: list[Outcome], commit, dirty: bool, began: str, seconds: float) -> dict:
    passed, failed = totals(outcomes)
    # Outcomes stand in the order in which suites ended.
    failures = [outcome.first_failure() for outcome in outcomes if outcome.failed]
    return {
        "commit": commit,
        "dirty": dirty,
        "began": began,
        "seconds": round(seconds, 1),
        "passed": passed,
        "failed": failed,
        "first_failure": failures[0] if failures else None,
        "suites": {outcome.suite: outcome.summary() for outcome in outcomes},
        "slowest": [{"seconds": round(taken, 3), "suite": suite, "test": name} for taken, suite, name in slowest(outcomes)],
    }


def new_folder(runs: pathlib.Path, time: str) -> pathlib.Path:
    """The folder of a new run, below `runs`; of the older ones the newest stay."""
    runs.mkdir(parents=True, exist_ok=True)
    names = [time, *(f"{time}-{number}" for number in range(2, 100))]
    for name in names:
        try:
            (runs / name).mkdir()
        except FileExistsError:
            continue
        for old in run_folders(runs)[:-KEPT_RUNS]:
            shutil.rmtree(old, ignore_errors=True)
        return runs / name
    raise FileExistsError(runs / time)


def run_folders(runs: pathlib.Path) -> list[pathlib.Path]:
    """Folders of runs, the oldest first: their names are times."""
    return sorted(path for path in runs.glob("20*Z*") if path.is_dir())


def last_seconds(runs: pathlib.Path) -> dict[str, float]:
    """What each suite took when it last ended without a failure. Runs of a few of its tests say nothing about it."""
    ended: dict[str, list[tuple[int, float]]] = {}
    for folder in run_folders(runs):
        try:
            suites = json.loads((folder / "summary.json").read_text())["suites"]
        except (OSError, ValueError, KeyError):
            continue
        for name, suite in suites.items():
            if not suite["failed"]:
                ended.setdefault(name, []).append((suite["passed"] + suite.get("skipped", 0), suite["seconds"]))
    seconds = {}
    for name, of_suite in ended.items():
        most = max(tests for tests, _ in of_suite)
        seconds[name] = [taken for tests, taken in of_suite if 2 * tests >= most][-1]
    return seconds
