import os

import pytest

import harness

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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A failing test shows the ends of its world's logs."""
    report = yield
    if report.failed and (running := getattr(item, "funcargs", {}).get("world")):
        report.sections.append(("logs of the world", running.logs()))
    return report
