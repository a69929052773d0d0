"""Runs through the official client: every way to start, to wait, to stop one."""

import asyncio
import itertools
import uuid

import pytest
from langgraph_sdk.errors import ConflictError, NotFoundError

from clients import collect, eventually

# In both languages.
pytestmark = pytest.mark.usefixtures("graph")

HI = {"messages": [{"role": "user", "content": "hello there"}]}


async def test_waiting_without_a_thread(client, graph):
    values = await client.runs.wait(None, graph("agent"), input=HI)
    assert [message["type"] for message in values["messages"]] == ["human", "ai"]
    assert "hello there" in values["messages"][1]["content"]
    human = values["messages"][0]
    assert uuid.UUID(human["id"]) and human["additional_kwargs"] == {} and human["response_metadata"] == {}


async def test_a_run_is_what_it_was_asked_to_be(client, graph):
    thread = (await client.threads.create(metadata={"who": "thread"}))["thread_id"]
    run = await client.runs.create(
        thread, graph("steps"), input={"log": ["in"]}, metadata={"mine": 1}, config={"configurable": {"tone": "dry"}}
    )
    assert run["status"] in ("pending", "running") and run["multitask_strategy"] == "enqueue"
    assert uuid.UUID(run["run_id"]).version == 7
    configurable = run["kwargs"]["config"]["configurable"]
    assert configurable["tone"] == "dry" and configurable["run_id"] == run["run_id"]
    assert (configurable["thread_id"], configurable["graph_id"]) == (thread, graph("steps"))
    assert run["metadata"]["mine"] == 1 and run["metadata"]["who"] == "thread"
    assert run["metadata"]["assistant_id"] == run["assistant_id"]
    values = await client.runs.join(thread, run["run_id"])
    assert values["log"] == ["in", "one", "two"]
    done = await client.runs.get(thread, run["run_id"])
    assert done["status"] == "success"
    assert [one["run_id"] for one in await client.runs.list(thread)] == [run["run_id"]]
    assert await client.runs.list(thread, status="error") == []
    await client.runs.delete(thread, run["run_id"])
    with pytest.raises(NotFoundError):
        await client.runs.get(thread, run["run_id"])


async def at_work(client, thread, run):
    async def is_running():
        return (await client.runs.get(thread, run["run_id"]))["status"] == "running"

    await eventually("the run to be at work", is_running)


async def test_a_run_that_is_deleted_at_work(client, graph):
    thread = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread, graph("steps"), input={"log": ["in"]})
    run = await client.runs.create(thread, graph("slow"), input={"log": ["more"]})
    await at_work(client, thread, run)
    await client.runs.delete(thread, run["run_id"])
    # It has stopped by now, and what it did is taken back.
    with pytest.raises(NotFoundError):
        await client.runs.get(thread, run["run_id"])
    assert (await client.threads.get(thread))["status"] == "idle"
    assert (await client.threads.get_state(thread))["values"]["log"] == ["in", "one", "two"]
    await client.threads.update_state(thread, {"log": ["x"]}, as_node="first")


async def test_a_run_is_not_deleted_under_another_one(client, graph):
    thread = (await client.threads.create())["thread_id"]
    first = await client.runs.create(thread, graph("steps"), input={"log": ["in"]})
    await client.runs.join(thread, first["run_id"])
    second = await client.runs.create(thread, graph("slow"), input={"log": []}, durability="exit")
    await at_work(client, thread, second)
    with pytest.raises(ConflictError, match=second["run_id"]):
        await client.runs.delete(thread, first["run_id"])
    await client.runs.cancel(thread, second["run_id"], wait=True)
    await client.runs.delete(thread, first["run_id"])
    with pytest.raises(NotFoundError):
        await client.runs.get(thread, first["run_id"])


async def test_a_run_on_a_thread_that_is_not_there(client, graph):
    missing = str(uuid.uuid4())
    # The client raises what its HTTP library does where an answer is streamed.
    with pytest.raises(Exception, match="Thread or assistant not found|404"):
        await client.runs.wait(missing, graph("steps"), input={"log": []})
    values = await client.runs.wait(missing, graph("steps"), input={"log": []}, if_not_exists="create")
    assert values["log"] == ["one", "two"]
    assert (await client.threads.get(missing))["status"] == "idle"


async def test_what_a_graph_raises(client, graph):
    thread = (await client.threads.create())["thread_id"]
    with pytest.raises(Exception, match="it broke"):
        await client.runs.wait(thread, graph("broken"), input={"log": []})
    row = await client.threads.get(thread)
    assert row["status"] == "error" and row["error"] == {"error": "ValueError", "message": "it broke"}
    told = await client.runs.wait(thread, graph("private"), input={"log": []}, raise_error=False)
    assert told["__error__"]["message"] == "An internal error occurred", "insides stay inside"
    parts = await collect(client.runs.stream(thread, graph("broken"), input={"log": []}))
    assert parts[-1].event == "error" and parts[-1].data == {"error": "ValueError", "message": "it broke"}
    assert (await client.runs.list(thread))[0]["status"] == "error"


async def test_a_human_answers(client, graph):
    thread = (await client.threads.create())["thread_id"]
    stopped = await client.runs.wait(thread, graph("human"), input={"log": []})
    (interrupt,) = stopped["__interrupt__"]
    assert interrupt["value"] == {"question": "go on?"} and len(interrupt["id"]) == 32
    row = await client.threads.get(thread)
    assert row["status"] == "interrupted"
    assert [one["value"] for one in itertools.chain(*row["interrupts"].values())] == [{"question": "go on?"}]
    state = await client.threads.get_state(thread)
    assert state["next"] == ["ask"] and state["tasks"][0]["interrupts"][0]["id"] == interrupt["id"]
    assert (await client.runs.list(thread))[0]["status"] == "success", "the run did what it could"
    done = await client.runs.wait(thread, graph("human"), command={"resume": {interrupt["id"]: "yes"}})
    assert (done["answer"], done["log"]) == ("yes", ["asked", "done"])
    assert (await client.threads.get(thread))["status"] == "idle"
    with pytest.raises(Exception, match="400"):
        await client.runs.wait(None, graph("human"), command={"resume": "yes"})


async def test_an_answer_to_nobody_is_refused_where_that_is_asked_for(client, graph):
    assert (await client.http.get("/info"))["flags"]["strict_resume"] is True
    thread = (await client.threads.create())["thread_id"]
    stopped = await client.runs.wait(thread, graph("human"), input={"log": []})
    (interrupt,) = stopped["__interrupt__"]
    before = await client.threads.get(thread)
    unknown = {"resume": {"0" * 32: "yes"}}
    told = await client.runs.wait(thread, graph("human"), command=unknown, strict_resume=True, raise_error=False)
    assert told["__error__"]["error"] == "UnknownInterruptError"
    assert "0" * 32 in told["__error__"]["message"]
    after = await client.threads.get(thread)
    assert (after["status"], after["interrupts"], after["values"]) == (
        "interrupted",
        before["interrupts"],
        before["values"],
    )
    ignored = await client.runs.wait(thread, graph("human"), command=unknown)
    assert ignored["__interrupt__"] == [interrupt], "else it is ignored"
    last = (await client.runs.list(thread))[0]["run_id"]
    joined = await client.runs.join(thread, last)
    assert joined["__interrupt__"] == [interrupt], "who comes after the end reads the same from the thread"
    answer = {"resume": {interrupt["id"]: "yes"}}
    done = await client.runs.wait(thread, graph("human"), command=answer, strict_resume=True)
    assert done["log"] == ["asked", "done"]
    again = await client.runs.wait(thread, graph("human"), command=answer, strict_resume=True, raise_error=False)
    assert again["__error__"]["error"] == "UnknownInterruptError", "it was answered"


async def test_an_answer_that_another_one_replaced_comes_back(client, sdk, graph):
    thread = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread, graph("twice"), input={"log": []})
    stopped = await client.runs.wait(thread, graph("twice"), command={"resume": "1"})
    assert [one["value"] for one in stopped["__interrupt__"]] == ["other?"]
    run = await client.runs.create(thread, graph("twice"), command={"resume": "no"})
    await at_work(sdk, thread, run)
    await client.runs.cancel(thread, run["run_id"], wait=True, action="rollback")
    row = await client.threads.get(thread)
    (waiting,) = itertools.chain(*row["interrupts"].values())
    assert (row["status"], waiting["value"]) == ("interrupted", "other?"), "it waits for the second answer again"
    run = await client.runs.create(thread, graph("twice"), command={"resume": "2"})
    await at_work(sdk, thread, run)
    await client.runs.cancel(thread, run["run_id"], wait=True)
    values = (await client.threads.get_state(thread))["values"]
    assert (values["one"], values["other"]) == ("1", "2"), "the first answer was not lost"


async def test_stops_that_the_caller_asks_for(client, graph):
    thread = (await client.threads.create())["thread_id"]
    values = await client.runs.wait(thread, graph("steps"), input={"log": []}, interrupt_before=["two"])
    assert values["log"] == ["one"]
    row = await client.threads.get(thread)
    assert row["status"] == "interrupted" and row["interrupts"] == {}
    assert (await client.runs.wait(thread, graph("steps"), input=None))["log"] == ["one", "two"]
    values = await client.runs.wait(thread, graph("steps"), input={"log": []}, interrupt_after="*")
    assert values["log"] == ["one", "two", "one"]
    moved = await client.runs.wait(thread, graph("steps"), command={"goto": "two", "update": {"log": ["moved"]}})
    assert moved["log"][-2:] == ["moved", "two"]


async def test_cancelling(client, sdk, graph):
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(thread, graph("slow"), input={"log": []})
    await at_work(sdk, thread, run)
    await client.runs.cancel(thread, run["run_id"], wait=True)
    assert (await client.runs.get(thread, run["run_id"]))["status"] == "interrupted"
    state = await client.threads.get_state(thread)
    assert state["values"]["log"] == ["first"] and state["next"] == ["wait"], "what was done stays"
    with pytest.raises(NotFoundError):
        await client.runs.cancel(thread, run["run_id"])

    other = await client.runs.create(thread, graph("slow"), input={"log": []})
    await at_work(sdk, thread, other)
    await client.runs.cancel(thread, other["run_id"], wait=True, action="rollback")
    with pytest.raises(NotFoundError):
        await client.runs.get(thread, other["run_id"])
    assert (await client.threads.get_state(thread))["values"]["log"] == ["first"], "what it did is undone"


async def test_cancelling_several(client, sdk, http, graph):
    thread = (await client.threads.create())["thread_id"]
    runs = [await client.runs.create(thread, graph("slow"), input={"log": []}) for _ in range(3)]
    await client.runs.cancel_many(thread_id=thread, run_ids=[run["run_id"] for run in runs])

    async def over():
        found = await sdk.runs.list(thread)
        return {run["status"] for run in found} == {"interrupted"}

    await eventually("all three to be interrupted", over)
    await eventually("the thread to be idle", lambda: idle(sdk, thread))


async def test_a_batch(client, graph):
    runs = await client.runs.create_batch(
        [{"assistant_id": graph("agent"), "input": HI}, {"assistant_id": graph("steps"), "input": {"log": []}}]
    )
    assert len({run["run_id"] for run in runs}) == 2


async def test_delayed_runs_wait_for_their_time(client, sdk, graph):
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(thread, graph("steps"), input={"log": []}, after_seconds=600)
    assert (await client.threads.get(thread))["status"] == "busy", "from the start"
    assert (await client.runs.get(thread, run["run_id"]))["status"] == "pending"
    await client.runs.cancel(thread, run["run_id"], wait=True)
    begun = asyncio.get_running_loop().time()
    run = await client.runs.create(thread, graph("steps"), input={"log": []}, after_seconds=2)
    assert (await client.runs.join(thread, run["run_id"]))["log"] == ["one", "two"]
    assert asyncio.get_running_loop().time() - begun >= 2


async def test_what_became_of_stateless_threads(sdk, http, graph):
    kept = await sdk.runs.create(None, graph("steps"), input={"log": []}, on_completion="keep")
    gone = await sdk.runs.create(None, graph("steps"), input={"log": []})

    async def over():
        answer = await http.get(f"/threads/{kept['thread_id']}/runs/{kept['run_id']}")
        return answer.json()["status"] == "success"

    await eventually("the run that is kept to succeed", over)

    async def deleted():
        return (await http.get(f"/threads/{gone['thread_id']}")).status_code == 404

    await eventually("the other thread to be deleted", deleted)


@pytest.mark.parametrize("way", ["create", "stream", "wait"])
@pytest.mark.parametrize("strategy", ["reject", "enqueue", "interrupt", "rollback"])
@pytest.mark.parametrize("before", ["pending", "running"])
async def test_a_run_in_the_way(sdk, before, strategy, way, graph):
    """Every strategy, by every way to start a run, met by a run that waits or is at work."""
    thread = (await sdk.threads.create())["thread_id"]
    if before == "running":
        first = await sdk.runs.create(thread, graph("brief") if strategy == "enqueue" else graph("slow"), input={"log": []})
        await at_work(sdk, thread, first)
    else:
        delay = 3 if strategy == "enqueue" else 600
        first = await sdk.runs.create(thread, graph("steps"), input={"log": []}, after_seconds=delay)

    async def start():
        how = {"input": {"log": []}, "multitask_strategy": strategy}
        if way == "create":
            run = await sdk.runs.create(thread, graph("steps"), **how)
            return await sdk.runs.join(thread, run["run_id"])
        if way == "stream":
            return (await collect(sdk.runs.stream(thread, graph("steps"), **how)))[-1].data
        return await sdk.runs.wait(thread, graph("steps"), **how)

    if strategy == "reject":
        with pytest.raises(Exception, match="already running a task|409 Conflict"):
            await start()
        await sdk.runs.cancel(thread, first["run_id"], wait=before == "running")
        return
    values = await start()
    assert values["log"][-2:] == ["one", "two"]
    await eventually("the thread to be idle", lambda: idle(sdk, thread))
    found = {run["run_id"]: run["status"] for run in await sdk.runs.list(thread)}
    if strategy == "enqueue":
        assert sorted(found.values()) == ["success", "success"]
        # A delayed run is not yet in the queue, so the other one goes first.
        expected = ["first", "waited", "one", "two"] if before == "running" else ["one", "two"]
        assert values["log"] == expected
    elif strategy == "interrupt":
        assert found[first["run_id"]] == "interrupted"
        assert values["log"] == (["first", "one", "two"] if before == "running" else ["one", "two"])
    else:
        assert first["run_id"] not in found
        assert values["log"] == ["one", "two"]


async def at_work(sdk, thread, run):
    """Until its first node is done."""

    async def first():
        if (await sdk.runs.get(thread, run["run_id"]))["status"] != "running":
            return False
        return (await sdk.threads.get_state(thread))["values"].get("log")

    await eventually("the first node to be done", first)


async def idle(sdk, thread):
    return (await sdk.threads.get(thread))["status"] != "busy"
