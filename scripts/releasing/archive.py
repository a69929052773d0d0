"""Archives that are the same bytes for the same files: sorted names, one time, one owner."""

import dataclasses
import gzip
import io
import lzma
import pathlib
import tarfile
import time
import zipfile

# The earliest time that a zip can hold.
ZIP_EPOCH = 315532800


@dataclasses.dataclass(frozen=True)
class File:
    """A file of a package: its path there, and what is in it."""

    path: str
    content: bytes | pathlib.Path
    mode: int = 0o644

    def read(self) -> bytes:
        return self.content if isinstance(self.content, bytes) else self.content.read_bytes()


@dataclasses.dataclass(frozen=True)
class Link:
    path: str
    target: str


@dataclasses.dataclass(frozen=True)
class Folder:
    """A folder that has to be there though it is empty, or with a mode of its own."""

    path: str
    mode: int = 0o755


def compress(data: bytes, kind: str) -> bytes:
    if kind == "gz":
        # Neither a time nor a name in the head.
        out = io.BytesIO()
        with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=out, mtime=0) as packer:
            packer.write(data)
        return out.getvalue()
    if kind == "xz":
        return lzma.compress(data, preset=6)
    return data


def tar(files, epoch: int, prefix: str = "", dot: bool = False) -> bytes:
    """A tar of `files` with the folders above them. `dot` begins every path with `./`, as Debian's packages do."""
    members: dict[str, File | Link | Folder] = {}
    for entry in files:
        path = prefix + entry.path
        for parent in reversed(pathlib.PurePosixPath(path).parents):
            if str(parent) != ".":
                members.setdefault(str(parent), Folder(str(parent)))
        members[path] = entry
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as packer:
        if dot:
            add(packer, "./", Folder("."), epoch)
        for path in sorted(members):
            add(packer, f"./{path}" if dot else path, members[path], epoch)
    return out.getvalue()


def add(packer: tarfile.TarFile, name: str, entry: File | Link | Folder, epoch: int):
    info = tarfile.TarInfo(name)
    info.mtime, info.uid, info.gid, info.uname, info.gname = epoch, 0, 0, "root", "root"
    if isinstance(entry, Folder):
        info.type, info.mode = tarfile.DIRTYPE, entry.mode
        packer.addfile(info)
    elif isinstance(entry, Link):
        info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, entry.target
        packer.addfile(info)
    else:
        data = entry.read()
        info.mode, info.size = entry.mode, len(data)
        packer.addfile(info, io.BytesIO(data))


def zipped(files, epoch: int) -> bytes:
    """A zip of `files`, in their order: readers of wheels look for the metadata at the end."""
    moment = time.gmtime(max(epoch, ZIP_EPOCH))[:6]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packer:
        for entry in files:
            info = zipfile.ZipInfo(entry.path, moment)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3
            info.external_attr = (0o100000 | entry.mode) << 16
            packer.writestr(info, entry.read())
    return out.getvalue()
