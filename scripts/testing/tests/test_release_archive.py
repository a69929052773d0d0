import gzip
import io
import pathlib
import struct
import subprocess
import tarfile
import tempfile
import unittest
import zipfile

from releasing import archive, compare, elf
from releasing.archive import File, Folder, Link
from releasing.errors import ReleaseError

FILES = [File("b/two", b"2", 0o755), File("a", b"1"), Link("b/one", "two"), Folder("c", 0o700)]
EPOCH = 1_700_000_000


def entries(data: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as opened:
        return opened.getmembers()


class Tar(unittest.TestCase):
    def test_the_order_of_files_does_not_matter(self):
        self.assertEqual(archive.tar(FILES, EPOCH), archive.tar(FILES[::-1], EPOCH))

    def test_names_are_sorted_and_have_their_folders(self):
        found = entries(archive.tar(FILES, EPOCH, prefix="towpath-1/"))
        self.assertEqual(
            [entry.name for entry in found],
            ["towpath-1", "towpath-1/a", "towpath-1/b", "towpath-1/b/one", "towpath-1/b/two", "towpath-1/c"],
        )
        self.assertEqual([oct(entry.mode) for entry in found][1::2], ["0o644", "0o777", "0o700"])

    def test_time_and_owner_are_those_of_the_release(self):
        found = {(entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname) for entry in entries(archive.tar(FILES, EPOCH))}
        self.assertEqual(found, {(EPOCH, 0, 0, "root", "root")})

    def test_gzip_keeps_no_time(self):
        packed = archive.compress(b"text", "gz")
        self.assertEqual(packed[4:8], b"\0\0\0\0")
        self.assertEqual(gzip.decompress(packed), b"text")


class Zip(unittest.TestCase):
    def test_programs_stay_programs_and_order_stays(self):
        with zipfile.ZipFile(io.BytesIO(archive.zipped(FILES[:2], EPOCH))) as opened:
            found = [(info.filename, oct(info.external_attr >> 16), info.date_time) for info in opened.infolist()]
        moment = (2023, 11, 14, 22, 13, 20)
        self.assertEqual(found, [("b/two", "0o100755", moment), ("a", "0o100644", moment)])

    def test_times_before_1980_are_moved_to_it(self):
        with zipfile.ZipFile(io.BytesIO(archive.zipped(FILES[:1], 0))) as opened:
            self.assertEqual(opened.infolist()[0].date_time[0], 1980)


class Compare(unittest.TestCase):
    def test_it_names_the_first_byte_and_what_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            one, other = (pathlib.Path(folder) / name for name in ("one", "other"))
            for place, content in ((one, b"abc"), (other, b"abd")):
                place.mkdir()
                (place / "differs").write_bytes(content)
                (place / "same").write_bytes(b"x")
            (one / "shorter").write_bytes(b"a")
            (other / "shorter").write_bytes(b"ab")
            (other / "only").write_bytes(b"")
            lines, is_same = compare.folders(one, other)
        self.assertFalse(is_same)
        self.assertEqual(
            lines,
            [
                "differs: differs from byte 2 on",
                "only: is missing in the first build",
                "same: same",
                "shorter: differs from byte 1 on",
            ],
        )


def program(machine=62, versions=("GLIBC_2.17", "GLIBC_2.9")) -> bytes:
    """The smallest program that asks for versions of symbols: one segment that is its own address space."""
    strings = b"\0libc.so.6\0" + b"\0".join(name.encode() for name in versions) + b"\0"
    offsets = [strings.index(name.encode() + b"\0") for name in versions]
    head, segments = 64, 2 * 56
    dynamic_at = head + segments
    dynamic_size = 5 * 16
    strings_at = dynamic_at + dynamic_size
    versions_at = strings_at + len(strings)
    records = struct.pack("<HHIII", 1, len(versions), 1, 16, 0)
    for number, offset in enumerate(offsets):
        records += struct.pack("<IHHII", 0, 0, 0, offset, 16 if number + 1 < len(offsets) else 0)
    dynamic = b"".join(
        struct.pack("<qQ", *entry)
        for entry in ((1, 1), (5, strings_at), (0x6FFFFFFE, versions_at), (0x6FFFFFFF, 1), (0, 0))
    )
    size = versions_at + len(records)
    elf_head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, head, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096)
    dynamic_segment = struct.pack("<IIQQQQQQ", 2, 6, dynamic_at, dynamic_at, 0, dynamic_size, dynamic_size, 8)
    return elf_head + load + dynamic_segment + dynamic + strings + records


class Elf(unittest.TestCase):
    def read(self, data: bytes) -> elf.Program:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "program"
            path.write_bytes(data)
            return elf.read(path)

    def test_versions_are_compared_as_numbers(self):
        found = self.read(program())
        self.assertEqual((found.machine, found.libraries, found.glibc), ("x86_64", ("libc.so.6",), (2, 17)))
        self.assertIsNone(found.interpreter)

    def test_other_machines_have_their_names(self):
        self.assertEqual(self.read(program(machine=183)).machine, "aarch64")

    def test_a_text_is_no_program(self):
        with self.assertRaisesRegex(ReleaseError, "is not a 64-bit"):
            self.read(b"#!/bin/sh\n")

    def test_a_real_program_says_the_same_as_objdump(self):
        try:
            said = subprocess.run(["objdump", "-T", "/bin/sh"], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            self.skipTest("no objdump")
        for name in elf.read(pathlib.Path("/bin/sh")).versions:
            self.assertIn(name, said)
