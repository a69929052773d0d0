"""One way to write a test for both forms of the official client."""

import asyncio
import inspect
import time

_END = object()


class Awaitable:
    """The synchronous client behind the asynchronous one's face: calls become coroutines, iterators asynchronous."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        value = getattr(self._inner, name)
        if name.startswith("_"):
            return value
        if inspect.ismethod(value) or inspect.isfunction(value):
            return lambda *args, **kwargs: Call(value, args, kwargs)
        if hasattr(value, "__dict__") and not isinstance(value, type):
            return Awaitable(value)
        return value


class Call:
    """A call that was not made yet: awaited it runs in a thread, iterated it hands on what the thread yields."""

    def __init__(self, method, args, kwargs):
        self.method, self.args, self.kwargs = method, args, kwargs

    def __await__(self):
        return asyncio.to_thread(self.method, *self.args, **self.kwargs).__await__()

    async def __aiter__(self):
        iterator = iter(await asyncio.to_thread(self.method, *self.args, **self.kwargs))
        while (item := await asyncio.to_thread(next, iterator, _END)) is not _END:
            yield item


async def collect(stream):
    """Everything a stream gives."""
    return [part async for part in stream]


async def eventually(what, ask, limit_s=50.0):
    """Asks until the answer is true, and gives it; fails when `limit_s` is over. The graph `slow` lasts longer than that: what
    is cancelled and what ends by itself must not look the same."""
    deadline = time.monotonic() + limit_s
    while not (answer := await ask()):
        assert time.monotonic() < deadline, f"waited {limit_s} s in vain: {what}; the last answer: {answer!r}"
        await asyncio.sleep(0.02)
    return answer
