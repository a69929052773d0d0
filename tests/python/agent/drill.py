"""What the kill drills stand on: a graph whose steps call here, readers that come back, and a look into the tables."""

import contextlib
import http.server
import json
import re
import sqlite3
import subprocess
import threading
import time
import uuid

import httpx

import harness
from harness import PATIENCE_S, FaultProxy, until
from world import Server

LEASE_S = 2
# How long a gate stays closed at most, and its caller waits. Longer than all that a test waits for before it opens one.
GATE_S = 900
SECRET = "drill-secret-0123456789abcdef0123456789"
# Steps of the graphs below by the superstep they belong to.
SUPERSTEP = {"one": 1, "two": 2, "side": 2, "three": 3}


class Receiver:
    """The outside world: steps and webhooks call it. It notes each call, and holds those it was told to."""

    def __init__(self):
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = receiver.take(self.path.strip("/"), body, self.headers)
                with contextlib.suppress(OSError):
                    self.send_response(answer[0])
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(answer[1])))
                    self.end_headers()
                    self.wfile.write(answer[1])

            def log_message(self, *_):
                pass

        class HttpServer(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_):
                """A caller that was killed is why this is here."""

        self.lock = threading.Lock()
        self.calls = []
        self.gates = {}
        self.answers = {}
        self.after = {}
        self.server = HttpServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path, body, headers):
        """One call: `path` is a step, or `hook/<name>`."""
        step, name = path.split("/") if "/" in path else (path, json.loads(body)["name"])
        with self.lock:
            self.calls.append((step, name, time.monotonic(), body, dict(headers.items())))
            gate = self.gates.get((step, name))
            then = self.after.pop((step, name), None)
            answers = self.answers.get((step, name))
            status = answers.pop(0) if answers else 200
        if gate is not None:
            gate.wait(GATE_S)
        if then is not None:
            then()
        return status, json.dumps({"did": step}).encode()

    def hold(self, step, name):
        """Calls of this step are not answered until the gate that this gives is set."""
        gate = threading.Event()
        with self.lock:
            self.gates[step, name] = gate
        return gate

    def release(self, name):
        """Answers every held call of a name."""
        with self.lock:
            gates = [gate for (_, held), gate in self.gates.items() if held == name]
        for gate in gates:
            gate.set()

    def made(self, step, name):
        with self.lock:
            return [call for call in self.calls if call[:2] == (step, name)]

    def steps(self, name):
        """How often each step was called, in the order of first calls."""
        with self.lock:
            names = [step for step, called, *_ in self.calls if called == name and step in SUPERSTEP]
        return {step: names.count(step) for step in dict.fromkeys(names)}

    def until_made(self, step, name, count=1, limit_s=PATIENCE_S):
        """When the call of that number came."""

        def ask():
            made = self.made(step, name)
            return made[count - 1][2] if len(made) >= count else None

        return until(lambda: f"call {count} of {step} for {name}; so far {self.steps(name)}", ask, limit_s)

    def stop(self):
        for gate in self.gates.values():
            gate.set()
        self.server.shutdown()
        self.server.server_close()


def graphs(url):
    """Walks whose steps call the receiver; `asks` stops for an answer between the first and the last, `ticks` says
    something 20 times before its call and 20 times after it."""

    def call(step):
        return {
            "kind": "http", "url": f"{url}/{step}", "timeout_ms": 1000 * (GATE_S + 60), "body": {"name": {"$": "/name"}},
            "map": {"log": "/did"},
        }  # fmt: skip

    channels = {"name": "last-value", "log": "append", "answer": "last-value"}
    walk = {
        "kind": "workflow",
        "channels": channels,
        "nodes": {step: call(step) for step in SUPERSTEP},
        "edges": [["__start__", "one"], ["one", "two"], ["one", "side"], {"from": ["two", "side"], "to": "three"}],
    }
    asks = {
        "kind": "workflow",
        "channels": channels,
        "nodes": {
            "one": call("one"),
            "ask": {"kind": "script", "steps": [{"interrupt": "go on?", "into": "answer"}]},
            "three": call("three"),
        },
        "edges": [["__start__", "one"], ["one", "ask"], ["ask", "three"]],
    }
    talk = {
        "kind": "script",
        "channels": {"log": "append"},
        "steps": [{"emit": {"n": n}} for n in range(20)] + [{"append": {"log": "said"}}],
    }
    ticking = [part for n in range(20) for part in ({"emit": {"n": n}}, {"sleep_ms": 20})]
    ticks = {
        "kind": "workflow",
        "channels": channels,
        "nodes": {
            "before": {"kind": "script", "steps": ticking},
            "gate": call("gate"),
            "after": {"kind": "script", "steps": ticking},
        },
        "edges": [["__start__", "before"], ["before", "gate"], ["gate", "after"]],
    }
    heavy = {"kind": "bench", "steps": 160, "payload_bytes": 200_000}
    every = {"walk": walk, "asks": asks, "talk": talk, "ticks": ticks, "heavy": heavy}
    return {"graphs": {name: {"native": graph} for name, graph in every.items()}}


class Fleet(Server):
    """An agent server for drills: short leases; of a cluster, two processes serve and two perform and keep the clock."""

    def __init__(self, layout, receiver, redis_behind_proxy=False, **env):
        self.receiver, self.redis_behind_proxy, self.proxy = receiver, redis_behind_proxy, None
        self.http = httpx.Client(timeout=60)
        env = {"TOWPATH_ENGINE_LEASE_SECONDS": str(LEASE_S), "TOWPATH_AGENT_WEBHOOK_SECRET": SECRET} | env
        super().__init__(layout, env=env)

    def launch(self, name, *args):
        if not self.processes:
            self.graphs = self.folder / "graphs.json"
            self.graphs.write_text(json.dumps(graphs(self.receiver.url)))
        if name.startswith("worker"):
            args = ("--role", "worker,scheduler")
        if self.redis_behind_proxy and self.proxy is None:
            self.proxy = FaultProxy(self.redis_address)
            self.env["REDIS_URI"] = f"redis://{self.proxy.address}"
        return super().launch(name, *args)

    @property
    def performers(self):
        return self.workers or self.apis

    def rearm(self, process, point=None):
        """Starts a process again; `point` is where it shall die."""
        process.kill()
        process.env = self.env | ({"TOWPATH_FAILPOINT": point} if point else {})
        process.start()
        process.ready()

    def again(self, processes):
        """Starts what was killed, all at once."""
        for process in processes:
            process.env = self.env
            process.start()
        for process in processes:
            process.ready()

    def restart_redis(self):
        """Where it was, and empty."""
        self.redis, _ = harness.start_redis(self.folder, self.redis_address)

    def drop(self):
        if self.proxy is not None:
            self.proxy.stop()
        super().drop()

    # -- what clients do

    def call(self, method, path, body=None, at=0, status=200):
        answer = self.http.request(method, self.urls[at % len(self.urls)] + path, json=body)
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def thread(self):
        return self.call("POST", "/threads", {})["thread_id"]

    def begin(self, thread, name, graph="walk", **more):
        body = {
            "assistant_id": graph,
            "input": {"name": name},
            "durability": "sync",
            "stream_resumable": True,
            "stream_mode": ["values", "updates", "custom"],
        }
        return self.call("POST", f"/threads/{thread}/runs", body | more)["run_id"]

    def over(self, thread, run, limit_s=PATIENCE_S, at=-1):
        """The status of a run once it is final, and when that was seen."""

        def ask():
            with contextlib.suppress(httpx.TransportError):
                answer = self.http.get(f"{self.urls[at]}/threads/{thread}/runs/{run}")
                if answer.status_code == 404:
                    return "gone", time.monotonic()
                status = answer.json().get("status")
                return (status, time.monotonic()) if status not in ("pending", "running", None) else None
            return None

        return until(lambda: f"run {run} to end; steps so far {self.receiver.calls}", ask, limit_s)

    # -- what the tables say

    def rows(self, question):
        """Rows of a question, in whose text `{<uuid>}` stands for an id. Also when no process of the server runs."""
        quote = "X'" if self.database is None else "'"
        question = re.sub(r"{([0-9a-f-]+)}", lambda id: f"{quote}{uuid.UUID(id[1]).hex}'", question)
        if self.database is None:
            with contextlib.closing(sqlite3.connect(self.folder / "data" / "agent.db", timeout=10)) as connection:
                return connection.execute(question).fetchall()
        command = ["psql", self.database, "--no-psqlrc", "--quiet", "-v", "ON_ERROR_STOP=1", "-At", "-F", "\t", "-c", question]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return [tuple(line.split("\t")) for line in done.stdout.splitlines()]

    def job_of(self, run):
        """State of the job of a run, whether it was asked to stop, and the process that performs it."""
        rows = self.rows(
            "SELECT j.state, CASE WHEN j.cancel_at IS NULL THEN 0 ELSE 1 END, coalesce(w.pid, 0) FROM run r"
            f" JOIN job j ON j.id = r.job_id LEFT JOIN worker w ON w.id = j.worker_id WHERE r.id = {{{run}}}"
        )
        return (rows[0][0], bool(int(rows[0][1])), int(rows[0][2])) if rows else ("gone", False, 0)

    def ends_of(self, run):
        """How attempts at a run ended that did not end well, oldest first."""
        rows = self.rows(f"SELECT outcome, error FROM attempt WHERE job_id = (SELECT job_id FROM run WHERE id = {{{run}}}) ORDER BY fence")
        return [tuple(row) for row in rows]

    def performer_of(self, run):
        """The process that performs a run."""
        pid = self.job_of(run)[2]
        return next((process for process in self.performers if process.child.pid == pid), None)

    def last_step(self, thread):
        """Number of the last superstep whose checkpoint is there."""
        rows = self.rows(f"SELECT metadata FROM checkpoints WHERE thread_id = '{thread}' AND checkpoint_ns = ''")
        return max((json.loads(row[0])["step"] for row in rows), default=-2)

    def left_behind(self):
        """What must not be there once everything is over."""
        counts = {what: int(self.rows(f"SELECT count(*) FROM {rows}")[0][0]) for what, rows in LEFT_BEHIND.items()}
        return {what: count for what, count in counts.items() if count}


# The same text runs on both databases.
LEFT_BEHIND = {
    "runs that are not over": "run WHERE status = 'pending'",
    "runs left open by a job that is over or gone": "run r LEFT JOIN job j ON j.id = r.job_id"
    " WHERE r.status = 'pending' AND (j.id IS NULL OR j.finished_at IS NOT NULL)",
    "threads that are busy with nothing": "thread t WHERE status = 'busy'"
    " AND NOT EXISTS (SELECT 1 FROM run r WHERE r.thread_id = t.id AND r.status = 'pending')",
    "jobs at work": "job WHERE state IN ('ready', 'running', 'waiting', 'blocked')",
    "jobs that ended badly": "job WHERE state IN ('failed', 'timed_out') OR dead",
    "lanes that count other places than are held": "lane l WHERE l.held <>"
    " (SELECT count(*) FROM job j WHERE j.lane = l.key AND j.lane_held AND j.finished_at IS NULL)",
    "events of runs that are over, kept for ever": "run_event e WHERE e.expires_at IS NULL AND e.run_id IS NOT NULL"
    " AND NOT EXISTS (SELECT 1 FROM run r WHERE r.id = e.run_id AND r.status = 'pending')",
    "temporary threads": "thread WHERE temporary",
}
