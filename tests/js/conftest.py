"""The worlds and readers of the Python suite serve this one, too."""

import importlib.util
import pathlib
import sys

PYTHON = pathlib.Path(__file__).resolve().parents[1] / "python"
sys.path.insert(0, str(PYTHON))
spec = importlib.util.spec_from_file_location("towpath_worlds", PYTHON / "conftest.py")
worlds = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worlds)

world = worlds.world
pytest_xdist_make_scheduler = worlds.pytest_xdist_make_scheduler
pytest_configure = worlds.pytest_configure
pytest_runtest_makereport = worlds.pytest_runtest_makereport
