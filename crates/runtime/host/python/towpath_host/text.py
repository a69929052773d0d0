"""JSON as clients of the agent server expect it."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections import deque
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import PurePath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from langgraph.types import Send

try:
    import orjson
except ImportError:  # Only on interpreters it does not exist for.
    orjson = None  # type: ignore[assignment]

_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")
_PLAIN_TEXT = (
    UUID,
    PurePath,
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)


def default(obj: Any) -> Any:
    """What an object that JSON does not know is written as."""
    if not isinstance(obj, type):
        for method in ("model_dump", "dict", "_asdict"):
            dump = getattr(obj, method, None)
            if callable(dump):
                return dump()
    if isinstance(obj, BaseException):
        return {"error": type(obj).__name__, "message": str(obj)}
    if isinstance(obj, (set, frozenset, deque, tuple)):
        return list(obj)
    if isinstance(obj, Send):
        return {"node": obj.node, "arg": obj.arg}
    if isinstance(obj, (timezone, ZoneInfo)):
        return obj.tzname(None)
    if isinstance(obj, timedelta):
        return obj.total_seconds()
    if isinstance(obj, Decimal):
        _, _, exponent = obj.as_tuple()
        return int(obj) if isinstance(exponent, int) and exponent >= 0 else float(obj)
    if isinstance(obj, _PLAIN_TEXT):
        return str(obj)
    if isinstance(obj, re.Pattern):
        return obj.pattern
    if isinstance(obj, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(obj)).decode()
    if isinstance(obj, Mapping):
        return dict(obj)
    if isinstance(obj, type):
        return {"type": f"{obj.__module__}.{obj.__qualname__}"}
    tolist = getattr(obj, "tolist", None)  # Arrays and scalars of numpy that orjson declines.
    if callable(tolist):
        return tolist()
    return repr(obj)


def dumps(obj: Any) -> bytes:
    """JSON text in UTF-8, without U+0000."""
    data = _encode(obj)
    if b"\\u0000" in data:
        data = _NUL.sub(rb"\1\\ufffd", data)
    return data


def loads(data: bytes | None) -> Any:
    """What a field of type json says; ``None`` for one that is absent."""
    if data is None:
        return None
    return orjson.loads(data) if orjson is not None else json.loads(data)


def _encode(obj: Any) -> bytes:
    if orjson is not None:
        try:
            return orjson.dumps(obj, default, _OPTIONS)
        except (TypeError, ValueError):
            # Integers over 64 bits, half surrogates, keys and depths of odd kinds: slower, but they have a text.
            pass
    return json.dumps(_plain(obj), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        "utf-8", "replace"
    )


def _plain(obj: Any, depth: int = 0) -> Any:
    """The same out of nothing but what the standard library writes."""
    if depth > 400:
        raise ValueError("the value is nested too deeply, or contains itself")
    if isinstance(obj, Enum):
        return _plain(obj.value, depth + 1)
    if obj is None or isinstance(obj, (bool, str)):
        return obj
    if isinstance(obj, int):
        return int(obj)
    if isinstance(obj, float):
        return float(obj) if obj == obj and obj not in (float("inf"), float("-inf")) else None
    if isinstance(obj, dict):
        return {_key(key): _plain(value, depth + 1) for key, value in obj.items()}
    if isinstance(obj, list) or type(obj) is tuple:
        return [_plain(value, depth + 1) for value in obj]
    if isinstance(obj, (datetime, date, time)):
        return obj.isoformat()
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return {
            field.name: _plain(getattr(obj, field.name, None), depth + 1)
            for field in dataclasses.fields(obj)
            if not field.name.startswith("_")
        }
    return _plain(default(obj), depth + 1)


def _key(key: Any) -> str:
    if isinstance(key, Enum):
        key = key.value
    if isinstance(key, str):
        return str(key)
    if key is None or isinstance(key, (bool, int, float)):
        return json.dumps(key)
    return key.isoformat() if isinstance(key, (datetime, date, time)) else str(key)


_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS if orjson is not None else 0
