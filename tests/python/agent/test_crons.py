"""Crons through the official client, and what they do when their time comes."""

import os
import uuid
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.errors import NotFoundError, UnprocessableEntityError

from clients import eventually
from world import Clocked

# In both languages.
pytestmark = pytest.mark.usefixtures("graph")

SAY = {"messages": [{"role": "user", "content": "tick"}]}


async def test_a_crons_life(client, graph):
    mark = str(uuid.uuid4())
    end = datetime.now(UTC) + timedelta(days=900)
    made = await client.crons.create(
        graph("agent"), schedule="0 9 * * MON", input=SAY, metadata={"mark": mark}, end_time=end, timezone="Europe/Berlin",
        config={"configurable": {"tone": "dry"}},
    )
    assert uuid.UUID(made["cron_id"]).version == 7
    assert made["thread_id"] is None and made["enabled"] is True and made["on_run_completed"] == "delete"
    assert made["payload"]["input"] == SAY
    assert made["payload"]["config"]["configurable"] == {"tone": "dry", "cron_id": made["cron_id"]}
    assert datetime.fromisoformat(made["end_time"]) == end
    next_run = datetime.fromisoformat(made["next_run_date"])
    assert next_run > datetime.now(UTC) and next_run.weekday() == 0 and next_run.hour in (7, 8)

    assert [cron["cron_id"] for cron in await client.crons.search(metadata={"mark": mark})] == [made["cron_id"]]
    assert await client.crons.count(metadata={"mark": mark}) == 1
    assert await client.crons.search(metadata={"mark": mark}, enabled=False) == []
    page = await client.crons.search(metadata={"mark": mark}, select=["cron_id", "schedule"])
    assert page == [{"cron_id": made["cron_id"], "schedule": "0 9 * * MON"}]

    changed = await client.crons.update(made["cron_id"], schedule="30 4 1 1 *", timezone="UTC", metadata={"more": 1})
    assert changed["metadata"] == {"mark": mark, "more": 1}
    next_run = datetime.fromisoformat(changed["next_run_date"])
    assert (next_run.month, next_run.day, next_run.hour, next_run.minute) == (1, 1, 4, 30)
    assert changed["payload"]["input"] == SAY and datetime.fromisoformat(changed["end_time"]) == end
    off = await client.crons.update(made["cron_id"], enabled=False)
    assert off["enabled"] is False and off["assistant_id"] == made["assistant_id"]
    with pytest.raises(UnprocessableEntityError, match="schedule"):
        await client.crons.update(made["cron_id"], schedule="soon")
    await client.crons.delete(made["cron_id"])
    with pytest.raises(NotFoundError):
        await client.crons.delete(made["cron_id"])


async def test_end_time_is_cleared_by_null_and_kept_by_absence(http, graph):
    made = (
        await http.post(
            "/runs/crons", json={"assistant_id": graph("agent"), "schedule": "0 0 1 1 *", "end_time": "2090-01-01T00:00:00Z"}
        )
    ).json()
    path = f"/runs/crons/{made['cron_id']}"
    assert (await http.patch(path, json={"enabled": False})).json()["end_time"] == "2090-01-01T00:00:00.000000+00:00"
    assert (await http.patch(path, json={"end_time": None})).json()["end_time"] is None
    assert (await http.delete(path)).status_code == 204


async def test_a_cron_with_a_context(sdk, graph):
    made = await sdk.crons.create(graph("agent"), schedule="0 0 1 1 *", context={"tone": "dry"}, input=SAY)
    assert made["payload"]["context"] == {"tone": "dry"}
    await sdk.crons.delete(made["cron_id"])


async def test_deletions_take_crons_along(client, graph):
    thread = await client.threads.create()
    on_thread = await client.crons.create_for_thread(thread["thread_id"], graph("agent"), schedule="0 0 1 1 *", input=SAY)
    assert on_thread["thread_id"] == thread["thread_id"]
    assistant = await client.assistants.create(graph("agent"))
    of_assistant = await client.crons.create(assistant["assistant_id"], schedule="0 0 1 1 *", input=SAY)
    await client.threads.delete(thread["thread_id"])
    await client.assistants.delete(assistant["assistant_id"])
    for cron in (on_thread, of_assistant):
        with pytest.raises(NotFoundError):
            await client.crons.update(cron["cron_id"], enabled=False)


@pytest.fixture(scope="module", params=["embedded", "cluster"])
def clocked(request):
    """A server whose clock this module moves."""
    if request.param == "cluster" and "TOWPATH_TEST_POSTGRES" not in os.environ:
        pytest.skip("TOWPATH_TEST_POSTGRES is not set")
    running = Clocked(request.param)
    yield running
    running.stop()


async def test_crons_fire_once_at_their_time(clocked, graph):
    """Everything that needs a minute to pass, at once."""
    async with get_client(url=clocked.url, api_key=None) as sdk:
        await fire_once(clocked, sdk, graph)


async def fire_once(server, sdk, graph):
    # A minute begins when all crons are there.
    if server.now().second >= 30:
        server.move_to(minute_after(server.now()))
    next_minute = minute_after(server.now())
    thread = await sdk.threads.create()
    mark = str(uuid.uuid4())
    kept = await sdk.crons.create(
        graph("steps"), schedule="* * * * *", input={"log": ["in"]}, on_run_completed="keep", metadata={"mark": mark}
    )
    on_thread = await sdk.crons.create_for_thread(
        thread["thread_id"], graph("steps"), schedule="* * * * *", input={"log": ["in"]}
    )
    off = await sdk.crons.create(graph("steps"), schedule="* * * * *", enabled=False, on_run_completed="keep")
    over = await sdk.crons.create(
        graph("steps"), schedule="* * * * *", end_time=server.now() - timedelta(minutes=5), on_run_completed="keep"
    )
    try:
        assert server.now() < next_minute, "making crons took half a minute"
        server.move_to(next_minute - timedelta(seconds=1))

        async def fired():
            found = await sdk.threads.search(metadata={"graph_id": graph("steps")}, limit=1000)
            return [t for t in found if (t["config"].get("configurable") or {}).get("cron_id") == kept["cron_id"]]

        threads = await eventually("the cron to fire", fired, limit_s=90)
        assert len(threads) == 1
        runs = await sdk.runs.list(threads[0]["thread_id"])
        assert len(runs) == 1
        assert runs[0]["kwargs"]["config"]["configurable"]["cron_id"] == kept["cron_id"]
        at = datetime.fromisoformat(runs[0]["created_at"])
        assert timedelta(0) <= at - next_minute < timedelta(seconds=10), (at, next_minute)
        values = await sdk.runs.join(threads[0]["thread_id"], runs[0]["run_id"])
        assert values["log"] == ["in", "one", "two"]

        runs = await eventually("the cron of the thread to fire", lambda: sdk.runs.list(thread["thread_id"]))
        assert len(runs) == 1
        await sdk.runs.join(thread["thread_id"], runs[0]["run_id"])
        found = {cron["cron_id"]: cron for cron in await sdk.crons.search(limit=100)}
        assert datetime.fromisoformat(found[kept["cron_id"]]["next_run_date"]) == next_minute + timedelta(minutes=1)
        assert found[over["cron_id"]]["next_run_date"] is None
        everything = await sdk.threads.search(metadata={"graph_id": graph("steps")}, limit=1000)
        for cron in (off, over):
            assert not [
                t for t in everything if (t["config"].get("configurable") or {}).get("cron_id") == cron["cron_id"]
            ]
    finally:
        for cron in (kept, on_thread, off, over):
            await sdk.crons.delete(cron["cron_id"])


def minute_after(moment):
    return moment.replace(second=0, microsecond=0) + timedelta(minutes=1)


async def test_a_deleted_cron_fires_no_more(sdk, http: httpx.AsyncClient, graph):
    made = await sdk.crons.create(graph("steps"), schedule="* * * * *", input={"log": []}, on_run_completed="keep")
    await sdk.crons.delete(made["cron_id"])
    assert (await http.get(f"/runs/crons/{made['cron_id']}")).status_code == 404
