"""A process that imports the graphs once and forks children that have them."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

from . import wire
from .health import die_with
from .projects import Project
from .wire import Type

if TYPE_CHECKING:
    from .process import Lobby


def serve_forks(lobby: Lobby, project: Project, load_ms: int, safe: bool) -> int:
    """Answers FORK until the server is gone or says SHUTDOWN."""
    # Pages that the collector does not touch stay shared.
    gc.collect()
    gc.freeze()
    lobby.tell(Type.READY, {"graphs": [], "http": False, "fork_safe": safe, "load_ms": load_ms})
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        sources: list[Any] = [lobby.sock, wake]
        readable, _, _ = select.select(sources, [], [])
        if wake in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
            _reap(lobby)
        if lobby.sock not in readable:
            continue
        frame = lobby.next()
        if frame is None or frame[0] == Type.SHUTDOWN:
            return 0
        type_, fields = frame
        if type_ != Type.FORK:
            continue
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number in (wake, woken):
                os.close(number)
            lobby.sock.close()
            _child(fields["socket"], fields.get("output"), project, load_ms, parent)
        lobby.tell(Type.FORKED, {"pid": pid, "socket": fields["socket"]})


def _child(path: str, output: str | None, project: Project, load_ms: int, parent: int) -> None:
    """The fork: a child like any other, which need not import anything. Does not return."""
    from .process import EXIT_PROTOCOL, Lobby, work

    code = EXIT_PROTOCOL
    try:
        # A group of its own, so that it can be ended with what it starts.
        os.setpgid(0, 0)
        die_with(parent)
        sock = _connected(path)
        if output is not None:
            with _connected(output) as out:
                os.dup2(out.fileno(), 1)
                os.dup2(out.fileno(), 2)
        lobby = Lobby(sock)
        init = lobby.greet()
        code = 0 if init is None else work(sock, project, init, load_ms)
    except (OSError, wire.ProtocolError) as error:
        print(f"a fork cannot talk to the server: {error}", file=sys.stderr)
    finally:
        os._exit(code)


def _connected(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(path)
    return sock


def _reap(lobby: Lobby) -> None:
    """Tells which forks ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        fields = {"pid": pid, "status": code if code >= 0 else None, "signal": -code if code < 0 else None}
        lobby.tell(Type.EXITED, fields)
