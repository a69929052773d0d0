"""Sandboxes by the official JavaScript client, unmodified: every public method of it is called."""

import json
import os
import pathlib
import subprocess
import uuid

import harness
from sandbox_machine import machine

HERE = pathlib.Path(__file__).parent
# Fixtures are found by their names.
__all__ = ["machine"]


def test_it_does_all_it_can(machine):
    prefix = f"j{uuid.uuid4().hex[:8]}"
    command = ["node", str(HERE / "sandbox-caller.mjs"), f"http://{machine.api}", harness.KEY, prefix]
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "TOWPATH_TEST_NODE_MODULES")}
    done = subprocess.run(command, env=inherited, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{machine.logs()}"
    missing = json.loads(done.stdout)
    assert missing == [], f"methods that were not called: {missing}"
