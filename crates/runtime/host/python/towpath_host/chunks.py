"""What runs stream, as frames."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, BaseMessageChunk, convert_to_messages, message_chunk_to_message

from . import states, text
from .streams import Stream
from .wire import Type

CODES = {
    "values": 1,
    "updates": 2,
    "messages": 3,
    "messages/metadata": 4,
    "messages/partial": 5,
    "messages/complete": 6,
    "custom": 7,
    "tasks": 8,
    "checkpoints": 9,
    "debug": 10,
    "events": 11,
}
_LENGTH = struct.Struct(">H")
_NAMED = 0
_HEADS = {code: bytes((code, 0)) for code in (_NAMED, *CODES.values())}
_METADATA_KEPT = 32


def langgraph_modes(wanted: Iterable[str]) -> list[str]:
    """The modes to ask langgraph for. ``values`` is always among them: the last one is what the run leaves."""
    modes = {"values"}
    # Calls of tools come with the stream of typed events.
    own = ("events", "tools")
    modes.update("messages" if mode == "messages-tuple" else mode for mode in wanted if mode not in own)
    return sorted(modes)


class Sink:
    """Sends chunks of the modes that were asked for."""

    def __init__(self, stream: Stream, wanted: Iterable[str]) -> None:
        self._stream = stream
        self.wanted = frozenset(wanted)
        self.values: Any = None
        """The last state of the graph itself."""
        self.values_seen = False
        self.interrupted = False
        self._values_json: bytes | None = None
        self._grown: dict[str, BaseMessage] = {}
        self._metadata: dict[int, tuple[Any, bytes]] = {}
        self._speaking: dict[str, str] = {}
        """Call of a model to the message it is at."""

    def values_json(self) -> bytes:
        """The last state as JSON."""
        return text.dumps(self.values) if self._values_json is None else self._values_json

    async def part(self, ns: Sequence[str], mode: str, payload: Any) -> None:
        """One part of langgraph's stream."""
        if not ns and isinstance(payload, dict) and "__interrupt__" in payload and mode in ("values", "updates"):
            self.interrupted = True
        if mode == "values" and not ns:
            self.values, self.values_seen, self._values_json = payload, True, None
            if "values" in self.wanted:
                self._values_json = text.dumps(payload)
                await self._send(ns, mode, self._values_json)
        elif mode == "messages":
            await self._message(ns, *payload)
        elif mode in self.wanted:
            await self._send(ns, mode, text.dumps(_debug(payload) if mode == "debug" else payload))

    async def block(self, ns: Sequence[str], event: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """One event of a message in content blocks. Several messages may grow at once, so each event says whose it is."""
        call = str(metadata.get("run_id") or "")
        kind = event["event"]
        if kind == "message-start":
            self._speaking[call] = str(event.get("id") or event.get("message_id") or call)
        id_ = self._speaking.get(call, call)
        if kind in ("message-finish", "error"):
            self._speaking.pop(call, None)
        shown = {**event, "run_id": call, "message_id": id_, "__node": metadata.get("langgraph_node")}
        if kind == "message-start":
            shown["id"] = id_
        await self._send(ns, "messages", text.dumps(shown))

    async def named(self, ns: Sequence[str], name: str, payload: Any) -> None:
        """A chunk under a name that has no code."""
        encoded = name.encode()
        head = _head(_NAMED, ns) + _LENGTH.pack(len(encoded)) + encoded
        await self._stream.pay(Type.CHUNK, head + text.dumps(payload))

    async def event(self, event: Mapping[str, Any]) -> None:
        """One event of langchain's event stream."""
        if "events" in self.wanted:
            await self._send((), "events", text.dumps(event))

    async def _message(self, ns: Sequence[str], message: Any, metadata: dict[str, Any]) -> None:
        if not isinstance(message, BaseMessage):
            message = convert_to_messages([message])[0]
        described = self._metadata_json(metadata)
        if "messages-tuple" in self.wanted:
            await self._send(ns, "messages", b"[%b,%b]" % (text.dumps(message), described))
        if "messages" not in self.wanted:
            return
        id_ = message.id or ""
        known = self._grown.get(id_)
        if known is None:
            await self._send(ns, "messages/metadata", b'{%b:{"metadata":%b}}' % (text.dumps(id_), described))
        if isinstance(message, BaseMessageChunk):
            grown = known + message if isinstance(known, BaseMessageChunk) else message
            self._grown[id_] = grown
            whole = message_chunk_to_message(grown)
            await self._send(ns, "messages/partial", text.dumps([whole]))
        else:
            self._grown[id_] = message
            await self._send(ns, "messages/complete", text.dumps([message]))

    def _metadata_json(self, metadata: dict[str, Any]) -> bytes:
        """Tokens of one message share one object."""
        kept = self._metadata.get(id(metadata))
        if kept is not None and kept[0] is metadata:
            return kept[1]
        if len(self._metadata) >= _METADATA_KEPT:
            self._metadata.clear()
        # Clients of different ages look under either name.
        encoded = text.dumps({**metadata, "graph_node": metadata.get("langgraph_node")})
        self._metadata[id(metadata)] = (metadata, encoded)
        return encoded

    async def _send(self, ns: Sequence[str], mode: str, data: bytes) -> None:
        await self._stream.pay(Type.CHUNK, _head(CODES[mode], ns) + data)


def _head(code: int, ns: Sequence[str]) -> bytes:
    if not ns:
        return _HEADS[code]
    levels = [level.encode() for level in ns]
    return bytes((code, len(levels))) + b"".join(_LENGTH.pack(len(level)) + level for level in levels)


def _debug(payload: dict[str, Any]) -> dict[str, Any]:
    """A ``debug`` event names checkpoints the way the API does."""
    inner = payload.get("payload")
    if payload.get("type") != "checkpoint" or not isinstance(inner, dict):
        return payload
    shown = dict(inner)
    shown["checkpoint"] = states.checkpoint(inner.get("config"))
    shown["parent_checkpoint"] = states.checkpoint(inner.get("parent_config"))
    shown["tasks"] = [_debug_task(task) for task in inner.get("tasks") or ()]
    return {**payload, "payload": shown}


def _debug_task(task: dict[str, Any]) -> dict[str, Any]:
    state = task.get("state")
    if not isinstance(state, dict) or "configurable" not in state:
        return task
    shown = {key: value for key, value in task.items() if key != "state"}
    shown["checkpoint"] = state["configurable"]
    return shown
