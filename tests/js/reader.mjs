// Reads traces back with the official client, as a program of its own. Prints what it found.
//
//     node reader.mjs URL KEY TENANT PROJECT

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.TOWPATH_TEST_NODE_MODULES}/`);
const { Client } = await import(pathToFileURL(require.resolve("langsmith")).href);
const [url, key, tenant, project] = process.argv.slice(2);
const client = new Client({ apiUrl: url, apiKey: key, workspaceId: tenant, autoBatchTracing: false });

const collect = async (asked) => {
  const found = [];
  for await (const one of asked) found.push(one);
  return found;
};

const start = Date.parse("2026-02-03T12:00:00Z");
const run = crypto.randomUUID();
await client.createRun({
  id: run, name: "js", run_type: "chain", project_name: project, inputs: { a: 1 }, start_time: start,
  extra: { metadata: { who: "js" } },
});
await client.updateRun(run, { outputs: { b: 2 }, end_time: start + 1500 });
const read = await client.readRun(run);
const filter = 'and(eq(metadata_key, "who"), eq(metadata_value, "js"))';
const listed = await collect(client.listRuns({ projectName: project, filter }));
const none = await collect(client.listRuns({ projectName: project, error: true }));
await client.createFeedback(run, "good", { score: 1 });
const link = await client.createPresignedFeedbackToken(run, "liked", { expiration: { hours: 1 } });
const links = await collect(client.listPresignedFeedbackTokens(run));
// As a page does it, without a key.
const headers = { "content-type": "application/json" };
const liked = await fetch(link.url, { method: "POST", headers, body: JSON.stringify({ score: 1 }) });
const given = await collect(client.listFeedback({ runIds: [run] }));
const known = await client.readProject({ projectName: project });
const stats = await client.getRunStats({ projectNames: [project] });
console.log(JSON.stringify({
  run, outputs: read.outputs, status: read.status, listed: listed.map((one) => one.id), none: none.length,
  given: given.map((one) => [one.key, one.score]), liked: liked.status,
  links: links.map((one) => one.url), link: link.url, name: known.name, count: stats.run_count,
}));
