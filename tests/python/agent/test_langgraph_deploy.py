"""The official command line, unchanged: `langgraph deploy` from a folder of sources to a server that answers, and every
other verb of it, with what it prints."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from langgraph_sdk import get_sync_client

import harness

pytest.importorskip("langgraph_cli", reason="skipped: langgraph-cli is not installed")


@pytest.fixture(scope="module")
def platform():
    world = harness.World("embedded")
    yield world
    world.stop()


@pytest.fixture
def project(platform, request):
    """A project whose graph says which version it is."""
    folder = platform.folder / "projects" / request.node.name
    folder.mkdir(parents=True)
    config = {"dependencies": ["."], "graphs": {"agent": "./agent.graph.json"}, "env": {"GREETING": "canary-5e1f", "PORT": "1"}}
    (folder / "langgraph.json").write_text(json.dumps(config))
    says(folder, "one")
    return folder


def says(folder, version):
    graph = {"native": {"kind": "script", "channels": {"messages": "add-messages"}, "steps": [{"say": version}]}}
    (folder / "agent.graph.json").write_text(json.dumps(graph))


def command(platform, project, *args, endpoint=False, env=()):
    """The command line and its environment, told where the platform is in one of its two ways."""
    where = {"LANGSMITH_ENDPOINT": f"http://{platform.api}"} if endpoint else {"LANGGRAPH_HOST_URL": f"http://{platform.api}"}
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(project),
        "LANGGRAPH_CLI_NO_ANALYTICS": "1",
        "LANGGRAPH_HOST_API_KEY": harness.KEY,
        "NO_COLOR": "1",
    } | where | dict(env)
    return [sys.executable, "-m", "langgraph_cli", "deploy", *args], env


def run(platform, project, *args, code=0, input=None, **where):
    """Runs it to its end. Answers all it printed."""
    words, env = command(platform, project, *args, **where)
    done = subprocess.run(words, cwd=project, env=env, capture_output=True, text=True, timeout=240, input=input or "")
    printed = done.stdout + done.stderr
    assert done.returncode == code, f"{args}: {done.returncode}\n{printed}\n{last_words(platform)}"
    assert harness.KEY not in printed and "Traceback" not in printed
    return printed


def langgraph(platform, project, *args, **more):
    return run(platform, project, *args, **more)


def last_words(platform):
    """Why the newest revisions failed, for a test that did."""
    found = platform.call("GET", "/v2/deployments")["resources"]
    revisions = [platform.call("GET", f"/v2/deployments/{one['id']}/revisions")["resources"] for one in found]
    return "\n".join(f"{one['status']}: {one['error']}" for some in revisions for one in some)


def events(out):
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def answer(platform, deployment):
    client = get_sync_client(url=f"http://{platform.api}/d/{deployment}", api_key=harness.KEY)
    state = client.runs.wait(None, "agent", input={"messages": [{"role": "user", "content": "hello"}]})
    return state["messages"][-1]["content"]


def test_sources_are_sent_built_and_served(platform, project):
    deploy = ["--name", "from-cli", "--remote", "--no-input", "--json"]
    # The first time makes it.
    told = events(langgraph(platform, project, *deploy))
    result = told[-1]
    assert result["event"] == "result" and result["status"] == "succeeded", told
    deployment = result["deployment_id"]
    assert result["url"] == f"http://{platform.api}/d/{deployment}"
    assert answer(platform, deployment) == "one"
    shown = platform.call("GET", f"/v2/deployments/{deployment}")
    assert shown["source"] == "internal_source"
    assert shown["source_config"]["deployment_type"] == "dev_zero"
    assert [secret["name"] for secret in shown["secrets"]] == ["GREETING"], "reserved names are left out"
    assert shown["active_revision_id"] == shown["latest_revision_id"]
    # The second time finds it by its name and brings a new revision, here below /api-host.
    says(project, "two")
    told = events(langgraph(platform, project, *deploy, endpoint=True))
    assert told[-1]["status"] == "succeeded" and told[-1]["deployment_id"] == deployment, told
    assert answer(platform, deployment) == "two"

    out = langgraph(platform, project, "list")
    assert deployment in out and "from-cli" in out
    out = langgraph(platform, project, "revisions", "list", deployment)
    assert [line.split()[1] for line in out.splitlines() if re.match("[0-9a-f]{8}-", line)] == ["DEPLOYED", "REPLACED", "SKIPPED"]
    out = langgraph(platform, project, "logs", "--deployment-id", deployment, "--type", "build")
    assert out.strip(), "the build says something"
    assert "canary-5e1f" not in out

    langgraph(platform, project, "delete", deployment, "--force")
    harness.until("the deployment to be gone", lambda: platform.request("GET", f"/v2/deployments/{deployment}")[0] == 404 or None)


def test_sources_that_cannot_be_served_are_a_failure(platform, project):
    (project / "agent.graph.json").write_text("{broken")
    told = events(langgraph(platform, project, "--name", "broken", "--remote", "--no-input", "--json", code=1))
    assert told[-1]["event"] == "result" and told[-1]["status"] == "failed", told


def remove(platform, deployment):
    platform.call("DELETE", f"/v2/deployments/{deployment}", status=204)
    harness.until("the deployment to be gone", lambda: platform.request("GET", f"/v2/deployments/{deployment}")[0] == 404 or None)


def final(platform, deployment):
    """The newest revision once it is over."""

    def ask():
        newest = platform.call("GET", f"/v2/deployments/{deployment}/revisions?limit=1")["resources"][0]
        over = newest["status"] == "DEPLOYED" or newest["status"].endswith("_FAILED")
        return newest if over else None

    return harness.until("the revision to be over", ask)


def page(url):
    """What a browser shows to a caller who has not signed in."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as refused:
        assert refused.code == 401, refused
        return refused.read().decode()


def made(printed):
    return re.search(r"Deployment ID: (\S+)", printed)[1]


@pytest.mark.parametrize("endpoint", [False, True], ids=["host-url", "api-host"])
def test_what_people_read(platform, project, endpoint):
    """Without --json: steps, the link to the dashboard, the lines of the build, the address."""
    name = f"read-{'below' if endpoint else 'above'}"
    printed = run(platform, project, "--name", name, "--remote", "--no-input", "--verbose", endpoint=endpoint)
    deployment = made(printed)
    for line in (f"Looking up deployment '{name}'", "Requesting upload URL", "Triggering remote build", "Deployment successful"):
        assert line.lower() in printed.lower(), printed
    assert f"http://{platform.api}/d/{deployment}" in printed, printed
    link = f"http://{platform.api}/o/{platform.tenant}/host/deployments/{deployment}"
    assert link in printed, printed
    assert "sign in" in page(link).lower(), "the link leads somewhere, if only to where one signs in"
    # Again, by its id, and from another folder's configuration; no one waits.
    (project / "apps").mkdir()
    (project / "apps/graph.json").write_text(json.dumps({"dependencies": [".."], "graphs": {"agent": "./agent.graph.json"}}))
    (project / "apps/agent.graph.json").write_text((project / "agent.graph.json").read_text().replace("one", "nested"))
    again = ["--deployment-id", deployment, "-c", "apps/graph.json", "--remote", "--no-input", "--no-wait"]
    printed = run(platform, project, *again, endpoint=endpoint)
    assert f"Using deployment {deployment}" in printed and "Build triggered" in printed, printed
    assert final(platform, deployment)["status"] == "DEPLOYED", last_words(platform)
    assert answer(platform, deployment) == "nested"

    # What a build says when it breaks is what is printed.
    broken = ["--name", name, "--remote", "--no-input", "--install-command", "ls no-such-file-here"]
    printed = run(platform, project, *broken, code=1, endpoint=endpoint)
    assert "Last build log lines:" in printed and "No such file or directory" in printed, printed
    assert answer(platform, deployment) == "nested", "what served before goes on"

    # Deleting asks first.
    assert "Aborted" in run(platform, project, "delete", deployment, code=1, input="n\n", endpoint=endpoint)
    assert platform.request("GET", f"/v2/deployments/{deployment}")[0] == 200
    printed = run(platform, project, "delete", deployment, input="y\n", endpoint=endpoint)
    assert f"Deleted deployment {deployment}." in printed
    harness.until("it to be gone", lambda: platform.request("GET", f"/v2/deployments/{deployment}")[0] == 404 or None)
    printed = run(platform, project, "delete", deployment, "--force", code=1, endpoint=endpoint)
    assert f"Deployment ID {deployment} not found." in printed


@pytest.mark.parametrize(
    ("flag", "kind"), [("serverless", "dev_zero"), ("dedicated", "prod"), ("dev", "dev"), ("prod", "prod")]
)
def test_types(platform, project, flag, kind):
    args = ["--name", f"type-{flag}", "--deployment-type", flag, "--remote", "--no-input", "--no-wait"]
    deployment = made(run(platform, project, *args))
    shown = platform.call("GET", f"/v2/deployments/{deployment}")
    assert shown["source_config"]["deployment_type"] == kind
    remove(platform, deployment)


def test_lists(platform, project):
    assert "No deployments found." in run(platform, project, "list", "--name-contains", "nothing-like-it")
    body = {"source": "internal_source", "source_config": {}, "source_revision_config": {}, "secrets": []}
    ids = {}
    for name in ("listed-one", "listed-two", "other"):
        ids[name] = platform.call("POST", "/v2/deployments", body | {"name": name}, status=201)["id"]
    printed = run(platform, project, "list", "--name-contains", "LISTED", endpoint=True)
    rows = [line.split() for line in printed.splitlines()[2:]]
    assert sorted(row[:2] for row in rows) == sorted([ids[name], name] for name in ("listed-one", "listed-two"))
    assert all(row[2] == f"http://{platform.api}/d/{row[0]}" for row in rows), printed
    found = json.loads(run(platform, project, "list", "--json", "--name-contains", "other"))
    assert found == [{"id": ids["other"], "name": "other"}]
    # More than one page of them is read to its end.
    for n in range(101):
        ids[n] = platform.call("POST", "/v2/deployments", body | {"name": f"page-{n}"}, status=201)["id"]
    assert len(json.loads(run(platform, project, "list", "--json", "--name-contains", "page-"))) == 101
    # What this server does not do is said.
    for flags in (["--agent-id", "a"], ["--agent-environment", "staging"]):
        printed = run(platform, project, "list", *flags, code=1)
        assert "is not available in this build" in printed, printed
    agent = ["--agent-id", "a", "--agent-environment", "staging", "--remote", "--no-input"]
    assert "is not available in this build" in run(platform, project, *agent, code=1)
    # A first revision that has nothing in it is over at once, and has no logs.
    printed = run(platform, project, "revisions", "list", ids["other"], "--limit", "5")
    assert [line.split()[1] for line in printed.splitlines()[2:]] == ["SKIPPED"], printed
    assert "422" in run(platform, project, "revisions", "list", ids["other"], "--limit", "101", code=1)
    for kind in ("build", "deploy"):
        assert "No log entries found." in run(platform, project, "logs", "--name", "other", "--type", kind)
    everything = [str(one) for one in ids.values()]
    for some in (everything[:60], everything[60:]):
        platform.call("DELETE", f"/v2/deployments?deployment_ids={','.join(some)}")


def test_logs(platform, project):
    deploy = ["--name", "logged", "--remote", "--no-input", "--json"]
    deployment = events(langgraph(platform, project, *deploy))[-1]["deployment_id"]
    revision = platform.call("GET", f"/v2/deployments/{deployment}")["latest_revision_id"]

    def logs(*args, **more):
        return run(platform, project, "logs", *args, **more)

    build = logs("--name", "logged", "--type", "build")
    assert f"Using latest revision: {revision}" in build
    assert re.search(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] \[INFO\] unpacking the source archive$", build, re.M), build
    lines = logs("--deployment-id", deployment, "--revision-id", revision, endpoint=True)
    assert f"revision {revision} serves" in lines, lines
    assert "canary-5e1f" not in build + lines
    assert len(logs("--deployment-id", deployment, "--limit", "1").splitlines()) == 1
    found = logs("--deployment-id", deployment, "-q", "checking the revision")
    assert "checking the revision while the old one serves" in found and "serves\n" in found
    assert "No log entries found." in logs("--deployment-id", deployment, "--level", "critical")
    assert "No log entries found." in logs("--deployment-id", deployment, "--start-time", "2100-01-01T00:00:00Z")
    assert "No log entries found." in logs("--deployment-id", deployment, "--end-time", "2020-01-01T00:00:00Z")
    assert "start_time" in logs("--deployment-id", deployment, "--start-time", "yesterday", code=1)
    assert "limit" in logs("--deployment-id", deployment, "--limit", "1001", code=1)
    assert "Deployment 'nobody' not found." in logs("--name", "nobody", code=1)
    nobody = "00000000-0000-4000-8000-000000000000"
    assert f"Deployment ID {nobody} not found." in logs("--deployment-id", nobody, code=1)

    # Followed, until a caller has read enough: what the agent server says later comes too.
    words, env = command(platform, project, "logs", "--deployment-id", deployment, "--follow", env={"PYTHONUNBUFFERED": "1"})
    with subprocess.Popen(words, cwd=project, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as follower:
        seen = follower.stdout.readline()
        assert seen.startswith("["), seen
        says(project, "two")
        run(platform, project, *deploy)
        newest = platform.call("GET", f"/v2/deployments/{deployment}")["latest_revision_id"]
        for line in follower.stdout:
            if f"revision {newest} serves" in line:
                break
        follower.send_signal(signal.SIGINT)
        rest, _ = follower.communicate(timeout=30)
        assert "Stopped." in rest and follower.returncode == 0, rest
    remove(platform, deployment)


def test_images_of_a_registry(platform, project):
    """`--image-uri` and what goes with it. Processes cannot start images, which is said; engines are tested elsewhere."""
    uri = f"registry.invalid/team/agent@sha256:{'0' * 64}"
    image = ["--image-uri", uri, "--no-input", "--json"]
    told = events(run(platform, project, "--name", "image", *image, "--image-pull-secret", "acme", code=1))
    assert told[-1]["status"] == "failed", told
    deployment = told[-1]["deployment_id"]
    shown = platform.call("GET", f"/v2/deployments/{deployment}")
    assert shown["source"] == "external_docker" and shown["source_revision_config"]["image_uri"] == uri
    assert shown["source_config"]["resource_spec"]["image_pull_secrets"] == [{"name": "acme"}]
    assert "no container backend is configured" in final(platform, deployment)["error"]
    again = events(run(platform, project, "--deployment-id", deployment, *image, code=1, endpoint=True))
    assert again[-1]["deployment_id"] == deployment and again[-1]["status"] == "failed", again
    assert len(platform.call("GET", f"/v2/deployments/{deployment}/revisions")["resources"]) == 2

    # Listeners.
    printed = run(platform, project, "listeners", "list")
    builtin = printed.splitlines()[2].split()[0]
    assert json.loads(run(platform, project, "listeners", "list", "--json"))[0]["id"] == builtin
    printed = run(platform, project, "--name", "placed", *image, "--listener-id", builtin, code=2)
    assert "serves no namespaces" in printed, printed
    printed = run(platform, project, "--name", "placed", *image, "--listener-id", "nonsense", code=2)
    assert "was not found in this workspace" in printed and builtin in printed, printed
    new = {"compute_type": "k8s", "compute_id": "east", "compute_config": {"k8s_namespaces": ["agents"]}}
    listener = platform.call("POST", "/v2/listeners", new, status=201)["id"]
    printed = run(platform, project, "--name", "placed", *image, "--listener-id", listener, code=1)
    assert "400" in printed and "listener_id" in printed, printed
    platform.call("DELETE", f"/v2/listeners/{listener}", status=204)
    remove(platform, deployment)

    # One that was made from sources takes no image, and the other way round.
    sources = events(langgraph(platform, project, "--name", "sources", "--remote", "--no-input", "--json"))[-1]["deployment_id"]
    printed = run(platform, project, "--deployment-id", sources, *image, code=2)
    assert "was not created from an external image" in printed, printed
    remove(platform, sources)


def test_who_may_not(platform, project):
    deploy = ["--name", "denied", "--remote", "--no-input"]
    printed = run(platform, project, *deploy, code=1, env={"LANGGRAPH_HOST_API_KEY": "wrong"})
    assert "401" in printed, printed
    printed = run(platform, project, *deploy, code=1, env={"LANGSMITH_TENANT_ID": "00000000-0000-4000-8000-000000000000"})
    assert "403" in printed, printed
    printed = run(platform, project, "list", env={"LANGSMITH_TENANT_ID": platform.tenant})
    assert "denied" not in printed


def test_an_image_is_pushed_only_where_one_belongs(platform, project):
    """The push itself is tested where an engine answers; without one the command line cannot even look for an image."""
    body = {"name": "pushed", "source": "internal_docker", "source_config": {}, "source_revision_config": {}, "secrets": []}
    pushed = platform.call("POST", "/v2/deployments", body, status=201)["id"]
    token = platform.call("POST", f"/v2/deployments/{pushed}/push-token", {"supports_registry_username": True})
    assert token["repository_url"] == f"{platform.api}/images/{pushed}" and token["registry_url"] == platform.api
    sent = platform.call("POST", "/v2/deployments", body | {"name": "sent", "source": "internal_source"}, status=201)["id"]
    status, refused = platform.request("POST", f"/v2/deployments/{sent}/push-token", {})
    assert status == 400 and "only available for 'internal_docker' source deployments" in refused["detail"]
    for one in (pushed, sent):
        remove(platform, one)
