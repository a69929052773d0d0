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
"""A line that is longer is told in pieces."""

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def install(connection: Connection, level: str) -> None:
    """Sends records, and lines of standard output and error, to the server."""
    root = logging.getLogger()
    root.handlers[:] = [Handler(connection)]
    root.setLevel(_LEVELS.get(level, logging.INFO))
    # Who calls a model hears of it once, not once for each request below.
    for noisy in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(True)
    warnings.filterwarnings("ignore", message="`durability` has no effect")
    sys.stdout = Lines(connection, "stdout", sys.__stdout__)  # type: ignore[assignment]
    sys.stderr = Lines(connection, "stderr", sys.__stderr__)  # type: ignore[assignment]


def _tell(connection: Connection, fields: dict[str, Any]) -> None:
    stream = CURRENT.get(None)
    if stream is not None:
        fields |= {"run": stream.run, "thread": stream.thread, "graph": stream.graph}
    connection.tell(Type.LOG, 0, fields)


class Handler(logging.Handler):
    """Records of the standard library's logging."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
            if record.exc_info:
                message += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
            elif record.exc_text:
                message += "\n" + record.exc_text
            _tell(
                self._connection,
                {
                    "level": _level(record.levelno),
                    "logger": record.name,
                    "message": message,
                    "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(),
                    "source": "log",
                },
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

    def __init__(self, connection: Connection, source: str, under: TextIO | None) -> None:
        self._connection = connection
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
        _tell(
            self._connection,
            {
                "level": "info" if self._source == "stdout" else "warning",
                "logger": self._source,
                "message": line[:LINE_CHARS].rstrip("\r"),
                "time": datetime.now(timezone.utc).isoformat(),
                "source": self._source,
            },
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
