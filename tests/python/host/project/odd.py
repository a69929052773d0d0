"""Values that JSON does not know."""

import dataclasses
import datetime
import decimal
import enum
import ipaddress
import operator
import pathlib
import re
import uuid
from collections import namedtuple
from typing import Annotated, Any, TypedDict

from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph
from pydantic import BaseModel
from typing_extensions import NotRequired


class State(TypedDict, total=False):
    out: Any
    kept: Any
    hidden: Annotated[NotRequired[int | None], "as middlewares declare what is theirs"]
    bare: Annotated[list, operator.add]
    strange: Annotated[object, lambda before, after: after]


class Model(BaseModel):
    a: int
    when: datetime.date


@dataclasses.dataclass
class Point:
    x: int
    y: Any


class Color(enum.Enum):
    RED = "red"


Pair = namedtuple("Pair", "left right")


async def make(state):
    write = get_stream_writer()
    write({"error": KeyError("gone")})
    write({"big": 1 << 70, "surrogate": "\ud800", "time": datetime.time(12), "flag": Color.RED, "set": {1}})
    return {
        "out": {
            "message": HumanMessage("hi", id="h"),
            "document": Document("text", metadata={"n": 1}),
            "model": Model(a=1, when=datetime.date(2026, 3, 1)),
            "point": Point(1, {"deep": Point(2, None)}),
            "time": datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.timezone.utc),
            "delta": datetime.timedelta(seconds=90),
            "uuid": uuid.UUID(int=1),
            "decimal": decimal.Decimal("1.5"),
            "whole": decimal.Decimal("2"),
            "set": {1},
            "tuple": (1, 2),
            "pair": Pair(1, 2),
            "enum": Color.RED,
            "path": pathlib.Path("/a/b"),
            "ip": ipaddress.ip_address("127.0.0.1"),
            "pattern": re.compile("a+"),
            "bytes": b"\x00\xff",
            "nan": float("nan"),
            "nul": "a\x00b",
            "escaped": "a\\u0000b",
            "keys": {1: "int", Color.RED: "enum", None: "none"},
        }
    }


async def keep(state):
    """Values that are not only shown: they have to come back from a checkpoint as they were."""
    return {"kept": {"point": Point(1, 2), "text": "a\x00b", "color": Color.RED, "number": 1 << 60}}


async def check(state):
    kept = state["kept"]
    return {
        "out": [
            kept["point"] == Point(1, 2),
            kept["text"] == "a\x00b",
            kept["color"] is Color.RED,
            kept["number"] == 1 << 60,
        ]
    }


builder = StateGraph(State)
builder.add_node("make", make)
builder.add_node("keep", keep)
builder.add_node("check", check)
builder.add_edge(START, "make")
builder.add_edge("make", "keep")
builder.add_edge("keep", "check")
graph = builder.compile(interrupt_before=["check"])
