"""Which suites a change can affect: by the graph of crates, and by a table of paths for what is no crate."""

import dataclasses
import fnmatch

from testing.graph import BINARY, END_TO_END, Crates
from testing.rust import DRILLS
from testing.suites import GROUPS, SUITES

# Suites that start the binary.
SERVED = frozenset(suite.group for suite in SUITES if "build" in suite.needs) - {"rust"}
PYTHON_SUITES = frozenset({"python", "js", "agent", "contract"})
EVERYTHING = frozenset(GROUPS)
# The crate whose program has the pages of the guide in it; its tests follow their links.
GUIDE = "towpath-api"


@dataclasses.dataclass(frozen=True)
class Effect:
    """What a changed file can affect."""

    suites: frozenset[str] = frozenset()
    # Packages whose own tests it can affect, and nothing that is built from them.
    tests_of: frozenset[str] = frozenset()
    # Whether its package is changed for those that are built from it.
    sources: bool = False


def effect(*suites, tests_of=(), sources=False) -> Effect:
    return Effect(frozenset(suites), frozenset(tests_of), sources)


# The first pattern that fits a path decides; `*` stands for slashes, too. What none fits is part of its crate, or can affect
# everything.
PATHS = (
    # Both the drills and the other end-to-end tests are programs of one crate.
    ("tests/it/ingest_fuzz*", effect("ingest")),
    ("tests/it/kill*", effect("kill")),
    ("tests/it/soak*", effect("soak")),
    ("tests/it/*faults*", effect("faults")),
    ("tests/it/*", effect(*DRILLS, tests_of=[END_TO_END])),
    ("tests/src/*fault_proxy*", effect(*DRILLS, *PYTHON_SUITES, tests_of=[END_TO_END])),
    ("tests/src/*", effect(*DRILLS, tests_of=[END_TO_END])),
    ("tests/Cargo.toml", effect(*DRILLS, "clippy", *PYTHON_SUITES, tests_of=[END_TO_END])),
    ("tests/orphans.sql", effect(*DRILLS, *PYTHON_SUITES, tests_of=[END_TO_END])),
    ("tests/python/host/*", effect("host")),
    ("tests/python/agent/test_*", effect("agent")),
    ("tests/python/agent/*", effect("agent", "contract")),
    ("tests/python/guides.py", effect("agent", "python")),
    ("tests/python/test_*", effect("python")),
    # Environments of tests that are written in Rust are made of the same packages.
    ("tests/python/requirements.txt", effect("rust", *SERVED)),
    ("tests/python/newest/*", effect("python")),
    ("tests/python/sandboxes/*", effect("python")),
    ("tests/python/*", effect(*PYTHON_SUITES)),
    ("tests/js/*.py", effect("js")),
    # The suite agent runs the JavaScript client, too.
    ("tests/js/*", effect("js", "agent")),
    ("tests/contract/*", effect("contract")),
    ("tests/agent/*", effect("agent", "contract")),
    ("examples/*", effect("agent", "host")),
    # Part of the binary, and run without it by the suite host.
    ("crates/runtime/host/*", effect("host", sources=True)),
    # Recorded bodies, which the demo sends too.
    ("crates/traces/tests/data/*", effect(sources=True)),
    # Pages that tests compare with the code.
    ("docs/configuration.md", effect(tests_of=[BINARY])),
    ("docs/agent-server.md", effect(tests_of=[BINARY])),
    ("docs/native-graphs.md", effect(tests_of=["towpath-runtime"])),
    ("docs/internals/deployment-rules.md", effect(tests_of=["towpath-api"])),
    ("docs/internals/sandbox-security.md", effect(tests_of=["towpath-sandbox"])),
    ("docs/openapi.json", effect(tests_of=["towpath-api"])),
    ("docs/metrics.md", effect(tests_of=[END_TO_END])),
    # Their commands are run, and what they quote is looked up in the sources.
    ("docs/guides/from-*", effect("agent", "python", tests_of=[END_TO_END])),
    ("docs/guides/*", effect("python", tests_of=[END_TO_END])),
    ("docs/README.md", effect("python")),
    ("README.md", effect("python")),
    ("docs/*", effect()),
    ("ARCHITECTURE.md", effect()),
    ("CHANGELOG.md", effect()),
    ("CONTRIBUTING.md", effect()),
    ("LICENSE", effect()),
    ("NOTICE", effect()),
    (".gitignore", effect()),
    ("docker-compose.yml", effect("agent", "python")),
    ("Dockerfile", effect("agent", "python", "scripts")),
    (".dockerignore", effect()),
    ("fuzz/*", effect()),
    ("scripts/test", effect("scripts")),
    ("scripts/testing/*", effect("scripts")),
    ("scripts/release", effect("scripts")),
    ("scripts/releasing/*", effect("scripts")),
    ("scripts/compose/*", effect("agent", "python")),
    ("scripts/*", effect()),
    (".config/nextest.toml", effect("scripts", "rust", *DRILLS)),
    (".ci/*", effect()),
    ("deny.toml", effect("deny")),
    ("clippy.toml", effect("clippy")),
    ("rustfmt.toml", effect("fmt")),
)


@dataclasses.dataclass
class Selection:
    """What runs, and why."""

    # Suite to the files that can affect it; the suites that run.
    reasons: dict[str, list[str]]
    # What the suite rust is restricted to; None for all packages.
    packages: frozenset[str] | None
    crates: Crates

    def lines(self, chosen: tuple[str, ...]) -> list[str]:
        """What runs and what is left out, of the suites that were asked for."""
        lines = []
        for group in (group for group in GROUPS if group in chosen and group in self.reasons):
            files = self.reasons[group]
            more = f" and {len(files) - 3} more" if len(files) > 3 else ""
            lines.append(f"runs {group}: {', '.join(files[:3])}{more}")
        if "rust" in self.reasons and "rust" in chosen and self.packages is not None:
            left_out = sorted(set(self.crates.folders) - self.packages)
            lines.append(f"rust runs: {', '.join(sorted(self.packages)) or 'no crate'}, and the rules about the source tree")
            lines.append(f"rust leaves out: {', '.join(left_out) or 'no crate'}; nothing they are built from changed")
        left_out = [group for group in GROUPS if group in chosen and group not in self.reasons]
        lines.append(f"left out: {', '.join(left_out) or 'no suite'}; nothing they run or are built from changed")
        return lines


def effect_of(path: str, crates: Crates) -> Effect:
    crate = crates.of(path)
    found = next((found for pattern, found in PATHS if fnmatch.fnmatchcase(path, pattern)), None)
    if found is None:
        found = effect_in_crate(path, crate, crates.folders[crate]) if crate else Effect(EVERYTHING)
    suites = set(found.suites)
    if path.endswith(".rs") and not path.startswith("fuzz/"):
        suites |= {"fmt", "clippy"}
    tests_of = found.tests_of | {GUIDE} if is_page(path) else found.tests_of
    return dataclasses.replace(found, suites=frozenset(suites), tests_of=tests_of)


def is_page(path: str) -> bool:
    """Whether it is a page of the guide, or an image of one."""
    return path.startswith("docs/") or (path.endswith(".md") and "/" not in path)


def effect_in_crate(path: str, crate: str, folder: str) -> Effect:
    inside = path.removeprefix(folder + "/")
    if inside.startswith("tests/") or inside.endswith("/tests.rs"):
        # Modules of unit tests are named so; nothing is built from them.
        return effect(tests_of=[crate])
    if inside.startswith("examples/"):
        return effect("clippy")
    # Whatever its name, it may be part of what is built.
    return effect(*(("clippy", "deny") if inside == "Cargo.toml" else ()), sources=True)


def select(files: list[str], crates: Crates) -> Selection:
    """The suites that changes of `files` can affect."""
    reasons: dict[str, list[str]] = {}
    packages: set[str] = set()
    every_package = False
    for path in files:
        found = effect_of(path, crates)
        suites = set(found.suites)
        packages |= found.tests_of
        if found.sources:
            crate = crates.of(path)
            packages |= crates.tested_with({crate})
            if BINARY in crates.built_from({crate}):
                suites |= SERVED
        every_package |= "rust" in suites
        # Rules about the source tree are among its tests.
        suites.add("rust")
        for suite in suites:
            reasons.setdefault(suite, []).append(path)
    return Selection(reasons, None if every_package else frozenset(packages), crates)
