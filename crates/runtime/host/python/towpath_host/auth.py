"""The project's ``langgraph_sdk.Auth`` object."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from .users import User


class Denied(Exception):
    """The project's code refused a request."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})


class Request:
    """What an ``authenticate`` handler that asks for ``request`` gets: the head of the request, in the shape of
    Starlette's."""

    def __init__(self, scope: dict[str, Any], headers: dict[str, str], body: bytes | None) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.headers = _Headers(headers)
        self.query_params: dict[str, str] = dict(parse_qsl(scope["query_string"].decode("latin-1"), True))
        self.path_params: dict[str, Any] = scope["path_params"]
        self.url = _Url(scope["path"], scope["query_string"].decode("latin-1"))
        self._body = body or b""

    async def body(self) -> bytes:
        """The body as far as the server sent it along."""
        return self._body

    async def json(self) -> Any:
        """The body as JSON."""
        from . import text

        return text.loads(self._body)


class _Headers(dict[str, str]):
    """Names in any case."""

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(name.lower())

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


class _Url:
    def __init__(self, path: str, query: str) -> None:
        self.path, self.query = path, query

    def __str__(self) -> str:
        return f"{self.path}?{self.query}" if self.query else self.path


def handles(auth: Any) -> dict[str, Any]:
    """What the object has handlers for."""
    handlers = [f"{resource}.{action}" for resource, action in auth._handlers]
    if auth._global_handlers:
        handlers.append("*.*")
    return {"authenticate": auth._authenticate_handler is not None, "handlers": sorted(handlers)}


async def authenticate(auth: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """The user a request comes from, with everything the handler says of it."""
    handler = auth._authenticate_handler
    if handler is None:
        raise Denied(401, "auth.path: the object has no `authenticate` handler")
    available = _available(fields)
    arguments = {name: available[name] for name in inspect.signature(handler).parameters if name in available}
    try:
        result = handler(**arguments)
        if inspect.isawaitable(result):
            result = await result
    except Exception as error:
        raise _denied(error, 401) from error
    return _user(result)


async def authorize(auth: Any, resource: str, action: str, value: Any, user: dict[str, Any]) -> dict[str, Any]:
    """Whether a user may do that, to which rows, and with which value."""
    handlers = (
        auth._handlers.get((resource, action))
        or auth._handlers.get((resource, "*"))
        or auth._handlers.get(("*", action))
        or auth._global_handlers
    )
    filter_: Any = None
    if handlers:
        from langgraph_sdk.auth.types import AuthContext

        who: Any = User(user)
        asked: Any = {"resource": resource, "action": action}
        context = AuthContext(permissions=who.permissions, user=who, **asked)
        try:
            result = await handlers[-1](ctx=context, value=value)
        except Exception as error:
            raise _denied(error, 403) from error
        if result is False:
            return {"allowed": False, "filter": None, "value": value}
        if result not in (None, True):
            if not isinstance(result, dict):
                raise TypeError(
                    f"the handler for {resource}.{action} gave a {type(result).__name__}; "
                    "expected None, a bool or a filter"
                )
            filter_ = result
    return {"allowed": True, "filter": filter_, "value": value}


def _available(fields: dict[str, Any]) -> dict[str, Any]:
    pairs = [(str(name).lower(), str(value)) for name, value in fields.get("headers") or ()]
    raw = [(name.encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in pairs]
    query = str(fields.get("query") or "")
    scope = {
        "type": "http",
        "method": fields.get("method") or "GET",
        "path": fields.get("path") or "/",
        "raw_path": (fields.get("path") or "/").encode(),
        "query_string": query.encode("latin-1", "replace"),
        "headers": raw,
        "path_params": fields.get("path_params") or {},
        "scheme": "http",
    }
    headers = dict(pairs)
    request = Request(scope, headers, fields.get("body"))
    return {
        "request": request,
        "body": fields.get("body"),
        "scope": scope,
        "method": scope["method"],
        "path": scope["path"],
        "path_params": scope["path_params"],
        "query_params": request.query_params,
        "headers": dict(raw),
        "authorization": headers.get("authorization"),
        "user": None,
        "scopes": [],
    }


def _user(result: Any) -> dict[str, Any]:
    if isinstance(result, str):
        given: dict[str, Any] = {"identity": result}
    elif isinstance(result, Mapping):
        given = dict(result)
    elif hasattr(result, "identity"):
        given = {
            name: getattr(result, name)
            for name in ("identity", "display_name", "is_authenticated", "permissions")
            if hasattr(result, name)
        }
    elif isinstance(result, (list, tuple)) and len(result) == 2:
        permissions, user = result
        given = {**_user(user), "permissions": list(permissions or ())}
    else:
        raise TypeError(
            f"the `authenticate` handler gave a {type(result).__name__}; expected an identity, or a mapping with "
            "`identity`"
        )
    if not given.get("identity"):
        raise ValueError("the `authenticate` handler returned a user without `identity`")
    given["identity"] = str(given["identity"])
    given.setdefault("is_authenticated", True)
    given.setdefault("display_name", given["identity"])
    given["permissions"] = list(given.get("permissions") or ())
    return given


def _denied(error: Exception, status: int) -> Exception:
    """A refusal, when the exception is one; a defect of the handler otherwise."""
    code = getattr(error, "status_code", None)
    if isinstance(code, int):
        # A handler for permissions that says 401 means it; the server tells the two apart.
        return Denied(code, str(getattr(error, "detail", None) or error), getattr(error, "headers", None))
    if isinstance(error, (AssertionError, PermissionError)):
        return Denied(status, str(error) or "Forbidden")
    return error
