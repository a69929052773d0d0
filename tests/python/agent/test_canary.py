"""Secrets that are given to the product are used, and then looked for in everything that it says and keeps."""

import asyncio
import base64
import contextlib
import http.server
import json
import os
import pathlib
import secrets
import sqlite3
import subprocess
import sys
import threading
import urllib.parse

import httpx
import pytest

import harness
from deploying import SECRET, Repository, client, create, deployed, logs, processes, says

pytestmark = pytest.mark.skipif("TOWPATH_TEST_GRAPHS" in os.environ, reason="the graphs are its own")

# A graph that tells its log what it must not.
GRAPH = """
import logging
import os

from langgraph.graph import START, MessagesState, StateGraph

print("as it is loaded:", os.environ["MY_SECRET"], flush=True)


def tell(state):
    print("as it runs:", os.environ["MY_SECRET"], flush=True)
    logging.getLogger("graph").warning("as it warns: %s", os.environ["MY_SECRET"])
    return {"messages": [("ai", "told")]}


graph = StateGraph(MessagesState)
graph.add_node("tell", tell)
graph.add_edge(START, "tell")
agent = graph.compile()
"""


def canary(name):
    return f"canary-{name}-{secrets.token_hex(16)}"


class Outside:
    """A bucket that takes everything, and a host of repositories that repeats what it was sent where it refuses."""

    def __init__(self):
        outside = self
        self.objects, self.seen = {}, []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self, status, body=b"", **headers):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def taken(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outside.seen.append((self.command, self.path, dict(self.headers.items())))
                return body

            def do_PUT(self):
                outside.objects[self.path] = self.taken()
                self.answer(200, ETag='"one"')

            def do_POST(self):
                self.taken()
                begins = urllib.parse.urlparse(self.path).query.startswith("uploads")
                name = "InitiateMultipartUploadResult" if begins else "CompleteMultipartUploadResult"
                inside = "<Bucket>b</Bucket><Key>k</Key><UploadId>u</UploadId><ETag>one</ETag>"
                self.answer(200, f"<{name}>{inside}</{name}>".encode(), Content_Type="application/xml")

            def do_DELETE(self):
                self.taken()
                self.answer(204)

            def do_GET(self):
                self.taken()
                if "/user/repos" in self.path:
                    said = {"message": f"this opens nothing: {self.headers['Authorization']}"}
                    return self.answer(401, json.dumps(said).encode(), Content_Type="application/json")
                body = outside.objects.get(self.path)
                return self.answer(404) if body is None else self.answer(200, body, ETag='"one"')

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def used(self, text):
        return any(text in json.dumps(request) for request in self.seen)

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def outside():
    running = Outside()
    yield running
    running.stop()


@pytest.fixture(params=["embedded", "cluster"])
def place(request):
    """A platform with the secrets of its own environment."""
    if request.param == "cluster" and "TOWPATH_TEST_POSTGRES" not in os.environ:
        pytest.skip("TOWPATH_TEST_POSTGRES is not set")
    own = {
        "TOWPATH_ENCRYPTION_KEY": secrets.token_hex(32),
        "TOWPATH_METRICS_KEY": canary("metrics"),
        "TOWPATH_AGENT_WEBHOOK_SECRET": canary("webhook"),
        "AWS_SECRET_ACCESS_KEY": canary("aws"),
        "PASSWORD_OF_ANOTHER_PROGRAM": canary("environment"),
    }
    settings = {
        "TOWPATH_DEPLOYMENTS_GIT_TRANSPORTS": "file",
        "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    world = harness.World(request.param, own | settings, {"TOWPATH_DEPLOYMENTS_BACKEND": "process"})
    try:
        yield world, own
        world.stop()
    finally:
        world.drop()
    assert processes(world) == [], "an agent server outlived its platform"


class Evidence:
    """What was said and kept, and where."""

    def __init__(self, world):
        self.world = world
        self.found = []

    def add(self, where, what):
        self.found.append((where, what if isinstance(what, bytes) else str(what).encode(errors="replace")))

    def ask(self, method, path, body=None, headers=None):
        status, answer = self.world.request(method, path, body, headers)
        self.add(f"the answer to {method} {path}", answer if isinstance(answer, str) else json.dumps(answer))
        return status, answer

    def leaks(self, canaries):
        """Names of secrets that stand somewhere, and where."""
        return sorted(
            {
                f"{name}: {where}"
                for name, text in canaries.items()
                for form in forms(text)
                for where, what in self.found
                if form in what
            }
        )


def forms(text):
    """A text as it may be written down."""
    plain = text.encode()
    found = [plain, plain.hex().encode()]
    # Where it begins in a text that is encoded as a whole decides how it looks; its ends depend on its neighbours.
    for skipped in range(3):
        encoded = base64.b64encode(plain[skipped : len(plain) - (len(plain) - skipped) % 3])
        found.append(encoded)
    if len(plain) == 64 and all(letter in b"0123456789abcdef" for letter in plain):
        found.append(bytes.fromhex(text))
    return found


def test_every_form_of_a_secret_is_found():
    text = canary("known")
    evidence = Evidence(None)
    for lead in range(3):
        evidence.add(f"base64 behind {lead}", base64.b64encode(b"x" * lead + text.encode() + b"yz"))
    evidence.add("hex", f"\\x{text.encode().hex()}")
    evidence.add("text", f"say {text}.")
    evidence.add("nothing", "canary")
    leaks = evidence.leaks({"it": text})
    assert leaks == ["it: base64 behind 0", "it: base64 behind 1", "it: base64 behind 2", "it: hex", "it: text"]


async def graph_runs(world, evidence):
    """Runs of the deployment, and what it keeps of them."""
    async with client(world, "canary") as sdk:
        assert await says(sdk) == "told"
        thread = (await sdk.threads.create())["thread_id"]
        await sdk.runs.wait(thread, "agent", input={"messages": []})
    for path in ("state", "history", "runs", ""):
        evidence.ask("GET", f"/d/canary/threads/{thread}/{path}".rstrip("/"))
    for path in ("/info", "/metrics", "/openapi.json"):
        evidence.ask("GET", f"/d/canary{path}")


def kept(world):
    """Every file that the platform keeps."""
    for path in sorted(world.data.rglob("*")):
        if path.is_file() and not path.is_symlink() and not path.is_socket():
            yield path


def rows(world):
    """The rows of the cluster's database, a table at a time."""
    tables = "SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables WHERE schemaname NOT IN "
    for table in harness.psql(tables + "('pg_catalog', 'information_schema')", world.database).split():
        yield table, harness.psql(f"SELECT * FROM {table}", world.database)


def pages(world, evidence, paths):
    """The dashboard, as a caller that signs in sees it."""
    with httpx.Client(base_url=f"http://{world.api}", headers={"Origin": f"http://{world.api}"}, timeout=60) as browser:
        entered = browser.post("/ui/sign-in", data={"key": harness.KEY, "next": "/ui/queues"})
        assert entered.status_code in (302, 303), entered.text
        for path in paths:
            page = browser.get(path)
            assert page.status_code == 200, f"{path}: {page.status_code}"
            evidence.add(f"the page {path}", page.text)


def test_no_secret_is_seen_again(place, outside):
    world, own = place
    canaries = own | {
        "the first API key": harness.KEY,
        "a deployment's secret": SECRET,
        "an integration's token": canary("git"),
        "an integration's webhook secret": canary("push"),
        "a registry's password": canary("registry"),
        "a destination's secret key": canary("bucket"),
        "a destination's session token": canary("session"),
        "a key that opens nothing": canary("wrong"),
        "a body that is no JSON": canary("broken"),
    }
    evidence = Evidence(world)

    # Every secret has its place, and is used where it can be.
    integration = {
        "name": "canary",
        "token": canaries["an integration's token"],
        "webhook_secret": canaries["an integration's webhook secret"],
        "api_url": outside.url,
    }
    status, made = evidence.ask("POST", "/v1/integrations/github", integration)
    assert status == 201, made
    status, refused = evidence.ask("GET", f"/v1/integrations/github/{made['id']}/repos")
    assert status in (409, 502), refused
    assert outside.used(canaries["an integration's token"]), "the token is for this host"
    login = {"registry": "registry.example", "username": "me", "password": canaries["a registry's password"]}
    status, answer = evidence.ask("PUT", "/v2/image-pull-secrets/canary", login)
    assert status in (200, 201), answer
    destination = {
        "destination_type": "s3",
        "display_name": "canary",
        "config": {"bucket_name": "canary", "prefix": "p", "region": "us-east-1", "endpoint_url": outside.url},
        "credentials": {
            "access_key_id": "known",
            "secret_access_key": canaries["a destination's secret key"],
            "session_token": canaries["a destination's session token"],
        },
    }
    status, bucket = evidence.ask("POST", "/api/v1/bulk-exports/destinations", destination)
    assert status == 200, bucket
    assert outside.used(canaries["a destination's session token"]), "the bucket was tried"
    closed = destination | {"config": destination["config"] | {"endpoint_url": f"http://{harness.free_address()}"}}
    assert evidence.ask("POST", "/api/v1/bulk-exports/destinations", closed)[0] == 400
    # The one answer that may show a secret.
    made_key = world.call("POST", "/internal/keys", {"name": "canary", "operator": True}, status=201)
    canaries["a key that was made"] = made_key["key"]
    assert evidence.ask("GET", "/api/v1/sessions", headers={"X-API-Key": made_key["key"]})[0] == 200
    wrong = {"X-API-Key": canaries["a key that opens nothing"]}
    assert evidence.ask("GET", "/api/v1/sessions", headers=wrong)[0] in (401, 403)
    broken = f'{{"secrets": "{canaries["a body that is no JSON"]}", '.encode()
    assert evidence.ask("POST", "/v2/deployments", broken, {"Content-Type": "application/json"})[0] == 422
    misplaced = {"secrets": canaries["a body that is no JSON"], "name": "x"}
    assert evidence.ask("POST", "/v2/deployments", misplaced)[0] == 422

    repository = Repository(world.folder / "repository")
    (repository.path / "agent.py").write_text(GRAPH)
    repository.push_text(json.dumps({"graphs": {"agent": "./agent.py:agent"}}))
    # The interpreter of these tests has what the graph imports.
    deployment = create(
        world, repository, "canary", secrets=[{"name": "TOWPATH_AGENT_PYTHON", "value": sys.executable}]
    )
    revision = deployment["latest_revision_id"]
    deployed(world, deployment["id"], revision)
    asyncio.run(graph_runs(world, evidence))
    told = logs(world, deployment["id"], revision)
    evidence.add("logs of the deployment", told)
    assert "as it is loaded:" in told, "the graph told its log"

    # A run that is traced, whatever the deployment did, and its export.
    trace = {"id": "11111111-1111-4111-8111-111111111111", "name": "t", "run_type": "chain", "inputs": {}}
    trace |= {"start_time": "2026-03-01T00:00:00Z", "session_name": "canary-traces"}
    assert evidence.ask("POST", "/runs", trace)[0] in (200, 202)
    project = harness.until(
        "the project", lambda: next(iter(world.call("GET", "/sessions?name=canary-traces")), {}).get("id")
    )
    export = world.export(bucket["id"], project, "2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z")
    world.ended(export)
    for number, text in enumerate(outside.objects.values()):
        evidence.add(f"object {number} of the bucket", text)

    # Everything that is said.
    with_ids = {
        "deployment_id": deployment["id"],
        "revision_id": revision,
        "export_id": export,
        "destination_id": bucket["id"],
        "session_id": project,
        "run_id": trace["id"],
    }
    described = world.call("GET", "/openapi.json")["paths"]
    for path, methods in sorted(described.items()):
        if "get" not in methods:
            continue
        for name, value in with_ids.items():
            path = path.replace(f"{{{name}}}", value)
        if "{" not in path:
            evidence.ask("GET", path)
    jobs = world.call("GET", "/internal/jobs")
    for job in jobs.get("items", []):
        evidence.ask("GET", f"/internal/jobs/{job['id']}")
    evidence.ask("POST", "/runs/query", {"session": [project]})
    shown = ["traces", "quarantine", "queues", "jobs", "workers", "deployments", "exports", "schedules", "dead"]
    shown = [f"/ui/{page}" for page in [*shown, "exports/destinations"]]
    pages(world, evidence, [*shown, f"/ui/deployments/{deployment['id']}", f"/ui/revisions/{revision}"])
    opened = {"Authorization": f"Bearer {own['TOWPATH_METRICS_KEY']}"}
    for process in world.processes:
        for path in ("metrics", "readyz?verbose"):
            answer = httpx.get(f"http://{process.address}/{path}", headers=opened, timeout=60)
            assert answer.status_code == 200, f"{process.name} {path}: {answer.status_code}"
            evidence.add(f"{path} of {process.name}", answer.text)
    running = [process.child.pid for process in world.processes] + processes(world)
    for pid in running:
        evidence.add("the arguments of a process", pathlib.Path(f"/proc/{pid}/cmdline").read_bytes())
    for command in (["config", "show"], ["doctor"]):
        done = subprocess.run(
            [harness.binary(), *command],
            env={"PATH": os.environ["PATH"]} | world.env,
            cwd=world.folder,
            capture_output=True,
            timeout=harness.PATIENCE_S,
        )
        evidence.add(f"towpath {' '.join(command)}", done.stdout + done.stderr)

    # Everything that is kept.
    backup = world.folder / "backup"
    world.command("backup", "--without-keys", backup)
    for path in sorted(backup.rglob("*")):
        if path.is_file():
            evidence.add(f"the backup's {path.relative_to(backup)}", path.read_bytes())
    for path in kept(world):
        # Some are temporary.
        with contextlib.suppress(FileNotFoundError):
            evidence.add(f"the file {path.relative_to(world.data)}", path.read_bytes())
    if world.database:
        for table, text in rows(world):
            evidence.add(f"the table {table}", text)
    else:
        with sqlite3.connect(f"file:{world.data / 'towpath.db'}?mode=ro", uri=True, timeout=30) as database:
            names = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
            for (name,) in names:
                evidence.add(f"the table {name}", database.execute(f'SELECT * FROM "{name}"').fetchall())
        database.close()
    for log in sorted(world.folder.glob("*.log")):
        evidence.add(f"the log {log.name}", log.read_bytes())

    leaks = evidence.leaks(canaries)
    assert leaks == [], "\n".join(leaks)
