"""Readers of streams that come back after a loss, as the official clients do."""

import contextlib
import threading
import time

import httpx

from harness import PATIENCE_S


def events(lines):
    """(id, event, data) of each event in the lines of a stream."""
    event = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            event[name] = value.removeprefix(" ")
        elif event:
            if "event" in event:
                yield event.get("id"), event["event"], event.get("data", "")
            event = {}


class Returning(threading.Thread):
    """Something that is asked for again, of the next server, when the one that was asked goes away."""

    def __init__(self, urls, thread, run, limit_s=PATIENCE_S):
        super().__init__(daemon=True)
        self.urls, self.thread, self.run_id, self.limit_s = urls, thread, run, limit_s
        self.came_back = 0
        self.error = None
        self.connected = threading.Event()
        self.start()

    def run(self):
        try:
            deadline = time.monotonic() + self.limit_s
            with httpx.Client(timeout=20) as http:
                while not self.once(http, self.urls[self.came_back % len(self.urls)]):
                    assert time.monotonic() < deadline, f"{self.limit_s} s were not enough"
                    self.came_back += 1
                    time.sleep(0.02)
        except BaseException as error:  # noqa: BLE001 - told by `result`
            self.error = error
        finally:
            self.connected.set()

    def finish(self):
        self.join(self.limit_s + 20)
        assert not self.is_alive(), "still reading"
        if self.error is not None:
            raise self.error
        return self


class Reader(Returning):
    """Reads a run from its first event to its last."""

    def __init__(self, *args, **more):
        self.events = []
        super().__init__(*args, **more)

    def once(self, http, url):
        last = self.events[-1][0] if self.events else "-1"
        place = f"{url}/threads/{self.thread}/runs/{self.run_id}"
        with contextlib.suppress(httpx.TransportError):
            with http.stream("GET", f"{place}/stream", headers={"last-event-id": last}) as answer:
                if answer.status_code == 404:
                    return True  # rolled back meanwhile
                assert answer.status_code == 200, answer.status_code
                self.connected.set()
                for event in events(answer.iter_lines()):
                    self.events.append(event)
            # A stream that ends before its run was cut: the client comes back.
            answer = http.get(place)
            return answer.status_code == 404 or answer.json()["status"] not in ("pending", "running")
        return False


class Joiner(Returning):
    """Waits for the result of a run."""

    result = None

    def once(self, http, url):
        with contextlib.suppress(httpx.TransportError):
            with http.stream("GET", f"{url}/threads/{self.thread}/runs/{self.run_id}/join") as answer:
                self.connected.set()
                answer.read()
                # No one answers for a server that drains or is gone.
                if answer.status_code in (200, 404):
                    self.result = answer.json()
                    return True
        return False
