import contextlib
import io
import pathlib
import re
import unittest

from testing import arguments, rust, suites
from testing.arguments import parse
from testing.context import Context
from testing.junit import FAILED, PASSED
from testing.suites import GROUPS, SUITES


class Parse(unittest.TestCase):
    def refused(self, *argv) -> str:
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as ended:
            parse(list(argv))
        self.assertEqual(ended.exception.code, 2)
        return said.getvalue()

    def test_no_suite_is_every_suite(self):
        self.assertEqual((parse([]).suites, parse([]).all_suites), (GROUPS, True))
        self.assertEqual((parse(["js", "fmt"]).suites, parse(["js"]).all_suites), (("fmt", "js"), False))

    def test_arguments_belong_to_one_suite(self):
        self.assertEqual(parse(["rust", "--", "fences"]).arguments, ("fences",))
        self.assertEqual(parse(["agent", "--", "-k", "a or b"]).arguments, ("-k", "a or b"))
        for argv in (["--", "fences"], ["rust", "js", "--", "fences"], ["fmt", "--", "x"], ["--changed", "--", "x"]):
            self.assertIn("behind `--`", self.refused(*argv))

    def test_changed_takes_a_commit_or_none(self):
        self.assertEqual(parse(["--changed"]).changed, "")
        self.assertEqual(parse(["--changed", "HEAD~2"]).changed, "HEAD~2")
        found = parse(["--changed", "rust"])
        self.assertEqual((found.changed, found.suites), ("", ("rust",)))
        self.assertIsNone(parse(["rust"]).changed)

    def test_repeat_is_of_whole_runs(self):
        self.assertEqual(parse(["--repeat", "10", "--beside-load"]).repeat, 10)
        self.refused("--repeat", "2", "rust")
        self.refused("--repeat", "2", "--changed")

    def test_an_unknown_suite_is_named(self):
        self.assertIn("unknown suite `pyhton`", self.refused("pyhton"))

    def test_the_help_names_every_suite_and_variable(self):
        text = arguments.parser().format_help()
        for name in (*GROUPS, "CARGO_TARGET_DIR", "TOWPATH_TEST_KILLS", "PYTHON", "--changed", "--repeat", "--history", "--keep"):
            self.assertIn(name, text)


class Data(unittest.TestCase):
    def test_names_are_unique_and_parts_have_a_whole(self):
        names = [suite.name for suite in SUITES]
        self.assertEqual(len(names), len(set(names)))
        self.assertLessEqual(set(GROUPS), set(names))

    def test_suites_of_rust_have_a_profile_of_nextest(self):
        top = pathlib.Path(__file__).resolve().parents[3]
        profiles = set(re.findall(r"^\[profile\.(\w+)\]", (top / ".config" / "nextest.toml").read_text(), re.MULTILINE))
        self.assertLessEqual(set(rust.AT_ONCE), profiles)

    def test_files_of_requirements_are_there(self):
        top = pathlib.Path(__file__).resolve().parents[3]
        for suite in SUITES:
            for file in suite.venvs:
                self.assertTrue((top / file).is_file(), file)

    def test_pytest_runs_the_whole_folder_unless_files_are_named(self):
        folder = pathlib.Path("/r")
        context = Context(top=folder, target=folder, results=folder, run_folder=folder, venvs={suites.PYTHON: folder})
        command = next(suite for suite in SUITES if suite.name == "js").command
        self.assertEqual(command(context)[-1], "tests/js")
        context.arguments = ("tests/js/test_js.py::test_one",)
        self.assertEqual(command(context)[-1], "tests/js/test_js.py::test_one")
        self.assertNotIn("tests/js", command(context))

    def test_lines_of_the_contract_are_cases(self):
        log = "noise\ncontract, platform, embedded: 40 cases over 3 operations, 0 failures (seed 1, 3.5 s)\n"
        log += "contract, agent, cluster: 0 cases over 0 operations, broken, failures (seed 1)\n"
        found = suites.read_contract(log + "contract, cluster: skipped, no server\n")
        self.assertEqual(
            [(case.name, case.state, case.seconds) for case in found],
            [("contract::platform::embedded", PASSED, 3.5), ("contract::agent::cluster", FAILED, 0)],
        )
