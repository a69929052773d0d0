"""The walk of examples/README.md: run an example, look at its trace, export it, read the file."""

import datetime as dt
import json
import pathlib
import shutil

import pyarrow.parquet as pq
import pytest
from langgraph_sdk import get_sync_client
from langsmith import Client

from harness import Process, binary, free_address, until
from projects import PYTHON, towpath

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture
def dev(tmp_path):
    """`towpath dev` in a copy of the example, as its reader starts it, but for the ports."""
    folder = tmp_path / "chat"
    shutil.copytree(EXAMPLES / "chat", folder)
    platform, agent = free_address(), free_address()
    command = [binary(), "dev", "--listen", platform, "--agent-listen", agent]
    process = Process("dev", command, PYTHON, folder, platform)
    process.url, process.agent = f"http://{platform}", f"http://{agent}"
    try:
        yield process.ready()
    finally:
        if process.child.poll() is None:
            process.kill()


def test_an_example_its_trace_and_its_export(dev):
    client = get_sync_client(url=dev.agent, api_key=None)
    thread = client.threads.create()["thread_id"]
    asked = {"messages": [{"role": "user", "content": "hello there"}]}
    *_, answer, links = client.runs.stream(thread, "chat", input=asked, feedback_keys=["good"])
    said = answer.data["messages"][-1]["content"]
    assert "hello there" in said

    # Its trace, by the official SDK, in the project of the folder's name.
    key = (dev.folder / ".towpath" / "api.key").read_text().strip()
    traces = Client(api_url=dev.url, api_key=key)

    def traced():
        if "chat" not in [project.name for project in traces.list_projects()]:
            return None
        runs = list(traces.list_runs(project_name="chat"))
        roots = [run for run in runs if run.parent_run_id is None and run.end_time]
        # The model's call is the last to be told of.
        return (roots, runs) if roots and any(run.run_type == "llm" and run.end_time for run in runs) else None

    [root], runs = until("the trace", traced)
    assert root.error is None and root.outputs["messages"][-1]["content"] == said
    assert root.metadata["thread_id"] == thread
    assert {run.trace_id for run in runs} == {root.trace_id}
    # Who read the answer judged it by the link that came with it.
    traces.create_feedback_from_token(links.data["good"], score=1)
    assert [(one.run_id, one.score) for one in traces.list_feedback(feedback_key=["good"])] == [(root.id, 1)]

    # Its export, by the commands of the page, and the file, by a reader that is not ours.
    made = json.loads(
        towpath(dev, "destinations", "create", "--type", "file", "--name", "files", "--prefix", "first", "--output", "json")
    )
    today = dt.datetime.now(dt.timezone.utc).date()
    # From the day before on, in case that it is midnight.
    days = ["--start", str(today - dt.timedelta(days=1)), "--end", str(today + dt.timedelta(days=1))]
    towpath(dev, "exports", "create", "--destination", made["id"], "--project", "chat", *days, "--wait")
    files = list((dev.folder / ".towpath" / "exports" / "first").rglob("*.parquet"))
    rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    assert {row["id"] for row in rows} == {str(run.id) for run in runs}
    [exported] = [row for row in rows if row["is_root"]]
    assert said in exported["outputs"] and exported["name"] == root.name
    dev.terminate()
