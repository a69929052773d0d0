"""What the user's code says, as LOG frames with the run it was said in."""

from __future__ import annotations

import io
import logging
import sys
import threading
import traceback
import warnings
from datetime import datetime, timezone
from typing import Any, TextIO

from .connection import Connection
from .streams import CURRENT
from .wire import Type

LINE_CHARS = 16 << 10
"""A line that is longer is told in pieces, of a record the beginning."""

WAITING_BYTES = 8 << 20
"""While so much waits to be told, what is said is dropped: output costs no credit, and must not fill the memory."""

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def install(connection: Connection, level: str) -> None:
    """Sends records, and lines of standard output and error, to the server."""
    root = logging.getLogger()
    teller = Teller(connection)
    root.handlers[:] = [Handler(teller)]
    root.setLevel(_LEVELS.get(level, logging.INFO))
    # Who calls a model hears of it once, not once for each request below.
    for noisy in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(True)
    warnings.filterwarnings("ignore", message="`durability` has no effect")
    sys.stdout = Lines(teller, "stdout", sys.__stdout__)  # type: ignore[assignment]
    sys.stderr = Lines(teller, "stderr", sys.__stderr__)  # type: ignore[assignment]


class Teller:
    """Sends LOG frames, unless the server is far behind."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._dropped = 0

    def tell(self, fields: dict[str, Any]) -> None:
        """Sends one record, in the name of the request at hand."""
        if self._connection.log_bytes > WAITING_BYTES:
            # Two threads may count one where they dropped two.
            self._dropped += 1
            return
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            message = f"{dropped} lines and records were dropped: more was said than the server could take"
            self._send({"level": "warning", "logger": "towpath_host", "message": message, "source": "log"})
        stream = CURRENT.get(None)
        if stream is not None:
            fields |= {"run": stream.run, "thread": stream.thread, "graph": stream.graph}
        self._send(fields)

    def _send(self, fields: dict[str, Any]) -> None:
        fields.setdefault("time", datetime.now(timezone.utc).isoformat())
        self._connection.tell(Type.LOG, 0, fields)


class Handler(logging.Handler):
    """Records of the standard library's logging."""

    def __init__(self, teller: Teller) -> None:
        super().__init__()
        self._teller = teller

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
            if record.exc_info:
                message += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
            elif record.exc_text:
                message += "\n" + record.exc_text
            self._teller.tell(
                {
                    "level": _level(record.levelno),
                    "logger": record.name,
                    "message": message[:LINE_CHARS],
                    "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(),
                    "source": "log",
                }
            )
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """A record that cannot be told must not end a run."""
        if sys.__stderr__ is not None:
            sys.__stderr__.write(f"a record of {record.name} cannot be formatted\n")


def _level(number: int) -> str:
    for level in ("error", "warning", "info"):
        if number >= _LEVELS[level]:
            return level
    return "debug"


class Lines(io.TextIOBase):
    """Standard output or error: each line is a record of its own."""

    def __init__(self, teller: Teller, source: str, under: TextIO | None) -> None:
        self._teller = teller
        self._source = source
        self._under = under
        self._rest = threading.local()

    def write(self, text: str) -> int:
        pending = getattr(self._rest, "text", "") + text
        *lines, pending = pending.split("\n")
        if len(pending) > LINE_CHARS:
            lines.append(pending)
            pending = ""
        self._rest.text = pending
        for line in lines:
            if line.strip():
                self._line(line)
        return len(text)

    def _line(self, line: str) -> None:
        for at in range(0, len(line), LINE_CHARS):
            self._teller.tell(
                {
                    "level": "info" if self._source == "stdout" else "warning",
                    "logger": self._source,
                    "message": line[at : at + LINE_CHARS].rstrip("\r"),
                    "source": self._source,
                }
            )

    def flush(self) -> None:
        pending = getattr(self._rest, "text", "")
        if pending.strip():
            self._rest.text = ""
            self._line(pending)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        if self._under is None:
            raise io.UnsupportedOperation("fileno")
        return self._under.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "replace"
