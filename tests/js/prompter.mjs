// Pushes and pulls prompts with the official client, as a program of its own. Prints what it found.
//
//     node prompter.mjs URL KEY TENANT NAME

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.TOWPATH_TEST_NODE_MODULES}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { Client } = await load("langsmith");
const { ChatPromptTemplate } = await load("@langchain/core/prompts");
const [url, key, tenant, name] = process.argv.slice(2);
const client = new Client({ apiUrl: url, apiKey: key, workspaceId: tenant, webUrl: url });

const collect = async (asked) => {
  const found = [];
  for await (const one of asked) found.push(one);
  return found;
};

const existed = await client.promptExists(name);
const first = ChatPromptTemplate.fromMessages([["system", "You keep a lock."], ["human", "{question}"]]);
const second = ChatPromptTemplate.fromMessages([["system", "Open the gate."], ["human", "{question}"]]);
await client.pushPrompt(name, { object: first, description: "a lock keeper", tags: ["water"], commitTags: ["production"] });
const address = await client.pushPrompt(name, { object: second, commitDescription: "shorter" });
const commits = await collect(client.listCommits(name));
const pull = async (version) => (await client.pullPromptCommit(`${name}${version}`, { skipCache: true })).manifest;
const text = (manifest) => manifest.kwargs.messages[0].kwargs.prompt.kwargs.template;
const texts = [text(await pull("")), text(await pull(":production")), text(await pull(`:${commits[0].commit_hash.slice(0, 8)}`))];
await client.updatePrompt(name, { description: "keeps locks" });
const listed = await collect(client.listPrompts({ query: name }));
const liked = await client.likePrompt(name);
const unliked = await client.unlikePrompt(name);
await client.deletePrompt(name);
console.log(JSON.stringify({
  existed, address, texts, commits: commits.map((one) => one.description), parent: commits[0].parent_commit_hash === commits[1].commit_hash,
  listed: listed.map((one) => [one.repo_handle, one.description, one.num_commits]), likes: [liked.likes, unliked.likes],
  gone: await client.getPrompt(name),
}));
