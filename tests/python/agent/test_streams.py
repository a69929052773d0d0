"""Streams: what the client makes of them, and what is on the wire."""

import asyncio
import json
import re
import secrets
import time
from urllib.parse import urlsplit

import pytest

from clients import collect, eventually

# In both languages.
pytestmark = pytest.mark.usefixtures("graph")

HI = {"messages": [{"role": "user", "content": "hello there"}]}


async def test_modes_come_under_their_own_names_in_order(client, graph):
    modes = ["values", "updates", "custom", "tasks", "checkpoints", "debug"]
    parts = await collect(client.runs.stream(None, graph("steps"), input={"log": ["in"]}, stream_mode=modes))
    assert parts[0].event == "metadata" and set(parts[0].data) == {"run_id", "attempt"}
    names = [part.event for part in parts[1:]]
    assert set(names) == set(modes)
    step = names[names.index("updates") - 4 :][:8]
    assert step == ["checkpoints", "debug", "tasks", "debug", "updates", "tasks", "debug", "values"], names
    updates = [part.data for part in parts if part.event == "updates"]
    assert updates == [{"one": {"log": ["one"], "x": 1}}, {"two": {"log": ["two"]}}]
    assert [part.data for part in parts if part.event == "custom"] == [{"at": "two"}]
    values = [part.data["log"] for part in parts if part.event == "values"]
    assert values == [["in"], ["in", "one"], ["in", "one", "two"]]


async def test_messages_in_both_forms(client, graph):
    parts = await collect(client.runs.stream(None, graph("agent"), input=HI, stream_mode="messages-tuple"))
    tuples = [part.data for part in parts if part.event == "messages"]
    assert len(tuples) > 1 and all(message["type"] == "AIMessageChunk" for message, _ in tuples)
    metadata = tuples[0][1]
    assert metadata["langgraph_node"] == metadata["graph_node"]
    assert {"langgraph_step", "run_id", "thread_id", "graph_id", "assistant_id", "checkpoint_ns"} <= set(metadata)
    text = "".join(message["content"] for message, _ in tuples)

    parts = await collect(client.runs.stream(None, graph("agent"), input=HI, stream_mode="messages"))
    names = [part.event for part in parts]
    assert names[1] in ("messages/metadata", "messages/complete")
    partial = [part.data[0]["content"] for part in parts if part.event == "messages/partial"]
    assert partial[-1] == text and all(later.startswith(earlier) for earlier, later in zip(partial, partial[1:]))


async def test_both_forms_of_messages_at_once(client, graph):
    """Each as if it were alone: no one has to know what else was asked for."""
    both = await collect(client.runs.stream(None, graph("agent"), input=HI, stream_mode=["messages-tuple", "messages"]))
    alone = {
        mode: await collect(client.runs.stream(None, graph("agent"), input=HI, stream_mode=mode))
        for mode in ("messages-tuple", "messages")
    }

    def shown(parts):
        """Event and text; ids and metadata are of each run."""
        texts = []
        for part in parts:
            if part.event in ("messages", "messages/partial", "messages/complete"):
                texts.append((part.event, part.data[0]["content"]))
            elif part.event != "metadata":
                texts.append((part.event, len(part.data)))
        return texts

    for mode, parts in alone.items():
        names = {part.event for part in parts}
        assert shown(part for part in both if part.event in names) == shown(parts), mode
    assert len(shown(both)) == sum(len(shown(parts)) for parts in alone.values())


async def test_subgraphs_have_a_namespace(client, graph):
    parts = await collect(
        client.runs.stream(None, graph("nested"), input={"log": []}, stream_mode=["updates", "values"], stream_subgraphs=True)
    )
    inner = [part.event for part in parts if "|" in part.event]
    assert inner and all(re.fullmatch(r"(updates|values)\|sub:[0-9a-f-]{36}", name) for name in inner), inner
    without = await collect(client.runs.stream(None, graph("nested"), input={"log": []}, stream_mode="updates"))
    assert not [part for part in without if "|" in part.event]


async def test_a_reader_comes_back_where_it_was(client, sdk, graph):
    thread = (await sdk.threads.create())["thread_id"]
    run = await sdk.runs.create(
        thread, graph("talk"), input={"messages": []}, stream_mode=["messages-tuple", "values"], stream_resumable=True
    )
    everything = {"stream_mode": ["messages-tuple", "values"]}
    live = await collect(client.runs.join_stream(thread, run["run_id"], last_event_id="-1", **everything))
    ids = [part.id for part in live]
    assert len(ids) > 6 and all(ids)
    order = [tuple(map(int, one.split("-"))) for one in ids]
    assert order == sorted(set(order)), "ids rise and are never used twice"
    for at in (0, 3, len(ids) - 1):
        rest = await collect(client.runs.join_stream(thread, run["run_id"], last_event_id=ids[at], **everything))
        assert rest == live[at + 1 :]
    values = await collect(client.runs.join_stream(thread, run["run_id"], last_event_id="-1", stream_mode="values"))
    assert values and {part.event for part in values} <= {"values", "metadata"}


async def test_a_disconnect_cancels_where_that_was_asked(http, sdk, graph):
    thread = (await sdk.threads.create())["thread_id"]
    body = {"assistant_id": graph("slow"), "input": {"log": []}, "on_disconnect": "cancel", "stream_mode": "values"}
    async with http.stream("POST", f"/threads/{thread}/runs/stream", json=body) as answer:
        run = answer.headers["content-location"].rsplit("/", 1)[1]
        async for line in answer.aiter_lines():
            if "first" in line:
                break

    async def interrupted():
        return (await sdk.runs.get(thread, run))["status"] == "interrupted"

    await eventually("the run to be interrupted", interrupted)


async def test_who_leaves_before_the_first_answer_cancels_too(server, http, graph):
    """The request is taken, and its sender is gone at whatever moment: nothing continues that no one hears."""
    address = urlsplit(server.url)
    body = json.dumps({"assistant_id": graph("slow"), "input": {"log": []}, "on_disconnect": "cancel"}).encode()
    head = f"POST {{}} HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"

    async def leave(path, moment):
        _, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(head.format(path).encode() + body)
        await writer.drain()
        await asyncio.sleep(moment)
        writer.transport.abort()

    async def open_runs():
        found = []
        for state in ("ready", "running"):
            answer = await http.get("/internal/jobs", params={"kind": "run_agent", "state": state})
            found += [job["id"] for job in answer.json()["items"]]
        return set(found)

    before, begun = await open_runs(), 0
    for tenths in range(1000):
        if tenths >= 60 and begun:
            break
        await leave(("/runs/wait", "/runs/stream")[tenths % 2], tenths / 10_000)
        begun += len(await open_runs() - before)
    assert begun > 0, "nobody stayed long enough for a run to begin"

    async def none_is_left():
        return await open_runs() <= before

    await eventually("every run without a reader to end", none_is_left, limit_s=50)


async def test_a_run_belongs_to_the_trace_of_its_request(server, http, graph):
    for more in ({}, {"on_disconnect": "cancel"}):
        trace = secrets.token_hex(16)
        body = {"assistant_id": graph("broken"), "input": {"log": []}} | more
        await http.post("/runs/wait", json=body, headers={"traceparent": f"00-{trace}-{'1' * 16}-01"})

        async def told():
            return f'"trace_id":"{trace}"' in server.logs()

        await eventually("the trace to be in the log", told)


async def test_frames_and_headers(http, sdk, graph):
    thread = (await sdk.threads.create())["thread_id"]
    body = {"assistant_id": graph("steps"), "input": {"log": []}, "stream_mode": ["values"]}
    answer = await http.post(f"/threads/{thread}/runs/stream", json=body)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store" and answer.headers["x-accel-buffering"] == "no"
    place = answer.headers["content-location"]
    assert re.fullmatch(rf"/threads/{thread}/runs/[0-9a-f-]{{36}}", place)
    assert answer.headers["location"] == f"{place}/stream"
    assert answer.content.startswith(b"event: metadata\r\ndata: {") and answer.content.endswith(b"\r\n\r\n")
    assert b"\n" not in answer.content.replace(b"\r\n", b"")
    assert b"\r\nid: " not in answer.content, "ids only where a reader may come back"
    assert b"event: end" not in answer.content
    kept = await http.post(f"/threads/{thread}/runs/stream", json=body | {"stream_resumable": True})
    frames = [frame for frame in kept.text.split("\r\n\r\n") if frame.startswith("event: values")]
    for frame in frames:
        event, data, id = frame.split("\r\n")
        assert (event[:7], data[:6], id[:4]) == ("event: ", "data: ", "id: ")
        json.loads(data[6:])
        assert re.fullmatch(r"id: \d{13}-\d+", id)
    stateless = await http.post("/runs/stream", json=body)
    assert re.fullmatch(r"/runs/[0-9a-f-]{36}", stateless.headers["content-location"])
    assert stateless.headers["location"] == stateless.headers["content-location"] + "/stream"


async def test_headers_of_other_ways_to_start(http, sdk, graph):
    thread = (await sdk.threads.create())["thread_id"]
    body = {"assistant_id": graph("steps"), "input": {"log": []}}
    made = await http.post(f"/threads/{thread}/runs", json=body)
    run = made.json()["run_id"]
    assert made.headers["content-location"] == f"/threads/{thread}/runs/{run}"
    waited = await http.post(f"/threads/{thread}/runs/wait", json=body)
    assert waited.headers["location"] == waited.headers["content-location"] + "/join"
    assert waited.json()["log"][-2:] == ["one", "two"]
    joined = await http.get(f"/threads/{thread}/runs/{run}/join")
    assert joined.headers["content-location"] == f"/threads/{thread}/runs/{run}"
    stateless = await http.post("/runs", json=body)
    assert stateless.headers["content-location"] == f"/runs/{stateless.json()['run_id']}"
    hidden = await http.post("/runs/wait", json=body)
    assert re.fullmatch(r"/threads/[0-9a-f-]{36}/runs/[0-9a-f-]{36}/join", hidden.headers["location"])


async def test_heartbeats(http, sdk, graph):
    """A stream that has nothing to say, and an answer that is not there yet, show every 5 seconds that they live."""
    streaming, waiting = [(await sdk.threads.create())["thread_id"] for _ in range(2)]
    body = {"assistant_id": graph("slow"), "input": {"log": []}}

    async def heartbeat():
        begun = time.monotonic()
        async with http.stream("POST", f"/threads/{streaming}/runs/stream", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith(":"):
                    assert line == ": heartbeat"
                    return time.monotonic() - begun

    async def newline():
        begun = time.monotonic()
        async with http.stream("POST", f"/threads/{waiting}/runs/wait", json=body) as answer:
            async for part in answer.aiter_raw():
                assert part == b"\n"
                return time.monotonic() - begun

    for took in await asyncio.gather(heartbeat(), newline()):
        assert 4 < took < 10, took
    for thread in (streaming, waiting):
        for run in await sdk.runs.list(thread):
            await sdk.runs.cancel(thread, run["run_id"], wait=True)


async def test_the_stream_of_a_thread_goes_over_its_runs(sdk, graph):
    thread = (await sdk.threads.create())["thread_id"]
    parts = []

    async def read():
        async for part in await sdk.threads.join_stream(thread, last_event_id="-"):
            parts.append(part)
            if sum(part.event == "metadata" and part.data.get("status") == "run_done" for part in parts) == 2:
                return

    listening, hooks = asyncio.Event(), sdk.http.client.event_hooks

    async def answered(response):
        if response.url.path.endswith("/stream"):
            listening.set()

    sdk.http.client.event_hooks = hooks | {"response": [*hooks["response"], answered]}
    reading = asyncio.create_task(read())
    # A run that is over before a caller listens is in no stream of its thread.
    await asyncio.wait_for(listening.wait(), 180)
    sdk.http.client.event_hooks = hooks
    for _ in range(2):
        await sdk.runs.wait(thread, graph("steps"), input={"log": []})
    try:
        await asyncio.wait_for(reading, 180)
    except TimeoutError:
        raise AssertionError(f"the stream said nothing more; so far {parts}") from None
    assert any(part.event == "values" for part in parts)
