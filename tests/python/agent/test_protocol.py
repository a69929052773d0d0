"""The thread-centric streaming protocol, through the clients that speak it."""

import asyncio
import json
import uuid

import pytest
from langgraph.pregel.remote import RemoteGraph
from websockets.asyncio.client import connect

# In both languages.
pytestmark = pytest.mark.usefixtures("graph")

HI = {"messages": [{"role": "user", "content": "hello there"}]}
LIMIT_S = 60
CHANNELS = ["values", "updates", "messages", "tools", "lifecycle", "input", "tasks", "checkpoints", "custom"]


def is_over(event):
    """Whether it ends a run, or stops it."""
    params = event["params"]
    return event["method"] == "lifecycle" and not params["namespace"] and params["data"]["event"] != "running"


async def read(http, thread, since=None, channels=CHANNELS, **fields):
    """Reads events without a client up to the end of a run."""
    body = {"channels": channels} | ({} if since is None else {"since": since}) | fields
    events = []
    async with http.stream("POST", f"/threads/{thread}/stream/events", json=body) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
                if is_over(events[-1]):
                    return events
    raise AssertionError(f"the stream ended: {events}")


async def start(http, thread, graph, given, **params):
    params = {"assistant_id": graph, "input": given} | params
    answer = await http.post(f"/threads/{thread}/commands", json={"id": 1, "method": "run.start", "params": params})
    assert answer.json()["type"] == "success", answer.text
    return answer.json()["result"]["run_id"]


@pytest.mark.parametrize("transport", ["sse", "websocket"])
async def test_a_run_through_the_client(sdk, graph, transport):
    async with asyncio.timeout(LIMIT_S), sdk.threads.stream(assistant_id=graph("steps"), transport=transport) as thread:
        started = await thread.run.start(input={"log": ["in"]})
        assert started["run_id"]
        assert (await thread.output)["log"] == ["in", "one", "two"]


@pytest.mark.parametrize("transport", ["sse", "websocket"])
async def test_messages_grow(sdk, graph, transport):
    async with asyncio.timeout(LIMIT_S), sdk.threads.stream(assistant_id=graph("talk"), transport=transport) as thread:

        async def parts_of(message):
            return [part async for part in message.text]

        async def read():
            # A message grows only while the iteration over the messages continues.
            return [asyncio.create_task(parts_of(message)) async for message in thread.messages]

        reading = asyncio.create_task(read())
        await thread.run.start(input=HI)
        (first,) = await reading
        parts = await first
        assert "".join(parts) == "one two three four five six" and len(parts) > 2
        await thread.output


@pytest.mark.parametrize("transport", ["sse", "websocket"])
async def test_an_interrupt_is_answered(sdk, graph, transport):
    async with asyncio.timeout(LIMIT_S), sdk.threads.stream(assistant_id=graph("human"), transport=transport) as thread:
        await thread.run.start(input={"log": []})
        while not thread.interrupts:
            await asyncio.sleep(0.02)
        assert thread.interrupts[0]["value"] == {"question": "go on?"}
        await thread.run.respond("yes")
        output = await thread.output
        assert output["log"] == ["asked", "done"] and output["answer"] == "yes"


async def test_a_failure_reaches_the_client(sdk, graph):
    async with asyncio.timeout(LIMIT_S), sdk.threads.stream(assistant_id=graph("broken")) as thread:
        await thread.run.start(input={"log": []})
        with pytest.raises(RuntimeError, match="it broke"):
            await thread.output


async def test_subgraphs_are_found(sdk, graph):
    async with asyncio.timeout(LIMIT_S), sdk.threads.stream(assistant_id=graph("nested")) as thread:

        async def first():
            async for handle in thread.subgraphs:
                return handle

        finding = asyncio.create_task(first())
        await thread.run.start(input={"log": []})
        handle = await finding
        assert handle.graph_name == "sub" and handle.path[0].startswith("sub:")
        await thread.output


async def test_a_remote_graph(server, graph):
    remote = RemoteGraph(graph("steps"), url=server.url)
    config = {"configurable": {"thread_id": str(uuid.uuid4())}}
    async with asyncio.timeout(LIMIT_S):
        run = await remote.astream_events({"log": ["in"]}, config, version="v3")
        async with run:
            updates = asyncio.create_task(_first(run.extensions["updates"]))
            assert (await run.output())["log"] == ["in", "one", "two"]
            assert await updates == {"one": {"log": ["one"], "x": 1}}


async def _first(projection):
    async for item in projection:
        return item


async def test_who_comes_back_gets_every_event_once(server, http, graph):
    thread = str(uuid.uuid4())
    await start(http, thread, graph("nested"), {"log": []})
    events = await read(http, thread)
    seqs = [event["seq"] for event in events]
    assert seqs == sorted(set(seqs)) and len({event["event_id"] for event in events}) == len(events)
    # Under the other process too, where there is one.
    for url in server.urls:
        for at in (0, len(events) // 2, len(events) - 2):
            path = f"{url}/threads/{thread}"
            assert await read(http, thread, seqs[at]) == events[at + 1 :], (at, path)
    await start(http, thread, graph("nested"), {"log": []})
    later = await read(http, thread, seqs[-1])
    assert later[0]["params"]["data"]["event"] == "running" and later[0]["seq"] > seqs[-1]


async def test_every_channel_shows_what_is_its_own(http, graph):
    thread = str(uuid.uuid4())
    await start(http, thread, graph("steps"), {"log": ["in"]})
    events = await read(http, thread)
    of = {channel: [event["params"] for event in events if event["method"] == channel] for channel in CHANNELS}
    assert [params["data"] for params in of["updates"]] == [{"one": {"log": ["one"], "x": 1}}, {"two": {"log": ["two"]}}]
    assert [params["node"] for params in of["updates"]] == ["one", "two"]
    assert [params["data"] for params in of["custom"]] == [{"payload": {"at": "two"}}]
    assert of["values"][-1]["data"]["log"] == ["in", "one", "two"]
    assert {"id", "step", "source"} <= set(of["checkpoints"][-1]["data"])
    assert [params["data"]["name"] for params in of["tasks"] if "result" in params["data"]] == ["one", "two"]
    root = await read(http, thread, channels=["values", "lifecycle"], namespaces=[[]], depth=0)
    assert {event["method"] for event in root} == {"values", "lifecycle"}


async def test_a_socket_takes_commands(server, graph):
    url = f"ws{server.url.removeprefix('http')}/threads/{uuid.uuid4()}/stream/events"
    async with asyncio.timeout(LIMIT_S), connect(url) as socket:
        answers, events = {}, []

        async def ask(id_, method, **params):
            await socket.send(json.dumps({"id": id_, "method": method, "params": params}))
            while id_ not in answers:
                said = json.loads(await socket.recv())
                if said["type"] == "event":
                    events.append(said)
                else:
                    answers[said["id"]] = said
            return answers[id_]

        assert (await ask(1, "state.fork"))["error"] == "unknown_command"
        assert (await ask(2, "subscription.subscribe", channels=["debug"]))["error"] == "invalid_argument"
        lifecycle = await ask(3, "subscription.subscribe", channels=["lifecycle"])
        assert lifecycle["result"]["replayed_events"] == 0
        assert (await ask(4, "run.start", assistant_id=graph("steps"), input={"log": []}))["type"] == "success"
        while not (events and is_over(events[-1])):
            events.append(json.loads(await socket.recv()))
        assert [event["params"]["data"]["event"] for event in events] == ["running", "completed"]
        # What a subscription missed comes before its answer.
        events.clear()
        values = await ask(5, "subscription.subscribe", channels=["values"])
        assert values["result"]["replayed_events"] == len(events) == 3
        assert values["meta"]["applied_through_seq"] >= events[-1]["seq"]
        gone = values["result"]["subscription_id"]
        assert (await ask(6, "subscription.unsubscribe", subscription_id=gone))["type"] == "success"
        assert (await ask(7, "subscription.unsubscribe", subscription_id=gone))["error"] == "no_such_subscription"
        tree = await ask(8, "agent.getTree")
        assert tree["result"]["tree"]["status"] == "completed"
        state = await ask(9, "state.get", namespace=[], keys=["log"])
        assert state["result"]["values"] == {"log": ["one", "two"]}
        await socket.send("no JSON")
        assert json.loads(await socket.recv())["error"] == "invalid_argument"
