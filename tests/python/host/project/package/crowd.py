"""A graph inside of a package, with a relative import."""

import operator
from typing import Annotated, TypedDict

from langgraph.graph import START, StateGraph

from .shared import GREETING


class State(TypedDict):
    log: Annotated[list, operator.add]


graph = StateGraph(State)
graph.add_node("greet", lambda state: {"log": [GREETING]})
graph.add_edge(START, "greet")
