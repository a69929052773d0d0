"""Runs test programs without nextest, several at once, and reports each test with its time.

    libtest.py PROGRAMS --junit FILE [--at-once N] [--threads N] [--limit S] [--only PART] [--skip PART]… [--name NAME]…

PROGRAMS is a list in JSON, as `context.Program`. With names, a test runs whose name contains one of them. Ends with 0 where
all tests passed, 1 where one failed, 4 where no test ran.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import threading

sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from testing import junit  # noqa: E402
from testing.junit import FAILED, PASSED, SKIPPED, Case  # noqa: E402

STATES = {"ok": PASSED, "failed": FAILED, "ignored": SKIPPED, "timeout": FAILED}
printing = threading.Lock()


def read_events(program: str, output: str) -> list[Case]:
    """The tests of one program. One that began and never ended took the program down with it."""
    cases, begun = [], {}
    for line in output.splitlines():
        try:
            event = json.loads(line) if line.startswith("{") else {}
        except ValueError:
            continue
        if not isinstance(event, dict) or event.get("type") != "test":
            continue
        name = f"{program}::{event['name']}"
        if event["event"] == "started":
            begun[name] = True
        elif event["event"] in STATES:
            begun.pop(name, None)
            text = event.get("stdout", "")
            state = STATES[event["event"]]
            message = event.get("message") or (junit.panic(text) or "failed" if state == FAILED else "")
            cases.append(Case(name, float(event.get("exec_time", 0)), state, message, text))
    cases += [Case(name, 0, FAILED, "the program ended before the test did") for name in begun]
    return cases


def named_tests(program, only: str, names: list[str]) -> list[str]:
    """The tests of a program whose names contain `only` and one of `names`. libtest itself knows no `and`."""
    listed = subprocess.run([program["path"], "--list", "--format", "terse"], capture_output=True, text=True, check=True)
    tests = [line.removesuffix(": test") for line in listed.stdout.splitlines() if line.endswith(": test")]
    return [test for test in tests if only in test and any(name in test for name in names)]


def run_program(program, arguments, limit_s: float) -> tuple[list[Case], int]:
    """The tests of one program, and how it ended."""
    command = [program["path"], "-Zunstable-options", "--format", "json", "--report-time", "--show-output", *arguments]
    # What a nightly compiler's tests may always do: events instead of text.
    environment = os.environ | {"RUSTC_BOOTSTRAP": "1"}
    child = subprocess.Popen(
        command,
        cwd=program["folder"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    timer = threading.Timer(limit_s, child.kill)
    timer.daemon = True
    timer.start()
    output = child.communicate()[0]
    timer.cancel()
    cases = read_events(program["id"], output)
    with printing:
        print(f"---- {program['id']}: {len(cases)} tests, ended with {child.returncode}")
        # Events are in the report; what else was printed may say why a program died.
        print("\n".join(line for line in output.splitlines() if not line.startswith("{")))
        for case in cases:
            if case.state == FAILED:
                print(f"FAILED {case.name}: {case.message}\n{case.output}")
        sys.stdout.flush()
    return cases, child.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--junit", type=pathlib.Path, required=True)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=float, default=600)
    parser.add_argument("--only")
    parser.add_argument("--skip", action="append", default=[])
    parser.add_argument("--name", action="append", default=[], dest="names")
    options = parser.parse_args()
    arguments = ["--test-threads", str(options.threads)]
    arguments += [part for name in options.skip for part in ("--skip", name)]

    def perform(program):
        names = [options.only] if options.only else options.names
        if options.only and options.names:
            names = named_tests(program, options.only, options.names)
            if not names:
                return [], 0
            names.append("--exact")
        return run_program(program, [*arguments, *names], options.limit)

    # The large programs first: they take long.
    programs = sorted(json.loads(options.programs.read_text()), key=lambda program: -os.path.getsize(program["path"]))
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        done = list(pool.map(perform, programs))
    cases = [case for found, _ in done for case in found]
    junit.write(options.junit, options.junit.stem, cases)
    states = [case.state for case in cases]
    print(f"{states.count(PASSED)} passed, {states.count(FAILED)} failed, {states.count(SKIPPED)} ignored")
    if not cases:
        sys.exit(4)
    sys.exit(any(code != 0 for _, code in done))


if __name__ == "__main__":
    main()
