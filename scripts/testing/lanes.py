"""Which suite runs when: lanes side by side, each one suite after another."""

import threading

from testing.suites import Suite


def longest_first(suites: list[Suite], seconds: dict[str, float]) -> list[Suite]:
    """Suites by what they took last, else by what is typical of them: a long one begun late would be waited for."""
    return sorted(suites, key=lambda suite: -seconds.get(suite.name, suite.typical_seconds))


def in_use(queued: list[Suite], names: tuple[str, ...]) -> tuple[str, ...]:
    """The lanes that have something to do. One that is done takes suites of the other, so two suites keep both busy."""
    return names if len(queued) > 1 else tuple(suite.lane for suite in queued)


class Lanes:
    """Queues of suites. A lane whose own queue is empty takes the longest suite that waits in another one."""

    def __init__(self, suites: list[Suite], lanes: tuple[str, ...], seconds: dict[str, float]):
        ordered = longest_first(suites, seconds)
        self.queues = {lane: [suite for suite in ordered if suite.lane == lane] for lane in lanes}
        self.seconds = seconds
        self.lock = threading.Lock()
        self.stopping = False

    def take(self, lane: str) -> Suite | None:
        with self.lock:
            if self.stopping:
                return None
            if self.queues[lane]:
                return self.queues[lane].pop(0)
            waiting = [queue for queue in self.queues.values() if queue]
            return max(waiting, key=lambda queue: self.seconds_of(queue[0])).pop(0) if waiting else None

    def seconds_of(self, suite: Suite) -> float:
        return self.seconds.get(suite.name, suite.typical_seconds)

    def stop(self):
        """No suite begins from here on."""
        with self.lock:
            self.stopping = True

    def run(self, perform):
        """Calls `perform(suite, lane)` for every suite. An error in a lane stops all lanes and is raised here."""
        errors = []

        def work(lane):
            try:
                while suite := self.take(lane):
                    perform(suite, lane)
            except BaseException as error:  # Raised again below, in the thread that can end the run.
                errors.append(error)
                self.stop()

        threads = [threading.Thread(target=work, args=(lane,), name=lane, daemon=True) for lane in self.queues]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
