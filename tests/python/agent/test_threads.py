"""Threads through the official client: their life, their state, their history."""

import uuid

import pytest
from langgraph_sdk.errors import ConflictError, NotFoundError, UnprocessableEntityError

from clients import collect, eventually

# In both languages.
pytestmark = pytest.mark.usefixtures("graph")


async def test_a_threads_life(client, graph):
    mark = str(uuid.uuid4())
    made = await client.threads.create(metadata={"mark": mark}, graph_id=graph("steps"))
    assert uuid.UUID(made["thread_id"]).version == 7
    assert (made["status"], made["values"]) == ("idle", None)
    assert made["metadata"] == {"mark": mark, "graph_id": graph("steps")}
    changed = await client.threads.update(made["thread_id"], metadata={"more": [1]})
    assert changed["metadata"] == {"mark": mark, "graph_id": graph("steps"), "more": [1]}
    with pytest.raises(ConflictError, match="already exists"):
        await client.threads.create(thread_id=made["thread_id"])
    same = await client.threads.create(thread_id=made["thread_id"], if_exists="do_nothing")
    assert same["metadata"] == changed["metadata"]

    found = await client.threads.search(metadata={"mark": mark, "more": [1]})
    assert [thread["thread_id"] for thread in found] == [made["thread_id"]]
    assert await client.threads.search(metadata={"mark": mark}, status="busy") == []
    assert await client.threads.count(metadata={"mark": mark}) == 1
    only = await client.threads.search(metadata={"mark": mark}, select=["thread_id", "status"])
    assert only == [{"thread_id": made["thread_id"], "status": "idle"}]
    await client.threads.delete(made["thread_id"])
    with pytest.raises(NotFoundError, match=f"Thread with ID {made['thread_id']} not found"):
        await client.threads.get(made["thread_id"])


async def test_state_and_history(client, graph):
    thread = (await client.threads.create())["thread_id"]
    empty = await client.threads.get_state(thread)
    assert (empty["values"], empty["next"]) == ({}, [])
    await client.runs.wait(thread, graph("steps"), input={"log": ["in"]})
    state = await client.threads.get_state(thread)
    assert state["values"] == {"log": ["in", "one", "two"], "x": 1}
    assert (state["next"], state["tasks"], state["interrupts"]) == ([], [], [])
    assert state["checkpoint"]["thread_id"] == thread and state["checkpoint"]["checkpoint_ns"] == ""
    history = await client.threads.get_history(thread, limit=100)
    assert [one["metadata"]["step"] for one in history] == [2, 1, 0, -1]
    assert [one["metadata"]["source"] for one in history] == ["loop", "loop", "loop", "input"]
    ids = [one["checkpoint"]["checkpoint_id"] for one in history]
    assert ids == sorted(ids, reverse=True) and all(uuid.UUID(one).version == 6 for one in ids)
    assert [one["parent_checkpoint"]["checkpoint_id"] for one in history[:-1]] == ids[1:]
    before = await client.threads.get_history(thread, limit=1, before=history[1]["checkpoint"])
    assert [one["checkpoint"]["checkpoint_id"] for one in before] == ids[2:3]
    assert history[1]["next"] == ["two"] and history[1]["tasks"][0]["name"] == "two"
    then = await client.threads.get_state(thread, checkpoint_id=ids[1])
    assert then["values"]["log"] == ["in", "one"]

    row = await client.threads.get(thread)
    assert row["values"] == state["values"] and row["status"] == "idle"
    assert row["metadata"]["graph_id"] == graph("steps") and row["metadata"]["assistant_id"]
    assert [t["thread_id"] for t in await client.threads.search(values={"x": 1}, ids=[thread])] == [thread]


async def test_selected_fields_of_state_and_history(client, graph):
    thread = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread, graph("steps"), input={"log": ["in"]})
    whole = await client.threads.get_state(thread)
    assert await client.threads.get_state(thread, select=["values.log"]) == {"values": {"log": ["in", "one", "two"]}}
    assert await client.threads.get_state(thread, select=["next", "created_at"]) == {
        "next": whole["next"], "created_at": whole["created_at"],
    }
    at = await client.threads.get_state(thread, checkpoint=whole["checkpoint"], select=["checkpoint"])
    assert at == {"checkpoint": whole["checkpoint"]}
    past = await client.threads.get_history(thread, limit=100, select=["metadata"])
    assert len(past) > 1 and all(set(state) == {"metadata"} for state in past)
    with pytest.raises(UnprocessableEntityError, match="select"):
        await client.threads.get_state(thread, select=["colour"])


async def test_time_travel(client, graph):
    thread = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread, graph("steps"), input={"log": ["in"]})
    history = await client.threads.get_history(thread, limit=100)
    after_one = next(one for one in history if one["next"] == ["two"])
    forked = await client.threads.update_state(
        thread, {"log": ["by hand"]}, as_node="one", checkpoint_id=after_one["checkpoint"]["checkpoint_id"]
    )
    assert forked["checkpoint"]["checkpoint_id"] == forked["checkpoint_id"]
    values = await client.runs.wait(thread, graph("steps"), input=None, checkpoint=forked["checkpoint"])
    assert values["log"] == ["in", "one", "by hand", "two"]
    replayed = await client.runs.wait(
        thread, graph("steps"), input=None, checkpoint_id=after_one["checkpoint"]["checkpoint_id"]
    )
    assert replayed["log"] == ["in", "one", "two"]


async def test_copies_are_independent(client, graph):
    thread = (await client.threads.create(metadata={"a": 1}))["thread_id"]
    await client.runs.wait(thread, graph("steps"), input={"log": ["in"]})
    copy = await client.threads.copy(thread)
    assert copy["metadata"]["a"] == 1
    await client.runs.wait(copy["thread_id"], graph("steps"), input={"log": ["more"]})
    assert (await client.threads.get_state(thread))["values"]["log"] == ["in", "one", "two"]
    copied = (await client.threads.get_state(copy["thread_id"]))["values"]["log"]
    assert copied == ["in", "one", "two", "more", "one", "two"]
    assert len(await client.threads.get_history(copy["thread_id"], limit=100)) == 8


async def test_supersteps_at_creation(sdk, graph):
    thread = await sdk.threads.create(
        graph_id=graph("steps"),
        supersteps=[
            {"updates": [{"values": {"log": ["a"]}, "as_node": "__start__"}]},
            {"updates": [{"values": {"log": ["b"]}, "as_node": "one"}]},
        ],
    )
    state = await sdk.threads.get_state(thread["thread_id"])
    assert state["values"]["log"] == ["a", "b"] and state["next"] == ["two"]


async def test_pruning(sdk, http, graph):
    threads = [(await sdk.threads.create())["thread_id"] for _ in range(2)]
    for thread in threads:
        await sdk.runs.wait(thread, graph("steps"), input={"log": ["in"]})
    kept = (await http.post("/threads/prune", json={"thread_ids": [threads[0]], "strategy": "keep_latest"})).json()
    assert kept == {"pruned_count": 1}
    assert len(await sdk.threads.get_history(threads[0], limit=100)) == 1
    values = await sdk.runs.wait(threads[0], graph("steps"), input={"log": []})
    assert values["log"] == ["in", "one", "two", "one", "two"], "what is kept is enough to go on"
    missing = str(uuid.uuid4())
    gone = (await http.post("/threads/prune", json={"thread_ids": [threads[1], missing]})).json()
    assert gone == {"pruned_count": 1}
    assert (await http.get(f"/threads/{threads[1]}")).status_code == 404
    missed = {"thread_ids": [missing], "strategy": None}
    assert (await http.post("/threads/prune", json=missed)).json() == {"pruned_count": 0}
    assert (await http.post("/threads/prune", json={"thread_ids": []})).json() == {"pruned_count": 0}


async def test_pruning_takes_calls_of_subgraphs_along(sdk, http, graph):
    thread = (await sdk.threads.create())["thread_id"]
    parts = await collect(
        sdk.runs.stream(thread, graph("nested"), input={"log": []}, stream_mode="values", stream_subgraphs=True)
    )
    call = next(part.event.split("|", 1)[1] for part in parts if "|" in part.event)
    assert await sdk.threads.get_history(thread, checkpoint={"checkpoint_ns": call}, limit=100)
    pruned = await http.post("/threads/prune", json={"thread_ids": [thread], "strategy": "keep_latest"})
    assert pruned.json() == {"pruned_count": 1}
    assert await sdk.threads.get_history(thread, checkpoint={"checkpoint_ns": call}, limit=100) == []
    assert len(await sdk.threads.get_history(thread, limit=100)) == 1


async def test_a_long_history_comes_whole(sdk, http, graph):
    """It is read and sent in parts: the server holds a few megabytes of it at a time."""
    thread = (await sdk.threads.create())["thread_id"]
    long = "x" * 1_500_000
    for _ in range(2):
        await sdk.runs.wait(thread, graph("steps"), input={"log": [long]})
    history = await sdk.threads.get_history(thread, limit=1000)
    assert [one["metadata"]["step"] for one in history] == [6, 5, 4, 3, 2, 1, 0, -1]
    for one in history:
        there = await sdk.threads.get_state(thread, checkpoint_id=one["checkpoint"]["checkpoint_id"])
        assert there["values"] == one["values"], one["metadata"]["step"]
    got = await http.get(f"/threads/{thread}/history", params={"limit": 1_000_000})
    assert got.headers["content-type"] == "application/json" and got.json() == history
    assert await sdk.threads.get_history(thread, limit=5) == history[:5]
    before = history[2]["checkpoint"]
    assert await sdk.threads.get_history(thread, limit=1000, before=before) == history[3:]


async def test_filters_that_are_too_large_are_refused(client, graph):
    large = {f"key {nth}": nth for nth in range(1001)}
    thread = (await client.threads.create(graph_id=graph("steps")))["thread_id"]
    for field in ("metadata", "values"):
        with pytest.raises(UnprocessableEntityError, match=f"{field}: expected a filter of at most 1000"):
            await client.threads.search(**{field: large})
    with pytest.raises(UnprocessableEntityError, match="metadata: expected a filter of at most 1000"):
        await client.threads.get_history(thread, metadata=large)
    with pytest.raises(UnprocessableEntityError, match="expected a filter of at most 1000 conditions"):
        await client.store.search_items(["users"], filter=large)


async def test_a_busy_threads_state_cannot_be_changed(client, graph):
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(thread, graph("slow"), input={"log": []})
    with pytest.raises(ConflictError, match="in-flight"):
        await client.threads.update_state(thread, {"log": ["x"]})
    await client.runs.cancel(thread, run["run_id"], wait=True)

    async def idle():
        return (await client.threads.get(thread))["status"] != "busy"

    await eventually("the thread to be idle", idle)
    await client.threads.update_state(thread, {"log": ["x"]}, as_node="first")
