"""The official JavaScript client, against the same servers."""

import os
import pathlib
import shutil
import subprocess

import pytest

SUITE = pathlib.Path(__file__).resolve().parents[2] / "js"


def test_the_official_client(server, tmp_path):
    modules = os.environ.get("TOWPATH_TEST_NODE_MODULES")
    if modules is None:
        pytest.skip("TOWPATH_TEST_NODE_MODULES names no folder with the JavaScript client")
    # Modules are found beside the file that imports them.
    for file in ("client.test.mjs", "package.json"):
        shutil.copy(SUITE / file, tmp_path)
    (tmp_path / "node_modules").symlink_to(modules)
    done = subprocess.run(
        ["node", "--test", "--test-reporter=spec", str(tmp_path / "client.test.mjs")],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TOWPATH_AGENT_URL": server.urls[-1]},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
