"""Starts real agent servers, in one process on SQLite or in five on PostgreSQL and Redis."""

import os
import pathlib
import shutil
import sys
import tempfile
import uuid

import harness
from harness import Process, binary, free_address

HERE = pathlib.Path(__file__).resolve().parent
# The graphs of the suite, as data or as a project in another language.
GRAPHS = pathlib.Path(os.environ.get("TOWPATH_TEST_GRAPHS") or HERE.parents[1] / "agent" / "graphs.json").resolve()


class Server:
    """An agent server with everything it stands on. `url` is one of its API processes, `urls` are all."""

    def __init__(self, layout, env=None, graphs=GRAPHS, args=()):
        self.layout, self.graphs, self.args = layout, graphs, args
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="towpath-agent."))
        self.processes, self.apis, self.workers = [], [], []
        self.redis = self.redis_address = self.database = None
        self.tenant = str(uuid.uuid4())
        self.env = {
            "TOWPATH_TENANT_ID": self.tenant,
            "TOWPATH_OUTBOUND_ALLOW": "127.0.0.1",
            "TOWPATH_DATABASE_CONNECTIONS": "8",
            # The environment of the suite has what graphs need.
            "TOWPATH_AGENT_PYTHON": sys.executable,
        } | (env or {})
        try:
            if layout == "cluster":
                self.start_cluster()
            else:
                self.apis = [self.spawn("agent")]
        except BaseException:
            self.drop()
            raise
        self.urls = [f"http://{process.address}" for process in self.apis]
        self.url = self.urls[0]

    def start_cluster(self):
        self.database = harness.create_database()
        self.redis, self.redis_address = harness.start_redis(self.folder)
        self.env |= {"DATABASE_URI": self.database, "REDIS_URI": f"redis://{self.redis_address}"}
        self.apis = [self.spawn(f"api-{n}", "--role", "api") for n in (1, 2)]
        self.workers = [
            self.spawn("worker-1", "--role", "worker,scheduler"),
            self.spawn("worker-2", "--role", "worker"),
        ]

    def spawn(self, name, *args):
        address = free_address()
        command = [binary(), "agent", "--config", str(self.graphs), "--listen", address]
        command += ["--data-dir", str(self.folder / "data"), *args, *self.args]
        process = Process(name, command, self.env, self.folder, address)
        self.processes.append(process)
        return process.ready()

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
