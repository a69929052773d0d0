"""The tool of the MCP conformance package whose input has keywords of JSON Schema 2020-12."""

from typing import Any, TypedDict

from langgraph.graph import START, StateGraph
from pydantic import BaseModel, ConfigDict


# The package looks for a definition of this name.
class address(BaseModel):  # noqa: N801
    street: str | None = None
    city: str | None = None


Address = address


class Input(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"$schema": "https://json-schema.org/draft/2020-12/schema"},
    )
    name: str | None = None
    address: Address | None = None


class State(TypedDict, total=False):
    name: Any
    address: Any


async def node(state: Input) -> State:
    return {"name": state.name}


tool = StateGraph(State, input_schema=Input).add_node("node", node).add_edge(START, "node").compile()
