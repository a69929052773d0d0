"""One process of an installation runs deployments, and a deployment continues with the database it had."""

import asyncio
import json
import os
import types
import urllib.request

import pytest

import harness
from deploying import Repository, agents, change, client, create, deployed, ended, processes, ref, says

AWAY = "is not on this machine"


def said_of_deployments(process):
    """What a process says of deployments where it is asked how it does."""
    with urllib.request.urlopen(f"http://{process.address}/readyz?verbose", timeout=10) as answer:
        return json.load(answer)["dependencies"]["deployments"]


def placement(world, deployment, state):
    def ask():
        found = world.call("GET", f"/v2/deployments/{deployment}")["placement"]
        return found if found and found["state"] == state else None

    return harness.until(f"the agent server of {deployment} to be {state}", ask)


def answer_of(world, name):
    async def ask():
        async with client(world, name) as sdk:
            return await says(sdk)

    return asyncio.run(ask())


@pytest.mark.skipif("TOWPATH_TEST_GRAPHS" in os.environ, reason="the graphs are its own")
@pytest.mark.skipif("TOWPATH_TEST_POSTGRES" not in os.environ, reason="TOWPATH_TEST_POSTGRES is not set")
def test_a_second_machine_takes_over_what_it_may(tmp_path):
    settings = {
        "TOWPATH_DEPLOYMENTS_GIT_TRANSPORTS": "file",
        # No file of one data folder.
        "TOWPATH_ENCRYPTION_KEY": "5a" * 32,
        "TOWPATH_DEPLOYMENTS_LEASE_SECONDS": "10",
    }
    kept = {"TOWPATH_DEPLOYMENTS_BACKEND": "process"}
    repository = Repository(tmp_path / "repository")
    world = harness.World("cluster", settings, kept)
    try:
        first = next(process for process in world.processes if process.name == "worker-0")
        made = create(world, repository, "made-on-first")
        deployed(world, made["id"], made["latest_revision_id"])

        others = {}
        for name, role, backend in (("auto", "all", {}), ("second", "worker", kept)):
            data = world.folder / name
            env = {"TOWPATH_DATA_DIR": str(data)} | backend
            world.serve(name, ["serve", "--role", role], harness.free_address(), env)
            others[name] = types.SimpleNamespace(process=world.processes[-1], data=data)
        auto, second = others["auto"], others["second"]
        for other in others.values():
            other.process.ready()
            said = said_of_deployments(other.process)
            assert said["status"] == "standby" and "another process" in said["error"], said
            log = other.process.log.read_text()
            assert "runs deployments" in log and f"process {first.child.pid} on " in log, log
        assert said_of_deployments(first)["status"] == "ok"
        assert answer_of(world, "made-on-first") == "one"
        assert list(agents(world)) == [made["id"]]
        assert processes(auto) == processes(second) == []

        # What it kept is there, and stays away from a machine without it.
        first.terminate()

        def taken():
            return True if said_of_deployments(second.process)["status"] == "ok" else None

        harness.until("the process that waits to keep deployments", taken)
        assert said_of_deployments(auto.process)["status"] == "standby"
        assert AWAY in placement(world, made["id"], "down")["error"]
        status, answer = world.request("POST", "/d/made-on-first/threads", {})
        assert status == 503 and AWAY in answer["detail"], answer
        failed = ended(world, made["id"], change(world, made["id"], **ref()))
        assert failed["status"] == "DEPLOY_FAILED" and AWAY in failed["error"], failed

        # Others are made here.
        new = create(world, repository, "made-on-second")
        deployed(world, new["id"], new["latest_revision_id"])
        assert answer_of(world, "made-on-second") == "one"
        assert list(agents(second)) == [new["id"]]
        assert processes(auto) == []

        # Whoever kept them before waits now. Killed without a word, the other one has them until its time is over.
        first.start()
        first.ready()
        assert said_of_deployments(first)["status"] == "standby"
        second.process.kill()
        placement(world, made["id"], "serving")
        assert answer_of(world, "made-on-first") == "one"
        assert AWAY in placement(world, new["id"], "down")["error"]
        second.process.start()
        second.process.ready()
        world.stop()
    finally:
        world.drop()
    assert processes(world) == processes(second) == processes(auto) == []


@pytest.mark.skipif("TOWPATH_TEST_GRAPHS" in os.environ, reason="the graphs are its own")
def test_a_data_folder_without_its_databases_is_no_empty_start(tmp_path):
    repository = Repository(tmp_path / "repository")
    world = harness.World("embedded", {"TOWPATH_DEPLOYMENTS_GIT_TRANSPORTS": "file"})
    try:
        (dev,) = world.processes
        made = create(world, repository, "kept")
        deployed(world, made["id"], made["latest_revision_id"])
        thread = world.call("POST", "/d/kept/threads", {})["thread_id"]

        folder = world.data / "deployments" / "agents" / made["id"]
        away = tmp_path / "away"
        away.mkdir()
        dev.terminate()
        for file in folder.glob("agent.db*"):
            file.rename(away / file.name)
        dev.start()
        dev.ready()
        assert AWAY in placement(world, made["id"], "down")["error"]
        assert list(folder.glob("agent.db*")) == [], "an empty database was made"
        dev.terminate()
        for file in away.iterdir():
            file.rename(folder / file.name)
        dev.start()
        dev.ready()
        placement(world, made["id"], "serving")
        assert world.call("GET", f"/d/kept/threads/{thread}")["thread_id"] == thread

        # Lost for good: an operator says so.
        dev.terminate()
        for file in folder.glob("agent.db*"):
            file.unlink()
        dev.start()
        dev.ready()
        placement(world, made["id"], "down")
        world.call("POST", f"/internal/deployments/{made['id']}/accept-database")
        placement(world, made["id"], "serving")
        assert world.request("GET", f"/d/kept/threads/{thread}")[0] == 404
        assert answer_of(world, "kept") == "one"
        world.stop()
    finally:
        world.drop()
    assert processes(world) == []
