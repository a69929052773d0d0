"""The conformance package of the Model Context Protocol, against graphs that are named as its scenarios want.

`EXPECTED` are the scenarios that cannot pass, each with its reason; docs/internals/conformance.md shows them. One that
passes all the same fails the test, too.
"""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

from world import GRAPHS, Server

FIXTURE = GRAPHS.with_name("mcp-conformance.json")
PACKAGE = pathlib.Path("@modelcontextprotocol") / "conformance" / "dist" / "index.js"

NO_RESOURCES = "assistants are tools; there are no resources, and the capability is not declared"
NO_PROMPTS = "assistants are tools; there are no prompts, and the capability is not declared"
NO_LOGGING = "what a graph logs is traced and not sent; the capability is not declared"
JSON_ALONE = "a call brings the state of its graph, as JSON"
NO_REQUESTS = "the server sends no requests to clients: it keeps no connection of theirs"
EXPECTED = {
    "logging-set-level": NO_LOGGING,
    "completion-complete": "nothing has arguments to complete, and the capability is not declared",
    "tools-call-image": JSON_ALONE,
    "tools-call-audio": JSON_ALONE,
    "tools-call-embedded-resource": JSON_ALONE,
    "tools-call-mixed-content": JSON_ALONE,
    "tools-call-with-logging": NO_LOGGING,
    "tools-call-sampling": NO_REQUESTS,
    "tools-call-elicitation": NO_REQUESTS,
    "elicitation-sep1034-defaults": NO_REQUESTS,
    "elicitation-sep1330-enums": NO_REQUESTS,
    "resources-list": NO_RESOURCES,
    "resources-read-text": NO_RESOURCES,
    "resources-read-binary": NO_RESOURCES,
    "resources-templates-read": NO_RESOURCES,
    "resources-subscribe": NO_RESOURCES,
    "resources-unsubscribe": NO_RESOURCES,
    "prompts-list": NO_PROMPTS,
    "prompts-get-simple": NO_PROMPTS,
    "prompts-get-with-args": NO_PROMPTS,
    "prompts-get-embedded-resource": NO_PROMPTS,
    "prompts-get-with-image": NO_PROMPTS,
}
PASSED = {
    *("server-initialize", "ping", "tools-list", "tools-call-simple-text", "tools-call-error", "tools-call-with-progress"),
    *("json-schema-2020-12", "server-sse-polling", "server-sse-multiple-streams", "dns-rebinding-protection"),
}


@pytest.fixture
def conformance(tmp_path):
    """Runs the package's command line."""
    modules = os.environ.get("TOWPATH_TEST_NODE_MODULES")
    if modules is None:
        pytest.skip("TOWPATH_TEST_NODE_MODULES names no folder with the conformance package")
    (tmp_path / "node_modules").symlink_to(modules)
    source = (tmp_path / "node_modules" / PACKAGE).read_text()
    # Older releases of Node have no such function; only a command that is not used here calls it.
    source = re.sub(r"\bglobSync as \w+,", "", source)
    program = tmp_path / "conformance.mjs"
    program.write_text(source)
    (tmp_path / "package.json").write_text('{"type": "module"}')

    def run(*args):
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "NO_COLOR": "1"}
        command = [shutil.which("node"), str(program), *args]
        return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)

    listed = run("list", "--server")
    if listed.returncode != 0:
        pytest.skip(f"the conformance package does not run on this Node: {listed.stderr[-500:]}")
    return run


@pytest.fixture
def fixture_server():
    running = Server("embedded", graphs=FIXTURE)
    yield running
    running.stop()


def test_server_scenarios(fixture_server, conformance, tmp_path):
    baseline = tmp_path / "expected.yml"
    baseline.write_text("server:\n" + "".join(f"  - {name}\n" for name in EXPECTED))
    done = conformance(
        *("server", "--url", f"{fixture_server.url}/mcp", "--suite", "all", "--expected-failures", str(baseline)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = {name: mark for mark, name in re.findall(r"^([✓✗]) (\S+): \d+ passed", done.stdout, re.MULTILINE)}
    assert {name for name, mark in outcomes.items() if mark == "✓"} == PASSED, done.stdout
    print(f"MCP conformance: {len(PASSED)} scenarios passed, {len(EXPECTED)} cannot pass")
