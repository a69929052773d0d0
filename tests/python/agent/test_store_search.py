"""Searches of the store by meaning, through the official client and from inside graphs."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from langgraph_sdk.errors import UnprocessableEntityError

from harness import until

GRAPH = """
    from typing import TypedDict
    from langgraph.graph import END, START, StateGraph

    class State(TypedDict, total=False):
        query: str
        found: list

    async def search(state, *, store):
        found = await store.asearch(("pets",), query=state["query"], limit=2)
        return {"found": [[item.key, item.score] for item in found]}

    async def remember(state, *, store):
        await store.aput(("notes",), "seen", {"text": "a bird"})
        await store.aput(("notes",), "hidden", {"text": "a bird"}, index=False)
        return {"query": state["query"]}

    graph = StateGraph(State).add_node(search).add_node(remember)
    graph.add_edge(START, "remember").add_edge("remember", "search").add_edge("search", END)
    graph = graph.compile()
"""
EMBED = """
    ANIMALS = ["cat", "dog", "bird"]

    def vector(text):
        return [text.count(animal) + 0.01 for animal in ANIMALS]

    def plain(texts):
        return [vector(text) for text in texts]

    async def later(texts):
        return plain(texts)
"""
NATIVE = {
    "native": {
        "kind": "script",
        "channels": {"found": "last-value"},
        "steps": [{"item": {"search": {"namespace": ["pets"], "query": "dog", "limit": 2}}, "into": "found"}],
    }
}
PETS = {"tom": "a cat", "rex": "a dog", "tweety": "a bird", "both": "a cat and a dog"}


def config(embed, **more):
    index = {"dims": 3, "embed": embed, "fields": ["text"], **more}
    graphs = {"agent": "./agent.py:graph", "declared": NATIVE}
    return {"graphs": graphs, "dependencies": ["."], "store": {"index": index}}


def fill(client):
    for key, text in PETS.items():
        client.store.put_item(["pets", "home"], key, {"text": text, "legs": 2 if key == "tweety" else 4})
    client.store.put_item(["pets"], "unseen", {"text": "a cat"}, index=False)
    client.store.put_item(["plants"], "catnip", {"text": "for a cat"})


def search(client, query, **how):
    return [(item["key"], item["score"]) for item in client.store.search_items(["pets"], query=query, **how)["items"]]


def until_embedded(client, count=len(PETS)):
    return until("the items to be embedded", lambda: len(search(client, "cat")) == count or None)


@pytest.mark.parametrize("function", ["plain", "later"])
def test_items_are_ranked_by_the_authors_function(serve, project, function):
    project.write(config(f"./embed.py:{function}"), agent=GRAPH, embed=EMBED)
    _, client = serve()
    fill(client)
    until_embedded(client)
    ranked = search(client, "cat")
    assert [key for key, _ in ranked][:2] == ["tom", "both"]
    assert ranked[0][1] == pytest.approx(1, abs=1e-3) and ranked[0][1] > ranked[1][1] > ranked[2][1]
    assert [key for key, _ in search(client, "cat", limit=1, offset=1)] == ["both"]
    assert [key for key, _ in search(client, "dog", filter={"legs": 4}, limit=2)] == ["rex", "both"]
    assert [key for key, _ in search(client, "cat", filter={"legs": 2})] == ["tweety"]
    answer = client.runs.wait(None, "agent", input={"query": "bird"})
    assert answer["found"][0] == ["tweety", pytest.approx(1, abs=1e-3)] and len(answer["found"]) == 2
    answer = client.runs.wait(None, "declared", input={})
    assert [item["key"] for item in answer["found"]] == ["rex", "both"] and answer["found"][0]["score"] > 0.9
    found = lambda: client.store.search_items(["notes"], query="bird")["items"] or None  # noqa: E731
    notes = until("the graph's item to be embedded", found)
    assert [item["key"] for item in notes] == ["seen"]
    client.store.delete_item(["pets", "home"], "tom")
    assert "tom" not in dict(search(client, "cat"))


def test_native_graphs_need_no_python_graph_for_a_function(serve, project):
    project.write({**config("./embed.py:plain"), "graphs": {"declared": NATIVE}}, embed=EMBED)
    _, client = serve()
    fill(client)
    until_embedded(client)
    answer = client.runs.wait(None, "declared", input={})
    assert [item["key"] for item in answer["found"]] == ["rex", "both"]


class Embeddings(BaseHTTPRequestHandler):
    """An endpoint with the shape of OpenAI's."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert self.path == "/v1/embeddings" and body["model"] == "animals"
        assert self.headers["authorization"] == "Bearer secret"
        vectors = [[text.count(animal) + 0.01 for animal in ("cat", "dog", "bird")] for text in body["input"]]
        data = [{"object": "embedding", "index": n, "embedding": vector} for n, vector in enumerate(vectors)]
        answer = json.dumps({"object": "list", "data": data, "model": "animals"}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def endpoint():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Embeddings)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()


def test_items_are_ranked_by_an_endpoint(serve, project, endpoint):
    project.write(config("openai:animals"), agent=GRAPH)
    server, client = serve(OPENAI_BASE_URL=f"http://{endpoint}/v1", OPENAI_API_KEY="secret")
    fill(client)
    until_embedded(client)
    assert [key for key, _ in search(client, "dog", limit=1)] == ["rex"]
    answer = client.runs.wait(None, "agent", input={"query": "cat"})
    assert answer["found"][0][0] == "tom"
    assert "secret" not in server.logs()


def test_a_query_without_an_index_says_what_to_do(serve, project):
    _, client = serve()
    with pytest.raises(UnprocessableEntityError, match="store.index"):
        client.store.search_items(["pets"], query="cat")
    client.store.put_item(["pets"], "tom", {"text": "a cat"}, index=["text"])
    assert client.store.search_items(["pets"])["items"][0]["score"] is None
