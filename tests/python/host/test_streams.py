"""Streams: names, shapes, order, and what a slow reader does to a run."""

import asyncio
import json
import re

from peer import until

HI = {"messages": [{"role": "user", "content": "hello"}]}


async def test_modes_come_in_order(peer):
    modes = ["values", "updates", "custom", "tasks", "checkpoints", "debug"]
    run = await peer.wait("steps", {"log": ["in"]}, modes=modes)
    names = [chunk.mode for chunk in run.chunks]
    assert set(names) == set(modes)
    step = names[names.index("updates") - 4 :][:8]
    assert step == ["checkpoints", "debug", "tasks", "debug", "updates", "tasks", "debug", "values"]
    assert run.of("updates") == [{"one": {"log": ["one"], "x": 1}}, {"two": {"log": ["two"]}}]
    assert run.of("custom") == [{"at": "two"}]
    assert [state["log"] for state in run.of("values")] == [["in"], ["in", "one"], ["in", "one", "two"]]
    debug = [event for event in run.of("debug") if event["type"] == "checkpoint"][-1]["payload"]
    assert debug["checkpoint"]["thread_id"] == run.thread and debug["parent_checkpoint"]["checkpoint_id"]


async def test_only_what_was_asked_for(peer):
    run = await peer.wait("steps", {"log": []}, modes=["updates"])
    assert {chunk.mode for chunk in run.chunks} == {"updates"}
    run = await peer.wait("steps", {"log": []}, modes=[])
    assert run.chunks == [] and run.result["status"] == "success"


async def test_tokens(peer):
    run = await peer.wait("chat", HI, modes=["messages-tuple"])
    tuples = run.of("messages")
    assert "".join(message["content"] for message, _ in tuples) == "one two three"
    message, metadata = tuples[0]
    assert message["type"] == "AIMessageChunk" and message["id"] == "ai-1"
    assert metadata["langgraph_node"] == metadata["graph_node"] == "reply"
    assert {"langgraph_step", "langgraph_checkpoint_ns", "checkpoint_ns", "assistant_id"} <= set(metadata), metadata
    assert (metadata["run_id"], metadata["thread_id"], metadata["graph_id"]) == (run.run, run.thread, "chat")


async def test_messages_that_grow(peer):
    run = await peer.wait("chat", HI, modes=["messages"])
    names = [chunk.mode for chunk in run.chunks]
    assert names[0] == "messages/metadata" and names.count("messages/metadata") == 1
    assert run.chunks[0].data["ai-1"]["metadata"]["langgraph_node"] == "reply"
    partial = [data[0]["content"] for data in run.of("messages/partial")]
    assert partial[-1] == "one two three"
    assert all(later.startswith(earlier) for earlier, later in zip(partial, partial[1:]))
    assert {data[0]["type"] for data in run.of("messages/partial")} == {"ai"}


async def test_both_forms_of_messages_at_once(peer):
    run = await peer.wait("chat", HI, modes=["messages", "messages-tuple", "values"])
    assert {"messages", "messages/metadata", "messages/partial", "values"} == {chunk.mode for chunk in run.chunks}
    assert run.of("values")[-1]["messages"][-1]["content"] == "one two three"
    assert run.of("values")[0]["messages"][0]["type"] == "human"


async def test_subgraphs_have_a_namespace(peer):
    run = await peer.wait("nested", {"log": []}, modes=["updates", "values"], subgraphs=True)
    inner = [chunk for chunk in run.chunks if chunk.ns]
    assert inner and all(re.fullmatch("sub:[0-9a-f-]{36}", chunk.ns[0]) and len(chunk.ns) == 1 for chunk in inner)
    run = await peer.wait("nested", {"log": []}, modes=["updates", "values"])
    assert not [chunk for chunk in run.chunks if chunk.ns]


async def test_events(peer):
    run = await peer.wait("chat", HI, modes=["events", "values", "messages-tuple"])
    events = run.of("events")
    names = {event["event"] for event in events}
    assert {"on_chain_start", "on_chain_end", "on_chat_model_stream", "on_chat_model_end"} <= names
    assert all({"name", "run_id", "tags", "metadata", "data", "parent_ids"} <= set(event) for event in events)
    assert not [e for e in events if e["event"] == "on_chain_stream" and e["run_id"] == run.run]
    assert run.of("values")[-1]["messages"][-1]["content"] == "one two three"
    assert run.of("messages") and run.result["status"] == "success"
    assert json.loads(run.result["state"]["values"]) == run.of("values")[-1]
    nested = await peer.wait("nested", {"log": []}, modes=["events", "updates"], subgraphs=True)
    assert [chunk for chunk in nested.chunks if chunk.mode == "updates" and chunk.ns]


async def test_interrupts_in_both_streams(peer):
    run = await peer.wait("human", {"log": []}, modes=["values", "updates"])
    (told,) = [update for update in run.of("updates") if "__interrupt__" in update]
    assert set(told["__interrupt__"][0]) == {"value", "id", "response_schema"}


async def test_a_slow_reader_slows_the_run(fresh):
    peer = await fresh(window_bytes=20_000)
    run = peer.run("flood", {"x": 200}, modes=["custom"], credit=False)
    await until(lambda: run.spent > 20_000)
    quick = await peer.wait("steps", {"log": []})
    assert quick.result["status"] == "success", "others are not held up"
    assert 20_000 < run.spent < 24_000 and not run.done.done()
    run.credit = True
    peer.send(0x12, run.id, {"bytes": run.spent})
    result = await asyncio.wait_for(run.done, 20)
    assert result["status"] == "success"
    assert [data["at"] for data in run.of("custom")] == list(range(200))


async def test_a_run_that_waits_for_credit_can_be_cancelled(fresh):
    peer = await fresh(window_bytes=10_000)
    run = peer.run("flood", {"x": 200}, modes=["custom"], credit=False)
    await until(lambda: run.spent > 10_000)
    peer.cancel(run)
    assert (await asyncio.wait_for(run.done, 10))["status"] == "cancelled"


TYPED = {"config": {"configurable": {"__event_streaming_v2": True}}, "subgraphs": True}
TYPED_MODES = ["values", "updates", "messages-tuple", "custom", "tasks", "checkpoints", "tools"]


async def test_typed_events(peer):
    run = await peer.wait("nested", {"log": []}, modes=TYPED_MODES, **TYPED)
    assert run.result["status"] == "success"
    names = {chunk.mode for chunk in run.chunks}
    assert {"values", "updates", "tasks", "checkpoints"} <= names
    inner = [chunk for chunk in run.chunks if chunk.ns]
    assert {"values", "updates", "tasks"} <= {chunk.mode for chunk in inner}
    started = [chunk.data for chunk in inner if chunk.mode == "tasks" and "result" not in chunk.data]
    assert len(started) == 1 and started[0]["triggers"]
    run = await peer.wait("human", {"log": []}, modes=TYPED_MODES, **TYPED)
    (interrupt,) = run.of("values")[-1]["__interrupt__"]
    assert interrupt["value"] == {"question": "go on?"} and run.result["state"]["next"] == ["ask"]
    run = await peer.wait("steps", {"log": ["in"]}, modes=TYPED_MODES, **TYPED)
    assert run.of("custom") == [{"at": "two"}]


async def test_messages_in_content_blocks(peer):
    run = await peer.wait("chat", HI, modes=TYPED_MODES, **TYPED)
    events = [data for data in run.of("messages") if isinstance(data, dict)]
    assert events[0]["event"] == "message-start" and events[-1]["event"] == "message-finish"
    assert len({event["message_id"] for event in events}) == 1 and {event["__node"] for event in events} == {"reply"}
    deltas = [event["delta"]["text"] for event in events if event["event"] == "content-block-delta"]
    assert len(deltas) > 1 and "".join(deltas) == "one two three"


async def test_an_error_ends_typed_events(peer):
    run = await peer.wait("broken", {"log": []}, modes=TYPED_MODES, **TYPED)
    assert run.result["status"] == "error" and run.result["error"]["message"] == "it broke"
