"""What the graph file says about the server: web pages, routes, webhooks; and `dev`, which follows the file."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
from langgraph_sdk import get_sync_client

from harness import Process, binary, free_address, until
from projects import PYTHON
from world import Server

ECHO = {"graphs": {"agent": {"native": "echo"}}}
ASK = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def serve(tmp_path):
    """Starts servers of a graph file."""
    running = []

    def start(**config):
        file = tmp_path / "langgraph.json"
        file.write_text(json.dumps(ECHO | config))
        running.append(Server("embedded", graphs=file))
        return running[-1]

    yield start
    for server in running:
        server.drop()


def test_web_pages_may_do_what_the_file_says(serve):
    cors = {
        "allow_origins": ["https://one.example"],
        "allow_origin_regex": r"https://\w+\.many\.example",
        "allow_methods": ["GET", "post"],
        "allow_headers": ["x-mine"],
        "allow_credentials": False,
        "expose_headers": ["x-theirs"],
        "max_age": 7,
    }
    server = serve(http={"cors": cors})
    ask = {"access-control-request-method": "POST", "access-control-request-headers": "x-mine"}
    for origin in ("https://one.example", "https://a1.many.example"):
        answer = httpx.options(f"{server.url}/threads", headers=ask | {"origin": origin})
        told = {name: answer.headers.get(f"access-control-{name}") for name in ("allow-origin", "max-age")}
        assert told == {"allow-origin": origin, "max-age": "7"}
        assert set(answer.headers["access-control-allow-methods"].split(",")) == {"GET", "POST"}
        headers = answer.headers["access-control-allow-headers"].split(",")
        assert set(headers) == {"x-mine", "accept", "accept-language", "content-language", "content-type"}
        assert "access-control-allow-credentials" not in answer.headers
        exposed = httpx.get(f"{server.url}/ok", headers={"origin": origin}, timeout=60).headers["access-control-expose-headers"]
        assert {"x-theirs", "content-location", "x-pagination-total"} <= set(exposed.split(","))
    for origin in ("https://two.example", "https://a1.many.example.evil.example", "http://a1.many.example"):
        answer = httpx.get(f"{server.url}/ok", headers={"origin": origin}, timeout=60)
        assert "access-control-allow-origin" not in answer.headers, origin
        assert answer.headers["vary"].lower() == "origin"


def test_a_file_that_cannot_be_followed_is_refused(tmp_path):
    file = tmp_path / "langgraph.json"
    file.write_text(json.dumps(ECHO | {"http": {"cors": {"allow_origin_regex": "https://("}}}))
    address = free_address()
    command = [binary(), "agent", "--config", str(file), "--listen", address, "--data-dir", str(tmp_path / "data")]
    process = Process("refused", command, {}, tmp_path, address)
    assert process.child.wait(timeout=30) == 2
    assert "http.cors.allow_origin_regex" in process.log_tail() and "langgraph.json" in process.log_tail()


def test_the_variables_of_an_official_image_are_a_graph_file(tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "graph.py").write_text(
        "from langgraph.graph import START, MessagesState, StateGraph\n"
        "graph = StateGraph(MessagesState)\n"
        "graph.add_node('say', lambda state: {'messages': [('ai', 'from an image')]})\n"
        "graph.add_edge(START, 'say')\n"
        "graph = graph.compile()\n"
    )
    graphs = {"image": f"{tmp_path}/app/graph.py:graph", "echo": {"native": "echo"}}
    said = PYTHON | {
        "LANGSERVE_GRAPHS": json.dumps(graphs),
        "LANGGRAPH_HTTP": json.dumps({"disable_store": True}),
        "LANGGRAPH_THREAD_TTL": json.dumps({"strategy": "delete", "default_ttl": 60}),
        "LANGGRAPH_STORE": "",
        "LOG_JSON": "true",
        "BG_JOB_ISOLATED_LOOPS": "true",
    }
    address = free_address()
    command = [binary(), "agent", "--listen", address, "--data-dir", str(tmp_path / "data")]
    process = Process("image", command, said, tmp_path, address).ready()
    try:
        client = get_sync_client(url=f"http://{address}", api_key=None)
        assert client.runs.wait(None, "image", input=ASK)["messages"][-1]["content"] == "from an image"
        assert client.runs.wait(None, "echo", input=ASK)["messages"][-1]["content"] == "hello"
        assert httpx.post(f"http://{address}/store/namespaces", json={}, timeout=60).status_code == 404
        thread = client.threads.create()["thread_id"]
        ttl = httpx.get(f"http://{address}/threads/{thread}?include=ttl", timeout=60).json()["ttl"]
        assert (ttl["strategy"], ttl["ttl_minutes"]) == ("delete", 60.0)
        ready = [line for line in process.log.read_text().splitlines() if "ready" in line]
        assert ready and all(json.loads(line) for line in ready), process.log_tail()
    finally:
        process.terminate()
    wrong = Process("wrong", command, said | {"LANGGRAPH_STORE": "[1]"}, tmp_path, address)
    assert wrong.child.wait(timeout=60) == 2
    assert "LANGGRAPH_STORE: expected a JSON object" in wrong.log_tail()


def test_what_a_server_tells_of_itself_can_be_turned_off(serve):
    server = serve(http={"disable_meta": True})
    for path in ("/info", "/metrics", "/docs", "/openapi.json"):
        assert httpx.get(f"{server.url}{path}", timeout=60).status_code == 404, path
    for path in ("/", "/ok", "/ok?check_db=1", "/livez"):
        answer = httpx.get(f"{server.url}{path}", timeout=60)
        assert (answer.status_code, answer.json()["ok"]) == (200, True), path
    assert httpx.get(f"{server.url}/readyz", timeout=60).status_code == 200
    client = get_sync_client(url=server.url, api_key=None)
    assert client.runs.wait(None, "agent", input=ASK)["messages"][-1]["content"] == "hello"


@pytest.fixture
def listener():
    """Takes webhooks; the bodies so far."""

    class Taken(BaseHTTPRequestHandler):
        def do_POST(self):
            self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Taken)
    server.bodies = []
    server.address = "http://127.0.0.1:%d/" % server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("off", [False, True])
def test_webhooks_can_be_turned_off(serve, listener, off):
    server = serve(http={"disable_webhooks": off}, webhooks={"url": {"require_https": off}})
    client = get_sync_client(url=server.url, api_key=None)
    answer = client.runs.wait(None, "agent", input=ASK, webhook=listener.address)
    assert answer["messages"][-1]["content"] == "hello"

    def over():
        jobs = httpx.get(f"{server.url}/internal/jobs", params={"kind": "send_webhook"}, timeout=60).json()["items"]
        return True if [job["state"] for job in jobs] == ["succeeded"] else None

    until("the job of the webhook to end", over)
    assert [body["status"] for body in listener.bodies] == ([] if off else ["success"])


AUTH = """
from langgraph_sdk import Auth

auth = Auth()

@auth.authenticate
async def authenticate(authorization: str | None):
    if authorization != "Bearer ann":
        raise Auth.exceptions.HTTPException(status_code=401, detail="say who you are")
    return {"identity": "ann"}
"""


def test_dev_follows_the_file(tmp_path):
    file = tmp_path / "langgraph.json"
    # Written in one go: a file of which half is there is one that cannot be read.
    write = lambda **config: (tmp_path / "new").write_text(json.dumps(ECHO | config)) and (tmp_path / "new").rename(file)  # noqa: E731
    write()
    (tmp_path / "auth.py").write_text(AUTH)
    platform, agent = free_address(), free_address()
    command = [binary(), "dev", "--listen", platform, "--agent-listen", agent, "--graphs", str(file)]
    process = Process("dev", [*command, "--data-dir", str(tmp_path / "data")], PYTHON, tmp_path, platform)
    try:
        process.ready()
        base = httpx.Client(base_url=f"http://{agent}", timeout=60)

        def answers(status, path="/store/items/search", **headers):
            ask = lambda: base.post(path, json={"namespace_prefix": []}, headers=headers).status_code  # noqa: E731
            until(f"{path} to answer {status}", lambda: True if ask() == status else None)

        answers(200)
        write(http={"disable_store": True})
        answers(404)
        write(auth={"path": "./auth.py:auth"})
        answers(401)
        answers(200, authorization="Bearer ann")
        # What cannot be used changes nothing: the door stays shut.
        write(http={"cors": {"allow_origin_regex": "("}})
        until("the error", lambda: True if "allow_origin_regex" in process.log_tail() else None)
        assert base.post("/threads", json={}).status_code == 401
        write()
        answers(200)
        process.terminate()
    finally:
        if process.child.poll() is None:
            process.kill()
