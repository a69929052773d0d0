"""The embedder that ``store.index`` of the config file names."""

from __future__ import annotations

from typing import Any

from langgraph.store.base import ensure_embeddings


class Embedder:
    """A function of the author, sync or async, an ``Embeddings`` object, or ``provider:model``."""

    def __init__(self, embedder: Any) -> None:
        self._embeddings = ensure_embeddings(embedder)

    async def embed(self, texts: list[str]) -> list[list[float]]:
        """One vector for each text."""
        vectors = await self._embeddings.aembed_documents(texts)
        return [[float(number) for number in vector] for vector in vectors]
