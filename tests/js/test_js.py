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
# The release that users have pinned, and the newest one: packages of package.json.
RELEASES = ("langsmith", "langsmith-newest")


def send(url, tenant, project, mode, trees):
    """Runs the client in a process of its own; what it was asked to send."""
    command = ["node", str(HERE / "sender.mjs"), url, harness.KEY, tenant, project, mode, str(trees), FIRST_DAY]
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "TOWPATH_TEST_NODE_MODULES")}
    done = subprocess.run(command, env=inherited, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    # The client reports what it had to drop as a warning and continues.
    assert done.stderr.strip() == "", done.stderr
    return json.loads(done.stdout)


def tracing(world):
    """The variables by which the client finds the server."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "TOWPATH_TEST_NODE_MODULES")} | {
        "LANGSMITH_TRACING": "true",
        "LANGSMITH_ENDPOINT": f"http://{world.api}",
        "LANGSMITH_API_KEY": harness.KEY,
        "LANGSMITH_WORKSPACE_ID": world.tenant,
    }


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


@pytest.mark.parametrize("release", RELEASES)
def test_two_experiments_are_evaluated_and_compared(world, release):
    name = f"js-questions-{uuid.uuid4().hex}"
    command = ["node", str(HERE / "evaluator.mjs"), release, f"http://{world.api}", harness.KEY, world.tenant, name]
    done = subprocess.run(command, env=tracing(world), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    # A failed target or evaluator is reported here, and the evaluation continues.
    assert "Error" not in done.stderr, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "rows": ["boat", "canal", "lock"],
        "exact": [1, 1, 1],
        "loud": ["BOAT", "CANAL"],
        "compared": [[0, 1], [0, 1]],
        "address": True,
        # Its three runs of a tool are not counted.
        "counted": [3, 3, 1],
        "attached": {"lock": "lock", "boat": "boat", "canal": "canal"},
        "modified": True,
        "before": {"answer": "lock"},
        "after": {"answer": "gate"},
        "splits": ["hard", "test", "train"],
        "experiments": 2,
        "gone": True,
    }


@pytest.mark.parametrize("release", RELEASES)
def test_the_vitest_plugin_records_cases_as_examples(world, tmp_path, release):
    suite = f"js-cases-{uuid.uuid4().hex}"
    modules = pathlib.Path(os.environ["TOWPATH_TEST_NODE_MODULES"])
    (tmp_path / "node_modules").symlink_to(modules)
    cases = (HERE / "cases.mjs").read_text().replace("NAME OF THE SUITE", suite)
    (tmp_path / "cases.test.mjs").write_text(cases.replace('"langsmith/', f'"{release}/'))
    # Its cache would be in the folder of all packages.
    # The machine may stall longer than the defaults of 5 s and 10 s.
    waits = "testTimeout: 120000, hookTimeout: 120000"
    config = f'export default {{ cacheDir: "cache", test: {{ {waits}, reporters: ["{release}/vitest/reporter"] }} }};\n'
    (tmp_path / "vitest.config.mjs").write_text(config)
    command = ["node", str(modules / "vitest" / "vitest.mjs"), "run", "--root", str(tmp_path)]
    environment = tracing(world) | {"NO_COLOR": "1", "TMPDIR": str(tmp_path)}
    # The examples of the second run exist already.
    for _ in range(2):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert "1 failed | 2 passed" in done.stdout, done.stdout + done.stderr
        assert f'Experiment starting for dataset "{suite}"' in done.stdout

    (dataset,) = world.call("GET", f"/datasets?name={suite}")
    assert dataset["example_count"] == 3 and dataset["metadata"] == {"__ls_runner": "vitest"}
    hard = world.call("GET", f"/examples?dataset={dataset['id']}&splits=hard")
    assert [(one["inputs"], one["outputs"]) for one in hard] == [({"number": 3}, {"double": 6})]
    assert hard[0]["metadata"] == {"of": "vitest", "dataset_split": ["hard"]}
    experiments = world.call("GET", f"/sessions?reference_dataset={dataset['id']}&include_stats=true")
    assert len(experiments) == 2
    for experiment in experiments:
        assert experiment["run_count"] == 3
        given = {key: (stats["n"], round(stats["avg"], 2)) for key, stats in experiment["feedback_stats"].items()}
        assert given == {"pass": (3, 0.67), "near": (2, 0.9), "exact": (1, 1)}
        asked = {"session_ids": [experiment["id"]], "limit": 100}
        rows = world.call("POST", f"/datasets/{dataset['id']}/runs", asked)
        results = {row["inputs"]["number"]: run for row in rows for run in row["runs"]}
        assert {number: bool(run["error"]) for number, run in results.items()} == {1: False, 2: True, 3: False}
        assert [results[number]["outputs"] for number in (1, 3)] == [{"double": 2}, {"double": 6}]


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
