import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from testing import junit, libtest, rust
from testing.context import Build, Context, Program
from testing.junit import FAILED, PASSED, SKIPPED


def artifact(package_id, kind, name, executable, test):
    return {
        "reason": "compiler-artifact",
        "package_id": package_id,
        "manifest_path": "/clone/crates/store/Cargo.toml",
        "target": {"kind": [kind], "name": name},
        "profile": {"test": test},
        "executable": executable,
    }


MESSAGES = [
    artifact("path+file:///clone/crates/store#towpath-store@0.1.0", "lib", "towpath_store", None, False),
    artifact("path+file:///clone/crates/store#towpath-store@0.1.0", "lib", "towpath_store", "/t/deps/store-1", True),
    artifact("path+file:///clone/crates/store#towpath-store@0.1.0", "test", "it", "/t/deps/it-1", True),
    artifact("path+file:///clone/towpath#0.1.0", "bin", "towpath", "/t/deps/towpath-2", True),
    artifact("path+file:///clone/towpath#0.1.0", "bin", "towpath", "/t/debug/towpath", False),
    {"reason": "build-finished", "success": True},
]

# Speaks as a test program does, with one test that takes it down.
PROGRAM = """#!{python}
import json, os, sys
if "--list" in sys.argv:
    print("drill::kills: test\\nother: test\\n")
    sys.exit(0)
assert os.environ["RUSTC_BOOTSTRAP"] == "1"
print(sys.argv[1:])
def say(**event): print(json.dumps({{"type": "test", **event}}), flush=True)
say(event="started", name="a"); say(event="ok", name="a", exec_time=0.5, stdout="| x | 1 |\\n")
say(event="ignored", name="b", message="a child")
print("noise")
say(event="started", name="c")
say(event="failed", name="c", exec_time=1.5, stdout="thread 'c' panicked at x.rs:1:\\nwaited in vain: a row\\n")
say(event="started", name="d")
sys.exit(101)
"""


class Commands(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.context = Context(top=self.folder, target=self.folder, results=self.folder, run_folder=self.folder)

    def test_what_cargo_built(self):
        messages = self.folder / "build.json"
        messages.write_text("\n".join(["not a message", *map(json.dumps, MESSAGES)]))
        build = rust.read_build(messages)
        self.assertEqual(build.towpath, pathlib.Path("/t/debug/towpath"))
        self.assertEqual([p.id for p in build.programs], ["towpath-store", "towpath-store::it", "towpath::bin/towpath"])
        self.assertEqual(build.programs[1].folder, "/clone/crates/store")

    def test_nextest_is_restricted_to_packages_and_rules(self):
        self.context.nextest = pathlib.Path("/bin/cargo-nextest")
        self.context.packages = frozenset({"towpath-store", "towpath-api"})
        command = rust.tests_command("rust", self.context)
        expression = command[command.index("-E") + 1]
        self.assertTrue(expression.startswith("package(=towpath-api) or package(=towpath-store) or (package(=towpath-tests) and"))
        self.assertNotIn("-E", rust.tests_command("kill", self.context))
        self.assertEqual(rust.report("kill", self.context), self.folder / "nextest" / "kill" / "junit.xml")

    def test_names_are_given_to_nextest(self):
        self.context.nextest = pathlib.Path("/bin/cargo-nextest")
        self.context.arguments = ("fences", "lanes")
        self.assertEqual(rust.tests_command("rust", self.context)[-2:], ["fences", "lanes"])

    def test_without_nextest_the_programs_are_run(self):
        programs = [Program(name, name, f"/t/{name}", "/clone") for name in ("towpath-store", "towpath-tests")]
        self.context.build = Build(programs=programs)
        command = rust.tests_command("faults", self.context)
        self.assertEqual(command[command.index("--only") + 1], "faults::")
        self.assertEqual(command[command.index("--threads") + 1], "10")
        listed = json.loads((self.folder / "faults.programs.json").read_text())
        self.assertEqual([program["package"] for program in listed], ["towpath-tests"])
        self.assertEqual(rust.tests_command("rust", self.context).count("--skip"), 4)

    def test_programs_end_before_their_suite(self):
        command = rust.tests_command("ingest", self.context, 5000)
        self.assertEqual(command[command.index("--limit") + 1], "4700")


class Libtest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        program = self.folder / "program"
        program.write_text(PROGRAM.format(python=sys.executable))
        program.chmod(0o755)
        entry = {"package": "p", "id": "p::it", "path": str(program), "folder": str(self.folder)}
        (self.folder / "programs.json").write_text(json.dumps([entry]))

    def run_programs(self, *arguments):
        command = [sys.executable, libtest.__file__, str(self.folder / "programs.json")]
        command += ["--junit", str(self.folder / "report.xml"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
        cases = {case.name: case for case in junit.read(self.folder / "report.xml")}
        return done.returncode, done.stdout, cases

    def test_events_become_cases(self):
        code, _, cases = self.run_programs()
        self.assertEqual(code, 1)
        states = {name: case.state for name, case in cases.items()}
        self.assertEqual(states, {"p::it::a": PASSED, "p::it::b": SKIPPED, "p::it::c": FAILED, "p::it::d": FAILED})
        self.assertEqual((cases["p::it::a"].seconds, cases["p::it::a"].output), (0.5, "| x | 1 |\n"))
        self.assertIn("waited in vain: a row", cases["p::it::c"].message)
        self.assertEqual(cases["p::it::d"].message, "the program ended before the test did")

    def test_one_test_of_a_drill_is_run_by_its_whole_name(self):
        _, output, _ = self.run_programs("--only", "drill::", "--name", "kill")
        self.assertIn("'drill::kills', '--exact'", output)
        code, _, cases = self.run_programs("--only", "drill::", "--name", "other")
        self.assertEqual((code, cases), (4, {}))
