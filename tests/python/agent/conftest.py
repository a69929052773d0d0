import os

import httpx
import pytest
from langgraph_sdk import get_client, get_sync_client

import workers
from clients import Awaitable
from drill import Fleet, Receiver
from harness import World
from projects import project, serve  # noqa: F401
from world import Server

# The clients read addresses and keys from the environment of the caller that runs the tests.
for name in [name for name in os.environ if name.startswith(("LANGSMITH_", "LANGCHAIN_", "LANGGRAPH_"))]:
    del os.environ[name]


@pytest.fixture(scope="session", params=["embedded", "cluster"])
def server(request):
    if request.param == "cluster" and "TOWPATH_TEST_POSTGRES" not in os.environ:
        pytest.skip("TOWPATH_TEST_POSTGRES is not set")
    running = Server(request.param)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def receiver():
    running = Receiver()
    yield running
    running.stop()


@pytest.fixture(scope="module", params=["embedded", "cluster"])
def fleet(request, receiver):
    if request.param == "cluster" and "TOWPATH_TEST_POSTGRES" not in os.environ:
        pytest.skip("TOWPATH_TEST_POSTGRES is not set")
    running = Fleet(request.param, receiver)
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
    """No client at all: what is on the wire."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        yield http


@pytest.fixture(params=["native", "python"])
def graph(request):
    """The name of a graph of `tests/agent/graphs.json` in one of the two languages."""
    return lambda name: name if request.param == "native" else f"python-{name}"


LAYOUTS = ("embedded", "cluster")
# Modules, and a test of another one, that ask the servers of the session.
ASK_ANY = {
    *("test_a2a", "test_assistants", "test_crons", "test_javascript", "test_mcp", "test_remote_graph", "test_runs", "test_store"),
    "test_streams",
    *("test_system", "test_threads", "test_a_server_that_traces_nowhere_names_no_links"),
}
# Modules with servers of their own, and the parameters that tell these apart.
ASK_THEIRS = {
    "test_a2a_kit": (),
    "test_cron_dates": (),
    "test_deployment_commands": (),
    "test_deployment_drill": (*LAYOUTS, "containers"),
    "test_deployments": LAYOUTS,
    "test_docker": (),
    "test_feedback": LAYOUTS,
    "test_kills": (*LAYOUTS, "worker", "api", "everything"),
    "test_langgraph_deploy": (),
    "test_mcp_conformance": (),
    "test_redis_faults": (),
    "test_settings": (),
    "test_storm": LAYOUTS,
    "test_webhooks": LAYOUTS,
}
# Among these modules, tests with servers that no other test has.
ASK_ANOTHER = {"test_crons_fire_once_at_their_time", "test_graphs_that_load_slowly_are_switched_without_a_pause"}


def place_of(test):
    """The servers that a test shares with others."""
    if test.function in ASK_ANOTHER:
        return [test.function, *test.of(LAYOUTS)]
    if {test.module, test.function} & ASK_ANY:
        return ["session", *test.of(LAYOUTS)]
    if test.module in ASK_THEIRS:
        return [test.module, *test.of(ASK_THEIRS[test.module])]
    return []


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return workers.scheduler(config, log, place_of)


def pytest_configure(config):
    config.pluginmanager.register(workers.Figures())


@pytest.fixture
def table(request):
    """Takes rows of figures, which are printed when all is over."""
    return workers.Table(request.node)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A failing test shows the ends of its servers' logs."""
    report = yield
    if report.failed:
        for name, running in getattr(item, "funcargs", {}).items():
            if isinstance(running, Server | World) and running.folder.exists():
                report.sections.append((f"logs of the {name}", running.logs()))
    return report
