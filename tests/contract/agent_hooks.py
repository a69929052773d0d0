"""Changes of generated requests before they are sent, three of them.

Webhooks go to the stand-in of `run.py`, so they stay on this machine. A null of an earlier answer (a thread without
a checkpoint) is no id to go on with, though the tool takes it for one. And runs without a thread are kept when they are
over: one that goes may be gone before the tool looks whether it is there.
"""

import os

import schemathesis

NOBODY = "0194fdc2-fa2f-7cc0-81d3-ff120745ac1d"
STAND_IN = os.environ["TOWPATH_CONTRACT_STAND_IN"]


@schemathesis.hook
def before_call(context, case, kwargs):
    for name, value in (case.path_parameters or {}).items():
        if value in (None, "None", "null"):
            case.path_parameters[name] = NOBODY
    for body in case.body if isinstance(case.body, list) else [case.body]:
        if isinstance(body, dict) and isinstance(body.get("webhook"), str) and body["webhook"].startswith("http"):
            body["webhook"] = STAND_IN
    if (case.method.upper(), case.path) == ("POST", "/runs") and isinstance(case.body, dict):
        case.body.setdefault("on_completion", "keep")
        if case.body["on_completion"] in (None, "delete"):
            case.body["on_completion"] = "keep"
