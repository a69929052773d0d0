"""The services of docker-compose.yml as containers: one command starts them, and `langgraph deploy` reaches READY there.

Wants root, debootstrap, a compose command, and a Docker engine: `TOWPATH_TEST_DOCKER`, else one that is started here.
Without them the walk is skipped and says so. Images of a registry are not asked for: scripts/compose/base-images makes them.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

import harness

pytest.importorskip("langgraph_cli", reason="skipped: langgraph-cli is not installed")

PLATFORM = "http://127.0.0.1:8400"
# Debian packages are unpacked, and images packed.
IMAGES_S = 1800


def compose_command():
    """`docker compose`, or the program of its own."""
    with contextlib.suppress(OSError):
        if subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=30).returncode == 0:
            return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


def answers(host):
    done = subprocess.run(["docker", "-H", host, "version"], capture_output=True, timeout=30)
    return done.returncode == 0 or None


@pytest.fixture(scope="module")
def engine():
    """The address of an engine."""
    missing = [name for name in ("docker", "debootstrap") if shutil.which(name) is None]
    if missing or compose_command() is None or os.geteuid() != 0:
        pytest.skip(f"SKIPPED: the walk wants root, a compose command and {', '.join(missing) or 'nothing else'}")
    named = os.environ.get("TOWPATH_TEST_DOCKER")
    if named:
        if not answers(named):
            pytest.skip(f"SKIPPED: no Docker engine answers at {named}")
        yield named
        return
    if shutil.which("dockerd") is None:
        pytest.skip("SKIPPED: there is no dockerd, and TOWPATH_TEST_DOCKER names no engine")
    with harness.temporary() as folder:
        host = f"unix://{folder}/docker.sock"
        command = ["dockerd", "--host", host, "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
        command += ["--pidfile", f"{folder}/docker.pid"]
        with open(f"{folder}/dockerd.log", "wb") as log:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            ready = harness.until("dockerd to answer or to end", lambda: answers(host) or (child.poll() is not None and "ended") or None)
            if ready == "ended":
                with open(f"{folder}/dockerd.log", errors="replace") as log:
                    pytest.skip(f"SKIPPED: this machine lets no dockerd run: {log.read()[-2000:]}")
            yield host
        finally:
            child.terminate()
            child.wait(timeout=120)


@pytest.fixture(scope="module")
def environment(engine):
    return {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "http_proxy", "https_proxy", "no_proxy") if name in os.environ} | {
        "DOCKER_HOST": engine,
        "COMPOSE_PROJECT_NAME": "towpath-walk",
        "TOWPATH_API_KEY": harness.KEY,
        "TOWPATH_ENCRYPTION_KEY": "5a" * 32,
    }


@pytest.fixture(scope="module")
def services(environment):
    """All of them, started by the one command of the file."""
    if ready():
        pytest.skip(f"SKIPPED: another server answers at {PLATFORM}")
    made = subprocess.run(
        [harness.ROOT / "scripts/compose/base-images"],
        env=environment | {"PROGRAM": harness.binary()} | {k: os.environ[k] for k in ("MIRROR",) if k in os.environ},
        capture_output=True,
        text=True,
        timeout=IMAGES_S,
    )
    assert made.returncode == 0, made.stdout + made.stderr

    def compose(*args, check=True):
        command = [*compose_command(), "--file", str(harness.ROOT / "docker-compose.yml"), *args]
        done = subprocess.run(command, env=environment, cwd=harness.ROOT, capture_output=True, text=True, timeout=600)
        assert not check or done.returncode == 0, f"{args}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    try:
        compose("up", "--detach", "--no-build")
        harness.until(lambda: f"the platform to be ready, see\n{compose('logs', '--tail', '40', check=False)}", ready)
        yield compose
    except BaseException:
        print(compose("logs", "--tail", "80", check=False))
        raise
    finally:
        compose("down", "--volumes", "--timeout", "60", check=False)


def ready():
    with contextlib.suppress(OSError):
        return urllib.request.urlopen(f"{PLATFORM}/readyz", timeout=2).status == 200 or None
    return None


def ask(method, path, body=None):
    headers = {"X-Api-Key": harness.KEY, "Content-Type": "application/json"}
    request = urllib.request.Request(PLATFORM + path, method=method, headers=headers, data=body and json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_programs_of_the_image(services):
    """What builds, agent servers and backups call is there, also for the user that is not root."""
    for command in ("git --version", "ssh -V", "python3 -m venv --help", "node --version", "npm --version"):
        services("exec", "-T", "api", "sh", "-c", command)
    # Code of deployments has this user, and must not read what the platform was started with.
    shown = services("exec", "-T", "api", "sh", "-c", "cat /proc/1/environ || echo closed", check=False)
    assert shown.strip() == "closed", shown
    services("exec", "-T", "api", "towpath", "backup", "/data/backup-of-a-test")


def test_deploy_reaches_ready(services, environment, tmp_path):
    (tmp_path / "langgraph.json").write_text(json.dumps({"dependencies": ["."], "graphs": {"agent": "./agent.graph.json"}}))
    graph = {"native": {"kind": "script", "channels": {"messages": "add-messages"}, "steps": [{"say": "from compose"}]}}
    (tmp_path / "agent.graph.json").write_text(json.dumps(graph))
    command = [sys.executable, "-m", "langgraph_cli", "deploy", "--name", "walk", "--remote", "--no-input", "--json"]
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "LANGGRAPH_CLI_NO_ANALYTICS": "1",
        "LANGGRAPH_HOST_URL": PLATFORM,
        "LANGGRAPH_HOST_API_KEY": harness.KEY,
        "NO_COLOR": "1",
    }
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert told[-1]["status"] == "succeeded", told
    deployment = told[-1]["deployment_id"]
    assert ask("GET", f"/v2/deployments/{deployment}")["status"] == "READY"
    said = ask("POST", f"/d/{deployment}/runs/wait", {"assistant_id": "agent", "input": {"messages": []}})
    assert said["messages"][-1]["content"] == "from compose", said

    # What the store has survives its restart, the bucket too. Its stand-in keeps objects in memory.
    services("restart", "s3")
    harness.until("the platform to be ready behind the restart", ready)
    # The container that runs deployments starts them again.
    services("restart", "api")

    def answer():
        with contextlib.suppress(OSError, urllib.error.URLError):
            return ask("POST", f"/d/{deployment}/runs/wait", {"assistant_id": "agent", "input": {"messages": []}})
        return None

    assert harness.until("the deployment to answer again", answer)["messages"][-1]["content"] == "from compose"
