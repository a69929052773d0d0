"""Environments that the server makes from `dependencies`, with both of the tools that can: a folder with a
`pyproject.toml`, a folder with a `requirements.txt`, the name of a package."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from langgraph_sdk import get_sync_client

from world import Server

PYPROJECT = """
[project]
name = "towpath-suite-word"
version = "1.0"
dependencies = ["iniconfig"]

[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[tool.setuptools]
py-modules = ["word"]
"""
GRAPH = """
    import importlib.metadata as metadata
    import sys

    import iniconfig, pluggy, six, word
    from langgraph.graph import START, StateGraph

    def node(state):
        names = ["towpath-suite-word", "iniconfig", "pluggy", "six"]
        return {"said": word.WORD, "have": [name for name in names if metadata.version(name)], "python": sys.prefix}

    graph = StateGraph(dict).add_node(node).add_edge(START, "node").compile()
"""
# The languages of the suite's machine: where nothing can be fetched, nothing can be told either.
REACHABLE = ["-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check", "six"]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Skips where packages cannot be had."""
    folder = tmp_path_factory.mktemp("index")
    tried = subprocess.run([sys.executable, *REACHABLE, "--dest", folder], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"no packages can be fetched here, so NO environment is made from dependencies: {tried.stderr[-500:]}")


@pytest.fixture(scope="module")
def uv(tmp_path_factory, index):
    """`uv` from the package index, in an environment of its own."""
    folder = tmp_path_factory.mktemp("uv")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    tried = subprocess.run([folder / "bin" / "pip", "install", "--quiet", "uv"], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"uv cannot be had, so environments made with it are NOT looked at: {tried.stderr[-500:]}")
    return folder / "bin" / "uv"


@pytest.fixture(params=["uv", "pip"])
def tools(request, tmp_path, index):
    """A PATH on which the server finds one of the tools and not the other."""
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "python3").symlink_to(sys.executable if sys.prefix == sys.base_prefix else pathlib.Path(sys.executable).resolve())
    if request.param == "uv":
        (folder / "uv").symlink_to(request.getfixturevalue("uv"))
    return folder


def settings():
    """Where packages come from on this machine, as the operator's own pip and uv are told."""
    return {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_"))}


def test_what_a_project_depends_on_is_installed(tools, tmp_path, project):
    project.write(
        config={"graphs": {"agent": "./agent.py:graph"}, "dependencies": [".", "./word", "six"]},
        agent=GRAPH,
    )
    (project.folder / "requirements.txt").write_text("pluggy\n")
    (project.folder / "word").mkdir()
    (project.folder / "word" / "pyproject.toml").write_text(PYPROJECT)
    (project.folder / "word" / "word.py").write_text("WORD = 'one'\n")
    env = settings() | {"TOWPATH_AGENT_PYTHON": "", "PATH": f"{tools}:/usr/bin:/bin", "TOWPATH_AGENT_HOSTS_DIR": str(tmp_path / "hosts")}
    # It downloads and installs before it answers.
    server = Server("embedded", env, project.config, ready_s=300)
    try:
        run = lambda: get_sync_client(url=server.url, api_key=None).runs.wait(None, "agent", input={"said": ""})  # noqa: E731
        answer = run()
        assert answer["said"] == "one" and len(answer["have"]) == 4
        [made] = [folder for folder in (tmp_path / "hosts").glob("python-*") if folder.is_dir()]
        assert answer["python"] == str(made)
        assert (made / "bin" / "pip").exists() == (not (tools / "uv").exists())
        # The folder's own code is read where it is; the next start uses the environment there is.
        (project.folder / "word" / "word.py").write_text("WORD = 'two'\n")
        before = (made / ".complete").stat().st_mtime_ns
        server.apis[0].terminate()
        server.revive(server.apis[0])
        assert run()["said"] == "two" and (made / ".complete").stat().st_mtime_ns == before
        server.stop()
    finally:
        server.drop()
        shutil.rmtree(tmp_path / "hosts", ignore_errors=True)
