import os

import pytest

import harness
import workers

# The SDK reads its address and key from the environment of the caller that runs the tests; ours are given as arguments.
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
# Tests with servers that no other test has.
ASK_ANOTHER = {"test_a_lent_key_writes", "test_connections_reset_in_the_middle_of_a_part"}


def place_of(test):
    """The servers that a test shares with others: those of the session, or of its module. The tests of S3 take so long
    that they have a session of their own."""
    layout = test.of(LAYOUTS)
    if not layout or test.function in ASK_ANOTHER:
        return []
    return [test.module if test.module in ("test_pages", "test_s3") else "world", *layout]


@pytest.hookimpl(optionalhook=True)
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
