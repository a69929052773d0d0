// Traces with the official client the ways its users do, as a program of its own. Prints what it was asked to send.
//
//     node sender.mjs URL KEY TENANT PROJECT MODE TREES FIRST_DAY
//
// The client is found in the folder that TOWPATH_TEST_NODE_MODULES names: it is installed once and cached.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { randomUUID } from "node:crypto";

const require = createRequire(`${process.env.TOWPATH_TEST_NODE_MODULES}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { Client } = await load("langsmith");
const { traceable } = await load("langsmith/traceable");
const { RunTree } = await load("langsmith/run_trees");

const [url, key, tenant, project, mode, trees, firstDay] = process.argv.slice(2);
const ODD = ["plain", "", "ünïcödé ✓ 漢字 🦀", 'quo"te\\back', "tab\tnew\nline\r", "nul\u0000", "</script>", '{"json": [1]}', "\ud83d\ude80"];
const told = [];

const client = new Client({
  apiUrl: url,
  apiKey: key,
  workspaceId: tenant,
  // The client's own switches; everything else is as it comes.
  ...(mode === "single" ? { autoBatchTracing: false } : {}),
});

// A small generator: the same trees from the same name.
let state = [...`${project} ${mode}`].reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) >>> 0, 7);
const below = (limit) => {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return Math.floor((state / 2 ** 32) * limit);
};
const odd = () => ODD[below(ODD.length)];

// 20240228T000000000000Z<id>, with the microseconds that JavaScript does not have.
const link = (at, micros, id) =>
  `${new Date(at).toISOString().replace(/[-:.]/g, "").slice(0, 18)}${String(micros).padStart(3, "0")}Z${id}`;
const iso = (at, micros) => `${new Date(at).toISOString().slice(0, 23)}${String(micros).padStart(3, "0")}Z`;

// A root with children: some patched, some posted whole, some failed, some left open.
async function sendTree(number, midnight) {
  const rootId = randomUUID();
  const stack = [{ id: rootId, parent: undefined, above: "", depth: 0, at: midnight + (number === 0 ? 0 : below(86_000_000)) }];
  while (stack.length > 0) {
    const { id, parent, above, depth, at } = stack.pop();
    const micros = below(1000);
    const order = (above ? `${above}.` : "") + link(at, micros, id);
    const kind = ["chain", "llm", "tool", "retriever", "prompt"][below(5)];
    const place = { trace_id: rootId, dotted_order: order, ...(parent ? { parent_run_id: parent } : {}) };
    const inputs = [{ text: odd(), n: below(2 ** 31), x: below(1000) / 7, deep: { a: [1, null, true] } }, { input: 1 }][below(2)];
    const outputs = { answer: odd(), list: [0.1, 1e300, 1e21, Number.MAX_SAFE_INTEGER] };
    if (kind === "llm") {
      outputs.usage_metadata = { input_tokens: below(9999), output_tokens: below(9999), total_tokens: 12345 };
    }
    const end = {
      // Milliseconds since the epoch, as the client's own helpers send them.
      end_time: at + 1 + below(5_000),
      outputs,
      events: [{ name: "start", time: iso(at, micros) }, ...(kind === "llm" ? [{ name: "new_token", time: iso(at, micros) }] : [])],
      ...(below(4) === 0 ? { error: `boom ${odd()}` } : {}),
    };
    const fate = ["patched", "patched", "whole", "open"][below(4)];
    const name = `${kind} ${number}-${depth} ${odd()}`;
    const post = {
      id, name, inputs, run_type: kind, project_name: project, start_time: iso(at, micros),
      child_runs: [], extra: { metadata: { user: odd(), depth } }, tags: [undefined, [], ["a"], ["b", odd()]][below(4)], ...place,
      ...(below(3) === 0 ? { attachments: { picture: ["image/png", new Uint8Array([137, 80, 13, 10, 45, 45, 0, 255])] } } : {}),
    };
    if (mode === "single") {
      delete post.attachments;
    }
    await client.createRun(fate === "whole" ? { ...post, ...end } : post);
    if (fate === "patched") {
      await client.updateRun(id, { ...end, ...place, session_name: project, extra: { metadata: { patched: true } } });
    }
    told.push({ id, name });
    for (let child = depth < 2 ? below(3) : 0; child > 0; child -= 1) {
      stack.push({ id: randomUUID(), parent: id, above: order, depth: depth + 1, at: Math.min(at + below(1000), midnight + 86_399_999) });
    }
  }
}

// What most users do: wrapped functions, streams among them, and a tree by hand.
async function callTraced() {
  const wrap = (name, run_type, call) => traceable(call, { name, run_type, client, project_name: project, tracingEnabled: true });
  const leaf = wrap("leaf", "tool", async (x) => {
    if (x === 2) {
      throw new Error("two is not allowed");
    }
    return { leaf: x };
  });
  const tokens = wrap("tokens", "llm", async function* (count) {
    for (let n = 0; n < count; n += 1) {
      yield `token ${n}`;
    }
  });
  const stem = wrap("stem", "chain", async (xs) => {
    const done = [];
    for (const x of xs) {
      done.push(await leaf(x).catch((error) => error.message));
    }
    for await (const token of await tokens(3)) {
      done.push(token);
    }
    return done;
  });
  await stem([1, 2, 3]);
  const tree = new RunTree({ name: "by hand", run_type: "chain", inputs: { q: 1 }, project_name: project, client, tracingEnabled: true });
  await tree.postRun();
  const child = tree.createChild({ name: "hand child", run_type: "llm", inputs: { p: "hi" } });
  await child.postRun();
  await child.end({ o: "ho", usage_metadata: { input_tokens: 3, output_tokens: 4, total_tokens: 7 } });
  await child.patchRun();
  await tree.end({ a: 2 });
  await tree.patchRun();
  told.push(...["stem", "leaf", "leaf", "leaf", "tokens", "by hand", "hand child"].map((name) => ({ name })));
}

const day = Date.parse(`${firstDay}T00:00:00Z`);
for (let number = 0; number < Number(trees); number += 1) {
  for (let offset = 0; offset < 3; offset += 1) {
    await sendTree(number, day + offset * 86_400_000);
  }
}
await callTraced();
await client.awaitPendingTraceBatches();
process.stdout.write(JSON.stringify(told));
