"""Changes of generated requests before they are sent.

Webhooks go to the stand-in of `run.py`, so they stay on this machine. A null of an earlier answer (a thread without
a checkpoint) is no id to go on with, though the tool takes it for one. Runs without a thread are kept when they are over:
one that goes may be gone before the tool looks whether it is there. Graphs that take their time give way to one that does
not. Crons are made asleep: there is one for every time zone, and most schedules fire every minute. And some requests name
what is there: see `seeds.py`. The assistants that come with graphs stay as they are, because runs are started by their names.
"""

import json
import os
import pathlib

import schemathesis
from seeds import name_what_is_there

GRAPHS = json.loads((pathlib.Path(__file__).parents[1] / "agent" / "graphs.json").read_text())["graphs"]

NOBODY = "0194fdc2-fa2f-7cc0-81d3-ff120745ac1d"
STAND_IN = os.environ["TOWPATH_CONTRACT_STAND_IN"]


@schemathesis.hook
def before_call(context, case, kwargs):
    for name, value in (case.path_parameters or {}).items():
        if value in (None, "None", "null"):
            case.path_parameters[name] = NOBODY
        if name == "assistant_id" and value in GRAPHS and case.method.upper() in ("PATCH", "DELETE"):
            case.path_parameters[name] = NOBODY
    name_what_is_there(case)
    if case.method.upper() == "POST" and case.path.startswith("/threads/") and case.path.endswith(("}/stream", "/stream/events")):
        # What is accepted does not end; what is refused is refused at once.
        kwargs["timeout"] = 1
    for body in case.body if isinstance(case.body, list) else [case.body]:
        if not isinstance(body, dict):
            continue
        if isinstance(body.get("webhook"), str) and body["webhook"].startswith("http"):
            body["webhook"] = STAND_IN
        if isinstance(body.get("assistant_id"), str) and body["assistant_id"] in GRAPHS:
            body["assistant_id"] = "agent"
    if case.method.upper() != "POST" or not isinstance(case.body, dict):
        return
    if case.path == "/runs" and case.body.get("on_completion") in (None, "delete"):
        case.body["on_completion"] = "keep"
    if case.path.endswith("/runs/crons") and case.body.get("enabled") in (None, True):
        case.body["enabled"] = False
