"""Projects of users' own Python, and the servers that run them."""

import json
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
from langgraph_sdk import get_sync_client

from harness import binary, until
from world import Server

GRAPH = """
    import asyncio, os, pathlib, time
    from operator import add
    from typing import Annotated, TypedDict
    from langgraph.graph import END, START, StateGraph

    FOLDER = pathlib.Path(__file__).parent
    FOOD = []

    class State(TypedDict, total=False):
        steps: Annotated[list[str], add]
        how: str

    def note(name):
        with (FOLDER / "ran").open("a") as file:
            file.write(f"{name} {os.getpid()}\\n")

    async def first(state):
        note("first")
        return {"steps": ["first"]}

    async def second(state):
        note("second")
        how = state.get("how")
        if how == "exit":
            os._exit(9)
        if how == "eat":
            FOOD.append(b"x" * (300 << 20))
        if how == "raise":
            raise ValueError("the second step says no")
        while how == "block" and not (FOLDER / "go").exists():
            time.sleep(0.01)
        while how == "wait" and not (FOLDER / "go").exists():
            await asyncio.sleep(0.01)
        if how == "stubborn":
            while not (FOLDER / "go").exists():
                time.sleep(0.01)
        return {"steps": ["second"]}

    graph = StateGraph(State).add_node(first).add_node(second)
    graph.add_edge(START, "first").add_edge("first", "second").add_edge("second", END)
    graph = graph.compile()
"""
CONFIG = {"graphs": {"agent": "./agent.py:graph", "echo": {"native": "echo"}}, "dependencies": ["."]}
PYTHON = {"TOWPATH_AGENT_PYTHON": sys.executable}


@pytest.fixture
def project(tmp_path):
    """Writes a project, and says what ran in it."""

    class Project:
        folder = tmp_path
        config = tmp_path / "langgraph.json"

        def write(self, config=CONFIG, **files):
            for name, text in {"agent": GRAPH, **files}.items():
                (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
            self.config.write_text(json.dumps(config))

        def ran(self):
            """Steps that ran, with the process they ran in."""
            try:
                lines = (tmp_path / "ran").read_text().splitlines()
            except FileNotFoundError:
                return []
            return [(name, int(pid)) for name, pid in map(str.split, lines)]

        def until_ran(self, step, times=1):
            def ask():
                found = [pid for name, pid in self.ran() if name == step]
                return found[-1] if len(found) >= times else None

            return until(f"{step} to run", ask)

        def go(self):
            (tmp_path / "go").touch()

    made = Project()
    made.write()
    return made


@pytest.fixture
def serve(project):
    """Starts servers of the project."""
    running = []

    def start(**env):
        made = Server("embedded", PYTHON | env, project.config)
        running.append(made)
        return made, get_sync_client(url=made.url, api_key=None)

    yield start
    for server in running:
        server.drop()


def over(client, thread, run):
    def ask():
        found = client.runs.get(thread, run)
        return found if found["status"] not in ("pending", "running") else None

    return until("the run to be over", ask)


def begin(client, **kwargs):
    thread = client.threads.create()["thread_id"]
    return thread, client.runs.create(thread, "agent", **kwargs)["run_id"]


def towpath(server, *command):
    """What a command prints that talks to this server, as an operator would give it: without a key, on this machine."""
    env = {"PATH": os.environ["PATH"], "TOWPATH_SERVER": server.url}
    done = subprocess.run([binary(), *command], env=env, cwd=server.folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
