"""The official JavaScript client, unmodified: it traces, an export runs, two foreign readers of Parquet compare.

What went over the wire is recorded between the client and the server, and the rows that have to come back are worked
out from that, so that neither side is taken at its word.
"""

import datetime
import gzip
import json
import os
import pathlib
import re
import subprocess
import uuid

import pytest

import expected
import harness
import parquet
from recorder import Recorder

HERE = pathlib.Path(__file__).parent
FIRST_DAY = "2024-02-28"
PAST = f"{FIRST_DAY}T00:00:00Z", "2024-03-02T00:00:00Z"
MODES = ("multipart", "single")


def send(url, tenant, project, mode, trees):
    """Runs the client in a process of its own; what it was asked to send."""
    command = ["node", str(HERE / "sender.mjs"), url, harness.KEY, tenant, project, mode, str(trees), FIRST_DAY]
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "TOWPATH_TEST_NODE_MODULES")}
    done = subprocess.run(command, env=inherited, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    # The client reports what it had to drop as a warning and continues.
    assert done.stderr.strip() == "", done.stderr
    return json.loads(done.stdout)


def multipart_bodies(sent):
    for exchange in sent:
        if exchange.path.endswith("/runs/multipart"):
            body = exchange.body
            yield exchange, gzip.decompress(body) if exchange.headers.get("content-encoding") == "gzip" else body


def test_it_reads_back_what_it_sent(world):
    project = f"js-reading-{uuid.uuid4().hex}"
    command = ["node", str(HERE / "reader.mjs"), f"http://{world.api}", harness.KEY, world.tenant, project]
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "TOWPATH_TEST_NODE_MODULES")}
    done = subprocess.run(command, env=inherited, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["outputs"], told["status"]) == ({"b": 2}, "success")
    assert told["listed"] == [told["run"]] and told["none"] == 0 and told["count"] == 1
    assert told["given"] == [["liked", 1], ["good", 1]] and told["name"] == project
    assert told["liked"] == 200 and told["links"] == [told["link"]]


def test_a_prompt_is_pushed_and_pulled(world):
    name = f"js-keeper-{uuid.uuid4().hex}"
    command = ["node", str(HERE / "prompter.mjs"), f"http://{world.api}", harness.KEY, world.tenant, name]
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "TOWPATH_TEST_NODE_MODULES")}
    done = subprocess.run(command, env=inherited, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told.pop("address").startswith(f"http://{world.api}/prompts/{name}/")
    assert told == {
        "existed": False,
        "texts": ["Open the gate.", "You keep a lock.", "Open the gate."],
        "commits": ["shorter", None],
        "parent": True,
        "listed": [[name, "keeps locks", 2]],
        "likes": [1, 0],
        "gone": None,
    }


@pytest.mark.parametrize("mode", MODES)
def test_every_value_comes_back(world, mode):
    prefix, project = f"js/{uuid.uuid4().hex}", f"js-{mode}-{world.layout}"
    recorder = Recorder(world.api)
    told = send(recorder.url, world.tenant, project, mode, trees=6 if mode == "multipart" else 2)
    recorder.close()
    session, destination = world.project(project), world.file_destination(prefix)
    now, hour = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(hours=1)
    past = world.export(destination, session, *PAST)
    today = world.export(destination, session, (now - hour).isoformat(), (now + hour).isoformat())

    sent = recorder.ingested()
    wanted = expected.rows(sent, world.tenant, session)
    assert len(wanted) == len(told)
    for run in told:
        if "id" in run:
            assert wanted[run["id"]]["name"] == run["name"]

    rows = []
    for export in (past, today):
        world.completed(export)
        files = parquet.files(world.exports / prefix, export, world.tenant, session)
        found = parquet.by_pyarrow(files)
        by_id = {row["id"]: row for row in found}
        other = parquet.by_duckdb(files)
        assert len(other) == len(found) and all(row == by_id[row["id"]] for row in other)
        rows += found
    parquet.assert_same(rows, wanted)
    statuses = {row["status"] for row in rows}
    assert statuses == {"success", "error", "pending"}

    if mode == "multipart":
        speaks_as_described(sent)


def speaks_as_described(sent):
    """What makes this client differ from the Python one was really on the wire."""
    encodings, ends, lengths, attachments = set(), set(), 0, 0
    for exchange, plain in multipart_bodies(sent):
        encodings.add(exchange.headers.get("content-encoding"))
        assert exchange.headers.get("transfer-encoding") == "chunked" and "content-length" not in exchange.headers
        assert exchange.headers["content-type"].startswith("multipart/form-data; boundary=----LangSmithFormBoundary")
        heads = re.findall(rb'Content-Disposition: form-data; name="([^"]+)"\r\nContent-Type: ([^\r]+)\r\n\r\n', plain)
        lengths += sum(b"; length=" in kind for _, kind in heads)
        assert all(b"; length=" in kind for _, kind in heads), heads
        attachments += sum(name.startswith(b"attachment.") for name, _ in heads)
    for _, _, fields in expected.operations(sent):
        ends.add(type(fields["end_time"]).__name__ if fields.get("end_time") is not None else None)
    assert "gzip" in encodings
    assert lengths > 50 and attachments > 0
    assert "tuple" in ends, "an end time in whole milliseconds"


def test_a_trace_that_is_on_by_the_environment(world):
    """As the client's own guide says: variables, a wrapped function, nothing else."""
    project = f"js-environment-{world.layout}"
    script = """
        import { createRequire } from "node:module";
        import { pathToFileURL } from "node:url";
        const require = createRequire(`${process.env.TOWPATH_TEST_NODE_MODULES}/`);
        const { traceable } = await import(pathToFileURL(require.resolve("langsmith/traceable")).href);
        const hello = traceable(async (name) => `hello ${name}`, { name: "hello" });
        console.log(await hello("world"));
    """
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "TOWPATH_TEST_NODE_MODULES")} | {
        "LANGSMITH_TRACING": "true",
        "LANGSMITH_ENDPOINT": f"http://{world.api}",
        "LANGSMITH_API_KEY": harness.KEY,
        "LANGSMITH_PROJECT": project,
    }
    command = ["node", "--input-type=module", "--eval", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello world\n", "")
    prefix = f"js/{uuid.uuid4().hex}"
    session, destination = world.project(project), world.file_destination(prefix)
    now, hour = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(hours=1)
    export = world.export(destination, session, (now - hour).isoformat(), (now + hour).isoformat())
    world.completed(export)
    (row,) = parquet.by_pyarrow(parquet.files(world.exports / prefix, export, world.tenant, session))
    assert (row["name"], row["status"]) == ("hello", "success")
    assert json.loads(row["inputs"]) == {"input": "world"}
    assert json.loads(row["outputs"]) == {"outputs": "hello world"}
    assert row["end_time"] >= row["start_time"]
