"""Sandboxes on an image of a registry. The registry is on loopback, asks for a login, and has one image, made from programs of
this machine."""

import base64
import gzip
import hashlib
import http.server
import io
import json
import pathlib
import platform
import re
import shutil
import subprocess
import tarfile
import threading

import harness
import pytest
from sandbox_machine import machine

# Fixtures are found by their names.
__all__ = ["machine"]
LOGIN = ("robot", "hunter2-of-the-registry")
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG = "application/vnd.oci.image.config.v1+json"
PROGRAMS = ["cat", "id", "sh", "sleep"]
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def programs() -> dict[str, bytes]:
    """Files of an image in which these programs run."""
    files = {}
    for name in PROGRAMS:
        path = shutil.which(name)
        listed = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
        files[f"bin/{name}"] = pathlib.Path(path).read_bytes()
        for library in re.findall(r"(/\S+) \(0x", listed):
            files[library.lstrip("/")] = pathlib.Path(library).read_bytes()
    return files


def archive(files: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755
            tar.addfile(info, io.BytesIO(content))
    return written.getvalue()


class Registry:
    """Serves `team/app` over the distribution API."""

    def __init__(self, layers: list[dict[str, bytes]], config: dict):
        self.blobs, self.seen = {}, []
        archives = [archive(files) for files in layers]
        described = [self.blob(LAYER, gzip.compress(content, 1)) for content in archives]
        processor = platform.machine()
        config = {
            "os": "linux",
            "architecture": ARCHITECTURES.get(processor, processor),
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [digest(content) for content in archives]},
        }
        config = self.blob(CONFIG, json.dumps(config).encode())
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": described}
        manifest = json.dumps(manifest).encode()
        self.digest = digest(manifest)
        self.manifests = {"v1": manifest, self.digest: manifest}
        registry = self
        expected = "Basic " + base64.b64encode(":".join(LOGIN).encode()).decode()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                registry.seen.append(self.path)
                if self.headers["Authorization"] != expected:
                    self.answer(401, b"", {"WWW-Authenticate": 'Basic realm="test"'})
                    return
                kind, _, name = self.path.removeprefix("/v2/team/app/").partition("/")
                content = {"manifests": registry.manifests, "blobs": registry.blobs}.get(kind, {}).get(name)
                self.answer(404 if content is None else 200, content or b"", {})

            def answer(self, status, content, headers):
                self.send_response(status)
                for header in ({"Content-Length": str(len(content))} | headers).items():
                    self.send_header(*header)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def blob(self, kind, content: bytes) -> dict:
        self.blobs[digest(content)] = content
        return {"mediaType": kind, "digest": digest(content), "size": len(content)}

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def registry():
    if shutil.which("ldd") is None:
        print("skipped: this machine has no ldd to find the libraries of programs")
        pytest.skip("this machine has no ldd to find the libraries of programs")
    first = programs() | {"etc/passwd": b"root:x:0:0:root:/:/bin/sh\n", "srv/hidden": b"hidden", "srv/kept": b"kept"}
    second = {"srv/.wh.hidden": b"", "srv/added": b"added"}
    running = Registry([first, second], {"Env": ["OF_IMAGE=1"], "WorkingDir": "/srv"})
    try:
        yield running
    finally:
        running.stop()


def snapshot_at_rest(machine, name) -> dict:
    def ask():
        found = machine.call("GET", f"/v2/sandboxes/snapshots/{name}")
        return found if found["status"] in ("ready", "failed") else None

    return harness.until(machine.logs, ask)


def test_a_box_begins_on_an_image_of_a_registry_with_a_login(machine, registry):
    image = f"{registry.address}/team/app:v1"
    wanted = {"docker_image": image, "fs_capacity_bytes": 1 << 30}
    machine.call("POST", "/v2/sandboxes/snapshots", wanted | {"name": "without-login"}, status=201)
    refused = snapshot_at_rest(machine, "without-login")
    assert refused["status"] == "failed" and "without a login" in refused["status_message"], refused

    user, password = LOGIN
    login = {"name": "team", "url": f"http://{registry.address}", "username": user, "password": password}
    machine.call("POST", "/v2/sandboxes/registries", login, status=201)
    machine.call("POST", "/v2/sandboxes/snapshots", wanted | {"name": "app", "registry_id": "team"}, status=201)
    ready = snapshot_at_rest(machine, "app")
    assert (ready["status"], ready["image_digest"]) == ("ready", registry.digest), ready

    box = machine.call("POST", "/v2/sandboxes/boxes", {"name": "of-image", "snapshot": "app"}, status=201)
    command = "cat kept added; echo $OF_IMAGE; test ! -e hidden && id -u"
    ran = machine.call("POST", f"/v2/sandboxes/dp/{box['id']}/execute", {"command": command, "timeout": 30})
    assert (ran["exit_code"], ran["stdout"]) == (0, "keptadded1\n0\n"), ran

    # A template pulls with the login that fits, and what is here is not sent again.
    registry.seen.clear()
    machine.call("POST", "/v2/sandboxes/templates", {"name": "app", "image": image}, status=201)
    other = machine.call("POST", "/v2/sandboxes/boxes", {"name": "of-template", "template_name": "app"}, status=201)
    assert other["status"] == "ready", other
    assert registry.seen and not any("/blobs/" in path for path in registry.seen), registry.seen

    for name in ["of-image", "of-template"]:
        machine.call("DELETE", f"/v2/sandboxes/boxes/{name}", status=204)
    assert password not in machine.logs()
