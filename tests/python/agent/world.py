"""Starts real agent servers, in one process on SQLite or in five on PostgreSQL and Redis."""

import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import uuid
from datetime import UTC, datetime, timedelta

import harness
from harness import PATIENCE_S, Process, binary, free_address, until

HERE = pathlib.Path(__file__).resolve().parent
# The graphs of the suite: as data, and under names that begin with `python-` the same in Python.
GRAPHS = HERE.parents[1] / "agent" / "graphs.json"

# The environment of the suite has what graphs need.
PYTHON = {"TOWPATH_AGENT_PYTHON": os.environ.get("TOWPATH_AGENT_PYTHON", sys.executable)}


def native_graphs(folder):
    """A file of the graphs that are data, for a server without Python."""
    every = json.loads(GRAPHS.read_text())["graphs"]
    native = {name: graph for name, graph in every.items() if not name.startswith("python-")}
    path = pathlib.Path(folder) / "graphs.json"
    path.write_text(json.dumps({"graphs": native}))
    return path


# Replaces the clock of a database, see the first migration.
MOVED_CLOCK = """
    CREATE OR REPLACE FUNCTION towpath_now(known timestamptz DEFAULT NULL) RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE AS $$ SELECT coalesce(known, clock_timestamp() + interval '{} milliseconds') $$
"""


class Server:
    """An agent server with everything it is on. `url` is one of its API processes, `urls` are all."""

    def __init__(self, layout, env=None, graphs=GRAPHS, args=(), ready_s=PATIENCE_S):
        self.layout, self.graphs, self.args = layout, graphs, args
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="towpath-agent."))
        self.processes, self.apis, self.workers = [], [], []
        self.redis = self.redis_address = self.database = None
        self.tenant = str(uuid.uuid4())
        self.env = {
            "TOWPATH_TENANT_ID": self.tenant,
            "TOWPATH_OUTBOUND_ALLOW": "127.0.0.1",
            "TOWPATH_DATABASE_CONNECTIONS": "8",
        } | PYTHON | (env or {})
        try:
            if layout == "cluster":
                self.start_cluster()
            else:
                self.apis = [self.launch("agent").ready(ready_s)]
        except BaseException:
            self.drop()
            raise
        self.urls = [f"http://{process.address}" for process in self.apis]
        self.url = self.urls[0]

    def start_cluster(self):
        self.database = harness.create_database()
        self.redis, self.redis_address = harness.start_redis(self.folder)
        self.env |= {"DATABASE_URI": self.database, "REDIS_URI": f"redis://{self.redis_address}"}
        # The first one makes the tables.
        self.apis = [self.launch("api-1", "--role", "api").ready()]
        self.apis.append(self.launch("api-2", "--role", "api"))
        self.workers = [
            self.launch("worker-1", "--role", "worker,scheduler"),
            self.launch("worker-2", "--role", "worker"),
        ]
        for process in self.processes:
            process.ready()

    def launch(self, name, *args):
        address = free_address()
        command = [binary(), "agent", "--config", str(self.graphs), "--listen", address]
        command += ["--data-dir", str(self.folder / "data"), *args, *self.args]
        process = Process(name, command, self.env, self.folder, address)
        self.processes.append(process)
        return process

    def revive(self, process):
        """Starts a killed process again, with its name and its address."""
        process.start()
        return process.ready()

    def logs(self):
        return "\n".join(f"---- {process.name}\n{process.log_tail()}" for process in self.processes)

    def stop(self):
        """Every process has to drain and end with 0."""
        try:
            for process in reversed(self.processes):
                process.terminate()
        finally:
            self.drop()

    def drop(self):
        for process in self.processes:
            if process.child.poll() is None:
                process.kill()
        if self.redis is not None and self.redis.poll() is None:
            self.redis.kill()
            self.redis.wait()
        if self.database is not None:
            harness.psql(f'DROP DATABASE IF EXISTS "{self.database.rsplit("/", 1)[1]}" WITH (FORCE)')
        shutil.rmtree(self.folder, ignore_errors=True)


class Clocked(Server):
    """An agent server whose clock a test moves."""

    def __init__(self, layout, env=None, graphs=GRAPHS):
        self.ahead = timedelta()
        with tempfile.NamedTemporaryFile(prefix="towpath-clock.", delete=False) as file:
            self.offset = pathlib.Path(file.name)
        # No job may lose its lease to a clock that is moved by a minute.
        own = {"TOWPATH_CLOCK_OFFSET_FILE": str(self.offset), "TOWPATH_ENGINE_LEASE_SECONDS": "600"}
        super().__init__(layout, own | (env or {}), graphs)

    def now(self):
        """What its clock says."""
        return datetime.now(UTC) + self.ahead

    def move_to(self, moment):
        """Moves the clock, which must go forward, to `moment`."""
        self.ahead += moment - self.now()
        ahead_ms = self.ahead // timedelta(milliseconds=1)
        if self.database:
            harness.psql(MOVED_CLOCK.format(ahead_ms), self.database)
        self.offset.write_text(str(ahead_ms))
        said = re.compile(rf'"offset_ms":{ahead_ms}\b')
        for process in self.processes:
            what = f"{process.name} to move its clock by {ahead_ms} ms"
            until(what, lambda: said.search(process.log.read_text(errors="replace")), 10)

    def drop(self):
        super().drop()
        self.offset.unlink(missing_ok=True)
