"""The crates of the workspace and which of them stands on which."""

import dataclasses
import json
import pathlib
import subprocess

from testing.machine import TOP, SetupError

# The package with the binary under test.
BINARY = "towpath"
# Its tests start the binary, which cargo does not know of.
END_TO_END = "towpath-tests"


@dataclasses.dataclass(frozen=True)
class Crates:
    # Package to its folder in the clone.
    folders: dict[str, str]
    # Package to those that it is built from.
    uses: dict[str, frozenset[str]]
    # Package to those that only its tests are built from.
    tests_use: dict[str, frozenset[str]]

    def of(self, path: str) -> str | None:
        """The package that a file belongs to: the one in the innermost folder."""
        found = [name for name, folder in self.folders.items() if path.startswith(folder + "/")]
        return max(found, key=lambda name: len(self.folders[name]), default=None)

    def built_from(self, changed: set[str]) -> set[str]:
        """`changed`, and every package that is built from one of them."""
        affected = set(changed)
        while more := {name for name, uses in self.uses.items() if uses & affected} - affected:
            affected |= more
        return affected

    def tested_with(self, changed: set[str]) -> set[str]:
        """Packages whose tests a change of the sources of `changed` can affect."""
        affected = self.built_from(changed)
        return affected | {name for name, uses in self.tests_use.items() if uses & affected}


def read(metadata: dict, top: pathlib.Path) -> Crates:
    """From `cargo metadata --no-deps`."""
    names = {package["name"] for package in metadata["packages"]}
    folders, uses, tests_use = {}, {}, {}
    for package in metadata["packages"]:
        name = package["name"]
        ours = [entry for entry in package["dependencies"] if entry["name"] in names]
        folders[name] = str(pathlib.Path(package["manifest_path"]).parent.relative_to(top))
        uses[name] = frozenset(entry["name"] for entry in ours if entry["kind"] != "dev")
        tests_use[name] = frozenset(entry["name"] for entry in ours if entry["kind"] == "dev")
    if END_TO_END in names:
        tests_use[END_TO_END] |= {BINARY}
    return Crates(folders, uses, tests_use)


def load() -> Crates:
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps"]
    try:
        done = subprocess.run(command, cwd=TOP, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:
        raise SetupError(f"cargo did not start: {error}; install it from https://rustup.rs") from error
    if done.returncode != 0:
        raise SetupError(f"cargo metadata failed:\n{done.stderr}")
    return read(json.loads(done.stdout), TOP)
