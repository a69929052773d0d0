"""The commands of the guides and of the README's first screen, run as their readers would."""

import os
import pathlib
import urllib.parse
import uuid

import pytest

import guides
from harness import ROOT, psql

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs/guides").glob("*.md"))]
# They run graphs in Python: tests/python/agent/test_guides.py.
WITH_GRAPHS = ["from-aegra", "from-langgraph-platform"]
# It needs a server: `test_moving_from_sqlite_to_postgresql`.
WITH_POSTGRES = "sqlite-to-postgresql"
MARKED = [page for page in PAGES if guides.blocks_of(page)]


def name_of(page):
    return page.stem


ALONE = [page for page in MARKED if page.stem not in [*WITH_GRAPHS, WITH_POSTGRES]]


@pytest.mark.parametrize("page", ALONE, ids=name_of)
def test_the_commands_of_a_page_work(page, tmp_path):
    guides.Walk(page, tmp_path).go()


@pytest.mark.skipif("TOWPATH_TEST_POSTGRES" not in os.environ, reason="TOWPATH_TEST_POSTGRES is not set")
def test_moving_from_sqlite_to_postgresql(tmp_path):
    server = urllib.parse.urlsplit(os.environ["TOWPATH_TEST_POSTGRES"])
    env = {
        "PGHOST": server.hostname,
        "PGPORT": str(server.port or 5432),
        "PGUSER": server.username,
        "PGPASSWORD": server.password,
    }
    env = {name: urllib.parse.unquote(value) for name, value in env.items() if value}
    databases = {name: f"e2e_{uuid.uuid4().hex}" for name in ("towpath_platform", "towpath_agents")}
    names = databases | {"postgres://localhost": os.environ["TOWPATH_TEST_POSTGRES"].rsplit("/", 1)[0]}
    try:
        guides.Walk(ROOT / f"docs/guides/{WITH_POSTGRES}.md", tmp_path, env, names).go()
    finally:
        for database in databases.values():
            psql(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')


def test_every_guide_is_listed_and_tells_what_one_has_at_its_end():
    index = (ROOT / "docs/README.md").read_text()
    assert len(PAGES) > 8 and README in MARKED
    for page in PAGES[1:]:
        assert f"(guides/{page.name})" in index, f"docs/README.md does not list {page.name}"
        text = page.read_text()
        for heading in ("## What you will have", "## Check", "## What can go wrong"):
            assert f"\n{heading}\n" in text, f"{page.name} has no {heading!r}"


def test_pages_of_python_graphs_exist():
    assert {page.stem for page in MARKED} >= set(WITH_GRAPHS)


def test_a_page_that_is_wrong_fails(tmp_path):
    """A block that fails, and one that prints something else."""
    for number, (text, why) in enumerate([
        ("<!-- run: a -->\n```sh\nfalse | cat\necho on\n```\n", "the shell ended with 1"),
        ("<!-- run: a -->\n```sh\necho one two\n```\n\n```text\none … three\n```\n", "no 'one … three'"),
        ("<!-- run: a -->\nno block\n", "no block behind"),
    ]):  # fmt: skip
        folder = tmp_path / str(number)
        folder.mkdir()
        page = pathlib.Path(folder / "page.md")
        page.write_text(text)
        with pytest.raises(AssertionError, match=why):
            guides.Walk(page, folder).go()
