"""Sandboxes by the official Python clients: the last one with volumes, templates and pools, the pinned one, the newest one.
A machine without user namespaces has no sandboxes; that is said, and the tests are skipped."""

import json
import os
import pathlib
import subprocess
import sys
import urllib.request
import uuid

import harness
import pytest
from sandbox_machine import machine

# Fixtures are found by their names.
__all__ = ["machine"]
CALLER = pathlib.Path(__file__).resolve().with_name("sandbox_caller.py")
CLIENTS = {
    "0.7": os.environ.get("TOWPATH_TEST_SANDBOX_PYTHON"),
    "pinned": sys.executable,
    "newest": os.environ.get("TOWPATH_TEST_NEWEST_PYTHON"),
}
COMMON = {"commands", "handles", "files", "at once", "services", "lifecycle", "snapshots", "networks", "async"}
OLD = {"volumes", "templates", "pools"}


def boxes(world):
    return world.call("GET", "/v2/sandboxes/boxes")["sandboxes"]


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_does_all_it_can(machine, client):
    python = CLIENTS[client]
    if python is None:
        pytest.skip(f"no Python with the client {client} is named")
    prefix = f"t{uuid.uuid4().hex[:8]}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOWPATH_")}
    command = [python, str(CALLER), f"http://{machine.api}", harness.KEY, prefix]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{machine.logs()}"
    version, *did = json.loads(done.stdout)
    assert COMMON | (OLD if version.startswith("0.7.") else set()) <= set(did), did


def test_what_one_client_makes_the_other_uses(machine):
    """Both places are one set of boxes."""
    made = machine.call("POST", "/v2/sandboxes/boxes", {"name": "shared"}, status=201)
    assert made["status"] == "ready", made
    found = machine.call("GET", "/api/v2/sandboxes/boxes/shared")
    assert found["id"] == made["id"]
    ran = machine.call("POST", f"/v2/sandboxes/dp/{made['id']}/execute", {"command": "id -u; cat /etc/shadow", "timeout": 30})
    assert ran["exit_code"] != 0 and ran["stdout"].strip().isdigit(), ran
    machine.call("DELETE", "/api/v2/sandboxes/boxes/shared", status=204)


def test_parts_of_files_and_their_tags(machine):
    box = machine.call("POST", "/v2/sandboxes/boxes", {"name": "parts"}, status=201)
    base = f"/v2/sandboxes/dp/{box['id']}"
    write = {"command": "printf 0123456789 > digits", "timeout": 30}
    assert machine.call("POST", f"{base}/execute", write)["exit_code"] == 0

    def read(**headers):
        address = f"http://{machine.api}{base}/download?path=digits"
        known = {"X-API-Key": harness.KEY, "X-Tenant-Id": machine.tenant}
        request = urllib.request.Request(address, headers=known | {k.replace("_", "-"): v for k, v in headers.items()})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    status, headers, body = read()
    tag = headers["ETag"]
    assert (status, body, headers["Accept-Ranges"]) == (200, b"0123456789", "bytes")
    status, headers, body = read(Range="bytes=2-4")
    assert (status, body, headers["Content-Range"]) == (206, b"234", "bytes 2-4/10")
    assert read(Range="bytes=-3")[2] == b"789"
    assert read(Range="bytes=8-100")[1]["Content-Range"] == "bytes 8-9/10"
    assert read(Range="bytes=10-")[:1] == (416,)
    assert read(If_None_Match=tag)[0] == 304
    assert read(Range="bytes=0-0", If_Range=tag)[0] == 206
    assert machine.call("POST", f"{base}/execute", {"command": "printf abc >> digits", "timeout": 30})["exit_code"] == 0
    status, _, body = read(Range="bytes=0-0", If_Range=tag)
    assert (status, body) == (200, b"0123456789abc")
    machine.call("DELETE", "/v2/sandboxes/boxes/parts", status=204)


def test_commands_outlive_the_platform(machine):
    """A killed platform finds its boxes again, and what runs in them."""
    box = machine.call("POST", "/v2/sandboxes/boxes", {"name": "lasting"}, status=201)
    base = f"/v2/sandboxes/dp/{box['id']}"
    begin = {"command": "nohup sh -c 'sleep 600' >/dev/null 2>&1 & echo $! > pid", "timeout": 30}
    assert machine.call("POST", f"{base}/execute", begin)["exit_code"] == 0
    server = machine.processes[0]
    server.kill()
    server.start()
    server.ready()
    look = {"command": "kill -0 $(cat pid)", "timeout": 30}
    assert machine.call("POST", f"{base}/execute", look)["exit_code"] == 0
    assert machine.call("GET", "/v2/sandboxes/boxes/lasting")["status"] == "ready"
    machine.call("DELETE", "/v2/sandboxes/boxes/lasting", status=204)
