"""Deployments as containers of a real Docker engine: `TOWPATH_TEST_DOCKER`, else the one at the usual socket. Without
one these tests say so and are skipped. Nothing is pulled: base images are made of this machine's own files."""

import asyncio
import os
import pathlib
import re
import shutil
import subprocess

import pytest

import harness
from deploying import Load, Repository, change, client, create, deployed, gone, logs, ref, says

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
    copies = [f"cp -L --parents {library} ." for library in libraries] + [f"cp {program} towpath" for program in programs]
    with harness.temporary() as folder:
        subprocess.run(["sh", "-ec", " && ".join([links, *copies])], cwd=folder, check=True, timeout=60)
        packed = subprocess.run(["tar", "-c", "."], cwd=folder, capture_output=True, check=True, timeout=60).stdout
    docker("import", *args, "-", name, input=packed)


@pytest.fixture(scope="module")
def platform(engine):
    base, _ = engine
    env = {
        "TOWPATH_DEPLOYMENTS_GIT_TRANSPORTS": "file",
        "TOWPATH_DEPLOYMENTS_BACKEND": "docker",
        "TOWPATH_DEPLOYMENTS_DOCKER_HOST": HOST,
        "TOWPATH_DEPLOYMENTS_DOCKER_BASE_IMAGE": base,
    }
    world = harness.World("embedded", env)
    yield world
    world.stop()
    assert containers(world) == [], "a container outlived its platform"
    for image in docker("images", "--quiet", "--filter", f"label=dev.towpath.root={root(world)}").split():
        docker("image", "rm", "--force", image)


def root(world):
    return f"{world.data}/deployments"


def containers(world):
    """The deployment of each container of this platform, whether it runs or not."""
    label = f"label=dev.towpath.root={root(world)}"
    return docker("ps", "--all", "--filter", label, "--format", '{{.Label "dev.towpath.deployment"}}').split()


def delete(world, deployment):
    world.request("DELETE", f"/v2/deployments/{deployment}")
    gone(world, deployment)
    assert deployment not in containers(world)
    assert f"towpath-{deployment}" not in docker("volume", "ls", "--quiet").split()


def test_a_repository_becomes_a_container(platform, tmp_path):
    asyncio.run(life(platform, Repository(tmp_path / "repository")))


async def life(platform, repository):
    repository.push("one", dockerfile_lines=["RUN touch /made-by-the-author"])
    made = create(platform, repository, "boxed", install_command="touch installed")
    deployment = made["id"]
    deployed(platform, deployment, made["latest_revision_id"])
    text = logs(platform, deployment, made["latest_revision_id"])
    assert "RUN touch /made-by-the-author" in text and 'RUN ["touch","installed"]' in text, text
    assert containers(platform) == [deployment]
    async with client(platform, "boxed") as sdk:
        assert await says(sdk) == "one"
        thread = await sdk.threads.create()
        await sdk.runs.wait(thread["thread_id"], "agent", input={"messages": [{"role": "user", "content": "kept"}]})

    load = Load(platform, "boxed")
    async with load:
        await load.answered(10)
        repository.push("two")
        second = await asyncio.to_thread(change, platform, deployment, **ref())
        await asyncio.to_thread(deployed, platform, deployment, second)
        await load.until("two")
    assert load.failures == [], load.failures[:5]
    print(f"{len(load.answers)} runs during the switch, the slowest took {max(load.seconds):.2f} s")
    assert containers(platform) == [deployment]

    # Killed, it leaves its container; its next life removes that, and serves from the same database.
    process = platform.processes[0]
    before = docker("ps", "--quiet")
    process.kill()
    assert containers(platform) == [deployment]
    process.start()
    process.ready()
    async with client(platform, "boxed") as sdk:
        assert await says(sdk) == "two"
        state = await sdk.threads.get_state(thread["thread_id"])
        assert state["values"]["messages"][0]["content"] == "kept"
    assert containers(platform) == [deployment] and docker("ps", "--quiet") != before

    # One that ends by itself is started again; requests wait.
    docker("kill", docker("ps", "--quiet", "--filter", f"label=dev.towpath.deployment={deployment}"))
    async with client(platform, "boxed") as sdk:
        assert await says(sdk) == "two"
    delete(platform, deployment)


def test_an_image_is_a_deployment(platform, engine):
    _, image = engine
    body = {
        "name": "image",
        "source": "external_docker",
        "source_config": {"resource_spec": {"cpu": 1, "memory_mb": 256, "memory_limit_mb": 512}},
        "source_revision_config": {"image_uri": image},
        "secrets": [],
    }
    made = platform.call("POST", "/v2/deployments", body, status=201)
    deployment = made["id"]
    deployed(platform, deployment, made["latest_revision_id"])
    container = docker("ps", "--quiet", "--filter", f"label=dev.towpath.deployment={deployment}")
    assert docker("inspect", "--format", "{{.HostConfig.Memory}}", container) == str(512 << 20)

    async def ask():
        async with client(platform, "image") as sdk:
            found = await sdk.assistants.search()
            return [assistant["graph_id"] for assistant in found]

    assert asyncio.run(ask()) == ["agent"]
    status, _ = platform.request("GET", "/d/image/ok", headers={"X-API-Key": None})
    assert status == 200
    # Past the gateway nobody gets in.
    port = docker("port", container, "8000/tcp").rsplit(":", 1)[1]
    assert harness.get_status(f"http://127.0.0.1:{port}/ok") == 200
    assert harness.get_status(f"http://127.0.0.1:{port}/metrics") == 401
    delete(platform, deployment)
