"""An OCI image as a tar that `docker load`, `podman load` and `skopeo` read, made of Debian packages without an engine.

    oci-layout, index.json      the layout
    manifest.json               the same for Docker before version 25
    blobs/sha256/…              index, manifest, configuration, two layers: Debian, and the program with uv
"""

import contextlib
import datetime
import hashlib
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile

from releasing import dockerfile
from releasing.archive import File, compress, tar
from releasing.errors import ReleaseError, Unavailable
from releasing.payload import Payload
from releasing.project import TOP

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
# As the slim images of Debian leave them out.
EXCLUDED = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*", "/usr/share/doc/*")
# Written by the installation, of use to no container.
REMOVED = "/var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/debconf/*-old /var/log/apt /var/log/*.log /var/lib/dpkg/*-old"
SECONDS = 1800


def name(payload: Payload) -> str:
    return f"towpath-{payload.project.version}-{payload.target.label}.oci.tar"


def make(payload: Payload) -> bytes:
    image = dockerfile.parse((TOP / "Dockerfile").read_text())
    base = debian(image, payload.target.oci, payload.project.epoch)
    programs = [
        File("usr/local/bin/towpath", payload.binary, 0o755),
        File("usr/local/bin/uv", uv(image.uv, payload.target.machine), 0o755),
        *(File(f"usr/local/share/doc/towpath/{file.path}", file.content) for file in payload.legal()),
    ]
    layers = [base, tar(programs, payload.project.epoch)]
    return layout(payload, image.config, layers)


def debian(image: dockerfile.Image, architecture: str, epoch: int) -> bytes:
    """The file system of the first layer."""
    if not shutil.which("mmdebstrap"):
        raise Unavailable("mmdebstrap is not installed (Debian: apt-get install mmdebstrap)")
    if os.geteuid() != 0:
        raise Unavailable("packages of Debian are unpacked as root")
    if architecture != {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine()) and not emulates(architecture):
        raise Unavailable(f"this machine does not run programs of {architecture} (Debian: apt-get install qemu-user-static)")
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "base.tar"
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--architectures={architecture}"]
        command += [f"--include={','.join(image.packages)}"]
        command += [f"--dpkgopt=path-exclude={pattern}" for pattern in EXCLUDED]
        command += ["--dpkgopt=path-include=/usr/share/doc/*/copyright"]
        command += [f'--customize-hook=chroot "$1" {image.useradd}', f'--customize-hook=chroot "$1" {image.chmod}']
        command += [f"--customize-hook=chroot \"$1\" sh -c 'rm -rf {REMOVED}'"]
        command += [image.suite, out]
        environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch), "LC_ALL": "C"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
        if done.returncode != 0:
            raise ReleaseError(f"mmdebstrap failed: {done.stderr.strip()[-2000:]}")
        return out.read_bytes()


def emulates(architecture: str) -> bool:
    machine = {"arm64": "aarch64", "amd64": "x86_64"}[architecture]
    return pathlib.Path(f"/proc/sys/fs/binfmt_misc/qemu-{machine}").exists()


def uv(version: str, machine: str) -> bytes:
    """The program out of its wheel."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", f"--platform=manylinux_2_28_{machine}", f"--platform=manylinux2014_{machine}"]
        command += ["--dest", folder, f"uv=={version}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        if done.returncode != 0:
            raise Unavailable(f"pip cannot fetch uv {version}: {done.stderr.strip()[-500:]}")
        with zipfile.ZipFile(next(pathlib.Path(folder).glob("*.whl"))) as wheel:
            with contextlib.suppress(KeyError):
                return wheel.read(f"uv-{version}.data/scripts/uv")
    raise ReleaseError(f"the wheel of uv {version} has no program")


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def blob(data: bytes, kind: str) -> dict:
    return {"mediaType": kind, "digest": digest(data), "size": len(data)}


def layout(payload: Payload, config: dict, layers: list[bytes]) -> bytes:
    release = payload.project
    moment = datetime.datetime.fromtimestamp(release.epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = {
        "org.opencontainers.image.title": "towpath",
        "org.opencontainers.image.version": release.version,
        "org.opencontainers.image.licenses": release.licence,
        "org.opencontainers.image.source": release.homepage,
    }
    packed = [compress(layer, "gz") for layer in layers]
    described = encode(
        {
            "created": moment,
            "architecture": payload.target.oci,
            "os": "linux",
            "config": config | {"Labels": labels},
            "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
            "history": [
                {"created": moment, "created_by": "mmdebstrap", "comment": "Debian"},
                {"created": moment, "created_by": "scripts/release", "comment": "towpath and uv"},
            ],
        }
    )
    manifest = encode(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": blob(described, CONFIG),
            "layers": [blob(layer, LAYER) for layer in packed],
            "annotations": labels,
        }
    )
    tag = {
        "org.opencontainers.image.ref.name": release.version,
        "io.containerd.image.name": f"docker.io/library/towpath:{release.version}",
    }
    entry = blob(manifest, MANIFEST) | {"platform": {"architecture": payload.target.oci, "os": "linux"}, "annotations": tag}

    def path(data: bytes) -> str:
        return f"blobs/{digest(data).replace(':', '/')}"

    old = [{"Config": path(described), "RepoTags": [f"towpath:{release.version}"], "Layers": [path(layer) for layer in packed]}]
    files = [
        File("oci-layout", encode({"imageLayoutVersion": "1.0.0"})),
        File("index.json", encode({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]})),
        File("manifest.json", encode(old)),
        *(File(path(data), data) for data in (described, manifest, *packed)),
    ]
    return tar(files, release.epoch)


def encode(value) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
