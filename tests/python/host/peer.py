"""The server's side of the graph host protocol, in memory: checkpoints, items, streams. Written from the protocol's page
alone, so that it shows where the child and the page differ."""

import asyncio
import contextlib
import json
import os
import pathlib
import signal
import struct
import sys
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timezone

import ormsgpack

PACKAGE = pathlib.Path(__file__).resolve().parents[3] / "crates" / "runtime" / "host" / "python"
WINDOW = 4 << 20

HELLO, INIT, READY, LOAD_ERROR, PING, PONG, LOG, SHUTDOWN, FORK, FORKED, EXITED = range(0x01, 0x0C)
RUN, CHUNK, CREDIT, CANCEL, FAIL, DONE = range(0x10, 0x16)
STATE_GET, STATE_UPDATE, HISTORY, SCHEMAS, DRAW, SUBGRAPHS = range(0x20, 0x26)
AUTHENTICATE, AUTHORIZE, EMBED, ENCRYPT, DECRYPT = range(0x26, 0x2B)
ANSWER = 0x2F
CP_GET, CP_PUT, CP_WRITES, CP_LIST, CP_DELETE = range(0x30, 0x35)
STORE, REPLY = 0x38, 0x3F

MODES = [
    None, "values", "updates", "messages", "messages/metadata", "messages/partial", "messages/complete", "custom",
    "tasks", "checkpoints", "debug", "events",
]  # fmt: skip


def text(value):
    return None if value is None else json.dumps(value).encode()


@dataclass
class Chunk:
    mode: str
    ns: tuple
    data: object
    raw: bytes


@dataclass
class Stream:
    """One request: what came for it so far."""

    thread: str | None
    chunks: list = field(default_factory=list)
    done: asyncio.Future = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    credit: bool = True
    spent: int = 0
    calls: list = field(default_factory=list)

    def of(self, mode, ns=()):
        return [chunk.data for chunk in self.chunks if chunk.mode == mode and chunk.ns == ns]


class LoadFailed(Exception):
    def __init__(self, fields):
        super().__init__(fields["message"])
        self.fields = fields


class Refused(Exception):
    """An ANSWER with an error."""

    def __init__(self, error):
        super().__init__(f"{error['error']}: {error['message']}")
        self.error = error


class Threads:
    """Checkpoints and writes, as the tables of langgraph's PostgreSQL saver have them."""

    def __init__(self):
        self.checkpoints = {}
        self.blobs = {}
        self.writes = {}

    def put(self, thread, fields):
        key = (thread, fields["ns"])
        row = {name: fields.get(name) for name in ("id", "parent", "checkpoint", "metadata")}
        self.checkpoints.setdefault(key, {})[fields["id"]] = row
        for channel, version, type_, data in fields["blobs"]:
            self.blobs[(*key, channel, version)] = (type_, data)

    def put_writes(self, thread, fields):
        rows = self.writes.setdefault((thread, fields["ns"], fields["id"]), {})
        for idx, channel, type_, data in fields["writes"]:
            at = (fields["path"], fields["task"], idx)
            if idx < 0 or at not in rows:
                rows[at] = (channel, type_, data)

    def get(self, thread, ns, id_):
        rows = self.checkpoints.get((thread, ns), {})
        row = rows.get(id_) if id_ else rows[max(rows)] if rows else None
        return None if row is None else self._full(thread, ns, row)

    def list(self, thread, fields):
        rows = self.checkpoints.get((thread, fields["ns"]), {})
        wanted = json.loads(fields["filter"]) if fields.get("filter") else {}
        found = []
        for id_ in sorted(rows, reverse=True):
            metadata = json.loads(rows[id_]["metadata"])
            if fields.get("before") and id_ >= fields["before"]:
                continue
            if all(metadata.get(key) == value for key, value in wanted.items()):
                found.append(self._full(thread, fields["ns"], rows[id_]))
        return found[: fields.get("limit")]

    def _full(self, thread, ns, row):
        versions = json.loads(row["checkpoint"])["channel_versions"]
        blobs = []
        for channel, version in versions.items():
            if (kept := self.blobs.get((thread, ns, channel, version))) is not None:
                blobs.append([channel, version, *kept])
        rows = self.writes.get((thread, ns, row["id"]), {})
        writes = [[task, idx, *rows[path, task, idx], path] for path, task, idx in sorted(rows)]
        return {**row, "blobs": blobs, "writes": writes}

    def metadata(self, thread, ns=""):
        """Metadata of a thread's checkpoints, oldest first."""
        rows = self.checkpoints.get((thread, ns), {})
        return [json.loads(rows[id_]["metadata"]) for id_ in sorted(rows)]


class Items:
    """The long-term store; an item is like a query that says what it likes."""

    def __init__(self):
        self.rows = {}

    def do(self, op):
        return getattr(self, op["op"])(op)

    def get(self, op):
        return self._shown((tuple(op["namespace"]), op["key"]))

    def put(self, op):
        at = (tuple(op["namespace"]), op["key"])
        if op["value"] is None:
            self.rows.pop(at, None)
            return None
        now = datetime.now(timezone.utc).isoformat()
        made = self.rows[at]["created_at"] if at in self.rows else now
        self.rows[at] = {
            "value": json.loads(op["value"]), "created_at": made, "updated_at": now,
            "ttl": op.get("ttl_minutes"), "index": op.get("index"),
        }  # fmt: skip
        return None

    def search(self, op):
        prefix = tuple(op["prefix"])
        wanted = json.loads(op["filter"]) if op.get("filter") else {}
        found = []
        for at, row in self.rows.items():
            if at[0][: len(prefix)] != prefix or any(row["value"].get(k) != v for k, v in wanted.items()):
                continue
            score = None
            if op.get("query"):
                if row["index"] == []:
                    continue
                score = float(row["value"].get("likes", "?") in op["query"])
            found.append((score, at))
        if op.get("query"):
            found.sort(key=lambda one: -one[0])
        shown = [self._shown(at, score) for score, at in found]
        return shown[op["offset"] : op["offset"] + op["limit"]]

    def namespaces(self, op):
        depth = op.get("max_depth")
        found = sorted({at[0][:depth] for at in self.rows if self._matches(at[0], op)})
        return [list(one) for one in found[op["offset"] : op["offset"] + op["limit"]]]

    @staticmethod
    def _matches(namespace, op):
        prefix, suffix = op.get("prefix") or [], op.get("suffix") or []
        if len(namespace) < max(len(prefix), len(suffix)):
            return False
        fits = lambda labels, pattern: all(p in ("*", label) for label, p in zip(labels, pattern))  # noqa: E731
        return fits(namespace, prefix) and (not suffix or fits(namespace[-len(suffix) :], suffix))

    def _shown(self, at, score=None):
        row = self.rows.get(at)
        if row is None:
            return None
        shown = {"namespace": at[0], "key": at[1], **{k: row[k] for k in ("value", "created_at", "updated_at")}}
        return text(shown | ({} if score is None else {"score": score}))


def cpu_s(pid):
    """CPU time of a process, in seconds, that of its threads included."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


class Peer:
    """A server with one child."""

    def __init__(self, socket, threads=None, items=None):
        self.socket = socket
        self.threads = threads or Threads()
        self.items = items or Items()
        self.logs, self.saves = [], []
        self.hello = self.ready = None
        self.streams = {}
        self.pongs = asyncio.Queue()
        self.control = asyncio.Queue()
        self.process = self.server = self.writer = None
        self.on_save = None
        """Called before a save is done; what it gives in place of None is told as an error."""
        self.hold = None
        """Says whether a call is to be done but not answered; `held` are the replies."""
        self.held = []
        self._next = 0
        self._ready = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()
        self.init = {}

    # -- life

    async def listen(self):
        self.server = await asyncio.start_unix_server(self._connected, self.socket)

    async def start(self, folder, config, *, env=None, arguments=(), **init):
        await self.listen()
        self.expect(folder, config, **init)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("LANG", "TOWPATH"))}
        environment |= {"PYTHONPATH": str(PACKAGE), "PYTHONDONTWRITEBYTECODE": "1"} | (env or {})
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-u", "-m", "towpath_host", "--socket", self.socket, *arguments,
            cwd=folder, env=environment, start_new_session=True, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._stderr = asyncio.create_task(self.process.stderr.read())
        return await self.started()

    async def _said(self):
        return (await self._stderr).decode() if hasattr(self, "_stderr") else "a fork"

    def expect(self, folder, config, **init):
        self.init = {"protocol": 1, "config": text(config), "folder": str(folder), "window_bytes": WINDOW} | init

    async def started(self):
        ended = asyncio.create_task(self.process.wait()) if self.process else asyncio.get_running_loop().create_future()
        await asyncio.wait([ended, self._ready], timeout=60, return_when=asyncio.FIRST_COMPLETED)
        # What it said at its end may not be read yet.
        await asyncio.wait([self._ready], timeout=2)
        if not self._ready.done():
            raise AssertionError(f"the child ended with {ended.result()}: {await self._said()}")
        ended.cancel()
        return self._ready.result()

    async def fork(self, nursery, folder, config, **init):
        """The same out of a process that has imported the graphs already."""
        await self.listen()
        self.expect(folder, config, **init)
        self.process = await nursery.fork(self.socket)
        return await self.started()

    async def stop(self):
        if self.process is not None and self.process.returncode is None:
            if self.writer is not None and not self.closed.is_set():
                self.send(SHUTDOWN, 0, {"grace_ms": 0})
            try:
                await asyncio.wait_for(self.process.wait(), 10)
            except asyncio.TimeoutError:
                self.kill()
                await self.process.wait()
        self.server.close()
        return self.process and self.process.returncode

    def kill(self):
        # Frames of a process are still read after its end, and each of them may ask for it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def _connected(self, reader, writer):
        self.writer = writer
        try:
            while True:
                length, type_, stream = struct.unpack(">IBI", await reader.readexactly(9))
                self._frame(type_, stream, await reader.readexactly(length - 5))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        self.closed.set()
        for stream in self.streams.values():
            if stream.done is not None and not stream.done.done():
                stream.done.set_result({"status": "retry", "error": {"error": "Crash", "message": "the child is gone"}})
        writer.close()

    def send(self, type_, stream, fields):
        payload = ormsgpack.packb(fields)
        self.writer.write(struct.pack(">IBI", len(payload) + 5, type_, stream) + payload)

    # -- requests

    def open(self, type_, thread=None, **fields):
        self._next += 1
        stream = Stream(thread, done=asyncio.get_running_loop().create_future())
        stream.id = self._next
        self.streams[self._next] = stream
        if thread is not None:
            fields["thread"] = thread
        self.send(type_, self._next, fields)
        return stream

    def run(
        self,
        graph,
        input=None,
        *,
        thread=None,
        run=None,
        config=None,
        context=None,
        command=None,
        credit=True,
        **fields,
    ):
        """Opens a run."""
        thread, run = thread or str(uuid.uuid4()), run or str(uuid.uuid4())
        config = dict(config or {})
        config["configurable"] = {
            "thread_id": thread, "run_id": run, "graph_id": graph, "assistant_id": "a", **config.get("configurable", {}),
        }  # fmt: skip
        fields = {"attempt": 1, "modes": ["values"], "subgraphs": False, "durability": "async"} | fields
        stream = self.open(
            RUN, thread, run=run, graph=graph, input=text(input), command=text(command), config=text(config),
            context=text(context), **fields,
        )  # fmt: skip
        stream.run, stream.credit = run, credit
        return stream

    async def wait(self, *args, **kwargs):
        """A run from its beginning to its end."""
        stream = self.run(*args, **kwargs)
        stream.result = await asyncio.wait_for(stream.done, 60)
        return stream

    async def ask(self, type_, thread=None, **fields):
        """A question and its answer; json as values."""
        answer = await asyncio.wait_for(self.open(type_, thread, **fields).done, 60)
        if answer.get("error"):
            raise Refused(answer["error"])
        value = answer.get("value")
        return json.loads(value) if isinstance(value, bytes) else value

    def cancel(self, stream, action="interrupt"):
        self.send(CANCEL, stream.id, {"action": action})

    def fail(self, stream, kind):
        self.send(FAIL, stream.id, {"kind": kind, "error": "HostError", "message": f"the run is {kind}"})

    async def ping(self, t=1):
        self.send(PING, 0, {"t": t})
        return await asyncio.wait_for(self.pongs.get(), 10)

    # -- frames

    def _frame(self, type_, id_, payload):
        if type_ == CHUNK:
            return self._chunk(id_, payload)
        fields = ormsgpack.unpackb(payload)
        if id_ == 0:
            return self._connection(type_, fields)
        stream = self.streams[id_]
        stream.calls.append(type_)
        if type_ in (DONE, ANSWER):
            if not stream.done.done():
                stream.done.set_result(fields)
            stream.news.set()
            return None
        if type_ in (CP_PUT, CP_WRITES):
            self._pay(id_, stream, len(payload))
        error, value = None, None
        if type_ in (CP_PUT, CP_WRITES) and self.on_save is not None:
            error = self.on_save(stream, type_, fields)
        if error is None:
            value = self._call(stream, type_, fields)
        if self.hold is not None and self.hold(type_, fields):
            self.held.append((id_, {"call": fields["call"], "value": value}))
        elif "call" in fields:
            self.send(REPLY, id_, {"call": fields["call"]} | ({"error": error} if error else {"value": value}))
        elif error:
            self.send(FAIL, id_, error)
        return None

    def _connection(self, type_, fields):
        if type_ == HELLO:
            self.hello = fields
            self.send(INIT, 0, self.init)
        elif type_ == READY:
            self.ready = fields
            self.graphs = {graph["id"]: graph for graph in fields["graphs"]}
            self._ready.set_result(fields)
        elif type_ == LOAD_ERROR:
            self._ready.set_exception(LoadFailed(fields))
        elif type_ == PONG:
            self.pongs.put_nowait(fields)
        elif type_ == LOG:
            self.logs.append(fields)
        else:
            self.control.put_nowait((type_, fields))

    def _call(self, stream, type_, fields):
        thread = fields.get("thread") or stream.thread
        if type_ == CP_GET:
            return self.threads.get(thread, fields["ns"], fields.get("id"))
        if type_ == CP_LIST:
            return self.threads.list(thread, fields)
        if type_ == CP_PUT:
            self.saves.append(("checkpoint", fields))
            return self.threads.put(thread, fields)
        if type_ == CP_WRITES:
            self.saves.append(("writes", fields))
            return self.threads.put_writes(thread, fields)
        if type_ == STORE:
            return [self.items.do(op) for op in fields["ops"]]
        raise AssertionError(f"unexpected frame {type_:#x}")

    def _chunk(self, id_, payload):
        stream = self.streams[id_]
        assert not stream.done.done(), "nothing comes after the end"
        at, ns = 2, []
        for _ in range(payload[1]):
            (length,) = struct.unpack_from(">H", payload, at)
            ns.append(payload[at + 2 : at + 2 + length].decode())
            at += 2 + length
        mode = MODES[payload[0]]
        if mode is None:
            # It has no code, and says its name.
            (length,) = struct.unpack_from(">H", payload, at)
            mode = payload[at + 2 : at + 2 + length].decode()
            at += 2 + length
        raw = payload[at:]
        chunk = Chunk(mode, tuple(ns), json.loads(raw, parse_constant=_refuse), raw)
        stream.chunks.append(chunk)
        stream.news.set()
        self._pay(id_, stream, len(payload))

    def _pay(self, id_, stream, length):
        stream.spent += length
        if stream.credit:
            self.send(CREDIT, id_, {"bytes": length})


def _refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


class Nursery:
    """A child that forks others."""

    def __init__(self, peer):
        self.peer = peer
        self.forks = {}
        self._reading = asyncio.create_task(self._read())

    async def fork(self, socket):
        forked = self.forks[socket] = Forked()
        self.peer.send(FORK, 0, {"socket": socket})
        await forked.born
        return forked

    async def _read(self):
        while True:
            type_, fields = await self.peer.control.get()
            if type_ == FORKED:
                forked = self.forks[fields["socket"]]
                forked.pid = fields["pid"]
                forked.born.set_result(None)
            elif type_ == EXITED:
                forked = next(one for one in self.forks.values() if one.pid == fields["pid"])
                forked.returncode = fields["status"] if fields["status"] is not None else -fields["signal"]
                forked.ended.set()


class Forked:
    """A fork, with what a process of asyncio has."""

    def __init__(self):
        self.pid = self.returncode = None
        self.born = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()

    async def wait(self):
        await self.ended.wait()
        return self.returncode


async def until(ask, limit_s=180.0):
    """Waits for something true, asking when the loop has turned."""
    async with asyncio.timeout(limit_s):
        while not (answer := ask()):
            await asyncio.sleep(0.005)
    return answer
