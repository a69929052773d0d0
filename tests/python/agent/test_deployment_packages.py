"""Packages of a deployment in Python: installed at the end of its build, and removed with the last artifact that needs them."""

import json
import os
import subprocess
import sys

import pytest

import harness
from deploying import Repository, create, ended, gone, logs, processes

GRAPH = """
import six
from langgraph.graph import START, StateGraph

graph = StateGraph(dict).add_node("node", lambda state: {"said": six.__name__}).add_edge(START, "node").compile()
"""
# What a mirror or a cold cache may need.
INSTALLED_S = 600
REACHABLE = ["-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check", "six"]


@pytest.fixture
def platform(tmp_path):
    tried = subprocess.run([sys.executable, *REACHABLE, "--dest", tmp_path / "index"], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"no packages can be fetched here, so NO deployment installs any: {tried.stderr[-500:]}")
    packages = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_"))}
    world = harness.World("embedded", packages | {"TOWPATH_DEPLOYMENTS_GIT_TRANSPORTS": "file"})
    yield world
    world.stop()
    assert processes(world) == [], "an agent server outlived its platform"


def environments(platform):
    """Where deployments have ids of their own, each has a folder for them."""
    found = [*platform.data.glob("hosts/python-*"), *platform.data.glob("deployments/hosts/*/python-*")]
    return [folder for folder in found if folder.is_dir()]


def test_packages_are_part_of_the_build_and_go_with_the_deployment(platform, tmp_path):
    repository = Repository(tmp_path / "repository")
    (repository.path / "agent.py").write_text(GRAPH)
    repository.push_text(json.dumps({"graphs": {"agent": "./agent.py:graph"}, "dependencies": ["six"]}))
    made = create(platform, repository, "packages")
    deployment, revision = made["id"], made["latest_revision_id"]
    over = ended(platform, deployment, revision, INSTALLED_S)
    said = logs(platform, deployment, revision)
    assert over["status"] == "DEPLOYED", f"{over}\n{said}"
    build, deploy = said.split("checking the revision while the old one serves", 1)
    assert "packages: " in build and "creating a Python environment" in build, said
    assert "creating a Python environment" not in deploy, said
    assert len(environments(platform)) == 1

    # A package that there is not fails the build, and says why.
    repository.push_text(json.dumps({"graphs": {"agent": "./agent.py:graph"}, "dependencies": ["towpath-no-such-package"]}))
    broken = platform.call("PATCH", f"/v2/deployments/{deployment}", {"source_revision_config": {"repo_ref": "main"}})
    failed = ended(platform, deployment, broken["latest_revision_id"], INSTALLED_S)
    assert failed["status"] == "BUILD_FAILED" and "towpath-no-such-package" in failed["error"], failed

    platform.call("DELETE", f"/v2/deployments/{deployment}", status=204)
    gone(platform, deployment)
    harness.until("environments to be gone", lambda: True if environments(platform) == [] else None)
