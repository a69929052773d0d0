"""A thread that answers for the process while the user's code blocks the event loop, and ends it without its server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import datetime, timezone

from . import wire
from .connection import Connection
from .wire import Type

BEAT_S = 0.5
"""How often the loop says that it turns."""
BUSY_S = 1.0
"""A loop that has not turned for so long does not read either: the thread reads."""
GRACE_S = 2.0
"""What a process whose server is gone has left."""

_HERE = os.path.dirname(__file__)


class Health:
    """Watches one loop."""

    def __init__(
        self,
        connection: Connection,
        loop: asyncio.AbstractEventLoop,
        streams: Callable[[], int],
        stray_threads: Callable[[], int],
    ) -> None:
        self._connection = connection
        self._loop = loop
        self._streams = streams
        self._stray_threads = stray_threads
        self._beat = time.monotonic()
        self._loop_thread = threading.get_ident()
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
            "stray_threads": self._stray_threads(),
        }
        self._connection.send_now(Type.PONG, 0, wire.pack(answer))

    def gone(self) -> None:
        """The server is gone: the process has a moment to end by itself."""
        self._gone.set()

    def _tick(self) -> None:
        self._beat = time.monotonic()
        self._loop.call_later(BEAT_S, self._tick)

    def _watch(self) -> None:
        told = 0.0
        while not self._gone.wait(BEAT_S):
            beat = self._beat
            if time.monotonic() - beat < BUSY_S:
                continue
            if beat != told:
                told = beat
                self._tell_where(time.monotonic() - beat)
            with contextlib.suppress(OSError, ValueError):
                # ValueError: the loop closed the socket meanwhile.
                if not self._connection.read_aside(self._mine):
                    break
        time.sleep(GRACE_S)
        end()

    def _tell_where(self, blocked_s: float) -> None:
        """Says once for each time the loop is blocked where the code is: all other runs of the process wait for it."""
        frame = sys._current_frames().get(self._loop_thread)
        stack = traceback.extract_stack(frame)
        # The last frame outside of installed packages is most likely the line to look at.
        own = [one for one in stack if "site-packages" not in one.filename and "/lib/python" not in one.filename]
        own = [one for one in own if not one.filename.startswith(_HERE)]
        if not own:
            return
        where = own[-1]
        log = {
            "level": "warning",
            "logger": "towpath_host",
            "message": f"an asynchronous node has blocked the event loop for {blocked_s:.1f} s, and all other runs, "
            f"at {where.filename}:{where.lineno} in {where.name}: {where.line}. Make it a plain `def`, or await "
            "`asyncio.to_thread(…)`",
            "time": datetime.now(timezone.utc).isoformat(),
            "source": "log",
        }
        self._connection.send_now(Type.LOG, 0, wire.pack(log))

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
    if parent and parent.isdigit():
        die_with(int(parent))


def die_with(parent: int) -> None:
    """Asks Linux to end this process with its parent, which had this id. Elsewhere it does nothing."""
    if not os.path.exists("/proc/self/statm"):
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        # It was gone before it could be asked for.
        os._exit(0)
