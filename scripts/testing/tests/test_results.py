import json
import pathlib
import tempfile
import unittest

from testing import results
from testing.junit import FAILED, PASSED, SKIPPED, Case
from testing.processes import Finished
from testing.results import Outcome

GREEN = Finished(0, 12.0, 3.0, 1.0, False)
RED = Finished(1, 12.0, 3.0, 1.0, False)


def outcome(suite, finished, *states) -> Outcome:
    cases = [Case(f"{suite}::test_{number}", number, state, f"why {number}") for number, state in enumerate(states)]
    return Outcome(suite, "waiting", 0.0, finished, tuple(cases))


class Counts(unittest.TestCase):
    def test_counts_are_those_of_the_cases(self):
        found = outcome("agent", RED, PASSED, FAILED, SKIPPED, PASSED)
        self.assertEqual((found.passed, found.failed, found.count(SKIPPED)), (2, 1, 1))

    def test_a_suite_that_fails_without_a_failing_test_is_one_failure(self):
        found = outcome("rust", RED, PASSED, PASSED)
        self.assertEqual((found.passed, found.failed), (2, 1))
        self.assertEqual(found.first_failure(), "rust: ended with 1 without a failing test")
        self.assertEqual(outcome("build", RED).failed, 1)

    def test_a_suite_at_its_time_limit_says_so(self):
        found = Outcome("kill", "waiting", 0, Finished(-15, 2400.0, 1, 1, True))
        self.assertEqual(found.first_failure(), "kill: reached its time limit without a failing test")
        self.assertIn("ended after 2400 s, its time limit", "\n".join(found.failure_report(pathlib.Path("/nowhere"))))

    def test_sums_of_all_suites(self):
        found = [outcome("rust", RED, PASSED, FAILED), outcome("fmt", GREEN), outcome("js", GREEN, PASSED), outcome("build", RED)]
        self.assertEqual(results.totals(found), (2, 2))

    def test_the_line_of_a_suite(self):
        line = outcome("agent", GREEN, PASSED, SKIPPED).line()
        self.assertRegex(line, r"^agent +ok +12\.0 s +4\.0 s of processor +1 passed, 0 failed, 1 skipped$")


class Skips(unittest.TestCase):
    def test_reasons_are_said_once_with_their_count(self):
        cases = [Case(str(number), 0, PASSED, output="x\nskipped: no server\nskipped: no server\n") for number in range(3)]
        cases += [Case("a", 0, PASSED, output="SKIPPED: no engine"), Case("b", 0, SKIPPED, "no browser")]
        found = Outcome("rust", "processor", 0, GREEN, tuple(cases)).skips()
        self.assertEqual(found, ["SKIPPED: no engine (1 test)", "skipped: no browser (1 test)", "skipped: no server (3 tests)"])


class Summary(unittest.TestCase):
    def test_the_slowest_tests_of_all_suites(self):
        found = [outcome("a", GREEN, *[PASSED] * 40), outcome("b", GREEN, *[PASSED] * 41)]
        slowest = results.slowest(found)
        self.assertEqual(len(slowest), 30)
        self.assertEqual(slowest[0], (40, "b", "b::test_40"))
        self.assertEqual(slowest[1][0], slowest[2][0])

    def test_the_first_failure_is_that_of_the_suite_that_ended_first(self):
        found = [outcome("js", GREEN, PASSED), outcome("kill", RED, PASSED, FAILED), outcome("agent", RED, FAILED)]
        summary = results.summary(found, "c0ffee", False, "20260301T000000Z", 700.04)
        self.assertEqual(summary["first_failure"], "kill: kill::test_1: why 1")
        self.assertEqual((summary["seconds"], summary["passed"], summary["failed"]), (700.0, 2, 2))
        self.assertEqual(summary["suites"]["js"]["user_seconds"], 3.0)
        json.dumps(summary)

    def test_a_failing_suite_shows_its_log_and_its_tests(self):
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder) / "log"
            log.write_text("first\nerror: could not compile `towpath-store`\n")
            self.assertIn("FAILED agent::test_0: why 0", outcome("agent", RED, FAILED).failure_report(log))
            lines = outcome("build", RED).failure_report(log)
            self.assertEqual(lines.count("error: could not compile `towpath-store`"), 2)


class Folders(unittest.TestCase):
    def test_the_newest_runs_are_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            runs = pathlib.Path(folder) / "test-runs"
            for number in range(25):
                results.new_folder(runs, f"20260301T0000{number:02}Z")
            kept = [path.name for path in results.run_folders(runs)]
            self.assertEqual((len(kept), kept[0], kept[-1]), (20, "20260301T000005Z", "20260301T000024Z"))

    def test_two_runs_of_one_second_have_a_folder_each(self):
        with tempfile.TemporaryDirectory() as folder:
            runs = pathlib.Path(folder)
            names = {results.new_folder(runs, "20260301T000000Z").name for _ in range(3)}
            self.assertEqual(len(names), 3)

    def test_seconds_are_those_of_the_last_green_run_of_a_suite(self):
        with tempfile.TemporaryDirectory() as folder:
            runs = pathlib.Path(folder)
            for number, found in enumerate([outcome("js", GREEN), outcome("js", RED)]):
                summary = results.summary([found], None, False, "", 0)
                summary["suites"]["js"]["seconds"] = number
                (results.new_folder(runs, f"20260301T00000{number}Z") / "summary.json").write_text(json.dumps(summary))
            results.new_folder(runs, "20260301T000009Z")
            self.assertEqual(results.last_seconds(runs), {"js": 0})

    def test_a_run_of_a_few_tests_says_nothing_about_the_seconds_of_its_suite(self):
        with tempfile.TemporaryDirectory() as folder:
            runs = pathlib.Path(folder)
            found = [outcome("js", GREEN, PASSED, PASSED, PASSED), outcome("js", GREEN, PASSED, PASSED), outcome("js", GREEN, PASSED)]
            for number, one in enumerate(found):
                summary = results.summary([one], None, False, "", 0)
                summary["suites"]["js"]["seconds"] = number
                (results.new_folder(runs, f"20260301T00000{number}Z") / "summary.json").write_text(json.dumps(summary))
            self.assertEqual(results.last_seconds(runs), {"js": 1})
