"""Processor time of a run through the protocol: `python measure.py [runs] [at-once] [durability] [modes…]`.

Counts what the child alone uses, so it says how many runs a core of graph hosts can do; the peer is no measure of a server.
"""

import asyncio
import pathlib
import shutil
import sys
import tempfile
import time

from peer import Peer, cpu_s

GRAPH = """
import operator
from typing import Annotated, TypedDict
from langgraph.graph import START, StateGraph
class State(TypedDict):
    log: Annotated[list, operator.add]
    x: int
async def a(state):
    return {"log": ["a"], "x": 1}
async def b(state):
    return {"log": ["b"]}
graph = StateGraph(State)
graph.add_node("a", a)
graph.add_node("b", b)
graph.add_edge(START, "a")
graph.add_edge("a", "b")
"""


async def main(runs=1500, at_once=10, durability="async", *modes):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tph."))
    (folder / "g.py").write_text(GRAPH)
    peer = Peer(str(folder / "s"))
    await peer.start(folder, {"graphs": {"g": "./g.py:graph"}})
    places = asyncio.Semaphore(at_once)
    took = []

    async def one():
        async with places:
            begun = time.monotonic()
            run = await peer.wait("g", {"log": []}, durability=durability, modes=list(modes) or ["values"])
            assert run.result["status"] == "success", run.result
            took.append(time.monotonic() - begun)
            peer.streams.pop(run.id)

    await asyncio.gather(*(one() for _ in range(200)))
    took.clear()
    before, begun = cpu_s(peer.process.pid), time.monotonic()
    await asyncio.gather(*(one() for _ in range(runs)))
    used, elapsed = cpu_s(peer.process.pid) - before, time.monotonic() - begun
    pong = await peer.ping()
    took.sort()
    print(
        f"{runs} runs, {at_once} at once, {durability}, {','.join(modes) or 'values'}: "
        f"{used / runs * 1000:.2f} ms of CPU a run, {runs / elapsed:.0f} runs/s, "
        f"p50 {took[len(took) // 2] * 1000:.1f} ms, {pong['rss_bytes'] / 1e6:.0f} MB"
    )
    await peer.stop()
    shutil.rmtree(folder)


if __name__ == "__main__":
    runs, at_once, *rest = [*sys.argv[1:], *["1500", "10"][len(sys.argv) - 1 :]]
    asyncio.run(main(int(runs), int(at_once), *rest))
