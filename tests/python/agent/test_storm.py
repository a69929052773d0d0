"""A thousand readers lose their server at once and come back; and a reader that does not read."""

import asyncio
import json
import os
import pathlib
import random
import signal
import socket
import statistics
import time

import pytest

from drill import Fleet, Receiver
from harness import until
from readers import events

CLIENTS, RUNS = 1000, 20
# How long anything is waited for. No bar: the table says how long it took until everybody was back, counted from the kill
# (of a cluster) or the restart (of a single process). On a slow machine most of that time is this process's own.
PATIENCE_S = 300
HEAD = ("readers", "killed", "storage", "back p50, s", "back p99, s", "last one, s", "sent away", "events", "missed", "doubled")


@pytest.fixture(scope="module", params=["embedded", "cluster"])
def fleet(request):
    if request.param == "cluster" and "TOWPATH_TEST_POSTGRES" not in os.environ:
        pytest.skip("TOWPATH_TEST_POSTGRES is not set")
    receiver = Receiver()
    # No one who performs dies here; a machine that is busy with so many readers must not be taken for a dead one.
    # The logs of all runs are read again at the end, however slow the machine is.
    kept = {"RESUMABLE_STREAM_TTL_SECONDS": "3600"}
    running = Fleet(request.param, receiver, N_JOBS_PER_WORKER=str(RUNS), TOWPATH_ENGINE_LEASE_SECONDS="15", **kept)
    yield running
    running.stop()
    receiver.stop()


@pytest.fixture
def server(fleet):
    """For the report of a failing test. What a test killed is there again for the next."""
    yield fleet
    fleet.again([process for process in fleet.processes if process.child.poll() is not None])


class SentAway(Exception):
    """More than the server works on at once (`http.requests`)."""


class Client:
    """One open stream. HTTP/1.0, so that the body is bytes until the connection ends."""

    def __init__(self, fleet, thread, run, over):
        self.addresses = [url.removeprefix("http://").split(":") for url in fleet.urls]
        self.thread, self.run, self.over = thread, run, over
        self.ids, self.lost, self.back = [], None, None
        self.at = self.refused = 0

    async def read(self):
        while True:
            pause_s = 0.05
            try:
                if await self.once():
                    return
            except SentAway:
                # What the official clients do, who all begin with a second and a little by chance.
                pause_s = random.uniform(1, 1.25)
                self.refused += 1
            except (OSError, asyncio.IncompleteReadError):
                self.at += 1
            await asyncio.sleep(pause_s)


    async def once(self):
        over = self.run in self.over
        host, port = self.addresses[self.at % len(self.addresses)]
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            last = self.ids[-1] if self.ids else "-1"
            place = f"/threads/{self.thread}/runs/{self.run}/stream"
            writer.write(f"GET {place} HTTP/1.0\r\nhost: localhost\r\nlast-event-id: {last}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"HTTP/1.0 503"):
                raise SentAway
            assert head.startswith(b"HTTP/1.0 200"), head
            if self.lost is not None and self.back is None:
                self.back = time.monotonic()
            while line := await reader.readline():
                if line.startswith(b"id: "):
                    self.ids.append(line[4:].strip().decode())
            # A stream that ends before its run is over was cut.
            return over
        finally:
            writer.close()


@pytest.fixture
async def tasks():
    """Ended with the test, however that ends."""
    running = []
    yield running
    for task in running:
        task.cancel()


async def test_a_thousand_readers_come_back(fleet, server, table, tasks):
    begun, gates = [], []
    for n in range(RUNS):
        thread, name = fleet.thread(), f"storm-{fleet.layout}-{n}"
        gates.append(fleet.receiver.hold("gate", name))
        begun.append((thread, fleet.begin(thread, name, graph="ticks", stream_mode=["custom", "updates"])))
    over = set()
    clients = [Client(fleet, *begun[n % RUNS], over) for n in range(CLIENTS)]
    reading = [asyncio.create_task(client.read()) for client in clients]
    tasks.extend(reading)

    async def all_of(what, is_so, limit_s=PATIENCE_S):
        async with asyncio.timeout(limit_s):
            while not all(is_so(client) for client in clients):
                assert not any(task.done() and task.exception() for task in reading), what
                await asyncio.sleep(0.02)

    # Everything that is said before the runs wait: that they began, 20 events, an update.
    await all_of("in the middle of their streams", lambda client: len(client.ids) >= 22)
    victim = fleet.apis[0]
    at = time.monotonic()
    for client in clients:
        client.lost = at
    victim.child.send_signal(signal.SIGKILL)
    await asyncio.to_thread(victim.child.wait)
    if fleet.layout == "embedded":
        await asyncio.to_thread(fleet.again, [victim])
        at = time.monotonic()
    await all_of("back", lambda client: client.back is not None)
    backs = sorted(max(client.back - at, 0) for client in clients)
    for gate in gates:
        gate.set()
    for thread, run in begun:
        status, _ = await asyncio.to_thread(fleet.over, thread, run, PATIENCE_S)
        assert status == "success"
        over.add(run)
    await asyncio.wait_for(asyncio.gather(*reading), PATIENCE_S)
    missed = doubled = total = 0
    for thread, run in begun:
        kept = await asyncio.to_thread(replay, fleet, thread, run)
        assert len(kept) >= 44 and len(set(kept)) == len(kept)
        for client in (client for client in clients if client.run == run):
            seen = set(client.ids)
            total += len(client.ids)
            doubled += len(client.ids) - len(seen)
            missed += len(set(kept) - seen)
            order = [tuple(map(int, id.split("-"))) for id in client.ids]
            assert order == sorted(order)
            if fleet.layout == "cluster":
                assert client.ids == kept
    storage = "SQLite" if fleet.layout == "embedded" else "PostgreSQL + Redis"
    times = [f"{value:.2f}" for value in (statistics.median(backs), backs[-CLIENTS // 100], backs[-1])]
    refused = sum(client.refused for client in clients)
    table.append(HEAD, (CLIENTS, "api", storage, *times, refused, total, missed, doubled))
    assert (missed, doubled) == (0, 0)


def replay(fleet, thread, run):
    headers = {"last-event-id": "-1"}
    place = f"{fleet.urls[-1]}/threads/{thread}/runs/{run}/stream"

    def ask():
        with fleet.http.stream("GET", place, headers=headers) as answer:
            # While all the others come back, some are sent away.
            if answer.status_code == 503:
                return None
            assert answer.status_code == 200, answer.status_code
            return [id for id, _, _ in events(answer.iter_lines())]

    return until("the log of a run", ask, PATIENCE_S)


def resident_mb(process):
    status = pathlib.Path(f"/proc/{process.child.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) // 1024


@pytest.mark.parametrize("resumable", [True, False], ids=["resumable", "passing"])
def test_a_reader_that_does_not_read_is_cut(fleet, server, resumable):
    """32 MB of states go to one who reads none of them: they are not kept for it in memory. What is in the log it
    gets, from the same stream or when it comes back; where something is not, the stream says so and ends."""
    thread = fleet.thread()
    body = {"assistant_id": "heavy", "input": {}, "stream_mode": ["values"], "durability": "exit"}
    body["stream_resumable"] = resumable
    host, port = fleet.urls[0].removeprefix("http://").split(":")
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        slow.connect((host, int(port)))
        text = json.dumps(body)
        head = f"POST /threads/{thread}/runs/stream HTTP/1.0\r\nhost: localhost\r\ncontent-length: {len(text)}\r\n\r\n"
        before = resident_mb(fleet.apis[0])
        slow.sendall((head + text).encode())
        first = slow.recv(4096).decode()
        run = first.lower().split("content-location: ")[1].split("\r\n")[0].rsplit("/", 1)[1]
        assert fleet.over(thread, run, PATIENCE_S)[0] == "success"
        if fleet.layout == "cluster":
            # The process that serves holds the bounded buffer, and what the kernel has not taken.
            assert resident_mb(fleet.apis[0]) - before < 100
        rest = slow.makefile("rb").read().decode()
    seen = list(events((first + rest).split("\r\n\r\n", 1)[1].replace("\r\n", "\n").split("\n")))
    counts = [json.loads(data).get("count") for _, event, data in seen if event == "values"]
    errors = [json.loads(data)["error"] for _, event, data in seen if event == "error"]
    if not resumable:
        assert counts == list(range(1, len(counts) + 1)) and len(counts) < 160, "a beginning, and then the end"
        assert errors == ["StreamCut"] and seen[-1][1] == "error"
        return
    assert not errors
    last = seen[-1][0]
    place = f"{fleet.urls[-1]}/threads/{thread}/runs/{run}/stream"
    with fleet.http.stream("GET", place, headers={"last-event-id": last}) as answer:
        counts += [json.loads(data)["count"] for _, event, data in events(answer.iter_lines()) if event == "values"]
    assert counts == list(range(1, 161)), "everything, once"
