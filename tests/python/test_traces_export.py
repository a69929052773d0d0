"""The main walk, end to end: the official SDK sends, an export runs, two foreign readers of Parquet compare.

Each test runs on SQLite in one process and on PostgreSQL + Redis with two workers.
"""

import datetime
import json
import os
import pathlib
import subprocess
import sys
import uuid

import pytest

import expected
import harness
import parquet
from recorder import Recorder

HERE = pathlib.Path(__file__).parent
# Three days around the end of a leap February, the second one being its 29th.
FIRST_DAY, END = "2024-02-28", "2024-03-02"
PAST = f"{FIRST_DAY}T00:00:00Z", f"{END}T00:00:00Z"
MODES = {
    "zstd": {},
    "identity": {"LANGSMITH_DISABLE_RUN_COMPRESSION": "true"},
    "batch": {},
    "single": {},
}


# Programs that have the SDK: in the release that the suite itself runs with, and in the newest one.
SENDERS = {"pinned": sys.executable, "newest": os.environ.get("TOWPATH_TEST_NEWEST_PYTHON")}
REVISION = "r-2026.1"


def send(url, tenant, project, mode, traces, sender="pinned"):
    """Runs the SDK in a process of its own; what it was asked to send."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TOWPATH_TEST_POSTGRES")} | MODES[mode]
    # The SDK puts it into the metadata of everything it sends.
    environment["LANGCHAIN_REVISION_ID"] = REVISION
    command = [SENDERS[sender], str(HERE / "sender.py"), url, harness.KEY, tenant, project, mode, str(traces), FIRST_DAY]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    # The SDK reports what it had to drop as a warning and continues.
    for trouble in ("Failed to", "dropped", "error sending"):
        assert trouble.lower() not in done.stderr.lower(), done.stderr
    return json.loads(done.stdout)


def in_the_past(rows):
    """Those of the three days, without what the SDK's decorators traced just now."""
    return {run: row for run, row in rows.items() if row["start_time"] < datetime.datetime.fromisoformat(END)}


@pytest.fixture
def recorder(world):
    recording = Recorder(world.api)
    yield recording
    recording.close()


@pytest.fixture
def prefix():
    return f"e2e/{uuid.uuid4().hex}"


def read_back(world, prefix, export, project):
    """Rows by both readers; they have to agree, with each other and with what the platform says."""
    files = parquet.files(world.exports / prefix, export, world.tenant, project)
    rows = parquet.by_pyarrow(files)
    runs = world.call("GET", f"/api/v1/bulk-exports/{export}/runs")
    assert sum(run["metadata"]["result"]["rows_written"] for run in runs) == len(rows)
    assert parquet.manifest(world.exports / prefix, export) is not None, "complete means there is a manifest"
    by_id = {row["id"]: row for row in rows}
    other = parquet.by_duckdb(files)
    assert len(other) == len(rows)
    for row in other:
        assert row == by_id[row["id"]]
    return rows


@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("mode", MODES)
def test_every_value_comes_back(world, recorder, prefix, mode, sender):
    if not SENDERS[sender]:
        pytest.skip("TOWPATH_TEST_NEWEST_PYTHON is not set")
    project = f"values-{mode}-{sender}-{world.layout}"
    told = send(recorder.url, world.tenant, project, mode, traces=6 if mode != "single" else 2, sender=sender)
    # Right after the last 202: nothing waits for the ingest to settle.
    session, destination = world.project(project), world.file_destination(prefix)
    now, hour = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(hours=1)
    # The trees are on three days of the past; the decorated functions ran just now.
    past = world.export(destination, session, *PAST)
    today = world.export(destination, session, (now - hour).isoformat(), (now + hour).isoformat())

    sent = recorder.ingested()
    assert {exchange.path for exchange in sent} >= {{"batch": "/runs/batch", "single": "/runs"}.get(mode, "/runs/multipart")}
    # With compression the SDK may still send its first body as it is, before it has read /info.
    assert ("zstd" in {exchange.headers.get("content-encoding") for exchange in sent}) == (mode == "zstd")
    wanted = expected.rows(sent, world.tenant, session)
    # The recording holds what the SDK was asked to send, so a loss cannot hide in the recorder.
    assert len(wanted) == len(told)
    verbs = {(verb, run) for verb, run, _ in expected.operations(sent)}
    for run in told:
        if "id" in run:
            assert wanted[run["id"]]["name"] == run["name"]
            assert wanted[run["id"]]["inputs"] == expected.exact(json.dumps(run["inputs"]))
            # A post and its update that wait together become one post in the SDK, with the metadata of the update alone.
            if run.get("fate") == "patched" and ("patch", run["id"]) not in verbs:
                run["fate"] = "combined"
                continue
            # Whatever the SDK adds to an update, what the caller said before it stays.
            metadata = expected.exact(json.dumps(run["metadata"] | {"revision_id": REVISION}))
            found = wanted[run["id"]]["extra"]["metadata"]
            assert {key: found.get(key) for key in metadata} == metadata

    rows = []
    for export in (past, today):
        world.completed(export)
        rows += read_back(world, prefix, export, session)
    parquet.assert_same(rows, wanted)

    # A filter sees what post and patch said together.
    patched = [run["id"] for run in told if run.get("fate") == "patched" and run["metadata"]["depth"] == 0]
    both = """and(has(metadata, '{"patched": true}'), has(metadata, '{"depth": 0}'))"""
    found = world.call("POST", "/runs/query", {"session": [session], "filter": both, "limit": 100})
    assert sorted(run["id"] for run in found["runs"]) == sorted(patched)


def test_a_range_is_cut_exactly(world, recorder, prefix):
    project = f"range-{world.layout}"
    send(recorder.url, world.tenant, project, "zstd", traces=4)
    session, destination = world.project(project), world.file_destination(prefix)
    wanted = expected.rows(recorder.ingested(), world.tenant, session)
    begins = sorted(row["start_time"] for row in in_the_past(wanted).values())
    # Inclusive start, exclusive end, both at the very instant of a run.
    start, end = begins[len(begins) // 4], begins[3 * len(begins) // 4]
    export = world.export(destination, session, start.isoformat() + "Z", end.isoformat() + "Z")
    world.completed(export)
    rows = read_back(world, prefix, export, session)
    parquet.assert_same(rows, {run: row for run, row in wanted.items() if start <= row["start_time"] < end})


def test_fewer_fields_are_the_same_values(world, recorder, prefix):
    project = f"fields-{world.layout}"
    send(recorder.url, world.tenant, project, "zstd", traces=1)
    session, destination = world.project(project), world.file_destination(prefix)
    wanted = expected.rows(recorder.ingested(), world.tenant, session)
    fields = ["id", "name", "start_time", "inputs", "total_cost"]
    export = world.export(destination, session, *PAST, export_fields=fields)
    world.completed(export)
    files = parquet.files(world.exports / prefix, export, world.tenant, session)
    rows = parquet.by_pyarrow(files, fields)
    parquet.assert_same(rows, in_the_past(wanted))


def without_zone(row):
    """Times of `v2_beta` say that they are UTC; those of `v1` only are."""
    naive = {name: value.astimezone(datetime.timezone.utc).replace(tzinfo=None) for name, value in row.items()
             if isinstance(value, datetime.datetime)}
    return row | naive


@pytest.mark.parametrize("compression", ["zstandard", "gzip", "snappy", "none"])
def test_v2_beta_is_read_by_both_readers(world, recorder, prefix, compression):
    project = f"v2-{compression}-{world.layout}"
    send(recorder.url, world.tenant, project, "zstd", traces=2)
    session, destination = world.project(project), world.file_destination(prefix)
    wanted = in_the_past(expected.rows(recorder.ingested(), world.tenant, session))
    export = world.export(destination, session, *PAST, format_version="v2_beta", compression=compression)
    record = world.completed(export)
    assert (record["format_version"], record["compression"]) == ("v2_beta", compression)
    files = parquet.files(world.exports / prefix, export, world.tenant, session, "resource=runs")
    rows = [without_zone(row) for row in parquet.by_pyarrow(files, types=parquet.V2)]
    parquet.assert_same(rows, wanted)
    assert {row["id"] for row in parquet.by_duckdb(files)} == wanted.keys()
    # Every folder is a key and its value, so readers find the columns of the path by themselves.
    parts = files[0].relative_to(world.exports / prefix).parts[:-1]
    assert all("=" in part for part in parts), parts
    assert parquet.manifest(world.exports / prefix, export)["format_version"] == "v2_beta"


def test_a_schedule_makes_up_for_what_is_past(world, recorder, prefix):
    """Three days in ranges of 24 hours, all long over: each is exported once."""
    project = f"schedule-{world.layout}"
    send(recorder.url, world.tenant, project, "zstd", traces=2)
    session, destination = world.project(project), world.file_destination(prefix)
    wanted = expected.rows(recorder.ingested(), world.tenant, session)
    # The first range begins so that the last one that is over ends some hours ago.
    now = datetime.datetime.now(datetime.timezone.utc).replace(minute=0, second=0, microsecond=0)
    start = now - datetime.timedelta(hours=3 * 24 + 2)
    body = {"bulk_export_destination_id": destination, "session_id": session, "start_time": start.isoformat()}
    schedule = world.call("POST", "/api/v1/bulk-exports", body | {"interval_hours": 24})
    assert (schedule["status"], schedule["end_time"], schedule["interval_hours"]) == ("RUNNING", None, 24)
    spawned = f"/api/v1/bulk-exports?source_bulk_export_id={schedule['id']}"

    def ended():
        found = world.call("GET", spawned)
        return found if len(found) == 3 and all(e["status"] in harness.FINAL for e in found) else None

    found = harness.until("three exports to be spawned and to end", ended)
    day = datetime.timedelta(hours=24)
    starts = sorted(datetime.datetime.fromisoformat(export["start_time"]) for export in found)
    assert starts == [start, start + day, start + 2 * day]
    assert {export["status"] for export in found} == {"COMPLETED"}
    runs = world.call("GET", f"/api/v1/bulk-exports/runs?source_bulk_export_id={schedule['id']}")
    within = [row for row in wanted.values() if starts[0] <= row["start_time"].replace(tzinfo=datetime.timezone.utc) < starts[2] + day]
    assert sum(run["metadata"]["result"]["rows_written"] for run in runs) == len(within)
    cancelled = world.call("PATCH", f"/api/v1/bulk-exports/{schedule['id']}", {"status": "Cancelled"})
    assert cancelled["status"] == "CANCELLED"
    assert len(world.call("GET", spawned)) == 3


def test_an_empty_range_completes_without_files(world, recorder, prefix):
    project = f"empty-{world.layout}"
    send(recorder.url, world.tenant, project, "zstd", traces=1)
    session, destination = world.project(project), world.file_destination(prefix)
    export = world.export(destination, session, "2020-01-01T00:00:00Z", "2020-01-03T00:00:00Z")
    world.completed(export)
    assert read_back(world, prefix, export, session) == []


def test_updates_by_path_and_runs_without_a_place(world, prefix):
    """POST /runs without dotted_order, then PATCH /runs/{id}, both ways round."""
    project, tenant = f"by-path-{world.layout}", world.tenant
    first, second, child = (str(uuid.uuid4()) for _ in range(3))
    start = "2026-05-04T10:00:00.000001Z"
    body = {"name": "bare", "run_type": "chain", "start_time": start, "session_name": project, "inputs": {"a": 1}}
    world.call("POST", "/runs", body | {"id": first}, 202)
    world.call("PATCH", f"/runs/{first}", {"end_time": "2026-05-04T10:00:01Z", "outputs": {"b": 2}}, 202)
    # The patch comes before its post and names its place itself.
    late = {"end_time": "2026-05-04T10:00:02Z", "error": "late", "start_time": start, "session_name": project}
    world.call("PATCH", f"/runs/{second}", late, 202)
    world.call("POST", "/runs", body | {"id": second, "name": "posted second"}, 202)
    world.call("POST", "/runs", body | {"id": child, "parent_run_id": first}, 202)
    # A second post of an id says nothing.
    world.call("POST", "/runs", body | {"id": first, "name": "again"}, 202)

    session, destination = world.project(project), world.file_destination(prefix)
    export = world.export(destination, session, "2026-05-04T00:00:00Z", "2026-05-05T00:00:00Z")
    world.completed(export)
    rows = {row["id"]: row for row in read_back(world, prefix, export, session)}
    assert rows.keys() == {first, second, child}
    assert (rows[first]["name"], rows[first]["status"]) == ("bare", "success")
    assert json.loads(rows[first]["outputs"]) == {"b": 2}
    assert rows[first]["is_root"] and rows[first]["trace_id"] == first
    assert (rows[second]["name"], rows[second]["status"], rows[second]["error"]) == ("posted second", "error", "late")
    assert rows[child]["parent_run_id"] == first and rows[child]["parent_run_ids"] == [first]
    assert {row["tenant_id"] for row in rows.values()} == {tenant}


def test_a_late_update_reaches_later_exports(world, prefix):
    """The first export has the run as it was, the next one as it became."""
    project, run = f"late-{world.layout}", str(uuid.uuid4())
    start = "2026-06-01T10:00:00Z"
    body = {"name": "slow", "run_type": "llm", "start_time": start, "session_name": project, "id": run}
    body |= {"trace_id": run, "dotted_order": f"20260601T100000000000Z{run}"}
    world.call("POST", "/runs/batch", {"post": [body], "patch": []}, 202)
    session, destination = world.project(project), world.file_destination(prefix)
    seen = []
    for patch in ({"end_time": "2026-06-01T10:00:05Z"}, {"error": "too late", "end_time": "2026-06-01T10:00:06Z"}, None):
        export = world.export(destination, session, "2026-06-01T00:00:00Z", "2026-06-02T00:00:00Z")
        world.completed(export)
        (row,) = read_back(world, prefix, export, session)
        seen.append(row["status"])
        if patch:
            keys = {key: body[key] for key in ("id", "trace_id", "dotted_order")}
            world.call("POST", "/runs/batch", {"post": [], "patch": [keys | patch]}, 202)
    assert seen == ["pending", "success", "error"]


def test_lists_show_the_newest_first(world, recorder, prefix):
    project = f"lists-{world.layout}"
    send(recorder.url, world.tenant, project, "zstd", traces=1)
    session, destination = world.project(project), world.file_destination(prefix)
    made = [world.export(destination, session, "2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z") for _ in range(3)]
    listed = [export["id"] for export in world.call("GET", "/api/v1/bulk-exports")]
    assert listed[:3] == made[::-1]
    for export in made:
        world.completed(export)


def test_cancelling_is_final(world, recorder, prefix):
    project = f"cancel-{world.layout}"
    send(recorder.url, world.tenant, project, "zstd", traces=1)
    session, destination = world.project(project), world.file_destination(prefix)
    export = world.export(destination, session, "2020-01-01T00:00:00Z", "2020-12-31T00:00:00Z")
    status, answer = world.request("PATCH", f"/api/v1/bulk-exports/{export}", {"status": "Cancelled"})
    if status == 400:  # it was over already
        world.completed(export)
        return
    assert status == 200, answer
    assert world.ended(export)["status"] == "CANCELLED"
    world.call("PATCH", f"/api/v1/bulk-exports/{export}", {"status": "CANCELLED"})
    runs = world.call("GET", f"/api/v1/bulk-exports/{export}/runs")
    harness.until(
        "every run of the cancelled export to end",
        lambda: True
        if all(run["status"] in harness.FINAL for run in world.call("GET", f"/api/v1/bulk-exports/{export}/runs"))
        else None,
    )
    assert parquet.manifest(world.exports / prefix, export) is None, runs


def test_a_deleted_destination_fails_what_is_on_its_way(world, recorder, prefix):
    project = f"deleted-{world.layout}"
    send(recorder.url, world.tenant, project, "zstd", traces=1)
    session, kept, doomed = world.project(project), world.file_destination(prefix), world.file_destination(f"{prefix}-2")
    finished = world.export(doomed, session, *PAST)
    world.completed(finished)
    pause(world, "pause")
    try:
        planned = world.export(doomed, session, "2020-01-01T00:00:00Z", "2020-01-04T00:00:00Z")
        runs = f"/api/v1/bulk-exports/{planned}/runs"
        harness.until("the export to be planned", lambda: world.call("GET", runs) or None)
        asked = {"bulk_export_destination_id": doomed, "session_id": session}
        every_hour = asked | {"start_time": "2090-01-01T00:00:00Z", "interval_hours": 1}
        schedule = world.call("POST", "/api/v1/bulk-exports", every_hour)["id"]
        path = f"/api/v1/bulk-exports/destinations/{doomed}"
        assert world.request("DELETE", path)[0] == 204
        assert [world.request(method, path)[0] for method in ("DELETE", "GET", "DELETE")] == [404] * 3
        failed = world.call("GET", f"/api/v1/bulk-exports/{planned}")
        assert (failed["status"], failed["error"]) == ("FAILED", "the destination was deleted")
        for run in world.call("GET", runs):
            assert (run["status"], run["errors"]) == ("FAILED", {"retry_0": "the destination was deleted"})
        stopped = world.call("GET", f"/api/v1/bulk-exports/{schedule}")
        assert (stopped["status"], stopped["error"]) == ("CANCELLED", "the destination was deleted")
        again = asked | {"start_time": PAST[0], "end_time": PAST[1]}
        assert world.request("POST", "/api/v1/bulk-exports", again)[0] == 404
    finally:
        pause(world, "resume")
    shown = world.call("GET", f"/api/v1/bulk-exports/{finished}")
    assert (shown["status"], shown["bulk_export_destination_id"]) == ("COMPLETED", doomed)
    assert read_back(world, f"{prefix}-2", finished, session)
    assert kept in [destination["id"] for destination in world.call("GET", "/api/v1/bulk-exports/destinations")]
    world.completed(world.export(kept, session, *PAST))
    assert world.orphans() == []


def pause(world, action):
    """Parts of exports are claimed no more, or again."""
    world.call("POST", f"/internal/queues/export_parts/{action}")
