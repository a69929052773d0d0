"""A server on a machine that can have sandboxes."""

import subprocess

import harness
import pytest


def has_user_namespaces() -> bool:
    """Whether a program of this account may have namespaces of its own."""
    done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"], capture_output=True)
    return done.returncode == 0


@pytest.fixture(scope="module")
def machine():
    if not has_user_namespaces():
        print("skipped: this machine has no user namespaces, so it has no sandboxes")
        pytest.skip("this machine has no user namespaces, so it has no sandboxes")
    # A server of the client on loopback is the internet of its boxes.
    running = harness.World("embedded", {"TOWPATH_SANDBOXES_NETWORK_ALLOW": "127.0.0.1"})
    try:
        yield running
    finally:
        running.remove_sandboxes()
        running.stop()
