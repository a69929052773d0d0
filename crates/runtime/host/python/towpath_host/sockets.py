"""Websockets of an ASGI application, on a connection of the bridge of ``asgi``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from websockets.exceptions import InvalidState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

log = logging.getLogger(__name__)
# It reports each connection, which the server does already.
protocol_log = logging.getLogger(f"{__name__}.protocol")
protocol_log.setLevel(logging.WARNING)

READ_BYTES = 1 << 16
# As uvicorn's.
MAX_MESSAGE_BYTES = 16 << 20
PING_INTERVAL_S = 20.0
# Pings in a row after which a silent client counts as gone.
MAX_SILENT_PINGS = 3
# Messages that wait for the application; then nothing more is read.
MAX_QUEUED = 16
# How long the client may take to close its side.
CLOSE_S = 5.0
Message = dict[str, Any]


class Socket:
    """One websocket, from its handshake to its end."""

    def __init__(self, scope: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._scope = scope
        self._reader = reader
        self._writer = writer
        self._protocol = ServerProtocol(max_size=MAX_MESSAGE_BYTES, logger=protocol_log)
        # What accepts the handshake, until the application has decided.
        self._response: Response | None = None
        self._connected = False
        self._accepted = False
        self._received = b""
        self._reading: asyncio.Task[None] | None = None
        self._parts: list[bytes] = []
        self._is_text = True
        self._incoming: asyncio.Queue[Message] = asyncio.Queue(MAX_QUEUED)
        self._ended: Message | None = None
        self._end = asyncio.Event()
        self._eof_sent = False
        self._broken = False
        self._writing = asyncio.Lock()

    async def perform(self, app: Any, handshake: bytes, received: bytes) -> None:
        """Lets the application talk to the client that sent this handshake, and these bytes after it."""
        self._received = received
        self._protocol.receive_data(handshake)
        request = next(iter(self._protocol.events_received()), None)
        if not isinstance(request, Request):
            log.debug("a websocket handshake cannot be read: %s", self._protocol.handshake_exc)
            self._writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            await self._writer.drain()
            return
        response = self._protocol.accept(request)
        if response.status_code != 101:
            await self._respond(response)
            return
        self._response = response
        try:
            await app(self._scope, self._receive, self._send)
            await self._finish(CloseCode.NORMAL_CLOSURE)
        except Exception as error:
            if isinstance(error, OSError) and (self._broken or self._ended is not None):
                log.debug("http.app sent to a client that is gone")
            else:
                log.exception("http.app failed")
            await self._finish(CloseCode.INTERNAL_ERROR)
        finally:
            if self._reading is not None:
                # Nobody takes what the client still sends.
                self._end.set()
                await asyncio.wait([self._reading], timeout=CLOSE_S)
                self._reading.cancel()

    async def _finish(self, code: int) -> None:
        """Ends what the application left open."""
        if self._accepted:
            await self._close(code, "")
        elif self._response is not None:
            await self._reject(500)

    async def _receive(self) -> Message:
        if not self._connected:
            self._connected = True
            return {"type": "websocket.connect"}
        if self._ended is not None and self._incoming.empty():
            return self._ended
        return await self._incoming.get()

    async def _send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "websocket.accept":
            await self._accept(message)
        elif kind == "websocket.close" and not self._accepted:
            await self._reject(403)
        elif kind == "websocket.close":
            await self._close(message.get("code") or CloseCode.NORMAL_CLOSURE, message.get("reason") or "")
        elif kind == "websocket.send":
            if not self._accepted:
                raise RuntimeError("a websocket must be accepted before anything is sent on it")
            # As uvicorn does: an application that only sends learns in no other way that its client is gone.
            if self._broken or self._ended is not None:
                raise ConnectionResetError("the client of the websocket is gone")
            with contextlib.suppress(InvalidState):
                if (text := message.get("text")) is not None:
                    self._protocol.send_text(text.encode())
                else:
                    self._protocol.send_binary(message["bytes"])
            await self._flush()

    async def _accept(self, message: Message) -> None:
        response, self._response = self._response, None
        if response is None:
            raise RuntimeError("a websocket is accepted or closed once")
        if subprotocol := message.get("subprotocol"):
            response.headers["Sec-WebSocket-Protocol"] = subprotocol
        for name, value in message.get("headers") or ():
            response.headers[bytes(name).decode("latin-1")] = bytes(value).decode("latin-1")
        self._accepted = True
        await self._respond(response)
        self._reading = asyncio.create_task(self._read())

    async def _reject(self, status: int) -> None:
        if self._response is None:
            raise RuntimeError("a websocket is accepted or closed once")
        self._response = None
        await self._respond(self._protocol.reject(status, ""))

    async def _respond(self, response: Response) -> None:
        self._protocol.send_response(response)
        await self._flush()

    async def _close(self, code: int, reason: str) -> None:
        with contextlib.suppress(InvalidState):
            self._protocol.send_close(code, reason)
        await self._flush()

    async def _flush(self) -> None:
        async with self._writing:
            for data in self._protocol.data_to_send():
                if data:
                    self._writer.write(data)
                    continue
                self._eof_sent = True
                if self._writer.can_write_eof():
                    self._writer.write_eof()
            try:
                await self._writer.drain()
            except ConnectionError:
                self._broken = True

    async def _read(self) -> None:
        """Hands on what the client sends, to its end."""
        silent = 0
        try:
            if self._received:
                await self._feed(self._received)
            while not self._eof_sent and self._protocol.state is not State.CLOSED:
                try:
                    data = await asyncio.wait_for(self._reader.read(READ_BYTES), PING_INTERVAL_S)
                except asyncio.TimeoutError:
                    silent += 1
                    if silent > MAX_SILENT_PINGS:
                        return
                    self._protocol.send_ping(b"")
                    await self._flush()
                    continue
                silent = 0
                await self._feed(data)
        except (ConnectionError, InvalidState) as error:
            log.debug("a websocket of http.app broke: %s", error)
        finally:
            close = self._protocol.close_rcvd
            self._ended = {
                "type": "websocket.disconnect",
                "code": int(CloseCode.ABNORMAL_CLOSURE if close is None else close.code),
                "reason": "" if close is None else close.reason,
            }
            # One who waits for a message is told; others find it once they have taken what came before.
            with contextlib.suppress(asyncio.QueueFull):
                self._incoming.put_nowait(self._ended)
        # What the client sent meanwhile has to be read: a connection that is closed before loses what was sent last.
        with contextlib.suppress(asyncio.TimeoutError, ConnectionError):
            await asyncio.wait_for(self._discard(), CLOSE_S)
        self._writer.close()

    async def _discard(self) -> None:
        while await self._reader.read(READ_BYTES):
            pass

    async def _feed(self, data: bytes) -> None:
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        await self._flush()
        for frame in self._protocol.events_received():
            await self._take(frame)

    async def _take(self, frame: Any) -> None:
        if not isinstance(frame, Frame) or frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            # The protocol answers pings and closes itself.
            return
        if frame.opcode is not Opcode.CONT:
            self._parts = []
            self._is_text = frame.opcode is Opcode.TEXT
        self._parts.append(bytes(frame.data))
        if not frame.fin or self._end.is_set():
            return
        data = b"".join(self._parts)
        self._parts = []
        if not self._is_text:
            await self._offer({"type": "websocket.receive", "bytes": data, "text": None})
            return
        try:
            text = data.decode()
        except UnicodeDecodeError:
            self._protocol.fail(CloseCode.INVALID_DATA, "a text is not UTF-8")
            await self._flush()
            return
        await self._offer({"type": "websocket.receive", "text": text, "bytes": None})

    async def _offer(self, message: Message) -> None:
        """Queues a message, unless the application has returned."""
        put = asyncio.ensure_future(self._incoming.put(message))
        ended = asyncio.ensure_future(self._end.wait())
        try:
            await asyncio.wait([put, ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            put.cancel()
            ended.cancel()
