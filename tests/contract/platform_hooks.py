"""Changes of generated requests before they are sent.

They stay on this machine: an S3 endpoint, the host of an integration, a repository and an image give way to the stand-in
of `run.py`, unless they are none. A null of an earlier answer (a job without a worker) is no id to go on with, though the
tool takes it for one. The key of the requests is never rotated: every later request would be refused. The only worker of a
server is not drained, nor its pool of sandboxes: jobs of later requests would never run. And some name what is there: see
`seeds.py`.
"""

import os

import schemathesis
from seeds import SEEDS, name_what_is_there

ENDPOINT = os.environ["TOWPATH_CONTRACT_STAND_IN"]
NOBODY = "0194fdc2-fa2f-7cc0-81d3-ff120745ac1d"
ADDRESSES = ("http://", "https://", "ssh://", "file://")


def is_foreign(address, most) -> bool:
    return isinstance(address, str) and address.startswith(ADDRESSES) and len(address) <= most


def stay_here(body):
    """The same body without an address of elsewhere."""
    config = body.get("config")
    if body.get("destination_type") == "s3" and isinstance(config, dict):
        asked = config.get("endpoint_url")
        # None leaves it to the native one.
        if asked is None or is_foreign(asked, 2048):
            body = body | {"config": config | {"endpoint_url": ENDPOINT}}
    source = body.get("source_config")
    if isinstance(source, dict) and is_foreign(source.get("repo_url"), 1024):
        body = body | {"source_config": source | {"repo_url": f"{ENDPOINT}/owner/repository"}}
    revision = body.get("source_revision_config")
    if isinstance(revision, dict) and isinstance(revision.get("image_uri"), str) and revision["image_uri"][:1].isalnum():
        image = ENDPOINT.removeprefix("http://") + "/image:1"
        body = body | {"source_revision_config": revision | {"image_uri": image}}
    return body


@schemathesis.hook
def before_call(context, case, kwargs):
    for name, value in (case.path_parameters or {}).items():
        rotates_own_key = value == SEEDS["own_key"] and case.path.endswith("/rotate")
        drains_only_worker = name == "worker_id" and SEEDS["layout"] == "embedded" and case.path.endswith("/drain")
        if value in (None, "None") or rotates_own_key or drains_only_worker:
            case.path_parameters[name] = NOBODY
        if name == "pool" and value == "sandboxes" and case.path.endswith(("/pause", "/drain")):
            case.path_parameters[name] = "sweeps"
    name_what_is_there(case)
    if not isinstance(case.body, dict):
        return
    stays = stay_here(case.body)
    is_integration = case.method.upper() == "POST" and case.path.endswith("/v1/integrations/github")
    if is_integration and (stays.get("api_url") is None or is_foreign(stays["api_url"], 2048)):
        stays = stays | {"api_url": ENDPOINT}
    if stays is not case.body:
        case.body = stays
