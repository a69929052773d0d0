// The agent server through both generations of the official JavaScript client of the Model Context Protocol.
// TOWPATH_AGENT_URL says where it is, and TOWPATH_AGENT_GRAPHS what the names of its graphs begin with; tests/python/agent
// starts it and this.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { Client as FirstClient } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport as FirstTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const URL_OF_SERVER = process.env.TOWPATH_AGENT_URL;
const graph = (name) => `${process.env.TOWPATH_AGENT_GRAPHS}${name}`;
const address = () => new URL(`${URL_OF_SERVER}/mcp`);
const INFO = { name: "test", version: "1" };

// How each client connects, and the revision that it comes to.
const CLIENTS = {
  first: async () => {
    const client = new FirstClient(INFO);
    const transport = new FirstTransport(address());
    await client.connect(transport);
    return {
      client,
      version: transport.protocolVersion,
      expected: "2025-11-25",
      call: (name, input, options) => client.callTool({ name, arguments: input }, undefined, options),
    };
  },
  second: (mode, expected) => async () => {
    const client = new Client(INFO, { versionNegotiation: { mode } });
    await client.connect(new StreamableHTTPClientTransport(address()));
    return {
      client,
      version: client.getNegotiatedProtocolVersion(),
      expected,
      call: (name, input, options) => client.callTool({ name, arguments: input }, options),
    };
  },
};

async function post(path, body) {
  const headers = { "content-type": "application/json" };
  const answer = await fetch(`${URL_OF_SERVER}${path}`, { method: "POST", headers, body: JSON.stringify(body) });
  assert.equal(answer.status, 200);
  return answer.json();
}

async function until(what, ask) {
  const deadline = Date.now() + 60_000;
  while (!(await ask())) {
    assert.ok(Date.now() < deadline, `waited in vain: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

for (const [name, connect] of [
  ["the first client", CLIENTS.first],
  ["the second client with a handshake", CLIENTS.second("legacy", "2025-11-25")],
  ["the second client without a handshake", CLIENTS.second({ pin: "2026-07-28" }, "2026-07-28")],
  ["the second client, which finds the revision", CLIENTS.second("auto", "2026-07-28")],
]) {
  test(`${name} calls assistants as tools`, async () => {
    const { client, version, expected, call } = await connect();
    assert.equal(version, expected);
    assert.equal(client.getServerVersion().name, "towpath");
    const { tools } = await client.listTools();
    const tool = tools.find((tool) => tool.name === graph("agent"));
    assert.equal(tool.description, "Says back what it is told.");
    assert.equal(tool.inputSchema.properties.messages.type, "string");

    const said = await call(graph("agent"), { messages: "hello there" });
    assert.ok(!said.isError);
    assert.match(said.structuredContent.messages[1].content, /hello there/);
    assert.deepEqual(JSON.parse(said.content[0].text), said.structuredContent);
    const failed = await call(graph("broken"), { log: [] });
    assert.ok(failed.isError);
    assert.match(failed.content[0].text, /it broke/);
    const unknown = (error) => error.code === -32602 && /Unknown tool/.test(error.message);
    await assert.rejects(call("nothing", {}), unknown);
    await client.close();
  });

  test(`${name} is told of each step`, async () => {
    const { client, call } = await connect();
    const told = [];
    const done = await call(graph("steps"), { log: [] }, { onprogress: (progress) => told.push(progress) });
    assert.deepEqual(done.structuredContent.log, ["one", "two"]);
    const messages = told.map((one) => one.message).filter((message) => message);
    assert.deepEqual(messages, ["one", "two"]);
    await client.close();
  });

  test(`${name} gives a call up`, async () => {
    const assistant = await post("/assistants", { graph_id: graph("slow"), name: `slow-${randomUUID().slice(0, 8)}` });
    const runs = () => post("/runs/search", { assistant_id: assistant.assistant_id });
    const { client, call } = await connect();
    const leaving = new AbortController();
    const calling = call(assistant.name, { log: [] }, { signal: leaving.signal });
    const givenUp = assert.rejects(calling);
    await until("the run to be at work", async () => (await runs()).some((run) => run.status === "running"));
    leaving.abort();
    await givenUp;
    // It was a stateless one, and goes when it is over.
    await until("the run to be cancelled", async () => (await runs()).length === 0);
    await client.close();
  });
}

test("a batch of the revision that has them is answered as one", async () => {
  const transport = new FirstTransport(address());
  const answers = new Map();
  const wrong = [];
  transport.onmessage = (message) => answers.set(message.id, message);
  transport.onerror = (error) => wrong.push(error);
  await transport.start();
  const request = (id, method, params) => ({ jsonrpc: "2.0", id, method, params });
  await transport.send([
    request(1, "ping"),
    request(2, "tools/call", { name: graph("steps"), arguments: { log: ["in"] } }),
    request(3, "tools/call", { name: "nothing", arguments: {} }),
  ]);
  await until("all answers", () => answers.size === 3);
  assert.deepEqual(wrong, []);
  assert.deepEqual(answers.get(1).result, {});
  assert.deepEqual(answers.get(2).result.structuredContent.log, ["in", "one", "two"]);
  assert.equal(answers.get(3).error.code, -32602);
  // A client that has agreed on a later revision sends none.
  transport.setProtocolVersion("2025-11-25");
  await assert.rejects(transport.send([request(4, "ping")]), /-32600/);
  await transport.close();
});
