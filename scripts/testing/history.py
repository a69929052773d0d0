"""Whole runs, one line each in a file of the target folder, and many of them one after another."""

import datetime
import json
import pathlib
import subprocess
import sys
import time

from testing import git
from testing.processes import Stopped, stop_on_signals

FILE = "history.jsonl"


def append(runs: pathlib.Path, summary: dict, beside_load: bool, folder: pathlib.Path):
    """Keeps a whole run."""
    keys = ("commit", "dirty", "began", "seconds", "passed", "failed", "first_failure")
    entry = {key: summary[key] for key in keys} | {"beside_load": beside_load, "run": folder.name}
    with (runs / FILE).open("a") as file:
        file.write(json.dumps(entry) + "\n")


def read(runs: pathlib.Path) -> list[dict]:
    """The runs that ended, the oldest first."""
    entries = []
    try:
        lines = (runs / FILE).read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            entries.append(json.loads(line))
        except ValueError:
            # A machine that stopped while a line was written.
            continue
    return entries


def of_commit(entries: list[dict], commit: str | None) -> list[dict]:
    """Runs of exactly what `commit` holds."""
    return [entry for entry in entries if entry["commit"] == commit and not entry["dirty"]]


def green_in_a_row(entries: list[dict]) -> list[dict]:
    """The runs behind the last red one."""
    red = [number for number, entry in enumerate(entries) if entry["failed"]]
    return entries[red[-1] + 1 :] if red else entries


def lines(runs: pathlib.Path, commit: str | None) -> list[str]:
    """The runs of a commit and how many in a row were green."""
    entries = of_commit(read(runs), commit)
    shown = []
    for entry in entries:
        load = "   beside load" if entry["beside_load"] else ""
        failure = f"   {entry['first_failure']}" if entry["failed"] else ""
        word = "FAILED" if entry["failed"] else "ok"
        shown.append(f"{entry['began']}   {word:<6} {entry['seconds']:7.0f} s   {entry['passed']} passed{load}{failure}")
    green = green_in_a_row(entries)
    loaded = sum(entry["beside_load"] for entry in green)
    name = commit[:12] if commit else "a tree without git"
    shown.append(f"green runs in a row on {name}: {len(green)}, of which beside load: {loaded}")
    return shown


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")


def repeat(count: int, beside_load: bool, runs: pathlib.Path) -> int:
    """Whole runs as processes of their own. Ends early when something else is checked out: the runs are of one commit."""
    commit = git.head()
    if commit is None or git.is_dirty():
        print("scripts/test: --repeat counts runs of a commit, and something is not committed: commit it first", file=sys.stderr)
        return 2
    stop_on_signals()
    child, red = None, 0
    command = [sys.executable, str(pathlib.Path(__file__).parent), *(["--beside-load"] if beside_load else [])]
    try:
        for number in range(1, count + 1):
            if git.head() != commit or git.is_dirty():
                print(f"stopped before run {number} of {count}: {commit[:12]} is not what is checked out any more", flush=True)
                return 1
            print(f"==== run {number} of {count} on {commit[:12]}", flush=True)
            began = time.monotonic()
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
            code = child.wait()
            if code not in (0, 1):
                return code
            red += code
            print(f"==== run {number} of {count} {'was green' if code == 0 else 'FAILED'}, {time.monotonic() - began:.0f} s")
            print("\n".join(lines(runs, commit)), flush=True)
    except Stopped as stopped:
        if child and child.poll() is None:
            child.terminate()
            child.wait()
        return stopped.code
    return int(red > 0)
