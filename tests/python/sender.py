"""Sends trees of runs with the official SDK, as a program of its own: the SDK reads its switches from the environment
once, at import. Prints what it was asked to send, as the caller of the SDK sees it.

    python sender.py URL KEY TENANT PROJECT MODE TRACES FIRST_DAY
"""

import datetime
import decimal
import json
import random
import sys
import time
import uuid

from langsmith import Client, traceable
from langsmith.run_helpers import tracing_context
from langsmith.run_trees import RunTree

UTC = datetime.timezone.utc
ODD = ["plain", "", "ünïcödé ✓ 漢字 🦀", 'quo"te\\back', "tab\tnew\nline\r", "nul\u0000", "</script>", "{\"json\": [1]}"]


def client_for(mode, url, key, tenant):
    more = {}
    if mode == "batch":
        limits = {"use_multipart_endpoint": False, "size_limit": 20, "size_limit_bytes": 1 << 20}
        limits |= {"scale_up_nthreads_limit": 1, "scale_up_qsize_trigger": 1000, "scale_down_nempty_trigger": 4}
        more["info"] = {"version": "0.16.14", "batch_ingest_config": limits, "instance_flags": {}}
    if mode == "single":
        more["auto_batch_tracing"] = False
    return Client(api_url=url, api_key=key, workspace_id=tenant, **more)


def link(start, run):
    return start.strftime("%Y%m%dT%H%M%S%fZ") + str(run)


def send_tree(client, project, number, day, dice, told):
    """A root with children and grandchildren: some patched, some posted whole, some failed, some left open."""
    midnight = datetime.datetime.combine(day, datetime.time(), UTC)
    # The first one of a day starts at its very first microsecond, the second at its last.
    offset = {0: 0, 1: 86_399_999_999}.get(number, dice.randrange(86_400_000_000))
    root_start = midnight + datetime.timedelta(microseconds=offset)
    stack = [(None, "", 0, root_start)]
    trace = None
    while stack:
        parent, above, depth, start = stack.pop()
        run = uuid.UUID(int=dice.getrandbits(128), version=4)
        trace = trace or run
        order = (above + "." if above else "") + link(start, run)
        kind = dice.choice(["chain", "llm", "tool", "retriever", "prompt"])
        place = {"trace_id": trace, "dotted_order": order, "parent_run_id": parent}
        inputs = {"text": dice.choice(ODD), "n": dice.randrange(-(2**53), 2**53), "x": dice.random(), "deep": {"a": [1, None, True]}}
        extra = {"metadata": {"user": dice.choice(ODD), "depth": depth}, "invocation_params": {"temperature": 0.5}}
        outputs = {"answer": dice.choice(ODD), "list": [0.1, 1e300, -0.0, 10**30]}
        if kind == "llm":
            went_in, came_out = dice.randrange(10_000), dice.randrange(10_000)
            outputs["usage_metadata"] = {
                "input_tokens": went_in,
                "output_tokens": came_out,
                "total_tokens": went_in + came_out,
                "input_cost": went_in / 1_000_000,
                "output_cost": came_out / 500_000,
                "total_cost": went_in / 1_000_000 + came_out / 500_000,
            }
        events = [{"name": "start", "time": start.isoformat()}]
        if kind == "llm":
            token = start + datetime.timedelta(microseconds=1234)
            events.append({"name": "new_token", "time": token.isoformat(), "kwargs": {"token": "x"}})
        end = start + datetime.timedelta(microseconds=dice.randrange(1, 5_000_000))
        error = dice.choice([None, None, None, f"boom {dice.choice(ODD)}"])
        tags = dice.choice([None, [], ["a"], ["b", dice.choice(ODD)]])
        example = uuid.UUID(int=dice.getrandbits(128), version=4) if dice.random() < 0.1 else None
        fate = dice.choice(["patched", "patched", "whole", "open"])
        post = {"id": run, "start_time": start, "extra": json.loads(json.dumps(extra)), "tags": tags, **place}
        if example:
            post["reference_example_id"] = example
        if fate == "whole":
            post |= {"end_time": end, "outputs": outputs, "events": events, "error": error}
        name = f"{kind} {number}-{depth} {dice.choice(ODD)}"
        client.create_run(name, inputs, kind, project_name=project, **post)
        metadata = dict(extra["metadata"])
        if fate == "patched":
            patch = {"end_time": end, "outputs": outputs, "events": events, "error": error}
            client.update_run(run, extra={"metadata": {"patched": True}}, session_name=project, **patch, **place)
            metadata["patched"] = True
        told.append({"id": str(run), "name": name, "inputs": inputs, "fate": fate, "metadata": metadata})
        if depth < 2:
            for _ in range(dice.randrange(1, 4)):
                later = start + datetime.timedelta(microseconds=dice.randrange(1, 1000))
                # A child of the day's last microsecond would start on the next day.
                stack.append((run, order, depth + 1, min(later, midnight + datetime.timedelta(microseconds=86_399_999_999))))


def ingest_directly(client, project, day, told):
    """What programs do that mirror traces: posts and updates by `multipart_ingest`, one after the other. The client adds
    metadata and runtime of its own to each, also to an update that has none."""
    start = datetime.datetime.combine(day, datetime.time(12), UTC)
    for number, update in enumerate([None, {"stage": "ended"}]):
        run = uuid.uuid4()
        place = {"id": run, "trace_id": run, "dotted_order": link(start, run), "session_name": project}
        metadata = {"user": f"u{number}", "stage": "begun"}
        post = {"name": f"direct {number}", "run_type": "chain", "start_time": start, "inputs": {"a": number}}
        client.multipart_ingest(create=[place | post | {"extra": {"metadata": dict(metadata)}}])
        patch = {"end_time": start + datetime.timedelta(seconds=1), "outputs": {"b": 2}}
        if update:
            patch["extra"] = {"metadata": update}
        client.multipart_ingest(update=[place | patch])
        told.append({"id": str(run), "name": post["name"], "inputs": post["inputs"], "metadata": metadata | (update or {})})


def call_traced(client, project, told):
    """What most users do: decorated functions, and a RunTree by hand."""

    @traceable(run_type="tool", name="leaf", client=client)
    def leaf(x):
        if x == 2:
            raise ValueError("two is not allowed")
        return {"leaf": x}

    @traceable(run_type="chain", name="stem", client=client, tags=["decorated"], metadata={"kind": "traceable"})
    def stem(xs):
        done = []
        for x in xs:
            try:
                done.append(leaf(x))
            except ValueError as error:
                done.append(str(error))
        return done

    with tracing_context(enabled=True, project_name=project, client=client):
        stem([1, 2, 3])
    tree = RunTree(name="by hand", run_type="chain", inputs={"q": 1}, project_name=project, client=client)
    tree.post()
    child = tree.create_child(name="hand child", run_type="llm", inputs={"p": "hi"})
    child.post()
    child.end(outputs={"o": "ho", "usage_metadata": {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}})
    child.patch()
    tree.end(outputs={"a": 2})
    tree.patch()
    told.extend({"name": name} for name in ["stem", "leaf", "leaf", "leaf", "by hand", "hand child"])


def main():
    url, key, tenant, project, mode, traces, first_day = sys.argv[1:]
    dice = random.Random(f"{project} {mode}")
    client = client_for(mode, url, key, tenant)
    limit = time.monotonic() + 30
    while mode == "zstd" and client.compressed_traces is None and time.monotonic() < limit:
        # It compresses once it has read /info.
        time.sleep(0.01)
    first, told = datetime.date.fromisoformat(first_day), []
    for number in range(int(traces)):
        for day in range(3):
            send_tree(client, project, number, first + datetime.timedelta(days=day), dice, told)
    if mode in ("zstd", "identity"):
        ingest_directly(client, project, first, told)
    call_traced(client, project, told)
    client.flush()
    json.dump(told, sys.stdout, default=lambda value: str(value) if isinstance(value, decimal.Decimal) else repr(value))


if __name__ == "__main__":
    main()
