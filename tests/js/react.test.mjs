// The hook of the official JavaScript client, in a real React on a DOM without a browser, against a running agent server.
import assert from "node:assert/strict";
import { test } from "node:test";

// Before the hook: React looks for a DOM when it is loaded.
import { mount as mountPage } from "./react-page.mjs";

const { Client } = await import("@langchain/langgraph-sdk");
const { useStream } = await import("@langchain/langgraph-sdk/react");

// What was asked for.
const asked = [];
const fetched = globalThis.fetch;
globalThis.fetch = (where, ...rest) => {
  asked.push(String(where));
  return fetched(where, ...rest);
};

const apiUrl = process.env.TOWPATH_AGENT_URL;
const client = new Client({ apiUrl, apiKey: null });
const graph = (name) => `${process.env.TOWPATH_AGENT_GRAPHS}${name}`;
const mount = (options) =>
  mountPage(
    () => useStream({ apiUrl, apiKey: null, ...options }),
    ({ values, messages }) => ({ values, messages: messages.map((message) => message.content) }),
  );

const texts = (stream) => stream.messages.map((message) => message.content);
const human = (content) => ({ messages: [{ type: "human", content }] });

test("a chat goes on turn by turn, and each answer grows while it is written", async () => {
  const page = mount({ assistantId: graph("talk"), messagesKey: "messages", fetchStateHistory: true });
  await page.until("the hook", (stream) => !stream.isLoading);
  page.stream.submit(human("first"), { optimisticValues: (before) => ({ ...before, ...human("first") }) });
  await page.until("the answer", (stream) => !stream.isLoading && stream.messages.length === 2);
  assert.deepEqual(texts(page.stream), ["first", "one two three four five six"]);
  const parts = page.shown.map(({ messages }) => messages[1]).filter((text) => text && text !== texts(page.stream)[1]);
  assert.ok(new Set(parts).size >= 2, `the answer grew: ${JSON.stringify(parts)}`);

  page.stream.submit(human("second"));
  await page.until("the second answer", (stream) => !stream.isLoading && stream.messages.length === 4);
  assert.deepEqual(texts(page.stream).filter((_, at) => at % 2 === 0), ["first", "second"]);
  assert.equal(page.stream.error, undefined);
  // The other way in which a page learns of the thread: its history, the oldest first.
  assert.ok(page.stream.history.length >= 4);
  assert.equal(page.stream.history.at(-1).values.messages.length, 4);
  page.close();
});

test("an interrupt is shown, and answered by a resume", async () => {
  let thread;
  const page = mount({ assistantId: graph("human"), onThreadId: (id) => (thread = id) });
  await page.until("the hook", (stream) => !stream.isLoading);
  page.stream.submit({ log: [] });
  await page.until("the question", (stream) => !stream.isLoading && stream.interrupt !== undefined);
  assert.deepEqual(page.stream.interrupt.value, { question: "go on?" });
  page.stream.submit(undefined, { command: { resume: "yes" } });
  await page.until("the end", (stream) => !stream.isLoading && stream.values.log?.length === 2);
  assert.deepEqual(page.stream.values, { log: ["asked", "done"], answer: "yes" });
  assert.equal(page.stream.interrupt, undefined);
  assert.deepEqual((await client.threads.getState(thread)).next, []);
  page.close();
});

test("a page that is opened again goes on with the run it left", async () => {
  const kept = new Map();
  const storage = {
    getItem: (key) => kept.get(key) ?? null,
    setItem: (key, value) => kept.set(key, value),
    removeItem: (key) => kept.delete(key),
  };
  const { thread_id: threadId } = await client.threads.create();
  // Slow enough that it goes on while one page is closed and the other opened.
  const options = { assistantId: graph("drawl"), messagesKey: "messages", threadId, reconnectOnMount: () => storage };
  const left = mount(options);
  await left.until("the hook", (stream) => !stream.isLoading);
  left.stream.submit(human("hello"));
  await left.until("a part of the answer", (stream) => stream.messages.length === 2);
  left.close();
  assert.equal(kept.size, 1, "which run it was");

  const before = asked.length;
  const opened = mount(options);
  await opened.until("the whole answer", (stream) => !stream.isLoading && stream.messages.length === 2);
  assert.deepEqual(texts(opened.stream), ["hello", "one two three four five six"]);
  assert.equal(kept.size, 0, "nothing is left to go on with");
  const runs = await client.runs.list(threadId);
  const joined = `${apiUrl}/threads/${threadId}/runs/${runs[0].run_id}/stream`;
  assert.ok(asked.slice(before).some((url) => url.startsWith(joined)), "its stream was joined");
  assert.deepEqual(runs.map((run) => run.status), ["success"], "the one run, to its end");
  opened.close();
});

test("a run that somebody else started is joined", async () => {
  const { thread_id: threadId } = await client.threads.create();
  const page = mount({ assistantId: graph("talk"), messagesKey: "messages", threadId });
  await page.until("the hook", (stream) => !stream.isLoading);
  const run = await client.runs.create(threadId, graph("talk"), {
    input: human("from afar"),
    streamMode: ["values", "messages-tuple"],
    streamResumable: true,
  });
  await page.stream.joinStream(run.run_id, "-1");
  await page.until("the answer", (stream) => !stream.isLoading && stream.messages.length === 2);
  assert.deepEqual(texts(page.stream), ["from afar", "one two three four five six"]);
  page.close();
});

test("what a graph raises is the page's error", async () => {
  const page = mount({ assistantId: graph("broken") });
  await page.until("the hook", (stream) => !stream.isLoading);
  page.stream.submit({ log: [] });
  await page.until("the error", (stream) => !stream.isLoading && stream.error !== undefined);
  assert.match(String(page.stream.error), /it broke/);
  page.close();
});
