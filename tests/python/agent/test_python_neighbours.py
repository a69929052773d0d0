"""Runs of users' own Python that share a process: what one does costs the others nothing, and is done once."""

import os
import signal

from projects import begin, over

ASKING = """
    import asyncio, os, pathlib
    from operator import add
    from typing import Annotated, TypedDict
    from langgraph.graph import START, StateGraph
    from langgraph.types import interrupt

    FOLDER = pathlib.Path(__file__).parent

    class State(TypedDict, total=False):
        steps: Annotated[list[str], add]

    async def ask(state):
        answer = interrupt("go on?")
        with (FOLDER / "ran").open("a") as file:
            file.write(f"ask {os.getpid()}\\n")
        while not (FOLDER / "go").exists():
            await asyncio.sleep(0.01)
        return {"steps": [answer]}

    graph = StateGraph(State).add_node(ask).add_edge(START, "ask").compile()
"""


def test_a_run_that_crashes_costs_its_neighbours_no_attempt(serve, project):
    _, client = serve(TOWPATH_AGENT_HOSTS="1", TOWPATH_AGENT_RUN_ATTEMPTS="1")
    waiting = [begin(client, input={"how": "wait"}) for _ in range(3)]
    project.until_ran("second", 3)
    assert len({pid for name, pid in project.ran() if name == "second"}) == 1, "they share a process"
    thread, run = begin(client, input={"how": "exit"})
    assert over(client, thread, run)["status"] == "error"
    assert "exceeded max attempts (1)" in client.threads.get(thread)["error"]["message"]
    project.go()
    for thread, run in waiting:
        assert over(client, thread, run)["status"] == "success"
        state = client.threads.get_state(thread)
        assert state["values"]["steps"] == ["first", "second"]
        assert state["metadata"]["run_attempt"] == 1
    # The process is there for everyone again.
    assert client.runs.wait(None, "agent", input={})["steps"] == ["first", "second"]


def test_a_cancel_beside_a_blocked_run_ends_no_neighbour(serve, project):
    _, client = serve(TOWPATH_AGENT_HOSTS="1", TOWPATH_AGENT_CANCEL_GRACE_SECONDS="1")
    cancelled = begin(client, input={"how": "wait"})
    project.until_ran("second")
    thread, run = begin(client, input={"how": "block"})
    blocked = project.until_ran("second", 2)
    assert {pid for name, pid in project.ran() if name == "second"} == {blocked}, "they share a process"
    client.runs.cancel(*cancelled)
    assert over(client, *cancelled)["status"] == "interrupted"
    assert client.runs.get(thread, run)["status"] == "running"
    project.go()
    assert over(client, thread, run)["status"] == "success"
    assert [pid for name, pid in project.ran() if name == "second"] == [blocked, blocked], "the step ran once"


def test_a_command_is_applied_once_though_its_process_was_killed(serve, project):
    project.write(agent=ASKING)
    _, client = serve()
    thread = client.threads.create()["thread_id"]
    client.runs.wait(thread, "agent", input={"steps": ["in"]})
    assert client.threads.get(thread)["status"] == "interrupted"
    command = {"resume": "yes", "update": {"steps": ["told"]}}
    run = client.runs.create(thread, "agent", command=command)["run_id"]
    os.kill(project.until_ran("ask"), signal.SIGKILL)
    project.until_ran("ask", 2)
    project.go()
    assert over(client, thread, run)["status"] == "success"
    assert client.threads.get(thread)["values"]["steps"] == ["in", "told", "yes"]
