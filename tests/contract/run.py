"""Holds running servers to their own API descriptions, with generated requests (schemathesis).

    run.py [--cases N] [--seed N] [--surface platform|agent]… [--layout embedded|cluster]… [--at-once N]

The platform and the agent server have a document each, and objects of each kind when it begins (`seeds.py`). The phases are
the tool's default ones: examples, coverage, fuzzing, stateful. `--cases` is how many requests are generated for each
operation in the last two; the coverage phase adds what the schemas suggest. Each surface on each layout has a server and a
generator of its own, `--at-once` of them side by side. Prints one line for each with the number of cases and the seconds it
took; any failure ends with 1.
"""

import argparse
import concurrent.futures
import contextlib
import http.server
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "python"), str(HERE.parent / "python" / "agent")]

import harness  # noqa: E402
import seeds  # noqa: E402
import world as agent  # noqa: E402


CASES = {"platform": 10, "agent": 3}
# The tool tries every operation with keys that open nothing.
ANY_KEYS = {"TOWPATH_HTTP_FAILED_KEYS_PER_MINUTE": "0"}


class Everything(http.server.BaseHTTPRequestHandler):
    """An S3, a webhook and a host of no repositories, which takes everything: what is under test is the API in front."""

    protocol_version = "HTTP/1.1"

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("ETag", '"d41d8cd98f00b204e9800998ecf8427e"')
        repositories = b"[]" if "/user/repos" in self.path else b""
        self.send_header("Content-Length", str(len(repositories)))
        self.end_headers()
        self.wfile.write(repositories)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    def log_message(self, *_):
        pass


def ask(url, method, path, body=None):
    """What an agent server answers."""
    headers = {"X-API-Key": harness.KEY, "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data=data, headers=headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read() or b"null")


@contextlib.contextmanager
def serving(surface, layout, stand_in):
    """A server of that surface, its address, and ids of what is on it. One that did not survive the requests says so by how
    it ends."""
    with tempfile.TemporaryDirectory(prefix="towpath-contract.") as folder:
        if surface == "platform":
            world = harness.World(layout, env=ANY_KEYS)
            url = f"http://{world.api}"
        else:
            # The environment of this suite has no packages for graphs in Python.
            graphs = agent.native_graphs(folder)
            world = agent.Server(layout, env={"TOWPATH_API_KEY": harness.KEY} | ANY_KEYS, graphs=graphs, args=("--agent-auth",))
            url = world.url
        try:
            if surface == "platform":
                ids = seeds.plant(world, stand_in)
            else:
                ids = seeds.plant_on_agent(lambda *asked: ask(url, *asked))
            yield world, url, ids
            # A cluster has no machine for them.
            if (surface, layout) == ("platform", "embedded"):
                world.remove_sandboxes()
            world.stop()
        finally:
            world.drop()


def check(surface, layout, endpoint, cases, seed) -> bool:
    began = time.monotonic()
    with serving(surface, layout, endpoint) as (world, url, ids):
        command = [
            str(pathlib.Path(sys.executable).parent / "schemathesis"),
            *("--config-file", str(HERE / f"{surface}.toml")),
            *("run", f"{url}/openapi.json"),
            *("--header", f"X-API-Key: {harness.KEY}", "--header", f"X-Tenant-Id: {world.tenant}"),
            *("--seed", str(seed), "--max-examples", str(cases)),
        ]
        environment = os.environ | {
            "TOWPATH_CONTRACT_STAND_IN": endpoint,
            "TOWPATH_CONTRACT_SEEDS": json.dumps(ids),
            "PYTHONPATH": str(HERE),
            "NO_COLOR": "1",
        }
        done = subprocess.run(command, cwd=world.folder, env=environment, capture_output=True, text=True)
        output = done.stdout + done.stderr
        generated = re.search(r"(\d+) generated", output)
        operations = re.search(r"Tested: (\d+)", output)
        failures = re.search(r"(\d+) unique failures?", output)
        failed = int(failures[1]) if failures else 0
        fine = done.returncode == 0 and failed == 0 and generated is not None and int(generated[1]) > 0
        lines = [] if fine else [output, world.logs()]
        lines.append(
            f"contract, {surface}, {layout}: {generated[1] if generated else 0} cases over"
            f" {operations[1] if operations else 0} operations, {failed if fine or failed else 'broken,'} failures"
            f" (seed {seed}, {time.monotonic() - began:.0f} s)"
        )
        # In one go, because others print too.
        print("\n".join(lines), flush=True)
    return fine


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--cases", type=int, help="default: 10 of the platform, 3 of the agent server")
    arguments.add_argument("--seed", type=int, default=20260301)
    arguments.add_argument("--surface", action="append", choices=["platform", "agent"])
    arguments.add_argument("--layout", action="append", choices=["embedded", "cluster"])
    arguments.add_argument("--at-once", type=int, default=2)
    given = arguments.parse_args()
    layouts = given.layout
    if layouts is None:
        layouts = ["embedded"]
        if "TOWPATH_TEST_POSTGRES" in os.environ:
            layouts.append("cluster")
        else:
            print("contract, cluster: skipped, TOWPATH_TEST_POSTGRES is not set")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Everything)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    # The platform takes longer, so it comes first.
    surfaces = given.surface or ["platform", "agent"]
    with concurrent.futures.ThreadPoolExecutor(given.at_once) as pool:
        checks = [
            pool.submit(check, surface, layout, endpoint, given.cases or CASES[surface], given.seed)
            for surface in surfaces
            for layout in layouts
        ]
    server.shutdown()
    sys.exit(0 if all(done.result() for done in checks) else 1)


if __name__ == "__main__":
    main()
