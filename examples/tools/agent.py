"""An agent that calls tools until it knows the answer."""

from typing import Annotated, Any

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedStore, ToolNode, tools_condition
from langgraph.store.base import BaseStore
from model import Clerk


@tool
def add(a: float, b: float) -> float:
    """Adds two numbers."""
    return a + b


@tool
def multiply(a: float, b: float) -> float:
    """Multiplies two numbers."""
    return a * b


@tool
async def remember(fact: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Remembers a fact for later conversations."""
    known = await store.asearch(("facts",), limit=1000)
    await store.aput(("facts",), f"fact-{len(known) + 1}", {"text": fact})
    return "remembered"


@tool
async def recall(store: Annotated[BaseStore, InjectedStore()]) -> list[str]:
    """Tells all facts that were remembered, in any conversation."""
    return [item.value["text"] for item in await store.asearch(("facts",), limit=1000)]


TOOLS = [add, multiply, remember, recall]

# Your own model goes here: `init_chat_model("…").bind_tools(TOOLS)`.
model = Clerk()


async def think(state: MessagesState) -> dict[str, list[AIMessage | ToolMessage]]:
    """One step of the loop: the model answers, or asks for tools."""
    message: Any = await model.ainvoke(state["messages"])
    return {"messages": [message]}


builder = StateGraph(MessagesState)
builder.add_node(think)
builder.add_node(ToolNode(TOOLS))
builder.add_edge(START, "think")
builder.add_conditional_edges("think", tools_condition)
builder.add_edge("tools", "think")
graph = builder.compile()
