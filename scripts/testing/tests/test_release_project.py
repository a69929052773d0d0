import contextlib
import io
import json
import pathlib
import tempfile
import unittest
from unittest import mock

from releasing import arguments, build, command, dependencies, licences, project, sbom
from releasing.dependencies import Crate
from releasing.errors import ReleaseError
from releasing.project import Project
from releasing.targets import BY_LABEL, DEFAULT

CHANGELOG = """\
# Changelog

## [Unreleased]

- next

## [1.1.0] - 2026-01-02

### Added

- a thing

## [1.0.0] - 2026-01-01

- first: [page](docs/a.md), [site](https://example.org/)
"""


def notes(version: str, changelog: str = CHANGELOG) -> str:
    return project.notes(changelog, Project(version, 0, "", "https://example.com/towpath"))


class Notes(unittest.TestCase):
    def test_they_are_the_section_of_the_version(self):
        self.assertEqual(notes("1.1.0"), "### Added\n\n- a thing\n")

    def test_links_lead_to_the_files_of_the_version(self):
        wanted = "- first: [page](https://example.com/towpath/blob/v1.0.0/docs/a.md), [site](https://example.org/)\n"
        self.assertEqual(notes("1.0.0"), wanted)

    def test_a_version_without_a_section_has_what_is_not_released(self):
        self.assertEqual(notes("2.0.0"), "- next\n")
        with self.assertRaisesRegex(ReleaseError, r"no section `## \[2\.0\.0\]`"):
            notes("2.0.0", "# Changelog\n")


class Version(unittest.TestCase):
    def test_it_stands_once(self):
        release = project.load()
        for path in (project.TOP / "scripts" / "releasing").rglob("*"):
            if path.is_file() and path.suffix != ".txt":
                self.assertNotIn(f'"{release.version}"', path.read_text(), path.name)

    def test_the_epoch_is_a_number(self):
        with mock.patch.dict("os.environ", SOURCE_DATE_EPOCH="yesterday"), self.assertRaisesRegex(ReleaseError, "yesterday"):
            project.load()
        with mock.patch.dict("os.environ", SOURCE_DATE_EPOCH="17"):
            self.assertEqual(project.load().epoch, 17)

    def test_a_template_with_a_gap_is_refused(self):
        with self.assertRaisesRegex(ReleaseError, r"towpath\.rb: nothing replaces @summary@"):
            project.template("towpath.rb", version="1")


def crate(name, licence="MIT", folder=pathlib.Path("/nowhere"), **more) -> Crate:
    values = {"version": "1.0.0", "repository": "", "authors": (), "is_ours": False, "is_native": False, "sha256": None}
    return Crate(name=name, licence=licence, folder=folder, **(values | {"uses": ()} | more))


def package(name, **more) -> dict:
    values = {
        "id": name,
        "name": name,
        "version": "1.0.0",
        "license": "MIT/Apache-2.0",
        "repository": None,
        "authors": [],
        "manifest_path": f"/registry/{name}/Cargo.toml",
        "source": "registry",
        "links": None,
        "targets": [{"kind": ["lib"]}],
    }
    return values | more


def node(name, *uses) -> dict:
    return {"id": name, "deps": [{"pkg": used, "dep_kinds": [{"kind": kind}]} for used, kind in uses]}


class Dependencies(unittest.TestCase):
    METADATA = {
        "packages": [
            package("towpath", source=None),
            package("linked"),
            package("below"),
            package("macro", targets=[{"kind": ["proc-macro"]}]),
            package("of-macro"),
            package("of-tests"),
            package("of-build"),
            package("unused"),
        ],
        "resolve": {
            "nodes": [
                node("towpath", ("linked", None), ("macro", None), ("of-tests", "dev"), ("of-build", "build")),
                node("linked", ("below", None)),
                node("macro", ("of-macro", None)),
                *(node(name) for name in ("below", "of-macro", "of-tests", "of-build", "unused")),
            ]
        },
    }

    def test_only_what_is_linked_counts(self):
        found = dependencies.of_metadata(self.METADATA, {"below 1.0.0": "ab"})
        self.assertEqual([one.name for one in found], ["below", "linked", "towpath"])
        self.assertEqual(found[0].sha256, "ab")
        self.assertEqual(found[0].licence, "MIT OR Apache-2.0")
        self.assertEqual(found[2].uses, ("linked 1.0.0",))

    def test_the_bill_names_each_crate_and_what_it_uses(self):
        crates = dependencies.of_metadata(self.METADATA, {"below 1.0.0": "ab"})
        release = Project("1.0.0", 1_700_000_000, "", "")
        data = sbom.document(release, DEFAULT, crates, b"program")
        self.assertEqual(data, sbom.document(release, DEFAULT, crates, b"program"))
        bom = json.loads(data)
        self.assertEqual(bom["metadata"]["component"]["purl"], "pkg:cargo/towpath@1.0.0")
        self.assertEqual(bom["metadata"]["timestamp"], "2023-11-14T22:13:20Z")
        self.assertEqual([part["name"] for part in bom["components"]], ["below", "linked"])
        self.assertEqual(bom["components"][0]["hashes"], [{"alg": "SHA-256", "content": "ab"}])
        self.assertEqual(bom["dependencies"][1], {"ref": "pkg:cargo/linked@1.0.0", "dependsOn": ["pkg:cargo/below@1.0.0"]})
        # Another program is another document.
        self.assertNotEqual(bom["serialNumber"], json.loads(sbom.document(release, DEFAULT, crates, b"x"))["serialNumber"])


class Licences(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def source(self, name: str, **files: str) -> pathlib.Path:
        for path, text in files.items():
            place = self.folder / name / path.replace("__", "/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        (self.folder / name).mkdir(exist_ok=True)
        return self.folder / name

    def test_a_text_stands_once_with_the_crates_it_is_for(self):
        one = crate("one", folder=self.source("one", LICENSE="the text  \r\n"))
        two = crate("two", folder=self.source("two", COPYING="the text\n", license_rs="", src__license="other"))
        found = licences.report([one, two], apache="apache")
        self.assertEqual(found.count("the text"), 1)
        self.assertIn("For: one 1.0.0, two 1.0.0", found)
        self.assertNotIn("other", found)

    def test_c_libraries_inside_are_found(self):
        native = crate("native-sys", folder=self.source("native", LICENSE="rust", c__LICENSE="of the library"), is_native=True)
        self.assertIn("of the library", licences.report([native], apache="apache"))

    def test_a_crate_without_a_text_has_the_one_it_names(self):
        empty = self.source("empty")
        crates = [crate("a", "MIT OR Apache-2.0", empty), crate("b", "MIT", empty, authors=("Ada",))]
        found = licences.report(crates, apache="apache")
        self.assertIn("For: a 1.0.0", found)
        self.assertIn("apache", found)
        self.assertIn("Copyright (c) Ada", found)
        with self.assertRaisesRegex(ReleaseError, r"c 1\.0\.0 \(Zlib\) has no licence file"):
            licences.report([crate("c", "Zlib", empty)], apache="apache")

    def test_our_own_crates_are_not_listed(self):
        ours = crate("towpath", folder=self.source("ours"), is_ours=True)
        self.assertNotIn("towpath 1.0.0", licences.report([ours], apache="apache"))


class Build(unittest.TestCase):
    def test_the_version_of_glibc_is_part_of_the_target(self):
        command_line, environment = build.cargo_command(DEFAULT, (2, 28), build.INSTALLED)
        self.assertEqual(command_line[-1], "x86_64-unknown-linux-gnu.2.28")
        self.assertIn("--locked", command_line)
        self.assertEqual(environment, {})

    def test_a_missing_standard_library_is_built(self):
        command_line, environment = build.cargo_command(BY_LABEL["aarch64-linux-musl"], (2, 28), build.BUILT)
        self.assertIn("aarch64-unknown-linux-musl", command_line)
        self.assertEqual(command_line[-1], "build-std=std,panic_unwind")
        self.assertEqual(environment, {"RUSTC_BOOTSTRAP": "1"})

    def test_paths_of_this_machine_are_renamed(self):
        found = build.flags(DEFAULT, pathlib.Path("/somewhere/target"))
        self.assertIn(f"--remap-path-prefix={project.TOP}=/towpath", found)
        self.assertEqual(found[-1], "--remap-path-prefix=/somewhere/target=/target")


class Arguments(unittest.TestCase):
    def refused(self, *argv: str) -> str:
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(SystemExit):
            arguments.parse(list(argv))
        return said.getvalue()

    def test_what_is_given_and_what_is_not(self):
        options = arguments.parse(["--target", "aarch64-linux", "--only", "deb", "--glibc", "2.31"])
        self.assertEqual((options.targets[0].machine, options.only, options.glibc), ("aarch64", ("deb",), (2, 31)))
        options = arguments.parse([])
        self.assertEqual((options.command, options.targets, options.only), ("build", (DEFAULT,), arguments.CHECKED))

    def test_mistakes_are_named(self):
        self.assertIn("`new` is no version", self.refused("--glibc", "new"))
        self.assertIn("/nowhere/towpath is not a file", self.refused("--binary", "/nowhere/towpath"))
        two = ("--target", "x86_64-linux", "--target", "aarch64-linux")
        self.assertIn("--binary is for one target", self.refused("--binary", __file__, *two))
        self.assertIn("takes no other command", self.refused("check", "--check-reproducible"))


class Out(unittest.TestCase):
    def test_only_packages_are_removed(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder)
            (out / "old.tar.gz").touch()
            (out / "SHA256SUMS").write_text("ab  old.tar.gz\n")
            command.remove_packages(out)
            self.assertEqual(list(out.iterdir()), [])
            (out / "mine").touch()
            with self.assertRaisesRegex(ReleaseError, "has files that are no packages: mine"):
                command.remove_packages(out)
            self.assertTrue((out / "mine").exists())
