"""What operators see of projects in Python, and how their processes are kept well."""

import json
import pathlib
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from langgraph_sdk import get_sync_client

from harness import Process, binary, free_address, until
from projects import PYTHON, begin, over, towpath


def test_operators_see_where_the_code_failed(serve):
    server, client = serve()
    thread, run = begin(client, input={"how": "raise"})
    assert over(client, thread, run)["status"] == "error"
    [job] = httpx.get(f"{server.url}/internal/jobs", params={"kind": "run_agent"}, timeout=60).json()["items"]
    [attempt] = httpx.get(f"{server.url}/internal/jobs/{job['id']}", timeout=60).json()["attempts"]
    # The id that a caller knows is the run's.
    shown = towpath(server, "jobs", "show", run)
    assert job["id"] in shown
    for said in (attempt["error"], shown):
        assert "ValueError: the second step says no" in said
        assert "Traceback (most recent call last)" in said and 'agent.py", line ' in said and "in second" in said
    pools = [pool["pool"] for pool in json.loads(towpath(server, "queues", "--output", "json"))]
    assert pools == sorted(pools) and "agent" in pools
    # What the callers of the graph see is the error, and not the code.
    assert "Traceback" not in json.dumps(client.threads.get(thread))


def test_the_platform_in_the_same_process_shows_them_too(project):
    platform, agent = free_address(), free_address()
    command = [binary(), "dev", "--listen", platform, "--agent-listen", agent, "--graphs", str(project.config)]
    process = Process("dev", [*command, "--data-dir", str(project.folder / ".towpath")], PYTHON, project.folder, platform)
    try:
        process.ready()
        client = get_sync_client(url=f"http://{agent}", api_key=None)
        thread, run = begin(client, input={"how": "raise"})
        assert over(client, thread, run)["status"] == "error"
        process.url = f"http://{platform}"
        # The key is the one that is in the folder.
        shown = towpath(process, "jobs", "show", run)
        assert "Traceback (most recent call last)" in shown and "the second step says no" in shown
        key = (project.folder / ".towpath" / "api.key").read_text().strip()
        page = httpx.Client(base_url=process.url, follow_redirects=True, headers={"origin": process.url}, timeout=60)
        assert page.post("/ui/sign-in", data={"key": key}).status_code == 200
        job = json.loads(towpath(process, "jobs", "show", run, "--output", "json"))["id"]
        listed = page.get("/ui/jobs", params={"of": "agents", "kind": "run_agent"}).text
        assert f"/ui/jobs/{job}" in listed and "agent server" in listed
        assert f"/ui/jobs/{job}" not in page.get("/ui/jobs").text
        for name in (job, run):
            text = page.get(f"/ui/jobs/{name}").text
            assert "Traceback (most recent call last)" in text and "in second" in text
        process.terminate()
    finally:
        if process.child.poll() is None:
            process.kill()


@pytest.mark.parametrize(
    "python, says",
    [
        ("/nowhere/bin/python", ["agent.python", "/nowhere/bin/python", "langgraph"]),
        ("python-of-nobody", ["agent.python", "python-of-nobody", "langgraph"]),
        # The interpreter the environment of this suite is made from.
        (str(pathlib.Path(sys.base_prefix, "bin", "python3")), ["has no 'langgraph'", "-m pip install langgraph"]),
    ],
)
def test_what_is_missing_is_named_with_what_to_install(project, python, says):
    address = free_address()
    command = [binary(), "agent", "--config", str(project.config), "--listen", address]
    command += ["--data-dir", str(project.folder / "data")]
    process = Process("broken", command, {"TOWPATH_AGENT_PYTHON": python}, project.folder, address)
    assert process.child.wait(timeout=60) == 1
    for part in says:
        assert part in process.log_tail()


def rss_mb(pid):
    """Resident memory of a process."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    [kilobytes] = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(kilobytes) / 1024


def files(pid):
    return len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir()))


def test_a_process_that_grows_is_replaced(serve, project):
    _, client = serve(TOWPATH_AGENT_HOST_MEMORY_MB="250", TOWPATH_AGENT_HOSTS="1")
    thread, run = begin(client, input={"how": "wait"})
    grown = project.until_ran("second")
    answer = client.runs.wait(None, "agent", input={"how": "eat"})
    # The run that took the memory ends as any other.
    assert answer["steps"] == ["first", "second"] and rss_mb(grown) > 250

    def elsewhere():
        client.runs.wait(None, "agent", input={})
        _, pid = project.ran()[-1]
        return pid if pid != grown else None

    fresh = until("new runs to go to another process", elsewhere)
    # Its neighbour continues where it is.
    assert client.runs.get(thread, run)["status"] == "running" and pathlib.Path(f"/proc/{grown}").exists()
    project.go()
    assert over(client, thread, run)["status"] == "success"
    assert client.threads.get_state(thread)["metadata"]["run_attempt"] == 1
    assert client.threads.get(thread)["values"]["steps"] == ["first", "second"]
    until("the grown process to end", lambda: True if not pathlib.Path(f"/proc/{grown}").exists() else None)
    assert rss_mb(fresh) < 250


def test_many_runs_leave_nothing_behind(serve, project):
    """A bounded drill; `towpath bench agent --graph python --runs N` is the long one."""
    server, client = serve(TOWPATH_AGENT_HOSTS="1")
    pid = server.apis[0].child.pid

    def run(times):
        def one(_):
            assert client.runs.wait(None, "agent", input={})["steps"] == ["first", "second"]

        with ThreadPoolExecutor(16) as clients:
            list(clients.map(one, range(times)))
        # The first one; where the machine stalls, another stands in for it.
        return project.ran()[0][1]

    # Caches, pools and allocators have what they want after these.
    host = run(500)
    before = [rss_mb(pid), rss_mb(host)], [files(pid), files(host)]
    run(2000)
    after = [rss_mb(pid), rss_mb(host)], [files(pid), files(host)]
    grown = [later - earlier for earlier, later in zip(before[0], after[0])]
    # Ten kilobytes that each run left behind would be 20 MB.
    assert max(grown) < 12, (before, after)
    assert all(later <= earlier + 20 for earlier, later in zip(before[1], after[1])), (before, after)
    # Threads and runs that no one named are gone, too.
    assert client.threads.search(limit=10) == []
