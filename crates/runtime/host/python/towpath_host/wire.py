"""Frames: a length, a type, a stream, and a payload that is nearly always one MessagePack map."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

import ormsgpack

HEADER = struct.Struct(">IBI")
"""Length of what follows the length, type, stream."""

MAX_FRAME_BYTES = 256 << 20
"""The longest frame a server takes that says nothing else. What comes from a server may be longer: a state is saved in
pieces and read at once."""


class Type(IntEnum):
    """Codes of messages."""

    HELLO = 0x01
    INIT = 0x02
    READY = 0x03
    LOAD_ERROR = 0x04
    PING = 0x05
    PONG = 0x06
    LOG = 0x07
    SHUTDOWN = 0x08
    FORK = 0x09
    FORKED = 0x0A
    EXITED = 0x0B
    RUN = 0x10
    CHUNK = 0x11
    CREDIT = 0x12
    CANCEL = 0x13
    FAIL = 0x14
    DONE = 0x15
    STATE_GET = 0x20
    STATE_UPDATE = 0x21
    HISTORY = 0x22
    SCHEMAS = 0x23
    DRAW = 0x24
    SUBGRAPHS = 0x25
    AUTHENTICATE = 0x26
    AUTHORIZE = 0x27
    EMBED = 0x28
    ENCRYPT = 0x29
    DECRYPT = 0x2A
    ANSWER = 0x2F
    CP_GET = 0x30
    CP_PUT = 0x31
    CP_WRITES = 0x32
    CP_LIST = 0x33
    CP_DELETE = 0x34
    STORE = 0x38
    REPLY = 0x3F


class ProtocolError(Exception):
    """The peer sent what is no frame of this protocol."""


pack = ormsgpack.packb
"""A map as a payload."""


def unpack(payload: bytes) -> dict[str, Any]:
    """A payload as a map."""
    if not payload:
        return {}
    try:
        fields = ormsgpack.unpackb(payload)
    except ValueError as error:
        raise ProtocolError(f"a payload is not MessagePack: {error}") from None
    if not isinstance(fields, dict):
        raise ProtocolError("a payload is not a map")
    return fields


def frame(type_: int, stream: int, payload: bytes) -> bytes:
    """A whole frame."""
    return HEADER.pack(len(payload) + 5, type_, stream) + payload


class Parser:
    """Cuts what was read into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """The frames that are complete with ``data``: type, stream, payload."""
        buffer = self._buffer
        buffer += data
        frames: list[tuple[int, int, bytes]] = []
        at, end = 0, len(buffer)
        while end - at >= 9:
            length, type_, stream = HEADER.unpack_from(buffer, at)
            if length < 5:
                raise ProtocolError(f"a frame of {length} bytes")
            if end - at < 4 + length:
                break
            frames.append((type_, stream, bytes(buffer[at + 9 : at + 4 + length])))
            at += 4 + length
        if at:
            del buffer[:at]
        return frames
