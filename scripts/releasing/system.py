"""What the deb and the rpm share: the files of a system with the service, and the scripts around its installation."""

from releasing import documents, project
from releasing.archive import File, Folder
from releasing.payload import Payload

CONFIGURATION = ("etc/towpath/towpath.toml", "etc/towpath/towpath.env")
# The secrets are for root alone.
MODES = {"etc/towpath/towpath.env": 0o600}
DROP_INS = ("keep-sandboxes.conf", "isolate-deployments.conf")


def files(payload: Payload) -> list[File | Folder]:
    def template(path: str, name: str) -> File:
        return File(path, project.template(name).encode(), MODES.get(path, 0o644))

    return [
        File("usr/bin/towpath", payload.binary, 0o755),
        *(File(f"usr/{file.path}", file.content, file.mode) for file in documents.packed(list(payload.documents))),
        *(File(f"usr/share/doc/towpath/{file.path}", file.content) for file in payload.legal()),
        *(template(path, path.rsplit("/", 1)[1]) for path in CONFIGURATION),
        template("usr/lib/systemd/system/towpath.service", "towpath.service"),
        *(template(f"usr/share/towpath/{name}", name) for name in DROP_INS),
    ]


def script(name: str) -> str:
    return project.template(name)


def script_body(name: str) -> str:
    """Without its first line, which names the shell."""
    return script(name).split("\n", 1)[1]
