"""A chat: one node that calls a model."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.graph import START, MessagesState, StateGraph


class Parrot(BaseChatModel):
    """A model without a network. Says how often it was spoken to, and repeats what it heard."""

    pause_s: float = 0.05

    @property
    def _llm_type(self) -> str:
        return "parrot"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("".join(words(messages))))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for word in words(messages):
            yield ChatGenerationChunk(message=AIMessageChunk(word))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for word in words(messages):
            await asyncio.sleep(self.pause_s)
            chunk = ChatGenerationChunk(message=AIMessageChunk(word))
            if run_manager is not None:
                await run_manager.on_llm_new_token(word, chunk=chunk)
            yield chunk


def words(messages: list[BaseMessage]) -> list[str]:
    """What the parrot says, in pieces."""
    heard = [message.text for message in messages if message.type == "human"]
    said = f"You have spoken to me {len(heard)} times. Last you said: {heard[-1] if heard else 'nothing'}"
    first, *rest = said.split(" ")
    return [first, *(f" {word}" for word in rest)]


# Your own model goes here: `from langchain.chat_models import init_chat_model`, `model = init_chat_model("…")`.
model = Parrot()


async def reply(state: MessagesState) -> dict[str, Any]:
    """One turn."""
    return {"messages": [await model.ainvoke(state["messages"])]}


builder = StateGraph(MessagesState)
builder.add_node(reply)
builder.add_edge(START, "reply")
graph = builder.compile()
