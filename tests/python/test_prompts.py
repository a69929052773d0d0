"""Prompts with the official client, unchanged: push, pull, list, tag, like, archive and delete.

Each test runs on SQLite in one process and on PostgreSQL + Redis with two workers.
"""

import json
import os
import pathlib
import subprocess
import sys
import urllib.error
import urllib.request
import uuid

import pytest

import harness

# Programs that have the SDK: in the release that the suite itself runs with, and in the newest one.
PROGRAMS = {"pinned": sys.executable, "newest": os.environ.get("TOWPATH_TEST_NEWEST_PYTHON")}
PROMPTER = pathlib.Path(__file__).with_name("prompter.py")


class Still(urllib.request.HTTPRedirectHandler):
    """Follows no redirect."""

    def redirect_request(self, *_):
        return None


def leads_to(address):
    with pytest.raises(urllib.error.HTTPError) as answer:
        urllib.request.build_opener(Still).open(address, timeout=harness.PATIENCE_S)
    assert answer.value.code == 303
    return answer.value.headers["location"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_prompt_is_pushed_and_its_versions_are_pulled(world, program):
    python = PROGRAMS[program]
    if python is None:
        pytest.skip("TOWPATH_TEST_NEWEST_PYTHON is not set")
    name = f"keeper-{uuid.uuid4()}"
    done = subprocess.run(
        [python, PROMPTER, f"http://{world.api}", harness.KEY, world.tenant, name],
        env={"PATH": os.environ["PATH"], "HOME": str(world.folder)}, capture_output=True, text=True,
        timeout=harness.PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    first = seen.pop("first")
    polite, short = "You keep a lock. Be polite.", "You keep a lock."
    assert seen == {
        "existed": False,
        "unchanged": True,
        "urls": [True, True],
        "commits": ["shorter", None],
        "parent": True,
        "one": [True],
        "texts": sorted([short, short, short, polite, polite, polite]),
        "latest": short,
        "hash": True,
        "archived": [[name, "keeps locks"]],
        "listed": 0,
        "liked": [1, True, 0],
        "read": [2, True, ["water"], "# Lock"],
        "made": [0, ["a"]],
        "committed": True,
        "missing": True,
        "gone": True,
    }
    # The address that the client prints leads to the page of the commit.
    assert leads_to(first).startswith(f"/ui/prompts/{world.tenant}/{name}?commit=")
