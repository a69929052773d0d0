"""What a project brings beside graphs: a store and its embedder, auth, encryption, an application."""

import asyncio
import json

import pytest
from peer import AUTHENTICATE, AUTHORIZE, DECRYPT, EMBED, ENCRYPT, STATE_GET, Refused, text
from test_process import GRAPH, config


async def test_items(peer):
    run = await peer.wait("storing", {})
    assert run.result["status"] == "success", run.result
    seen = json.loads(run.result["state"]["values"])["seen"]
    assert seen["item"] == {"likes": "bread", "n": 1} and seen["none"] is None
    assert seen["found"] == [[["users", "bob"], "rice"]]
    assert seen["near"] == [["bread", 1.0]]
    assert sorted(map(tuple, seen["namespaces"])) == [("users", "ann"), ("users", "bob")]
    assert peer.items.rows[("users", "bob"), "food"]["ttl"] == 5
    assert peer.items.rows[("users", "ann"), "food"]["index"] is None, "as the config file says"
    assert peer.items.rows[("users", "bob"), "food"]["index"] == [], "nothing"
    assert await peer.ask(EMBED, texts=["rice"]) == [[0.0, 1.0]]


EMBEDDERS = """
def sync(texts):
    return [[float(len(text)), 0] for text in texts]

async def later(texts):
    return sync(texts)
"""


@pytest.mark.parametrize("name", ["sync", "later"])
async def test_functions_embed(fresh, project, name):
    folder = project(g_py=GRAPH, e_py=EMBEDDERS)
    peer = await fresh(config(store={"index": {"dims": 2, "embed": f"./e.py:{name}"}}), folder)
    assert await peer.ask(EMBED, texts=["a", "abc"]) == [[1.0, 0.0], [3.0, 0.0]]


async def test_an_endpoint_needs_no_package_here(fresh, project):
    peer = await fresh(config(store={"index": {"dims": 2, "embed": "openai:any"}}), project(g_py=GRAPH))
    with pytest.raises(Refused):
        await peer.ask(EMBED, texts=["a"])


AUTH = """
from langgraph_sdk import Auth

auth = Auth()

@auth.authenticate
async def authenticate(request, headers, path, query_params, authorization):
    if authorization != "Bearer good":
        raise Auth.exceptions.HTTPException(status_code=401, detail="who are you?")
    assert headers[b"x-mine"] == b"1" and request.headers["X-Mine"] == "1"
    return {"identity": "ann", "permissions": ["read"], "org": "acme", "path": path, "q": query_params.get("q")}

@auth.on
async def deny(ctx, value):
    return False

@auth.on.threads
async def threads(ctx, value):
    return {"owner": ctx.user.identity}

@auth.on.threads.create
async def create(ctx, value):
    value.setdefault("metadata", {})["owner"] = ctx.user["org"]

@auth.on.store
async def store(ctx, value):
    assert value["namespace"][0] == ctx.user.identity, "not yours"

@auth.on.assistants.delete
async def delete(ctx, value):
    raise Auth.exceptions.HTTPException(status_code=409, detail="in use")
"""


async def test_auth(fresh, project):
    peer = await fresh(config(auth={"path": "./auth.py:auth"}), project(g_py=GRAPH, auth_py=AUTH))
    assert peer.ready["auth"] == {
        "authenticate": True,
        "handlers": ["*.*", "assistants.delete", "store.*", "threads.*", "threads.create"],
    }
    head = {"method": "GET", "path": "/threads", "query": "q=a%20b", "headers": [["X-Mine", "1"]]}
    good = head | {"headers": [["X-Mine", "1"], ["Authorization", "Bearer good"]]}
    user = await peer.ask(AUTHENTICATE, **good)
    assert user == {
        "identity": "ann", "permissions": ["read"], "org": "acme", "path": "/threads", "q": "a b",
        "is_authenticated": True, "display_name": "ann",
    }  # fmt: skip
    with pytest.raises(Refused) as refused:
        await peer.ask(AUTHENTICATE, **head)
    error = refused.value.error
    assert (error["kind"], error["status"], error["message"]) == ("denied", 401, "who are you?")

    async def on(resource, action, value):
        return await peer.ask(AUTHORIZE, resource=resource, action=action, value=text(value), user=text(user))

    made = await on("threads", "create", {"thread_id": "t"})
    assert made["allowed"] and made["filter"] is None
    assert json.loads(made["value"]) == {"thread_id": "t", "metadata": {"owner": "acme"}}
    read = await on("threads", "read", {})
    assert json.loads(read["filter"]) == {"owner": "ann"}
    assert (await on("crons", "create", {}))["allowed"] is False
    assert (await on("store", "get", {"namespace": ["ann"], "key": "k"}))["allowed"]
    with pytest.raises(Refused) as refused:
        await on("store", "get", {"namespace": ["bob"], "key": "k"})
    assert (refused.value.error["status"], refused.value.error["message"]) == (403, "not yours")
    with pytest.raises(Refused) as refused:
        await on("assistants", "delete", {})
    assert refused.value.error["status"] == 409


ENCRYPTION = """
from langgraph_sdk import Encryption

encryption = Encryption()

@encryption.encrypt.blob
async def encrypt_blob(ctx, blob):
    return bytes(byte ^ 0x55 for byte in blob)

@encryption.decrypt.blob
async def decrypt_blob(ctx, blob):
    return bytes(byte ^ 0x55 for byte in blob)

@encryption.encrypt.json
async def encrypt_json(ctx, data):
    return {key: f"enc:{value}" for key, value in data.items()} | ({"more": 1} if ctx.metadata.get("bad") else {})

@encryption.decrypt.json
async def decrypt_json(ctx, data):
    return {key: value[4:] for key, value in data.items()}
"""
SECRETIVE = """
import operator
from typing import Annotated, TypedDict
from langgraph.graph import START, StateGraph
class State(TypedDict):
    log: Annotated[list, operator.add]
graph = StateGraph(State)
graph.add_node("node", lambda state: {"log": ["a secret"]})
graph.add_edge(START, "node")
"""


async def test_encryption(fresh, project):
    folder = project(g_py=SECRETIVE, e_py=ENCRYPTION)
    peer = await fresh(config(encryption={"path": "./e.py:encryption"}), folder)
    assert peer.ready["encryption"] == {"json": True, "blob": True}
    first = await peer.wait("g", {"log": []})
    second = await peer.wait("g", {"log": []}, thread=first.thread)
    assert json.loads(second.result["state"]["values"])["log"] == ["a secret", "a secret"]
    assert (await peer.ask(STATE_GET, first.thread, graph="g"))["values"]["log"] == ["a secret", "a secret"]
    blobs = list(peer.threads.blobs.values()) + [
        tuple(row[1:]) for rows in peer.threads.writes.values() for row in rows.values()
    ]
    assert blobs and all(type_.endswith("+custom") and b"secret" not in data for type_, data in blobs)
    sealed = await peer.ask(ENCRYPT, what="json", model="thread", field="metadata", data=text({"a": "b"}))
    assert sealed == {"a": "enc:b"}
    assert await peer.ask(DECRYPT, what="json", data=text(sealed)) == {"a": "b"}
    with pytest.raises(Refused, match="keep the keys"):
        await peer.ask(ENCRYPT, what="json", data=text({"a": "b"}), metadata=text({"bad": True}))


APP = """
import asyncio

started = []

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        assert (await receive())["type"] == "lifespan.startup"
        started.append(True)
        scope["state"]["mine"] = "state"
        await send({"type": "lifespan.startup.complete"})
        assert (await receive())["type"] == "lifespan.shutdown"
        print("shut down")
        await send({"type": "lifespan.shutdown.complete"})
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    if scope["path"] == "/broken":
        raise RuntimeError("no")
    headers = dict(scope["headers"])
    await send({"type": "http.response.start", "status": 201, "headers": [(b"x-path", scope["path"].encode())]})
    await send({"type": "http.response.body", "body": scope["query_string"] + b"|" + body + b"|", "more_body": True})
    await send({"type": "http.response.body", "body": scope["state"]["mine"].encode() + str(started).encode()})
"""


async def test_an_application(fresh, project, folder):
    socket = str(folder / "http")
    app = config(http={"app": "./app.py:app"})
    peer = await fresh(app, project(g_py=GRAPH, app_py=APP), http_socket=socket)
    assert peer.ready["http"] is True
    import httpx

    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=socket), base_url="http://app") as client:
        answer = await client.post("/a%20b?q=1", content=b"x" * 100_000)
        assert answer.status_code == 201 and answer.headers["x-path"] == "/a b"
        assert answer.content == b"q=1|" + b"x" * 100_000 + b"|state[True]"
        assert (await client.get("/again")).content == b"||state[True]"
        assert (await client.get("/broken")).status_code == 500
        many = await asyncio.gather(*(client.get(f"/{n}") for n in range(20)))
        assert [one.headers["x-path"] for one in many] == [f"/{n}" for n in range(20)]
    run = await peer.wait("g", {"messages": []})
    assert run.result["status"] == "success"
    assert await peer.stop() == 0
    assert [one for one in peer.logs if one["message"] == "shut down"]


SOCKETS = """
async def app(scope, receive, send):
    assert scope["type"] == "websocket"
    assert await receive() == {"type": "websocket.connect"}
    if scope["path"] == "/refused":
        await send({"type": "websocket.close"})
        return
    if scope["path"] == "/undecided":
        return
    first = (scope["subprotocols"] or [None])[0]
    headers = [(b"x-path", scope["path"].encode()), (b"x-query", scope["query_string"])]
    await send({"type": "websocket.accept", "subprotocol": first, "headers": headers})
    if scope["path"] == "/broken":
        raise RuntimeError("no")
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            print("disconnected", message["code"])
            return
        if message["text"] == "bye":
            await send({"type": "websocket.close", "code": 4001, "reason": "as told"})
            return
        twice = {key: message[key] * 2 for key in ("text", "bytes") if message[key] is not None}
        await send({"type": "websocket.send", **twice})
"""

# The machine may stall longer than the client waits by default.
PATIENT = {"open_timeout": 120, "ping_interval": None, "close_timeout": 60}


async def test_websockets_of_an_application(fresh, project, folder):
    from websockets.asyncio.client import unix_connect
    from websockets.exceptions import ConnectionClosed, InvalidStatus

    socket = str(folder / "http")
    app = "http"
    peer = await fresh(config(http={"app": "./app.py:app"}), project(g_py=GRAPH, app_py=SOCKETS), http_socket=socket)
    async with unix_connect(socket, f"ws://{app}/a%20b?q=1", subprotocols=["one", "two"], **PATIENT) as client:
        assert client.subprotocol == "one"
        assert (client.response.headers["x-path"], client.response.headers["x-query"]) == ("/a b", "q=1")
        # Texts, bytes, parts, and more than one read holds.
        for sent in ("ä", b"\xff", "x" * 300_000):
            await client.send(sent)
            assert await client.recv() == sent * 2
        await client.send(["a", "b", "c"])
        assert await client.recv() == "abcabc"
        await (await client.ping())
    async with unix_connect(socket, f"ws://{app}/", **PATIENT) as client:
        await client.send("bye")
        with pytest.raises(ConnectionClosed) as closed:
            await client.recv()
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4001, "as told")
    async with unix_connect(socket, f"ws://{app}/broken", **PATIENT) as client:
        with pytest.raises(ConnectionClosed) as closed:
            await client.recv()
        assert closed.value.rcvd.code == 1011
    for path, status in (("refused", 403), ("undecided", 500)):
        with pytest.raises(InvalidStatus) as refused:
            await unix_connect(socket, f"ws://{app}/{path}", **PATIENT)
        assert refused.value.response.status_code == status
    run = await peer.wait("g", {"messages": []})
    assert run.result["status"] == "success"
    assert await peer.stop() == 0
    assert [one for one in peer.logs if one["message"] == "disconnected 1000"]


TICKER = """
import asyncio

async def app(scope, receive, send):
    await receive()
    await send({"type": "websocket.accept"})
    try:
        while True:
            await send({"type": "websocket.send", "text": "tick"})
            await asyncio.sleep(0.01)
    finally:
        print("the ticker ended", flush=True)
"""


async def test_an_application_that_only_sends_ends_with_its_client(fresh, project, folder):
    from websockets.asyncio.client import unix_connect

    socket = str(folder / "http")
    peer = await fresh(
        config(http={"app": "./app.py:app"}), project(g_py=GRAPH, app_py=TICKER), http_socket=socket
    )
    async with unix_connect(socket, "ws://http/", **PATIENT) as client:
        assert await client.recv() == "tick"
    async with asyncio.timeout(60):
        while not any("the ticker ended" in one["message"] for one in peer.logs):
            await asyncio.sleep(0.01)
    assert await peer.stop() == 0
