"""The embedder that ``store.index`` of the config file names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langgraph.store.base import ensure_embeddings, get_text_at_path, tokenize_path


class Index:
    """What of an item is embedded, and how."""

    def __init__(self, embedder: Any, fields: list[str] | None) -> None:
        self._embeddings = ensure_embeddings(embedder)
        self._fields = [_tokens(path) for path in fields or ["$"]]

    def texts(self, value: Any, paths: list[str] | None) -> Iterator[tuple[str, str]]:
        """The texts of a value: its path, and it. ``paths`` are those of the operation, when it names any."""
        fields = self._fields if paths is None else [_tokens(path) for path in paths]
        for path, tokens in fields:
            found = get_text_at_path(value, tokens)
            for at, one in enumerate(found):
                yield (path if len(found) == 1 else f"{path}.{at}"), one

    async def embed(self, texts: list[str]) -> list[list[float]]:
        """One vector for each text."""
        vectors = await self._embeddings.aembed_documents(texts)
        return [[float(number) for number in vector] for vector in vectors]


def _tokens(path: str) -> tuple[str, Any]:
    """A path, and its parts; ``$`` is the whole value."""
    return path, path if path == "$" else tokenize_path(path)
