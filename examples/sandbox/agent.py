"""An agent that runs the code it writes in a sandbox of its conversation."""

from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langsmith.sandbox import ResourceNotFoundError, Sandbox, SandboxClient
from model import Coder


def sandbox_of(thread: str) -> Sandbox:
    """The sandbox of a conversation. One that was stopped starts again by itself, with its files."""
    client = SandboxClient()
    name = f"thread-{thread}"
    try:
        return client.get_sandbox(name)
    except ResourceNotFoundError:
        return client.create_sandbox(name=name, idle_ttl_seconds=600, delete_after_stop_seconds=86_400)


@tool
def run_python(code: str, config: RunnableConfig) -> str:
    """Runs Python and answers with what it prints. Files stay for later calls of the same conversation."""
    box = sandbox_of(config["configurable"]["thread_id"])
    box.write("main.py", code)
    result = box.run("python3 ~/main.py", timeout=60)
    return (result.stdout + result.stderr).strip() or f"exit code {result.exit_code}"


TOOLS = [run_python]

# Your own model goes here: `init_chat_model("…").bind_tools(TOOLS)`.
model = Coder()


async def think(state: MessagesState) -> dict[str, list[AIMessage]]:
    """One step of the loop: the model answers, or asks for the tool."""
    message: Any = await model.ainvoke(state["messages"])
    return {"messages": [message]}


builder = StateGraph(MessagesState)
builder.add_node(think)
builder.add_node(ToolNode(TOOLS))
builder.add_edge(START, "think")
builder.add_conditional_edges("think", tools_condition)
builder.add_edge("tools", "think")
graph = builder.compile()
