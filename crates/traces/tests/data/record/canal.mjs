// Traces a small made-up application with the official client. See README.md.
import { Client } from "langsmith"; import { traceable } from "langsmith/traceable"; import { RunTree } from "langsmith/run_trees";
const client = new Client({ apiUrl: process.argv[2], apiKey: "lsv2_pt_fixture_key_for_recordings" });
const llm = traceable(async (m) => ({ role: "assistant", content: "Un chemin de halage.", usage_metadata: { input_tokens: 31, output_tokens: 9, total_tokens: 40 } }), { name: "llm", run_type: "llm", client, project_name: "canal-js", tracingEnabled: true, metadata:{ls_provider:"openai",ls_model_name:"gpt-test"} });
const boom = traceable(async (n) => { throw new Error("no water"); }, { name: "boom", run_type: "tool", client, project_name: "canal-js", tracingEnabled: true });
const chain = traceable(async (q) => { const m = await llm([{role:"user",content:q}]); try { await boom(1) } catch {} return m.content; }, { name: "chain", run_type: "chain", client, project_name: "canal-js", tracingEnabled: true, tags: ["js"] });
await chain("qu'est-ce ?"); await chain("encore");
await client.awaitPendingTraceBatches(); await new Promise(r=>setTimeout(r,500));
