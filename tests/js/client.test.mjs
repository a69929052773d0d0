// The agent server through the official JavaScript client. TOWPATH_AGENT_URL says where it is, and TOWPATH_AGENT_GRAPHS what
// the names of its graphs begin with; tests/python/agent starts it and this.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";

import { Client } from "@langchain/langgraph-sdk";

const client = new Client({ apiUrl: process.env.TOWPATH_AGENT_URL, apiKey: null });
const graph = (name) => `${process.env.TOWPATH_AGENT_GRAPHS}${name}`;
const HI = { messages: [{ role: "user", content: "hello there" }] };

async function collect(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
}

async function until(what, ask) {
  const deadline = Date.now() + 30_000;
  for (;;) {
    const answer = await ask();
    if (answer) return answer;
    assert.ok(Date.now() < deadline, `waited in vain: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

test("assistants", async () => {
  const mark = randomUUID();
  const made = await client.assistants.create({ graphId: graph("agent"), metadata: { mark }, name: "one" });
  const changed = await client.assistants.update(made.assistant_id, { graphId: graph("agent"), metadata: { more: 1 } });
  assert.equal(changed.version, 2);
  assert.deepEqual(changed.metadata, { mark, more: 1 });
  const versions = await client.assistants.getVersions(made.assistant_id);
  assert.deepEqual(versions.map((one) => one.version), [2, 1]);
  assert.equal((await client.assistants.setLatest(made.assistant_id, 1)).version, 1);
  const found = await client.assistants.search({ metadata: { mark }, includePagination: true });
  assert.equal(found.assistants.length, 1);
  assert.equal(found.next, null);
  assert.equal(await client.assistants.count({ metadata: { mark } }), 1);
  const drawn = await client.assistants.getGraph(made.assistant_id, { xray: true });
  assert.ok(drawn.nodes.some((node) => node.id === "__start__"));
  assert.equal((await client.assistants.getSchemas(made.assistant_id)).graph_id, graph("agent"));
  assert.deepEqual(await client.assistants.getSubgraphs(made.assistant_id, { recurse: true }), {});
  await client.assistants.delete(made.assistant_id);
  await assert.rejects(client.assistants.get(made.assistant_id), /404/);
});

test("threads: made, changed, found, copied, deleted", async () => {
  const mark = randomUUID();
  const thread = await client.threads.create({ metadata: { mark }, graphId: graph("steps") });
  assert.equal(thread.status, "idle");
  await client.threads.update(thread.thread_id, { metadata: { more: 1 } });
  assert.deepEqual((await client.threads.get(thread.thread_id)).metadata, { mark, more: 1, graph_id: graph("steps") });
  assert.equal((await client.threads.search({ metadata: { mark } })).length, 1);
  assert.equal(await client.threads.count({ metadata: { mark } }), 1);
  await client.runs.wait(thread.thread_id, graph("steps"), { input: { log: ["in"] } });
  const state = await client.threads.getState(thread.thread_id);
  assert.deepEqual(state.values.log, ["in", "one", "two"]);
  const history = await client.threads.getHistory(thread.thread_id, { limit: 100 });
  assert.deepEqual(history.map((one) => one.metadata.step), [2, 1, 0, -1]);
  const at = await client.threads.getState(thread.thread_id, history[1].checkpoint);
  assert.deepEqual(at.values.log, ["in", "one"]);
  const copy = await client.threads.copy(thread.thread_id);
  assert.deepEqual((await client.threads.getState(copy.thread_id)).values, state.values);
  const patched = await client.threads.updateState(copy.thread_id, { values: { log: ["by hand"] }, asNode: "one" });
  assert.ok(patched.configurable.checkpoint_id);
  assert.deepEqual((await client.threads.getState(copy.thread_id)).next, ["two"]);
  for (const id of [thread.thread_id, copy.thread_id]) await client.threads.delete(id);
  await assert.rejects(client.threads.get(thread.thread_id), /404/);
});

test("runs are waited for, with and without a thread", async () => {
  const values = await client.runs.wait(null, graph("agent"), { input: HI });
  assert.deepEqual(values.messages.map((message) => message.type), ["human", "ai"]);
  assert.match(values.messages[1].content, /hello there/);
  const thread = await client.threads.create();
  let created;
  const again = await client.runs.wait(thread.thread_id, graph("steps"), {
    input: { log: [] },
    onRunCreated: (params) => { created = params; },
  });
  assert.deepEqual(again.log, ["one", "two"]);
  assert.equal(created.thread_id, thread.thread_id);
  const run = await client.runs.get(thread.thread_id, created.run_id);
  assert.equal(run.status, "success");
  await assert.rejects(client.runs.wait(null, graph("broken"), { input: { log: [] } }), /it broke/);
});

test("a stream says what happens, several modes at once", async () => {
  const thread = await client.threads.create();
  const parts = await collect(
    client.runs.stream(thread.thread_id, graph("steps"), { input: { log: ["in"] }, streamMode: ["values", "updates", "custom"] }),
  );
  assert.deepEqual(
    parts.map((part) => part.event),
    ["metadata", "values", "updates", "values", "custom", "updates", "values"],
  );
  assert.deepEqual(parts.at(-1).data.log, ["in", "one", "two"]);
  assert.ok(parts[0].data.run_id);
});

test("messages come token by token", async () => {
  const parts = await collect(client.runs.stream(null, graph("agent"), { input: HI, streamMode: "messages-tuple" }));
  const tokens = parts.filter((part) => part.event === "messages").map((part) => part.data);
  assert.ok(tokens.length > 1);
  assert.equal(tokens.map(([message]) => message.content).join(""), (await client.runs.wait(null, graph("agent"), { input: HI })).messages[1].content);
  assert.ok(tokens.every(([message, metadata]) => message.id === tokens[0][0].id && metadata.langgraph_node));
});

test("subgraphs have a namespace in their events' names", async () => {
  const parts = await collect(
    client.runs.stream(null, graph("nested"), { input: { log: [] }, streamMode: "updates", streamSubgraphs: true }),
  );
  assert.ok(parts.some((part) => /^updates\|sub:[0-9a-f-]{36}$/.test(part.event)), JSON.stringify(parts));
});

test("a reader comes back where it was", async () => {
  const thread = await client.threads.create();
  const run = await client.runs.create(thread.thread_id, graph("talk"), {
    input: { messages: [] }, streamMode: ["messages-tuple", "values"], streamResumable: true,
  });
  const all = await collect(
    client.runs.joinStream(thread.thread_id, run.run_id, { lastEventId: "-1", streamMode: ["messages-tuple", "values"] }),
  );
  assert.ok(all.length > 4 && all.every((part) => part.id), JSON.stringify(all.slice(0, 3)));
  assert.equal(new Set(all.map((part) => part.id)).size, all.length, "ids are never used twice");
  const rest = await collect(
    client.runs.joinStream(thread.thread_id, run.run_id, { lastEventId: all[2].id, streamMode: ["messages-tuple", "values"] }),
  );
  assert.deepEqual(rest, all.slice(3));
  const only = await collect(
    client.runs.joinStream(thread.thread_id, run.run_id, { lastEventId: "-1", streamMode: "values" }),
  );
  assert.ok(only.length && only.every((part) => part.event === "values" || part.event === "metadata"));
  assert.ok((await client.runs.join(thread.thread_id, run.run_id)).messages.length);
});

test("runs are listed, cancelled, deleted", async () => {
  const thread = await client.threads.create();
  const run = await client.runs.create(thread.thread_id, graph("slow"), { input: { log: [] } });
  await until("the run to be at work", async () => (await client.runs.get(thread.thread_id, run.run_id)).status === "running");
  assert.equal((await client.threads.get(thread.thread_id)).status, "busy");
  await client.runs.cancel(thread.thread_id, run.run_id, true);
  assert.equal((await client.runs.get(thread.thread_id, run.run_id)).status, "interrupted");
  const listed = await client.runs.list(thread.thread_id);
  assert.deepEqual(listed.map((one) => one.run_id), [run.run_id]);
  await client.runs.delete(thread.thread_id, run.run_id);
  assert.deepEqual(await client.runs.list(thread.thread_id), []);
});

test("a batch of runs", async () => {
  const runs = await client.runs.createBatch([
    { assistantId: graph("agent"), input: HI },
    { assistantId: graph("steps"), input: { log: [] } },
  ]);
  assert.equal(runs.length, 2);
  assert.ok(runs.every((run) => run.status === "pending"));
});

test("a human answers", async () => {
  const thread = await client.threads.create();
  const stopped = await client.runs.wait(thread.thread_id, graph("human"), { input: { log: [] } });
  assert.deepEqual(stopped.__interrupt__.map((one) => one.value), [{ question: "go on?" }]);
  assert.equal((await client.threads.get(thread.thread_id)).status, "interrupted");
  const done = await client.runs.wait(thread.thread_id, graph("human"), { command: { resume: "yes" } });
  assert.deepEqual([done.answer, done.log], ["yes", ["asked", "done"]]);
});

test("the store", async () => {
  const place = ["js", randomUUID()];
  await client.store.putItem(place, "k", { n: 1 });
  assert.deepEqual((await client.store.getItem(place, "k")).value, { n: 1 });
  assert.equal((await client.store.searchItems(place, { filter: { n: { $gte: 1 } } })).items.length, 1);
  assert.deepEqual((await client.store.listNamespaces({ prefix: place })).namespaces, [place]);
  await client.store.deleteItem(place, "k");
  assert.equal(await client.store.getItem(place, "k"), null);
});

test("crons", async () => {
  const assistant = await client.assistants.create({ graphId: graph("agent") });
  const made = await client.crons.create(assistant.assistant_id, { schedule: "0 0 1 1 *", input: HI });
  const thread = await client.threads.create();
  const other = await client.crons.createForThread(thread.thread_id, graph("agent"), { schedule: "0 0 1 1 *", input: HI });
  assert.equal(other.thread_id, thread.thread_id);
  const changed = await client.crons.update(made.cron_id, { enabled: false });
  assert.equal(changed.enabled, false);
  const mine = { assistantId: assistant.assistant_id };
  assert.deepEqual((await client.crons.search(mine)).map((cron) => cron.cron_id), [made.cron_id]);
  assert.equal(await client.crons.count(mine), 1);
  for (const cron of [made, other]) await client.crons.delete(cron.cron_id);
  await assert.rejects(client.crons.delete(made.cron_id), /404/);
});

test("the stream of a thread goes over its runs", async () => {
  // These runs are in no log, so the stream has to be open before the first of them.
  let opened;
  const open = new Promise((resolve) => { opened = resolve; });
  const reader = new Client({
    apiUrl: process.env.TOWPATH_AGENT_URL,
    apiKey: null,
    callerOptions: {
      fetch: async (...asked) => {
        const answer = await fetch(...asked);
        opened();
        return answer;
      },
    },
  });
  const thread = await client.threads.create();
  const stop = new AbortController();
  const parts = [];
  const reading = (async () => {
    try {
      for await (const part of reader.threads.joinStream(thread.thread_id, { lastEventId: "-", signal: stop.signal })) {
        parts.push(part);
        if (parts.filter((one) => one.event === "metadata" && one.data.status === "run_done").length === 2) stop.abort();
      }
    } catch (error) {
      if (!stop.signal.aborted) throw error;
    }
  })();
  await Promise.race([open, reading]);
  await client.runs.wait(thread.thread_id, graph("steps"), { input: { log: [] } });
  await client.runs.wait(thread.thread_id, graph("steps"), { input: { log: [] } });
  await reading;
  assert.ok(parts.some((part) => part.event === "values"));
});
