"""What Redis carries are hints: flushed, half-open, reset or gone it costs a moment, and no run and no event."""

import json
import os
import socket
import statistics
import threading
import time

import pytest

from drill import Fleet, Receiver
from harness import until
from readers import Joiner, Reader, events

# A run starts in this time whatever state Redis is in: after the longest rest of a pool that nothing wakes (1.5 s), and
# what a busy machine adds. The table says how long it took.
START_S = 1.5 + 4
RUNS = 12
HEAD = ("Redis", "runs", "started after p50, ms", "slowest, ms", "events compared")


@pytest.fixture(scope="module")
def fleet():
    if "TOWPATH_TEST_POSTGRES" not in os.environ:
        pytest.skip("TOWPATH_TEST_POSTGRES is not set")
    receiver = Receiver()
    # No one who performs dies here; a machine that stands still for a moment must not be taken for a dead one.
    running = Fleet("cluster", receiver, redis_behind_proxy=True, TOWPATH_ENGINE_LEASE_SECONDS="15")
    yield running
    running.stop()
    receiver.stop()


@pytest.fixture
def server(fleet):
    """For the report of a failing test."""
    return fleet


class Flushing(threading.Thread):
    """Empties a Redis twenty times a second."""

    def __init__(self, address):
        super().__init__(daemon=True)
        self.address, self.over, self.times = address, threading.Event(), 0

    def __enter__(self):
        self.start()

    def __exit__(self, *_):
        self.over.set()
        self.join()
        assert self.times, "it was never flushed"

    def run(self):
        host, port = self.address.split(":")
        with socket.create_connection((host, int(port))) as redis:
            while not self.over.wait(0.05):
                redis.sendall(b"FLUSHALL\r\n")
                assert redis.recv(16) == b"+OK\r\n"
                self.times += 1


def rounds(fleet, table, what):
    """Runs that are begun on one process, performed on two others, and read on all."""
    waits, compared = [], 0
    begun = []
    for n in range(RUNS):
        name = f"{what}-{n}".replace(" ", "_")
        thread = fleet.thread()
        asked = time.monotonic()
        run = fleet.begin(thread, name)
        place = (thread, run)
        watchers = [Reader([fleet.urls[1]], *place), Reader([fleet.urls[0]], *place), Joiner([fleet.urls[1]], *place)]
        waits.append(fleet.receiver.until_made("one", name) - asked)
        begun.append((thread, run, name, watchers))
    for thread, run, name, watchers in begun:
        assert fleet.over(thread, run)[0] == "success"
        assert set(fleet.receiver.steps(name).values()) == {1}, "nothing was done twice"
        kept = Reader([fleet.urls[0]], thread, run).finish().events
        assert [event for _, event, _ in kept].count("metadata") == 1 and kept[-1][1] == "values"
        for reader in watchers[:2]:
            seen = reader.finish().events
            assert seen == kept, f"{len(seen)} events of {len(kept)}"
            compared += len(seen)
        assert watchers[2].finish().result["log"] == ["one", "side", "two", "three"]
    # The stream that a run is begun with, of a graph that says much at once.
    body = {"assistant_id": "talk", "input": {}, "stream_mode": ["custom", "values"], "stream_resumable": True}
    with fleet.http.stream("POST", f"{fleet.urls[0]}/threads/{fleet.thread()}/runs/stream", json=body) as answer:
        said = [json.loads(data)["n"] for _, event, data in events(answer.iter_lines()) if event == "custom"]
    assert said == list(range(20))
    waits = [wait * 1000 for wait in waits]
    table.append(HEAD, (what, RUNS, f"{statistics.median(waits):.0f}", f"{max(waits):.0f}", compared + len(said)))
    assert max(waits) <= START_S * 1000, f"{what}: a run started after {max(waits):.0f} ms"


def test_there(fleet, server, table):
    rounds(fleet, table, "there")


def test_flushed(fleet, server, table):
    with Flushing(fleet.redis_address):
        rounds(fleet, table, "flushed 20 times a second")


@pytest.mark.parametrize("mode", ["half-open both", "reset"])
def test_ill(fleet, server, table, mode):
    """The first runs fall into the time in which no one has noticed yet."""
    before = fleet.proxy.set(mode)
    rounds(fleet, table, mode)
    assert fleet.proxy.set("pass") > before, "no harm was done"


def test_gone_and_back_empty(fleet, server, table):
    fleet.redis.kill()
    fleet.redis.wait()
    rounds(fleet, table, "gone")
    fleet.restart_redis()
    rounds(fleet, table, "back, empty")
    until("the tables to come to rest", lambda: None if fleet.left_behind() else True)
