import pathlib
import unittest

from testing import changed, graph
from testing.changed import select
from testing.suites import GROUPS

TOP = pathlib.Path("/clone")


def package(name, folder, uses=(), tests_use=()):
    entries = [{"name": other, "kind": None} for other in (*uses, "serde")]
    entries += [{"name": other, "kind": "dev"} for other in tests_use]
    return {"name": name, "manifest_path": f"/clone/{folder}/Cargo.toml", "dependencies": entries}


CRATES = graph.read(
    {
        "packages": [
            package("towpath-domain", "crates/domain"),
            package("towpath-store", "crates/store", ["towpath-domain"]),
            package("towpath-queue", "crates/queue", ["towpath-domain"]),
            package("towpath-traces", "crates/traces", ["towpath-domain"], tests_use=["towpath-store"]),
            package("towpath-runtime", "crates/runtime", ["towpath-domain"]),
            package("towpath-api", "api", ["towpath-store"]),
            package("towpath", "crates/cli", ["towpath-api", "towpath-queue", "towpath-runtime"]),
            package("towpath-extra", "crates/extra", ["towpath-domain"]),
            package("towpath-tests", "tests", [], tests_use=["towpath-domain"]),
        ]
    },
    TOP,
)
END_TO_END = {"python", "js", "agent", "contract", "ingest", "kill", "soak", "faults"}


def suites_for(*files) -> set[str]:
    return set(select(list(files), CRATES).reasons)


def packages_for(*files):
    return select(list(files), CRATES).packages


class Graph(unittest.TestCase):
    def test_a_file_belongs_to_the_innermost_folder(self):
        self.assertEqual(CRATES.of("crates/store/src/jobs.rs"), "towpath-store")
        self.assertEqual(CRATES.of("tests/it/kill.rs"), "towpath-tests")
        self.assertIsNone(CRATES.of("crates/new/src/lib.rs"))

    def test_what_is_built_from_a_crate_goes_all_the_way_up(self):
        self.assertEqual(CRATES.built_from({"towpath-store"}), {"towpath-store", "towpath-api", "towpath"})

    def test_a_dependency_of_tests_goes_one_step(self):
        self.assertEqual(
            CRATES.tested_with({"towpath-store"}),
            {"towpath-store", "towpath-api", "towpath", "towpath-traces", "towpath-tests"},
        )

    def test_the_graph_of_the_clone_is_read(self):
        crates = graph.load()
        self.assertIn("towpath-store", crates.uses["towpath-durable"])
        self.assertIn("towpath", crates.built_from({"towpath-domain"}))
        self.assertEqual(crates.folders["towpath-tests"], "tests")


class Select(unittest.TestCase):
    def test_sources_below_the_binary_run_every_suite_that_starts_it(self):
        found = select(["crates/store/src/jobs.rs"], CRATES)
        self.assertEqual(set(found.reasons), END_TO_END | {"rust", "fmt", "clippy"})
        self.assertNotIn("towpath-queue", found.packages)
        self.assertIn("towpath-traces", found.packages)

    def test_tests_of_a_crate_run_alone(self):
        self.assertEqual(suites_for("crates/store/tests/it/jobs.rs"), {"rust", "fmt", "clippy"})
        self.assertEqual(packages_for("crates/store/tests/it/jobs.rs"), {"towpath-store"})
        self.assertEqual(packages_for("crates/domain/src/filter/tests.rs"), {"towpath-domain"})

    def test_a_crate_that_the_binary_is_not_built_from_runs_no_end_to_end_suite(self):
        self.assertEqual(suites_for("crates/extra/src/lib.rs"), {"rust", "fmt", "clippy"})
        self.assertEqual(packages_for("crates/extra/src/lib.rs"), {"towpath-extra"})

    def test_documents_run_the_rules_about_the_tree(self):
        self.assertEqual(suites_for("docs/operations.md", "ARCHITECTURE.md"), {"rust"})
        self.assertEqual(packages_for("deny.toml"), frozenset())

    def test_pages_run_the_tests_that_follow_their_links(self):
        self.assertEqual(packages_for("docs/operations.md"), {"towpath-api"})
        self.assertEqual(packages_for("CHANGELOG.md"), {"towpath-api"})

    def test_pages_whose_commands_are_run_run_their_suites(self):
        self.assertEqual(suites_for("README.md", "docs/guides/upgrade.md"), {"rust", "python"})
        self.assertEqual(suites_for("docs/guides/from-aegra.md"), {"rust", "python", "agent"})

    def test_a_page_that_a_test_compares_runs_that_test(self):
        self.assertEqual(packages_for("docs/configuration.md"), {"towpath", "towpath-api"})

    def test_suites_in_python_are_told_apart(self):
        self.assertEqual(suites_for("tests/python/test_s3.py"), {"rust", "python"})
        self.assertEqual(suites_for("tests/python/agent/test_runs.py"), {"rust", "agent"})
        self.assertEqual(suites_for("tests/python/agent/world.py"), {"rust", "agent", "contract"})
        self.assertEqual(suites_for("tests/python/host/peer.py"), {"rust", "host"})
        self.assertEqual(suites_for("tests/js/test_js.py"), {"rust", "js"})
        self.assertEqual(suites_for("tests/js/react.test.mjs"), {"rust", "js", "agent"})
        self.assertEqual(suites_for("tests/python/harness.py"), {"rust", *changed.PYTHON_SUITES})

    def test_drills_are_told_apart(self):
        self.assertEqual(suites_for("tests/it/kill/upkeep.rs"), {"rust", "kill", "fmt", "clippy"})
        self.assertEqual(suites_for("tests/it/soak/day.rs"), {"rust", "soak", "fmt", "clippy"})
        self.assertEqual(suites_for("tests/it/ingest_fuzz/oracle.rs"), {"rust", "ingest", "fmt", "clippy"})
        self.assertEqual(suites_for("tests/it/redis_faults.rs"), {"rust", "faults", "fmt", "clippy"})
        self.assertEqual(packages_for("tests/it/kill/upkeep.rs"), frozenset())

    def test_the_host_of_python_graphs_is_part_of_the_binary(self):
        found = suites_for("crates/runtime/host/python/towpath_host/main.py")
        self.assertEqual(found, END_TO_END | {"host", "rust"})

    def test_data_of_tests_that_the_demo_sends_is_part_of_the_binary(self):
        self.assertIn("towpath-traces", packages_for("crates/traces/tests/data/body.bin"))

    def test_what_no_rule_knows_runs_everything(self):
        for file in ("Cargo.lock", "Cargo.toml", ".cargo/config.toml", "something.new"):
            self.assertEqual(suites_for(file), set(GROUPS))
            self.assertIsNone(packages_for(file))

    def test_scripts_run_their_own_tests(self):
        self.assertEqual(suites_for("scripts/testing/lanes.py"), {"rust", "scripts"})
        self.assertEqual(suites_for("fuzz/fuzz_targets/filter.rs"), {"rust"})

    def test_nothing_changed_runs_nothing(self):
        self.assertEqual(suites_for(), set())

    def test_what_is_left_out_is_said(self):
        lines = "\n".join(select(["crates/store/tests/it/jobs.rs"], CRATES).lines(GROUPS))
        self.assertIn("runs rust: crates/store/tests/it/jobs.rs", lines)
        self.assertIn("rust runs: towpath-store, and the rules", lines)
        self.assertRegex(lines, "rust leaves out: .*towpath-queue")
        self.assertRegex(lines, "left out: .*agent.*host.*faults")

    def test_every_suite_named_in_a_rule_exists(self):
        for _, found in changed.PATHS:
            self.assertLessEqual(found.suites, set(GROUPS))
