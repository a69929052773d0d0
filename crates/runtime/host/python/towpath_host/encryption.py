"""The project's ``langgraph_sdk.Encryption`` object."""

from __future__ import annotations

from typing import Any

SUFFIX = "+custom"
"""Marks the type of a blob the project's handlers encrypted."""


class BlobCipher:
    """Encrypts what checkpoints hold with the project's handlers."""

    def __init__(self, encryption: Any) -> None:
        self._encryption = encryption

    async def encrypt(self, type_: str, data: bytes) -> tuple[str, bytes]:
        """A blob as it is stored."""
        if self._encryption._blob_encryptor is None:
            return type_, data
        return type_ + SUFFIX, bytes(await self._encryption._blob_encryptor(_context("checkpoint", "blob"), data))

    async def decrypt(self, type_: str, data: bytes) -> tuple[str, bytes]:
        """A blob as it was. One that was stored before there was encryption comes back as it is."""
        if not type_.endswith(SUFFIX):
            return type_, data
        if self._encryption._blob_decryptor is None:
            raise RuntimeError("a checkpoint is encrypted, but `encryption` has no handler for `decrypt.blob`")
        result = await self._encryption._blob_decryptor(_context("checkpoint", "blob"), data)
        return type_[: -len(SUFFIX)], bytes(_value(result))


def handles(encryption: Any) -> dict[str, bool]:
    """What the object has handlers for."""
    return {
        "json": encryption._json_encryptor is not None,
        "blob": encryption._blob_encryptor is not None,
    }


async def convert(encryption: Any, way: str, fields: dict[str, Any]) -> Any:
    """Answers ENCRYPT (``way`` is ``encrypt``) and DECRYPT. ``fields['data']`` is a value already."""
    what = fields.get("what") or "json"
    handler = getattr(encryption, f"_{what}_{way}or", None)
    if handler is None:
        return fields["data"]
    context = _context(fields.get("model"), fields.get("field"), fields.get("metadata"))
    result = _value(await handler(context, fields["data"]))
    if way == "encrypt" and what == "json" and set(result) != set(fields["data"]):
        raise ValueError("the handler of `encrypt.json` must keep the keys and only change values")
    return result


def _value(result: Any) -> Any:
    """What a handler gave. A decryptor may wrap it, to say what should replace the stored value; nothing replaces it
    here."""
    return getattr(result, "plaintext", result)


def _context(model: str | None, field: str | None, metadata: dict[str, Any] | None = None) -> Any:
    from langgraph_sdk.encryption.types import EncryptionContext

    return EncryptionContext(model=model, field=field, metadata=metadata or {})
