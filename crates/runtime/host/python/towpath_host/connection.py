"""The socket to the server, read and written by the event loop, and by a second thread when the loop is busy."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from .wire import MAX_FRAME_BYTES, Parser, ProtocolError, Type, frame, pack

READ_BYTES = 1 << 18
READS_AT_ONCE = 8

Frame = tuple[int, int, bytes]


class Connection:
    """Frames in, frames out, in order.

    ``send`` may be called from any thread. Frames that come in are handed to ``on_frame`` in the loop's thread. The end
    of the connection, or a peer that breaks the protocol, is told to ``on_close`` once.
    """

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        on_frame: Callable[[int, int, bytes], None],
        on_close: Callable[[Exception | None], None],
    ) -> None:
        sock.setblocking(False)
        self.max_frame_bytes = MAX_FRAME_BYTES
        """The longest frame the server takes."""
        self._parser = Parser()
        self._sock = sock
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._on_frame = on_frame
        self._on_close = on_close
        self._closed = False
        self._reading = threading.Lock()
        self._aside: deque[Frame] = deque()
        self._writing = threading.Lock()
        self._out: list[bytes] = []
        self._logs = 0
        """Bytes of LOG frames among them."""
        self._rest: memoryview | None = None
        self._flush_asked = False
        self._watching_write = False
        loop.add_reader(sock.fileno(), self._readable)

    # -- writing

    def send(self, type_: int, stream: int, payload: bytes) -> None:
        """Queues a frame."""
        if len(payload) + 5 > self.max_frame_bytes:
            raise ValueError(
                f"{len(payload)} bytes in one piece (a state, a message, an update) are more than the server takes "
                f"({self.max_frame_bytes} bytes)"
            )
        data = frame(type_, stream, payload)
        with self._writing:
            if self._closed:
                return
            self._out.append(data)
            if type_ == Type.LOG:
                self._logs += len(data)
            if self._flush_asked:
                return
            self._flush_asked = True
        # A loop that is closed belongs to a process that ends.
        with contextlib.suppress(RuntimeError):
            if threading.get_ident() == self._loop_thread:
                # What this turn of the loop still has to say goes out in the same system call.
                self._loop.call_soon(self._flush)
            else:
                self._loop.call_soon_threadsafe(self._flush)

    def tell(self, type_: int, stream: int, fields: dict[str, Any]) -> None:
        """Queues a frame with a map."""
        self.send(type_, stream, pack(fields))

    def send_now(self, type_: int, stream: int, payload: bytes) -> None:
        """Writes a frame without the loop, from any thread; what the socket does not take is left to the loop."""
        with self._writing:
            if self._closed:
                return
            self._out.append(frame(type_, stream, payload))
            done = self._write()
        if not done:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        with self._writing:
            self._flush_asked = False
            if self._closed:
                return
            done = self._write()
            if done == self._watching_write:
                self._watching_write = not done
                if done:
                    self._loop.remove_writer(self._sock.fileno())
                else:
                    self._loop.add_writer(self._sock.fileno(), self._flush)

    def _write(self) -> bool:
        """Writes what it can; says whether that was all. Under the lock."""
        while self._rest is not None or self._out:
            if self._rest is None:
                self._rest = memoryview(self._out[0] if len(self._out) == 1 else b"".join(self._out))
                self._out.clear()
                self._logs = 0
            try:
                sent = self._sock.send(self._rest)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                # The reader sees the end as well, and tells it.
                self._rest = None
                self._out.clear()
                return True
            self._rest = self._rest[sent:] if sent < len(self._rest) else None
        return True

    @property
    def log_bytes(self) -> int:
        """How much of what was said waits for what is written before it."""
        return self._logs

    def drain(self, limit_s: float) -> None:
        """Writes what is queued, waiting for the socket at most so long. For the end of the process."""
        with self._writing:
            while not self._closed and not self._write():
                _, writable, _ = select.select([], [self._sock], [], limit_s)
                if not writable:
                    return

    # -- reading

    def _readable(self) -> None:
        ended = False
        error: Exception | None = None
        with self._reading:
            frames = list(self._aside)
            self._aside.clear()
            try:
                more, ended = self._read()
                frames += more
            except ProtocolError as broken:
                error, ended = broken, True
        for one in frames:
            self._on_frame(*one)
        if ended:
            self.close(error)

    def _read(self) -> tuple[list[Frame], bool]:
        """Frames that are there, and whether the end was reached. Under the lock."""
        frames: list[Frame] = []
        for _ in range(READS_AT_ONCE):
            try:
                data = self._sock.recv(READ_BYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                return frames, True
            if not data:
                return frames, True
            frames += self._parser.feed(data)
            if len(data) < READ_BYTES:
                break
        return frames, False

    def read_aside(self, mine: Callable[[int, int, bytes], bool]) -> bool:
        """Reads in place of the loop: frames that ``mine`` takes are done with, others wait for the loop. Says whether
        the connection still is."""
        readable, _, _ = select.select([self._sock], [], [], 0)
        if not readable:
            return True
        with self._reading:
            try:
                frames, ended = self._read()
            except ProtocolError:
                return False
            self._aside.extend(one for one in frames if not mine(*one))
            waiting = bool(self._aside)
        if waiting:
            self._loop.call_soon_threadsafe(self._readable)
        return not ended

    def close(self, error: Exception | None = None) -> None:
        """Ends the connection."""
        with self._writing:
            if self._closed:
                return
            self._closed = True
        self._loop.remove_reader(self._sock.fileno())
        if self._watching_write:
            self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        self._on_close(error)
