"""A deployment's whole life over HTTP: from a git repository to what the official client runs, and through every change.

A platform in one process, and one in five of which one worker keeps deployments; agent servers are processes of their
own in both.
"""

import asyncio
import hashlib
import json
import os
import pathlib
import signal
import sqlite3
import subprocess
import time
import uuid

import httpx
import pytest
from langgraph_sdk import get_client

import harness

FINAL = ("DEPLOYED", "CREATE_FAILED", "BUILD_FAILED", "DEPLOY_FAILED", "SKIPPED", "INTERRUPTED")
SECRET = "canary-of-a-secret-0123456789"


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


class Repository:
    """A repository with one graph that says which version it is."""

    def __init__(self, path):
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")
        self.push("one")

    def git(self, *args):
        who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgSign=false"]
        done = subprocess.run(["git", *who, *args], cwd=self.path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def push(self, version, **config):
        """A commit whose graph answers with `version`."""
        script = {"kind": "script", "channels": {"messages": "add-messages"}, "steps": [{"say": version}]}
        graph = {"native": script}
        text = json.dumps({"graphs": {"agent": graph}} | config)
        return self.push_text(text)

    def push_text(self, text):
        (self.path / "langgraph.json").write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "more")
        return self.git("rev-parse", "HEAD")

    @property
    def url(self):
        return f"file://{self.path}"


def processes(world):
    """Every process that carries the mark of this platform's deployments."""
    mark = f"_TOWPATH_ROOT={world.data}/deployments".encode()
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                pass
    return found


def agents(world):
    """The agent servers that run now, by the deployment whose folder they have."""
    found = {}
    for pid in processes(world):
        try:
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if "--data-dir" in words:
            found[pathlib.Path(words[words.index("--data-dir") + 1]).name] = pid
    return found


def create(world, repository, name, **source):
    body = {
        "name": name,
        "source": "github",
        "source_config": {"repo_url": repository.url, "deployment_type": "dev"} | source,
        "source_revision_config": {"repo_ref": "main", "langgraph_config_path": "langgraph.json"},
        "secrets": [{"name": "MY_SECRET", "value": SECRET}],
    }
    return world.call("POST", "/v2/deployments", body, status=201)


def ended(world, deployment, revision, limit_s=120):
    def ask():
        found = world.call("GET", f"/v2/deployments/{deployment}/revisions/{revision}")
        return found if found["status"] in FINAL else None

    return harness.until(f"revision {revision} to end", ask, limit_s)


def deployed(world, deployment, revision):
    found = ended(world, deployment, revision)
    assert found["status"] == "DEPLOYED", f"{found}\n{logs(world, deployment, revision)}"
    return found


def logs(world, deployment, revision):
    text = []
    for kind in ("build_logs", "deploy_logs"):
        answer = world.call(
            "POST", f"/v1/projects/{deployment}/revisions/{revision}/{kind}", {"limit": 1000, "order": "asc"}
        )
        text += [line["message"] for line in answer["logs"]]
    return "\n".join(text)


def change(world, deployment, **fields):
    return world.call("PATCH", f"/v2/deployments/{deployment}", fields)["latest_revision_id"]


def ref(**fields):
    return {"source_revision_config": {"repo_ref": "main"} | fields}


def client(world, name):
    return get_client(url=f"http://{world.api}/d/{name}", api_key=harness.KEY)


async def says(sdk):
    """What the deployed graph answers."""
    state = await sdk.runs.wait(None, "agent", input={"messages": [{"role": "user", "content": "hello"}]})
    return state["messages"][-1]["content"]


def gone(world, deployment):
    def ask():
        status, _ = world.request("GET", f"/v2/deployments/{deployment}")
        return True if status == 404 else None

    harness.until(f"deployment {deployment} to be gone", ask)


def test_a_deployment_lives(platform, repository):
    asyncio.run(life(platform, repository))


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
            found = await sdk.assistants.search(metadata={}, limit=5, offset=0)
            assert [assistant["graph_id"] for assistant in found] == ["agent"]

    # A new commit, while somebody uses the old one without pause.
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

    # A commit that cannot be served: what served goes on, and the revision says why.
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

    # Gone with its process, its database and its artifacts.
    assert deployment in agents(platform)
    status, _ = platform.request("DELETE", f"/v2/deployments/{deployment}")
    assert status == 204
    gone(platform, deployment)
    assert deployment not in agents(platform)
    assert not (platform.data / "deployments" / "agents" / deployment).exists()
    status, _ = platform.request("GET", f"/d/{name}/info")
    assert status == 404


class Load:
    """Runs without pause, on four connections at once."""

    def __init__(self, world, name):
        self.world, self.name = world, name
        self.answers, self.seconds, self.failures = [], [], []
        self.stop = asyncio.Event()

    async def __aenter__(self):
        self.tasks = [asyncio.create_task(self.run()) for _ in range(4)]
        return self

    async def __aexit__(self, *_):
        self.stop.set()
        await asyncio.gather(*self.tasks)

    async def run(self):
        # Nothing is tried again: what fails is seen.
        transport = httpx.AsyncHTTPTransport(retries=0)
        url = f"http://{self.world.api}/d/{self.name}"
        async with httpx.AsyncClient(transport=transport, timeout=30) as http:
            while not self.stop.is_set():
                begun = time.monotonic()
                body = {"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": "x"}]}}
                try:
                    answer = await http.post(f"{url}/runs/wait", json=body, headers={"X-Api-Key": harness.KEY})
                    answer.raise_for_status()
                    self.answers.append(answer.json()["messages"][-1]["content"])
                    self.seconds.append(time.monotonic() - begun)
                except Exception as error:
                    self.failures.append(repr(error))

    async def answered(self, number):
        while len(self.answers) < number:
            assert not self.failures, self.failures
            await asyncio.sleep(0.01)

    async def until(self, answer):
        while not self.answers or self.answers[-1] != answer:
            await asyncio.sleep(0.01)


def test_who_may_come_in(platform, repository):
    made = create(platform, repository, "doors")
    deployed(platform, made["id"], made["latest_revision_id"])
    base = "/d/doors"
    for path in ("/ok", "/info", "/docs", "/openapi.json"):
        status, _ = platform.request("GET", base + path, headers={"X-API-Key": None, "X-Tenant-Id": None})
        assert status == 200, path
    for path in ("/", "/threads/search", "/metrics", "/assistants/search"):
        status, _ = platform.request("POST", base + path, {}, headers={"X-API-Key": None})
        assert status == 401, path
        status, _ = platform.request("POST", base + path, {}, headers={"X-API-Key": "x" * 40})
        assert status == 401, path
    # A key of another organisation sees nothing, as if it were not there.
    if platform.layout == "embedded":
        status, answer = platform.request("GET", base + "/threads", headers={"X-API-Key": foreign_key(platform)})
        assert (status, answer["detail"]) == (404, "deployment not found")
    status, answer = platform.request("GET", "/d/no-such-deployment/threads")
    assert (status, answer["detail"]) == (404, "deployment not found")
    # The prefix is known behind the gateway.
    status, document = platform.request("GET", base + "/openapi.json")
    assert status == 200 and document["servers"] == [{"url": base}]
    platform.request("DELETE", f"/v2/deployments/{made['id']}")
    gone(platform, made["id"])


def test_an_agent_server_that_dies_is_started_again(platform, repository):
    made = create(platform, repository, "lives-again")
    deployment = made["id"]
    deployed(platform, deployment, made["latest_revision_id"])
    before = agents(platform)[deployment]
    os.kill(before, signal.SIGKILL)

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


@pytest.mark.parametrize(
    "point", ["deploy.fetched", "deploy.built", "deploy.checked", "deploy.switching", "deploy.replaced"]
)
def test_a_platform_that_is_killed_goes_on(point, tmp_path):
    """The platform dies at a point of a second revision; another life finishes it. Nothing is built twice, nothing is
    left running, and until then the first one serves."""
    world = harness.World("embedded", {"TOWPATH_DEPLOYMENTS_GIT_TRANSPORTS": "file"})
    try:
        repository = Repository(tmp_path / "repository")
        made = create(world, repository, "drill", install_command="touch made")
        deployment = made["id"]
        deployed(world, deployment, made["latest_revision_id"])
        process = world.processes[0]
        process.terminate()
        assert processes(world) == []

        process.env["TOWPATH_FAILPOINT"] = point
        process.start()
        process.ready()
        repository.push("two")
        second = change(world, deployment, **ref())
        process.child.wait(timeout=120)
        assert process.child.returncode == -signal.SIGABRT, process.log_tail()
        # The agent server ends by itself, without anybody who tells it.
        harness.until("its processes to end", lambda: True if processes(world) == [] else None, 30)

        del process.env["TOWPATH_FAILPOINT"]
        process.start()
        process.ready()
        deployed(world, deployment, second)
        text = logs(world, deployment, second)
        assert text.count("$ touch made") == 1, text
        assert text.count("fetching ") == 1, text

        async def ask():
            async with client(world, "drill") as sdk:
                return await says(sdk)

        assert asyncio.run(ask()) == "two"
        assert list(agents(world)) == [deployment]
        root = world.data / "deployments"
        assert [path.name for path in (root / "agents").iterdir()] == [deployment]
        assert list((root / "scratch").iterdir()) == []
        assert len(list((root / "artifacts").iterdir())) == 2
        world.stop()
    except BaseException:
        print(world.logs())
        world.drop()
        raise
