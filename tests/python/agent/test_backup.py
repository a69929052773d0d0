"""A backup holds deployments with all they keep, made while they are used."""

import asyncio
import os

import pytest

import harness
from test_deployments import Repository, client, create, deployed, processes, says


@pytest.mark.skipif("TOWPATH_TEST_GRAPHS" in os.environ, reason="the graphs are its own")
@pytest.mark.parametrize("layout", ["embedded", "cluster"])
async def test_a_deployment_comes_back_from_a_backup(layout, tmp_path):
    if layout == "cluster" and "TOWPATH_TEST_POSTGRES" not in os.environ:
        pytest.skip("TOWPATH_TEST_POSTGRES is not set")
    settings = {"TOWPATH_DEPLOYMENTS_GIT_TRANSPORTS": "file"}, {"TOWPATH_DEPLOYMENTS_BACKEND": "process"}
    repository = Repository(tmp_path / "repository")
    backup = tmp_path / "backup"
    first = harness.World(layout, *settings)
    try:
        made = create(first, repository, "kept")
        await asyncio.to_thread(deployed, first, made["id"], made["latest_revision_id"])
        async with client(first, "kept") as sdk:
            thread = await sdk.threads.create()
            said = {"messages": [{"role": "user", "content": "remember this"}]}
            await sdk.runs.wait(thread["thread_id"], "agent", input=said)
            # It continues to be used while the backup is made.
            used, stop = [], asyncio.Event()

            async def use():
                while not stop.is_set():
                    used.append(await says(sdk))

            users = [asyncio.create_task(use()) for _ in range(2)]
            await asyncio.to_thread(first.command, "backup", backup)
            stop.set()
            await asyncio.gather(*users)
            assert set(used) == {"one"}
            await sdk.threads.delete(thread["thread_id"])
        first.stop()
    finally:
        first.drop()
    # Nothing can be fetched again.
    (repository.path / ".git").rename(repository.path / ".gone")

    second = harness.World(layout, *settings, backup=(backup, first.tenant))
    try:
        found = second.call("GET", f"/v2/deployments/{made['id']}")
        assert (found["status"], found["active_revision_id"]) == ("READY", made["latest_revision_id"])
        async with client(second, "kept") as sdk:
            state = await sdk.threads.get_state(thread["thread_id"])
            assert state["values"]["messages"][0]["content"] == "remember this"
            assert await says(sdk) == "one"
        second.stop()
    finally:
        second.drop()
    assert processes(second) == []
