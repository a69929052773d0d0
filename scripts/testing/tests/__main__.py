"""Runs the unit tests and writes a JUnit report, as the suite `scripts` does.

    python3 scripts/testing/tests [--junit FILE] [NAME…]
"""

import argparse
import pathlib
import sys
import time
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2]
sys.path[0] = str(SCRIPTS)

from testing import junit  # noqa: E402
from testing.junit import FAILED, PASSED, SKIPPED, Case  # noqa: E402


class Result(unittest.TextTestResult):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.cases, self.began = {}, 0.0

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def keep(self, test, state, message=""):
        self.cases[test.id()] = Case(test.id().replace(".", "::"), time.monotonic() - self.began, state, message)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.keep(test, PASSED)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.keep(test, SKIPPED, reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.keep(test, FAILED, str(err[1]))

    def addError(self, test, err):
        super().addError(test, err)
        self.keep(test, FAILED, str(err[1]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--junit", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    loader = unittest.TestLoader()
    if options.names:
        found = loader.loadTestsFromNames([f"testing.tests.{name.removeprefix('testing.tests.')}" for name in options.names])
    else:
        found = loader.discover(str(SCRIPTS / "testing" / "tests"), top_level_dir=str(SCRIPTS))
    result = unittest.TextTestRunner(resultclass=Result, verbosity=2).run(found)
    if options.junit:
        junit.write(options.junit, "scripts", list(result.cases.values()))
    sys.exit(not result.wasSuccessful())


main()
