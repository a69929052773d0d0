"""The commands of guides that run graphs in Python."""

import shutil

import pytest
from langgraph_sdk import get_sync_client

import guides
from harness import ROOT
from world import PYTHON, Server

CHAT = ROOT / "examples/chat"


@pytest.fixture(scope="module")
def old_server():
    """What a reader moves away from: one thread of a user, with one turn."""
    running = Server("embedded", graphs=CHAT / "langgraph.json")
    try:
        with get_sync_client(url=running.url, api_key=None) as client:
            thread = client.threads.create(metadata={"user": "ada"})
            said = {"messages": [{"role": "user", "content": "first"}]}
            client.runs.wait(thread["thread_id"], "chat", input=said)
        yield running.url
    finally:
        running.stop()


def walk_in_a_project(page, graph_file, folder, env):
    walk = guides.Walk(ROOT / "docs/guides" / page, folder, PYTHON | env)
    project = walk.work / "my-agent"
    shutil.copytree(CHAT, project, ignore=shutil.ignore_patterns(".towpath", "__pycache__"))
    (project / "langgraph.json").rename(project / graph_file)
    walk.go()


def test_moving_from_langgraph_platform(old_server, tmp_path):
    walk_in_a_project("from-langgraph-platform.md", "langgraph.json", tmp_path, {"OLD_SERVER": old_server})


def test_moving_from_aegra(tmp_path):
    walk_in_a_project("from-aegra.md", "aegra.json", tmp_path, {})
