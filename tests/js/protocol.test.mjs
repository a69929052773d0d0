// The thread-centric streaming protocol through the official JavaScript client, over both of its transports.
import assert from "node:assert/strict";
import { test } from "node:test";

// The newest client; that of the other suites speaks of runs alone.
import { Client } from "langgraph-sdk-protocol";
import { WebSocket } from "undici";

// Node has one of its own from version 22 on.
globalThis.WebSocket ??= WebSocket;

const client = new Client({ apiUrl: process.env.TOWPATH_AGENT_URL, apiKey: null });
const graph = (name) => `${process.env.TOWPATH_AGENT_GRAPHS}${name}`;

async function until(what, ask) {
  const deadline = Date.now() + 30_000;
  for (;;) {
    const answer = await ask();
    if (answer) return answer;
    assert.ok(Date.now() < deadline, `waited in vain: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

for (const transport of ["sse", "websocket"]) {
  test(`a run and its state over ${transport}`, async () => {
    const thread = client.threads.stream({ assistantId: graph("steps"), transport });
    const { run_id } = await thread.run.start({ input: { log: ["in"] } });
    assert.ok(run_id);
    assert.deepEqual((await thread.output).log, ["in", "one", "two"]);
    await thread.close();
  });

  test(`a message that grows over ${transport}`, async () => {
    const thread = client.threads.stream({ assistantId: graph("talk"), transport });
    const messages = thread.messages;
    await thread.run.start({ input: { messages: [{ type: "human", content: "hello" }] } });
    for await (const message of messages) {
      const parts = [];
      for await (const part of message.text) parts.push(part);
      assert.equal(parts.join(""), "one two three four five six");
      assert.ok(parts.length > 2, `it grew: ${JSON.stringify(parts)}`);
      break;
    }
    await thread.close();
  });

  test(`an interrupt that is answered over ${transport}`, async () => {
    const thread = client.threads.stream({ assistantId: graph("human"), transport });
    await thread.run.start({ input: { log: [] } });
    await until("the question", () => thread.interrupted && thread.interrupts.length === 1);
    const [interrupt] = thread.interrupts;
    await thread.input.respond({ interrupt_id: interrupt.interruptId, namespace: interrupt.namespace, response: "yes" });
    const state = await until("the end", async () => {
      const state = await client.threads.getState(thread.threadId);
      return state.values.log?.length === 2 && state;
    });
    assert.deepEqual(state.values, { log: ["asked", "done"], answer: "yes" });
    await thread.close();
  });
}
