"""Runs whose events the thread-centric streaming protocol shows: langgraph's own stream of typed events."""

from __future__ import annotations

import warnings
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.pregel import Pregel

from .chunks import Sink

try:
    from langgraph.pregel._messages import StreamMessagesHandlerV2 as _  # noqa: F401
    from langgraph.stream import StreamChannel, StreamTransformer
except ImportError:
    # Of versions without such a stream, messages come in pieces, and the server makes events of them.
    SUPPORTED = False
else:
    SUPPORTED = True

MARK = "__event_streaming_v2"
"""Key of ``configurable`` that marks such runs."""

MODES = ("values", "updates", "messages", "tools", "custom", "tasks", "checkpoints")

_TASKS = "towpath_tasks"

# Said for each process that runs such a graph: the server asks for it, and not the graph's author.
warnings.filterwarnings("ignore", message="The v3 streaming protocol on Pregel is experimental")

if SUPPORTED:

    class _Everything(StreamTransformer):
        """Asks for every mode. Tasks are sent on through a channel: langgraph keeps them to itself otherwise."""

        required_stream_modes = MODES

        def __init__(self, scope: tuple[str, ...] = ()) -> None:
            super().__init__(scope)
            # Tasks of subgraphs come here, too, under their namespaces.
            self._tasks: Any = None if scope else StreamChannel(_TASKS)

        def init(self) -> dict[str, Any]:
            return {} if self._tasks is None else {_TASKS: self._tasks}

        def process(self, event: Any) -> bool:
            if self._tasks is not None and event["method"] == "tasks":
                params = event["params"]
                self._tasks.push({"namespace": params["namespace"], "data": params["data"]})
            return True


async def stream(graph: Pregel, given: Any, config: RunnableConfig, options: dict[str, Any], sink: Sink) -> None:
    """Runs a graph and sends its events."""
    # They are the stream's own to say.
    options = {name: value for name, value in options.items() if name not in ("stream_mode", "subgraphs")}
    run = await graph.astream_events(given, config, version="v3", transformers=[_Everything], **options)
    async with run:
        async for event in run:
            await _send(sink, event["method"], event["params"])


async def _send(sink: Sink, method: str, params: dict[str, Any]) -> None:
    ns, data = params["namespace"], params["data"]
    if method == f"custom:{_TASKS}":
        await sink.part(data["namespace"], "tasks", data["data"])
    elif method == "values":
        interrupts = params.get("interrupts")
        if interrupts and isinstance(data, dict):
            data = {**data, "__interrupt__": list(interrupts)}
        await sink.part(ns, method, data)
    elif method == "messages":
        message, metadata = data
        if isinstance(message, dict) and isinstance(message.get("event"), str):
            await sink.block(ns, message, metadata)
        else:
            await sink.part(ns, method, data)
    elif method in ("updates", "custom", "checkpoints"):
        await sink.part(ns, method, data)
    elif method == "tools" or method.startswith("custom:"):
        await sink.named(ns, method, data)
