"""A model without a network that knows four sentences. It asks for tools the way real models do."""

import re
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

NUMBER = r"(-?\d+(?:\.\d+)?)"
SENTENCES = [
    (re.compile(rf"{NUMBER} (?:\+|plus) {NUMBER}"), "add", lambda m: {"a": float(m[1]), "b": float(m[2])}),
    (re.compile(rf"{NUMBER} (?:\*|times) {NUMBER}"), "multiply", lambda m: {"a": float(m[1]), "b": float(m[2])}),
    (re.compile(r"remember(?: that)? (.+)", re.I), "remember", lambda m: {"fact": m[1].rstrip(".")}),
    (re.compile(r"what do you know", re.I), "recall", lambda m: {}),
]


class Clerk(BaseChatModel):
    """Answers with what tools said; otherwise asks for the tools the last sentence needs."""

    @property
    def _llm_type(self) -> str:
        return "clerk"

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
        found = []
        for message in reversed(messages):
            if not isinstance(message, ToolMessage):
                break
            found.append(f"{message.name}: {message.text}")
        return AIMessage("; ".join(reversed(found)))
    calls = [
        {"name": name, "args": arguments(match), "id": f"call-{len(messages)}-{at}", "type": "tool_call"}
        for at, (pattern, name, arguments) in enumerate(SENTENCES)
        for match in pattern.finditer(last.text)
    ]
    if calls:
        return AIMessage("", tool_calls=calls)
    return AIMessage('Try "2 plus 3 and 4 times 5", "remember that tea is at five", or "what do you know?"')
