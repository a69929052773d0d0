// Evaluates two targets on a dataset with the official client and compares them, as a program of its own. Prints what
// it saw.
//
//     node evaluator.mjs PACKAGE URL KEY TENANT NAME

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.TOWPATH_TEST_NODE_MODULES}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const [release, url, key, tenant, name] = process.argv.slice(2);
const { Client } = await load(release);
const { evaluate } = await load(`${release}/evaluation`);
const { traceable } = await load(`${release}/traceable`);
const client = new Client({ apiUrl: url, apiKey: key, workspaceId: tenant, webUrl: url });

const collect = async (asked) => {
  const found = [];
  for await (const one of asked) found.push(one);
  return found;
};

const dataset = await client.createDataset(name, { description: "questions", metadata: { of: "evaluator" } });
await client.createExamples(["lock", "boat", "canal"].map((question) => ({
  dataset_id: dataset.id,
  inputs: { question },
  outputs: { answer: question },
  metadata: { length: question.length },
  split: question === "lock" ? "test" : "train",
  attachments: { note: { mimeType: "text/plain", data: new TextEncoder().encode(question) } },
})));

// A run within the run of the example.
const look = traceable(async (text) => text, { name: "look", run_type: "tool" });
const echo = async ({ question }) => ({ answer: await look(question) });
const shout = async ({ question }) => ({ answer: question.toUpperCase() });
const exact = async ({ outputs, referenceOutputs }) => (
  { key: "exact", score: Number(outputs.answer === referenceOutputs.answer) }
);
const passed = async ({ outputs, referenceOutputs }) => {
  const right = outputs.filter((said, at) => said.answer === referenceOutputs[at].answer);
  return { key: "passed", score: right.length / outputs.length };
};
const louder = async ({ runs }) => ({
  key: "louder",
  scores: Object.fromEntries(runs.map(({ id, outputs }) => [id, Number(outputs.answer === outputs.answer.toUpperCase())])),
});

const first = await evaluate(echo, {
  data: name, evaluators: [exact], summaryEvaluators: [passed], experimentPrefix: "echo", client, maxConcurrency: 2,
});
const second = await evaluate(shout, {
  data: client.listExamples({ datasetName: name, splits: ["train"] }), evaluators: [exact], experimentPrefix: "shout", client,
});
const compared = await evaluate([first, second], { evaluators: [louder], client });

const project = await client.readProject({ projectName: first.experimentName, includeStats: true });
const examples = await collect(client.listExamples({ datasetId: dataset.id, includeAttachments: true }));
const attached = {};
for (const example of examples) {
  // Links are paths, which only newer releases make whole.
  const file = await fetch(new URL(example.attachments.note.presigned_url, url));
  attached[example.inputs.question] = await file.text();
}
const [example] = await collect(client.listExamples({ datasetId: dataset.id, splits: ["test"] }));
const version = await client.readDatasetVersion({ datasetId: dataset.id, tag: "latest" });
await client.updateDatasetTag({ datasetId: dataset.id, asOf: version.as_of, tag: "prod" });
await client.updateExample(example.id, { outputs: { answer: "gate" } });
await client.updateDatasetSplits({ datasetId: dataset.id, splitName: "hard", exampleIds: [example.id] });
const difference = await client.diffDatasetVersions({ datasetId: dataset.id, fromVersion: "prod", toVersion: "latest" });
const [before] = await collect(client.listExamples({ datasetId: dataset.id, exampleIds: [example.id], asOf: "prod" }));
const seen = {
  rows: first.results.map((row) => row.example.inputs.question).sort(),
  exact: first.results.map((row) => row.evaluationResults.results[0].score),
  loud: second.results.map((row) => row.run.outputs.answer).sort(),
  compared: compared.results.map((result) => Object.values(result.scores).sort()),
  address: compared.url.startsWith(`${url}/o/${tenant}/datasets/${dataset.id}/compare?selectedSessions=`),
  counted: [project.run_count, project.feedback_stats.exact.n, project.session_feedback_stats.passed.avg],
  attached,
  modified: difference.examples_modified.length === 1 && difference.examples_modified[0] === example.id,
  before: before.outputs,
  after: (await client.readExample(example.id)).outputs,
  splits: (await client.listDatasetSplits({ datasetId: dataset.id })).sort(),
  experiments: (await collect(client.listProjects({ referenceDatasetId: dataset.id }))).length,
};
await client.deleteDataset({ datasetId: dataset.id });
seen.gone = !(await client.hasDataset({ datasetName: name }));
console.log(JSON.stringify(seen));
