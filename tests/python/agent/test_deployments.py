"""A deployment's whole life over HTTP: from a git repository to what the official client runs, and through every change.

A platform in one process, and one in five of which one worker runs deployments; agent servers are processes of their
own in both.
"""

import asyncio
import hashlib
import json
import os
import pathlib
import re
import signal
import sqlite3
import sys
import time
import uuid

import pytest

import harness
from deploying import (
    SECRET,
    Load,
    Repository,
    agents,
    change,
    client,
    create,
    deployed,
    ended,
    gone,
    logs,
    processes,
    ref,
    says,
)


@pytest.fixture(scope="module", params=["embedded", "cluster"])
def platform(request):
    if request.param == "cluster" and "TOWPATH_TEST_POSTGRES" not in os.environ:
        pytest.skip("TOWPATH_TEST_POSTGRES is not set")
    keeps = {"TOWPATH_DEPLOYMENTS_BACKEND": "process"}
    world = harness.World(request.param, {"TOWPATH_DEPLOYMENTS_GIT_TRANSPORTS": "file"}, keeps)
    yield world
    world.stop()
    # What a platform started ends with it.
    assert processes(world) == [], "an agent server outlived its platform"


@pytest.fixture
def repository(platform, request):
    return Repository(platform.folder / "repositories" / request.node.originalname)


def test_a_deployment_lives(platform, repository):
    asyncio.run(life(platform, repository))


def traced(platform, name, thread):
    """A run on this thread is in the project of the deployment's name, though no code of its own could have sent it."""
    project = platform.project(name)

    def ask():
        found = platform.call("POST", "/runs/query", {"session": [project], "is_root": True})["runs"]
        return [run for run in found if thread in json.dumps(run.get("extra"))] or None

    (run,) = harness.until("the run's trace", ask)
    assert (run["name"], run["status"]) == ("agent", "success")


async def life(platform, repository):
    name = "life"
    made = create(platform, repository, name)
    deployment, first = made["id"], made["latest_revision_id"]
    assert made["status"] in ("AWAITING_DATABASE", "READY")
    assert SECRET not in json.dumps(made)
    revision = deployed(platform, deployment, first)
    assert revision["source_revision_config"]["repo_commit_sha"] == repository.git("rev-parse", "HEAD")
    found = platform.call("GET", f"/v2/deployments/{deployment}")
    assert (found["status"], found["active_revision_id"]) == ("READY", first)
    assert found["source_config"]["custom_url"].endswith(f"/d/{deployment}")

    # The official client, by name and by id, also for streams and threads.
    for address in (name, deployment):
        async with client(platform, address) as sdk:
            assert await says(sdk) == "one"
            thread = await sdk.threads.create()
            events = [
                part.event
                async for part in sdk.runs.stream(
                    thread["thread_id"], "agent", input={"messages": []}, stream_mode=["values", "updates"]
                )
            ]
            assert events[0] == "metadata" and "values" in events and "updates" in events, events
            if platform.layout == "embedded":
                # Of several processes the one that runs deployments knows the platform's address only when told.
                await asyncio.to_thread(traced, platform, name, thread["thread_id"])
                state = await sdk.threads.get_state(thread["thread_id"])
                assert state["metadata"]["langgraph_api_url"] == found["source_config"]["custom_url"]
            assistants = await sdk.assistants.search(metadata={}, limit=5, offset=0)
            assert [assistant["graph_id"] for assistant in assistants] == ["agent"]

    # A new commit, while a caller uses the old one without pause.
    async with client(platform, name) as sdk:
        thread = await sdk.threads.create()
        await sdk.runs.wait(thread["thread_id"], "agent", input={"messages": [{"role": "user", "content": "kept"}]})
    load = Load(platform, name)
    async with load:
        await load.answered(20)
        repository.push("two")
        second = await asyncio.to_thread(change, platform, deployment, **ref())
        await asyncio.to_thread(deployed, platform, deployment, second)
        await load.until("two")
    assert load.failures == [], load.failures[:5]
    assert set(load.answers) == {"one", "two"}
    assert load.answers == sorted(load.answers), "an old revision answered behind a new one"
    print(f"{len(load.answers)} runs during the switch, the slowest took {max(load.seconds):.2f} s")
    # The database is the deployment's, not the revision's.
    async with client(platform, name) as sdk:
        state = await sdk.threads.get_state(thread["thread_id"])
        assert state["values"]["messages"][0]["content"] == "kept"

    # A commit that cannot be served: what served continues, and the revision says why.
    repository.push_text("{broken")
    third = change(platform, deployment, **ref())
    failed = ended(platform, deployment, third)
    assert failed["status"] == "BUILD_FAILED"
    assert "not JSON" in logs(platform, deployment, third)
    repository.push_text(json.dumps({"graphs": {"agent": {"native": "no-such-graph"}}}))
    fourth = change(platform, deployment, **ref())
    failed = ended(platform, deployment, fourth)
    assert failed["status"] == "DEPLOY_FAILED"
    assert "no-such-graph" in logs(platform, deployment, fourth)
    async with client(platform, name) as sdk:
        assert await says(sdk) == "two"
    assert platform.call("GET", f"/v2/deployments/{deployment}")["active_revision_id"] == second

    # Back to the first, which is not built again, nor looked up.
    (repository.path / ".git").rename(repository.path / ".gone")
    begun = time.monotonic()
    answer = platform.call("POST", f"/v2/deployments/{deployment}/revisions/{first}/redeploy", {})
    again = answer["latest_revision_id"]
    deployed(platform, deployment, again)
    print(f"redeployed in {time.monotonic() - begun:.2f} s")
    assert "fetching" not in logs(platform, deployment, again)
    async with client(platform, name) as sdk:
        assert await says(sdk) == "one"
        host = (await sdk.http.get("/info"))["host"]
        assert (host["project_id"], host["host_revision_id"], host["revision_id"]) == (deployment, again, again)
        assert host["tenant_id"]

    # Gone with its process, its database and its artifacts.
    assert deployment in agents(platform)
    status, _ = platform.request("DELETE", f"/v2/deployments/{deployment}")
    assert status == 204
    gone(platform, deployment)
    assert deployment not in agents(platform)
    assert not (platform.data / "deployments" / "agents" / deployment).exists()
    status, _ = platform.request("GET", f"/d/{name}/info")
    assert status == 404


# What the gateway holds a request for, and what the graph takes to load.
HOLD_S, LOAD_S = 3, 4
SLOW = """
import time

from langgraph.graph import START, MessagesState, StateGraph

time.sleep({seconds})
graph = StateGraph(MessagesState)
graph.add_node("say", lambda state: {{"messages": [("ai", "{version}")]}})
graph.add_edge(START, "say")
agent = graph.compile()
"""


@pytest.fixture(params=["embedded", "cluster"])
def impatient(request):
    """A platform whose gateway holds requests for less than it does elsewhere."""
    if request.param == "cluster":
        pytest.skip("the switch is the same")
    settings = {
        "TOWPATH_DEPLOYMENTS_GIT_TRANSPORTS": "file",
        "TOWPATH_DEPLOYMENTS_HOLD_SECONDS": str(HOLD_S),
        # Deployments see the programs that the operator's PATH leads to, wherever they are.
        "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    world = harness.World(request.param, settings)
    yield world
    world.stop()
    assert processes(world) == [], "an agent server outlived its platform"


def test_graphs_that_load_slowly_are_switched_without_a_pause(impatient, tmp_path):
    """Longer than the gateway holds a request: the new revision has loaded its graphs before the switch."""
    platform, repository = impatient, Repository(tmp_path / "repository")
    # The interpreter of these tests has what the graph imports.
    secrets = [{"name": "TOWPATH_AGENT_PYTHON", "value": sys.executable}]

    def push(version):
        (repository.path / "agent.py").write_text(SLOW.format(version=version, seconds=LOAD_S))
        return repository.push_text(json.dumps({"graphs": {"agent": "./agent.py:agent"}}))

    async def walk():
        push("one")
        made = create(platform, repository, "slow", secrets=secrets)
        deployment = made["id"]
        await asyncio.to_thread(deployed, platform, deployment, made["latest_revision_id"])
        load = Load(platform, "slow")
        async with load:
            await load.answered(4)
            push("two")
            second = await asyncio.to_thread(change, platform, deployment, **ref())
            await asyncio.to_thread(deployed, platform, deployment, second)
            await load.until("two")
        assert load.failures == [], load.failures[:5]
        assert max(load.seconds) < 5, max(load.seconds)
        print(f"{len(load.answers)} runs during the switch, the slowest took {max(load.seconds):.2f} s")
        print(logs(platform, deployment, second))
        platform.request("DELETE", f"/v2/deployments/{deployment}")
        gone(platform, deployment)

    asyncio.run(walk())


def test_who_may_come_in(platform, repository):
    made = create(platform, repository, "doors")
    deployed(platform, made["id"], made["latest_revision_id"])
    base = "/d/doors"
    # A name is a workspace's own: who has no key says the id, which is one deployment's everywhere.
    for path in ("/ok", "/info", "/docs", "/openapi.json"):
        status, _ = platform.request("GET", f"/d/{made['id']}{path}", headers={"X-API-Key": None, "X-Tenant-Id": None})
        assert status == 200, path
    for path in ("/", "/threads/search", "/metrics", "/assistants/search"):
        status, _ = platform.request("POST", base + path, {}, headers={"X-API-Key": None})
        assert status == 401, path
        status, _ = platform.request("POST", base + path, {}, headers={"X-API-Key": "x" * 40})
        assert status == 401, path
    # A key of another organisation sees nothing, as if it were not there.
    if platform.layout == "embedded":
        foreign = {"X-API-Key": foreign_key(platform), "X-Tenant-Id": None}
        status, answer = platform.request("GET", base + "/threads", headers=foreign)
        assert (status, answer["detail"]) == (404, "deployment not found")
    status, answer = platform.request("GET", "/d/no-such-deployment/threads")
    assert (status, answer["detail"]) == (404, "deployment not found")
    # Past the gateway no one comes in, also from this machine.
    def ports():
        found = re.findall(r"listen=127\.0\.0\.1:(\d+)", logs(platform, made["id"], made["latest_revision_id"]))
        # One that was only to show that it loads, and the one that serves.
        return found if len(found) >= 2 else None

    port = harness.until("the agent server to say where it listens", ports)[-1]
    assert harness.get_status(f"http://127.0.0.1:{port}/ok") == 200
    for path in ("/", "/metrics", "/threads"):
        assert harness.get_status(f"http://127.0.0.1:{port}{path}") == 401, path
    # The prefix is known behind the gateway.
    status, document = platform.request("GET", base + "/openapi.json")
    assert status == 200 and document["servers"] == [{"url": base}]
    platform.request("DELETE", f"/v2/deployments/{made['id']}")
    gone(platform, made["id"])


def is_dead(pid):
    """Whether a process is gone, or waits for nothing but that a caller asks how it ended."""
    try:
        status = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    fields = status.rpartition(")")[2].split()
    state, threads = fields[0], int(fields[17])
    # The first thread may end before the others. The last one of them closes the sockets.
    return state == "Z" and threads == 1


def test_an_agent_server_that_dies_is_started_again(platform, repository):
    made = create(platform, repository, "lives-again")
    deployment = made["id"]
    deployed(platform, deployment, made["latest_revision_id"])
    before = agents(platform)[deployment]
    os.kill(before, signal.SIGKILL)
    # Until then it takes connections, and what was sent to it may have been done: such a request is not repeated.
    harness.until("the agent server to be dead", lambda: is_dead(before) or None)

    async def ask():
        async with client(platform, "lives-again") as sdk:
            return await says(sdk)

    # Held, not refused.
    assert asyncio.run(ask()) == "one"
    assert agents(platform)[deployment] != before
    platform.request("DELETE", f"/v2/deployments/{deployment}")
    gone(platform, deployment)


def test_an_interrupted_build_leaves_nothing_running(platform, repository):
    made = create(platform, repository, "stopped", install_command="sleep 600")
    deployment, revision = made["id"], made["latest_revision_id"]
    harness.until(
        "the program to run", lambda: True if "$ sleep 600" in logs(platform, deployment, revision) else None
    )
    harness.until("its process", lambda: True if sleepers(platform) else None)
    platform.request("POST", f"/v1/projects/{deployment}/revisions/{revision}/interrupt", {})
    assert ended(platform, deployment, revision)["status"] == "INTERRUPTED"
    harness.until("its process to end", lambda: None if sleepers(platform) else True)
    platform.request("DELETE", f"/v2/deployments/{deployment}")
    gone(platform, deployment)


def foreign_key(world):
    """A key of an organisation that has nothing here, made as an operator makes one."""
    database = world.data / "towpath.db"
    secret, organization, key = uuid.uuid4().hex * 2, uuid.uuid4().bytes, uuid.uuid4().bytes
    with sqlite3.connect(database, timeout=30) as db:
        db.execute("INSERT INTO organization (id, name, created_at) VALUES (?, 'other', 0)", (organization,))
        db.execute(
            "INSERT INTO api_key (id, organization_id, name, prefix, hash, created_at, operator)"
            " VALUES (?, ?, 'other', 'x', ?, 0, 0)",
            (key, organization, hashlib.sha256(secret.encode()).digest()),
        )
    return secret


def sleepers(world):
    found = []
    for pid in processes(world):
        try:
            if b"sleep" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            pass
    return found
