"""What is on a server before generated requests reach it, and how they come to name it.

The tool finds ids of its own in its last phase only. In the phases before, every other id that it made up gives way to one
that is there, so that the server is seen with data. What is wrong on purpose stays wrong, and nothing is deleted.
"""

import itertools
import json
import os
import uuid

STARTED = "2026-03-01T12:00:00Z"
GUESSING = {"examples", "coverage", "fuzzing"}
# Where another id would make the request another one: `id` names what is to be made.
BODIES = ("session", "session_id", "run_id", "thread_id", "assistant_id")

turn = itertools.count()


def plant(world, stand_in) -> dict[str, str]:
    """Makes one object of each kind on the platform; answers their ids by the names of parameters."""
    project = world.call("POST", "/sessions", {"name": "seed", "extra": {"metadata": {"a": 1}}})["id"]
    run = str(uuid.uuid4())
    body = {"id": run, "session_id": project, "name": "seed", "run_type": "chain", "start_time": STARTED, "inputs": {"q": 1}}
    world.call("POST", "/runs", body, status=202)
    feedback = str(uuid.uuid4())
    world.call("POST", "/feedback", {"id": feedback, "run_id": run, "key": "seed", "score": 1}, status=202)
    destination = world.file_destination("seed")
    export = world.export(destination, project, "2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z")
    integration = world.call("POST", "/v1/integrations/github", {"name": "seed", "api_url": stand_in}, status=201)["id"]
    listener = {"compute_type": "k8s", "compute_id": "seed", "compute_config": {"k8s_namespaces": ["seed"]}}
    listener = world.call("POST", "/v2/listeners", listener, status=201)["id"]
    # It has nothing to build, so nothing is fetched.
    deployment = {"name": "seed", "source": "internal_source", "source_config": {}, "source_revision_config": {}, "secrets": []}
    deployment = world.call("POST", "/v2/deployments", deployment, status=201)
    return {
        "session": project,
        "session_id": project,
        "run_id": run,
        "feedback_id": feedback,
        "destination_id": destination,
        "export_id": export,
        "integration_id": integration,
        "listener_id": listener,
        "deployment_id": deployment["id"],
        "project_id": deployment["id"],
        "revision_id": deployment["latest_revision_id"],
        "own_key": world.call("GET", "/internal/keys")["items"][0]["id"],
        "layout": world.layout,
    }


def plant_on_agent(call) -> dict[str, str]:
    """The same on an agent server, by `call(method, path, body)`."""
    assistant = call("POST", "/assistants", {"graph_id": "agent"})["assistant_id"]
    thread = call("POST", "/threads", {"metadata": {"graph_id": "agent"}})["thread_id"]
    asked = {"assistant_id": assistant, "input": {"messages": []}, "on_completion": "keep"}
    call("POST", f"/threads/{thread}/runs/wait", asked)
    run = call("GET", f"/threads/{thread}/runs")[0]["run_id"]
    cron = call("POST", "/runs/crons", asked | {"schedule": "0 0 1 1 *", "enabled": False})["cron_id"]
    call("PUT", "/store/items", {"namespace": ["seed"], "key": "seed", "value": {"a": 1}})
    return {"assistant_id": assistant, "thread_id": thread, "run_id": run, "cron_id": cron}


SEEDS = json.loads(os.environ.get("TOWPATH_CONTRACT_SEEDS", "{}"))


def is_id(value) -> bool:
    try:
        return isinstance(value, str) and len(value) == 36 and bool(uuid.UUID(value))
    except ValueError:
        return False


def name_what_is_there(case):
    """Puts ids that are there into a request, every other time."""
    guessed = case.meta is not None and case.meta.phase.name.value in GUESSING
    # A stream of a thread does not end, and a run of one waits for those before it.
    endless = case.path.endswith(("/stream", "/stream/events")) or (case.method.upper() == "POST" and "}/runs" in case.path)
    if not guessed or endless or case.method.upper() == "DELETE" or next(turn) % 2:
        return
    for name, value in (case.path_parameters or {}).items():
        if name in SEEDS and is_id(value):
            case.path_parameters[name] = SEEDS[name]
    if not isinstance(case.body, dict):
        return
    for name in BODIES:
        value = case.body.get(name)
        if name not in SEEDS:
            continue
        if is_id(value):
            case.body[name] = SEEDS[name]
        elif isinstance(value, list) and value and all(map(is_id, value)):
            case.body[name] = [SEEDS[name]]
