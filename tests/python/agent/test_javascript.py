"""The official JavaScript client and its React hook, against the same servers."""

import os
import pathlib
import shutil
import subprocess

import pytest

# In both languages.
pytestmark = pytest.mark.usefixtures("graph")

SUITE = pathlib.Path(__file__).resolve().parents[2] / "js"


@pytest.mark.parametrize("suite", ["client", "protocol", "react", "react-protocol", "a2a", "mcp"])
def test_the_official_client(server, graph, tmp_path, suite):
    modules = os.environ.get("TOWPATH_TEST_NODE_MODULES")
    if modules is None:
        pytest.skip("TOWPATH_TEST_NODE_MODULES names no folder with the JavaScript client")
    # Modules are found beside the file that imports them.
    test = f"{suite}.test.mjs"
    for file in (test, "react-page.mjs", "package.json"):
        shutil.copy(SUITE / file, tmp_path)
    (tmp_path / "node_modules").symlink_to(modules)
    done = subprocess.run(
        ["node", "--test", "--test-reporter=spec", str(tmp_path / test)],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "NODE_ENV": "production",
            "TOWPATH_AGENT_URL": server.urls[-1],
            "TOWPATH_AGENT_GRAPHS": graph(""),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
