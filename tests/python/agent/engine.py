"""A real Docker engine for tests: `TOWPATH_TEST_DOCKER`, else the one at the usual socket. Without one, tests that want it
say so and are skipped. Nothing is pulled: base images are made of this machine's own files."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

import harness

HOST = os.environ.get("TOWPATH_TEST_DOCKER", "unix:///var/run/docker.sock")
BUSYBOX = pathlib.Path("/bin/busybox")


def docker(*args, input=None):
    done = subprocess.run(["docker", "-H", HOST, *args], capture_output=True, input=input, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


@pytest.fixture(scope="module")
def engine():
    """The engine, with a base image that has a shell and the libraries of `towpath`, and one of `towpath` itself."""
    if shutil.which("docker") is None or not BUSYBOX.exists():
        pytest.skip("SKIPPED: there is no docker command, or no busybox for a base image")
    try:
        docker("version")
    except (AssertionError, subprocess.TimeoutExpired) as why:
        pytest.skip(f"SKIPPED: no Docker engine answers at {HOST}: {why}")
    base, whole = "towpath-test-glibc:latest", "towpath-test-agent:1"
    import_image(base, [])
    import_image(whole, [harness.binary()], "--change", 'ENTRYPOINT ["/towpath", "agent"]')
    yield base, whole
    docker("image", "rm", "--force", base, whole)


def import_image(name, programs, *args):
    libraries = re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", harness.binary()], capture_output=True, text=True).stdout)
    links = "mkdir -p bin tmp etc && cp -L /bin/busybox bin/ && for t in sh mkdir touch sleep; do ln -s busybox bin/$t; done"
    copies = [f"cp -L --parents {library} ." for library in libraries]
    # What debuggers read is most of it, and an engine packs all of it when it is pushed.
    copies += [f"strip --strip-debug -o towpath {program} || cp {program} towpath" for program in programs]
    with harness.temporary() as folder:
        subprocess.run(["sh", "-ec", " && ".join(f"( {step} )" for step in [links, *copies])], cwd=folder, check=True, timeout=60)
        packed = subprocess.run(["tar", "-c", "."], cwd=folder, capture_output=True, check=True, timeout=60).stdout
    docker("import", *args, "-", name, input=packed)


def settings(base):
    """What makes a platform run deployments there."""
    return {
        "TOWPATH_DEPLOYMENTS_GIT_TRANSPORTS": "file",
        "TOWPATH_DEPLOYMENTS_DOCKER_HOST": HOST,
        "TOWPATH_DEPLOYMENTS_DOCKER_BASE_IMAGE": base,
    }


def root(world):
    return f"{world.data}/deployments"


def containers(world):
    """The deployment of each container of this platform, whether it runs or not."""
    label = f"label=dev.towpath.root={root(world)}"
    return docker("ps", "--all", "--filter", label, "--format", '{{.Label "dev.towpath.deployment"}}').split()


def remove_images(world):
    """Those that a platform built; the engine outlives it."""
    for image in docker("images", "--quiet", "--filter", f"label=dev.towpath.root={root(world)}").split():
        docker("image", "rm", "--force", image)
