"""A project: the graphs and other objects its config file names."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.pregel import Pregel

from .embedding import Embedder
from .encryption import BlobCipher
from .loading import LoadFailure, add_paths, failure, load
from .saver import HostSaver
from .store import HostStore
from .users import user_of

Access = Literal["threads.create_run", "threads.update", "threads.read", "assistants.read"]
"""Why a factory is called."""


@dataclass
class Graph:
    """One entry of ``graphs``."""

    id: str
    description: str | None
    compiled: Pregel | None
    """Absent for a factory."""
    factory: Callable[..., Any] | None = None
    wants: list[str] = field(default_factory=list)
    """Names of the factory's parameters: ``config``, ``runtime``."""


class Project:
    """Everything a config file names, imported. ``attach`` gives it the loop it will run in."""

    def __init__(self, config: dict[str, Any], folder: Path, only: list[str] | None = None) -> None:
        self.config = config
        self.folder = folder
        self.graphs: dict[str, Graph] = {}
        _refuse(config)
        add_paths(config, folder)
        for id_, entry in (config.get("graphs") or {}).items():
            if (only is None or id_ in only) and (spec := _spec(id_, entry)) is not None:
                self.graphs[id_] = self._graph(id_, *spec)
        self.auth = self._named("auth", "authenticate")
        self.encryption = self._named("encryption", "encrypt")
        self.http_app = self._http_app()
        self.embedder = self._embedder()
        self.saver: HostSaver | None = None
        self.store: HostStore | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Gives all graphs the checkpointer and the store of this process."""
        cipher = BlobCipher(self.encryption) if self.encryption is not None else None
        self.saver = HostSaver(loop, serde=_serde(self.config.get("checkpointer") or {}), cipher=cipher)
        self.store = HostStore(loop, ttl=(self.config.get("store") or {}).get("ttl"))
        for graph in self.graphs.values():
            if graph.compiled is not None:
                graph.compiled = self._equipped(graph.compiled)

    @contextlib.asynccontextmanager
    async def open(
        self, id_: str, config: RunnableConfig, access: Access, context: Any = None
    ) -> AsyncIterator[Pregel]:
        """A graph, ready for one request."""
        graph = self.graphs.get(id_)
        if graph is None:
            raise KeyError(f"this process has no graph {id_!r}")
        if graph.compiled is not None:
            yield graph.compiled
            return
        assert graph.factory is not None
        made = graph.factory(**self._arguments(graph, config, access, context))
        async with contextlib.AsyncExitStack() as stack:
            if inspect.isawaitable(made):
                made = await made
            if hasattr(made, "__aenter__"):
                made = await stack.enter_async_context(made)
            elif hasattr(made, "__enter__"):
                made = stack.enter_context(made)
            yield self._equipped(_compiled(made, id_))

    def _arguments(self, graph: Graph, config: RunnableConfig, access: Access, context: Any) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        for name in graph.wants:
            kind, _, parameter = name.partition(":")
            arguments[parameter] = config if kind == "config" else self._runtime(config, access, context)
        return arguments

    def _runtime(self, config: RunnableConfig, access: Access, context: Any) -> Any:
        try:
            from langgraph_sdk.runtime import _ExecutionRuntime, _ReadRuntime
        except ImportError:
            raise TypeError(
                "a function that makes a graph takes a ServerRuntime, which this environment's langgraph-sdk does not "
                "have: update it"
            ) from None
        user = user_of(config.get("configurable") or {})
        assert self.store is not None, "graphs are opened after `attach`"
        if access == "threads.create_run":
            return _ExecutionRuntime(access_context=access, user=user, store=self.store, context=context)
        return _ReadRuntime(access_context=access, user=user, store=self.store)

    def _equipped(self, graph: Pregel) -> Pregel:
        return graph.copy({"checkpointer": self.saver, "store": self.store})

    # -- loading

    def _graph(self, id_: str, spec: str, description: str | None) -> Graph:
        found = load(spec, self.folder, f"graphs.{id_}", id_)
        try:
            if isinstance(found, Pregel) or hasattr(found, "compile"):
                return Graph(id_, description, _compiled(found, id_))
            if callable(found):
                return Graph(id_, description, None, found, _parameters(found))
            raise TypeError(
                f"{spec!r} is a {type(found).__name__}; expected a compiled graph, a StateGraph, an entrypoint, "
                "or a function that makes one"
            )
        except Exception as error:
            raise failure(error, id_, self.folder) from error

    def _named(self, key: str, attribute: str) -> Any:
        """The object at ``<key>.path``."""
        path = (self.config.get(key) or {}).get("path")
        if not path:
            return None
        found = load(path, self.folder, f"{key}.path")
        if not hasattr(found, attribute):
            raise LoadFailure(None, "TypeError", f"{key}.path: {path!r} is a {type(found).__name__}, not a {key} object")
        return found

    def _http_app(self) -> Any:
        path = (self.config.get("http") or {}).get("app")
        if not path:
            return None
        found = load(path, self.folder, "http.app")
        if not callable(found):
            raise LoadFailure(None, "TypeError", f"http.app: {path!r} is not an ASGI application")
        return found

    def _embedder(self) -> Embedder | None:
        index = (self.config.get("store") or {}).get("index")
        if not index:
            return None
        embed = index.get("embed")
        if not isinstance(embed, str):
            raise LoadFailure(
                None, "ValueError", 'store.index.embed: expected "provider:model" or "./file.py:function"'
            )
        path = embed.rpartition(":")[0]
        if embed.startswith("openai:"):
            return None  # The server calls the endpoint itself.
        try:
            return Embedder(load(embed, self.folder, "store.index.embed") if path.endswith(".py") else embed)
        except LoadFailure:
            raise
        except Exception as error:
            raise LoadFailure(None, type(error).__name__, f"store.index.embed: {error}") from error


def _spec(id_: str, entry: Any) -> tuple[str, str | None] | None:
    """Where a graph is, and its description; ``None`` for graphs the server runs itself."""
    if isinstance(entry, str):
        path, description = entry, None
    elif isinstance(entry, dict) and "native" in entry:
        return None
    elif isinstance(entry, dict) and isinstance(entry.get("path"), str):
        path, description = entry["path"], entry.get("description")
    else:
        raise LoadFailure(
            id_, "ValueError", f'graphs.{id_}: expected "./file.py:variable" or {{"path", "description"}}'
        )
    file = path.rpartition(":")[0] or path
    if path.endswith(".graph.json") or file.endswith((".ts", ".js", ".mts", ".mjs", ".tsx", ".jsx", ".cts", ".cjs")):
        return None
    return path, description


def _compiled(found: Any, id_: str) -> Pregel:
    if isinstance(found, Pregel):
        return found
    if hasattr(found, "compile"):
        compiled = found.compile()
        if isinstance(compiled, Pregel):
            return compiled
    raise TypeError(f"graph {id_!r}: expected a compiled graph or a StateGraph, not a {type(found).__name__}")


def _parameters(factory: Callable[..., Any]) -> list[str]:
    """Which of ``config`` and ``runtime`` a factory takes, each with the name of its parameter."""
    wants: list[str] = []
    for parameter in inspect.signature(factory).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        annotation = str(parameter.annotation)
        if "Runtime" in annotation or (parameter.name == "runtime" and "RunnableConfig" not in annotation):
            wants.append(f"runtime:{parameter.name}")
        elif "config:" not in "".join(wants) and (parameter.default is parameter.empty or parameter.name == "config"):
            wants.append(f"config:{parameter.name}")
        elif parameter.default is parameter.empty:
            raise TypeError(
                "a function that makes a graph takes at most a config and a ServerRuntime; "
                f"{parameter.name!r} is neither"
            )
    return wants


def _serde(checkpointer: dict[str, Any]) -> SerializerProtocol:
    """The serializer of checkpoints, as ``checkpointer.serde`` says."""
    wanted = checkpointer.get("serde") or {}
    options: dict[str, Any] = {}
    for name in ("allowed_json_modules", "allowed_msgpack_modules"):
        if name in wanted:
            value = wanted[name]
            options[name] = value if not isinstance(value, list) else [tuple(one) for one in value]
    if "pickle_fallback" in wanted:
        options["pickle_fallback"] = bool(wanted["pickle_fallback"])
    serde: SerializerProtocol = JsonPlusSerializer(**options)
    if os.environ.get("LANGGRAPH_AES_KEY"):
        serde = EncryptedSerializer.from_pycryptodome_aes(serde)
    return serde


def _refuse(config: dict[str, Any]) -> None:
    """What the server keeps itself cannot be replaced by the project."""
    for key in ("checkpointer", "store"):
        if (config.get(key) or {}).get("path"):
            raise LoadFailure(
                None, "ValueError", f"{key}.path: the server keeps checkpoints and items itself; remove it"
            )
    if (config.get("checkpointer") or {}).get("backend", "default") != "default":
        raise LoadFailure(None, "ValueError", 'checkpointer.backend: only "default" is supported; remove it')
    if (config.get("priority") or {}).get("path"):
        raise LoadFailure(None, "ValueError", "priority.path: priorities of runs are not supported; remove it")
