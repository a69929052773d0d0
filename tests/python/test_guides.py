"""The commands of the guides and of the README's first screen, run as their readers would."""

import pathlib

import pytest

import guides
from harness import ROOT

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs/guides").glob("*.md"))]
# They run graphs in Python: tests/python/agent/test_guides.py.
WITH_GRAPHS = ["from-aegra", "from-langgraph-platform"]
MARKED = [page for page in PAGES if guides.blocks_of(page)]


def name_of(page):
    return page.stem


@pytest.mark.parametrize("page", [page for page in MARKED if page.stem not in WITH_GRAPHS], ids=name_of)
def test_the_commands_of_a_page_work(page, tmp_path):
    guides.Walk(page, tmp_path).go()


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
