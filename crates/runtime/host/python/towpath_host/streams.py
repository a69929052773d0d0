"""One request of the server: its credit, the calls made in its name, and how it is aborted."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

from .connection import Connection
from .wire import pack

CURRENT: ContextVar[Stream] = ContextVar("towpath_stream")
"""The request in whose name the code at hand runs. Tasks and threads that langgraph starts inherit it."""


class CallError(Exception):
    """The server did not do what was asked."""

    def __init__(self, kind: str, class_: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.class_ = class_


class NotSupported(CallError, NotImplementedError):
    """The server cannot do what was asked."""


def call_error(error: dict[str, Any]) -> CallError:
    """An error of a REPLY or a FAIL as an exception."""
    kind = error.get("kind") or "invalid"
    class_ = NotSupported if kind == "unsupported" else CallError
    return class_(kind, error.get("error") or "RuntimeError", error.get("message") or kind)


def current() -> Stream:
    """The request in whose name the code at hand runs."""
    try:
        return CURRENT.get()
    except LookupError:
        raise RuntimeError(
            "checkpoints and items can only be reached from within a run; this code was started outside of one"
        ) from None


class Stream:
    """One request."""

    def __init__(self, connection: Connection, id_: int, window_bytes: int) -> None:
        self.id = id_
        self.thread: str | None = None
        self.run: str | None = None
        self.graph: str | None = None
        self.sync = False
        """Checkpoints are durable before the graph continues."""
        self.fresh = False
        """The thread had no checkpoint when the request came, and none was put since."""
        self._task: asyncio.Task[Any] | None = None
        self.cancelled: str | None = None
        """The action of a CANCEL."""
        self.aborted: CallError | None = None
        """Why the server gave the request up."""
        self.ended = False
        """The last frame was sent."""
        self.last_checkpoint: str | None = None
        """The last one put in the namespace of the graph itself."""
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._credit = window_bytes
        self._credit_came: asyncio.Event | None = None
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._next_call = 0

    def begin(self) -> None:
        """Says that the task at hand works for this request from now on. A request that was stopped before it began
        ends here."""
        CURRENT.set(self)
        self._task = asyncio.current_task()
        if self.cancelled is not None or self.aborted is not None:
            raise asyncio.CancelledError

    # -- out

    async def pay(self, type_: int, payload: bytes) -> None:
        """Sends a frame that costs credit, when there is credit."""
        while self._credit <= 0:
            if self._credit_came is None:
                self._credit_came = asyncio.Event()
            self._credit_came.clear()
            await self._credit_came.wait()
        self._credit -= len(payload)
        self.check()
        self._connection.send(type_, self.id, payload)

    async def tell(self, type_: int, fields: dict[str, Any]) -> None:
        """Sends a call that costs credit and wants no reply."""
        await self.pay(type_, pack(fields))

    async def ask(self, type_: int, fields: dict[str, Any], *, pay: bool = False) -> Any:
        """Makes a call and waits for the reply."""
        self.check()
        self._next_call += 1
        call = self._next_call
        fields["call"] = call
        future: asyncio.Future[Any] = self._loop.create_future()
        self._calls[call] = future
        try:
            if pay:
                await self.pay(type_, pack(fields))
            else:
                self._connection.send(type_, self.id, pack(fields))
            return await future
        finally:
            self._calls.pop(call, None)

    def check(self) -> None:
        """Raises when the server gave the request up."""
        if self.aborted is not None:
            raise self.aborted

    def end(self, type_: int, fields: dict[str, Any]) -> None:
        """Sends the last frame. Threads of nodes that were cancelled may still be at work: what they ask from now on
        fails."""
        self._connection.send(type_, self.id, pack(fields))
        self.ended = True
        if self.aborted is None:
            self.aborted = CallError("cancelled", "RuntimeError", "the run is over")
        for future in self._calls.values():
            if not future.done():
                future.set_exception(self.aborted)

    # -- in

    def on_credit(self, bytes_: int) -> None:
        """More may be sent."""
        self._credit += bytes_
        if self._credit > 0 and self._credit_came is not None:
            self._credit_came.set()

    def on_reply(self, fields: dict[str, Any]) -> None:
        """A call was answered."""
        error = fields.get("error")
        if error is not None and error.get("kind") in ("fenced", "lost", "cancelled"):
            self.on_fail(error)
        future = self._calls.get(fields.get("call", 0))
        if future is None or future.done():
            return
        if error is None:
            future.set_result(fields.get("value"))
        else:
            future.set_exception(call_error(error))

    def on_fail(self, error: dict[str, Any]) -> None:
        """The server gives the request up."""
        if error.get("kind") == "cancelled":
            self.on_cancel("interrupt")
            return
        if self.aborted is None:
            self.aborted = call_error(error)
        self._stop()

    def on_cancel(self, action: str) -> None:
        """The request shall stop."""
        if self.cancelled is None:
            self.cancelled = action
        self._stop()

    def _stop(self) -> None:
        if self._credit_came is not None:
            self._credit = max(self._credit, 1)
            self._credit_came.set()
        if self._task is not None:
            self._task.cancel()
