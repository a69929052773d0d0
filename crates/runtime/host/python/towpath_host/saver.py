"""Checkpoints over the socket, in the layout of langgraph's PostgreSQL saver."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from . import text
from .encryption import BlobCipher
from .streams import Stream, current
from .wire import Type

PAGE = 100
"""Checkpoints that are read at once of a list."""


class HostSaver(BaseCheckpointSaver[str]):
    """The checkpointer of every graph. Which thread it serves is said by the request at hand.

    Puts are not answered unless the run is to be durable at every step: the server does the calls of a request in
    order, and makes them durable before it settles the run.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        serde: SerializerProtocol | None = None,
        cipher: BlobCipher | None = None,
    ) -> None:
        super().__init__(serde=serde)
        self._loop = loop
        self._cipher = cipher

    # -- reading

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        stream = current()
        if stream.fresh:
            return None
        configurable = config["configurable"]
        ns = configurable.get("checkpoint_ns", "")
        asked = {"ns": ns, "id": get_checkpoint_id(config)}
        found = await stream.ask(Type.CP_GET, _of_thread(asked, stream, configurable))
        return None if found is None else await self._tuple(configurable["thread_id"], ns, found)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        if config is None:
            raise NotImplementedError("checkpoints can only be listed for one thread")
        stream = current()
        configurable = config["configurable"]
        ns = configurable.get("checkpoint_ns", "")
        if (wanted := get_checkpoint_id(config)) is not None:
            found = await self.aget_tuple(config)
            if found is not None and found.checkpoint["id"] == wanted and limit != 0:
                yield found
            return
        bound = get_checkpoint_id(before) if before else None
        left = math.inf if limit is None else limit
        while left > 0:
            size = int(min(left, PAGE))
            asked = {
                "ns": ns,
                "before": bound,
                "limit": size,
                "filter": text.dumps(filter) if filter else None,
            }
            page = await stream.ask(Type.CP_LIST, _of_thread(asked, stream, configurable))
            for one in page:
                yield await self._tuple(configurable["thread_id"], ns, one)
            if len(page) < size:
                return
            bound = page[-1]["id"]
            left -= size

    async def _tuple(self, thread: str, ns: str, saved: dict[str, Any]) -> CheckpointTuple:
        checkpoint = text.loads(saved["checkpoint"])
        checkpoint.pop("channels_apart", None)
        values = checkpoint.setdefault("channel_values", {})
        for channel, _version, type_, data in saved["blobs"]:
            if type_ != "empty":
                values[channel] = await self._loaded(type_, data)
        writes = [
            (task, channel, await self._loaded(type_, data))
            for task, _idx, channel, type_, data, _path in saved["writes"]
        ]
        parent = saved.get("parent")
        return CheckpointTuple(
            _config(thread, ns, saved["id"]),
            checkpoint,
            text.loads(saved["metadata"]),
            _config(thread, ns, parent) if parent else None,
            writes,
        )

    async def _loaded(self, type_: str, data: bytes | None) -> Any:
        if self._cipher is not None:
            type_, data = await self._cipher.decrypt(type_, data or b"")
        return self.serde.loads_typed((type_, data or b""))

    # -- writing

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        stream = current()
        configurable = config["configurable"]
        thread, ns = configurable["thread_id"], configurable.get("checkpoint_ns", "")
        inline: dict[str, Any] = {}
        # The server tells a value that was lost from a channel that has none by it.
        apart: list[str] = []
        blobs: list[tuple[str, str, str, bytes]] = []
        for channel, value in checkpoint["channel_values"].items():
            if _is_inline(value):
                inline[channel] = value
                continue
            if channel in checkpoint["channel_versions"]:
                apart.append(channel)
            if channel in new_versions:
                type_, data = await self._dumped(value)
                blobs.append((channel, str(new_versions[channel]), type_, data))
        fields = {
            "ns": ns,
            "id": checkpoint["id"],
            "parent": configurable.get("checkpoint_id"),
            "checkpoint": text.dumps({**checkpoint, "channel_values": inline, "channels_apart": apart}),
            "metadata": text.dumps(get_serializable_checkpoint_metadata(config, metadata)),
            "blobs": blobs,
        }
        _of_thread(fields, stream, configurable)
        stream.fresh = False
        if stream.sync:
            await stream.ask(Type.CP_PUT, fields, pay=True)
        else:
            await stream.tell(Type.CP_PUT, fields)
        if not ns:
            stream.last_checkpoint = checkpoint["id"]
        return _config(thread, ns, checkpoint["id"])

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        stream = current()
        configurable = config["configurable"]
        rows = []
        for at, (channel, value) in enumerate(writes):
            type_, data = await self._dumped(value)
            rows.append((WRITES_IDX_MAP.get(channel, at), channel, type_, data))
        fields = {
            "ns": configurable.get("checkpoint_ns", ""),
            "id": configurable["checkpoint_id"],
            "task": task_id,
            "path": task_path,
            "writes": rows,
        }
        stream.fresh = False
        await stream.tell(Type.CP_WRITES, _of_thread(fields, stream, configurable))

    async def _dumped(self, value: Any) -> tuple[str, bytes]:
        type_, data = self.serde.dumps_typed(value)
        if self._cipher is not None:
            return await self._cipher.encrypt(type_, bytes(data))
        return type_, data if type(data) is bytes else bytes(data)

    # -- deleting

    async def adelete_thread(self, thread_id: str) -> None:
        await self._delete({}, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self._delete({"runs": [str(run) for run in run_ids]}, None)

    async def _delete(self, fields: dict[str, Any], thread: str | None) -> None:
        stream = current()
        if thread is not None and thread != stream.thread:
            fields["thread"] = thread
        await stream.ask(Type.CP_DELETE, fields)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        raise NotImplementedError("copy threads with the API: POST /threads/{id}/copy")

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        raise NotImplementedError("prune threads with the API: POST /threads/prune")

    # -- the same for code in threads

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._wait(self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        async def all_() -> list[CheckpointTuple]:
            return [one async for one in self.alist(config, filter=filter, before=before, limit=limit)]

        yield from self._wait(all_())

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._wait(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        self._wait(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        self._wait(self.adelete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._wait(self.adelete_for_runs(run_ids))

    def _wait(self, coroutine: Any) -> Any:
        return wait(self._loop, coroutine, "the checkpointer", "aget_state, ainvoke, …")

    def get_next_version(self, current: str | None, channel: None) -> str:
        number = 0 if current is None else int(str(current).split(".", 1)[0])
        # As a text it sorts like the number; the fraction keeps two forks of one checkpoint apart.
        return f"{number + 1:032}.{random.random():016}"


def wait(loop: asyncio.AbstractEventLoop, coroutine: Any, what: str, instead: str) -> Any:
    """Waits for a coroutine of the loop from another thread."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is loop:
        coroutine.close()
        raise asyncio.InvalidStateError(
            f"synchronous calls of {what} cannot be made in an asynchronous node; use {instead}"
        )
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result()


def _is_inline(value: Any) -> bool:
    """Whether a value comes back the same from the JSON of the checkpoint."""
    kind = type(value)
    if kind is str:
        return "\x00" not in value and (value.isascii() or _has_utf8(value))
    if kind is int:
        return -(1 << 53) < value < 1 << 53
    return value is None or kind is bool or (kind is float and math.isfinite(value))


def _has_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _of_thread(fields: dict[str, Any], stream: Stream, configurable: dict[str, Any]) -> dict[str, Any]:
    """Names the thread where it is not the one of the request."""
    thread = str(configurable["thread_id"])
    if thread != stream.thread:
        fields["thread"] = thread
    return fields


def _config(thread: str, ns: str, id_: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id_}}
