"""Questions about threads and graphs."""

import asyncio
import json

import pytest
from peer import CP_GET, DRAW, HISTORY, SCHEMAS, STATE_GET, STATE_UPDATE, SUBGRAPHS, Refused, text, until


async def test_state(peer):
    run = await peer.wait("human", {"log": ["in"]})
    state = await peer.ask(STATE_GET, run.thread, graph="human")
    assert state["values"] == {"log": ["in"]} and state["next"] == ["ask"]
    (task,) = state["tasks"]
    assert (task["name"], task["path"], task["error"]) == ("ask", ["__pregel_pull", "ask"], None)
    assert task["interrupts"] == state["interrupts"] and state["interrupts"][0]["value"] == {"question": "go on?"}
    assert set(state["checkpoint"]) == {"thread_id", "checkpoint_ns", "checkpoint_id"}
    assert (
        state["checkpoint"]["checkpoint_id"] == state["checkpoint_id"] == max(peer.threads.checkpoints[run.thread, ""])
    )
    assert state["parent_checkpoint"]["checkpoint_id"] == state["parent_checkpoint_id"]
    assert state["metadata"]["step"] == 0 and state["created_at"]
    assert await peer.ask(STATE_GET, "00000000-0000-0000-0000-000000000000", graph="human") is None
    first = await peer.ask(STATE_GET, run.thread, graph="human", id=state["parent_checkpoint_id"])
    assert first["next"] == ["__start__"]


async def test_state_of_subgraphs(peer):
    run = await peer.wait("nested_human", {"log": ["in"]})
    state = await peer.ask(STATE_GET, run.thread, graph="nested_human", subgraphs=False)
    (task,) = state["tasks"]
    assert task["state"] is None and task["checkpoint"]["thread_id"] == run.thread
    inside = await peer.ask(STATE_GET, run.thread, graph="nested_human", ns=task["checkpoint"]["checkpoint_ns"])
    assert inside["next"] == ["ask"] and inside["values"] == {"log": ["in"]}
    state = await peer.ask(STATE_GET, run.thread, graph="nested_human", subgraphs=True)
    assert state["tasks"][0]["state"]["next"] == ["ask"] and state["tasks"][0]["checkpoint"] is None


async def test_history(peer):
    run = await peer.wait("steps", {"log": ["in"]})
    states = await peer.ask(HISTORY, run.thread, graph="steps")
    assert [state["metadata"]["step"] for state in states] == [2, 1, 0, -1]
    assert [state["next"] for state in states] == [[], ["two"], ["one"], ["__start__"]]
    two = await peer.ask(HISTORY, run.thread, graph="steps", limit=2, before=states[0]["checkpoint_id"])
    assert two == states[1:3]
    found = await peer.ask(HISTORY, run.thread, graph="steps", filter=text({"step": 1}))
    assert found == states[1:2]


async def test_long_histories_are_read_in_pages(peer, monkeypatch):
    run = await peer.wait("steps", {"log": ["in"]})
    many = text([[{"values": {"log": [str(number)]}, "as_node": "one"}] for number in range(120)])
    await peer.ask(STATE_UPDATE, run.thread, graph="steps", supersteps=many)
    pages, whole = [], peer.threads.list

    def listed(thread, fields):
        found = whole(thread, fields)
        pages.append((fields["limit"], len(found)))
        return found

    monkeypatch.setattr(peer.threads, "list", listed)
    states = await peer.ask(HISTORY, run.thread, graph="steps")
    ids = sorted(peer.threads.checkpoints[run.thread, ""], reverse=True)
    assert [state["checkpoint_id"] for state in states] == ids and len(ids) > 120
    assert pages == [(100, 100), (100, len(ids) - 100)]
    assert await peer.ask(HISTORY, run.thread, graph="steps", limit=110) == states[:110]
    assert pages[2:] == [(100, 100), (10, 10)]


async def test_checkpoints_name_the_values_that_stand_apart(peer):
    run = await peer.wait("steps", {"log": ["in"]})
    named = set()
    for row in peer.threads.checkpoints[run.thread, ""].values():
        checkpoint = json.loads(row["checkpoint"])
        for channel in checkpoint["channels_apart"]:
            version = checkpoint["channel_versions"][channel]
            assert (run.thread, "", channel, version) in peer.threads.blobs
            named.add(channel)
    assert "log" in named


async def test_updates(peer):
    run = await peer.wait("steps", {"log": ["in"]})
    steps = text([[{"values": {"log": ["mine"]}, "as_node": "one"}]])
    made = await peer.ask(STATE_UPDATE, run.thread, graph="steps", supersteps=steps, metadata=text({"who": "me"}))
    state = await peer.ask(STATE_GET, run.thread, graph="steps")
    assert state["checkpoint_id"] == made["checkpoint_id"] and state["values"]["log"][-1] == "mine"
    assert state["next"] == ["two"] and state["metadata"]["source"] == "update" and state["metadata"]["who"] == "me"
    many = text([[{"values": {"log": ["a"]}, "as_node": "one"}], [{"values": {"log": ["b"]}, "as_node": "two"}]])
    await peer.ask(STATE_UPDATE, run.thread, graph="steps", supersteps=many)
    state = await peer.ask(STATE_GET, run.thread, graph="steps")
    assert state["values"]["log"][-2:] == ["a", "b"] and state["next"] == []
    with pytest.raises(Refused, match="InvalidUpdateError") as refused:
        wrong = text([[{"values": {"log": []}, "as_node": "nobody"}]])
        await peer.ask(STATE_UPDATE, run.thread, graph="steps", supersteps=wrong)
    assert refused.value.error["kind"] == "invalid"


async def test_an_empty_thread_can_be_filled(peer):
    thread = "11111111-0000-0000-0000-000000000000"
    steps = text([[{"values": {"log": ["x"]}, "as_node": "__start__"}]])
    await peer.ask(STATE_UPDATE, thread, graph="steps", supersteps=steps)
    assert (await peer.ask(STATE_GET, thread, graph="steps"))["next"] == ["one"]


async def test_schemas(peer):
    schemas = await peer.ask(SCHEMAS, graph="knowing")
    assert schemas["graph_id"] == "knowing"
    assert set(schemas["input_schema"]["properties"]) == {"log", "x", "seen"}
    assert set(schemas["context_schema"]["properties"]) == {"tone", "size"}
    assert json.loads(peer.graphs["knowing"]["schemas"]) == schemas
    odd = await peer.ask(SCHEMAS, graph="odd")
    for name in ("input_schema", "output_schema", "state_schema"):
        assert {"out", "kept", "hidden", "bare", "strange"} <= set(odd[name]["properties"]), name
    chat = await peer.ask(SCHEMAS, graph="chat")
    assert chat["input_schema"]["properties"]["messages"]["type"] == "array" and chat["context_schema"] is None
    assert chat["state_schema"]["properties"]["messages"]


async def test_drawings(peer):
    drawn = await peer.ask(DRAW, graph="nested", xray=False)
    assert [node["id"] for node in drawn["nodes"]] == ["__start__", "sub", "__end__"]
    assert drawn["edges"][0] == {"source": "__start__", "target": "sub"}
    deep = await peer.ask(DRAW, graph="nested", xray=True)
    assert "sub:inner" in [node["id"] for node in deep["nodes"]]
    assert json.loads(peer.graphs["nested"]["drawing"]) == drawn


async def test_subgraphs(peer):
    found = await peer.ask(SUBGRAPHS, graph="nested", recurse=True)
    assert list(found) == ["sub"] and "graph_id" not in found["sub"] and found["sub"]["input_schema"]
    assert await peer.ask(SUBGRAPHS, graph="nested", namespace="other") == {}
    assert json.loads(peer.graphs["nested"]["subgraphs"]) == found


async def test_what_graphs_say_of_themselves(peer):
    graphs = peer.graphs
    assert "declared" not in graphs and "elsewhere" not in graphs, "those are the server's, or another runtime's"
    assert graphs["named"]["name"] == "two steps" and graphs["steps"]["name"] is None
    assert graphs["odd"]["description"] == "Values of every kind."
    assert graphs["steps"]["nodes"] == ["one", "two"]
    assert graphs["plain_factory"]["factory"] and not graphs["steps"]["factory"]
    assert [id for id, graph in graphs.items() if graph.get("describe_error")] == []


async def test_what_is_not_there(peer):
    with pytest.raises(Refused) as refused:
        await peer.ask(STATE_GET, "t", graph="nowhere")
    assert refused.value.error["kind"] == "not_found"
    with pytest.raises(Refused) as refused:
        await peer.ask(0x90)
    assert refused.value.error["kind"] == "unsupported"


async def test_an_answer_that_is_too_long_is_an_error(fresh):
    peer = await fresh(max_frame_bytes=100_000)
    run = await peer.wait("steps", {"log": ["x" * 40_000]})
    assert run.result["status"] == "success"
    with pytest.raises(Refused, match="more than the server takes"):
        await peer.ask(HISTORY, run.thread, graph="steps")
    assert (await peer.ask(HISTORY, run.thread, graph="steps", limit=1))[0]["next"] == []
    assert (await peer.ping())["streams"] == 0


async def test_a_question_that_is_taken_back_leaves_nothing(fresh):
    peer = await fresh()
    peer.hold = lambda type_, fields: type_ == CP_GET
    asked = peer.open(STATE_GET, "11111111-0000-0000-0000-000000000001", graph="steps", ns="")
    await until(lambda: peer.held)
    assert (await peer.ping())["streams"] == 1
    peer.cancel(asked)
    answer = await asyncio.wait_for(asked.done, 10)
    assert answer["error"]["kind"] == "cancelled"
    assert (await peer.ping())["streams"] == 0
