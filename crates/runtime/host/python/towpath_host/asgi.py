"""A small HTTP/1.1 server for one ASGI application on a unix socket, for projects without uvicorn. Websockets need the
package ``websockets``, which comes with langgraph's client."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

import h11  # Comes with httpx, which comes with langgraph's client.

log = logging.getLogger(__name__)

READ_BYTES = 1 << 16
STARTUP_S = 60.0
Scope = dict[str, Any]
Send = Callable[[Scope], Awaitable[None]]


class Bridge:
    """The server: one task for each connection."""

    def __init__(self, app: Any, path: str) -> None:
        self._app = app
        self._path = path
        self._server: asyncio.AbstractServer | None = None
        self._lifespan = Lifespan(app)

    async def start(self) -> None:
        """Starts the application up, then listens."""
        await self._lifespan.start()
        self._server = await asyncio.start_unix_server(self._connected, self._path)

    async def stop(self) -> None:
        """Stops listening, then lets the application shut down."""
        if self._server is not None:
            self._server.close()
        await self._lifespan.stop()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        try:
            while await self._exchange(connection, reader, writer):
                connection.start_next_cycle()
        except (h11.RemoteProtocolError, ConnectionError) as error:
            log.debug("a connection to http.app broke: %s", error)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _exchange(
        self, connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """One request and its response; says whether another may follow."""
        request = await _event(connection, reader)
        if not isinstance(request, h11.Request):
            return False
        if _is_websocket(request):
            await self._talk(connection, request, reader, writer)
            return False
        exchange = Exchange(connection, reader, writer, self._lifespan.state)
        await exchange.perform(self._app, request)
        return connection.our_state is h11.DONE and connection.their_state is h11.DONE


    async def _talk(
        self,
        connection: h11.Connection,
        request: h11.Request,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """A websocket, to its end."""
        # The handshake has no body. What follows it is not HTTP.
        await _event(connection, reader)
        try:
            from .sockets import Socket
        except ImportError:
            writer.write(b"HTTP/1.1 501 Not Implemented\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            await writer.drain()
            log.error("http.app cannot be reached by websockets: add the package websockets to dependencies")
            return
        head = [b"GET " + bytes(request.target) + b" HTTP/1.1"]
        head += [bytes(name) + b": " + bytes(value) for name, value in request.headers]
        rest, _ = connection.trailing_data
        offered = [bytes(value) for name, value in request.headers if bytes(name) == b"sec-websocket-protocol"]
        scope = _scope(request, self._lifespan.state) | {
            "type": "websocket",
            "scheme": "ws",
            "subprotocols": [name.strip().decode("latin-1") for name in b",".join(offered).split(b",") if name.strip()],
        }
        del scope["method"]
        handshake = b"\r\n".join([*head, b"", b""])
        await Socket(scope, reader, writer).perform(self._app, handshake, bytes(rest))


class Exchange:
    """One request and its response."""

    def __init__(
        self,
        connection: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        state: dict[str, Any],
    ) -> None:
        self._connection = connection
        self._reader = reader
        self._writer = writer
        self._state = state
        self._begun = False
        self._head: Scope | None = None
        self._body_read = False
        self._gone = asyncio.Event()

    async def perform(self, app: Any, request: h11.Request) -> None:
        """Lets the application answer."""
        try:
            await app(_scope(request, self._state), self._receive, self._send)
        except Exception:
            log.exception("http.app failed")
            if not self._begun:
                await self._answer_500()
        finally:
            self._gone.set()
        if self._connection.our_state is not h11.DONE:
            if not self._begun:
                await self._answer_500()
            return
        while self._connection.their_state is h11.SEND_BODY:
            if isinstance(await _event(self._connection, self._reader), h11.EndOfMessage):
                return

    async def _receive(self) -> Scope:
        if self._body_read:
            await self._disconnected()
            return {"type": "http.disconnect"}
        if self._connection.they_are_waiting_for_100_continue:
            await self._write(h11.InformationalResponse(status_code=100, headers=[]))
        event = await _event(self._connection, self._reader)
        if isinstance(event, h11.Data):
            return {"type": "http.request", "body": bytes(event.data), "more_body": True}
        self._body_read = True
        if isinstance(event, h11.EndOfMessage):
            return {"type": "http.request", "body": b"", "more_body": False}
        return {"type": "http.disconnect"}

    async def _disconnected(self) -> None:
        """Waits until the client is gone, or the response is done."""
        while not self._gone.is_set() and not self._reader.at_eof():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._gone.wait(), 0.5)

    async def _send(self, message: Scope) -> None:
        if message["type"] == "http.response.start":
            self._head = message
            return
        if message["type"] != "http.response.body":
            return
        if not self._begun:
            head = self._head
            if head is None:
                raise RuntimeError("a response must start before its body")
            self._begun = True
            await self._write(h11.Response(status_code=head["status"], headers=list(head.get("headers") or ())))
        if body := message.get("body"):
            await self._write(h11.Data(data=body))
        if not message.get("more_body"):
            await self._write(h11.EndOfMessage())

    async def _answer_500(self) -> None:
        self._begun = True
        body = b"Internal Server Error"
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
        await self._write(h11.Response(status_code=500, headers=headers))
        await self._write(h11.Data(data=body))
        await self._write(h11.EndOfMessage())

    async def _write(self, event: Any) -> None:
        data = self._connection.send(event)
        if data:
            self._writer.write(data)
            await self._writer.drain()


class Lifespan:
    """Start-up and shut-down of an application, for those that know them."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.state: dict[str, Any] = {}
        self._in: asyncio.Queue[Scope] = asyncio.Queue()
        self._out: asyncio.Queue[Scope | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when the application has started up."""
        self._task = asyncio.create_task(self._run())
        self._in.put_nowait({"type": "lifespan.startup"})
        answer = await asyncio.wait_for(self._out.get(), STARTUP_S)
        if answer is not None and answer["type"] == "lifespan.startup.failed":
            raise RuntimeError(f"http.app did not start up: {answer.get('message') or 'no reason given'}")

    async def stop(self) -> None:
        """Returns when the application has shut down, or has had its time."""
        if self._task is None or self._task.done():
            return
        self._in.put_nowait({"type": "lifespan.shutdown"})
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._out.get(), 3.0)

    async def _run(self) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self.state}

        async def send(message: Scope) -> None:
            self._out.put_nowait(message)

        try:
            await self._app(scope, self._in.get, send)
        except Exception as error:
            # An application that knows no lifespan says so like this.
            log.debug("http.app has no lifespan: %s", error)
        self._out.put_nowait(None)


async def _event(connection: h11.Connection, reader: asyncio.StreamReader) -> Any:
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await reader.read(READ_BYTES))
    return event


def _is_websocket(request: h11.Request) -> bool:
    upgrades = [bytes(value).strip().lower() for name, value in request.headers if bytes(name) == b"upgrade"]
    return bytes(request.method) == b"GET" and upgrades == [b"websocket"]


def _scope(request: h11.Request, state: dict[str, Any]) -> Scope:
    target, _, query = bytes(request.target).partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": bytes(request.http_version).decode(),
        "method": bytes(request.method).decode(),
        "scheme": "http",
        "path": unquote(target.decode("latin-1")),
        "raw_path": target,
        "query_string": query,
        "root_path": "",
        "headers": [(bytes(name), bytes(value)) for name, value in request.headers],
        "client": None,
        "server": None,
        "state": dict(state),
        "extensions": {},
    }
