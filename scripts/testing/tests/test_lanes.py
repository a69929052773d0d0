import threading
import unittest

from testing.lanes import Lanes, in_use, longest_first
from testing.suites import PROCESSOR, WAITING, Suite

LANES = (PROCESSOR, WAITING)


def suite(name, lane, seconds=0):
    return Suite(name, "", lane, lambda context: [], typical_seconds=seconds)


def names(suites) -> list[str]:
    return [found.name for found in suites]


class Order(unittest.TestCase):
    def test_the_longest_is_first(self):
        suites = [suite("short", WAITING, 10), suite("long", WAITING, 90), suite("middle", WAITING, 50)]
        self.assertEqual(names(longest_first(suites, {})), ["long", "middle", "short"])

    def test_what_was_seen_counts_more_than_what_is_typical(self):
        suites = [suite("short", WAITING, 10), suite("long", WAITING, 90)]
        self.assertEqual(names(longest_first(suites, {"short": 200.0})), ["short", "long"])

    def test_a_lane_takes_its_own_suites_first_then_the_longest_of_the_other(self):
        suites = [suite("rust", PROCESSOR, 90), suite("contract", PROCESSOR, 50), suite("clippy", PROCESSOR, 10)]
        suites += [suite("agent", WAITING, 70)]
        lanes = Lanes(suites, LANES, {})
        self.assertEqual(lanes.take(PROCESSOR).name, "rust")
        self.assertEqual(lanes.take(WAITING).name, "agent")
        self.assertEqual(lanes.take(WAITING).name, "contract")
        self.assertEqual(lanes.take(PROCESSOR).name, "clippy")
        self.assertIsNone(lanes.take(PROCESSOR))

    def test_one_suite_uses_one_lane(self):
        self.assertEqual(in_use([suite("agent", WAITING)], LANES), (WAITING,))
        self.assertEqual(in_use([suite("agent", WAITING), suite("agent-python", WAITING)], LANES), LANES)
        self.assertEqual(in_use([], LANES), ())


class Run(unittest.TestCase):
    def test_lanes_run_side_by_side(self):
        both = threading.Barrier(2, timeout=10)
        done = []

        def perform(found, lane):
            both.wait()
            done.append((found.name, lane))

        Lanes([suite("rust", PROCESSOR), suite("agent", WAITING)], LANES, {}).run(perform)
        self.assertEqual(sorted(done), [("agent", WAITING), ("rust", PROCESSOR)])

    def test_every_suite_runs_once(self):
        done = []
        suites = [suite(str(number), LANES[number % 3 == 0], number) for number in range(20)]
        Lanes(suites, LANES, {}).run(lambda found, _: done.append(found.name))
        self.assertEqual(sorted(done), sorted(names(suites)))

    def test_an_error_stops_the_lanes_and_is_raised(self):
        done = []

        def perform(found, _):
            done.append(found.name)
            raise ValueError(found.name)

        lanes = Lanes([suite("a", PROCESSOR, 3), suite("b", PROCESSOR, 2), suite("c", PROCESSOR, 1)], (PROCESSOR,), {})
        with self.assertRaises(ValueError):
            lanes.run(perform)
        self.assertEqual(done, ["a"])

    def test_a_stopped_lane_takes_nothing(self):
        lanes = Lanes([suite("a", PROCESSOR)], LANES, {})
        lanes.stop()
        self.assertIsNone(lanes.take(PROCESSOR))
