"""The user of a request, as the project's code sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class User(Mapping[str, Any]):
    """What the project's ``authenticate`` handler gave: a mapping whose entries are attributes too."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = dict(fields)

    @property
    def identity(self) -> str:
        return self._fields.get("identity") or ""

    @property
    def display_name(self) -> str:
        return self._fields.get("display_name") or self.identity

    @property
    def is_authenticated(self) -> bool:
        return bool(self._fields.get("is_authenticated", True))

    @property
    def permissions(self) -> list[str]:
        return list(self._fields.get("permissions") or ())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._fields[name]
        except KeyError:
            raise AttributeError(f"the user has no {name!r}") from None

    def __getitem__(self, key: str) -> Any:
        return self._fields[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"User({self.identity!r})"

    def __deepcopy__(self, memo: Any) -> User:
        return self

    def dict(self) -> dict[str, Any]:
        """What is written of it."""
        return self._fields


def user_of(configurable: Mapping[str, Any]) -> User | None:
    """The user a config names."""
    fields = configurable.get("langgraph_auth_user")
    if isinstance(fields, User):
        return fields
    if isinstance(fields, Mapping):
        return User(fields)
    identity = configurable.get("langgraph_auth_user_id")
    if identity:
        return User({"identity": identity, "permissions": configurable.get("langgraph_auth_permissions") or []})
    return None
