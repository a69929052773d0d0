"""What a release is a release of: the version, the commit and its time, the notes."""

import dataclasses
import os
import pathlib
import re
import subprocess
import tomllib

from releasing.errors import ReleaseError

TOP = pathlib.Path(__file__).resolve().parents[2]
TEMPLATES = pathlib.Path(__file__).resolve().with_name("templates")


@dataclasses.dataclass(frozen=True)
class Project:
    version: str
    # Seconds since 1970: the time of every file in every package.
    epoch: int
    summary: str
    homepage: str
    licence: str = "Apache-2.0"


def load(top: pathlib.Path = TOP) -> Project:
    workspace = tomllib.loads((top / "Cargo.toml").read_text())["workspace"]["package"]
    return Project(
        version=workspace["version"],
        epoch=source_date_epoch(top),
        summary="An open, self-hosted platform for AI agents, in one binary",
        homepage=workspace["repository"],
        licence=workspace["license"],
    )


def source_date_epoch(top: pathlib.Path) -> int:
    """`SOURCE_DATE_EPOCH`, else the time of the commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        if not given.isdigit():
            raise ReleaseError(f"SOURCE_DATE_EPOCH is `{given}`; it has to be a number of seconds")
        return int(given)
    done = subprocess.run(["git", "-C", top, "log", "-1", "--format=%ct"], capture_output=True, text=True)
    if done.returncode != 0:
        raise ReleaseError("this is not a git repository: set SOURCE_DATE_EPOCH to the time of the sources")
    return int(done.stdout)


def notes(changelog: str, release: Project) -> str:
    """The section of the version, else of what is not released yet. Links lead to the files of the version."""
    sections = dict(re.findall(r"^## \[([^\]]+)\][^\n]*\n(.*?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL))
    for name in (release.version, "Unreleased"):
        if sections.get(name, "").strip():
            base = f"{release.homepage}/blob/v{release.version}/"
            return re.sub(r"\]\((?!\w+:|#)", f"]({base}", sections[name].strip()) + "\n"
    raise ReleaseError(f"CHANGELOG.md has no section `## [{release.version}]` and nothing below `## [Unreleased]`")


def template(name: str, **values: str) -> str:
    """A file of `templates` with each `@name@` replaced."""
    text = (TEMPLATES / name).read_text()
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    left = re.search(r"@[a-z_0-9]+@", text)
    if left:
        raise ReleaseError(f"templates/{name}: nothing replaces {left[0]}")
    return text
