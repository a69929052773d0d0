"""What a newcomer does with an installed program: start it, send a trace, export it, stop it."""

import dataclasses
import datetime
import json
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable

from releasing.errors import ReleaseError

KEY = "release-check-0123456789abcdef0123456789"
WORKSPACE = "00000000-0000-4000-8000-000000000001"
ENVIRONMENT = {
    "TOWPATH_API_KEY": KEY,
    "TOWPATH_TENANT_ID": WORKSPACE,
    # The machine is shared with the checks; sandboxes and deployments have suites of their own.
    "TOWPATH_SANDBOXES_ENABLED": "off",
    "TOWPATH_DEPLOYMENTS_BACKEND": "none",
}
LIMIT_SECONDS = 60


@dataclasses.dataclass(frozen=True)
class Start:
    """How a program is started, and where its exports can be found."""

    command: list[str]
    environment: dict[str, str]
    # Where the machine sees what the program calls `exports.file_root`.
    exports: pathlib.Path
    folder: pathlib.Path | None = None
    # Run while the server is up, with its port.
    also: Callable[[int], None] = lambda port: None


@dataclasses.dataclass(frozen=True)
class Times:
    answer: float
    export: float
    stop: float


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run(start: Start, port: int) -> Times:
    """`start` has to listen on `port` of loopback. Raises with the end of its log when a step fails."""
    with tempfile.TemporaryFile() as log:
        began = time.monotonic()
        child = subprocess.Popen(
            start.command, env=start.environment, cwd=start.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            until("/readyz", lambda: status_of(port) == 200 or is_alive(child) and None)
            answered = time.monotonic()
            start.also(port)
            before = time.monotonic()
            export(port, start.exports)
            exported = time.monotonic()
            child.send_signal(signal.SIGTERM)
            code = child.wait(LIMIT_SECONDS)
            if code != 0:
                raise ReleaseError(f"it ended with {code} after SIGTERM")
            return Times(answered - began, exported - before, time.monotonic() - exported)
        except (ReleaseError, OSError, subprocess.TimeoutExpired) as error:
            log.seek(0)
            end = log.read().decode(errors="replace")[-2000:]
            raise ReleaseError(f"{error}\n{end}") from error
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()


def is_alive(child: subprocess.Popen) -> bool:
    if child.poll() is not None:
        raise ReleaseError(f"it ended with {child.returncode} before it answered")
    return True


def until(what: str, ask):
    """The first answer of `ask` that is not false."""
    limit = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < limit:
        found = ask()
        if found:
            return found
        time.sleep(0.02)
    raise ReleaseError(f"{what} did not come within {LIMIT_SECONDS} s")


def status_of(port: int) -> int | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return answer.status
    except (urllib.error.URLError, OSError):
        return None


def call(port: int, method: str, path: str, body=None):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"X-API-Key": KEY, "Content-Type": "application/json"},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_SECONDS) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise ReleaseError(f"{method} {path}: {error.code} {error.read().decode(errors='replace')[:500]}") from error


def export(port: int, exports: pathlib.Path):
    """One trace in, one Parquet file out."""
    now = datetime.datetime.now(datetime.timezone.utc)
    moment = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    call(
        port,
        "POST",
        "/runs",
        {
            "id": str(uuid.uuid4()),
            "name": "hello",
            "run_type": "chain",
            "start_time": moment,
            "end_time": moment,
            "inputs": {"question": "installed?"},
            "outputs": {"answer": "yes"},
            "session_name": "release-check",
        },
    )
    (project,) = call(port, "GET", "/api/v1/sessions?name=release-check")
    destination = call(
        port,
        "POST",
        "/api/v1/bulk-exports/destinations",
        {"destination_type": "file", "display_name": "check", "config": {"prefix": "check"}},
    )
    record = call(
        port,
        "POST",
        "/api/v1/bulk-exports",
        {
            "bulk_export_destination_id": destination["id"],
            "session_id": project["id"],
            "start_time": (now - datetime.timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "end_time": (now + datetime.timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        },
    )

    def ended():
        found = call(port, "GET", f"/api/v1/bulk-exports/{record['id']}")
        return found if found["status"] not in ("CREATED", "RUNNING") else None

    found = until("the end of the export", ended)
    if found["status"] != "COMPLETED":
        raise ReleaseError(f"the export ended as {found['status']}: {found}")
    files = list(exports.rglob("*.parquet"))
    if len(files) != 1 or not files[0].read_bytes().startswith(b"PAR1"):
        raise ReleaseError(f"the export has {len(files)} Parquet files below {exports}")
