"""Assistants through the official client: making, finding, versions, what their graphs look like."""

import uuid

import pytest
from langgraph_sdk.errors import ConflictError, NotFoundError, UnprocessableEntityError

# In both languages.
pytestmark = pytest.mark.usefixtures("graph")

# What clients compute for themselves: UUID version 5 of the graph's name.
NAMESPACE = uuid.UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")
FIRST = {
    "agent": "fe096781-5601-53d2-b2f6-0d3403f7e9ca",
    "python-agent": "c12271c7-2862-57e6-8fb1-51181564db7c",
}


async def test_each_graph_has_its_assistant_from_the_start(client, graph):
    found = await client.assistants.get(str(uuid.uuid5(NAMESPACE, graph("agent"))))
    assert found["assistant_id"] == FIRST[graph("agent")]
    assert found["metadata"] == {"created_by": "system"}
    assert (found["graph_id"], found["name"], found["version"]) == (graph("agent"), graph("agent"), 1)
    assert found["created_at"].endswith("+00:00")


async def test_the_name_of_a_graph_stands_for_its_assistant(client, graph):
    name, outer = graph("agent"), graph("nested")
    by_id = str(uuid.uuid5(NAMESPACE, name))
    assert (await client.assistants.get(name))["assistant_id"] == by_id
    assert (await client.assistants.get_graph(name))["nodes"]
    assert await client.assistants.get_schemas(name) == await client.assistants.get_schemas(by_id)
    namespace = next(iter(await client.assistants.get_subgraphs(outer, recurse=True)))
    assert list(await client.assistants.get_subgraphs(outer, namespace=namespace)) == [namespace]
    versions = await client.assistants.get_versions(name)
    assert {one["assistant_id"] for one in versions} == {by_id}
    kept = await client.assistants.set_latest(name, versions[0]["version"])
    assert (kept["assistant_id"], kept["version"]) == (by_id, versions[0]["version"])

    cron = await client.crons.create(name, schedule="0 0 1 1 *", input={}, enabled=False)
    try:
        found = await client.crons.search(assistant_id=name, limit=1000)
        assert cron["cron_id"] in {one["cron_id"] for one in found}
        assert {one["assistant_id"] for one in found} == {by_id}
    finally:
        await client.crons.delete(cron["cron_id"])
    for call in (client.assistants.get, client.assistants.delete, client.assistants.get_schemas):
        with pytest.raises(UnprocessableEntityError, match="Invalid assistant ID"):
            await call("no such graph")


async def test_an_assistants_life(client, graph):
    mark = str(uuid.uuid4())
    made = await client.assistants.create(
        graph("agent"), config={"configurable": {"tone": "dry"}}, metadata={"mark": mark, "n": {"m": 1}}, name="Dry one"
    )
    assert uuid.UUID(made["assistant_id"]).version == 4
    assert made["context"] == {"tone": "dry"}, "configurable and context mirror each other"
    assert made["version"] == 1

    changed = await client.assistants.update(made["assistant_id"], metadata={"more": True}, name="Wet one")
    assert changed["version"] == 2
    assert changed["metadata"] == {"mark": mark, "n": {"m": 1}, "more": True}
    assert changed["config"] == made["config"], "what is not said stays"

    versions = await client.assistants.get_versions(made["assistant_id"])
    assert [one["version"] for one in versions] == [2, 1]
    assert [one["name"] for one in versions] == ["Wet one", "Dry one"]

    back = await client.assistants.set_latest(made["assistant_id"], 1)
    assert (back["version"], back["name"], back["metadata"]) == (1, "Dry one", {"mark": mark, "n": {"m": 1}})
    again = await client.assistants.update(made["assistant_id"], description="third")
    assert again["version"] == 3, "numbers are never used twice"
    assert (again["name"], again["description"]) == ("Dry one", "third")

    assert await client.assistants.count(metadata={"mark": mark}) == 1
    await client.assistants.delete(made["assistant_id"])
    with pytest.raises(NotFoundError):
        await client.assistants.get(made["assistant_id"])
    with pytest.raises(NotFoundError):
        await client.assistants.get_versions(made["assistant_id"])


async def test_lists_are_paged_sorted_and_filtered(client, graph):
    mark = str(uuid.uuid4())
    made = [
        await client.assistants.create(graph("agent"), metadata={"mark": mark, "tags": ["a", str(n)]}, name=f"Paged {n} %")
        for n in range(5)
    ]
    ids = [one["assistant_id"] for one in made]
    everywhere = {"metadata": {"mark": mark}}
    newest = await client.assistants.search(**everywhere)
    assert [one["assistant_id"] for one in newest] == ids[::-1]

    page = await client.assistants.search(**everywhere, limit=2, response_format="object")
    assert [one["assistant_id"] for one in page["assistants"]] == ids[:2:-1]
    assert page["next"] == "2"
    last = await client.assistants.search(**everywhere, limit=2, offset=4, response_format="object")
    assert len(last["assistants"]) == 1 and last["next"] is None

    by_name = await client.assistants.search(**everywhere, sort_by="name", sort_order="asc", select=["name"])
    assert by_name == [{"name": f"Paged {n} %"} for n in range(5)]
    assert len(await client.assistants.search(**everywhere, name="pAGED 3 %")) == 1
    assert await client.assistants.search(**everywhere, name="Paged_3") == [], "a pattern's signs mean themselves"
    assert len(await client.assistants.search(metadata={"mark": mark, "tags": ["3"]})) == 1
    assert await client.assistants.search(metadata={"mark": mark, "tags": ["5"]}) == []
    with pytest.raises(UnprocessableEntityError, match="select"):
        await client.assistants.search(**everywhere, select=["colour"])
    with pytest.raises(NotFoundError):
        await client.assistants.search(graph_id="no such graph")


async def test_ids_are_taken_once(client, graph):
    chosen = str(uuid.uuid4())
    first = await client.assistants.create(graph("agent"), assistant_id=chosen, name="first")
    with pytest.raises(ConflictError, match="already exists"):
        await client.assistants.create(graph("agent"), assistant_id=chosen)
    same = await client.assistants.create(graph("agent"), assistant_id=chosen, if_exists="do_nothing", name="second")
    assert same == first
    await client.assistants.delete(chosen)
    with pytest.raises(NotFoundError):
        await client.assistants.create("no such graph")


async def test_what_a_graph_looks_like(client, graph):
    assistant = str(uuid.uuid5(NAMESPACE, graph("agent")))
    drawn = await client.assistants.get_graph(assistant)
    nodes = {node["id"]: node for node in drawn["nodes"]}
    assert {"__start__", "__end__"} < set(nodes)
    assert all({"source", "target"} <= set(edge) for edge in drawn["edges"])
    assert (await client.assistants.get_graph(assistant, xray=True))["nodes"]
    schemas = await client.assistants.get_schemas(assistant)
    assert schemas["graph_id"] == graph("agent")
    assert set(schemas) == {
        "graph_id", "input_schema", "output_schema", "state_schema", "config_schema", "context_schema",
    }
    assert "messages" in schemas["input_schema"]["properties"]
    outer = str(uuid.uuid5(NAMESPACE, graph("nested")))
    nested = await client.assistants.get_subgraphs(outer, recurse=True)
    assert nested and all("graph_id" not in one for one in nested.values())
    namespace = next(iter(nested))
    assert list(await client.assistants.get_subgraphs(outer, namespace=namespace)) == [namespace]
