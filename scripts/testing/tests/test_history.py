import pathlib
import tempfile
import unittest

from testing import history


def run(failed=0, commit="c0ffee", dirty=False, beside_load=False):
    return {
        "commit": commit,
        "dirty": dirty,
        "began": "20260301T000000Z",
        "seconds": 800.0,
        "passed": 2453,
        "failed": failed,
        "first_failure": "kill: it::kill::embedded: waited in vain" if failed else None,
        "beside_load": beside_load,
        "run": "20260301T000000Z",
    }


class History(unittest.TestCase):
    def test_a_red_run_starts_the_count_anew(self):
        entries = [run(), run(), run(failed=1), run(), run()]
        self.assertEqual(len(history.green_in_a_row(entries)), 2)
        self.assertEqual(history.green_in_a_row([run(), run(failed=3)]), [])
        self.assertEqual(len(history.green_in_a_row([run(), run()])), 2)

    def test_runs_of_other_commits_and_of_what_is_not_committed_do_not_count(self):
        entries = [run(), run(commit="other"), run(dirty=True), run(commit="other", failed=1), run()]
        self.assertEqual(len(history.of_commit(entries, "c0ffee")), 2)

    def test_what_is_kept_is_read_and_counted(self):
        with tempfile.TemporaryDirectory() as folder:
            runs = pathlib.Path(folder)
            for entry, load in ((run(failed=1), False), (run(), True), (run(), False)):
                history.append(runs, entry, load, runs / "20260301T000000Z")
            with (runs / history.FILE).open("a") as file:
                file.write('{"commit": "c0f')
            lines = history.lines(runs, "c0ffee")
            self.assertEqual(len(lines), 4)
            self.assertIn("FAILED", lines[0])
            self.assertIn("kill: it::kill::embedded: waited in vain", lines[0])
            self.assertIn("beside load", lines[1])
            self.assertEqual(lines[-1], "green runs in a row on c0ffee: 2, of which beside load: 1")

    def test_no_history_is_no_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            lines = history.lines(pathlib.Path(folder), "c0ffee")
            self.assertEqual(lines, ["green runs in a row on c0ffee: 0, of which beside load: 0"])
