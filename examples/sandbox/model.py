"""A model without a network: it runs what it is told to run. It asks for the tool the way real models do."""

from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult


class Coder(BaseChatModel):
    """Answers with what the tool said; otherwise asks for it where a sentence begins with "run"."""

    @property
    def _llm_type(self) -> str:
        return "coder"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=answer(messages))])


def answer(messages: list[BaseMessage]) -> AIMessage:
    """The next message of the model."""
    last = messages[-1]
    if isinstance(last, ToolMessage):
        return AIMessage(last.text)
    word, _, code = last.text.partition(" ")
    if word.lower() == "run" and code:
        call = {"name": "run_python", "args": {"code": code}, "id": f"call-{len(messages)}", "type": "tool_call"}
        return AIMessage("", tool_calls=[call])
    return AIMessage('Try "run print(6 * 7)".')
