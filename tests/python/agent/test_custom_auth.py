"""The auth of the graphs' author, before every route of the server: what is judged is what the route reads."""

import http.client
import itertools
import json
import urllib.parse
import uuid

import pytest
from langgraph_sdk import get_sync_client

from projects import CONFIG

CANARY = "canary-of-ann"
# Asked without credentials, too.
OPEN = {"/", "/ok", "/info", "/metrics", "/livez", "/readyz"}

AUTH = """
    from langgraph_sdk import Auth

    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None):
        if not authorization:
            raise Auth.exceptions.HTTPException(status_code=401, detail="say who you are")
        return {"identity": authorization.removeprefix("Bearer "), "permissions": []}

    async def owned(ctx, value):
        owner = {"owner": ctx.user.identity}
        if ctx.action in ("create", "create_run"):
            value.setdefault("metadata", {}).update(owner)
        return owner

    @auth.on.threads
    async def threads(ctx, value):
        return await owned(ctx, value)

    @auth.on.assistants
    async def assistants(ctx, value):
        return await owned(ctx, value)

    @auth.on.crons
    async def crons(ctx, value):
        return await owned(ctx, value)

    @auth.on.store
    async def store(ctx, value):
        value["namespace"] = [ctx.user.identity, *(value.get("namespace") or [])]
"""

APP = """
    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": message["type"] + ".complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})
"""


class Rows:
    """A row of each kind, of one user."""

    def __init__(self, client):
        self.client = client
        self.thread_id = client.threads.create(metadata={"note": CANARY})["thread_id"]
        client.runs.wait(self.thread_id, "agent", input={"steps": [CANARY]})
        self.run_id = client.runs.list(self.thread_id)[0]["run_id"]
        self.checkpoint_id = client.threads.get_state(self.thread_id)["checkpoint"]["checkpoint_id"]
        assistant = client.assistants.create("agent", name=CANARY, metadata={"note": CANARY})
        self.assistant_id = assistant["assistant_id"]
        cron = client.crons.create("agent", schedule="0 0 1 1 *", input={"steps": [CANARY]}, metadata={"note": CANARY})
        self.cron_id = cron["cron_id"]
        self.key = str(uuid.uuid4())
        client.store.put_item(["notes"], self.key, {"v": CANARY})

    # Part of a graph, and no row.
    namespace = "first"

    @property
    def agent_id(self):
        return self.assistant_id

    def seen(self):
        """Everything of them that others might have changed."""
        client = self.client
        return {
            "thread": client.threads.get(self.thread_id),
            "history": client.threads.get_history(self.thread_id, limit=100),
            "runs": client.runs.list(self.thread_id),
            "assistant": client.assistants.get(self.assistant_id),
            "cron": [found for found in client.crons.search(limit=1000) if found["cron_id"] == self.cron_id],
            "item": client.store.get_item(["notes"], self.key),
        }


RUN = {"assistant_id": "agent", "input": {}}
CRON = {"assistant_id": "agent", "schedule": "0 0 1 1 *"}


def read_task(r):
    return {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": f"{r.thread_id}:{r.run_id}"}}


# What reaches for a caller's rows; `{}` where nothing is here.
BODIES = {
    "POST /assistants": lambda r: {"graph_id": "agent", "assistant_id": r.assistant_id, "if_exists": "do_nothing"},
    "PATCH /assistants/{assistant_id}": lambda r: {"name": "taken"},
    "POST /assistants/{assistant_id}/latest": lambda r: {"version": 1},
    "POST /threads": lambda r: {"thread_id": r.thread_id, "if_exists": "do_nothing"},
    "PATCH /threads/{thread_id}": lambda r: {"metadata": {"note": "taken"}},
    "POST /threads/prune": lambda r: {"thread_ids": [r.thread_id]},
    "POST /threads/search": lambda r: {"ids": [r.thread_id]},
    "POST /threads/count": lambda r: {"ids": [r.thread_id]},
    "POST /threads/{thread_id}/state": lambda r: {"values": {"steps": ["taken"]}, "as_node": "second"},
    "POST /threads/{thread_id}/state/checkpoint": lambda r: {"checkpoint": {"checkpoint_id": r.checkpoint_id}},
    "POST /threads/{thread_id}/stream": lambda r: {"channels": ["values"]},
    "POST /threads/{thread_id}/stream/events": lambda r: {"channels": ["values"]},
    "POST /threads/{thread_id}/commands": lambda r: {"id": 1, "method": "run.start", "params": RUN},
    "POST /threads/{thread_id}/runs": lambda r: RUN,
    "POST /threads/{thread_id}/runs/stream": lambda r: RUN,
    "POST /threads/{thread_id}/runs/wait": lambda r: RUN,
    "POST /threads/{thread_id}/runs/crons": lambda r: CRON,
    "POST /runs": lambda r: RUN,
    "POST /runs/stream": lambda r: RUN,
    "POST /runs/wait": lambda r: RUN,
    "POST /runs/batch": lambda r: [RUN],
    "POST /runs/cancel": lambda r: {"thread_id": r.thread_id, "run_ids": [r.run_id]},
    "POST /runs/search": lambda r: {"thread_id": r.thread_id},
    "POST /runs/crons": lambda r: CRON,
    "PATCH /runs/crons/{cron_id}": lambda r: {"enabled": False},
    "POST /a2a/{assistant_id}": read_task,
    "POST /a2a/{assistant_id}/": read_task,
    "POST /mcp": lambda r: {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
    "PUT /store/items": lambda r: {"namespace": ["notes"], "key": r.key, "value": {"v": "taken"}},
    "DELETE /store/items": lambda r: {"namespace": ["notes"], "key": r.key},
    "POST /store/items/search": lambda r: {"namespace_prefix": []},
}
# There is nothing to cancel about a run that is over, and no session of MCP to end.
OVER = {
    *("POST /runs/cancel", "POST /runs/{run_id}/cancel", "POST /threads/{thread_id}/runs/{run_id}/cancel"),
    "DELETE /mcp",
}
ENDLESS = {
    *("GET /threads/{thread_id}/stream", "POST /threads/{thread_id}/stream"),
    "POST /threads/{thread_id}/stream/events",
}
# A plain request is no WebSocket.
SOCKET = "GET /threads/{thread_id}/stream/events"


def text(body, more=""):
    """JSON with another member, as it is given, in front of the others."""
    if isinstance(body, list):
        return "[" + ", ".join(text(one, more) for one in body) + "]"
    plain = json.dumps(body)
    return plain if not more else "{" + more + (", " if body else "") + plain[1:]


def twice(body):
    """Every member twice: first harmless, then as it is meant."""
    if isinstance(body, list):
        return "[" + ", ".join(map(twice, body)) + "]"
    members = [f"{json.dumps(name)}: {value}" for name, meant in body.items() for value in ("null", json.dumps(meant))]
    return "{" + ", ".join(members or ['"x": 1', '"x": 2']) + "}"


JSON = "application/json"
# By name: the body of what is meant, its content type, and whether the path is written with an escape.
VARIANTS = {
    "plain": (text, JSON, False),
    "encoded id": (text, JSON, True),
    "blank body": (lambda body: " ", JSON, False),
    "blank body, encoded id": (lambda body: " \n", JSON, True),
    "odd number": (lambda body: text(body, '"x": 1e999'), JSON, False),
    "lone surrogate": (lambda body: text(body, r'"x": "\ud800"'), JSON, False),
    "duplicate key": (twice, JSON, False),
    "broken": (lambda body: text(body)[:-1], JSON, False),
    "text/plain": (text, "text/plain", False),
    "a form": (text, "application/x-www-form-urlencoded", False),
}


def escaped(word):
    """The same word with its first character escaped."""
    return f"%{ord(word[0]):02X}{word[1:]}"


class Answer:
    def __init__(self, status, text):
        self.status, self.text = status, text


class Caller:
    """Sends what no client would: nothing of the path or the body is mended on the way."""

    def __init__(self, server, name):
        self.host, self.name = server.url.removeprefix("http://"), name

    def send(self, method, target, body=None, content_type=JSON, endless=False):
        connection = http.client.HTTPConnection(self.host, timeout=60)
        headers = {"content-type": content_type} | ({"authorization": f"Bearer {self.name}"} if self.name else {})
        try:
            connection.request(method, target, body, headers)
            answer = connection.getresponse()
            # What does not end is not read to its end.
            read = endless and answer.status == 200
            return Answer(answer.status, "" if read else answer.read().decode(errors="replace"))
        finally:
            connection.close()

    def read_until(self, method, target, body, word):
        """What a stream answers up to the line that holds a word."""
        connection = http.client.HTTPConnection(self.host, timeout=60)
        try:
            connection.request(method, target, body, {"content-type": JSON, "authorization": f"Bearer {self.name}"})
            lines = []
            for line in connection.getresponse():
                lines.append(line.decode())
                if word in lines[-1]:
                    return "".join(lines)
        finally:
            connection.close()
        raise AssertionError(f"the stream ended: {lines}")

    def try_route(self, route, rows, variant):
        method, _, template = route.partition(" ")
        body, content_type, escape = VARIANTS[variant]
        names = [part[1:-1] for part in template.split("/") if part.startswith("{")]
        target = template
        for name in names:
            word = getattr(rows, name)
            target = target.replace("{" + name + "}", escaped(word) if escape else word)
        if route == "GET /store/items":
            word = (lambda word: escaped(word)) if escape else urllib.parse.quote
            query = f"namespace={word('notes')}&key={word(rows.key)}"
            target += f"?namespace=x&key=x&{query}" if variant == "duplicate key" else f"?{query}"
        elif template.startswith("/.well-known/"):
            word = escaped(rows.assistant_id) if escape else rows.assistant_id
            target += f"?assistant_id={word}"
        meant = BODIES.get(route, lambda r: {})(rows)
        return self.send(method, target, body(meant), content_type, route in ENDLESS)


@pytest.fixture
def guarded(serve, project):
    """A server whose author decides, and the routes it says it has."""
    project.write(config=CONFIG | {"auth": {"path": "./auth.py:auth"}}, auth=AUTH)
    server, _ = serve()
    described = json.loads(Caller(server, None).send("GET", "/openapi.json").text)
    routes = [
        f"{method.upper()} {path}"
        for path, item in described["paths"].items()
        for method in item
        if path not in OPEN and method in ("get", "put", "post", "patch", "delete")
    ]
    assert len(routes) > 50 and set(BODIES) <= set(routes), sorted(set(BODIES) - set(routes))
    return server, routes


def user(server, name):
    return get_sync_client(url=server.url, api_key=None, headers={"authorization": f"Bearer {name}"})


def test_a_stranger_gets_nothing_by_any_route(guarded):
    server, routes = guarded
    rows = Rows(user(server, "ann"))
    before = rows.seen()
    bob, nobody = Caller(server, "bob"), Caller(server, None)
    wrong = []
    for route, variant in itertools.product(routes, VARIANTS):
        assert nobody.try_route(route, rows, variant).status == 401, (route, variant)
        answer = bob.try_route(route, rows, variant)
        # A path that names another's row leads nowhere; other routes may answer what is the caller's own.
        allowed = range(400, 500) if "_id}" in route else range(200, 500)
        if answer.status not in allowed or CANARY in answer.text or rows.run_id in answer.text:
            wrong.append((route, variant, answer.status, answer.text[:200]))
        if route == "POST /threads/count" and not variant.startswith("blank") and answer.status == 200:
            assert answer.text == "0", variant
    assert wrong == []
    assert rows.seen() == before
    print(f"{len(routes) * len(VARIANTS)} requests of a stranger, of which none got through")


def test_an_owner_is_answered_however_the_request_is_written(guarded):
    server, routes = guarded
    client, ann = user(server, "ann"), Caller(server, "ann")
    wrong = []
    for route in routes:
        rows = Rows(client)
        plain = ann.try_route(route, rows, "plain").status
        if plain not in ((404,) if route in OVER else (426,) if route == SOCKET else (200, 204)):
            wrong.append((route, "plain", plain))
        for variant in VARIANTS:
            if route.startswith("DELETE") or route == "POST /threads/prune":
                rows = Rows(client)
            status = ann.try_route(route, rows, variant).status
            same = variant in ("encoded id", "text/plain", "a form")
            # What cannot be read is refused, where the route reads it.
            if status != plain and (same or status not in (400, 403, 422)):
                wrong.append((route, variant, status, plain))
    assert wrong == []


def test_a_run_of_the_agent_protocol_is_judged_as_its_handlers_know_it(guarded):
    server, _ = guarded
    client, ann, bob = user(server, "ann"), Caller(server, "ann"), Caller(server, "bob")
    thread = client.threads.create()["thread_id"]
    body = json.dumps({"agent_id": "agent", "thread_id": thread, "input": {"steps": []}})
    for path in ("/runs", "/runs/stream", "/runs/wait"):
        # It leads to the thread of another, although no path names it.
        assert bob.send("POST", path, body).status in range(400, 500), path
        # However the name is written.
        assert bob.send("POST", path, body.replace("agent_id", r"agent\u005fid")).status in range(400, 500), path
    assert client.runs.list(thread) == []
    answer = ann.send("POST", "/runs/wait", body)
    assert answer.status == 200, answer.text
    result = json.loads(answer.text)
    assert result["run"]["thread_id"] == thread and result["run"]["agent_id"] == result["run"]["assistant_id"]
    assert result["run"]["metadata"]["owner"] == "ann" and "steps" in result["values"]


ONE_NAME = """
    from langgraph_sdk import Auth

    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None):
        return {"identity": "ann", "permissions": []}

    @auth.on.threads.create_run
    async def create_run(ctx, value):
        if "agent_id" in value or "messages" in value or value["assistant_id"] == "agent":
            raise Auth.exceptions.HTTPException(status_code=403, detail=str(sorted(value)))
"""


def test_a_handler_knows_one_name_of_an_assistant(serve, project):
    project.write(config=CONFIG | {"auth": {"path": "./auth.py:auth"}}, auth=ONE_NAME)
    server, _ = serve()
    ann = Caller(server, "ann")
    answer = ann.send("POST", "/runs/wait", json.dumps({"agent_id": "agent", "messages": []}))
    assert answer.status == 403 and "assistant_id" in answer.text, answer.text
    assert "agent_id" not in answer.text and "messages" not in answer.text, answer.text


def test_events_of_a_deleted_thread_are_shown_to_nobody(guarded):
    server, _ = guarded
    client = user(server, "ann")
    rows = Rows(client)
    kept = {"stream_mode": "values", "stream_resumable": True}
    assert list(client.runs.stream(rows.thread_id, "agent", input={"steps": [CANARY]}, **kept))
    client.threads.delete(rows.thread_id)
    # A caller that makes a thread of the same id reads what happens on that one alone.
    stranger = user(server, "bob")
    stranger.threads.create(thread_id=rows.thread_id)
    assert list(stranger.runs.stream(rows.thread_id, "agent", input={"steps": ["of bob"]}, **kept))
    path, body = f"/threads/{rows.thread_id}/stream/events", json.dumps({"channels": ["values", "lifecycle"]})
    assert Caller(server, "ann").send("POST", path, body).status == 404
    told = Caller(server, "bob").read_until("POST", path, body, '"completed"')
    assert "of bob" in told and CANARY not in told and rows.run_id not in told, told


def test_an_assistant_takes_no_threads_of_others_along(guarded):
    server, _ = guarded
    ann, bob = user(server, "ann"), user(server, "bob")
    assistant = bob.assistants.create("agent")["assistant_id"]
    threads = {}
    for client in (ann, bob):
        thread = client.threads.create()["thread_id"]
        client.runs.wait(thread, assistant, input={})
        threads[client] = thread
    answer = Caller(server, "bob").send("DELETE", f"/assistants/{assistant}?delete_threads=true")
    assert answer.status == 204, answer.text
    assert ann.threads.get(threads[ann])["thread_id"] == threads[ann]
    assert Caller(server, "bob").send("GET", f"/threads/{threads[bob]}").status == 404


def test_items_are_found_below_the_callers_namespace(guarded):
    server, _ = guarded
    ann, bob = user(server, "ann"), user(server, "bob")
    for client in (ann, bob):
        client.store.put_item(["notes"], "k", {"v": 1})
    for prefix in ([], ["notes"]):
        found = bob.store.search_items(prefix)["items"]
        assert [item["namespace"] for item in found] == [["bob", "notes"]], prefix
    assert bob.store.list_namespaces()["namespaces"] == [["bob", "notes"]]


ALTERNATIVES = AUTH.replace("return owner", 'return {"$or": [owner, {"readers": {"$contains": ctx.user.identity}}]}')


def test_searches_find_what_one_of_several_filters_passes(serve, project):
    project.write(config=CONFIG | {"auth": {"path": "./auth.py:auth"}}, auth=ALTERNATIVES)
    server, _ = serve()
    ann, bob = user(server, "ann"), user(server, "bob")
    own = ann.threads.create(metadata={"kind": "x"})["thread_id"]
    shared = ann.threads.create(metadata={"kind": "y", "readers": ["bob", "cat"]})["thread_id"]
    bobs = bob.threads.create(metadata={"kind": "y"})["thread_id"]

    def found(client, **search):
        ids = {thread["thread_id"] for thread in client.threads.search(**search)}
        assert client.threads.count(**search) == len(ids)
        return ids

    assert found(ann) == {own, shared}
    assert found(bob) == {shared, bobs}
    assert found(ann, metadata={"kind": "y"}) == {shared}
    assert found(bob, metadata={"kind": "x"}) == set()
    assert found(user(server, "dan")) == set()
    # What a caller asks for opens nothing.
    for asked in ({"$or": [{}]}, {"$or": [{"kind": "x"}, {"owner": "ann"}]}, {"owner": "ann", "$and": []}):
        assert found(bob, metadata=asked) <= {shared, bobs}, asked
    assistant = ann.assistants.create("agent", metadata={"readers": ["bob"]})["assistant_id"]
    hidden = ann.assistants.create("agent")["assistant_id"]
    seen = {one["assistant_id"] for one in bob.assistants.search(limit=100)}
    assert assistant in seen and hidden not in seen
    cron = {"schedule": "0 0 1 1 *", "input": {}, "enabled": False}
    ann.crons.create("agent", metadata={"readers": ["bob"]}, **cron)
    ann.crons.create("agent", **cron)
    assert len(ann.crons.search()) == 2 and len(bob.crons.search()) == 1


def test_the_authors_routes_are_behind_the_auth_whatever_they_are_called(serve, project):
    http_part = {"app": "./web.py:app", "enable_custom_route_auth": True, "disable_meta": True}
    config = CONFIG | {"auth": {"path": "./auth.py:auth"}, "http": http_part}
    project.write(config=config, auth=AUTH, web=APP)
    server, _ = serve()
    for path in ("/mine", "/info", "/docs", "/metrics", "/openapi.json"):
        assert Caller(server, None).send("GET", path).status == 401, path
        answer = Caller(server, "ann").send("GET", path)
        assert (answer.status, answer.text) == (200, path)
