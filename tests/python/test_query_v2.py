"""Runs, traces and threads with the newer queries of the official client, unchanged.

Each test runs on SQLite in one process and on PostgreSQL + Redis with two workers.
"""

import json
import os
import pathlib
import subprocess
import sys
import uuid

import pytest

import harness

# Programs that have the SDK: in the release that the suite itself runs with, and in the newest one.
PROGRAMS = {"pinned": sys.executable, "newest": os.environ.get("TOWPATH_TEST_NEWEST_PYTHON")}
QUERIER = pathlib.Path(__file__).with_name("querier.py")


@pytest.mark.parametrize("program", PROGRAMS)
def test_traces_and_threads_are_queried(world, program):
    python = PROGRAMS[program]
    if python is None:
        pytest.skip("TOWPATH_TEST_NEWEST_PYTHON is not set")
    done = subprocess.run(
        [python, QUERIER, f"http://{world.api}", harness.KEY, world.tenant, f"turns-{uuid.uuid4()}"],
        env={"PATH": os.environ["PATH"], "HOME": str(world.folder)}, capture_output=True, text=True,
        timeout=harness.PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    # A server that is too old is a warning.
    assert "older than the minimum version" not in done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "models": [["model", 7]] * 3,
        "streamed": ["turn"] * 3,
        "subtrees": [[2, 7, 4], [1, 7, 4], [0, 7, 4]],
        "traces": [[2, "turn", 7], [1, "turn", 7], [0, "turn", 7]],
        "failed": [2],
        "children": [["turn", "SUCCESS"], ["model", "SUCCESS"]],
        "threads": [["a", 2, 1, 14, 2], ["b", 1, 0, 7, 1]],
        "turns": [[2, "turn", 7], [0, "turn", 7]],
        "stats": [2, 4.0, 14],
        "total": [2, 3, 21],
        "address": True,
    }
