// The hook of @langchain/react, which speaks the thread-centric streaming protocol, in a real React on a DOM without a browser.
import assert from "node:assert/strict";
import { test } from "node:test";

// Before the hook: React looks for a DOM when it is loaded.
import { mount as mountPage } from "./react-page.mjs";

const { useStream } = await import("@langchain/react");

const apiUrl = process.env.TOWPATH_AGENT_URL;
const graph = (name) => `${process.env.TOWPATH_AGENT_GRAPHS}${name}`;
const mount = (options) =>
  mountPage(
    () => useStream({ apiUrl, ...options }),
    (stream) => stream.messages.map((message) => message.text),
  );

test("an answer grows while it is written, and the chat goes on", async () => {
  const page = mount({ assistantId: graph("talk") });
  await page.until("the hook", (stream) => !stream.isLoading);
  page.stream.submit({ messages: [{ type: "human", content: "first" }] });
  const whole = "one two three four five six";
  // The end of the run and the last part of the text are rendered in either order.
  await page.until("the answer", (stream) => !stream.isLoading && stream.messages[1]?.text === whole);
  assert.deepEqual(page.shown.at(-1), ["first", whole]);
  const parts = new Set(page.shown.map((texts) => texts[1]).filter((text) => text && text !== whole));
  // Chunks that arrive together are rendered together.
  assert.ok(parts.size >= 1, `the answer grew: ${JSON.stringify([...parts])}`);
  page.stream.submit({ messages: [{ type: "human", content: "second" }] });
  await page.until("the second answer", (stream) => !stream.isLoading && stream.messages.length === 4);
  assert.equal(page.stream.error, undefined);
  page.close();
});

test("an interrupt is shown and answered", async () => {
  const page = mount({ assistantId: graph("human") });
  await page.until("the hook", (stream) => !stream.isLoading);
  page.stream.submit({ log: [] });
  await page.until("the question", (stream) => !stream.isLoading && stream.interrupt !== undefined);
  assert.deepEqual(page.stream.interrupt.value, { question: "go on?" });
  page.stream.respond("yes");
  await page.until("the end", (stream) => !stream.isLoading && stream.values.log?.length === 2);
  // The hook adds `messages` to the values of every graph.
  const { log, answer } = page.stream.values;
  assert.deepEqual({ log, answer }, { log: ["asked", "done"], answer: "yes" });
  page.close();
});
