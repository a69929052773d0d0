"""Projects of users' own Python, on a real server: crashes of either side, blocked loops, changed code, auth."""

import asyncio
import os
import pathlib
import signal
import time
from datetime import timedelta

import httpx
import pytest
from langgraph_sdk import get_sync_client
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from harness import Process, binary, free_address, until
from projects import CONFIG, PYTHON, begin, over
from world import Clocked


def test_a_project_runs_as_it_is(serve, project):
    server, client = serve()
    thread = client.threads.create()["thread_id"]
    chunks = [
        (chunk.event, chunk.data)
        for chunk in client.runs.stream(thread, "agent", input={"steps": ["in"]}, stream_mode=["updates", "values"])
    ]
    assert [event for event, _ in chunks] == ["metadata", "values", "updates", "values", "updates", "values"]
    assert chunks[-1][1] == {"steps": ["in", "first", "second"]}
    state = client.threads.get_state(thread)
    assert state["values"] == {"steps": ["in", "first", "second"]} and state["next"] == []
    assert [len(past["values"].get("steps", [])) for past in client.threads.get_history(thread)] == [3, 2, 1, 0]
    client.threads.update_state(thread, {"steps": ["outside"]}, as_node="second")
    assert client.threads.get(thread)["values"]["steps"][-1] == "outside"
    assistant = client.assistants.search(graph_id="agent")[0]["assistant_id"]
    drawn = client.assistants.get_graph(assistant)
    assert [node["id"] for node in drawn["nodes"]] == ["__start__", "first", "second", "__end__"]
    assert "steps" in client.assistants.get_schemas(assistant)["state_schema"]["properties"]
    # A graph that is declared as data stands beside it.
    answer = client.runs.wait(None, "echo", input={"messages": [{"role": "user", "content": "hello"}]})
    assert answer["messages"][-1]["content"] == "hello"
    server.stop()
    assert not any(pathlib.Path(f"/proc/{pid}").exists() for _, pid in project.ran())


def test_what_the_code_raises_is_the_runs_error(serve):
    server, client = serve()
    thread, run = begin(client, input={"how": "raise"})
    assert over(client, thread, run)["status"] == "error"
    error = client.threads.get(thread)["error"]
    assert error == {"error": "ValueError", "message": "the second step says no"}
    assert "agent.py" in server.logs()


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_killed_process_costs_no_step_that_was_kept(serve, project, durability):
    _, client = serve()
    thread, run = begin(client, input={"how": "wait"}, durability=durability)
    os.kill(project.until_ran("second"), signal.SIGKILL)
    project.until_ran("second", 2)
    project.go()
    assert over(client, thread, run)["status"] == "success"
    assert client.threads.get(thread)["values"]["steps"] == ["first", "second"]
    assert [name for name, _ in project.ran()] == ["first", "second", "second"]


def parent(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("forks", [True, False], ids=["forked", "threads at import"])
def test_processes_are_forked_where_that_is_safe(serve, project, forks):
    if not forks:
        more = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        source = project.folder / "agent.py"
        source.write_text(source.read_text() + more)
    # What is loaded once is loaded by the process that forks.
    with (project.folder / "agent.py").open("a") as source:
        source.write("with (FOLDER / 'imports').open('a') as file:\n    file.write('x')\n")
    server, client = serve(TOWPATH_AGENT_HOSTS="2", TOWPATH_AGENT_RUN_ATTEMPTS="2")
    waiting = [begin(client, input={"how": "wait"}) for _ in range(8)]

    def both():
        found = {pid for name, pid in project.ran() if name == "second"}
        return found if len(found) >= 2 or begin_one() else None

    def begin_one():
        # One that is still loading has to find a slot of the pool free.
        time.sleep(0.25)
        waiting.append(begin(client, input={"how": "wait"}))

    pids = until("two processes at work", both)
    parents = {parent(pid) for pid in pids}
    assert (parents != {server.apis[0].child.pid}) is forks and len(parents) == 1
    # One of them dies, and says what it had to say.
    thread, run = begin(client, input={"how": "exit"})
    assert over(client, thread, run)["status"] == "error"
    project.go()
    assert [over(client, *one)["status"] for one in waiting].count("success") >= len(waiting) // 2
    assert client.runs.wait(None, "agent", input={})["steps"] == ["first", "second"]
    assert forks is ((project.folder / "imports").read_text() == "x")
    left = {pid for _, pid in project.ran()} | parents - {server.apis[0].child.pid}
    server.apis[0].kill()
    until("all to end", lambda: True if not any(pathlib.Path(f"/proc/{pid}").exists() for pid in left) else None)


def test_code_that_kills_its_process_is_not_tried_for_ever(serve, project):
    _, client = serve(TOWPATH_AGENT_RUN_ATTEMPTS="2")
    thread, run = begin(client, input={"how": "exit"})
    assert over(client, thread, run)["status"] == "error"
    message = client.threads.get(thread)["error"]["message"]
    assert "exceeded max attempts (2)" in message and "exited with status 9" in message
    assert [name for name, _ in project.ran()] == ["first", "second", "second"]


def test_a_killed_server_costs_no_step_that_was_kept(serve, project):
    server, client = serve(TOWPATH_ENGINE_LEASE_SECONDS="1")
    thread, run = begin(client, input={"how": "wait"}, durability="sync")
    child = project.until_ran("second")
    server.apis[0].kill()
    # Its processes go with it.
    until("the process to end", lambda: True if not pathlib.Path(f"/proc/{child}").exists() else None)
    server.revive(server.apis[0])
    project.until_ran("second", 2)
    project.go()
    assert over(client, thread, run)["status"] == "success"
    assert [name for name, _ in project.ran()] == ["first", "second", "second"]


def test_a_step_that_blocks_for_several_leases_runs_once(serve, project):
    _, client = serve(TOWPATH_ENGINE_LEASE_SECONDS="1", TOWPATH_AGENT_HOSTS="1")
    thread, run = begin(client, input={"how": "block"})
    blocked = project.until_ran("second")
    began = time.monotonic()

    until("three leases", lambda: True if time.monotonic() - began > 3.5 else None)
    # Whoever comes now runs elsewhere.
    assert client.runs.wait(None, "agent", input={})["steps"] == ["first", "second"]
    assert [pid for name, pid in project.ran() if name == "second" and pid != blocked]
    assert client.runs.get(thread, run)["status"] == "running"
    project.go()
    assert over(client, thread, run)["status"] == "success"
    assert client.runs.get(thread, run)["status"] == "success"
    state = client.threads.get_state(thread)
    assert state["values"]["steps"] == ["first", "second"]
    assert state["metadata"]["run_attempt"] == 1


def test_code_that_does_not_stop_is_ended(serve, project):
    _, client = serve(TOWPATH_AGENT_CANCEL_GRACE_SECONDS="1")
    thread, run = begin(client, input={"how": "stubborn"})
    stuck = project.until_ran("second")
    client.runs.cancel(thread, run)
    assert over(client, thread, run)["status"] == "interrupted"
    until("the process to end", lambda: True if not pathlib.Path(f"/proc/{stuck}").exists() else None)
    project.go()
    assert client.runs.wait(thread, "agent", input={"how": ""})["steps"][-1] == "second"


AUTH = """
    from langgraph_sdk import Auth

    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None):
        if not authorization:
            raise Auth.exceptions.HTTPException(status_code=401, detail="say who you are")
        return {"identity": authorization.removeprefix("Bearer "), "permissions": []}

    @auth.on.threads
    async def threads(ctx, value):
        owner = {"owner": ctx.user.identity}
        value.setdefault("metadata", {}).update(owner)
        return owner

    @auth.on.assistants.delete
    async def never(ctx, value):
        return False

    @auth.on.store
    async def store(ctx, value):
        value["namespace"] = [ctx.user.identity, *(value.get("namespace") or [])]
"""


def test_the_authors_auth_decides(serve, project):
    project.write(config=CONFIG | {"auth": {"path": "./auth.py:auth"}}, auth=AUTH)
    server, anybody = serve()
    ann, bob = (
        get_sync_client(url=server.url, api_key=None, headers={"authorization": f"Bearer {name}"}) for name in ("ann", "bob")
    )
    refused = httpx.post(f"{server.url}/threads", json={}, timeout=60)
    assert (refused.status_code, refused.json()) == (401, {"detail": "say who you are"})
    assert httpx.get(f"{server.url}/ok", timeout=60).status_code == 200
    thread = ann.threads.create()
    assert thread["metadata"]["owner"] == "ann"
    as_bob = httpx.Client(base_url=server.url, headers={"authorization": "Bearer bob"}, timeout=60)
    identity = thread["thread_id"]
    for method, path in [("GET", ""), ("GET", "/state"), ("POST", "/history"), ("DELETE", ""), ("POST", "/runs/wait")]:
        answer = as_bob.request(method, f"/threads/{identity}{path}", json={"assistant_id": "agent"})
        assert answer.status_code == 404, (method, path, answer.text)
    assert [found["thread_id"] for found in ann.threads.search()] == [identity]
    assert bob.threads.search() == [] and bob.threads.search(metadata={"owner": "ann"}) == []
    answer = ann.runs.wait(identity, "agent", input={})
    assert answer["steps"] == ["first", "second"]
    ann.store.put_item(["notes"], "k", {"v": 1})
    assert ann.store.get_item(["notes"], "k")["value"] == {"v": 1}
    assert bob.store.get_item(["notes"], "k") is None
    assistant = ann.assistants.search(graph_id="agent")[0]["assistant_id"]
    assert as_bob.delete(f"/assistants/{assistant}").status_code == 403
    run = ann.runs.list(identity)[0]
    assert run["kwargs"]["config"]["configurable"]["langgraph_auth_user_id"] == "ann"


WHO = """
    from typing import TypedDict
    from langchain_core.runnables import RunnableConfig
    from langgraph.graph import END, START, StateGraph

    class State(TypedDict, total=False):
        who: str
        may: list

    async def look(state, config: RunnableConfig):
        user = config["configurable"].get("langgraph_auth_user")
        return {"who": user and user.identity, "may": user and user.permissions}

    graph = StateGraph(State).add_node(look).add_edge(START, "look").add_edge("look", END).compile()
"""
FORGED = {"langgraph_auth_user_id": "ann", "langgraph_auth_user": {"identity": "ann", "permissions": ["admin"]}}


def of(server, name):
    """A client of somebody."""
    return get_sync_client(url=server.url, api_key=None, headers={"authorization": f"Bearer {name}"})


def test_nobody_is_somebody_else(serve, project):
    project.write(config=CONFIG | {"auth": {"path": "./auth.py:auth"}}, agent=WHO, auth=AUTH)
    server, _ = serve()
    mallory = of(server, "mallory")
    made = mallory.assistants.create("agent", context=FORGED)
    changed = mallory.assistants.create("agent")
    mallory.assistants.update(changed["assistant_id"], context=FORGED)
    thread = mallory.threads.create()["thread_id"]
    for assistant, more in [
        (made["assistant_id"], {}),
        (changed["assistant_id"], {}),
        ("agent", {"context": FORGED}),
        ("agent", {"config": {"configurable": FORGED}}),
        # What the runs before left on the thread.
        ("agent", {}),
    ]:
        answer = mallory.runs.wait(thread, assistant, input={}, **more)
        assert answer == {"who": "mallory", "may": []}, (assistant, more)
    assert "langgraph_auth" not in str(mallory.threads.get(thread)["config"])


@pytest.mark.parametrize("layout", ["embedded", "cluster"])
def test_a_cron_runs_as_its_maker(project, layout):
    if layout == "cluster" and "TOWPATH_TEST_POSTGRES" not in os.environ:
        pytest.skip("TOWPATH_TEST_POSTGRES is not set")
    project.write(config=CONFIG | {"auth": {"path": "./auth.py:auth"}}, agent=WHO, auth=AUTH)
    server = Clocked(layout, PYTHON, project.config)
    try:
        bob = of(server, "bob")
        thread = bob.threads.create()["thread_id"]
        cron = bob.crons.create_for_thread(thread, "agent", schedule="* * * * *", input={}, context=FORGED)
        assert cron["user_id"] == "bob"
        server.move_to(server.now() + timedelta(minutes=1))
        run = until("the cron to fire", lambda: bob.runs.list(thread) or None)[-1]
        assert over(bob, thread, run["run_id"])["status"] == "success"
        assert bob.threads.get_state(thread)["values"] == {"who": "bob", "may": []}
        bob.crons.delete(cron["cron_id"])
        server.stop()
    finally:
        server.drop()


APP = """
    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": message["type"] + ".complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        text = f"{scope['method']} {scope['path']} {scope['query_string'].decode()} {body.decode()}".encode()
        headers = [(b"content-type", b"text/plain"), (b"x-mine", b"yes")]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": text})
"""


def test_the_authors_routes_are_served(serve, project):
    project.write(config=CONFIG | {"http": {"app": "./web.py:app", "disable_store": True}}, web=APP)
    server, client = serve()
    answer = httpx.post(f"{server.url}/mine/1?a=b", content="body", timeout=60)
    assert (answer.status_code, answer.text, answer.headers["x-mine"]) == (201, "POST /mine/1 a=b body", "yes")
    assert client.runs.wait(None, "agent", input={})["steps"] == ["first", "second"]
    answer = httpx.post(f"{server.url}/store/items/search", content="body", timeout=60)
    assert (answer.status_code, answer.text) == (201, "POST /store/items/search  body")


SOCKETS = """
    async def app(scope, receive, send):
        if scope["type"] != "websocket":
            raise RuntimeError("this application has only websockets")
        await receive()
        await send({"type": "websocket.accept", "headers": [(b"x-path", scope["path"].encode())]})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"] * 2})
"""

# The machine may stall longer than the client waits by default.
PATIENT = {"open_timeout": 120, "ping_interval": None, "close_timeout": 60}


async def test_the_authors_websockets_are_served(serve, project):
    project.write(config=CONFIG | {"http": {"app": "./web.py:app"}}, web=SOCKETS)
    server, client = serve()
    url = f"ws{server.url.removeprefix('http')}/talk/1?a=b"
    async with asyncio.timeout(180), connect(url, **PATIENT) as one, connect(url, **PATIENT) as other:
        assert one.response.headers["x-path"] == "/talk/1"
        for socket, text in ((one, "a"), (other, "b" * 200_000), (one, "c")):
            await socket.send(text)
            assert await socket.recv() == text * 2
    # A page of elsewhere reaches no server that needs no key.
    with pytest.raises(InvalidStatus) as refused:
        await connect(url, origin="https://evil.example", **PATIENT)
    assert refused.value.response.status_code == 403
    # The server's own routes are not the author's.
    with pytest.raises(InvalidStatus):
        await connect(f"ws{server.url.removeprefix('http')}/threads", **PATIENT)


def test_an_author_may_serve_the_protocols_of_agents(serve, project):
    off = {"disable_a2a": True, "disable_mcp": True}
    project.write(config=CONFIG | {"http": {"app": "./web.py:app"} | off}, web=APP)
    server, _ = serve()
    for method, path in (
        *(("GET", "/.well-known/agent-card.json"), ("POST", "/a2a/agent"), ("DELETE", "/a2a/agent")),
        # No route of the server's own takes this method.
        *(("GET", "/mcp"), ("POST", "/mcp"), ("POST", "/mcp/")),
    ):
        answer = httpx.request(method, f"{server.url}{path}", timeout=60)
        assert (answer.status_code, answer.text) == (201, f"{method} {path}  ")


def test_a_load_error_says_where(project):
    project.write()
    (project.folder / "agent.py").write_text("import json\nimport nowhere_to_be_found\n")
    address = free_address()
    command = [binary(), "agent", "--config", str(project.config), "--listen", address]
    command += ["--data-dir", str(project.folder / "data")]
    process = Process("broken", command, PYTHON, project.folder, address)
    assert process.child.wait(timeout=60) == 1
    said = process.log_tail()
    for part in ('graph "agent"', "nowhere_to_be_found", "agent.py", "line 2", "dependencies"):
        assert part in said, said


def test_changed_code_is_loaded_and_broken_code_is_not(project):
    platform, agent = free_address(), free_address()
    command = [binary(), "dev", "--listen", platform, "--agent-listen", agent, "--graphs", str(project.config)]
    command += ["--data-dir", str(project.folder / "data")]
    process = Process("dev", command, PYTHON, project.folder, platform).ready()
    try:
        client = get_sync_client(url=f"http://{agent}", api_key=None)
        thread, run = begin(client, input={"how": "wait"})
        old = project.until_ran("second")
        source = project.folder / "agent.py"
        source.write_text(source.read_text().replace('{"steps": ["first"]}', '{"steps": ["changed"]}'))

        def changed():
            answer = client.runs.wait(None, "agent", input={})
            return answer if "changed" in answer["steps"] else None

        until("the changed code", changed)
        # What was under way ends where it began.
        assert client.runs.get(thread, run)["status"] == "running"
        project.go()
        assert over(client, thread, run)["status"] == "success"
        assert client.threads.get(thread)["values"]["steps"] == ["first", "second"]
        until("the old process to end", lambda: True if not pathlib.Path(f"/proc/{old}").exists() else None)
        source.write_text("import nowhere_to_be_found\n")
        until("the error", lambda: True if "nowhere_to_be_found" in process.log_tail() else None)
        assert "changed" in client.runs.wait(None, "agent", input={})["steps"]
        # Runs are traced into the platform, in a project of the folder's name.
        key = (project.folder / "data" / "api.key").read_text().strip()

        def traced():
            found = httpx.get(f"http://{platform}/api/v1/sessions", headers={"x-api-key": key}, timeout=60).json()
            return True if project.folder.name in [session["name"] for session in found] else None

        until("the project of the traces", traced)
        process.terminate()
    finally:
        if process.child.poll() is None:
            process.kill()


def test_code_that_changes_while_it_is_loaded_is_loaded_again(project):
    platform, agent = free_address(), free_address()
    source = project.folder / "agent.py"
    later = source.read_text().replace('{"steps": ["first"]}', '{"steps": ["changed"]}')
    (project.folder / "later").write_text(later)
    # What is imported first writes the file that is imported next.
    once = "import pathlib\npathlib.Path(__file__).write_text(pathlib.Path(__file__).with_name('later').read_text())\n"
    source.write_text(source.read_text() + once)
    command = [binary(), "dev", "--listen", platform, "--agent-listen", agent, "--graphs", str(project.config)]
    command += ["--data-dir", str(project.folder / "data")]
    process = Process("dev", command, PYTHON, project.folder, platform).ready()
    try:
        client = get_sync_client(url=f"http://{agent}", api_key=None)
        ask = lambda: client.runs.wait(None, "agent", input={})["steps"]  # noqa: E731
        until("the changed code", lambda: True if "changed" in ask() else None)
        process.terminate()
    finally:
        if process.child.poll() is None:
            process.kill()


def test_the_authors_routes_are_served_by_changed_code_too(project):
    project.write(config=CONFIG | {"http": {"app": "./web.py:app"}}, web=APP)
    platform, agent = free_address(), free_address()
    command = [binary(), "dev", "--listen", platform, "--agent-listen", agent, "--graphs", str(project.config)]
    command += ["--data-dir", str(project.folder / "data")]
    process = Process("dev", command, PYTHON, project.folder, platform).ready()
    try:
        client = get_sync_client(url=f"http://{agent}", api_key=None)
        assert client.runs.wait(None, "agent", input={})["steps"] == ["first", "second"]
        (old,) = {pid for _, pid in project.ran()}
        web = project.folder / "web.py"
        web.write_text(web.read_text().replace('b"yes"', 'b"changed"'))
        until("the old process to end", lambda: True if not pathlib.Path(f"/proc/{old}").exists() else None)
        answer = httpx.post(f"http://{agent}/mine/1", timeout=60)
        assert (answer.status_code, answer.headers["x-mine"]) == (201, "changed")
        process.terminate()
    finally:
        if process.child.poll() is None:
            process.kill()
