"""Processes and containers die at every step of a revision. It ends right, nothing finished is built twice, and nothing is
left over: no process, no container, no volume, no folder."""

import asyncio
import contextlib
import os
import signal

import pytest

import harness
from deploying import Repository, agents, change, client, create, deployed, gone, logs, processes, ref, says
from engine import containers, docker, engine, remove_images, settings  # noqa: F401

# Where the caller that builds dies, in the order of the walk.
POINTS = (
    "deploy.provisioned",
    "deploy.resolved",
    "deploy.fetched",
    "deploy.built",
    "deploy.checked",
    "deploy.switching",
    "deploy.replaced",
    "deploy.settled",
)
# Those of them where one process does everything.
EMBEDDED = ("deploy.fetched", "deploy.switching", "deploy.replaced")
HEAD = ("deployments", "killed", "at", "then", "built")
# Where others die: as soon as the revision is seen to be there.
STATUSES = ("BUILDING", "DEPLOYING", "DEPLOYED")


@pytest.fixture(scope="module", params=["embedded", "cluster", "containers"])
def yard(request, tmp_path_factory):
    """One process that does everything, five of which one worker runs deployments, and those five with containers."""
    if request.param != "embedded" and "TOWPATH_TEST_POSTGRES" not in os.environ:
        pytest.skip("TOWPATH_TEST_POSTGRES is not set")
    backend, env = "process", {"TOWPATH_DEPLOYMENTS_GIT_TRANSPORTS": "file"}
    if request.param == "containers":
        base, _ = request.getfixturevalue("engine")
        backend, env = "docker", settings(base)
    # A job of a worker that was killed is waited for as long as its lease. With 3 s a worker that lived lost one while it
    # fetched, on a busy machine, and the source was fetched again, as it should be then.
    env["TOWPATH_ENGINE_LEASE_SECONDS"] = "10"
    layout = "embedded" if request.param == "embedded" else "cluster"
    world = harness.World(layout, env, {"TOWPATH_DEPLOYMENTS_BACKEND": backend})
    yard = Yard(world, Repository(tmp_path_factory.mktemp("yard") / "repository"), backend)
    yield yard
    yard.delete()
    world.stop()
    assert processes(world) == [], "an agent server outlived its platform"
    if backend == "docker":
        assert containers(world) == [], "a container outlived its platform"
        remove_images(world)


class Yard:
    """A deployment that gets one revision after another."""

    def __init__(self, world, repository, backend):
        self.world, self.repository, self.backend, self.pushed, self.version = world, repository, backend, 0, "one"
        self.volumes = set(docker("volume", "ls", "--quiet").split()) if backend == "docker" else None
        made = create(world, repository, "drill", install_command="sleep 0.2")
        self.deployment = made["id"]
        deployed(world, self.deployment, made["latest_revision_id"])

    def delete(self):
        self.world.call("DELETE", f"/v2/deployments/{self.deployment}", status=204)
        gone(self.world, self.deployment)
        if self.backend == "docker":
            assert set(docker("volume", "ls", "--quiet").split()) == self.volumes, "its database is gone"

    def process(self, name):
        return next(process for process in self.world.processes if process.name == name)

    @property
    def builder(self):
        return self.process("dev" if self.world.layout == "embedded" else "worker-0")

    def push(self):
        self.pushed += 1
        self.version = f"version {self.pushed}"
        self.repository.push(self.version)
        return change(self.world, self.deployment, **ref())

    def status(self, revision):
        """As the database has it: the API may be dead."""
        return harness.psql(f"SELECT status FROM revision WHERE id = '{revision}'", self.world.database).strip()

    def attempts(self, revision):
        """When its build was begun, and how its attempts ended, for the text of a failed assertion. (The job counts only leases
        lost since its last step, which the check is.)"""
        if not self.world.database:
            return "not asked"
        job = f"SELECT id FROM job WHERE kind = 'build_revision' AND input LIKE '%{revision}%'"
        asked = f"SELECT started_at, attempt, failures, lost_leases FROM job WHERE id IN ({job})"
        ended = f"SELECT at, outcome, error FROM attempt WHERE job_id IN ({job}) ORDER BY at"
        return "\n".join(harness.psql(question, self.world.database).strip() for question in (asked, ended))

    def serving(self):
        """What serves now: a process, or a container that was started on the deployment's database."""
        if self.backend == "process":
            return agents(self.world)[self.deployment]
        found = docker("ps", "--quiet", "--filter", f"volume=towpath-{self.deployment}").split()
        assert len(found) == 1, found
        return found[0]

    def end(self, serves):
        """Without a word. It may have been replaced already."""
        if self.backend == "process":
            with contextlib.suppress(ProcessLookupError):
                os.kill(serves, signal.SIGKILL)
        else:
            with contextlib.suppress(AssertionError):
                docker("kill", serves)

    def is_well(self, table, name, step, revision):
        found = deployed(self.world, self.deployment, revision)
        text = logs(self.world, self.deployment, revision)
        # The command as it is run, or its line of the Dockerfile, which the log shows with each build.
        lines = text.splitlines()
        built = lines.count("$ sleep 0.2") + lines.count('RUN ["sleep","0.2"]')
        fetched = text.count("fetching ")
        place = "containers" if self.backend == "docker" else self.world.layout
        table.append(HEAD, (place, name, step, found["status"], built))
        assert (built, fetched) == (1, 1), f"{text}\nits attempts:\n{self.attempts(revision)}"

        async def ask():
            async with client(self.world, "drill") as sdk:
                return await says(sdk)

        assert asyncio.run(ask()) == self.version
        if self.backend == "docker":
            assert containers(self.world) == [self.deployment]
            volumes = set(docker("volume", "ls", "--quiet").split()) - self.volumes
            assert volumes == {f"towpath-{self.deployment}"}
        else:
            assert list(agents(self.world)) == [self.deployment]
        root = self.world.data / "deployments"
        assert [path.name for path in (root / "agents").iterdir()] == [self.deployment]
        assert list((root / "scratch").iterdir()) == []
        # Of what serves, where that has a user id of its own; of nothing else.
        cells = root / "cells"
        harness.until("the cells of what ended to go", lambda: True if len(list(cells.iterdir())) <= 1 else None)


@pytest.mark.parametrize("point", POINTS)
def test_whoever_builds_may_die(yard, table, point):
    if yard.world.layout == "embedded" and point not in EMBEDDED:
        pytest.skip("the cluster has this point")
    builder = yard.builder
    builder.terminate()
    assert processes(yard.world) == []
    builder.env["TOWPATH_FAILPOINT"] = point
    builder.start()
    builder.ready()
    revision = yard.push()
    builder.child.wait(timeout=180)
    assert builder.child.returncode == -signal.SIGABRT, builder.log_tail()
    # Agent servers end by themselves, without anybody who tells them. Containers go when the next life begins.
    harness.until("its processes to end", lambda: True if processes(yard.world) == [] else None, 180)
    del builder.env["TOWPATH_FAILPOINT"]
    builder.start()
    builder.ready()
    yard.is_well(table, builder.name, point, revision)


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("name", ["api", "worker-1", "scheduler"])
def test_others_may_die(yard, table, name, status):
    if yard.world.layout == "embedded":
        pytest.skip("one process does everything")
    process, revision = yard.process(name), yard.push()
    seen = STATUSES[STATUSES.index(status) :]
    harness.until(f"the revision to be {status}", lambda: True if yard.status(revision) in seen else None)
    process.kill()
    process.start()
    process.ready()
    yard.is_well(table, name, status, revision)


@pytest.mark.parametrize("status", STATUSES)
def test_the_agent_server_may_die(yard, table, status):
    """The one that serves. One that is only checked fails its revision, and rightly."""
    if yard.world.layout == "embedded":
        pytest.skip("the database of one process is its own")
    serves = yard.serving()
    revision = yard.push()
    seen = STATUSES[STATUSES.index(status) :]
    harness.until(f"the revision to be {status}", lambda: True if yard.status(revision) in seen else None)
    if status == "DEPLOYED":
        serves = yard.serving()
    yard.end(serves)
    yard.is_well(table, "agent server", status, revision)
