"""Threads of synchronous code, and which of them are still at work for requests that are over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .streams import CURRENT, Stream


class Threads(ThreadPoolExecutor):
    """The executor of the loop.

    A thread cannot be stopped: when its run is cancelled, it continues until its code returns, and keeps its place.
    """

    def __init__(self, most: int) -> None:
        super().__init__(most, thread_name_prefix="towpath-node")
        self._working: dict[int, Stream] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        stream = CURRENT.get(None)
        if stream is None:
            return super().submit(fn, *args, **kwargs)
        return super().submit(self._work, stream, fn, args, kwargs)

    def _work(self, stream: Stream, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        thread = threading.get_ident()
        self._working[thread] = stream
        try:
            return fn(*args, **kwargs)
        finally:
            del self._working[thread]

    def stray(self) -> int:
        """How many threads work for requests that are over. May be asked from any thread."""
        return sum(stream.ended for stream in list(self._working.values()))
