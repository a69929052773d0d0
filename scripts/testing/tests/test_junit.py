import pathlib
import tempfile
import unittest

from testing import junit
from testing.junit import FAILED, PASSED, SKIPPED, Case

NEXTEST = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="1">
 <testsuite name="towpath-store::it">
  <testcase name="jobs::claims" classname="towpath-store::it" time="0.5"><system-out>skipped: no server
</system-out></testcase>
  <testcase name="jobs::ends" classname="towpath-store::it" time="1.5">
   <failure message="thread 'jobs::ends' (12) panicked at it/jobs.rs:3:5" type="test failure with exit code 101">thread 'jobs::ends' (12) panicked at it/jobs.rs:3:5:
waited 5s in vain: the job to end
stack backtrace:</failure></testcase>
 </testsuite>
 <testsuite name="towpath-queue"><testcase name="wakes" classname="towpath-queue" time="0.1"/></testsuite>
</testsuites>"""

PYTEST = """<testsuites><testsuite name="pytest" errors="1" failures="1" skipped="1" tests="4" time="9.0">
<testcase classname="test_runs" name="test_waits[sync]" time="2.0"/>
<testcase classname="test_runs" name="test_docker" time="0.0"><skipped message="no engine">x.py:3: no engine</skipped></testcase>
<testcase classname="test_runs" name="test_both" time="1.0"><failure message="assert 1 == 2">trace</failure></testcase>
<testcase classname="test_runs" name="test_both" time="3.0"><error message="failed on teardown">trace</error></testcase>
<testcase classname="test_runs" name="test_teardown" time="1.0"><error message="failed on teardown">trace</error></testcase>
</testsuite></testsuites>"""


def read(text) -> list[Case]:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "report.xml"
        path.write_text(text)
        return junit.read(path)


class Read(unittest.TestCase):
    def test_a_report_of_nextest(self):
        cases = {case.name: case for case in read(NEXTEST)}
        self.assertEqual(len(cases), 3)
        self.assertEqual(cases["towpath-store::it::jobs::claims"].output, "skipped: no server\n")
        self.assertEqual(cases["towpath-queue::wakes"], Case("towpath-queue::wakes", 0.1, PASSED))
        ended = cases["towpath-store::it::jobs::ends"]
        self.assertEqual((ended.state, ended.seconds), (FAILED, 1.5))
        self.assertIn("waited 5s in vain: the job to end", ended.message)

    def test_a_report_of_pytest(self):
        cases = read(PYTEST)
        self.assertEqual([case.state for case in cases], [PASSED, SKIPPED, FAILED, FAILED])
        self.assertEqual(cases[1].message, "no engine")

    def test_a_test_that_fails_twice_is_one(self):
        twice = read(PYTEST)[2]
        self.assertEqual((twice.name, twice.seconds, twice.message), ("test_runs::test_both", 4.0, "assert 1 == 2"))

    def test_two_tests_of_one_name_are_two(self):
        text = '<testsuite><testcase classname="a" name="b"/><testcase classname="a" name="b"/></testsuite>'
        self.assertEqual(len(read(text)), 2)

    def test_half_a_report_is_none(self):
        self.assertEqual(read(NEXTEST[:200]), [])
        self.assertEqual(junit.read(pathlib.Path("/nowhere/report.xml")), [])


class Write(unittest.TestCase):
    def test_what_is_written_is_read(self):
        cases = [
            Case("a::b", 1.5, PASSED, output="| figure | 3 |\n"),
            Case("a::c", 0.25, FAILED, "waited <5 s> in vain"),
            Case("d", 0, SKIPPED, "no server"),
        ]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "report.xml"
            junit.write(path, "suite", cases)
            self.assertEqual(junit.read(path), cases)

    def test_output_that_xml_cannot_hold(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "report.xml"
            junit.write(path, "suite", [Case("a", 1, PASSED, output="\x1b[31mred\x00")])
            self.assertEqual(junit.read(path)[0].output, "\N{REPLACEMENT CHARACTER}[31mred\N{REPLACEMENT CHARACTER}")
