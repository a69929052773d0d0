import os

import httpx
import pytest
from langgraph_sdk import get_client, get_sync_client

from clients import Awaitable
from projects import project, serve  # noqa: F401
from world import Server

# The clients read addresses and keys from the environment of whoever runs the tests.
for name in [name for name in os.environ if name.startswith(("LANGSMITH_", "LANGCHAIN_", "LANGGRAPH_"))]:
    del os.environ[name]


@pytest.fixture(scope="session", params=["embedded", "cluster"])
def server(request):
    if request.param == "cluster" and "TOWPATH_TEST_POSTGRES" not in os.environ:
        pytest.skip("TOWPATH_TEST_POSTGRES is not set")
    running = Server(request.param)
    yield running
    running.stop()


@pytest.fixture(params=["async", "sync"])
async def client(request, server):
    """The official client, in both its forms."""
    if request.param == "async":
        async with get_client(url=server.url, api_key=None) as client:
            yield client
    else:
        with get_sync_client(url=server.url, api_key=None) as client:
            yield Awaitable(client)


@pytest.fixture
async def sdk(server):
    """The official client, asynchronous."""
    async with get_client(url=server.url, api_key=None) as client:
        yield client


@pytest.fixture
async def http(server):
    """No client at all: what stands on the wire."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        yield http


TABLE = pytest.StashKey[list]()


def pytest_configure(config):
    config.stash[TABLE] = []


@pytest.fixture(scope="session")
def table(request):
    """Rows of figures, printed when all is over: each begins with its headline where that is another one."""
    return request.config.stash[TABLE]


def pytest_terminal_summary(terminalreporter, config):
    last = None
    for head, cells in config.stash[TABLE]:
        if head != last:
            terminalreporter.write_line(f"| {' | '.join(head)} |")
            terminalreporter.write_line("|---" * len(head) + "|")
            last = head
        terminalreporter.write_line(f"| {' | '.join(map(str, cells))} |")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A failing test shows the ends of its server's logs."""
    report = yield
    running = getattr(item, "funcargs", {}).get("server")
    if report.failed and running and running.folder.exists():
        report.sections.append(("logs of the server", running.logs()))
    return report
