"""Runs that ask where they may be judged: their stream ends with a link for each name, and what is given through one
is on the run's trace. Agent server and platform are processes of their own, as in production."""

import os
import uuid

import httpx
import pytest
from langgraph_sdk import get_sync_client
from langsmith import Client

import harness
from world import Server

# In both languages.
pytestmark = pytest.mark.usefixtures("graph")

SAY = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module", params=["embedded", "cluster"])
def places(request):
    if request.param == "cluster" and "TOWPATH_TEST_POSTGRES" not in os.environ:
        pytest.skip("TOWPATH_TEST_POSTGRES is not set")
    platform = harness.World(request.param)
    try:
        tracing = {
            "LANGSMITH_TRACING": "true",
            "LANGSMITH_ENDPOINT": f"http://{platform.api}/api/v1",
            "LANGSMITH_API_KEY": harness.KEY,
            "LANGSMITH_TENANT_ID": platform.tenant,
        }
        server = Server(request.param, env=tracing)
        try:
            yield platform, server
        except BaseException:
            server.drop()
            raise
        server.stop()
    except BaseException:
        platform.drop()
        raise
    platform.stop()


def test_a_stream_ends_with_links_that_judge_the_run(places, graph):
    platform, server = places
    with get_sync_client(url=server.url, api_key=None) as client:
        thread = client.threads.create()["thread_id"]
        first, *_, last = client.runs.stream(
            thread, graph("agent"), input=SAY, stream_mode="updates", feedback_keys=["user_score", "liked"]
        )
        run = uuid.UUID(first.data["run_id"])
        assert last.event == "feedback" and set(last.data) == {"user_score", "liked"}
        assert last.data["liked"].startswith(f"http://{platform.api}/api/v1/feedback/tokens/")
        # One that asks for none is told of none.
        parts = client.runs.stream(thread, graph("agent"), input=SAY, stream_mode="updates")
        assert "feedback" not in {part.event for part in parts}

    stranger = Client(api_url=f"http://{platform.api}", api_key="tp_opens-nothing")
    stranger.create_feedback_from_token(last.data["user_score"], score=1, comment="good")
    assert httpx.get(last.data["liked"], params={"score": 0}, timeout=60).status_code == 200
    reader = Client(api_url=f"http://{platform.api}", api_key=harness.KEY, workspace_id=platform.tenant)
    given = {one.key: one for one in reader.list_feedback(run_ids=[run])}
    assert {key: (one.run_id, one.score) for key, one in given.items()} == {"user_score": (run, 1), "liked": (run, 0)}

    def traced():
        runs = [root for root in reader.list_runs(run_ids=[run])]
        return runs[0] if runs else None

    root = harness.until("the trace", traced)
    assert root.parent_run_id is None and root.feedback_stats["user_score"]["avg"] == 1


@pytest.mark.parametrize("path", ["/threads/{}/runs/wait", "/runs/wait"])
def test_what_waits_is_told_beside_the_state(places, graph, path):
    platform, server = places
    asked = {"assistant_id": graph("agent"), "input": SAY}
    with httpx.Client(base_url=server.url, timeout=60) as http:
        thread = http.post("/threads", json={}).json()["thread_id"]
        answer = http.post(path.format(thread), json=asked | {"feedback_keys": ["liked"]}).json()
        assert answer["messages"][0]["content"] == "hi"
        assert httpx.post(answer["__feedback__"]["liked"], json={"score": 1}, timeout=60).status_code == 200
        assert "__feedback__" not in http.get(f"/threads/{thread}/state").json()["values"]
        refused = http.post(path.format(thread), json=asked | {"feedback_keys": [""]})
        assert refused.status_code == 422 and "feedback_keys" in refused.json()["detail"]


def test_a_server_that_traces_nowhere_names_no_links(server, graph):
    asked = {"assistant_id": graph("agent"), "input": SAY}
    with httpx.Client(base_url=server.url, timeout=60) as http:
        answer = http.post("/runs/wait", json=asked | {"feedback_keys": ["liked"]})
        assert answer.status_code == 200 and "__feedback__" not in answer.json()
        streamed = http.post("/runs/stream", json=asked | {"feedback_keys": ["liked"]})
        assert "event: feedback" not in streamed.text and "event: values" in streamed.text
