"""A program that does with sandboxes what the official client of its own environment can, synchronously and not.

    python sandbox_caller.py <url> <key> <prefix of names>

It prints what it did, as a JSON list; an exception ends it with 1."""

import asyncio
import http.server
import inspect
import json
import socket
import sys
import threading
import urllib.request

import langsmith
from langsmith import sandbox as sdk

URL, KEY, PREFIX = sys.argv[1:4]
ENDPOINT = f"{URL}/api/v2/sandboxes" if hasattr(sdk, "SnapshotTag") else f"{URL}/v2/sandboxes"
done = []


def did(what):
    done.append(what)


def made(client, name, **more):
    """A sandbox of the platform's own machine; older clients need a template for that."""
    known = inspect.signature(client.create_sandbox).parameters
    if "template_name" in known:
        more.setdefault("template_name", f"{PREFIX}-template")
    return client.create_sandbox(name=name, **more)


def templates(client):
    if not hasattr(client, "create_template"):
        return
    name = f"{PREFIX}-template"
    client.create_template(name, "host")
    assert client.get_template(name).name == name
    assert name in [template.name for template in client.list_templates()]
    did("templates")


def volumes(client):
    """The contract's two errors, as the client reads them."""
    if not hasattr(client, "create_volume"):
        return
    volume, template = f"{PREFIX}-volume", f"{PREFIX}-mounting"
    assert client.create_volume(volume, "1Gi").size == "1Gi"
    try:
        client.delete_volume(f"{PREFIX}-nothing")
        raise AssertionError("a volume that is not there was deleted")
    except sdk.ResourceNotFoundError as error:
        assert error.resource_type == "volume", error
    mount = sdk.VolumeMountSpec(volume_name=volume, mount_path="/data")
    client.create_template(template, "host", volume_mounts=[mount])
    try:
        client.delete_volume(volume)
        raise AssertionError("a volume that a template names was deleted")
    except sdk.ResourceInUseError as error:
        assert volume in str(error) and template in str(error), error
    client.delete_template(template)
    assert client.update_volume(volume, size="2Gi").size == "2Gi"
    client.delete_volume(volume)
    did("volumes")


def pools(client):
    if not hasattr(client, "create_pool"):
        return
    name = f"{PREFIX}-pool"
    assert client.create_pool(name, f"{PREFIX}-template", 1).replicas == 1
    claimed = made(client, f"{PREFIX}-claimed")
    assert claimed.run("echo pooled").stdout.strip() == "pooled"
    client.delete_sandbox(claimed.name)
    assert client.update_pool(name, replicas=0).replicas == 0
    client.delete_pool(name)
    did("pools")


def commands(box):
    result = box.run("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3), result
    result = box.run("echo $NAME; pwd", env={"NAME": "value"}, cwd="/tmp")
    assert result.stdout.split() == ["value", "/tmp"], result
    chunks = []
    result = box.run("for i in 1 2 3; do echo $i; done", on_stdout=chunks.append)
    assert "".join(chunks) == result.stdout == "1\n2\n3\n", (chunks, result)
    text = "çanal-運河-" * 20_000
    box.write("big", text)
    assert box.run("cat big", timeout=120).stdout == text
    try:
        box.run("sleep 60", timeout=1)
        raise AssertionError("a command outlived its timeout")
    except sdk.CommandTimeoutError:
        pass
    did("commands")


def handles(box):
    handle = box.run("echo first; read line; echo got $line", wait=False, **open_input(box))
    handle.send_input("a line\n")
    assert handle.result.stdout == "first\ngot a line\n", handle.result
    handle = box.run("echo begun; sleep 600", wait=False)
    for chunk in handle:
        assert chunk.data == "begun\n", chunk
        break
    handle.kill()
    handle = box.run("for i in 1 2 3 4 5; do echo $i; done; sleep 1; echo end", wait=False)
    first = next(iter(handle))
    rest = box.reconnect(handle.command_id, stdout_offset=len(first.data.encode())).result
    assert first.data + rest.stdout == "1\n2\n3\n4\n5\nend\n", (first, rest)
    did("handles")


def open_input(box):
    return {"close_input": False} if "close_input" in inspect.signature(box.run).parameters else {}


def files(box):
    content = bytes(range(256)) * 4096
    box.write("folder/data.bin", content)
    assert bytes(box.read("folder/data.bin")) == content
    try:
        box.read("nothing")
        raise AssertionError("a file that is not there was read")
    except sdk.ResourceNotFoundError as error:
        assert error.resource_type == "file", error
    if hasattr(box, "glob"):
        box.write("folder/a.py", "import this\n")
        found = box.glob("*.py", "folder").matches
        assert [entry.path.rsplit("/", 1)[1] for entry in found] == ["a.py"], found
        (line,) = box.grep("import", "folder").matches
        assert (line.line, line.text) == (1, "import this"), line
    did("files")


def services(client, box):
    box.run("nohup python3 -m http.server 8099 --directory /tmp >/dev/null 2>&1 & echo on", timeout=30)
    box.run("for i in $(seq 100); do python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8099))' "
            "2>/dev/null && break; sleep 0.1; done")
    box.write("/tmp/page", "from the box")
    service = client.service(box.name, 8099)
    assert service.get("/page").text == "from the box"
    request = urllib.request.Request(f"{service.service_url}/page")
    try:
        urllib.request.urlopen(request)
        raise AssertionError("a service was reached without its token")
    except urllib.error.HTTPError as error:
        assert error.code == 401, error
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with box.tunnel(8099, local_port=port) as tunnel:
        assert urllib.request.urlopen(f"http://127.0.0.1:{tunnel.local_port}/page").read() == b"from the box"
    if hasattr(client, "generate_download_url"):
        link = client.generate_download_url(box.name, "/tmp/page")
        assert urllib.request.urlopen(link.download_url).read() == b"from the box"
    did("services")


def lifecycle(client, box):
    box.write("kept", "over a stop")
    client.stop_sandbox(box.name)
    assert client.get_sandbox_status(box.name).status == "stopped"
    # A request starts it again.
    assert bytes(box.read("kept")) == b"over a stop"
    assert client.get_sandbox_status(box.name).status == "ready"
    client.stop_sandbox(box.name)
    client.start_sandbox(box.name)
    renamed = client.update_sandbox(box.name, new_name=f"{PREFIX}-renamed")
    assert renamed.name == f"{PREFIX}-renamed"
    assert client.update_sandbox(renamed.name, new_name=box.name).name == box.name
    did("lifecycle")


def snapshots(client, box):
    box.write("kept", "in a snapshot")
    snapshot = client.capture_snapshot(box.name, f"{PREFIX}-snapshot")
    assert snapshot.status == "ready", snapshot
    fork = client.create_sandbox(name=f"{PREFIX}-fork", snapshot_id=snapshot.id)
    assert bytes(fork.read("kept")) == b"in a snapshot"
    assert snapshot.id in [known.id for known in client.list_snapshots()]
    client.delete_sandbox(fork.name)
    did("snapshots")


def networks(client):
    """A box calls what its configuration opens, and headers are added outside of it."""
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.headers.get("X-Agent"))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"reached")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    header = {"name": "X-Agent", "type": "plaintext", "value": "canal"}
    config = {
        "rules": [{"name": "who", "type": "attribution", "headers": [header]}],
        "access_control": {"allow_list": [f"127.0.0.1:{port}"]},
    }
    script = f'import urllib.request as u; print(u.urlopen("http://127.0.0.1:{port}/", timeout=20).read().decode())'
    fetch = f"env -u NO_PROXY -u no_proxy python3 -c '{script}'"
    name = f"{PREFIX}-network"
    box = made(client, name, proxy_config=config)
    try:
        result = box.run(fetch)
        assert (result.stdout, seen) == ("reached\n", ["canal"]), (result, seen)
        other = box.run(fetch.replace(f":{port}/", ":1/"))
        assert other.exit_code != 0 and "403" in other.stderr, other
        if "proxy_config" in inspect.signature(client.update_sandbox).parameters:
            client.update_sandbox(name, proxy_config={"rules": []})
            closed = box.run(fetch)
            assert closed.exit_code != 0 and "403" in closed.stderr, closed
            assert seen == ["canal"], seen
    finally:
        client.delete_sandbox(name)
        server.shutdown()
    did("networks")


def at_once(box):
    """Commands at the same time do not mix."""
    answers = {}

    def ask(number):
        answers[number] = box.run(f"sleep 0.2; echo {number}").stdout

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: f"{number}\n" for number in range(8)}, answers
    did("at once")


def synchronous():
    with sdk.SandboxClient(api_endpoint=ENDPOINT, api_key=KEY) as client:
        templates(client)
        volumes(client)
        pools(client)
        name = f"{PREFIX}-box"
        box = made(client, name)
        try:
            assert name in [known.name for known in client.list_sandboxes()]
            assert client.get_sandbox(name).id == box.id
            commands(box)
            handles(box)
            files(box)
            at_once(box)
            services(client, box)
            lifecycle(client, box)
            snapshots(client, box)
            networks(client)
        finally:
            client.delete_sandbox(name)
        try:
            client.get_sandbox(name)
            raise AssertionError("a sandbox that was deleted is there")
        except sdk.ResourceNotFoundError:
            pass
        if hasattr(client, "delete_template"):
            client.delete_template(f"{PREFIX}-template")


async def asynchronous():
    name = f"{PREFIX}-async"
    async with sdk.AsyncSandboxClient(api_endpoint=ENDPOINT, api_key=KEY) as client:
        known = inspect.signature(client.create_sandbox).parameters
        more = {}
        if "template_name" in known:
            await client.create_template(f"{PREFIX}-async-template", "host")
            more["template_name"] = f"{PREFIX}-async-template"
        box = await client.create_sandbox(name=name, **more)
        try:
            result = await box.run("echo out; exit 3")
            assert (result.stdout, result.exit_code) == ("out\n", 3), result
            results = await asyncio.gather(*(box.run(f"echo {number}") for number in range(8)))
            assert [result.stdout for result in results] == [f"{number}\n" for number in range(8)]
            await box.write("file", "content")
            assert bytes(await box.read("file")) == b"content"
            await client.stop_sandbox(name)
            assert (await box.run("cat file")).stdout == "content"
        finally:
            await client.delete_sandbox(name)
        if "template_name" in known:
            await client.delete_template(f"{PREFIX}-async-template")
    did("async")


synchronous()
asyncio.run(asynchronous())
print(json.dumps([langsmith.__version__, *done]))
