"""The process: from its arguments to a child at work."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import gc
import importlib.metadata
import os
import platform
import socket
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any

from . import PROTOCOL, text, wire
from .child import Child
from .health import die_with_parent, end_group
from .loading import LoadFailure
from .projects import Project
from .wire import Type

EXIT_USAGE = 2
EXIT_LOAD = 3
EXIT_PROTOCOL = 4

_PACKAGES = ("langgraph", "langgraph-checkpoint", "langchain-core", "langgraph-sdk")
_CAPABILITIES = ["fork", "events", "delta", "auth", "http", "encryption", "embed"]


class Lobby:
    """The connection before there is a loop: blocking, one frame after the other."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._parser = wire.Parser()
        self._frames: list[tuple[int, int, bytes]] = []

    def tell(self, type_: int, fields: dict[str, Any]) -> None:
        """Sends a frame of the connection."""
        self.sock.sendall(wire.frame(type_, 0, wire.pack(fields)))

    def next(self) -> tuple[int, dict[str, Any]] | None:
        """The next frame; ``None`` at the end."""
        while not self._frames:
            # No more than a frame at a time: what follows belongs to the loop.
            head = self._exactly(wire.HEADER.size)
            if head is None:
                return None
            length = wire.HEADER.unpack(head)[0]
            if length < 5:
                raise wire.ProtocolError(f"a frame of {length} bytes")
            body = self._exactly(length - 5)
            if body is None:
                return None
            self._frames = self._parser.feed(head + body)
        type_, _, payload = self._frames.pop(0)
        return type_, wire.unpack(payload)

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            more = self.sock.recv(count - len(data))
            if not more:
                return None
            data += more
        return bytes(data)

    def greet(self) -> dict[str, Any] | None:
        """HELLO, then INIT; ``None`` when the server went away instead."""
        versions = {}
        for package in _PACKAGES:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[package] = importlib.metadata.version(package)
        self.tell(
            Type.HELLO,
            {
                "protocol": {"min": PROTOCOL, "max": PROTOCOL},
                "runtime": "python",
                "runtime_version": platform.python_version(),
                "pid": os.getpid(),
                "versions": versions,
                "capabilities": _CAPABILITIES,
            },
        )
        frame = self.next()
        if frame is None:
            return None
        type_, init = frame
        if type_ != Type.INIT or init.get("protocol") != PROTOCOL:
            print(f"the server speaks protocol {init.get('protocol')!r}, not {PROTOCOL}", file=sys.stderr)
            raise SystemExit(EXIT_PROTOCOL)
        return init

    def refuse(self, failed: LoadFailure) -> None:
        """LOAD_ERROR."""
        self.tell(
            Type.LOAD_ERROR,
            {
                "graph": failed.graph,
                "file": failed.file,
                "line": failed.line,
                "error": failed.error,
                "message": failed.message,
                "traceback": failed.traceback,
            },
        )


def main(arguments: list[str]) -> int:
    """Runs one child, or a process that forks children."""
    parser = argparse.ArgumentParser(prog="python -m towpath_host", description="Runs graphs for a Towpath server.")
    parser.add_argument("--socket", help="path of the server's socket; without it, standard input is the socket")
    parser.add_argument("--fork-server", action="store_true", help="import the graphs, then fork children as told")
    options = parser.parse_args(arguments)
    faulthandler.enable(all_threads=False)
    die_with_parent()
    sock = _connect(options.socket) if options.socket else _inherited()
    if sock is None:
        parser.print_usage(sys.stderr)
        print("standard input is no socket, and there is no --socket", file=sys.stderr)
        return EXIT_USAGE
    lobby = Lobby(sock)
    init = lobby.greet()
    if init is None:
        return 0
    began = time.monotonic()
    try:
        project = _project(init)
    except LoadFailure as failed:
        lobby.refuse(failed)
        return EXIT_LOAD
    load_ms = int((time.monotonic() - began) * 1000)
    if options.fork_server:
        from .forking import serve_forks

        return serve_forks(lobby, project, load_ms, fork_safe(sock))
    return work(sock, project, init, load_ms)


def work(sock: socket.socket, project: Project, init: dict[str, Any], load_ms: int) -> int:
    """A child at work, until the end of the process."""
    # What lives now lives on, and needs no looking through again.
    gc.collect()
    gc.freeze()
    # A run makes and drops thousands of small objects; looking for cycles less often saves a tenth of its time.
    gc.set_threshold(10_000, 20, 20)
    safe = fork_safe(sock)
    loop = _new_loop()
    asyncio.set_event_loop(loop)

    async def serve() -> None:
        await Child(sock, project, init, load_ms).serve(safe)

    try:
        loop.run_until_complete(serve())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    _flush_traces()
    end_group()
    # Not by way of the interpreter's end: that waits for threads of nodes that may never come back.
    os._exit(0)


def fork_safe(own: socket.socket) -> bool:
    """Whether no thread but this one runs, and nothing is connected but to the server: two processes on one
    connection take each other's answers."""
    try:
        if len(os.listdir("/proc/self/task")) != 1:
            return False
        for name in os.listdir("/proc/self/fd"):
            number = int(name)
            if number <= 2 or number == own.fileno():
                continue
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(f"/proc/self/fd/{name}").startswith(("socket:", "anon_inode:[eventpoll]")):
                    return False
        return True
    except OSError:
        return False


def _project(init: dict[str, Any]) -> Project:
    folder = Path(init["folder"]).resolve()
    return Project(text.loads(init["config"]), folder, init.get("graphs"))


def _connect(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(path)
    return sock


def _inherited() -> socket.socket | None:
    if not stat.S_ISSOCK(os.fstat(0).st_mode):
        return None
    sock = socket.socket(fileno=os.dup(0))
    # Code that reads standard input must not read frames.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return sock


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _flush_traces() -> None:
    """Gives tracers a moment to send what they have."""
    module = sys.modules.get("langchain_core.tracers.langchain")
    if module is None:
        return
    flushing = threading.Thread(target=module.wait_for_all_tracers, daemon=True)
    flushing.start()
    flushing.join(3.0)
