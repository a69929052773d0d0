"""The process: how it starts, what it refuses, how it answers, how it ends."""

import asyncio
import os
import sys

import pytest
from peer import EXITED, FORK, FORKED, PACKAGE, SHUTDOWN, LoadFailed, Peer, cpu_s, until

GRAPH = """
from langgraph.graph import START, MessagesState, StateGraph
graph = StateGraph(MessagesState)
graph.add_node("node", lambda state: {})
graph.add_edge(START, "node")
"""


def config(spec="./g.py:graph", **more):
    return {"graphs": {"g": spec}} | more


async def test_hello(peer):
    hello = peer.hello
    assert hello["protocol"] == {"min": 1, "max": 1} and hello["runtime"] == "python"
    assert hello["versions"]["langgraph"] and hello["pid"]
    assert peer.ready["auth"] is None and peer.ready["http"] is False and peer.ready["load_ms"] > 0


@pytest.mark.parametrize(
    ("text", "spec", "error", "says", "line"),
    [
        ("x = (", "./g.py:graph", "SyntaxError", "never closed", 1),
        ("\nimport nothing_like_that", "./g.py:graph", "ModuleNotFoundError", "nothing_like_that", 2),
        ("def f():\n    1 / 0\nf()", "./g.py:graph", "ZeroDivisionError", "division", 2),
        ("other = 1", "./g.py:graph", "AttributeError", "no 'graph'; it has other", None),
        ("graph = 7", "./g.py:graph", "TypeError", "is a int; expected a compiled graph", None),
        ("def graph(a, b, c): pass", "./g.py:graph", "TypeError", "at most a config and a ServerRuntime", None),
        ("", "./missing.py:graph", "FileNotFoundError", "does not exist", None),
        ("", "no.such.module:graph", "ModuleNotFoundError", "No module named 'no'", None),
        ("", "graph", "ValueError", "graphs.g: expected", None),
        ("", 7, "ValueError", "graphs.g: expected", None),
    ],
)
async def test_load_errors_name_graph_file_and_line(fresh, project, text, spec, error, says, line):
    folder = project(g_py=text)
    with pytest.raises(LoadFailed) as failed:
        await fresh(config(spec), folder)
    fields = failed.value.fields
    assert (fields["error"], fields["line"] if line else line) == (error, line), fields
    assert says in fields["message"]
    assert fields["graph"] == "g"
    if line:
        assert fields["file"] == str(folder / "g.py")
        assert "towpath_host" not in fields["traceback"] or error == "SyntaxError"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"checkpointer": {"path": "./c.py:c"}}, "checkpointer.path"),
        ({"store": {"path": "./c.py:c"}}, "store.path"),
        ({"checkpointer": {"backend": "mongo"}}, "checkpointer.backend"),
        ({"priority": {"path": "./c.py:c"}}, "priority.path"),
        ({"auth": {"path": "./g.py:graph"}}, "auth.path"),
        ({"http": {"app": "./g.py:nothing"}}, "http.app"),
        ({"store": {"index": {"dims": 1, "embed": 7}}}, "store.index.embed"),
    ],
)
async def test_what_is_refused_is_named(fresh, project, more, says):
    with pytest.raises(LoadFailed) as failed:
        await fresh(config(**more), project(g_py=GRAPH))
    assert says in failed.value.fields["message"]


async def test_a_module_may_be_named_by_its_dotted_name(fresh, project):
    folder = project(**{"pkg__deep__g_py": GRAPH, "src__flat_py": GRAPH})
    peer = await fresh({"dependencies": ["."], "graphs": {"a": "pkg.deep.g:graph", "b": "flat:graph"}}, folder)
    assert set(peer.graphs) == {"a", "b"}


async def test_a_factory_that_needs_a_config_is_described_on_demand(fresh, project):
    made = GRAPH.replace(
        "graph = StateGraph",
        "def make(config):\n    config['configurable']['needed']\n    return graph\n\ngraph = StateGraph",
    )
    peer = await fresh(config("./g.py:make"), project(g_py=made))
    (graph,) = peer.ready["graphs"]
    assert graph["describe_error"] == "KeyError: 'needed'" and "schemas" not in graph
    from peer import SCHEMAS, text

    given = text({"configurable": {"needed": 1}})
    assert (await peer.ask(SCHEMAS, graph="g", config=given))["input_schema"]


async def test_without_langgraph_it_says_so(folder):
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-S", "-m", "towpath_host", "--socket", str(folder / "s"),
        env={"PYTHONPATH": str(PACKAGE)}, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, said = await child.communicate()
    assert child.returncode == 3 and b"install langgraph" in said


async def test_pings_are_answered_while_the_loop_is_blocked(fresh):
    peer = await fresh()
    pong = await peer.ping(7)
    assert pong["stray_threads"] == 0
    assert pong["t"] == 7 and pong["loop_lag_ms"] < 500 and pong["rss_bytes"] > 10_000_000 and pong["streams"] == 0
    run = peer.run("blocking", {"x": 4})
    while (pong := await peer.ping(8))["loop_lag_ms"] < 300:
        assert not run.done.done(), "it was never told that the loop is blocked"
    assert not run.done.done() and pong["streams"] == 1
    # It says so as soon as its loop continues.
    assert (await asyncio.wait_for(run.done, 10))["status"] == "success"
    (told,) = [one for one in peer.logs if "blocked the event loop" in one["message"]]
    assert "graphs.py:" in told["message"] and "in block: time.sleep" in told["message"]


async def test_frames_read_while_the_loop_was_blocked_are_not_lost(fresh):
    peer = await fresh()
    run = peer.run("blocking", {"x": 3})
    await until(lambda: run.calls)
    others = [peer.run("steps", {"log": []}) for _ in range(5)]
    await peer.ping()
    for other in others:
        assert (await asyncio.wait_for(other.done, 10))["status"] == "success"


async def test_standard_input_may_be_the_socket(folder):
    import socket

    from conftest import CONFIG, PROJECT

    here, there = socket.socketpair()
    peer = Peer(str(folder / "s"))
    peer.expect(PROJECT, CONFIG, graphs=["steps"])
    reader, writer = await asyncio.open_connection(sock=here)
    reading = asyncio.create_task(peer._connected(reader, writer))
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "towpath_host", cwd=PROJECT, stdin=there.fileno(),
        env={"PYTHONPATH": str(PACKAGE), "TOWPATH_HOST_PARENT": str(os.getpid())},
    )  # fmt: skip
    there.close()
    await peer.started()
    assert list(peer.graphs) == ["steps"], "only those that were named"
    assert (await peer.wait("steps", {"log": []})).result["status"] == "success"
    writer.close()
    assert await asyncio.wait_for(child.wait(), 5) == 0, "a child without a server ends"
    reading.cancel()


async def test_a_blocked_child_ends_with_its_server(fresh):
    peer = await fresh()
    run = peer.run("blocking", {"x": 60})
    await until(lambda: run.calls)
    peer.writer.close()
    await asyncio.wait_for(peer.process.wait(), 10)


async def test_shutdown_lets_runs_end_and_gives_back_the_rest(fresh):
    peer = await fresh()
    run = peer.run("slow", {"log": []}, modes=["updates"])
    quick = peer.run("blocking", {"x": 1})
    await until(lambda: run.of("updates") and quick.calls)
    peer.send(SHUTDOWN, 0, {"grace_ms": 2500})
    late = peer.run("steps", {"log": []})
    assert (await asyncio.wait_for(late.done, 10))["status"] == "retry"
    assert (await asyncio.wait_for(quick.done, 10))["status"] == "success"
    assert (await asyncio.wait_for(run.done, 10))["status"] == "retry"
    assert await asyncio.wait_for(peer.process.wait(), 10) == 0


async def test_logs_know_their_run(fresh, project):
    told = GRAPH.replace("lambda state: {}", "speak").replace(
        "from langgraph",
        "import logging, sys, warnings\n"
        "def speak(state):\n"
        "    logging.getLogger('mine').warning('a %s', 'warning')\n"
        "    logging.getLogger('mine').debug('not told')\n"
        "    try:\n        1 / 0\n"
        "    except ZeroDivisionError:\n        logging.getLogger('mine').exception('it failed')\n"
        "    print('one', end=' '); print('line')\n"
        "    print('to err', file=sys.stderr)\n"
        "    return {}\n"
        "from langgraph",
        1,
    )
    peer = await fresh(config(), project(g_py=told))
    run = await peer.wait("g", {"messages": []})
    said = [one for one in peer.logs if one.get("run") == run.run]
    assert [(one["level"], one["source"]) for one in said] == [
        ("warning", "log"), ("error", "log"), ("info", "stdout"), ("warning", "stderr"),
    ]  # fmt: skip
    assert said[0]["message"] == "a warning" and "ZeroDivisionError" in said[1]["message"]
    assert said[2]["message"] == "one line" and said[2]["thread"] == run.thread


async def test_forks_need_not_import(folder):
    from conftest import CONFIG, PROJECT

    parent = Peer(str(folder / "parent"))
    ready = await parent.start(PROJECT, CONFIG, arguments=["--fork-server"])
    assert ready["fork_safe"] is True and ready["graphs"] == []
    children = []
    for at in range(2):
        child = Peer(str(folder / f"child{at}"))
        child.expect(PROJECT, CONFIG)
        await child.listen()
        parent.send(FORK, 0, {"socket": child.socket})
        type_, forked = await asyncio.wait_for(parent.control.get(), 10)
        await child.started()
        assert type_ == FORKED and forked["pid"] == child.hello["pid"]
        assert cpu_s(forked["pid"]) < cpu_s(parent.hello["pid"]) / 2, "it imported what its parent had"
        children.append(child)
    runs = await asyncio.gather(*(child.wait("sync", {"log": []}) for child in children))
    assert all(run.result["status"] == "success" for run in runs)
    children[0].send(SHUTDOWN, 0, {"grace_ms": 0})
    type_, exited = await asyncio.wait_for(parent.control.get(), 10)
    assert (type_, exited["pid"], exited["status"]) == (EXITED, children[0].hello["pid"], 0)
    os.kill(children[1].hello["pid"], 9)
    type_, exited = await asyncio.wait_for(parent.control.get(), 10)
    assert (exited["pid"], exited["signal"]) == (children[1].hello["pid"], 9)
    for child in children:
        child.server.close()
    assert await parent.stop() == 0


@pytest.mark.parametrize(
    "held",
    [
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n",
        "import socket\nheld = socket.socketpair()\n",
        "import asyncio\nheld = asyncio.new_event_loop()\n",
    ],
    ids=["a thread", "a connection", "a loop"],
)
async def test_what_the_user_holds_forbids_forks(folder, project, held):
    parent = Peer(str(folder / "parent"))
    ready = await parent.start(project(g_py=GRAPH + "\n" + held), config(), arguments=["--fork-server"])
    assert ready["fork_safe"] is False
    await parent.stop()


async def test_threads_of_cancelled_nodes_do_not_wait_for_ever(fresh, project):
    late = GRAPH.replace("lambda state: {}", "late").replace(
        "from langgraph",
        "import threading, time\n"
        "from langgraph.config import get_store\n"
        "def late(state):\n"
        "    store = get_store()\n"
        "    print('at work')\n"
        "    time.sleep(1.5)\n"
        "    try:\n        store.get(('a',), 'b')\n"
        "    except Exception as error:\n        print('refused:', error)\n"
        "from langgraph",
        1,
    )
    peer = await fresh(config(), project(g_py=late))
    run = peer.run("g", {"messages": []})
    await until(lambda: [one for one in peer.logs if one["message"] == "at work"])
    peer.cancel(run)
    assert (await asyncio.wait_for(run.done, 5))["status"] == "cancelled"
    await until(lambda: [one for one in peer.logs if one["message"] == "refused: the run is over"])


async def test_threads_that_work_for_runs_that_are_over_are_counted(fresh, project):
    held = GRAPH.replace("lambda state: {}", "held").replace(
        "from langgraph",
        "import pathlib, time\n"
        "def held(state):\n"
        "    print('at work')\n"
        "    while not pathlib.Path('done').exists():\n        time.sleep(0.01)\n"
        "from langgraph",
        1,
    )
    folder = project(g_py=held)
    peer = await fresh(config(), folder)
    runs = [peer.run("g", {"messages": []}) for _ in range(3)]
    await until(lambda: len([one for one in peer.logs if one["message"] == "at work"]) == 3)
    assert (await peer.ping())["stray_threads"] == 0, "they work for runs that go on"
    for run in runs[1:]:
        peer.cancel(run)
        assert (await asyncio.wait_for(run.done, 5))["status"] == "cancelled"
    assert (await peer.ping())["stray_threads"] == 2
    (folder / "done").touch()
    assert (await asyncio.wait_for(runs[0].done, 5))["status"] == "success"
    async with asyncio.timeout(60):
        while (await peer.ping())["stray_threads"] > 0:
            await asyncio.sleep(0.005)


async def test_what_is_said_faster_than_it_is_read_is_dropped(fresh, project):
    loud = GRAPH.replace("lambda state: {}", "shout").replace(
        "from langgraph",
        "def shout(state):\n"
        "    for _ in range(4000):\n        print('x' * 10_000)\n"
        "    return {}\n"
        "from langgraph",
        1,
    )
    peer = await fresh(config(), project(g_py=loud.replace("def shout", "async def shout")))
    # Nothing is sent before the loop turns: 40 MB would wait.
    assert (await peer.wait("g", {"messages": []})).result["status"] == "success"
    assert (await peer.wait("g", {"messages": []})).result["status"] == "success"
    said = [one for one in peer.logs if one["source"] == "stdout"]
    assert 0 < len(said) < 8000
    dropped = [one for one in peer.logs if "were dropped" in one["message"]]
    assert dropped and dropped[0]["level"] == "warning"


async def test_what_the_user_started_ends_with_the_child(fresh, project):
    folder = project(
        g_py=GRAPH + "\nimport subprocess\nopen('pid', 'w').write(str(subprocess.Popen(['sleep', '600']).pid))\n"
    )
    peer = await fresh(config(), folder)
    pid = int((folder / "pid").read_text())
    os.kill(pid, 0)
    assert await peer.stop() == 0

    def gone():
        try:
            return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] == "Z"
        except OSError:
            return True

    await until(gone)


async def test_a_frame_that_is_too_long_fails_its_run_only(fresh):
    peer = await fresh(max_frame_bytes=100_000)
    run = await peer.wait("steps", {"log": ["x" * 60_000]})
    assert run.result["status"] == "success"
    run = await peer.wait("steps", {"log": ["x" * 60_000]}, thread=run.thread)
    assert run.result["status"] == "error" and "more than the server takes" in run.result["error"]["message"]
    assert (await peer.wait("steps", {"log": []})).result["status"] == "success"
