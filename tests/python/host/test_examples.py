"""The examples do what their READMEs say."""

import json
import pathlib

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture
async def example(fresh):
    async def start(name):
        folder = EXAMPLES / name
        return await fresh(json.loads((folder / "langgraph.json").read_text()), folder)

    return start


def said(text):
    return {"messages": [{"role": "user", "content": text}]}


def last(run):
    return json.loads(run.result["state"]["values"])["messages"][-1]["content"]


async def test_chat(example):
    peer = await example("chat")
    run = await peer.wait("chat", said("hello there"), modes=["messages-tuple"])
    tokens = [message["content"] for message, _ in run.of("messages")]
    assert len(tokens) > 5 and "".join(tokens) == last(run)
    assert last(run) == "You have spoken to me 1 times. Last you said: hello there"
    run = await peer.wait("chat", said("and again"), thread=run.thread)
    assert "2 times" in last(run)


async def test_approval(example):
    peer = await example("approval")
    run = await peer.wait("approval", {"payee": "the baker", "amount": 120})
    (waiting,) = json.loads(run.result["state"]["interrupts"]).values()
    assert waiting[0]["value"]["question"] == "Pay 120.00 to the baker?"
    run = await peer.wait("approval", thread=run.thread, command={"resume": 100})
    assert json.loads(run.result["state"]["values"])["status"] == "paid 100.00 to the baker"
    run = await peer.wait("approval", {"payee": "the baker", "amount": 120})
    run = await peer.wait("approval", thread=run.thread, command={"resume": False})
    assert json.loads(run.result["state"]["values"])["status"] == "refused"
    run = await peer.wait("approval", {"payee": "the baker", "amount": 2})
    assert json.loads(run.result["state"]["values"])["status"] == "paid 2.00 to the baker"


async def test_tools(example):
    peer = await example("tools")
    assert last(await peer.wait("tools", said("2 plus 3 and 4 times 5"))) == "add: 5.0; multiply: 20.0"
    assert last(await peer.wait("tools", said("remember that tea is at five"))) == "remember: remembered"
    assert last(await peer.wait("tools", said("what do you know?"))) == 'recall: ["tea is at five"]'
    assert "Try" in last(await peer.wait("tools", said("hm")))
