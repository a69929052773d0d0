// A page of React on a DOM without a browser, which shows what a hook gives it.
import { after } from "node:test";

import { JSDOM } from "jsdom";

// React looks for these when it is loaded.
const dom = new JSDOM("<!doctype html><div id='root'></div>", { url: "http://localhost/" });
globalThis.window = dom.window;
globalThis.document = dom.window.document;
// Node has one of its own from version 21 on, which cannot be set.
globalThis.navigator ??= dom.window.navigator;
const { createElement } = await import("react");
const { createRoot } = await import("react-dom/client");

const PATIENCE_MS = 15_000;
const mounted = new Set();

after(() => {
  for (const page of [...mounted]) page.close();
  dom.window.close();
});

/** A page that shows a thread: what the hook gave it last, and `shows` of all it was given. */
export function mount(hook, shows) {
  const root = createRoot(document.createElement("div"));
  const page = { stream: undefined, shown: [], waiting: new Set() };
  const look = () => {
    for (const check of [...page.waiting]) check();
  };
  function Page() {
    page.stream = hook();
    page.shown.push(shows(page.stream));
    queueMicrotask(look);
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
