"""What an operator can say: keys, a prefix, limits; and the agent server inside `towpath dev`."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import httpx
import pytest
from langgraph_sdk import get_sync_client
from langgraph_sdk.errors import AuthenticationError

from harness import Process, binary, free_address, until
from world import GRAPHS, PYTHON, Server

# In both languages.
pytestmark = pytest.mark.usefixtures("graph")

KEY = "agent-suite-key-0123456789abcdef0123456789"


@pytest.fixture(scope="module")
def guarded():
    running = Server(
        "embedded",
        env={"TOWPATH_API_KEY": KEY, "MOUNT_PREFIX": "/agents/one", "HTTP_MAX_REQUEST_BODY_BYTES": "10000"},
        args=("--agent-auth",),
    )
    yield running
    running.stop()


def test_keys_below_a_prefix(guarded, graph):
    with get_sync_client(url=f"{guarded.url}/agents/one", api_key=KEY) as client:
        assert client.assistants.search(graph_id=graph("agent"))
        client.store.put_item(["a"], "k", {"n": 1})
        assert client.store.get_item(["a"], "k")["value"] == {"n": 1}
    for key in (None, "not the key that opens this server at all"):
        with get_sync_client(url=f"{guarded.url}/agents/one", api_key=key) as client:
            with pytest.raises(AuthenticationError):
                client.assistants.search()


def test_runs_say_where_their_server_is(guarded, graph):
    def told(url, key=None):
        with get_sync_client(url=url, api_key=key) as client:
            thread = client.threads.create()["thread_id"]
            client.runs.wait(thread, graph("agent"), input={"messages": [{"role": "user", "content": "hello"}]})
            return client.threads.get_state(thread)["metadata"]["langgraph_api_url"]

    assert told(f"{guarded.url}/agents/one", KEY) == f"{guarded.url}/agents/one"
    behind = Server("embedded", env={"TOWPATH_PUBLIC_URL": "https://agents.example"})
    try:
        assert told(behind.url) == "https://agents.example"
        behind.stop()
    finally:
        behind.drop()


def test_what_is_open_without_a_key(guarded):
    for path in ("/", "/ok", "/info", "/metrics", "/docs", "/openapi.json", "/livez", "/readyz"):
        assert httpx.get(f"{guarded.url}/agents/one{path}", timeout=60).status_code == 200, path
    # Probes know nothing of prefixes.
    assert httpx.get(f"{guarded.url}/livez", timeout=60).status_code == 200
    for path in ("/assistants/search", "/no/such/route"):
        answer = httpx.post(f"{guarded.url}{path}", timeout=60)
        assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})
    refused = httpx.post(f"{guarded.url}/agents/one/assistants/search", timeout=60)
    assert refused.status_code == 401 and "X-API-Key" in refused.json()["detail"]
    assert refused.headers["www-authenticate"] == "ApiKey" and refused.headers["vary"].lower() == "origin"
    ask = {"origin": "https://a.example", "access-control-request-method": "POST"}
    assert httpx.options(f"{guarded.url}/agents/one/assistants/search", headers=ask).status_code == 200


def test_a_body_may_not_be_too_large(guarded):
    body = b'{"metadata":{"x":"' + b"x" * 20_000 + b'"}}'
    answer = httpx.post(f"{guarded.url}/agents/one/assistants/search", content=body, headers={"x-api-key": KEY}, timeout=60)
    assert answer.status_code == 413 and "larger than 10000 bytes" in answer.json()["detail"]


def test_a_graph_that_cannot_be_used_is_named(tmp_path):
    config = tmp_path / "langgraph.json"
    command = [binary(), "agent", "--config", str(config), "--data-dir", str(tmp_path / "data")]
    env = os.environ | PYTHON
    config.write_text('{"graphs": {"mine": "./mine.ts:graph"}}')
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 2 and 'graph "mine"' in done.stderr and "JavaScript" in done.stderr, done.stderr
    config.write_text('{"graphs": {"mine": "./mine.py:graph"}}')
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 1 and 'graph "mine"' in done.stderr and "does not exist" in done.stderr, done.stderr


def test_sqlite_is_for_one_process(tmp_path):
    command = [binary(), "agent", "--role", "worker", "--data-dir", str(tmp_path / "data"), "--listen", free_address()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "SQLite" in done.stderr, done.stderr


def test_dev_has_an_agent_server(graph):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="towpath-agent."))
    platform, agent = free_address(), free_address()
    command = [binary(), "dev", "--listen", platform, "--agent-listen", agent, "--data-dir", str(folder / "data")]
    process = Process("dev", [*command, "--graphs", str(GRAPHS)], PYTHON, folder, agent)
    try:
        process.ready()
        with get_sync_client(url=f"http://{agent}", api_key=None) as client:
            assert client.assistants.search(graph_id=graph("steps"))[0]["metadata"] == {"created_by": "system"}
        assert httpx.get(f"http://{platform}/readyz", timeout=60).status_code == 200
        until("the banner to say where it is", lambda: True if f"http://{agent}" in process.log_tail() else None)
        assert (folder / "data" / "agent.db").is_file()
        process.terminate()
    finally:
        if process.child.poll() is None:
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def test_dev_traces_native_runs_into_its_platform(tmp_path):
    project = tmp_path / "my-agent"
    project.mkdir()
    walk = {
        "kind": "workflow",
        "channels": {"log": "append", "fail": "last-value"},
        "nodes": {
            "one": {"kind": "script", "steps": [{"append": {"log": "one"}}]},
            "sub": {
                "kind": "workflow",
                "channels": {"log": "append"},
                "nodes": {"inner": {"kind": "script", "steps": [{"append": {"log": "inner"}}]}},
                "edges": [["__start__", "inner"]],
            },
            "bad": {"kind": "script", "steps": [{"fail": {"type": "ValueError", "message": "no"}}]},
        },
        "edges": [
            ["__start__", "one"],
            ["one", "sub"],
            {"from": "sub", "if": {"at": "/fail"}, "to": "bad", "else": "__end__"},
        ],
    }
    (project / "langgraph.json").write_text(json.dumps({"graphs": {"walk": {"native": walk}}}))
    platform, agent, key = free_address(), free_address(), "traced-agent-key-0123456789abcdef0123456789"
    command = [binary(), "dev", "--listen", platform, "--agent-listen", agent, "--data-dir", str(tmp_path / "data")]
    env = {"TOWPATH_API_KEY": key}
    process = Process("dev", [*command, "--graphs", str(project / "langgraph.json")], env, tmp_path, agent)
    headers = {"x-api-key": key}

    def traced(name, count):
        """The trace runs of a project, once there are so many."""
        found = httpx.get(f"http://{platform}/api/v1/sessions?name={name}", headers=headers, timeout=60).json()
        if not found:
            return None
        asked = {"session": [found[0]["id"]], "limit": 100}
        runs = httpx.post(f"http://{platform}/api/v1/runs/query", json=asked, headers=headers, timeout=60).json()["runs"]
        return sorted(runs, key=lambda run: run["dotted_order"]) if len(runs) >= count else None

    try:
        process.ready()
        with get_sync_client(url=f"http://{agent}", api_key=None) as client:
            thread = client.threads.create()["thread_id"]
            modes = ["updates"]
            parts = list(client.runs.stream(thread, "walk", input={"log": []}, stream_mode=modes, stream_subgraphs=True))
            assert {part.event.split("|")[0] for part in parts} == {"metadata", "updates"}, "tasks are for the trace alone"
            run_id = parts[0].data["run_id"]
            root, one, sub, inner = until("the trace", lambda: traced("my-agent", 4))
            assert (root["id"], root["name"], root["run_type"], root["status"]) == (run_id, "walk", "chain", "success")
            assert root["inputs"] == {"log": []} and root["outputs"]["log"][-1] == "inner"
            assert root["extra"]["metadata"]["thread_id"] == thread
            assert [one["name"], sub["name"], inner["name"]] == ["one", "sub", "inner"]
            assert one["parent_run_id"] == sub["parent_run_id"] == root["id"] and inner["parent_run_id"] == sub["id"]
            assert all(run["trace_id"] == run_id and run["end_time"] >= run["start_time"] for run in (one, sub, inner))
            # Elsewhere when the run says so, and with its error.
            failed = client.runs.create(
                thread, "walk", input={"log": [], "fail": True}, langsmith_tracing={"project_name": "elsewhere"}
            )
            assert failed["langsmith_session_name"] == "elsewhere"
            client.runs.join(thread, failed["run_id"])
            root, *tasks = until("the other trace", lambda: traced("elsewhere", 4))
            assert root["status"] == "error" and "no" in root["error"], root["error"]
            assert [task["name"] for task in tasks] == ["one", "sub", "bad"] and tasks[-1]["status"] == "error"
            assert len(traced("my-agent", 4)) == 4
            # Who goes down sends what it has.
            client.runs.wait(None, "walk", input={"log": []})
        process.terminate()
    finally:
        if process.child.poll() is None:
            process.kill()
