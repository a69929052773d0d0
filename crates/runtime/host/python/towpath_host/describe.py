"""What graphs look like: schemas, drawings, subgraphs."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, get_args, get_origin

from langgraph.pregel import Pregel
from pydantic import create_model
from typing_extensions import NotRequired, Required

log = logging.getLogger(__name__)


def schemas(graph: Pregel, id_: str | None) -> dict[str, Any]:
    """JSON schemas; null where there is none, or where a type has none."""
    context = _try(graph, "context", graph.get_context_jsonschema)
    result: dict[str, Any] = {} if id_ is None else {"graph_id": id_}
    result |= {
        "input_schema": _try(graph, "input", graph.get_input_jsonschema) or _by_keys(graph, "Input"),
        "output_schema": _try(graph, "output", graph.get_output_jsonschema) or _by_keys(graph, "Output"),
        "state_schema": _by_keys(graph, "State"),
        "config_schema": context,
        "context_schema": context,
    }
    return result


async def drawing(graph: Pregel, xray: bool | int) -> dict[str, Any]:
    """Nodes and edges."""
    return (await graph.aget_graph(xray=xray)).to_json()


def subgraphs(graph: Pregel, namespace: str | None, recurse: bool) -> dict[str, Any]:
    """Schemas of subgraphs by namespace."""
    return {
        name: schemas(inner, None)
        for name, inner in graph.get_subgraphs(namespace=namespace, recurse=recurse)
        if isinstance(inner, Pregel)
    }


def name(graph: Pregel) -> str | None:
    """What the graph is called, when a caller called it something."""
    given = graph.get_name()
    return None if given == "LangGraph" else given


def nodes(graph: Pregel) -> list[str]:
    """Names of nodes without start and end."""
    return [node for node in graph.nodes if not node.startswith("__")]


def _by_keys(graph: Pregel, what: str) -> dict[str, Any] | None:
    """A schema key by key: a type that has none, such as a bare ``list``, allows everything, and hides no other."""
    builder = getattr(graph, "builder", None)
    keys = graph.stream_channels_list
    if builder is not None and what != "State":
        wanted = builder.input_schema if what == "Input" else builder.output_schema
        keys = [key for key in builder.schemas.get(wanted, keys) if key in graph.channels]
    fields: dict[str, Any] = {}
    for key in keys:
        kind = _plain(getattr(graph.channels[key], "UpdateType", Any))
        alone = partial(_schema, key, {"value": (kind, None)})
        fields[key] = (kind if _try(graph, key, alone) else Any, None)
    return _try(graph, what, partial(_schema, graph.get_name(what), fields))


def _schema(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    return create_model(name, **fields).model_json_schema()


def _plain(kind: Any) -> Any:
    """A type without what only the keys of a typed dictionary may say."""
    origin = get_origin(kind)
    if origin is Annotated:
        inner = _plain(kind.__origin__)
        return inner if inner is not kind.__origin__ else kind
    if origin in (NotRequired, Required):
        return _plain(get_args(kind)[0])
    return kind


def _try(graph: Pregel, what: str, make: Callable[[], Any]) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make()
    except Exception as error:
        log.debug("graph %s has no %s schema: %s", graph.get_name(), what, error)
        return None
