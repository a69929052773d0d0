"""The official command line, unchanged: `langgraph deploy` from a folder of sources to a server that answers."""

import json
import os
import re
import subprocess
import sys

import pytest
from langgraph_sdk import get_sync_client

import harness

pytest.importorskip("langgraph_cli", reason="skipped: langgraph-cli is not installed")


@pytest.fixture(scope="module")
def platform():
    world = harness.World("embedded")
    yield world
    world.stop()


@pytest.fixture
def project(platform, request):
    """A project whose graph says which version it is."""
    folder = platform.folder / "projects" / request.node.name
    folder.mkdir(parents=True)
    config = {"dependencies": ["."], "graphs": {"agent": "./agent.graph.json"}, "env": {"GREETING": "canary-5e1f", "PORT": "1"}}
    (folder / "langgraph.json").write_text(json.dumps(config))
    says(folder, "one")
    return folder


def says(folder, version):
    graph = {"native": {"kind": "script", "channels": {"messages": "add-messages"}, "steps": [{"say": version}]}}
    (folder / "agent.graph.json").write_text(json.dumps(graph["native"]))


def langgraph(platform, project, *args, endpoint=False, code=0):
    """Runs the command line, told where the platform is in one of its two ways."""
    where = {"LANGSMITH_ENDPOINT": f"http://{platform.api}"} if endpoint else {"LANGGRAPH_HOST_URL": f"http://{platform.api}"}
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(project),
        "LANGGRAPH_CLI_NO_ANALYTICS": "1",
        "LANGGRAPH_HOST_API_KEY": harness.KEY,
        "NO_COLOR": "1",
    } | where
    done = subprocess.run(
        [sys.executable, "-m", "langgraph_cli", "deploy", *args],
        cwd=project,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    assert harness.KEY not in done.stdout + done.stderr
    return done.stdout


def events(out):
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def answer(platform, deployment):
    client = get_sync_client(url=f"http://{platform.api}/d/{deployment}", api_key=harness.KEY)
    state = client.runs.wait(None, "agent", input={"messages": [{"role": "user", "content": "hello"}]})
    return state["messages"][-1]["content"]


def test_sources_are_sent_built_and_served(platform, project):
    deploy = ["--name", "from-cli", "--remote", "--no-input", "--json"]
    # The first time makes it.
    told = events(langgraph(platform, project, *deploy))
    result = told[-1]
    assert result["event"] == "result" and result["status"] == "succeeded", told
    deployment = result["deployment_id"]
    assert result["url"] == f"http://{platform.api}/d/{deployment}"
    assert answer(platform, deployment) == "one"
    shown = platform.call("GET", f"/v2/deployments/{deployment}")
    assert shown["source"] == "internal_source"
    assert shown["source_config"]["deployment_type"] == "dev_zero"
    assert [secret["name"] for secret in shown["secrets"]] == ["GREETING"], "reserved names are left out"
    assert shown["active_revision_id"] == shown["latest_revision_id"]
    # The second time finds it by its name and brings a new revision, here below /api-host.
    says(project, "two")
    told = events(langgraph(platform, project, *deploy, endpoint=True))
    assert told[-1]["status"] == "succeeded" and told[-1]["deployment_id"] == deployment, told
    assert answer(platform, deployment) == "two"

    out = langgraph(platform, project, "list")
    assert deployment in out and "from-cli" in out
    out = langgraph(platform, project, "revisions", "list", deployment)
    assert [line.split()[1] for line in out.splitlines() if re.match("[0-9a-f]{8}-", line)] == ["DEPLOYED", "REPLACED", "SKIPPED"]
    out = langgraph(platform, project, "logs", "--deployment-id", deployment, "--type", "build")
    assert out.strip(), "the build says something"
    assert "canary-5e1f" not in out

    langgraph(platform, project, "delete", deployment, "--force")
    harness.until("the deployment to be gone", lambda: platform.request("GET", f"/v2/deployments/{deployment}")[0] == 404)


def test_sources_that_cannot_be_served_are_a_failure(platform, project):
    (project / "agent.graph.json").write_text("{broken")
    told = events(langgraph(platform, project, "--name", "broken", "--remote", "--no-input", "--json", code=1))
    assert told[-1]["event"] == "result" and told[-1]["status"] == "failed", told


def test_an_image_has_no_registry_to_go_to(platform, project):
    """What the server cannot do is said in its own words."""
    made = platform.call(
        "POST",
        "/v2/deployments",
        {"name": "pushed", "source": "internal_docker", "source_config": {}, "source_revision_config": {}, "secrets": []},
        status=201,
    )
    status, refused = platform.request("POST", f"/v2/deployments/{made['id']}/push-token", {})
    assert status == 400 and "no image registry" in json.dumps(refused)
