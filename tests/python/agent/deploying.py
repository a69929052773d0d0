"""What tests of deployments share: repositories, the walk over HTTP, and a load on what serves."""

import asyncio
import json
import os
import pathlib
import subprocess
import time

import httpx
from langgraph_sdk import get_client

import harness

FINAL = ("DEPLOYED", "CREATE_FAILED", "BUILD_FAILED", "DEPLOY_FAILED", "SKIPPED", "INTERRUPTED")
SECRET = "canary-of-a-secret-0123456789"


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


def create(world, repository, name, secrets=(), **source):
    body = {
        "name": name,
        "source": "github",
        "source_config": {"repo_url": repository.url, "deployment_type": "dev"} | source,
        "source_revision_config": {"repo_ref": "main", "langgraph_config_path": "langgraph.json"},
        "secrets": [{"name": "MY_SECRET", "value": SECRET}, *secrets],
    }
    return world.call("POST", "/v2/deployments", body, status=201)


def ended(world, deployment, revision, limit_s=harness.PATIENCE_S):
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
        # Nothing is retried: what fails is seen.
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
        await self.see(f"{number} runs to be answered", lambda: len(self.answers) >= number)

    async def until(self, answer):
        await self.see(f"a run to be answered with {answer!r}", lambda: self.answers and self.answers[-1] == answer)

    async def see(self, what, is_so, limit_s=harness.PATIENCE_S):
        deadline = time.monotonic() + limit_s
        while not is_so():
            assert not self.failures, self.failures[:5]
            assert time.monotonic() < deadline, f"waited {limit_s} s in vain: {what}; the last answers: {self.answers[-5:]}"
            await asyncio.sleep(0.01)
