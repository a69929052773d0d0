"""The long-term store over the socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)

from . import text
from .saver import wait
from .streams import current
from .wire import Type


class HostStore(BaseStore):
    """The store of every graph."""

    supports_ttl = True

    def __init__(self, loop: asyncio.AbstractEventLoop, *, ttl: TTLConfig | None = None) -> None:
        self._loop = loop
        self.ttl_config = ttl

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        wanted = list(ops)
        if not wanted:
            return []
        asked = [_asked(op) for op in wanted]
        results = await current().ask(Type.STORE, {"ops": asked})
        return [_result(op, result) for op, result in zip(wanted, results, strict=True)]

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        return wait(self._loop, self.abatch(ops), "the store", "aget, aput, asearch, …")


def _asked(op: Op) -> dict[str, Any]:
    if isinstance(op, GetOp):
        return {"op": "get", "namespace": op.namespace, "key": op.key, "refresh_ttl": op.refresh_ttl}
    if isinstance(op, PutOp):
        return {
            "op": "put",
            "namespace": op.namespace,
            "key": op.key,
            "value": None if op.value is None else text.dumps(op.value),
            "ttl_minutes": None if op.ttl is None else float(op.ttl),
            "index": [] if op.index is False else op.index,
        }
    if isinstance(op, SearchOp):
        return {
            "op": "search",
            "prefix": op.namespace_prefix,
            "filter": text.dumps(op.filter) if op.filter else None,
            "limit": op.limit,
            "offset": op.offset,
            "query": op.query,
            "refresh_ttl": op.refresh_ttl,
        }
    if isinstance(op, ListNamespacesOp):
        conditions = {one.match_type: one.path for one in op.match_conditions or ()}
        return {
            "op": "namespaces",
            "prefix": conditions.get("prefix"),
            "suffix": conditions.get("suffix"),
            "max_depth": op.max_depth,
            "limit": op.limit,
            "offset": op.offset,
        }
    raise TypeError(f"unknown operation of a store: {type(op).__name__}")


def _result(op: Op, result: Any) -> Result:
    if isinstance(op, GetOp):
        return None if result is None else Item(**_fields(result))
    if isinstance(op, SearchOp):
        return [SearchItem(**fields, score=score) for fields, score in map(_with_score, result)]
    if isinstance(op, ListNamespacesOp):
        return [tuple(namespace) for namespace in result]
    return None


def _with_score(item: bytes) -> tuple[dict[str, Any], float | None]:
    fields = text.loads(item)
    score = fields.pop("score", None)
    return _picked(fields), score


def _fields(item: bytes) -> dict[str, Any]:
    return _picked(text.loads(item))


def _picked(fields: dict[str, Any]) -> dict[str, Any]:
    picked = {name: fields[name] for name in ("value", "key", "created_at", "updated_at")}
    for name in ("created_at", "updated_at"):
        # Python before 3.11 does not read the short form of UTC.
        if isinstance(picked[name], str) and picked[name].endswith("Z"):
            picked[name] = picked[name][:-1] + "+00:00"
    return {"namespace": tuple(fields["namespace"]), **picked}
