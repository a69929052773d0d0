"""A graph that is somewhere else: langgraph's own client of such servers."""

import uuid

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel.remote import RemoteException, RemoteGraph
from langgraph.types import Command

# In both languages.
pytestmark = pytest.mark.usefixtures("graph")


async def test_messages_go_there_and_come_back(server, graph):
    remote = RemoteGraph(graph("agent"), url=server.url)
    answer = await remote.ainvoke({"messages": [HumanMessage("hello there")]})
    assert answer["messages"][-1]["type"] == "ai" and "hello there" in answer["messages"][-1]["content"]
    same = remote.invoke({"messages": [{"role": "user", "content": "hello there"}]})
    assert same["messages"][-1]["content"] == answer["messages"][-1]["content"]


async def test_streams(server, graph):
    remote = RemoteGraph(graph("steps"), url=server.url)
    config = {"configurable": {"thread_id": str(uuid.uuid4())}}
    await remote.client.threads.create(thread_id=config["configurable"]["thread_id"])
    stream = remote.astream({"log": []}, config, stream_mode=["updates", "values", "custom"])
    parts = [(part[0], part[1]) async for part in stream]
    assert ("updates", {"one": {"log": ["one"], "x": 1}}) in parts and ("custom", {"at": "two"}) in parts
    assert list(remote.stream({"log": []}, config, stream_mode="updates"))[-1] == {"two": {"log": ["two"]}}
    nested = RemoteGraph(graph("nested"), url=server.url)
    inner = [part async for part in nested.astream({"log": []}, stream_mode="updates", subgraphs=True)]
    assert any(namespace and namespace[0].startswith("sub:") for namespace, _ in inner), inner


async def test_state_and_history(server, graph):
    remote = RemoteGraph(graph("steps"), url=server.url)
    thread = (await remote.client.threads.create())["thread_id"]
    config = {"configurable": {"thread_id": thread}}
    await remote.ainvoke({"log": ["in"]}, config)
    state = await remote.aget_state(config)
    assert state.values["log"] == ["in", "one", "two"] and state.next == ()
    history = [state async for state in remote.aget_state_history(config, limit=100)]
    assert [one.metadata["step"] for one in history] == [2, 1, 0, -1]
    moved = await remote.aupdate_state(history[1].config, {"log": ["by hand"]}, as_node="one")
    assert (await remote.aget_state(moved)).next == ("two",)
    assert (await remote.ainvoke(None, moved))["log"][-2:] == ["by hand", "two"]


async def test_interrupts_and_errors(server, graph):
    remote = RemoteGraph(graph("human"), url=server.url)
    config = {"configurable": {"thread_id": (await remote.client.threads.create())["thread_id"]}}
    stopped = await remote.ainvoke({"log": []}, config)
    assert stopped["__interrupt__"]
    assert (await remote.aget_state(config)).next == ("ask",)
    assert (await remote.ainvoke(Command(resume="yes"), config))["answer"] == "yes"
    broken = RemoteGraph(graph("broken"), url=server.url)
    with pytest.raises(RemoteException, match="it broke"):
        await broken.ainvoke({"log": []})


async def test_a_local_graph_with_a_remote_node(server, graph):
    remote = RemoteGraph(graph("agent"), url=server.url, name="remote")
    local = StateGraph(MessagesState).add_node("remote", remote).add_edge(START, "remote").compile()
    answer = await local.ainvoke({"messages": [HumanMessage("hello there")]})
    assert isinstance(answer["messages"][-1], AIMessage) and "hello there" in answer["messages"][-1].content


def test_drawing(server, graph):
    drawn = RemoteGraph(graph("steps"), url=server.url).get_graph()
    assert {"__start__", "one", "two", "__end__"} == set(drawn.nodes)
    assert ("one", "two") in {(edge.source, edge.target) for edge in drawn.edges}
