"""Starts the real binary in one of its two shapes and speaks to it as any client would."""

import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid

KEY = "e2e-key-0123456789abcdef0123456789abcdef"
ROOT = pathlib.Path(__file__).resolve().parents[2]
FINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMEDOUT")


def binary() -> str:
    """The `towpath` under test: `TOWPATH_BIN`, else the one in cargo's target folder."""
    target = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
    path = os.environ.get("TOWPATH_BIN", str(pathlib.Path(target) / "debug" / "towpath"))
    assert os.access(path, os.X_OK), f"{path} is not there: run `cargo build -p towpath` first"
    return path


# How long anything is waited for that has to come. No expectation of speed: what is fast costs nothing.
PATIENCE_S = 180.0


def until(what, ask, limit_s=PATIENCE_S):
    """Asks until there is an answer that is not None; fails when `limit_s` is over. `what` is a text, or gives one then."""
    pause = threading.Event()
    deadline = time.monotonic() + limit_s
    while True:
        answer = ask()
        if answer is not None:
            return answer
        assert time.monotonic() < deadline, f"waited {limit_s} s in vain: {what() if callable(what) else what}"
        pause.wait(0.02)


# Below those that Linux gives to outgoing connections (ip_local_port_range): one of these took a port between the look and
# its use.
PORTS = range(10_000, 32_768)
given = set()


def free_address() -> str:
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if claim(port):
                return f"127.0.0.1:{port}"


def claim(port) -> bool:
    """Whether the port was not given before, in any process of this run of `scripts/test`: there each is a file."""
    if port in given:
        return False
    given.add(port)
    with contextlib.suppress(KeyError, FileNotFoundError):
        try:
            (pathlib.Path(os.environ["TOWPATH_TEST_RUN"]) / "ports" / str(port)).touch(exist_ok=False)
        except FileExistsError:
            return False
    return True


class Process:
    """A child with its log. It inherits nothing but PATH, HOME and the mark of the test run."""

    def __init__(self, name, command, env, folder, address=None):
        self.name, self.command, self.env, self.folder, self.address = name, command, env, folder, address
        self.log = folder / f"{name}.log"
        self.start()

    def start(self):
        inherited = {k: os.environ[k] for k in ("PATH", "HOME", "TMPDIR", "TOWPATH_TEST_RUN") if k in os.environ}
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=inherited | {"RUST_BACKTRACE": "1"} | self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-60:])

    def ready(self, limit_s=PATIENCE_S):
        def ask():
            code = self.child.poll()
            assert code is None, f"{self.name} ended with {code} before it was ready:\n{self.log_tail()}"
            with contextlib.suppress(OSError):
                return urllib.request.urlopen(f"http://{self.address}/readyz", timeout=2).status
            return None

        until(lambda: f"{self.name} to become ready, see\n{self.log_tail()}", ask, limit_s)
        return self

    def succeed(self):
        code = self.child.wait(timeout=PATIENCE_S)
        assert code == 0, f"{self.name} ended with {code}:\n{self.log_tail()}"

    def kill(self):
        self.child.kill()
        self.child.wait()

    def terminate(self):
        """SIGTERM; the process has to drain and end with 0."""
        self.child.send_signal(signal.SIGTERM)
        code = self.child.wait(timeout=90)
        assert code == 0, f"{self.name} did not drain, ended with {code}:\n{self.log_tail()}"


class World:
    """The product running, with everything it is on."""

    def __init__(self, layout: str, env=None, first_worker=None, backup=None):
        """`env` is for every process, `first_worker` for one worker of a cluster beside that. `backup` is what to
        restore first: a folder, and the workspace of the world it was made of."""
        self.layout, self.first_worker = layout, first_worker or {}
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="towpath-e2e."))
        self.backup, self.tenant = backup or (None, str(uuid.uuid4()))
        self.processes = []
        self.redis = None
        self.database = None
        self.data = self.folder / "data"
        self.exports = self.data / "exports"
        self.exports.mkdir(parents=True)
        self.env = {
            "TOWPATH_API_KEY": KEY,
            "TOWPATH_TENANT_ID": self.tenant,
            "TOWPATH_DATA_DIR": str(self.data),
            # What an S3 client finds in its environment; the stand-in accepts any.
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test-secret",
            "AWS_REGION": "us-east-1",
        } | (env or {})
        try:
            self.start_embedded() if layout == "embedded" else self.start_cluster(workers=2)
        except BaseException:
            self.drop()
            raise

    def command(self, name, *arguments):
        """A command of the binary, with the settings of this world; it has to end well."""
        Process(name, [binary(), name, *map(str, arguments)], self.env, self.folder).succeed()

    def start_embedded(self):
        if self.backup:
            self.command("restore", self.backup)
        self.api = free_address()
        self.serve("dev", ["dev", "--data-dir", str(self.data), "--agent-listen", free_address()], self.api)
        self.processes[0].ready()

    def start_cluster(self, workers):
        self.database = create_database()
        self.redis, redis = start_redis(self.folder)
        self.env |= {
            "DATABASE_URI": self.database,
            "REDIS_URI": f"redis://{redis}",
            "TOWPATH_OBJECTS": f"file://{self.data}/objects",
            "TOWPATH_OUTBOUND_ALLOW": "127.0.0.1",
        }
        if self.backup:
            self.command("restore", self.backup)
        else:
            self.command("migrate")
        self.api = free_address()
        self.serve("api", ["serve", "--role", "api"], self.api)
        for n in range(workers):
            self.serve(f"worker-{n}", ["serve", "--role", "worker"], free_address(), {} if n else self.first_worker)
        self.serve("scheduler", ["serve", "--role", "scheduler"], free_address())
        for process in self.processes:
            process.ready()

    def serve(self, name, args, address, env=None):
        command = [binary(), *args, "--listen", address]
        self.processes.append(Process(name, command, self.env | (env or {}), self.folder, address))

    def request(self, method, path, body=None, headers=None):
        """(status, parsed body). `body` is sent as JSON unless it is bytes."""
        send = {"X-API-Key": KEY, "X-Tenant-Id": self.tenant} | (headers or {})
        data = body
        if body is not None and not isinstance(body, bytes):
            data = json.dumps(body).encode()
            send.setdefault("Content-Type", "application/json")
        send = {name: value for name, value in send.items() if value is not None}
        request = urllib.request.Request(f"http://{self.api}{path}", data=data, headers=send, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text.decode(errors="replace")

    def call(self, method, path, body=None, status=200):
        got, answer = self.request(method, path, body)
        assert got == status, f"{method} {path}: {got} {answer}"
        return answer

    def project(self, name) -> str:
        found = self.call("GET", f"/sessions?name={name}")
        assert len(found) == 1, f"project {name}: {found}"
        return found[0]["id"]

    def file_destination(self, prefix) -> str:
        body = {"destination_type": "file", "display_name": "test", "config": {"prefix": prefix}}
        return self.call("POST", "/api/v1/bulk-exports/destinations", body)["id"]

    def export(self, destination, project, start, end, **more) -> str:
        body = {"bulk_export_destination_id": destination, "session_id": project, "start_time": start, "end_time": end}
        return self.call("POST", "/api/v1/bulk-exports", body | more)["id"]

    def ended(self, export, limit_s=PATIENCE_S) -> dict:
        """The record of an export that is over."""

        def ask():
            record = self.call("GET", f"/api/v1/bulk-exports/{export}")
            return record if record["status"] in FINAL else None

        return until(f"export {export} to end", ask, limit_s)

    def completed(self, export) -> dict:
        record = self.ended(export)
        runs = self.call("GET", f"/api/v1/bulk-exports/{export}/runs")
        assert record["status"] == "COMPLETED", f"{record}\n{runs}"
        assert {run["status"] for run in runs} <= {"COMPLETED"}, runs
        return record

    def orphans(self) -> list:
        """What jobs that are over left behind, in each database: see tests/orphans.sql."""
        questions = [part.partition("\n")[::2] for part in (ROOT / "tests/orphans.sql").read_text().split("\n-- ")[1:]]
        questions = [(what, statement) for what, statement in questions if statement.startswith("SELECT")]
        assert len(questions) == 9, questions
        left = []
        for what, statement in questions:
            if self.database:
                command = ["psql", self.database, "--no-psqlrc", "-Atc", statement]
                done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
                assert done.returncode == 0, done.stderr
                left += [what] * (int(done.stdout) > 0)
                continue
            for file in [self.data / "towpath.db", self.data / "agent.db", *self.data.glob("deployments/agents/*/*.db")]:
                with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=30)) as database:
                    (count,) = database.execute(statement).fetchone()
                left += [f"{what}: {count} in {file.name}"] * (count > 0)
        return left

    def logs(self) -> str:
        return "\n".join(f"---- {process.name}\n{process.log_tail()}" for process in self.processes)

    def remove_sandboxes(self):
        """Sandboxes outlive the platform. Their names are free at once; their jobs say when the machine has let go of them."""
        # A test may have paused the pool.
        self.call("POST", "/internal/queues/sandboxes/resume")
        for pool in self.call("GET", "/v2/sandboxes/pools?limit=1000")["pools"]:
            address = f"/v2/sandboxes/pools/{pool['name']}"
            # It is in use while it is filled.
            until(f"{address} to go", lambda: True if self.request("DELETE", address)[0] != 409 else None)
        for box in self.call("GET", "/v2/sandboxes/boxes?limit=1000")["sandboxes"]:
            self.request("DELETE", f"/v2/sandboxes/boxes/{box['id']}")

        def is_at_rest():
            jobs = self.call("GET", "/internal/jobs?pool=sandboxes&limit=1000")["items"]
            states = {job["state"] for job in jobs}
            return None if states & {"scheduled", "blocked", "ready", "running", "waiting"} else True

        until("every job of a sandbox to end", is_at_rest)

    def stop(self):
        """Every process has to drain and end with 0, and no job may have left rows behind."""
        try:
            assert self.orphans() == []
            for process in self.processes:
                process.terminate()
        finally:
            self.drop()

    def drop(self):
        for process in self.processes:
            if process.child.poll() is None:
                process.kill()
        if self.redis is not None:
            self.redis.kill()
            self.redis.wait()
        if self.database is not None:
            psql(f'DROP DATABASE IF EXISTS "{self.database.rsplit("/", 1)[1]}" WITH (FORCE)')
        shutil.rmtree(self.folder, ignore_errors=True)


def temporary():
    """A folder that is gone behind the `with`."""
    return tempfile.TemporaryDirectory(prefix="towpath-e2e.")


def get_status(url) -> int:
    """What a plain GET is answered with."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def psql(statement, database=None) -> str:
    """What a statement answers, in the test server or in a database of it."""
    database = database or os.environ["TOWPATH_TEST_POSTGRES"]
    command = ["psql", database, "--no-psqlrc", "--quiet", "-At", "-v", "ON_ERROR_STOP=1", "-c", statement]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def create_database() -> str:
    """A database of this world's own in the test server; its address."""
    name = f"e2e_{uuid.uuid4().hex}"
    psql(f'CREATE DATABASE "{name}"')
    return os.environ["TOWPATH_TEST_POSTGRES"].rsplit("/", 1)[0] + f"/{name}"


def start_redis(folder, address=None):
    """A Redis of this world's own, where it was before or elsewhere: (process, address)."""
    address = address or free_address()
    host, port = address.split(":")
    command = ["redis-server", "--bind", host, "--port", port, "--save", "", "--appendonly", "no"]
    with (folder / "redis.log").open("wb") as log:
        child = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def ask():
        assert child.poll() is None, "redis-server ended at once"
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=2) as stream:
            stream.sendall(b"PING\r\n")
            return True if stream.recv(16).startswith(b"+PONG") else None
        return None

    until("redis to answer", ask)
    return child, address


class FaultProxy:
    """The fault proxy of the Rust harness as a process of its own."""

    def __init__(self, upstream: str):
        command = [str(pathlib.Path(binary()).with_name("fault-proxy")), upstream]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.address = self.child.stdout.readline().strip()
        assert self.address, "the fault proxy did not start"
        self.url = f"http://{self.address}"

    def set(self, mode) -> int:
        """Changes the mode (`?` does not) and gives how often harm was done so far."""
        self.child.stdin.write(f"{mode}\n")
        word, count = self.child.stdout.readline().split()
        assert word == "harmed"
        return int(count)

    def harmed(self) -> int:
        return self.set("?")

    def stop(self):
        self.child.kill()
        self.child.wait()
