"""Deployments as containers of a real Docker engine, and images that are pushed to the platform and pulled from it."""

import asyncio
import contextlib
import hashlib
import json
import os
import sqlite3
import subprocess
import sys

import pytest

import harness
from deploying import Load, Repository, change, client, create, deployed, ended, gone, logs, ref, says
from engine import HOST, containers, docker, engine, remove_images, root, settings  # noqa: F401


@pytest.fixture(scope="module")
def platform(engine):  # noqa: F811
    base, _ = engine
    world = harness.World("embedded", settings(base) | {"TOWPATH_DEPLOYMENTS_BACKEND": "docker"})
    yield world
    world.stop()
    assert containers(world) == [], "a container outlived its platform"
    remove_images(world)


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
    harness.until("the old container to be gone", lambda: before not in docker("ps", "--quiet") or None)
    serves(platform, deployment)
    async with client(platform, "boxed") as sdk:
        assert await says(sdk) == "two"
        state = await sdk.threads.get_state(thread["thread_id"])
        assert state["values"]["messages"][0]["content"] == "kept"
    assert containers(platform) == [deployment]

    # One that ends by itself is started again; requests wait.
    docker("kill", docker("ps", "--quiet", "--filter", f"label=dev.towpath.deployment={deployment}"))
    async with client(platform, "boxed") as sdk:
        assert await says(sdk) == "two"
    delete(platform, deployment)


def answers(platform, name):
    """The graphs of a deployment, as the official client finds them."""

    async def ask():
        async with client(platform, name) as sdk:
            found = await sdk.assistants.search()
            return [assistant["graph_id"] for assistant in found]

    return asyncio.run(ask())


def test_an_image_is_a_deployment(platform, engine):  # noqa: F811
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

    assert answers(platform, "image") == ["agent"]
    status, _ = platform.request("GET", f"/d/{deployment}/ok", headers={"X-API-Key": None})
    assert status == 200
    # Past the gateway no one gets in.
    port = docker("port", container, "8000/tcp").rsplit(":", 1)[1]
    assert harness.get_status(f"http://127.0.0.1:{port}/ok") == 200
    assert harness.get_status(f"http://127.0.0.1:{port}/metrics") == 401
    delete(platform, deployment)


def langgraph(platform, folder, *args):
    """The official command line, with the engine's docker command."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "DOCKER_HOST": HOST,
        "LANGGRAPH_HOST_URL": f"http://{platform.api}",
        "LANGGRAPH_HOST_API_KEY": harness.KEY,
        "LANGGRAPH_CLI_NO_ANALYTICS": "1",
        "NO_COLOR": "1",
    }
    command = [sys.executable, "-m", "langgraph_cli", "deploy", *args, "--no-input", "--json"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=280, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert harness.KEY not in done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_an_image_is_pushed_and_pulled(platform, engine, tmp_path):  # noqa: F811
    """`langgraph deploy --image` asks for a push token, logs in, pushes, and names what it pushed by its digest."""
    pytest.importorskip("langgraph_cli", reason="skipped: langgraph-cli is not installed")
    _, image = engine
    (tmp_path / "langgraph.json").write_text(json.dumps({"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}}))
    (tmp_path / "agent.py").touch()
    told = langgraph(platform, tmp_path, "--name", "pushed", "--image", image)
    result = told[-1]
    assert result["event"] == "result" and result["status"] == "succeeded", told
    deployment = result["deployment_id"]
    found = platform.call("GET", f"/v2/deployments/{deployment}")
    uri = found["source_revision_config"]["image_uri"]
    assert uri.startswith(f"{platform.api}/images/{deployment}@sha256:"), uri
    assert found["source"] == "internal_docker"
    assert answers(platform, "pushed") == ["agent"]
    # What it pulled is there under a name of ours alone, so no other caller gets it without asking the registry.
    again = langgraph(platform, tmp_path, "--deployment-id", deployment, "--image", image)
    assert again[-1]["status"] == "succeeded", again

    # A registry that wants a login, as anybody's: this one, from outside.
    held = [path for path in platform.data.rglob(f"images/*/{deployment}/blobs/*") if path.is_file()]
    assert held, "its images lie in the object store"
    # By its tag: what is named by its digest an engine may have, and does not ask for.
    uri = uri.split("@")[0] + ":latest"
    assert docker("image", "inspect", uri), "the engine has it, under that name; whoever may not pull it does not get it"
    body = {
        "name": "private",
        "source": "external_docker",
        "source_config": {"resource_spec": {"image_pull_secrets": [{"name": "acme"}]}},
        "source_revision_config": {"image_uri": uri},
        "secrets": [],
    }
    made = platform.call("POST", "/v2/deployments", body, status=201)
    private = made["id"]
    refused = ended(platform, private, made["latest_revision_id"])
    text = logs(platform, private, made["latest_revision_id"])
    assert refused["status"] == "DEPLOY_FAILED" and "pulling the image" in refused["error"], f"{refused}\n{text}"
    assert "this workspace has no secret acme" in text, text
    token = platform.call("POST", f"/v2/deployments/{deployment}/push-token", {})
    login = {"registry": platform.api, "username": "anybody", "password": token["token"]}
    platform.call("PUT", "/v2/image-pull-secrets/acme", login, status=201)
    second = change(platform, private, source_revision_config={"image_uri": uri})
    deployed(platform, private, second)
    assert answers(platform, "private") == ["agent"]
    said = logs(platform, private, second) + platform.logs()
    assert token["token"] not in said
    for one in (private, deployment):
        delete(platform, one)
    left = [path for path in platform.data.rglob(f"images/*/{deployment}/**/*") if path.is_file()]
    assert left == [], "its images go with it"


def test_a_deployment_comes_back_from_a_backup(engine, tmp_path):  # noqa: F811
    asyncio.run(comes_back(engine[0], tmp_path))


async def comes_back(base, tmp_path):
    """Its database is in a volume: copied while it is used, and put into a new volume of another platform."""
    env = settings(base) | {"TOWPATH_DEPLOYMENTS_BACKEND": "docker"}
    repository = Repository(tmp_path / "repository")
    backup, still = tmp_path / "backup", tmp_path / "still"
    first, second, volume = harness.World("embedded", env), None, None
    try:
        made = create(first, repository, "kept")
        volume = f"towpath-{made['id']}"
        await asyncio.to_thread(deployed, first, made["id"], made["latest_revision_id"])
        async with client(first, "kept") as sdk:
            thread = await sdk.threads.create()
            said = {"messages": [{"role": "user", "content": "remember this"}]}
            await sdk.runs.wait(thread["thread_id"], "agent", input=said)
            before = await digest(sdk, thread)
            used, stop = [], asyncio.Event()

            async def use():
                while not stop.is_set():
                    used.append(await says(sdk))

            users = [asyncio.create_task(use()) for _ in range(2)]
            await asyncio.to_thread(first.command, "backup", backup)
            stop.set()
            await asyncio.gather(*users)
            assert set(used) == {"one"}
            await sdk.threads.delete(thread["thread_id"])
        assert containers(first) == [made["id"]], "what copied is gone"
        intact(backup, made["id"])
        first.stop()
        docker("volume", "rm", volume)
        assert not first.data.exists()

        second = harness.World("embedded", env, backup=(backup, first.tenant))
        labels = json.loads(docker("volume", "inspect", "--format", "{{json .Labels}}", volume))
        assert labels["dev.towpath.root"] == root(second) and labels["dev.towpath.deployment"] == made["id"], labels
        serves(second, made["id"])
        async with client(second, "kept") as sdk:
            assert await digest(sdk, thread) == before
            assert await says(sdk) == "one"

        # Another one finds the volume, and leaves it alone.
        third = tmp_path / "third"
        inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        tried = subprocess.run(
            [harness.binary(), "restore", str(backup)],
            env=inherited | second.env | {"TOWPATH_DATA_DIR": str(third)},
            capture_output=True,
            text=True,
            timeout=harness.PATIENCE_S,
            stdin=subprocess.DEVNULL,
        )
        assert tried.returncode == 1 and volume in tried.stderr, tried.stdout + tried.stderr
        assert not (third / "towpath.db").exists()

        # A volume that nothing runs with is read as it is.
        for process in second.processes:
            process.terminate()
        await asyncio.to_thread(second.command, "backup", still)
        intact(still, made["id"])
        assert containers(second) == []
    finally:
        for world in [first, second]:
            if world is not None:
                world.drop()
                left = docker("ps", "--all", "--quiet", "--filter", f"label=dev.towpath.root={root(world)}").split()
                for container in left:
                    docker("rm", "--force", container)
                remove_images(world)
        if volume is not None:
            docker("volume", "rm", "--force", volume)


def serves(world, deployment):
    """Waits for a container to be started: that may take longer than a request waits."""

    def ask():
        status, _ = world.request("GET", f"/d/{deployment}/ok")
        return True if status == 200 else None

    harness.until("the deployment to serve", ask)


async def digest(sdk, thread):
    """What a thread holds."""
    state = await sdk.threads.get_state(thread["thread_id"])
    assert state["values"]["messages"][0]["content"] == "remember this"
    return hashlib.sha256(json.dumps(state["values"], sort_keys=True).encode()).hexdigest()


def intact(backup, deployment):
    """A backup has the database of a deployment."""
    file = backup / "deployments" / "agents" / deployment / "agent.db"
    with contextlib.closing(sqlite3.connect(f"file:{file}?immutable=1", uri=True)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        (threads,) = database.execute("SELECT count(*) FROM thread").fetchone()
    assert threads > 0, "its threads are in it"
