"""What code of a deployment reaches on the process backend: a program of its build and its graph try the same."""

import asyncio
import json
import os
import pathlib
import shutil
import sys
import tempfile

import pytest

import harness
from deploying import Repository, client, create, deployed, gone, logs, processes, says

ISOLATED = "isolation: own user id and namespaces"
# Each line is tried by code of a user. `$1` is the platform's data folder, `$2` its process, `$3` another deployment, `$4` its artifact.
PROBE = """
try() {
    what=$1
    shift
    if "$@" > /dev/null 2>&1; then echo "reached: $what;"; else echo "closed: $what;"; fi
}
try "its own environment" cat /proc/self/environ
try "its own sources" touch touched
try "its own /tmp" touch /tmp/touched
try "the key file" cat "$1/encryption.key"
try "the database" cat "$1/towpath.db"
try "the objects" ls "$1/objects"
try "the folder of another deployment" ls "$1/deployments/agents/$3"
try "the artifact of another deployment" ls "$1/deployments/artifacts/$4"
try "the environment of the platform" cat "/proc/$2/environ"
try "the memory map of the platform" cat "/proc/$2/maps"
try "the root folder of the platform" ls "/proc/$2/root/"
try "a signal to the platform" kill -0 "$2"
try "another user id" setpriv --reuid 0 true
try "another mount" mount -t tmpfs none /tmp
"""
OWN = ["its own environment", "its own sources", "its own /tmp"]
GRAPH = """
import subprocess

from langgraph.graph import START, MessagesState, StateGraph


def probe(state):
    done = subprocess.run(["sh", "probe.sh", *{arguments!r}], capture_output=True, text=True, timeout=60)
    return {{"messages": [("ai", done.stdout + done.stderr)]}}


graph = StateGraph(MessagesState)
graph.add_node("probe", probe)
graph.add_edge(START, "probe")
agent = graph.compile()
"""


@pytest.fixture
def platform():
    settings = {
        "TOWPATH_DEPLOYMENTS_GIT_TRANSPORTS": "file",
        # Deployments see the programs that the operator's PATH leads to, wherever they are.
        "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    world = harness.World("embedded", settings)
    yield world
    world.stop()
    assert processes(world) == [], "an agent server outlived its platform"


def check(said):
    found = {"reached": [], "closed": []}
    for line in said.splitlines():
        how, _, what = line.strip().removesuffix(";").partition(": ")
        if how in found:
            found[how].append(what)
    assert found["reached"] == OWN, said
    assert len(found["closed"]) == PROBE.count('\ntry "') - len(OWN), said


def test_code_of_a_deployment_reaches_its_own_alone(platform):
    neighbour = create(platform, Repository(platform.folder / "neighbour"), "neighbour")
    deployed(platform, neighbour["id"], neighbour["latest_revision_id"])
    if ISOLATED not in logs(platform, neighbour["id"], neighbour["latest_revision_id"]):
        pytest.skip("this machine keeps processes of deployments apart by nothing; SECURITY.md says what they reach")

    repository = Repository(platform.folder / "hostile")
    (artifact,) = [path.name for path in (platform.data / "deployments" / "artifacts").iterdir() if path.is_dir()]
    arguments = [str(platform.data), str(platform.processes[0].child.pid), neighbour["id"], artifact]
    (repository.path / "probe.sh").write_text(PROBE)
    (repository.path / "agent.py").write_text(GRAPH.format(arguments=arguments))
    repository.push_text(json.dumps({"graphs": {"agent": "./agent.py:agent"}}))
    # The interpreter of these tests has what the graph imports.
    secrets = [{"name": "TOWPATH_AGENT_PYTHON", "value": sys.executable}]
    command = " ".join(["sh", "probe.sh", *arguments])
    made = create(platform, repository, "hostile", secrets=secrets, install_command=command)
    deployed(platform, made["id"], made["latest_revision_id"])
    check(logs(platform, made["id"], made["latest_revision_id"]))

    async def ask():
        async with client(platform, "hostile") as sdk:
            return await says(sdk)

    check(asyncio.run(ask()))
    for deployment in (made["id"], neighbour["id"]):
        platform.request("DELETE", f"/v2/deployments/{deployment}")
        gone(platform, deployment)


def test_a_platform_that_may_not_run_as_one_account_does_not_start():
    folder = tempfile.mkdtemp(prefix="towpath-e2e.")
    settings = {
        "TOWPATH_DATA_DIR": str(pathlib.Path(folder) / "data"),
        "TOWPATH_DEPLOYMENTS_MIN_ISOLATION": "namespace",
        "TOWPATH_DEPLOYMENTS_FIRST_USER_ID": "0",
    }
    command = [harness.binary(), "serve", "--role", "all", "--listen", harness.free_address()]
    refused = harness.Process("refused", command, settings, pathlib.Path(folder))
    try:
        code = refused.child.wait(timeout=harness.PATIENCE_S)
        assert code == 2, refused.log_tail()
        assert "deployments.min_isolation" in refused.log_tail()
        assert "deployments.first_user_id" in refused.log_tail()
    finally:
        refused.kill()
        shutil.rmtree(folder, ignore_errors=True)
