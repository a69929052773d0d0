"""Runs: what they leave, how they stop, and how they continue."""

import asyncio
import json
import uuid

import pytest
from peer import CP_GET, CP_PUT, CP_WRITES, DONE, REPLY, STATE_GET, until


def values(stream):
    return json.loads(stream.result["state"]["values"])


def interrupts(stream):
    return json.loads(stream.result["state"]["interrupts"])


async def test_a_run_leaves_its_state_and_its_checkpoints(peer):
    run = await peer.wait("steps", {"log": ["in"]})
    assert run.result["status"] == "success" and run.result.get("error") is None
    assert values(run) == {"log": ["in", "one", "two"], "x": 1}
    assert run.result["state"]["next"] == [] and interrupts(run) == {}
    assert run.of("values")[-1] == values(run)
    kept = peer.threads.metadata(run.thread)
    assert [(one["source"], one["step"]) for one in kept] == [("input", -1), ("loop", 0), ("loop", 1), ("loop", 2)]
    assert all(one["run_id"] == run.run and one["graph_id"] == "steps" for one in kept)
    named = json.loads(run.result["state"]["checkpoint"])
    assert named["thread_id"] == run.thread
    assert named["checkpoint_id"] == max(peer.threads.checkpoints[run.thread, ""])
    assert run.calls[-1] == DONE and run.calls.count(CP_GET) == 1


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_durability(peer, durability):
    before = len(peer.saves)
    run = await peer.wait("steps", {"log": []}, durability=durability)
    assert run.result["status"] == "success"
    saves = [fields for kind, fields in peer.saves[before:] if kind == "checkpoint"]
    assert len(saves) == (1 if durability == "exit" else 4)
    assert all(("call" in fields) == (durability == "sync") for fields in saves)
    assert (await peer.ask(STATE_GET, run.thread, graph="steps"))["values"] == values(run)


async def test_sync_goes_on_only_when_a_checkpoint_is_durable(fresh):
    peer = await fresh()
    peer.hold = lambda type_, fields: type_ == CP_PUT and json.loads(fields["metadata"])["step"] == 1
    run = peer.run("steps", {"log": []}, durability="sync", modes=["tasks"])
    (call,) = await until(lambda: peer.held)
    await peer.ping()
    assert [task["name"] for task in run.of("tasks") if "input" in task] == ["one"], "the next step waits"
    peer.hold = None
    peer.send(REPLY, *call)
    assert (await asyncio.wait_for(run.done, 10))["status"] == "success"
    assert [task["name"] for task in run.of("tasks") if "input" in task] == ["one", "two"]


async def test_a_temporary_thread_is_not_read(peer):
    run = await peer.wait("steps", {"log": []}, fresh=True)
    assert run.result["status"] == "success" and CP_GET not in run.calls


async def test_values_that_json_does_not_know_come_back_as_they_were(peer):
    run = await peer.wait("odd", {}, modes=["values", "custom"])
    assert run.result["status"] == "success", run.result
    assert run.result["state"]["next"] == ["check"]
    out = values(run)["out"]
    assert out["message"]["type"] == "human" and out["message"]["content"] == "hi"
    assert out["document"]["page_content"] == "text" and out["model"] == {"a": 1, "when": "2026-03-01"}
    assert out["point"] == {"x": 1, "y": {"deep": {"x": 2, "y": None}}}
    assert out["time"] == "2026-03-01T12:00:00+00:00" and out["delta"] == 90.0
    assert out["uuid"] == str(uuid.UUID(int=1)) and (out["decimal"], out["whole"]) == (1.5, 2)
    assert (out["set"], out["tuple"], out["pair"], out["enum"]) == ([1], [1, 2], {"left": 1, "right": 2}, "red")
    assert (out["path"], out["ip"], out["pattern"]) == ("/a/b", "127.0.0.1", "a+")
    assert out["bytes"] == "AP8="
    assert out["nan"] is None
    assert (out["nul"], out["escaped"]) == ("a\ufffdb", "a\\u0000b")
    assert out["keys"] == {"1": "int", "red": "enum", "null": "none"}
    error, slow = run.of("custom")
    assert error == {"error": {"error": "KeyError", "message": "'gone'"}}
    assert slow == {"big": 1 << 70, "surrogate": "?", "time": "12:00:00", "flag": "red", "set": [1]}
    run = await peer.wait("odd", None, thread=run.thread)
    assert values(run)["out"] == [True, True, True, True]


async def test_the_thread_goes_on(peer):
    first = await peer.wait("steps", {"log": ["a"]})
    second = await peer.wait("steps", {"log": ["b"]}, thread=first.thread)
    assert values(second)["log"] == ["a", "one", "two", "b", "one", "two"]


async def test_a_human_answers(peer):
    run = await peer.wait("human", {"log": []}, modes=["values", "updates"])
    assert run.result["status"] == "success" and run.result["state"]["next"] == ["ask"]
    (waiting,) = interrupts(run).values()
    assert waiting[0]["value"] == {"question": "go on?"} and set(waiting[0]) == {"value", "id"}
    assert "__interrupt__" not in values(run)
    assert run.of("values")[-1]["__interrupt__"][0]["id"] == waiting[0]["id"]
    by_id = {"resume": {waiting[0]["id"]: "yes"}}
    run = await peer.wait("human", thread=run.thread, command=by_id)
    assert values(run)["log"] == ["asked: yes", "done"] and run.result["state"]["next"] == []


async def test_a_strict_resume_that_answers_nobody_fails(peer):
    run = await peer.wait("human", {"log": []})
    (waiting,) = interrupts(run).values()
    for nobody in ({"0" * 32: "yes"}, {}):
        run = await peer.wait("human", thread=run.thread, command={"resume": nobody}, strict_resume=True)
        assert run.result["status"] == "error" and run.result["error"]["error"] == "UnknownInterruptError"
        assert interrupts(run) == {next(iter(interrupts(run))): waiting}, "it still waits"
    command = {"resume": {waiting[0]["id"]: "yes"}}
    run = await peer.wait("human", thread=run.thread, command=command, strict_resume=True)
    assert values(run)["log"] == ["asked: yes", "done"]


async def test_commands(peer):
    run = await peer.wait("steps", {"log": []})
    jump = {"goto": [{"node": "two", "input": {"log": []}}], "update": [["log", ["a"]], ["x", 7]]}
    run = await peer.wait("steps", thread=run.thread, command=jump)
    assert values(run) == {"log": ["one", "two", "a", "two"], "x": 7}
    run = await peer.wait("steps", {"log": []})
    run = await peer.wait("steps", thread=run.thread, command={"goto": "two"})
    assert values(run)["log"] == ["one", "two", "two"]
    run = await peer.wait("steps", thread=run.thread, command={})
    assert run.result["error"]["error"] == "EmptyInputError"


async def test_stops_before_and_after_nodes(peer):
    run = await peer.wait("steps", {"log": []}, interrupt_before=["two"])
    assert run.result["status"] == "success" and run.result["state"]["next"] == ["two"] and interrupts(run) == {}
    run = await peer.wait("steps", None, thread=run.thread, interrupt_after="*")
    assert values(run)["log"] == ["one", "two"]
    run = await peer.wait("steps", {"log": []}, interrupt_after="*")
    assert run.result["state"]["next"] == ["two"]


async def test_time_travel(peer):
    first = await peer.wait("steps", {"log": ["a"]})
    ids = sorted(peer.threads.checkpoints[first.thread, ""])
    config = {"configurable": {"checkpoint_id": ids[2], "checkpoint_ns": ""}}
    fork = await peer.wait("steps", None, thread=first.thread, config=config, modes=["updates"])
    assert [next(iter(update)) for update in fork.of("updates")] == ["two"]
    assert peer.threads.metadata(first.thread)[-2]["source"] == "fork"


async def test_errors_name_the_exception(peer):
    run = await peer.wait("broken", {"log": []})
    assert run.result["status"] == "error"
    error = run.result["error"]
    assert (error["error"], error["message"]) == ("ValueError", "it broke")
    assert "graphs.py" in error["traceback"] and "in fail" in error["traceback"]
    assert values(run) == {"log": ["one"], "x": 1} and run.result["state"]["next"] == ["fail"]
    run = await peer.wait("endless", {"log": []}, config={"recursion_limit": 3})
    assert run.result["error"]["error"] == "GraphRecursionError"
    run = await peer.wait("steps", None)
    assert run.result["error"]["error"] == "EmptyInputError"
    run = await peer.wait("nowhere", {})
    assert run.result["status"] == "error" and "nowhere" in run.result["error"]["message"]


async def test_what_a_run_knows(peer):
    config = {
        "configurable": {"mine": 1, "langgraph_auth_user": {"identity": "ann", "permissions": ["p"]}},
        "tags": ["t"],
        "metadata": {"owner": "me"},
    }
    run = await peer.wait("knowing", {}, config=config, context={"tone": "warm"})
    assert values(run)["seen"] == {
        "context": {"tone": "warm", "size": 1}, "thread": run.thread, "mine": 1, "tags": ["t"], "run_id": run.run,
        "metadata": "me", "identity": "ann", "user": "ann", "server_user": "ann", "graph": "knowing",
    }  # fmt: skip
    assert peer.threads.metadata(run.thread)[0]["owner"] == "me"
    run = await peer.wait("knowing", {}, context={"tone": []})
    assert run.result["status"] in ("success", "error"), "a context of the wrong type is langgraph's business"


async def test_functions_are_graphs(peer):
    run = await peer.wait("functional", 3)
    assert values(run) == 6
    run = await peer.wait("functional", 4, thread=run.thread)
    assert values(run) == 14, "it sees what it returned before"


async def test_parallel_tasks(peer):
    run = await peer.wait("fan", {"log": []}, modes=["tasks"])
    assert sorted(values(run)["log"]) == [0, 1, 2]
    assert len(run.of("tasks")) == 6


async def test_synchronous_nodes_run_in_threads_and_reach_the_store(peer):
    run = await peer.wait("sync", {"log": []})
    assert values(run)["log"] == ["one", "one again"]
    said = [one for one in peer.logs if one["message"] == "from a thread"][-1]
    assert said["run"] == run.run and said["graph"] == "sync" and said["source"] == "stdout"


async def test_many_runs_share_the_loop(peer):
    runs = await asyncio.gather(*(peer.wait("steps", {"log": [n]}) for n in range(50)))
    assert [values(run)["log"] for run in runs] == [[n, "one", "two"] for n in range(50)]


async def test_factories(peer):
    assert values(await peer.wait("plain_factory", {"log": []}))["log"] == ["one", "two"]
    assert values(await peer.wait("sync_managed_factory", {"log": []}))["log"] == ["one", "two"]
    assert values(await peer.wait("builder", {"log": []}))["log"] == ["one", "two"]
    mine = {"configurable": {"mine": "of the config"}}
    assert values(await peer.wait("async_factory", {"log": []}, config=mine))["log"] == ["of the config"]
    config = {"configurable": {"langgraph_auth_user": {"identity": "ann"}}}
    run = await peer.wait("managed_factory", {}, config=config)
    assert values(run)["seen"][:2] == ["threads.create_run", "ann"]
    await peer.ask(STATE_GET, run.thread, graph="managed_factory")
    run = await peer.wait("managed_factory", {}, config=config)
    assert {"assistants.read", "threads.read"} <= set(values(run)["seen"][2])
    assert [one for one in peer.logs if one["message"] == "factory closed"]


async def test_modules_of_a_package_import_relatively(peer):
    assert values(await peer.wait("crowd", {"log": []}))["log"] == ["from the package"]


async def test_cancel_stops_the_task_and_waits_for_it(peer):
    run = peer.run("slow", {"log": []}, modes=["updates"])
    await until(lambda: run.of("updates"))
    peer.cancel(run)
    run.result = await asyncio.wait_for(run.done, 5)
    assert run.result["status"] == "cancelled"
    assert values(run)["log"] == ["one"] and run.result["state"]["next"] == ["wait"]
    assert [one for one in peer.logs if one["message"] == "was cancelled" and one.get("run") == run.run]
    # The thread is not harmed.
    run = peer.run("slow", None, thread=run.thread)
    peer.cancel(run, "rollback")
    assert (await asyncio.wait_for(run.done, 5))["status"] == "cancelled"


async def test_fenced_runs_say_nothing_more(fresh):
    peer = await fresh()
    refused = []

    def save(stream, type_, fields):
        refused.append(type_)
        return {"kind": "fenced", "error": "Fenced", "message": "another worker has it"} if len(refused) > 2 else None

    peer.on_save = save
    run = await peer.wait("slow", {"log": []}, durability="sync")
    assert run.result["status"] == "fenced" and run.result.get("state") is None
    assert len(refused) <= 4
    peer.on_save = None
    run = peer.run("slow", {"log": []}, modes=["updates"])
    await until(lambda: run.of("updates"))
    peer.fail(run, "lost")
    assert (await asyncio.wait_for(run.done, 5))["status"] == "retry"


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("graph", ["steps", "human"])
@pytest.mark.parametrize("after", range(1, 9))
async def test_a_run_that_was_lost_goes_on_where_it_was(fresh, after, graph, durability):
    """The child dies after so many saves; another attempt repeats no superstep whose checkpoint was saved."""
    peer = await fresh()
    thread, run = str(uuid.uuid4()), str(uuid.uuid4())
    command = None
    if graph == "human":
        await peer.wait("human", {"log": ["in"]}, thread=thread)
        command = {"resume": "yes"}
    saved = []

    def save(stream, type_, fields):
        saved.append((type_, fields))
        if len(saved) == after:
            peer.kill()
        return {"kind": "lost", "error": "Lost", "message": "gone"} if len(saved) > after else None

    peer.on_save = save
    given = {"log": ["in"]} if command is None else None
    # What it says after a refusal counts for nothing: it may have been on its way.
    await peer.wait(graph, given, thread=thread, run=run, command=command, durability=durability)
    steps_before = len(peer.threads.metadata(thread))
    second = await fresh(threads=peer.threads)
    again = await second.wait(graph, given, thread=thread, run=run, command=command, durability=durability, attempt=2)
    assert again.result["status"] == "success", again.result
    expected = ["in", "one", "two"] if graph == "steps" else ["in", "asked: yes", "done"]
    assert values(again)["log"] == expected, "nothing is applied twice"
    steps = [one["step"] for one in second.threads.metadata(thread)]
    assert len(steps) == len(set(steps)) >= steps_before, "no superstep is made twice"


@pytest.mark.parametrize("attempt", [1, 2], ids=["handed back", "failed"])
async def test_a_repeated_run_applies_its_command_once(fresh, attempt):
    """An attempt that was handed back is not counted, and has used its command up all the same."""
    peer = await fresh()
    thread, run = str(uuid.uuid4()), str(uuid.uuid4())
    await peer.wait("human", {"log": ["in"]}, thread=thread)
    command = {"resume": "yes", "update": {"log": ["u"]}}
    puts = []

    def save(stream, type_, fields):
        puts.append(type_)
        if puts.count(CP_PUT) < 2:
            return None
        peer.kill()
        return {"kind": "lost", "error": "Lost", "message": "gone"}

    peer.on_save = save
    await peer.wait("human", thread=thread, run=run, command=command, durability="sync")
    second = await fresh(threads=peer.threads)
    again = await second.wait(
        "human", thread=thread, run=run, command=command, durability="sync", attempt=attempt, repeated=True
    )
    assert again.result["status"] == "success", again.result
    assert values(again)["log"] == ["in", "u", "asked: yes", "done"]


@pytest.mark.parametrize("resume", ["yes", None])
async def test_a_command_that_is_saved_goes_on_without_the_rest_of_it(fresh, resume):
    """The server leaves out what an earlier attempt saved on the checkpoint the run starts from."""
    peer = await fresh()
    thread, run = str(uuid.uuid4()), str(uuid.uuid4())
    await peer.wait("human", {"log": ["in"]}, thread=thread)
    saved = []

    def save(stream, type_, fields):
        saved.append(fields)
        if len(saved) < 2:
            return None
        peer.kill()
        return {"kind": "lost", "error": "Lost", "message": "gone"}

    peer.on_save = save
    command = {"update": {"log": ["u"]}} | ({"resume": resume} if resume else {})
    await peer.wait("human", thread=thread, run=run, command=command, durability="sync")
    assert {channel for _, channel, _, _ in saved[0]["writes"]} == {"log"} | ({"__resume__"} if resume else set())
    second = await fresh(threads=peer.threads)
    again = await second.wait(
        "human", thread=thread, run=run, command={"resume": resume} if resume else None, attempt=2, repeated=True
    )
    assert again.result["status"] == "success", again.result
    if resume:
        assert values(again)["log"] == ["in", "u", "asked: yes", "done"]
    else:
        assert again.result["state"]["next"] == ["ask"] and len(interrupts(again)) == 1


async def test_a_lost_fork_goes_on_from_the_fork(fresh):
    peer = await fresh()
    first = await peer.wait("steps", {"log": ["a"]})
    ids = sorted(peer.threads.checkpoints[first.thread, ""])
    config = {"configurable": {"checkpoint_id": ids[1], "checkpoint_ns": ""}}
    run = str(uuid.uuid4())
    await peer.wait("steps", None, thread=first.thread, run=run, config=config)
    count = len(peer.threads.checkpoints[first.thread, ""])
    again = await peer.wait("steps", None, thread=first.thread, run=run, config=config, attempt=2, modes=["updates"])
    assert again.result["status"] == "success" and again.of("updates") == []
    assert len(peer.threads.checkpoints[first.thread, ""]) == count


async def test_writes_of_finished_siblings_are_kept(peer, fresh):
    run = await peer.wait("nested_human", {"log": ["in"]}, subgraphs=True)
    assert run.result["state"]["next"] == ["sub"]
    (waiting,) = interrupts(run).values()
    assert waiting[0]["value"] == "inside?"
    other = await fresh(threads=peer.threads)
    run = await other.wait("nested_human", thread=run.thread, command={"resume": "yes"})
    assert values(run)["log"] == ["in", "in", "yes"]
    assert CP_WRITES in run.calls
