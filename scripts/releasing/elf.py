"""What a program asks of the system that runs it: its machine, its interpreter, its libraries, versions of their symbols."""

import dataclasses
import pathlib
import re
import struct

from releasing.errors import ReleaseError

MACHINES = {62: "x86_64", 183: "aarch64"}
DYNAMIC, INTERPRETER = 2, 3
STRING_TABLE, NEEDED, VERSIONS, VERSION_COUNT = 5, 1, 0x6FFFFFFE, 0x6FFFFFFF


@dataclasses.dataclass(frozen=True)
class Program:
    machine: str
    # None for a static program.
    interpreter: str | None
    libraries: tuple[str, ...]
    versions: tuple[str, ...]

    @property
    def glibc(self) -> tuple[int, int] | None:
        """The oldest glibc that has every symbol; None where none is asked for."""
        found = [re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", name) for name in self.versions]
        return max(((int(match[1]), int(match[2])) for match in found if match), default=None)


def read(path: pathlib.Path) -> Program:
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ReleaseError(f"{path} is not a 64-bit little-endian ELF program")
    machine = struct.unpack_from("<H", data, 18)[0]
    offset, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    segments = [struct.unpack_from("<IIQQQQQQ", data, offset + number * size) for number in range(count)]

    def place(address: int) -> int:
        """Where in the file the bytes of an address are."""
        for kind, _, start, virtual, _, length, _, _ in segments:
            if kind == 1 and virtual <= address < virtual + length:
                return start + address - virtual
        raise ReleaseError(f"{path}: address {address:#x} is in no segment")

    def text(at: int) -> str:
        return data[at : data.index(b"\0", at)].decode()

    interpreter, entries = None, []
    for kind, _, start, _, _, length, _, _ in segments:
        if kind == INTERPRETER:
            interpreter = text(start)
        if kind == DYNAMIC:
            entries = [struct.unpack_from("<qQ", data, at) for at in range(start, start + length, 16)]
    last = next((number for number, (tag, _) in enumerate(entries) if tag == 0), len(entries))
    entries = entries[:last]
    single = dict(entries)
    libraries, versions = [], []
    if STRING_TABLE in single:
        strings = place(single[STRING_TABLE])
        libraries = [text(strings + value) for tag, value in entries if tag == NEEDED]
        if VERSIONS in single:
            versions = needed_versions(data, place(single[VERSIONS]), single.get(VERSION_COUNT, 0), lambda at: text(strings + at))
    return Program(MACHINES.get(machine, str(machine)), interpreter, tuple(libraries), tuple(sorted(set(versions))))


def needed_versions(data: bytes, at: int, count: int, text) -> list[str]:
    """The records of `.gnu.version_r`: one for each library, each followed by one for each version."""
    found = []
    for _ in range(count):
        _, inner_count, _, inner, following = struct.unpack_from("<HHIII", data, at)
        place = at + inner
        for _ in range(inner_count):
            _, _, _, name, step = struct.unpack_from("<IHHII", data, place)
            found.append(text(name))
            place += step
        at += following
    return found
