// The hook of @langchain/react, which speaks the thread-centric streaming protocol, in a real React on a DOM without a browser.
import assert from "node:assert/strict";
import { after, test } from "node:test";

import { JSDOM } from "jsdom";

// React looks for these when it is loaded.
const dom = new JSDOM("<!doctype html><div id='root'></div>", { url: "http://localhost/" });
globalThis.window = dom.window;
globalThis.document = dom.window.document;
// Node has one of its own from version 21 on, which cannot be set.
globalThis.navigator ??= dom.window.navigator;
const { createElement } = await import("react");
const { createRoot } = await import("react-dom/client");
const { useStream } = await import("@langchain/react");

const apiUrl = process.env.TOWPATH_AGENT_URL;
const graph = (name) => `${process.env.TOWPATH_AGENT_GRAPHS}${name}`;
const PATIENCE_MS = 15_000;
const mounted = new Set();

after(() => {
  for (const page of [...mounted]) page.close();
  dom.window.close();
});

/** A page that shows a thread: what the hook gave it last, and the texts of the messages it was shown. */
function mount(options) {
  const root = createRoot(document.createElement("div"));
  const page = { stream: undefined, shown: [], waiting: new Set() };
  function Page() {
    page.stream = useStream({ apiUrl, ...options });
    page.shown.push(page.stream.messages.map((message) => message.text));
    queueMicrotask(() => [...page.waiting].forEach((look) => look()));
    return createElement("p", null, JSON.stringify(page.stream.values));
  }
  page.close = () => {
    mounted.delete(page);
    root.unmount();
  };
  /** Waits for a rendering of which `holds` is true. */
  page.until = (what, holds) =>
    new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        page.waiting.delete(check);
        const { values, isLoading, error } = page.stream ?? {};
        reject(new Error(`never came: ${what}; ${JSON.stringify({ values, isLoading, error: String(error) })}`));
      }, PATIENCE_MS);
      function check() {
        if (page.stream === undefined || !holds(page.stream)) return;
        clearTimeout(timer);
        page.waiting.delete(check);
        resolve(page.stream);
      }
      page.waiting.add(check);
      check();
    });
  mounted.add(page);
  root.render(createElement(Page));
  return page;
}

test("an answer grows while it is written, and the chat goes on", async () => {
  const page = mount({ assistantId: graph("talk") });
  await page.until("the hook", (stream) => !stream.isLoading);
  page.stream.submit({ messages: [{ type: "human", content: "first" }] });
  await page.until("the answer", (stream) => !stream.isLoading && stream.messages.length === 2);
  const whole = "one two three four five six";
  assert.deepEqual(page.shown.at(-1), ["first", whole]);
  const parts = new Set(page.shown.map((texts) => texts[1]).filter((text) => text && text !== whole));
  assert.ok(parts.size >= 2, `the answer grew: ${JSON.stringify([...parts])}`);
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
