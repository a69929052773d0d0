"""Webhooks, seen by whom they call: signed, retried, the same over refusals and deaths."""

import hashlib
import hmac
import json

import pytest

from drill import SECRET
from harness import until


@pytest.fixture
def server(fleet):
    """For the report of a failing test."""
    return fleet


def told(call):
    """The body of a call, its signature checked."""
    *_, body, headers = call
    signed = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    assert headers["x-towpath-signature"] == f"sha256={signed}"
    assert headers["content-type"] == "application/json"
    return json.loads(body)


def test_a_refused_call_is_made_again_also_after_a_death(fleet, server, receiver):
    name = f"refused-{fleet.layout}"
    receiver.answers["hook", name] = [500, 200, 429, 200]
    thread = fleet.thread()
    run = fleet.begin(thread, name, webhook=f"{receiver.url}/hook/{name}", metadata={"order": 7})
    first = receiver.until_made("hook", name)
    gate = receiver.hold("hook", name)
    # Two seconds later, as the retry policy says; everything dies while the answer is under way.
    second = receiver.until_made("hook", name, 2)
    assert 1.5 <= second - first < 8, f"tried again after {second - first:.1f} s"
    for process in fleet.processes:
        process.child.kill()
    for process in fleet.processes:
        process.child.wait()
    gate.set()
    fleet.again(fleet.processes)
    # The third is answered 429, which is retried too.
    receiver.until_made("hook", name, 4, limit_s=240)
    fleet_is_quiet(fleet)
    calls = receiver.made("hook", name)
    assert len(calls) == 4
    assert len({headers["x-towpath-delivery"] for *_, headers in calls}) == 1
    bodies = [told(call) for call in calls]
    assert len({body.pop("webhook_sent_at") for body in bodies}) == 4
    assert all(body == bodies[0] for body in bodies)
    body = bodies[0]
    assert (body["run_id"], body["thread_id"], body["status"]) == (run, thread, "success")
    assert body["metadata"]["order"] == 7 and body["values"]["log"] == ["one", "side", "two", "three"]
    assert body["run_started_at"] <= body["run_ended_at"]


def test_what_will_never_be_taken_is_not_repeated(fleet, server, receiver):
    name = f"gone-{fleet.layout}"
    receiver.answers["hook", name] = [410]
    fleet.begin(fleet.thread(), name, webhook=f"{receiver.url}/hook/{name}")
    receiver.until_made("hook", name)
    fleet_is_quiet(fleet)
    rows = fleet.rows("SELECT state, failures FROM job WHERE kind = 'send_webhook' ORDER BY created_at DESC LIMIT 1")
    assert [(state, int(failures)) for state, failures in rows] == [("failed", 1)]
    assert len(receiver.made("hook", name)) == 1


def test_a_cancelled_and_a_failed_run_tell_so(fleet, server, receiver):
    name = f"cancelled-{fleet.layout}"
    gate = receiver.hold("two", name)
    thread = fleet.thread()
    run = fleet.begin(thread, name, webhook=f"{receiver.url}/hook/{name}")
    receiver.until_made("two", name)
    fleet.call("POST", f"/threads/{thread}/runs/{run}/cancel", status=202)
    receiver.until_made("hook", name)
    gate.set()
    assert told(receiver.made("hook", name)[0])["status"] == "interrupted"

    name = f"failed-{fleet.layout}"
    receiver.answers["one", name] = [400]
    fleet.begin(fleet.thread(), name, webhook=f"{receiver.url}/hook/{name}")
    receiver.until_made("hook", name)
    body = told(receiver.made("hook", name)[0])
    assert body["status"] == "error" and body["error"]["error"], body


def fleet_is_quiet(fleet):
    """No call is under way or to come."""
    question = "SELECT count(*) FROM job WHERE kind = 'send_webhook' AND finished_at IS NULL"
    until("all webhooks to be delivered", lambda: int(fleet.rows(question)[0][0]) == 0 or None)
