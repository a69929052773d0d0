import json
import pathlib
import shutil
import tempfile

import pytest
from peer import Nursery, Peer

PROJECT = pathlib.Path(__file__).resolve().parent / "project"
GRAPHS = [
    "steps", "builder", "named", "sync", "chat", "human", "nested", "nested_human", "broken", "slow", "blocking", "endless",
    "flood", "fan", "knowing", "storing", "functional", "plain_factory", "async_factory", "managed_factory",
    "sync_managed_factory", "odd", "crowd",
]  # fmt: skip
CONFIG = {
    "dependencies": ["."],
    "graphs": {name: f"./graphs.py:{name}" for name in GRAPHS if name not in ("odd", "crowd")}
    | {
        "odd": {"path": "./odd.py:graph", "description": "Values of every kind."},
        "crowd": "./package/crowd.py:graph",
        "declared": {"native": "echo"},
        "elsewhere": "./agent.ts:graph",
    },
    "store": {"index": {"dims": 2, "embed": "./graphs.py:embed", "fields": ["likes"]}},
}


@pytest.fixture
async def folder():
    """For sockets: their paths must be short."""
    made = pathlib.Path(tempfile.mkdtemp(prefix="tph."))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="session")
async def peer():
    """One child with all graphs, for tests that do not harm it."""
    made = pathlib.Path(tempfile.mkdtemp(prefix="tph."))
    peer = Peer(str(made / "s"))
    await peer.start(PROJECT, CONFIG)
    yield peer
    assert await peer.stop() == 0
    shutil.rmtree(made)


@pytest.fixture(scope="session")
async def nursery():
    """Imports the graphs once, for children that are to be harmed."""
    made = pathlib.Path(tempfile.mkdtemp(prefix="tph."))
    peer = Peer(str(made / "s"))
    await peer.start(PROJECT, CONFIG, arguments=["--fork-server"])
    yield Nursery(peer)
    assert await peer.stop() == 0
    shutil.rmtree(made)


@pytest.fixture
async def fresh(folder, nursery):
    """Makes children of their own."""
    made = []

    async def make(config=CONFIG, project=PROJECT, *, threads=None, items=None, **init):
        peer = Peer(str(folder / f"s{len(made)}"), threads, items)
        made.append(peer)
        if project is PROJECT:
            await peer.fork(nursery, project, config, **init)
        else:
            await peer.start(project, config, **init)
        return peer

    yield make
    for peer in made:
        await peer.stop()


@pytest.fixture
def project(tmp_path):
    """Writes a project: file names to texts."""

    def write(**files):
        for name, content in files.items():
            path = tmp_path / name.replace("__", "/").replace("_py", ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path

    return write
