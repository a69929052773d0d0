from releasing.archive import File, compress, tar
from releasing.payload import Payload


def name(payload: Payload) -> str:
    return f"towpath-{payload.project.version}-{payload.target.label}.tar.gz"


def make(payload: Payload) -> bytes:
    """One folder that can be unpacked over a prefix such as /usr/local."""
    legal = [File(f"share/doc/towpath/{file.path}", file.content, file.mode) for file in payload.legal()]
    files = [File("bin/towpath", payload.binary, 0o755), *payload.documents, *legal]
    folder = name(payload).removesuffix(".tar.gz") + "/"
    return compress(tar(files, payload.project.epoch, prefix=folder), "gz")
