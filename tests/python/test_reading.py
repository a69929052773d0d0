"""Traces are read back by the official client, unchanged, right after they were acknowledged.

Each test runs on SQLite in one process and on PostgreSQL + Redis with two workers.
"""

import datetime
import urllib.request
import uuid

import pytest
from langsmith import Client
from langsmith.utils import LangSmithError, LangSmithNotFoundError

import harness

T0 = datetime.datetime(2026, 2, 3, 12, tzinfo=datetime.timezone.utc)


@pytest.fixture
def client(world):
    speaking = Client(
        api_url=f"http://{world.api}",
        api_key=harness.KEY,
        workspace_id=world.tenant,
        auto_batch_tracing=False,
    )
    yield speaking
    speaking.cleanup() if hasattr(speaking, "cleanup") else None


def dotted(parent, start, run):
    own = f"{start:%Y%m%dT%H%M%S%f}Z{run}"
    return f"{parent}.{own}" if parent else own


def trace(client, project, number, children=2, error=None):
    """A root and its children, sent as the client sends them; ids, the root first."""
    start = T0 + datetime.timedelta(minutes=number)
    root = uuid.uuid4()
    order = dotted(None, start, root)
    client.create_run(
        id=root, trace_id=root, dotted_order=order, project_name=project, name=f"root-{number}", run_type="chain",
        inputs={"question": f"what is {number}?"}, start_time=start, tags=["even" if number % 2 == 0 else "odd"],
        extra={"metadata": {"number": number, "thread_id": f"thread-{number % 3}"}},
    )
    runs = [root]
    for child in range(children):
        begun = start + datetime.timedelta(seconds=child + 1)
        run = uuid.uuid4()
        client.create_run(
            id=run, trace_id=root, parent_run_id=root, dotted_order=dotted(order, begun, run), project_name=project,
            name=f"child-{child}", run_type="llm", inputs={"messages": [{"role": "user", "content": f"n{number}"}]},
            outputs={"text": "x", "usage_metadata": {"input_tokens": 2, "output_tokens": 3, "total_tokens": 5}},
            start_time=begun, end_time=begun + datetime.timedelta(seconds=1),
        )
        runs.append(run)
    client.update_run(
        root, trace_id=root, dotted_order=order, outputs={"answer": number}, error=error,
        end_time=start + datetime.timedelta(seconds=10),
    )
    return runs


def test_runs_are_listed_and_read(world, client):
    project = f"reading-{uuid.uuid4().hex}"
    traces = [trace(client, project, number, error="boom" if number == 3 else None) for number in range(5)]
    newest_first = [run.id for run in client.list_runs(project_name=project, is_root=True)]
    assert newest_first == [runs[0] for runs in reversed(traces)]
    everything = list(client.list_runs(project_name=project))
    assert {run.id for run in everything} == {run for runs in traces for run in runs}

    root = client.read_run(traces[3][0])
    assert (root.status, root.error, root.outputs) == ("error", "boom", {"answer": 3})
    assert root.inputs == {"question": "what is 3?"}
    assert root.metadata["number"] == 3 and root.tags == ["odd"]
    assert root.end_time - root.start_time == datetime.timedelta(seconds=10)
    whole = client.read_run(traces[1][0], load_child_runs=True)
    assert [child.name for child in whole.child_runs] == ["child-0", "child-1"]
    child = client.read_run(traces[1][1])
    assert (child.total_tokens, child.prompt_tokens, child.completion_tokens) == (5, 2, 3)
    assert child.parent_run_id == traces[1][0] and child.trace_id == traces[1][0]
    with pytest.raises(LangSmithNotFoundError):
        client.read_run(uuid.uuid4())

    def names(**criteria):
        return sorted(run.name for run in client.list_runs(project_name=project, **criteria))

    assert names(error=True) == ["root-3"]
    assert names(run_type="llm", trace_id=traces[2][0]) == ["child-0", "child-1"]
    assert names(filter='and(eq(is_root, true), has(tags, "even"))') == ["root-0", "root-2", "root-4"]
    assert names(filter='and(eq(metadata_key, "number"), eq(metadata_value, 4))') == ["root-4"]
    assert names(filter='and(in(metadata_key, ["session_id", "thread_id"]), eq(metadata_value, "thread-1"))') == [
        "root-1",
        "root-4",
    ]
    assert names(filter='eq(input_key, "messages.content")', trace_filter='search("what is 2")') == ["child-0", "child-1"]
    assert names(filter='gt(latency, "5s")', start_time=T0 + datetime.timedelta(minutes=3)) == ["root-3", "root-4"]
    assert names(is_root=True, tree_filter='neq(error, null)') == ["root-3"]
    assert [run.name for run in client.list_runs(id=[traces[0][0], traces[4][0]])] == ["root-4", "root-0"]
    assert len(list(client.list_runs(project_name=project, limit=4))) == 4


def test_the_second_version_of_queries(world, client):
    project = f"second-{uuid.uuid4().hex}"
    traces = [trace(client, project, number) for number in range(3)]
    session = str(client.read_project(project_name=project).id)
    asked = client._get_langsmith_api_sync().runs.query_v2(
        project_ids=[session], min_start_time=T0 - datetime.timedelta(hours=1), is_root=True, page_size=2,
        selects=["ID", "NAME", "STATUS", "RUN_TYPE", "INPUTS", "TOTAL_TOKENS", "FEEDBACK_STATS", "EXTRA", "START_TIME"],
    )
    runs = list(asked)
    assert [run.id for run in runs] == [str(trace[0]) for trace in reversed(traces)]
    assert (runs[0].name, runs[0].status, runs[0].run_type) == ("root-2", "SUCCESS", "CHAIN")
    one = client._get_langsmith_api_sync().runs.retrieve_v2(
        str(traces[0][1]), project_id=session, start_time=T0, selects=["NAME", "TOTAL_TOKENS", "PARENT_RUN_IDS"]
    )
    assert (one.name, one.total_tokens, one.parent_run_ids) == ("child-0", 5, [str(traces[0][0])])


def test_pages_go_on_to_the_end(world, client):
    project = f"pages-{uuid.uuid4().hex}"
    root = trace(client, project, 0, children=250)[0]
    runs = list(client.list_runs(project_name=project, trace_id=root, select=["id", "start_time"]))
    assert len(runs) == 251 and len({run.id for run in runs}) == 251
    starts = [run.start_time for run in runs]
    assert starts == sorted(starts, reverse=True)


def test_statistics(world, client):
    project = f"stats-{uuid.uuid4().hex}"
    for number in range(4):
        trace(client, project, number, error="boom" if number == 0 else None)
    stats = client.get_run_stats(project_names=[project])
    assert stats["run_count"] == 12 and stats["total_tokens"] == 40
    assert stats["error_rate"] == pytest.approx(1 / 12)
    roots = client.get_run_stats(project_names=[project], is_root=True)
    assert roots["run_count"] == 4 and roots["latency_p50"] == pytest.approx(10, rel=0.02)
    counted = client.read_project(project_name=project, include_stats=True)
    assert counted.run_count == 12


def test_projects(world, client):
    name = f"projects-{uuid.uuid4().hex}"
    made = client.create_project(name, description="first", metadata={"team": name})
    assert client.read_project(project_name=name).id == made.id
    assert client.read_project(project_id=made.id).description == "first"
    assert [found.name for found in client.list_projects(name_contains=name[5:20].upper())] == [name]
    assert [found.name for found in client.list_projects(metadata={"team": name})] == [name]
    assert client.has_project(name)
    changed = client.update_project(made.id, name=name + "-b", description="second", end_time=T0)
    assert (changed.name, changed.description, changed.end_time) == (name + "-b", "second", T0)
    client.delete_project(project_name=name + "-b")
    assert not client.has_project(name + "-b")
    with pytest.raises(LangSmithNotFoundError):
        client.read_project(project_id=made.id)


def test_an_export_takes_a_filter(world, client):
    project = f"filtered-{uuid.uuid4().hex}"
    for number in range(4):
        trace(client, project, number, error="boom" if number == 2 else None)
    destination = world.file_destination(f"filtered/{uuid.uuid4().hex}")
    range_ = ("2026-02-03T00:00:00Z", "2026-02-04T00:00:00Z")
    wanted = 'or(neq(error, null), and(eq(metadata_key, "number"), eq(metadata_value, 1)))'
    export = world.export(destination, world.project(project), *range_, filter=wanted)
    ended = world.completed(export)
    assert ended["filter"] == wanted
    runs = world.call("GET", f"/api/v1/bulk-exports/{export}/runs")
    assert sum(run["metadata"]["result"]["rows_written"] for run in runs) == 2


def test_feedback(world, client):
    project = f"feedback-{uuid.uuid4().hex}"
    runs = [trace(client, project, number)[0] for number in range(2)]
    good = client.create_feedback(runs[0], "good", score=1, comment="yes")
    client.create_feedback(runs[0], "good", score=0.5)
    client.create_feedback(runs[1], "tone", value="kind")
    assert client.read_feedback(good.id).comment == "yes"
    assert len(list(client.list_feedback(run_ids=runs))) == 3
    assert [one.value for one in client.list_feedback(run_ids=runs, feedback_key=["tone"])] == ["kind"]
    stats = client.read_run(runs[0]).feedback_stats
    assert stats["good"]["n"] == 2 and stats["good"]["avg"] == 0.75
    client.update_feedback(good.id, score=0, comment="no")
    assert client.read_feedback(good.id).score == 0
    matching = 'and(eq(feedback_key, "good"), gt(feedback_score, 0.4))'
    assert [run.id for run in client.list_runs(project_name=project, filter=matching)] == [runs[0]]
    assert list(client.list_runs(project_name=project, filter='eq(feedback_source, "model")')) == []
    client.delete_feedback(good.id)
    with pytest.raises(LangSmithNotFoundError):
        client.read_feedback(good.id)
    assert len(list(client.list_feedback(run_ids=runs))) == 2


def test_feedback_through_links(world, client):
    run = trace(client, f"links-{uuid.uuid4().hex}", 0)[0]
    mine = uuid.uuid4()
    score = client.create_presigned_feedback_token(run, "score", feedback_id=mine)
    liked, stars = client.create_presigned_feedback_tokens(
        run, ["liked", "stars"], expiration=datetime.timedelta(days=1),
        feedback_configs=[None, {"type": "continuous", "min": 1, "max": 5}],
    )
    assert score.expires_at < liked.expires_at
    listed = list(client.list_presigned_feedback_tokens(run))
    assert [(one.id, one.url) for one in listed] == [(one.id, one.url) for one in (score, liked, stars)]

    # A caller that has the link needs no key; a click will do.
    stranger = Client(api_url=f"http://{world.api}", api_key="tp_opens-nothing")
    stranger.create_feedback_from_token(score.url, score=0)
    stranger.create_feedback_from_token(score.id, score=1, comment="better", correction={"text": "y"}, metadata={"page": "chat"})
    assert urllib.request.urlopen(f"{liked.url}?score=true&value=yes").status == 200
    with pytest.raises(LangSmithError):
        stranger.create_feedback_from_token(stars.url, score=6)
    stranger.create_feedback_from_token(stars.url, score=4.5)
    with pytest.raises(LangSmithNotFoundError):
        stranger.create_feedback_from_token(uuid.uuid4(), score=1)

    given = {one.key: one for one in client.list_feedback(run_ids=[run])}
    assert {key: one.score for key, one in given.items()} == {"score": 1, "liked": 1, "stars": 4.5}
    assert (given["score"].id, given["score"].comment, given["score"].correction) == (mine, "better", {"text": "y"})
    assert given["score"].feedback_source.metadata == {"page": "chat"} and given["liked"].value == "yes"
    assert client.read_run(run).feedback_stats["stars"]["avg"] == 4.5


def test_attachments_come_back(world):
    project = f"attached-{uuid.uuid4().hex}"
    client = Client(api_url=f"http://{world.api}", api_key=harness.KEY, workspace_id=world.tenant)
    run = uuid.uuid4()
    client.create_run(
        id=run, trace_id=run, dotted_order=dotted(None, T0, run), project_name=project, name="with", run_type="chain",
        inputs={}, start_time=T0, end_time=T0, attachments={"photo": ("image/png", b"\x00\x01png")},
    )
    client.flush()
    read = harness.until("the run", lambda: _found(client, run))
    assert read.attachments["photo"]["reader"].read() == b"\x00\x01png"
    assert read.attachments["photo"]["mime_type"] == "image/png"


def _found(client, run):
    try:
        return client.read_run(run)
    except LangSmithNotFoundError:
        return None
