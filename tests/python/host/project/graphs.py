"""Graphs that show each thing a run can do."""

import asyncio
import contextlib
import operator
import time
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.config import get_store, get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command, Send, interrupt


class State(TypedDict, total=False):
    log: Annotated[list, operator.add]
    x: int
    seen: Any


# -- two steps


async def one(state):
    return {"log": ["one"], "x": 1}


async def two(state):
    get_stream_writer()({"at": "two"})
    return {"log": ["two"]}


def _steps():
    builder = StateGraph(State)
    builder.add_node("one", one)
    builder.add_node("two", two)
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    return builder


steps = _steps().compile()
builder = _steps()
named = _steps().compile(name="two steps")


# -- the same out of synchronous nodes


def sync_one(state):
    print("from a thread")
    return {"log": ["one"]}


def sync_two(state):
    store = get_store()
    store.put(("kept",), "log", {"log": state["log"]})
    return {"log": [store.get(("kept",), "log").value["log"][0] + " again"]}


sync = StateGraph(State)
sync.add_node("one", sync_one)
sync.add_node("two", sync_two)
sync.add_edge(START, "one")
sync.add_edge("one", "two")


# -- a model


def reply(state):
    model = GenericFakeChatModel(messages=iter([AIMessage("one two three", id="ai-1")]))
    return {"messages": [model.invoke(state["messages"])]}


chat = StateGraph(MessagesState)
chat.add_node("reply", reply)
chat.add_edge(START, "reply")


# -- a human


def ask(state):
    answer = interrupt({"question": "go on?"})
    return {"log": [f"asked: {answer}"]}


def done(state):
    return {"log": ["done"]}


human = StateGraph(State)
human.add_node("ask", ask)
human.add_node("done", done)
human.add_edge(START, "ask")
human.add_edge("ask", "done")


# -- a graph in a graph


async def inner(state):
    return {"log": ["inner"]}


async def inner_ask(state):
    return {"log": [interrupt("inside?")]}


_sub = StateGraph(State)
_sub.add_node("inner", inner)
_sub.add_edge(START, "inner")

nested = StateGraph(State)
nested.add_node("sub", _sub.compile())
nested.add_edge(START, "sub")

_asking = StateGraph(State)
_asking.add_node("ask", inner_ask)
_asking.add_edge(START, "ask")

nested_human = StateGraph(State)
nested_human.add_node("sub", _asking.compile())
nested_human.add_edge(START, "sub")


# -- trouble


def fail(state):
    raise ValueError("it broke")


broken = StateGraph(State)
broken.add_node("one", one)
broken.add_node("fail", fail)
broken.add_edge(START, "one")
broken.add_edge("one", "fail")


async def wait(state):
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        print("was cancelled")
        raise


slow = StateGraph(State)
slow.add_node("one", one)
slow.add_node("wait", wait)
slow.add_edge(START, "one")
slow.add_edge("one", "wait")


async def block(state):
    time.sleep(state.get("x", 3))
    return {"log": ["blocked"]}


blocking = StateGraph(State)
blocking.add_node("block", block)
blocking.add_edge(START, "block")


async def again(state):
    return Command(goto="again", update={"log": ["again"]})


endless = StateGraph(State)
endless.add_node("again", again)
endless.add_edge(START, "again")


# -- many


async def much(state):
    write = get_stream_writer()
    for at in range(state["x"]):
        write({"at": at, "text": "x" * 1000})
        await asyncio.sleep(0)
    return {"log": ["much"]}


flood = StateGraph(State)
flood.add_node("much", much)
flood.add_edge(START, "much")


async def each(state):
    return {"log": [state["x"]]}


fan = StateGraph(State)
fan.add_node("each", each)
fan.add_conditional_edges(START, lambda state: [Send("each", {"x": x}) for x in range(3)], ["each"])
fan.add_edge("each", END)


# -- what a run knows


@dataclass
class Context:
    tone: str = "plain"
    size: int = 1


async def tell(state, config, runtime: Runtime[Context]):
    configurable = config["configurable"]
    user = configurable.get("langgraph_auth_user")
    server = runtime.server_info
    return {
        "seen": {
            "context": runtime.context,
            "thread": configurable["thread_id"],
            "mine": configurable.get("mine"),
            "tags": config.get("tags"),
            "run_id": config["metadata"]["run_id"],
            "metadata": config["metadata"].get("owner"),
            "identity": user and user.identity,
            "user": user and user["identity"],
            "server_user": server and server.user and server.user.identity,
            "graph": server and server.graph_id,
        }
    }


knowing = StateGraph(State, context_schema=Context)
knowing.add_node("tell", tell)
knowing.add_edge(START, "tell")


# -- the store


async def remember(state, *, store):
    await store.aput(("users", "ann"), "food", {"likes": "bread", "n": 1})
    await store.aput(("users", "bob"), "food", {"likes": "rice", "n": 2}, index=False, ttl=5)
    await store.aput(("users", "cid"), "food", {"likes": "soup"})
    await store.adelete(("users", "cid"), "food")
    found = await store.asearch(("users",), filter={"n": 2})
    near = await store.asearch(("users",), query="bread please", limit=1)
    item = await store.aget(("users", "ann"), "food")
    return {
        "seen": {
            "item": item.value,
            "found": [(one.namespace, one.value["likes"]) for one in found],
            "near": [(one.value["likes"], one.score) for one in near],
            "namespaces": await store.alist_namespaces(prefix=("users",)),
            "none": await store.aget(("users", "ann"), "drink"),
        }
    }


storing = StateGraph(State)
storing.add_node("remember", remember)
storing.add_edge(START, "remember")


def embed(texts):
    return [[1.0 if "bread" in text else 0.0, 1.0 if "rice" in text else 0.0] for text in texts]


# -- functions


@task
async def double(x: int) -> int:
    return x * 2


@entrypoint()
async def functional(x: int, *, previous: int | None = None) -> int:
    doubled = await double(x) + (previous or 0)
    return doubled


# -- factories


def plain_factory():
    return steps


async def async_factory(config):
    builder = StateGraph(State)

    async def node(state):
        return {"log": [config["configurable"].get("mine", "nothing")]}

    builder.add_node("node", node)
    builder.add_edge(START, "node")
    return builder


opened = []


@contextlib.asynccontextmanager
async def managed_factory(config, runtime):
    opened.append(runtime.access_context)
    builder = StateGraph(State)

    async def node(state):
        user = runtime.user
        return {"seen": [runtime.access_context, user and user.identity, list(opened)]}

    builder.add_node("node", node)
    builder.add_edge(START, "node")
    yield builder.compile()
    print("factory closed")


@contextlib.contextmanager
def sync_managed_factory():
    yield steps
