"""Changes of generated requests before they are sent, two of them.

They stay on this machine: what names an S3 endpoint, or leaves it to the native one, gets the stand-in of `run.py` in
its place, unless it is no valid endpoint. And a null of an earlier answer (a job without a worker) is no id to go on
with, though the tool takes it for one.
"""

import os

import schemathesis

ENDPOINT = os.environ["TOWPATH_CONTRACT_STAND_IN"]
NOBODY = "0194fdc2-fa2f-7cc0-81d3-ff120745ac1d"


@schemathesis.hook
def before_call(context, case, kwargs):
    for name, value in (case.path_parameters or {}).items():
        if value in (None, "None"):
            case.path_parameters[name] = NOBODY
    body = case.body
    if not isinstance(body, dict) or body.get("destination_type") != "s3" or not isinstance(body.get("config"), dict):
        return
    asked = body["config"].get("endpoint_url")
    native = asked is None
    foreign = isinstance(asked, str) and asked.startswith(("http://", "https://")) and len(asked) <= 2048
    if native or foreign:
        case.body = body | {"config": body["config"] | {"endpoint_url": ENDPOINT}}
