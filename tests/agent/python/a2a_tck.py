"""The agent of the compatibility kit of the Agent2Agent protocol: the id of a message decides what it does.

The kit describes these ids in its folder `scenarios`. Everything that is not named here completes its task.
"""

import asyncio
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

FILE = {"type": "file", "mime_type": "text/plain", "extras": {"filename": "output.txt"}}
CONTENTS: dict[str, Any] = {
    "tck-artifact-text": "Generated text content",
    "tck-artifact-file-url": [FILE | {"url": "https://example.com/output.txt"}],
    "tck-artifact-file": [FILE | {"base64": "dGNr"}],
    "tck-artifact-data": [{"type": "data", "data": {"key": "value", "count": 42}}],
    "tck-stream-001": "Stream hello from TCK",
    "tck-stream-003": "Stream task lifecycle",
    "tck-stream-ordering-001": "Ordered output",
    "tck-stream-artifact-text": "Streamed text content",
    "tck-stream-artifact-file": [FILE | {"base64": "dGNr"}],
    "tck-stream-artifact-chunked": "chunk-1 chunk-2",
}
DELAYS_S = {"tck-delayed-complete": 2, "test-resubscribe-message-id": 4}
# A message to a task that asks carries no id to the graph. These texts of the kit are followed by another message.
ASKS_AGAIN = "TCK history message"


async def act(state: MessagesState) -> dict[str, Any]:
    message_id = next(message.id or "" for message in reversed(state["messages"]) if message.type == "human")
    if message_id.startswith("tck-input-required"):
        answers = [interrupt("What next?")]
        while answers[-1].startswith(ASKS_AGAIN):
            answers.append(interrupt("What next?"))
        return {"messages": [*map(HumanMessage, answers), AIMessage("Hello from TCK")]}
    if message_id.startswith("tck-reject-task"):
        raise ValueError("rejected")
    if message_id.startswith("tck-message-response"):
        direct = {"a2a": {"response": "message"}}
        return {"messages": [AIMessage("Direct message response", additional_kwargs=direct)]}
    for prefix, delay_s in DELAYS_S.items():
        if message_id.startswith(prefix):
            await asyncio.sleep(delay_s)
    # Of prefixes that begin alike the longest one counts.
    prefixes = sorted((prefix for prefix in CONTENTS if message_id.startswith(prefix)), key=len)
    content = CONTENTS[prefixes[-1]] if prefixes else "Hello from TCK"
    return {"messages": [AIMessage(content)]}


tck = StateGraph(MessagesState).add_node("act", act).add_edge(START, "act").compile()
