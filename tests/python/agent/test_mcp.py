"""The official client of the Model Context Protocol, in revisions with and without a handshake."""

import asyncio
import json
import signal
import uuid

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from clients import collect, eventually
from projects import CONFIG
from test_custom_auth import AUTH, user

# How a client begins, and the revision that it comes to.
REVISIONS = {"legacy": "2025-11-25", "auto": "2026-07-28"}


@pytest.fixture(params=REVISIONS)
def mode(request):
    return request.param


def connected(server, mode, url=None):
    return Client(f"{url or server.urls[-1]}/mcp", mode=mode)


def texts(result):
    return [part.text for part in result.content]


async def test_the_newest_revision_of_both_sides_is_agreed_on(server, mode):
    async with connected(server, mode) as client:
        assert client.protocol_version == REVISIONS[mode]
        assert client.server_info.name == "towpath"
        assert client.server_capabilities.tools is not None
        assert client.server_capabilities.resources is None and client.server_capabilities.prompts is None


async def test_assistants_are_tools(server, mode, graph):
    async with connected(server, mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        agent = tools[graph("agent")]
        assert (agent.title, agent.description) == (graph("agent"), "Says back what it is told.")
        assert agent.input_schema["type"] == "object"
        assert agent.input_schema["properties"]["messages"]["type"] == "string"
        assert tools[graph("steps")].input_schema["properties"]["log"]["type"] == "array"
        for name, tool in tools.items():
            assert "HumanMessage" not in json.dumps(tool.input_schema), name


async def test_a_call_brings_the_state(server, mode, graph):
    async with connected(server, mode) as client:
        said = await client.call_tool(graph("agent"), {"messages": "hello there"})
        assert not said.is_error
        human, ai = said.structured_content["messages"]
        assert (human["type"], human["content"]) == ("human", "hello there") and "hello there" in ai["content"]
        assert json.loads(texts(said)[0]) == said.structured_content
        steps = await client.call_tool(graph("steps"), {"log": ["in"]})
        assert steps.structured_content["log"] == ["in", "one", "two"]


async def test_a_failure_is_a_result_and_an_unknown_tool_an_error(server, mode, graph):
    async with connected(server, mode) as client:
        failed = await client.call_tool(graph("broken"), {"log": []})
        assert failed.is_error and texts(failed)[0].startswith("ValueError: ") and "it broke" in texts(failed)[0]
        with pytest.raises(MCPError, match="Unknown tool") as refused:
            await client.call_tool("nothing", {})
        assert refused.value.code == -32602
        asks = await client.call_tool(graph("human"), {"log": []})
        assert asks.structured_content["__interrupt__"][0]["value"] == {"question": "go on?"}


async def test_steps_are_told_on_the_way(server, mode, graph):
    told = []

    async def note(progress, total, message):
        told.append((progress, message))

    async with connected(server, mode) as client:
        done = await client.call_tool(graph("steps"), {"log": []}, progress_callback=note)
        assert done.structured_content["log"] == ["one", "two"]
    assert [message for _, message in told if message] == ["one", "two"]
    assert [progress for progress, _ in told] == sorted({progress for progress, _ in told})


async def test_a_call_that_is_given_up_is_cancelled(server, mode, graph, sdk, http):
    made = await sdk.assistants.create(graph("slow"), name=f"slow-{uuid.uuid4().hex}")

    async def runs():
        asked = {"assistant_id": made["assistant_id"]}
        return (await http.post("/runs/search", json=asked)).json()

    async def at_work():
        return any(run["status"] == "running" for run in await runs())

    async def nothing():
        return not await runs()

    async with connected(server, mode) as client:
        calling = asyncio.create_task(client.call_tool(made["name"], {"log": []}))
        await eventually("the run to be at work", at_work)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        # It was a stateless one, and goes when it is over.
        await eventually("the run to be cancelled", nothing)
        assert (await client.call_tool(graph("steps"), {"log": []})).structured_content["log"] == ["one", "two"]


async def test_a_path_with_a_slash_leads_to_the_one_without(server, mode, graph):
    async with Client(f"{server.url}/mcp/", mode=mode) as client:
        assert graph("steps") in {tool.name for tool in (await client.list_tools()).tools}
    bare = httpx.post(f"{server.url}/mcp/", timeout=60)
    assert (bare.status_code, bare.headers["location"]) == (307, "/mcp")


def of_user(server, name, mode):
    headers = {"authorization": f"Bearer {name}"}
    transport = streamable_http_client(f"{server.url}/mcp", http_client=httpx2.AsyncClient(headers=headers, timeout=60))
    return Client(transport, mode=mode)


async def test_the_authors_auth_decides_who_sees_and_calls_what(serve, project, mode):
    project.write(config=CONFIG | {"auth": {"path": "./auth.py:auth"}}, auth=AUTH)
    server, _ = serve()
    user(server, "ann").assistants.create("agent", name="hers", metadata={"note": "x"})
    async with of_user(server, "ann", mode) as ann:
        assert "hers" in {tool.name for tool in (await ann.list_tools()).tools}
        called = await ann.call_tool("hers", {"steps": []})
        assert called.structured_content["steps"] == ["first", "second"]
    async with of_user(server, "bob", mode) as bob:
        assert "hers" not in {tool.name for tool in (await bob.list_tools()).tools}
        with pytest.raises(MCPError, match="Unknown tool"):
            await bob.call_tool("hers", {"steps": []})
    assert httpx.post(f"{server.url}/mcp", json={}, timeout=60).status_code == 401


def test_the_authors_auth_judges_each_message_of_a_batch(serve, project):
    project.write(config=CONFIG | {"auth": {"path": "./auth.py:auth"}}, auth=AUTH)
    server, _ = serve()
    user(server, "ann").assistants.create("agent", name="hers", metadata={"note": "x"})
    called = {"name": "hers", "arguments": {"steps": []}}
    batch = [
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": called},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]

    def answers(name):
        answer = httpx.post(f"{server.url}/mcp", json=batch, headers={"authorization": f"Bearer {name}"}, timeout=60)
        assert answer.status_code == 200, answer.text
        return {one["id"]: one for one in answer.json()}

    of_ann, of_bob = answers("ann"), answers("bob")
    assert of_ann[1]["result"]["structuredContent"]["steps"] == ["first", "second"]
    assert of_bob[1]["error"]["code"] == -32602
    named = [{tool["name"] for tool in of[2]["result"]["tools"]} for of in (of_ann, of_bob)]
    assert "hers" in named[0] and "hers" not in named[1]
    assert httpx.post(f"{server.url}/mcp", json=batch, timeout=60).status_code == 401


NO_RUNS = """
    from langgraph_sdk import Auth

    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None):
        return {"identity": "ann", "permissions": []}

    @auth.on.threads.create_run
    async def create_run(ctx, value):
        raise Auth.exceptions.HTTPException(status_code=403, detail="not today")
"""


def test_a_refused_call_is_an_error_of_its_own_in_a_batch(serve, project):
    project.write(config=CONFIG | {"auth": {"path": "./auth.py:auth"}}, auth=NO_RUNS)
    server, _ = serve()
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "agent", "arguments": {"steps": []}}}
    alone = httpx.post(f"{server.url}/mcp", json=call, timeout=60)
    assert (alone.status_code, alone.json()["detail"]) == (403, "not today")
    batch = [call, {"jsonrpc": "2.0", "id": 2, "method": "ping"}]
    answer = httpx.post(f"{server.url}/mcp", json=batch, timeout=60)
    assert answer.status_code == 200, answer.text
    answers = {one["id"]: one for one in answer.json()}
    assert answers[1]["error"] == {"code": -32803, "message": "not today", "data": {"status": 403}}
    assert answers[2]["result"] == {}


def tool_call(mode, name, arguments, session):
    """Headers and body of a call that is told of each step."""
    meta = {"progressToken": 1}
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": REVISIONS[mode]}
    if mode == "auto":
        prefix = "io.modelcontextprotocol/"
        meta |= {f"{prefix}protocolVersion": REVISIONS[mode], f"{prefix}clientCapabilities": {}}
        headers |= {"mcp-method": "tools/call", "mcp-name": name}
    else:
        headers["mcp-session-id"] = session
    params = {"name": name, "arguments": arguments, "_meta": meta}
    return headers, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


async def messages_of(response):
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


async def test_a_call_goes_on_after_the_death_of_everything(fleet, receiver, mode):
    name, session = f"mcp-{mode}-{fleet.layout}", str(uuid.uuid4())
    gate = receiver.hold("two", name)
    async with httpx.AsyncClient(base_url=fleet.urls[0], timeout=60) as client:
        headers, body = tool_call(mode, "walk", {"name": name}, session)
        async with client.stream("POST", "/mcp", headers=headers, json=body) as response:
            messages = messages_of(response)
            assert (await anext(messages))["params"]["message"] == "one"
            await asyncio.to_thread(receiver.until_made, "two", name)
            for process in fleet.processes:
                process.child.send_signal(signal.SIGKILL)
            for process in fleet.processes:
                await asyncio.to_thread(process.child.wait)
            with pytest.raises(httpx.TransportError):
                await collect(messages)
        gate.set()
        await asyncio.to_thread(fleet.again, fleet.processes)
        await asyncio.to_thread(receiver.until_made, "three", name)
        # The client begins nothing anew: its session is as good as before.
        headers, body = tool_call(mode, "walk", {"name": f"{name}-again"}, session)
        async with client.stream("POST", "/mcp", headers=headers, json=body) as response:
            *told, answer = await collect(messages_of(response))
    assert [one["params"]["progress"] for one in told] == list(range(1, len(told) + 1))
    assert told[0]["params"]["message"] == "one" and told[-1]["params"]["message"] == "three"
    assert answer["result"]["structuredContent"]["log"][-1] == "three"

    async def nothing_left():
        return not await asyncio.to_thread(fleet.left_behind)

    await eventually("everything to be over", nothing_left)
    assert receiver.steps(name)["three"] == 1
