import os

import pytest

import harness
import workers

# The SDK reads its address and key from the environment of whoever runs the tests; ours are given as arguments.
for name in [name for name in os.environ if name.startswith(("LANGSMITH_", "LANGCHAIN_"))]:
    del os.environ[name]


@pytest.fixture(scope="session", params=["embedded", "cluster"])
def world(request):
    if request.param == "cluster" and "TOWPATH_TEST_POSTGRES" not in os.environ:
        pytest.skip("TOWPATH_TEST_POSTGRES is not set")
    running = harness.World(request.param)
    yield running
    running.stop()


LAYOUTS = ("embedded", "cluster")


def place_of(test):
    """The servers that a test shares with others: those of the session, or of its module."""
    layout = test.of(LAYOUTS)
    if test.module == "test_pages":
        return [test.module, *layout]
    return ["world", *layout] if layout and test.function != "test_a_lent_key_writes" else []


def pytest_xdist_make_scheduler(config, log):
    return workers.scheduler(config, log, place_of)


def pytest_configure(config):
    config.pluginmanager.register(workers.Figures())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A failing test shows the ends of its worlds' logs."""
    report = yield
    if report.failed:
        for name, running in getattr(item, "funcargs", {}).items():
            if isinstance(running, harness.World) and running.folder.exists():
                report.sections.append((f"logs of the {name}", running.logs()))
    return report
