"""Processes die in every state a run can be in, and Redis goes; afterwards nothing is lost, doubled or left open.

Each test is one row of the table printed at the end: a state, who is killed, on which storage. A row counts only when
the tables say that the run was in that state when the process died; one that never was fails.
"""

import contextlib
import hashlib
import hmac
import json
import os
import signal
import threading
import time

import pytest

from drill import LEASE_S, SECRET, SUPERSTEP, Fleet, Receiver
from harness import until
from readers import Joiner, Reader

# Beyond the lease (of a cluster) or the restart (of a single process): a run goes on, or is settled. Wide, for a machine
# that is busy with other things; the table says how long it took.
SLACK_S = 10.0
TRIES = 12


@pytest.fixture(scope="module")
def receiver():
    running = Receiver()
    yield running
    running.stop()


# Each victim has servers of its own, so the drills of several continue at the same time.
DRILLS = [(layout, victim) for layout in ("embedded", "cluster") for victim in ("worker", "api", "everything")]


@pytest.fixture(scope="module", params=DRILLS, ids="-".join)
def fleet(request, receiver):
    layout, victim = request.param
    if layout == "cluster" and "TOWPATH_TEST_POSTGRES" not in os.environ:
        pytest.skip("TOWPATH_TEST_POSTGRES is not set")
    if layout == "embedded" and victim != "everything":
        pytest.skip("all of it is one process")
    running = Fleet(layout, receiver)
    running.victim = victim
    yield running
    running.stop()


@pytest.fixture
def server(fleet):
    """For the report of a failing test."""
    return fleet


class Row:
    """One run, in one state, and a kill."""

    def __init__(self, fleet, name):
        self.fleet, self.receiver, self.victim, self.name = fleet, fleet.receiver, fleet.victim, name
        self.thread = fleet.thread()
        self.readers, self.joiners, self.killed = [], [], []
        # By a row that failed: not this one's.
        self.before = fleet.left_behind()
        # When the kill was, and from when on what was lost has to continue.
        self.at = self.due = None

    def begin(self, **more):
        self.run = self.fleet.begin(self.thread, self.name, **more)
        return self.run

    def watch(self, run=None):
        """Readers of the server that may be killed, which come back to the other one."""
        place = (self.fleet.urls, self.thread, run or self.run)
        self.readers.append(Reader(*place))
        self.joiners.append(Joiner(*place))
        for watcher in self.readers + self.joiners:
            assert watcher.connected.wait(20)

    def performer(self, run=None):
        """The process at work at a run whose step is being made."""
        process = self.fleet.performer_of(run or self.run)
        if process is None:
            # A pause of the machine beyond its lease took the run from it.
            raise Missed("a process that lives lost its lease")
        return process

    def victims(self, performer=None):
        """Who is to be killed. `performer` is the process at work, where there is one."""
        if self.fleet.layout == "embedded" or self.victim == "everything":
            return list(self.fleet.processes)
        return [self.fleet.apis[0]] if self.victim == "api" else [performer or self.fleet.workers[0]]

    def kill(self, victims):
        for process in victims:
            process.child.send_signal(signal.SIGKILL)
        self.at = time.monotonic()
        for process in victims:
            process.child.wait()
        self.killed = victims

    def restart(self):
        """What went with everything comes again; one process of several is not missed yet."""
        if len(self.killed) == len(self.fleet.processes):
            self.fleet.again(self.killed)
            self.killed = []
        ready = time.monotonic()
        # On SQLite no other caller can hold what a dead process held; in a cluster its lease has to run out.
        self.due = ready if self.fleet.layout == "embedded" else max(ready, self.at + LEASE_S)

    def in_time(self, moment):
        late = moment - self.due
        assert late <= SLACK_S, f"{late:.2f} s after it was due"
        return moment - self.at

    def close(self, runs=None, status="success"):
        """Everything has ended as it should. Gives (seconds to the end, events compared)."""
        runs = runs or [self.run]
        ended = [self.fleet.over(self.thread, run) for run in runs]
        self.nobody_else_was_taken_for_dead(runs)
        assert {seen for seen, _ in ended} == {status}, ended
        compared = sum(self.compare(reader, status) for reader in self.readers)
        for joiner in self.joiners:
            result = joiner.finish().result
            if status == "success":
                assert result["name"] and "__error__" not in result, result
        self.fleet.again(self.killed)
        left = {}

        def at_rest():
            left.clear()
            left.update(
                (what, count) for what, count in self.fleet.left_behind().items() if count > self.before.get(what, 0)
            )
            return None if left else True

        with contextlib.suppress(AssertionError):
            until("the tables to come to rest", at_rest, 60)
        assert not left, f"left behind: {left}"
        return max(moment for _, moment in ended) - self.at, compared

    def nobody_else_was_taken_for_dead(self, runs):
        """A process that stood still for longer than its lease is taken for dead, and its work is done again. Such a row
        proves nothing."""
        killed = 1 if self.fleet.layout == "embedded" or self.victim != "api" else 0
        if any([outcome for outcome, _ in self.fleet.ends_of(run)].count("lost") > killed for run in runs):
            raise Missed("a process that lives lost its lease")

    def compare(self, reader, status):
        """What one reader saw over the kill is what a reader sees who comes afterwards, to another process."""
        seen = reader.finish().events
        ids = [tuple(map(int, id.split("-"))) for id, _, _ in seen]
        assert ids == sorted(set(ids)), f"ids rise, none comes twice: {ids}"
        if status == "gone":
            return len(seen)
        kept = Reader(self.fleet.urls[-1:], self.thread, reader.run_id).finish().events
        by_id = {id: (event, data) for id, event, data in kept}
        assert len(by_id) == len(kept), "no two events under one id"
        missed = [event for event in kept if event not in seen]
        assert not missed, f"a reader missed {missed}"
        # What was published and not kept when the process died is all that may be gone.
        more = [event for event in seen if event not in kept]
        attempts = [data for _, event, data in kept if event == "metadata"]
        # A run whose performer died while it was being cancelled ends with the next look, without another attempt; so does
        # one whose performer was stopped beyond its lease. One that lost only a server has lost nothing.
        ends = self.fleet.ends_of(reader.run_id)
        done_again = len(attempts) > 1 or (status == "interrupted" and "lost" in dict(ends))
        assert not more or done_again, f"{more} was seen and is not kept, though nothing was done again: {ends}"
        assert not [id for id, _, _ in more if id in by_id]
        return len(seen)

    def not_again(self, last_step):
        """No superstep whose checkpoint was acknowledged ran again. Gives how many steps did run again."""
        calls = self.receiver.steps(self.name)
        again = {step: count for step, count in calls.items() if count > 1}
        assert all(SUPERSTEP[step] > last_step for step in again), f"{calls}, though step {last_step} was kept"
        assert set(calls) == set(SUPERSTEP), calls
        return sum(again.values()) - len(again)


def pending(row):
    """Recorded, and not due yet."""
    row.begin(after_seconds=2)
    due = time.monotonic() + 2
    row.watch()
    row.kill(row.victims())
    hit = row.fleet.job_of(row.run)[0] == "scheduled"
    row.restart()
    # No one holds it: it is only the clock of a process that is left, or comes again, that has to see it.
    row.due = max(due, row.at if row.killed else row.due)
    first = row.receiver.until_made("one", row.name)
    closed = row.close()
    if not hit:
        raise Missed
    return row.in_time(first), row.not_again(3), *closed


def superstep(row):
    """In the middle of a superstep of two tasks, one of them done and kept."""
    gate = row.receiver.hold("two", row.name)
    row.begin()
    row.watch()
    row.receiver.until_made("two", row.name)
    kept = f"checkpoint_writes WHERE thread_id = '{row.thread}' AND channel = 'log'"
    # The writes of the input, of the first step, and of the task that is done.
    until("the task to be kept", lambda: int(row.fleet.rows(f"SELECT count(*) FROM {kept}")[0][0]) >= 2 or None)
    last = row.fleet.last_step(row.thread)
    row.kill(row.victims(row.performer()))
    assert row.fleet.job_of(row.run)[0] == "running" and last == 1
    row.restart()
    if row.victim == "api":
        picked = 0.0
        until("the readers to come back", lambda: all(one.came_back for one in row.readers + row.joiners) or None)
    else:
        picked = row.in_time(row.receiver.until_made("two", row.name, 2))
    gate.set()
    closed = row.close()
    calls = row.receiver.steps(row.name)
    assert calls == {"one": 1, "two": 1 if row.victim == "api" else 2, "side": 1, "three": 1}, calls
    return picked, row.not_again(last), *closed


def between(row):
    """Between two supersteps: the checkpoint of the first is acknowledged, the next has not begun."""
    return between_for_api(row) if row.victim == "api" else between_for_performer(row)


def between_for_api(row):
    """What performs the run stays, so the moment is as near as it can be: the first step has just been answered."""
    gate, answered = row.receiver.hold("one", row.name), threading.Event()
    row.receiver.after["one", row.name] = answered.set
    row.begin()
    row.watch()
    row.receiver.until_made("one", row.name)
    victims = row.victims()
    gate.set()
    assert answered.wait(10)
    row.kill(victims)
    if row.fleet.job_of(row.run)[0] != "running":
        raise Missed
    row.restart()
    closed = row.close()
    return 0.0, row.not_again(0), *closed


def between_for_performer(row):
    """The process dies at the instant at which the first superstep's checkpoint is acknowledged."""
    fleet = row.fleet
    armed, *others = fleet.performers
    fleet.rearm(armed, f"run.saved:{SAVES_OF_FIRST_STEP}")
    for other in others:
        # The armed one is to take it.
        other.child.send_signal(signal.SIGSTOP)
    try:
        row.begin()
        with contextlib.suppress(AssertionError):
            until("the death", lambda: armed.child.poll(), 5)
    finally:
        for other in others:
            other.child.send_signal(signal.SIGCONT)
    if armed.child.poll() is None:
        # The other one was stopped when it had claimed it.
        fleet.over(row.thread, row.run)
        fleet.rearm(armed)
        raise Missed
    row.kill(fleet.processes if row.victim == "everything" else [armed])
    last, calls = fleet.last_step(row.thread), row.receiver.steps(row.name)
    assert (fleet.job_of(row.run)[0], last, calls) == ("running", 1, {"one": 1}), (last, calls)
    row.restart()
    row.watch()
    picked = row.in_time(row.receiver.until_made("two", row.name))
    closed = row.close()
    assert row.receiver.steps(row.name) == dict.fromkeys(SUPERSTEP, 1)
    return picked, row.not_again(last), *closed


# With `durability=sync`: the input, its step, what the first node wrote, and the first superstep.
SAVES_OF_FIRST_STEP = 3


def waiting(row):
    """Stopped at an interrupt, waiting for an answer."""
    fleet = row.fleet
    row.begin(graph="asks")
    assert fleet.over(row.thread, row.run)[0] == "success"
    before = fleet.call("GET", f"/threads/{row.thread}", at=-1)
    assert before["status"] == "interrupted" and before["interrupts"], before
    row.watch()
    row.kill(row.victims())
    row.restart()
    assert fleet.call("GET", f"/threads/{row.thread}", at=-1) == before
    more = {"assistant_id": "asks", "command": {"resume": "yes"}, "durability": "sync"}
    result = fleet.call("POST", f"/threads/{row.thread}/runs/wait", more, at=-1)
    picked = row.in_time(row.receiver.until_made("three", row.name))
    assert result["answer"] == "yes" and row.receiver.steps(row.name) == {"one": 1, "three": 1}, result
    assert fleet.call("GET", f"/threads/{row.thread}", at=-1)["status"] == "idle"
    return picked, 0, *row.close()


def cancelled(row, action="interrupt"):
    """Asked to stop, and killed before it did."""
    fleet = row.fleet
    gate = row.receiver.hold("two", row.name)
    row.begin()
    row.watch()
    row.receiver.until_made("two", row.name)
    performer = row.performer()
    victims = row.victims(performer)
    cancel = f"/threads/{row.thread}/runs/{row.run}/cancel?action={action}"
    if fleet.layout == "embedded":
        fleet.call("POST", cancel, status=202)
        row.kill(victims)
    else:
        # It cannot hear it, so it is certain that it had not acknowledged it.
        performer.child.send_signal(signal.SIGSTOP)
        fleet.call("POST", cancel, status=202)
        row.kill(victims)
        if row.victim == "api":
            performer.child.send_signal(signal.SIGCONT)
    state, asked, _ = fleet.job_of(row.run)
    hit = (state, asked) == ("running", True) or row.victim == "api"
    row.restart()
    status, moment = fleet.over(row.thread, row.run)
    gate.set()
    assert status == ("interrupted" if action == "interrupt" else "gone"), status
    picked = row.in_time(moment)
    closed = row.close(status=status)
    calls = row.receiver.steps(row.name)
    assert calls["two"] == 1 and "three" not in calls, f"it went on after it was cancelled: {calls}"
    if action == "rollback":
        assert fleet.last_step(row.thread) == -2, "what it did was not taken back"
    if not hit or (row.victim == "api" and fleet.ends_of(row.run)):
        raise Missed
    return picked, 0, *closed


def rolled_back(row):
    """Asked to stop and to take back what it did, and killed before it did."""
    return cancelled(row, "rollback")


def webhook(row):
    """Over, its webhook being delivered."""
    fleet = row.fleet
    gate = row.receiver.hold("hook", row.name)
    row.begin(webhook=f"{row.receiver.url}/hook/{row.name}")
    row.watch()
    row.receiver.until_made("hook", row.name)
    job = f"FROM job j JOIN worker w ON w.id = j.worker_id WHERE j.kind = 'send_webhook' AND j.input LIKE '%{row.name}%'"
    job = job if fleet.database is None else job.replace("j.input", "j.input::text")
    pid = int(fleet.rows(f"SELECT w.pid {job} AND j.state = 'running'")[0][0])
    row.kill(row.victims(next(process for process in fleet.performers if process.child.pid == pid)))
    assert fleet.job_of(row.run)[0] == "succeeded"
    row.restart()
    if row.victim == "api":
        picked, count = 0.0, 1
    else:
        picked, count = row.in_time(row.receiver.until_made("hook", row.name, 2)), 2
    gate.set()
    closed = row.close()
    calls = row.receiver.made("hook", row.name)
    assert len(calls) == count
    assert len({headers["x-towpath-delivery"] for *_, headers in calls}) == 1, "the same delivery"
    for *_, body, headers in calls:
        signed = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        assert headers["x-towpath-signature"] == f"sha256={signed}"
        told = json.loads(body)
        assert (told["run_id"], told["status"], told["values"]["name"]) == (row.run, "success", row.name)
    return picked, row.not_again(3), *closed


def queued(row):
    """Behind another run of its thread, which is in the middle of a superstep."""
    gate = row.receiver.hold("two", row.name)
    first = row.begin()
    behind = f"{row.name}-behind"
    second = row.fleet.begin(row.thread, behind)
    row.watch(first)
    row.watch(second)
    row.receiver.until_made("two", row.name)
    last = row.fleet.last_step(row.thread)
    row.kill(row.victims(row.performer(first)))
    assert (row.fleet.job_of(first)[0], row.fleet.job_of(second)[0]) == ("running", "blocked")
    row.restart()
    if row.victim == "api":
        picked = 0.0
    else:
        picked = row.in_time(row.receiver.until_made("two", row.name, 2))
    gate.set()
    closed = row.close([first, second])
    assert row.receiver.steps(behind) == {"one": 1, "two": 1, "side": 1, "three": 1}
    order = [name for step, name, *_ in row.receiver.calls if name in (row.name, behind)]
    assert order == sorted(order), "the second began before the first had ended"
    return picked, row.not_again(last), *closed


HEAD = (
    "state of the run",
    "killed",
    "storage",
    "hits",
    "missed before",
    "went on after, s",
    "settled after, s",
    "steps done again",
    "events compared",
)


class Missed(Exception):
    """The run was not in its state when the process died; or else why the row proves nothing."""


STATES = {
    "pending": pending,
    "in a superstep": superstep,
    "between supersteps": between,
    "waiting at an interrupt": waiting,
    "being cancelled": cancelled,
    "being rolled back": rolled_back,
    "webhook to deliver": webhook,
    "queued behind another": queued,
}


@pytest.mark.parametrize("state", STATES)
def test_a_death(fleet, server, table, state):
    stalls = []
    for attempt in range(TRIES):
        # A row that failed must not fail the next.
        fleet.again([process for process in fleet.processes if process.child.poll() is not None])
        row = Row(fleet, f"{fleet.layout}-{fleet.victim}-{state}-{attempt}".replace(" ", "_"))
        try:
            picked, again, settled, compared = STATES[state](row)
        except Missed as missed:
            stalls += missed.args
            assert len(stalls) <= 3, stalls
            continue
        finally:
            # What this try left at work ends, so that the next one meets nothing of it.
            row.receiver.release(row.name)
        storage = "SQLite" if fleet.layout == "embedded" else "PostgreSQL + Redis"
        cells = (state, fleet.victim, storage, 1, attempt, f"{picked:.2f}", f"{settled:.2f}", again, compared)
        table.append(HEAD, cells)
        return
    pytest.fail(f"{TRIES} tries, and the run was never {state} when the process died")
