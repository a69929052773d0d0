"""The graphs of graphs.json in Python: one suite asks both."""

import asyncio
import operator
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    x: Any
    answer: Any
    count: int


class Answers(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    one: Any
    other: Any


class Speaker(BaseChatModel):
    """Says a text word by word."""

    text: str
    delay_s: float = 0

    @property
    def _llm_type(self) -> str:
        return "speaker"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self.text))])

    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for at, word in enumerate(self.text.split(" ")):
            await asyncio.sleep(self.delay_s)
            chunk = ChatGenerationChunk(message=AIMessageChunk(word if at == 0 else f" {word}"))
            if run_manager is not None:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk


def line(*nodes: Any, state: Any = State) -> StateGraph:
    """Nodes one after the other."""
    builder = StateGraph(state)
    before = START
    for node in nodes:
        name, action = node if isinstance(node, tuple) else (node.__name__, node)
        builder.add_node(name, action)
        builder.add_edge(before, name)
        before = name
    return builder


async def echo(state: MessagesState) -> dict[str, Any]:
    told = next(message.text for message in reversed(state["messages"]) if message.type == "human")
    return {"messages": [await Speaker(text=told).ainvoke(state["messages"])]}


def saying(delay_s):
    async def say(state: MessagesState) -> dict[str, Any]:
        speaker = Speaker(text="one two three four five six", delay_s=delay_s)
        return {"messages": [await speaker.ainvoke(state["messages"])]}

    return say


async def one(state: State) -> State:
    return {"log": ["one"], "x": 1}


async def two(state: State) -> State:
    get_stream_writer()({"at": "two"})
    return {"log": ["two"]}


async def first(state: State) -> State:
    return {"log": ["first"]}


def waiting(seconds: float) -> Any:
    async def wait(state: State) -> State:
        await asyncio.sleep(seconds)
        return {"log": ["waited"]}

    return wait


async def ask(state: State) -> State:
    return {"answer": interrupt({"question": "go on?"}), "log": ["asked"]}


async def ask_twice(state: Answers) -> Answers:
    return {"one": interrupt("one?"), "other": interrupt("other?"), "log": ["first"]}


async def done(state: State) -> State:
    return {"log": ["done"]}


async def breaks(state: State) -> State:
    raise ValueError("it broke")


async def hides(state: State) -> State:
    raise ZeroDivisionError("an inside")


async def outer(state: State) -> State:
    return {"log": ["outer"]}


async def inner(state: State) -> State:
    return {"log": ["inner"]}


async def step_1(state: State) -> State:
    return {"count": state.get("count", 0) + 1}


agent = line(echo, state=MessagesState).compile()
talk = line(("say", saying(0.04)), state=MessagesState).compile()
drawl = line(("say", saying(0.5)), state=MessagesState).compile()
steps = line(one, two).compile()
slow = line(first, waiting(60)).compile()
brief = line(first, waiting(2)).compile()
human = line(ask, done).compile()
twice = line(("ask", ask_twice), waiting(60), state=Answers).compile()
broken = line(breaks).compile()
private = line(hides).compile()
nested = line(outer, ("sub", line(inner).compile())).compile()
bench = line(step_1).compile()
