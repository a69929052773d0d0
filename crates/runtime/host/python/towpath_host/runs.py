"""Runs of graphs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import traceback
from typing import Any, cast
from uuid import UUID, uuid5

from langchain_core.runnables import RunnableConfig
from langgraph.errors import EmptyInputError
from langgraph.pregel import Pregel
from langgraph.types import Command
from langsmith.run_helpers import tracing_context
from langsmith.run_trees import WriteReplica
from langsmith.utils import get_tracer_project

from . import events, states, text
from .chunks import Sink, langgraph_modes
from .projects import Project
from .streams import CallError, Stream
from .users import user_of
from .wire import Type

log = logging.getLogger(__name__)

_TRACEBACK_CHARS = 64 << 10


class Run:
    """One attempt at a run."""

    def __init__(self, project: Project, stream: Stream, fields: dict[str, Any]) -> None:
        self.project = project
        self.stream = stream
        self.fields = fields
        self.sink = Sink(stream, fields.get("modes") or ())
        stream.sync = fields.get("durability") == "sync"
        self.repeated = bool(fields.get("repeated")) or fields.get("attempt", 1) > 1
        stream.fresh = bool(fields.get("fresh")) and not self.repeated
        self.input = text.loads(fields.get("input"))
        self.command = states.command(text.loads(fields.get("command")))
        self.context = text.loads(fields.get("context"))
        self.config = self._config()

    async def perform(self) -> None:
        """Runs the graph and tells how it ended."""
        began = time.process_time_ns()
        done: dict[str, Any]
        graph: Pregel | None = None
        try:
            self.stream.begin()
            opened = self.project.open(self.fields["graph"], self.config, "threads.create_run", self.context)
            async with opened as graph:
                try:
                    with self._traced():
                        await self._stream(graph)
                    self.stream.check()
                    done = {"status": "success", "state": await self._left(graph)}
                except asyncio.CancelledError:
                    _uncancel()
                    done = await self._stopped(graph)
                except Exception as error:
                    done = await self._failed(graph, error)
        except asyncio.CancelledError:
            _uncancel()
            done = await self._stopped(None)
        except Exception as error:
            done = await self._failed(None, error)
        if self.stream.cancelled is not None and done["status"] == "success":
            # Code of the user continued to its end in spite of it.
            done["status"] = "cancelled"
        done["cpu_us"] = (time.process_time_ns() - began) // 1000
        self.stream.end(Type.DONE, done)

    async def _stream(self, graph: Pregel) -> None:
        fields, sink = self.fields, self.sink
        if self.repeated:
            await self._go_on()
        subgraphs = bool(fields.get("subgraphs"))
        options: dict[str, Any] = {
            "context": self.context,
            "stream_mode": langgraph_modes(sink.wanted),
            "interrupt_before": fields.get("interrupt_before") or None,
            "interrupt_after": fields.get("interrupt_after") or None,
            "durability": fields.get("durability") or "async",
            "subgraphs": subgraphs,
        }
        given = self.input if self.command is None else self.command
        if self.command is not None and self.command == Command():
            raise EmptyInputError("Received empty Command input")
        if events.SUPPORTED and self.config["configurable"].get(events.MARK) is True:
            await events.stream(graph, given, self.config, options, sink)
        elif "events" in sink.wanted:
            await self._stream_events(graph, given, options)
        elif subgraphs:
            async for ns, mode, payload in graph.astream(given, self.config, **options):
                await sink.part(ns, mode, payload)
        else:
            async for mode, payload in graph.astream(given, self.config, **options):
                await sink.part((), mode, payload)

    async def _stream_events(self, graph: Pregel, given: Any, options: dict[str, Any]) -> None:
        root = str(self.config["run_id"])
        async for event in graph.astream_events(given, self.config, version="v2", **options):
            if "langsmith:hidden" in (event.get("tags") or ()):
                continue
            if event["event"] == "on_chain_stream" and event["run_id"] == root:
                # The graph's own stream comes under the names of its modes.
                part = event["data"]["chunk"]
                ns, mode, payload = part if options["subgraphs"] else ((), *part)
                await self.sink.part(ns, mode, payload)
            else:
                await self.sink.event(event)

    def _traced(self) -> contextlib.AbstractContextManager[Any]:
        """Where the run asked to be traced to, in place of where the process traces to."""
        told = self.config["configurable"]
        project, example = told.get("__langsmith_project__"), told.get("__langsmith_example_id__")
        if not project and not example:
            return contextlib.nullcontext()
        if not example:
            return tracing_context(project_name=project)
        replica = {"project_name": project or get_tracer_project(), "updates": {"reference_example_id": example}}
        return tracing_context(replicas=[cast(WriteReplica, replica)])

    async def _go_on(self) -> None:
        """An earlier attempt came so far: what it was given is in the state already, and must not be applied again."""
        assert self.project.saver is not None
        latest = await self.project.saver.aget_tuple(
            {"configurable": {"thread_id": self.fields["thread"], "checkpoint_ns": ""}}
        )
        if latest is None or latest.metadata.get("run_id") != self.fields["run"]:
            return
        self.input = self.command = None
        for key in ("checkpoint_id", "checkpoint_ns", "checkpoint_map"):
            self.config["configurable"].pop(key, None)

    async def _left(self, graph: Pregel) -> dict[str, Any]:
        """Where the thread is after a run that came to its end."""
        stops = (
            self.sink.interrupted
            or not self.sink.values_seen
            or self.fields.get("interrupt_before")
            or self.fields.get("interrupt_after")
            or graph.interrupt_before_nodes
            or graph.interrupt_after_nodes
        )
        if stops or self.stream.last_checkpoint is None:
            state = await self._state(graph)
            if state is not None:
                return state
        return {
            "values": self.sink.values_json(),
            "next": [],
            "interrupts": b"{}",
            "checkpoint": text.dumps(
                {"thread_id": self.stream.thread, "checkpoint_ns": "", "checkpoint_id": self.stream.last_checkpoint}
            ),
        }

    async def _state(self, graph: Pregel) -> dict[str, Any] | None:
        """Where the thread is, as it is saved."""
        snapshot = await graph.aget_state({"configurable": {"thread_id": self.stream.thread, "checkpoint_ns": ""}})
        if snapshot.created_at is None:
            return None
        left = states.left(snapshot)
        return {
            "values": text.dumps(left["values"]),
            "next": left["next"],
            "interrupts": text.dumps(left["interrupts"]),
            "checkpoint": text.dumps(left["checkpoint"]),
        }

    async def _stopped(self, graph: Pregel | None) -> dict[str, Any]:
        stream = self.stream
        if stream.aborted is not None:
            return self._aborted(stream.aborted)
        if stream.cancelled == "shutdown":
            return {"status": "retry", "error": _error("Shutdown", "the process is shutting down")}
        if stream.cancelled is None:
            return {
                "status": "error",
                "error": _error("CancelledError", "the graph cancelled itself"),
                "state": await self._state_if_any(graph),
            }
        return {"status": "cancelled", "state": await self._state_if_any(graph)}

    async def _failed(self, graph: Pregel | None, error: Exception) -> dict[str, Any]:
        stream = self.stream
        if stream.aborted is not None:
            return self._aborted(stream.aborted)
        if stream.cancelled is not None:
            return await self._stopped(graph)
        class_ = error.class_ if isinstance(error, CallError) else type(error).__name__
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return {
            "status": "error",
            "error": _error(class_, str(error), trace[-_TRACEBACK_CHARS:]),
            "state": await self._state_if_any(graph),
        }

    @staticmethod
    def _aborted(error: CallError) -> dict[str, Any]:
        status = "fenced" if error.kind == "fenced" else "retry"
        return {"status": status, "error": _error(error.class_, str(error))}

    async def _state_if_any(self, graph: Pregel | None) -> dict[str, Any] | None:
        if graph is None:
            return None
        try:
            return await self._state(graph)
        except (Exception, asyncio.CancelledError) as error:
            log.debug("cannot tell where a run left its thread: %s", error)
            return None

    def _config(self) -> RunnableConfig:
        fields = self.fields
        config: dict[str, Any] = text.loads(fields.get("config")) or {}
        # What langgraph keeps there for itself is not for callers to set.
        given = config.get("configurable") or {}
        configurable = {key: value for key, value in given.items() if not key.startswith("__pregel_")}
        config["configurable"] = configurable
        if fields.get("strict_resume"):
            # Versions of langgraph that do not know it ignore it.
            configurable["__pregel_strict_resume"] = True
        configurable["thread_id"] = fields["thread"]
        configurable.setdefault("run_id", fields["run"])
        if (user := user_of(configurable)) is not None:
            configurable["langgraph_auth_user"] = user
        # By this langgraph knows a run that continues.
        config.setdefault("metadata", {})["run_id"] = fields["run"]
        # A trace has one root for each attempt, which the server computes too.
        run, attempt = UUID(fields["run"]), fields.get("attempt", 1)
        config["run_id"] = run if attempt == 1 else uuid5(run, str(attempt))
        return cast(RunnableConfig, config)


def _error(class_: str, message: str, trace: str | None = None) -> dict[str, Any]:
    return {"error": class_, "message": message, "traceback": trace}


def _uncancel() -> None:
    """What must be said about a cancelled run may be awaited again."""
    task = asyncio.current_task()
    while task is not None and hasattr(task, "uncancel") and task.cancelling():
        task.uncancel()
