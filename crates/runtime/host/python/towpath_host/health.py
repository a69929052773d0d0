"""A thread that answers for the process while the user's code blocks the event loop, and ends it without its server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable

from . import wire
from .connection import Connection
from .wire import Type

BEAT_S = 0.5
"""How often the loop says that it turns."""
BUSY_S = 1.0
"""A loop that has not turned for so long does not read either: the thread reads."""
GRACE_S = 2.0
"""What a process whose server is gone has left."""


class Health:
    """Watches one loop."""

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop, streams: Callable[[], int]) -> None:
        self._connection = connection
        self._loop = loop
        self._streams = streams
        self._beat = time.monotonic()
        self._gone = threading.Event()
        self._tick()
        threading.Thread(target=self._watch, name="towpath-health", daemon=True).start()

    def on_ping(self, payload: bytes) -> None:
        """Answers a PING, from any thread."""
        late = time.monotonic() - self._beat - BEAT_S
        answer = {
            "t": wire.unpack(payload).get("t", 0),
            "loop_lag_ms": max(0, int(late * 1000)),
            "rss_bytes": rss_bytes(),
            "streams": self._streams(),
        }
        self._connection.send_now(Type.PONG, 0, wire.pack(answer))

    def gone(self) -> None:
        """The server is gone: the process has a moment to end by itself."""
        self._gone.set()

    def _tick(self) -> None:
        self._beat = time.monotonic()
        self._loop.call_later(BEAT_S, self._tick)

    def _watch(self) -> None:
        while not self._gone.wait(BEAT_S):
            if time.monotonic() - self._beat < BUSY_S:
                continue
            with contextlib.suppress(OSError, ValueError):
                # ValueError: the loop closed the socket meanwhile.
                if not self._connection.read_aside(self._mine):
                    break
        time.sleep(GRACE_S)
        end()

    def _mine(self, type_: int, stream: int, payload: bytes) -> bool:
        if type_ != Type.PING:
            return False
        self.on_ping(payload)
        return True


def end() -> None:
    """Ends this process at once, with whatever the user's code started."""
    with contextlib.suppress(OSError):
        if os.getpgid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)
    os._exit(0)


def end_group() -> None:
    """Asks what the user's code started to end, when this process leads a group of its own."""
    with contextlib.suppress(OSError, ValueError):
        if os.getpgid(0) == os.getpid():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(0, signal.SIGTERM)


def rss_bytes() -> int:
    """How much memory the process holds."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        import resource
        import sys

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def die_with_parent() -> None:
    """Asks Linux to end this process with the one that started it, when that says which it is."""
    parent = os.environ.get("TOWPATH_HOST_PARENT")
    if not parent or not parent.isdigit() or not os.path.exists("/proc/self/statm"):
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        # It was gone before it could be asked for.
        os._exit(0)
