"""States of threads, and commands, between the API's form and langgraph's."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.pregel import Pregel
from langgraph.types import Command, Send, StateSnapshot, StateUpdate

from .users import user_of

Object = dict[str, Any]


def command(given: Object | None) -> Command[Any] | None:
    """A command as a client writes it: ``update``, ``resume``, ``goto``."""
    if given is None:
        return None
    goto = given.get("goto")
    update = given.get("update")
    if isinstance(update, list):
        update = [tuple(pair) for pair in update]
    targets = goto if isinstance(goto, list) else [] if goto is None else [goto]
    return Command(
        update=update,
        resume=given.get("resume"),
        goto=tuple(Send(one["node"], one.get("input")) if isinstance(one, dict) else one for one in targets),
    )


def config_of(fields: Object, config: Object | None) -> RunnableConfig:
    """The config of a question, about a thread or not."""
    made: RunnableConfig = dict(config or {})  # type: ignore[assignment]
    configurable = dict(made.get("configurable") or {})
    if (user := user_of(configurable)) is not None:
        configurable["langgraph_auth_user"] = user
    if fields.get("thread"):
        configurable["thread_id"] = fields["thread"]
        configurable["checkpoint_ns"] = fields.get("ns") or ""
        if fields.get("id"):
            configurable["checkpoint_id"] = fields["id"]
    made["configurable"] = configurable
    return made


async def get(graph: Pregel, config: RunnableConfig, subgraphs: bool) -> Object | None:
    """A state; ``None`` when there is no such checkpoint."""
    snapshot = await graph.aget_state(config, subgraphs=subgraphs)
    return None if snapshot.created_at is None else thread_state(snapshot)


async def history(
    graph: Pregel, config: RunnableConfig, limit: int | None, before: str | None, filter: Object | None
) -> list[Object]:
    """States, newest first."""
    bound: RunnableConfig | None = None
    if before is not None:
        bound = {"configurable": {**config["configurable"], "checkpoint_id": before}}
    found = graph.aget_state_history(config, limit=limit, before=bound, filter=filter or None)
    return [thread_state(snapshot) async for snapshot in found]


async def update(graph: Pregel, config: RunnableConfig, supersteps: list[list[Object]]) -> Object:
    """Changes a state; gives the checkpoint that came of it."""
    steps = [[_update(one) for one in step] for step in supersteps]
    return checkpoint(await graph.abulk_update_state(config, steps))  # type: ignore[return-value]


def _update(given: Object) -> StateUpdate:
    values: Any = command(given["command"]) if given.get("command") is not None else given.get("values")
    return StateUpdate(values, given.get("as_node"), None)


def thread_state(snapshot: StateSnapshot) -> Object:
    """A state as the API shows it."""
    here, parent = checkpoint(snapshot.config), checkpoint(snapshot.parent_config)
    return {
        "values": snapshot.values,
        "next": list(snapshot.next),
        "tasks": [_task(task) for task in snapshot.tasks],
        "metadata": snapshot.metadata,
        "created_at": snapshot.created_at,
        "checkpoint": here,
        "parent_checkpoint": parent,
        "interrupts": [interrupt(one) for one in snapshot.interrupts],
        "checkpoint_id": here and here.get("checkpoint_id"),
        "parent_checkpoint_id": parent and parent.get("checkpoint_id"),
    }


def left(snapshot: StateSnapshot) -> Object:
    """What a run leaves: ``state`` of DONE, values still as they are."""
    return {
        "values": snapshot.values,
        "next": list(snapshot.next),
        "interrupts": {
            task.id: [interrupt(one) for one in task.interrupts] for task in snapshot.tasks if task.interrupts
        },
        "checkpoint": checkpoint(snapshot.config) if snapshot.created_at is not None else None,
    }


def interrupt(given: Any) -> Object:
    """An interrupt as the API shows it."""
    shown = {"value": given.value, "id": given.id}
    if (schema := getattr(given, "response_schema", None)) is not None:
        shown["response_schema"] = schema
    return shown


def checkpoint(config: RunnableConfig | None) -> Object | None:
    """The names of one checkpoint."""
    if config is None:
        return None
    configurable = config["configurable"]
    named = {
        "thread_id": configurable.get("thread_id"),
        "checkpoint_ns": configurable.get("checkpoint_ns") or "",
        "checkpoint_id": configurable.get("checkpoint_id"),
    }
    if configurable.get("checkpoint_map"):
        named["checkpoint_map"] = configurable["checkpoint_map"]
    return named


def _task(task: Any) -> Object:
    inner, place = None, None
    if isinstance(task.state, StateSnapshot):
        inner = thread_state(task.state)
    elif task.state is not None:
        place = {key: value for key, value in task.state["configurable"].items() if not key.startswith("__")}
    return {
        "id": task.id,
        "name": task.name,
        "path": list(task.path),
        "error": None if task.error is None else str(task.error),
        "interrupts": [interrupt(one) for one in task.interrupts],
        "checkpoint": place,
        "state": inner,
        "result": task.result,
    }
