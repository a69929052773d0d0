"""What is on the wire whatever the route: health, documents, cross-origin calls, refusals."""

import json

import pytest

# In both languages.
pytestmark = pytest.mark.usefixtures("graph")

# Part of the names of tests, which must be the same in every process of the suite.
MISSING = "5b1c0d6e-7f43-4c1a-9a55-2f8e0b6d9c37"


async def test_health_and_information(http):
    for path in ("/ok", "/", "/livez"):
        answer = await http.get(path)
        assert (answer.status_code, answer.json()) == (200, {"ok": True, "services": {}})
        assert (await http.head(path)).status_code == 200
    answer = await http.get("/ok", params={"check_db": "1"})
    assert answer.status_code == 200 and answer.json()["services"]["database"] == "healthy"
    assert (await http.get("/readyz")).json()["status"] == "ready"
    info = (await http.get("/info")).json()
    assert tuple(map(int, info["version"].split(".")[:2])) >= (0, 4), "studios refuse what they take for old"
    assert info["flags"]["assistants"] is True and info["flags"]["crons"] is True
    assert info["host"]["kind"]


async def test_metrics(http, sdk, graph):
    await sdk.runs.wait(None, graph("agent"), input={"messages": [{"role": "user", "content": "hi"}]})
    text = (await http.get("/metrics")).text
    for name in ("num_pending_runs", "num_running_runs", "workers_max", "workers_active", "workers_available"):
        assert f"\nlg_api_{name} " in text, text
    assert 'lg_api_http_requests_total{method="GET",path="/metrics"' in (await http.get("/metrics")).text
    found = (await http.get("/metrics", params={"format": "json"})).json()
    assert set(found["queue"]) == {
        "n_pending",
        "n_running",
        "pending_runs_wait_time_max_secs",
        "pending_runs_wait_time_med_secs",
        "pending_unblocked_runs_wait_time_max_secs",
    }
    assert found["workers"]["max"] == found["workers"]["active"] + found["workers"]["available"]


async def test_documents(http):
    document = (await http.get("/openapi.json")).json()
    paths = document["paths"]
    for path in ("/assistants", "/threads/{thread_id}/runs/stream", "/runs/wait", "/runs/crons", "/store/items"):
        assert path in paths, sorted(paths)
    ids = [op["operationId"] for item in paths.values() for op in item.values() if isinstance(op, dict)]
    assert len(ids) == len(set(ids))
    below = (await http.get("/openapi.json", headers={"x-forwarded-prefix": "/agents/one"})).json()
    assert below["servers"] == [{"url": "/agents/one"}]
    page = await http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "<script" not in page.text and "https://" not in page.text.split("<style>")[0], "it works offline"


async def test_cross_origin_calls(http):
    origin = {"origin": "https://studio.example"}
    for answer in (
        await http.get("/ok", headers=origin),
        await http.get(f"/threads/{MISSING}", headers=origin),
        await http.get("/no/such/route", headers=origin),
    ):
        assert answer.headers["vary"].lower() == "origin"
        assert answer.headers["access-control-allow-origin"] == "https://studio.example"
    assert (await http.get("/ok")).headers["vary"].lower() == "origin"
    exposed = (await http.get("/ok", headers=origin)).headers["access-control-expose-headers"].lower()
    assert {"content-location", "location", "x-pagination-next", "x-pagination-total"} <= set(exposed.split(","))
    ask = origin | {
        "access-control-request-method": "PATCH",
        "access-control-request-headers": "content-type,x-auth-scheme",
        "access-control-request-private-network": "true",
    }
    answer = await http.options("/threads", headers=ask)
    assert answer.status_code == 200
    assert "PATCH" in answer.headers["access-control-allow-methods"]
    assert "x-auth-scheme" in answer.headers["access-control-allow-headers"]
    assert answer.headers["access-control-allow-private-network"] == "true"


async def test_pages_of_elsewhere_have_nothing_done(http, server):
    """Without a key, on loopback: the caller that reads a page of the web must not find their agents at work for it."""

    async def asked(path="/assistants/search", **headers):
        return await http.post(path, content=b"{}", headers={"content-type": "text/plain"} | headers)

    for origin in ("https://evil.example", "null", "https://smith.langchain.com.evil.example", "http://192.168.0.7:3000"):
        for path in ("/assistants/search", "/threads", "/runs/wait", "/no/such/route"):
            refused = await asked(path, origin=origin)
            assert refused.status_code == 403 and "CORS_ALLOW_ORIGINS" in refused.json()["detail"], (origin, path)
    for origin in ("http://localhost:3000", "http://127.0.0.1:5173", "https://smith.langchain.com"):
        assert (await asked(origin=origin)).status_code == 200, origin
    assert (await asked()).status_code == 200, "programs send no origin"
    port = server.url.rsplit(":", 1)[1]
    for host in (f"evil.example:{port}", "evil.example", "127.0.0.1.evil.example"):
        for led in (await http.get("/info", headers={"host": host}), await asked(host=host)):
            assert led.status_code == 421 and "--agent-auth" in led.json()["detail"], host
    assert (await http.get("/info", headers={"host": f"localhost:{port}"})).status_code == 200


async def test_json_is_read_under_any_content_type(http):
    for kind in ("text/plain;charset=UTF-8", "application/octet-stream", None):
        headers = {"content-type": kind} if kind else {}
        answer = await http.post("/assistants/search", content=b'{"limit":1}', headers=headers)
        assert answer.status_code == 200 and len(answer.json()) == 1, answer.text
    assert (await http.post("/assistants/search")).status_code == 200, "no body at all counts as {}"


REFUSALS = [
    ("POST", "/assistants", {}, 422, "graph_id: field required"),
    ("POST", "/assistants", b"{", 422, "Invalid JSON in request body"),
    ("POST", "/assistants", {"graph_id": 1}, 422, "graph_id: expected a string"),
    ("POST", "/assistants", {"graph_id": "nope"}, 404, None),
    (
        "POST",
        "/assistants",
        {"graph_id": "agent", "config": {"configurable": {"a": 1}}, "context": {"b": 1}},
        400,
        "Cannot specify both configurable and context. Prefer setting context alone.",
    ),
    ("GET", "/assistants/x", None, 422, "Invalid assistant ID: must be a UUID"),
    ("GET", f"/assistants/{MISSING}", None, 404, "Not Found"),
    ("GET", "/threads/x", None, 422, "Invalid thread ID: must be a UUID"),
    ("GET", f"/threads/{MISSING}", None, 404, f"Thread with ID {MISSING} not found"),
    ("GET", f"/threads/{MISSING}/state", None, 404, f"Thread with ID {MISSING} not found"),
    ("GET", f"/threads/{MISSING}/runs", None, 404, f"Thread with ID {MISSING} not found"),
    ("GET", f"/threads/{MISSING}/runs/x", None, 422, "Invalid run ID: must be a UUID"),
    ("GET", f"/threads/{MISSING}/runs/{MISSING}", None, 404, None),
    ("GET", "/runs/crons/x", None, 422, "Invalid cron ID: must be a UUID"),
    ("GET", f"/runs/crons/{MISSING}", None, 404, "Not Found"),
    ("PATCH", f"/runs/crons/{MISSING}", {}, 400, None),
    ("POST", "/runs/crons", {"assistant_id": "agent"}, 422, "schedule: field required"),
    ("POST", "/runs/crons", {"assistant_id": "agent", "schedule": "* * *"}, 422, None),
    ("POST", "/runs/crons", {"assistant_id": "agent", "schedule": "* * * * *", "timezone": "Mars/Base"}, 422, None),
    ("POST", "/runs/crons", {"assistant_id": MISSING, "schedule": "* * * * *"}, 404, None),
    ("POST", f"/threads/{MISSING}/runs/crons", {"assistant_id": "agent", "schedule": "* * * * *"}, 404, None),
    ("POST", "/runs", {"assistant_id": MISSING}, 404, "Thread or assistant not found."),
    ("POST", f"/threads/{MISSING}/runs", {"assistant_id": "agent"}, 404, "Thread or assistant not found."),
    ("POST", "/runs", {}, 422, "assistant_id: field required"),
    ("POST", "/runs", {"assistant_id": "agent", "stream_mode": "colour"}, 422, None),
    ("POST", "/runs/wait", {"assistant_id": "agent", "command": {"resume": 1}}, 400, None),
    ("POST", "/runs/cancel", {"status": "all", "run_ids": [MISSING], "thread_id": MISSING}, 422, None),
    ("POST", "/runs/cancel", {"thread_id": MISSING, "run_ids": [MISSING]}, 404, None),
    ("POST", "/threads/search", {"limit": 0}, 422, "limit: expected 1 to 1000"),
    ("POST", "/threads/search", {"limit": 1001}, 422, "limit: expected 1 to 1000"),
    ("POST", "/assistants/search", {"offset": -1}, 422, "offset: expected 0 or more"),
    ("POST", f"/threads/{MISSING}/copy", None, 409, None),
    ("GET", "/no/such/route", None, 404, "Not Found"),
    ("DELETE", "/ok", None, 405, "Method Not Allowed"),
    ("PUT", "/threads", {}, 405, "Method Not Allowed"),
]


@pytest.mark.parametrize("method, path, body, status, detail", REFUSALS, ids=[f"{r[0]} {r[1]} {r[3]}" for r in REFUSALS])
async def test_refusals_are_one_text(http, graph, method, path, body, status, detail):
    if isinstance(body, dict):
        body = {name: graph(value) if value == "agent" else value for name, value in body.items()}
    content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    answer = await http.request(method, path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    found = answer.json()
    assert list(found) == ["detail"] and isinstance(found["detail"], str), found
    if detail is None and status == 422:
        assert "schedule" in found["detail"] or "timezone" in found["detail"] or ":" in found["detail"], found
    elif detail is not None:
        assert found["detail"] == detail


async def test_an_unknown_graph_is_told_which_there_are(http, graph):
    answer = await http.post("/runs", json={"assistant_id": "nope"})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("Invalid assistant: 'nope'. Must be either:")
    assert graph("agent") in answer.json()["detail"]


async def test_nul_never_comes_back(http):
    answer = await http.post("/threads", content=b'{"metadata":{"a\\u0000b":"c\\u0000d","e":"\\\\u0000"}}')
    assert answer.status_code == 200, answer.text
    assert answer.json()["metadata"] == {"a\ufffdb": "c\ufffdd", "e": "\\u0000"}

