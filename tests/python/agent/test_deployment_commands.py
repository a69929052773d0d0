"""`towpath deployments` and `towpath revisions`, against a server: what they print, and their exit codes."""

import json
import os
import subprocess

import pytest

import harness
from test_deployments import SECRET, Repository

# In both languages.
pytestmark = pytest.mark.usefixtures("graph")


@pytest.fixture(scope="module")
def platform():
    world = harness.World("embedded", {"TOWPATH_DEPLOYMENTS_GIT_TRANSPORTS": "file"})
    yield world
    world.stop()


@pytest.fixture
def towpath(platform):
    env = {
        "PATH": os.environ["PATH"],
        "TOWPATH_SERVER": f"http://{platform.api}",
        "TOWPATH_API_KEY": harness.KEY,
        "TOWPATH_TENANT_ID": platform.tenant,
    }

    def run(*args, code=0):
        done = subprocess.run(
            [harness.binary(), *args], cwd=platform.folder, env=env, capture_output=True, text=True, timeout=180
        )
        assert done.returncode == code, f"{args}\n{done.stdout}\n{done.stderr}"
        assert SECRET not in done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    return run


def read(run, *args):
    return json.loads(run(*args, "--output", "json"))


def test_a_deployment_from_the_command_line(platform, towpath, graph):
    assert "there are no deployments" in towpath("deployments")
    repository = Repository(platform.folder / "repositories" / graph("cli"))
    (platform.folder / "secrets").write_text(f"# ours\nMY_SECRET={SECRET}\nexport OTHER='a b'\n")
    create = ["deployments", "create", "--name", "cli", "--repo", repository.url, "--secrets", "secrets", "--wait"]
    made = read(towpath, *create)
    assert made["status"] == "READY" and made["active_revision_id"] == made["latest_revision_id"]
    assert [secret["name"] for secret in made["secrets"]] == ["MY_SECRET", "OTHER"]
    assert "this workspace already has a deployment named cli" in towpath(*create, code=1)
    first = made["latest_revision_id"]

    assert [one["id"] for one in read(towpath, "deployments", "ls")] == [made["id"]]
    assert made["source_config"]["custom_url"] in towpath("deployments", "show", "cli")
    assert repository.git("rev-parse", "HEAD") in towpath("revisions", "ls", "cli")
    # A build that is over is read to its end, and no longer.
    lines = [json.loads(line) for line in towpath("revisions", "logs", "cli", "--follow", "--output", "json").splitlines()]
    assert lines and all(line["message"] for line in lines)
    assert len({line["id"] for line in lines}) == len(lines)
    assert len(towpath("revisions", "logs", "cli", "--limit", "1").splitlines()) == 1
    assert towpath("deployments", "logs", "cli").strip()

    repository.push_text("{broken")
    said = towpath("deployments", "update", "cli", "--rebuild", "--wait", code=1)
    assert "the revision ended BUILD_FAILED" in said
    again = read(towpath, "revisions", "redeploy", "cli", first, "--wait")
    assert again["active_revision_id"] == again["latest_revision_id"] != first
    assert read(towpath, "revisions", "show", "cli", again["latest_revision_id"])["redeploy_of"] == first
    assert "cannot be interrupted" in towpath("revisions", "interrupt", "cli", first, code=1)
    assert read(towpath, "deployments", "update", "cli", "--build-on-push", "true")["source_config"]["build_on_push"]
    assert "nothing to change" in towpath("deployments", "update", "cli", code=2)

    assert "is deleted" in towpath("deployments", "delete", "cli", "--wait")
    assert "there is no deployment of that name" in towpath("deployments", "show", "cli", code=1)
