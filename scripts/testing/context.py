"""What the command of a suite is made of: the tools and servers of the run, and what the caller asked for."""

import dataclasses
import pathlib


@dataclasses.dataclass(frozen=True)
class Program:
    """A test program that cargo built."""

    package: str
    # As nextest names it: `towpath-store::it`.
    id: str
    path: str
    # Tests run in the folder of their package.
    folder: str


@dataclasses.dataclass
class Build:
    """What the build made."""

    towpath: pathlib.Path | None = None
    programs: list[Program] = dataclasses.field(default_factory=list)
    # For nextest, so that it asks cargo nothing while suites run.
    binaries_metadata: pathlib.Path | None = None
    cargo_metadata: pathlib.Path | None = None


@dataclasses.dataclass
class Context:
    top: pathlib.Path
    target: pathlib.Path
    # Reports, logs and the summary: kept.
    results: pathlib.Path
    # Data of servers: gone at the end.
    run_folder: pathlib.Path
    # Environments by their file of requirements.
    venvs: dict[str, pathlib.Path] = dataclasses.field(default_factory=dict)
    node_modules: pathlib.Path | None = None
    nextest: pathlib.Path | None = None
    nextest_config: pathlib.Path | None = None
    build: Build = dataclasses.field(default_factory=Build)
    # For the one suite that was named, behind `--`.
    arguments: tuple[str, ...] = ()
    # Packages that the suite rust is restricted to; None for all.
    packages: frozenset[str] | None = None

    def report(self, suite: str) -> pathlib.Path:
        return self.results / f"{suite}.xml"

    def log(self, suite: str) -> pathlib.Path:
        return self.results / f"{suite}.log"

    def venv_python(self, requirements: str) -> str:
        return str(self.venvs[requirements] / "bin" / "python")
