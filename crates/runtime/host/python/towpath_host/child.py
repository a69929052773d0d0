"""The child: takes the server's requests, each as a task of the loop, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.pregel import Pregel

from . import auth, describe, encryption, logs, states, text, wire
from .connection import Connection
from .health import Health
from .projects import Access, Graph, Project
from .runs import Run, _uncancel
from .streams import CallError, Stream
from .threads import Threads
from .web import Web
from .wire import Type

log = logging.getLogger(__name__)

WINDOW_BYTES = 4 << 20
THREADS = 128
"""Synchronous nodes that wait at the same time."""

DESCRIBE_S = 30.0
"""How long a function that makes a graph may take to be described."""

Fields = dict[str, Any]


class Child:
    """One connection and the project behind it."""

    def __init__(self, sock: socket.socket, project: Project, init: Fields, load_ms: int) -> None:
        self.project = project
        self.loop = asyncio.get_running_loop()
        threads = Threads(THREADS)
        self.loop.set_default_executor(threads)
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self._init = init
        self._load_ms = load_ms
        self._window = init.get("window_bytes") or WINDOW_BYTES
        self._streams: dict[int, Stream] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._stopping = False
        self._web: Web | None = None
        project.attach(self.loop)
        self.connection = Connection(sock, self.loop, self._on_frame, self._on_close)
        self.connection.max_frame_bytes = init.get("max_frame_bytes") or wire.MAX_FRAME_BYTES
        self._health = Health(self.connection, self.loop, lambda: len(self._streams), threads.stray)
        logs.install(self.connection, init.get("log_level") or "info")
        self._questions: dict[int, Callable[[Stream, Fields], Awaitable[Any]]] = {
            Type.STATE_GET: self._state_get,
            Type.STATE_UPDATE: self._state_update,
            Type.HISTORY: self._history,
            Type.SCHEMAS: self._schemas,
            Type.DRAW: self._draw,
            Type.SUBGRAPHS: self._subgraphs,
            Type.AUTHENTICATE: self._authenticate,
            Type.AUTHORIZE: self._authorize,
            Type.EMBED: self._embed,
            Type.ENCRYPT: self._encrypt,
            Type.DECRYPT: self._decrypt,
        }

    async def serve(self, fork_safe: bool) -> None:
        """Says READY, and works until the server is gone or says SHUTDOWN."""
        http = False
        if self.project.http_app is not None and self._init.get("http_socket"):
            self._web = Web(self.project.http_app, self._init["http_socket"])
            await self._web.start()
            http = True
        project = self.project
        if sys.version_info < (3, 11):
            log.warning(
                "Python %d.%d: langgraph cannot tell asynchronous runs what they run in before Python 3.11, so "
                "interrupt(), get_stream_writer() and tokens of nested models do not work; use a newer one",
                *sys.version_info[:2],
            )
        self.connection.tell(
            Type.READY,
            0,
            {
                "graphs": [await self._described(graph) for graph in project.graphs.values()],
                "http": http,
                "auth": None if project.auth is None else auth.handles(project.auth),
                "encryption": None if project.encryption is None else encryption.handles(project.encryption),
                "fork_safe": fork_safe,
                "load_ms": self._load_ms,
            },
        )
        await self.ended
        if self._web is not None:
            await self._web.stop()
        self.connection.drain(1.0)
        self.connection.close()

    async def _described(self, graph: Graph) -> Fields:
        described: Fields = {"id": graph.id, "description": graph.description, "factory": graph.compiled is None}
        try:
            # What a factory asks of checkpoints or items here belongs to no request, and no one waits for it longer.
            await asyncio.wait_for(self._describe(graph, described), DESCRIBE_S)
        except Exception as error:
            described["describe_error"] = f"{type(error).__name__}: {error}"
            log.warning("graph %s cannot be described without a config: %s", graph.id, described["describe_error"])
        return described

    async def _describe(self, graph: Graph, described: Fields) -> None:
        async with self.project.open(graph.id, {"configurable": {}}, "assistants.read") as compiled:
            described |= {
                "name": describe.name(compiled),
                "nodes": describe.nodes(compiled),
                "schemas": text.dumps(describe.schemas(compiled, graph.id)),
                "subgraphs": text.dumps(describe.subgraphs(compiled, None, True)),
            }
            try:
                described["drawing"] = text.dumps(await describe.drawing(compiled, False))
            except Exception as error:
                described["describe_error"] = f"{type(error).__name__}: {error}"

    # -- frames

    def _on_frame(self, type_: int, stream_id: int, payload: bytes) -> None:
        try:
            if stream_id == 0:
                self._on_connection(type_, payload)
            elif (stream := self._streams.get(stream_id)) is not None:
                self._on_stream(stream, type_, wire.unpack(payload))
            elif type_ not in (Type.CREDIT, Type.CANCEL, Type.FAIL, Type.REPLY):
                self._open(type_, stream_id, wire.unpack(payload))
        except wire.ProtocolError as error:
            self.connection.close(error)

    def _on_connection(self, type_: int, payload: bytes) -> None:
        if type_ == Type.PING:
            self._health.on_ping(payload)
        elif type_ == Type.SHUTDOWN:
            self._stopping = True
            self.loop.create_task(self._shut_down(wire.unpack(payload).get("grace_ms") or 0))

    @staticmethod
    def _on_stream(stream: Stream, type_: int, fields: Fields) -> None:
        if type_ == Type.CREDIT:
            stream.on_credit(fields.get("bytes") or 0)
        elif type_ == Type.REPLY:
            stream.on_reply(fields)
        elif type_ == Type.CANCEL:
            stream.on_cancel(fields.get("action") or "interrupt")
        elif type_ == Type.FAIL:
            stream.on_fail(fields)

    def _open(self, type_: int, stream_id: int, fields: Fields) -> None:
        stream = Stream(self.connection, stream_id, self._window)
        if self._stopping:
            error = {"kind": "lost", "error": "Shutdown", "message": "the process is shutting down"}
            if type_ == Type.RUN:
                stream.end(Type.DONE, {"status": "retry", "error": error})
            else:
                stream.end(Type.ANSWER, {"error": error})
            return
        stream.thread = fields.get("thread")
        stream.run = fields.get("run")
        stream.graph = fields.get("graph")
        self._streams[stream_id] = stream
        work = self._run(stream, fields) if type_ == Type.RUN else self._answer(stream, type_, fields)
        self._tasks[stream_id] = self.loop.create_task(work)

    def _on_close(self, error: Exception | None) -> None:
        if error is not None:
            log.error("the connection to the server broke: %s", error)
        self._health.gone()
        for stream in list(self._streams.values()):
            stream.on_cancel("shutdown")
        if not self.ended.done():
            self.ended.set_result(None)

    async def _shut_down(self, grace_ms: int) -> None:
        deadline = time.monotonic() + grace_ms / 1000
        while self._tasks and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait(self._tasks.values(), timeout=left)
        for stream in list(self._streams.values()):
            stream.on_cancel("shutdown")
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=5.0)
        if not self.ended.done():
            self.ended.set_result(None)

    # -- requests

    def _ended(self, stream: Stream) -> None:
        self._streams.pop(stream.id, None)
        self._tasks.pop(stream.id, None)

    async def _run(self, stream: Stream, fields: Fields) -> None:
        try:
            await Run(self.project, stream, fields).perform()
        except Exception as error:
            # Not of the graph: the request itself cannot be read.
            failed = {"error": type(error).__name__, "message": str(error), "traceback": traceback.format_exc()}
            stream.end(Type.DONE, {"status": "error", "error": failed})
        finally:
            self._ended(stream)

    async def _answer(self, stream: Stream, type_: int, fields: Fields) -> None:
        try:
            stream.begin()
            question = self._questions.get(type_)
            if question is None:
                raise CallError("unsupported", "NotImplementedError", f"unknown message {type_:#04x}")
            answer = {"value": await question(stream, fields)}
        except asyncio.CancelledError:
            _uncancel()
            answer = {"error": {"kind": "cancelled", "error": "CancelledError", "message": "cancelled"}}
        except Exception as error:
            answer = {"error": _error(error)}
        finally:
            self._ended(stream)
        try:
            stream.end(Type.ANSWER, answer)
        except Exception as error:
            # It is too long for a frame, say: who asked would wait for ever.
            stream.end(Type.ANSWER, {"error": _error(error)})

    @contextlib.asynccontextmanager
    async def _graph(self, fields: Fields, access: Access) -> AsyncIterator[tuple[Pregel, RunnableConfig]]:
        config = states.config_of(fields, text.loads(fields.get("config")))
        if fields.get("graph") not in self.project.graphs:
            raise CallError("not_found", "KeyError", f"this process has no graph {fields.get('graph')!r}")
        async with self.project.open(fields["graph"], config, access) as graph:
            yield graph, config

    async def _state_get(self, stream: Stream, fields: Fields) -> Any:
        async with self._graph(fields, "threads.read") as (graph, config):
            state = await states.get(graph, config, bool(fields.get("subgraphs")))
            return None if state is None else text.dumps(state)

    async def _state_update(self, stream: Stream, fields: Fields) -> Any:
        stream.sync = True
        async with self._graph(fields, "threads.update") as (graph, config):
            config["metadata"] = {**(config.get("metadata") or {}), **(text.loads(fields.get("metadata")) or {})}
            return text.dumps(await states.update(graph, config, text.loads(fields["supersteps"])))

    async def _history(self, stream: Stream, fields: Fields) -> Any:
        async with self._graph(fields, "threads.read") as (graph, config):
            filter_ = text.loads(fields.get("filter"))
            found = await states.history(graph, config, fields.get("limit"), fields.get("before"), filter_)
            return text.dumps(found)

    async def _schemas(self, stream: Stream, fields: Fields) -> Any:
        async with self._graph(fields, "assistants.read") as (graph, _):
            return text.dumps(describe.schemas(graph, fields["graph"]))

    async def _draw(self, stream: Stream, fields: Fields) -> Any:
        async with self._graph(fields, "assistants.read") as (graph, _):
            return text.dumps(await describe.drawing(graph, fields.get("xray") or False))

    async def _subgraphs(self, stream: Stream, fields: Fields) -> Any:
        async with self._graph(fields, "assistants.read") as (graph, _):
            return text.dumps(describe.subgraphs(graph, fields.get("namespace"), bool(fields.get("recurse"))))

    async def _authenticate(self, stream: Stream, fields: Fields) -> Any:
        return text.dumps(await auth.authenticate(self._needed(self.project.auth, "auth"), fields))

    async def _authorize(self, stream: Stream, fields: Fields) -> Any:
        result = await auth.authorize(
            self._needed(self.project.auth, "auth"),
            fields["resource"],
            fields["action"],
            text.loads(fields.get("value")),
            text.loads(fields.get("user")) or {},
        )
        filter_ = result["filter"]
        return {
            "allowed": result["allowed"],
            "filter": None if filter_ is None else text.dumps(filter_),
            "value": text.dumps(result["value"]),
        }

    async def _embed(self, stream: Stream, fields: Fields) -> Any:
        return await self._needed(self.project.embedder, "store.index").embed(list(fields["texts"]))

    async def _encrypt(self, stream: Stream, fields: Fields) -> Any:
        return await self._convert("encrypt", fields)

    async def _decrypt(self, stream: Stream, fields: Fields) -> Any:
        return await self._convert("decrypt", fields)

    async def _convert(self, way: str, fields: Fields) -> Any:
        as_json = (fields.get("what") or "json") == "json"
        given = dict(fields)
        given["metadata"] = text.loads(fields.get("metadata"))
        given["data"] = text.loads(fields["data"]) if as_json else fields["data"]
        result = await encryption.convert(self._needed(self.project.encryption, "encryption"), way, given)
        return text.dumps(result) if as_json else bytes(result)

    @staticmethod
    def _needed(found: Any, key: str) -> Any:
        if found is None:
            raise CallError("unsupported", "NotImplementedError", f"the config file has no `{key}`")
        return found


def _error(error: Exception) -> Fields:
    """An error of an ANSWER."""
    fields: Fields = {"kind": "failed", "error": type(error).__name__, "message": str(error)}
    if isinstance(error, CallError):
        return fields | {"kind": error.kind, "error": error.class_}
    if isinstance(error, auth.Denied):
        return fields | {"kind": "denied", "error": "HTTPException", "status": error.status, "headers": error.headers}
    if isinstance(error, (ValueError, TypeError)) or type(error).__name__ in ("InvalidUpdateError", "EmptyInputError"):
        fields["kind"] = "invalid"
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return fields | {"traceback": trace[-(64 << 10) :]}
