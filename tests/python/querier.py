"""A program as its author would write it: traces three turns of two threads and asks about them with `client.runs`,
`client.traces` and `client.threads`. Runs with a release of the official client that has these; prints what it saw as JSON.

    python querier.py URL KEY WORKSPACE PROJECT
"""

import asyncio
import datetime
import json
import sys
import uuid

from langsmith import Client


def trace(client, project, number, thread, error=None):
    """A chain with a model call, and its id."""
    start = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(minutes=10 - number)
    later, end = start + datetime.timedelta(seconds=1), start + datetime.timedelta(seconds=4)
    stamp = lambda time: time.strftime("%Y%m%dT%H%M%S%fZ")
    root, child = uuid.uuid4(), uuid.uuid4()
    order = f"{stamp(start)}{root}"
    client.create_run(
        "turn", {"question": number}, "chain", id=root, trace_id=root, dotted_order=order, project_name=project,
        start_time=start, end_time=end, outputs={"answer": number}, error=error,
        extra={"metadata": {"thread_id": thread}},
    )
    client.create_run(
        "model", {}, "llm", id=child, trace_id=root, parent_run_id=root, dotted_order=f"{order}.{stamp(later)}{child}",
        project_name=project, start_time=later, end_time=end,
        outputs={"usage_metadata": {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}},
    )
    return str(root)


async def ask(client, project, roots):
    named = {root: number for number, root in enumerate(roots)}
    runs = client.runs.query_v2(project_ids=[project], run_type="LLM", selects=["NAME", "TOTAL_TOKENS"], page_size=2)
    models = [(run.name, run.total_tokens) async for run in runs]
    streamed = [
        run.name async for run in client.runs.streaming.query_v2_items(project_ids=[project], is_root=True, selects=["NAME"], page_size=1)
    ]
    subtrees = client.runs.query_v2(
        project_ids=[project], is_root=True, include_subtree_usage=True, selects=["TOTAL_TOKENS", "COMPLETION_TOKENS"]
    )
    subtrees = [(named[run.id], run.total_tokens, run.completion_tokens) async for run in subtrees]
    traces = client.traces.query(project_id=project, selects=["NAME", "TOTAL_TOKENS"], page_size=2)
    traces = [(named[one.root_run.id], one.root_run.name, one.trace_aggregates.total_tokens) async for one in traces]
    failed = client.traces.query(project_id=project, trace_filter='eq(status, "error")')
    failed = [named[one.root_run.id] async for one in failed]
    children = await client.traces.list_runs(roots[0], project_id=project, selects=["NAME", "STATUS"])
    threads = [
        (one.thread_id, one.count, one.num_errored_turns, one.total_tokens, named[one.last_trace_id])
        async for one in client.threads.query(project_id=project, page_size=1)
    ]
    turns = client.threads.list_traces("a", project_id=project, selects=["NAME", "TOTAL_TOKENS"], page_size=1)
    turns = [(named[one.trace_id], one.name, one.total_tokens) async for one in turns]
    stats = await client.threads.stats("a", session_id=project, selects=["TURNS", "LATENCY_P50", "TOTAL_TOKENS"])
    total = await client.threads.aggregate_stats(project_id=project, select=["THREAD_COUNT", "TRACE_COUNT", "TOTAL_TOKENS"])
    address = await client.runs.get_url(roots[0], project_id=project, trace_id=roots[0])
    return {
        "models": models,
        "streamed": streamed,
        "subtrees": subtrees,
        "traces": traces,
        "failed": failed,
        "children": [(run.name, run.status) for run in children.items],
        "threads": threads,
        "turns": turns,
        "stats": [stats.turns, round(stats.latency_p50_seconds, 1), stats.total_tokens],
        "total": [total.thread_count, total.trace_count, total.total_tokens],
        "address": address.url.split("?")[0].endswith(f"/ui/traces/{project}/{roots[0]}"),
    }


def main(url, key, workspace, name):
    client = Client(api_url=url, api_key=key, workspace_id=workspace, auto_batch_tracing=False)
    roots = [trace(client, name, 0, "a"), trace(client, name, 1, "b"), trace(client, name, 2, "a", error="boom")]
    project = str(client.read_project(project_name=name).id)
    print(json.dumps(asyncio.run(ask(client, project, roots))))


main(*sys.argv[1:])
