// The agent server through the official JavaScript client of the Agent2Agent protocol. TOWPATH_AGENT_URL says where it is, and
// TOWPATH_AGENT_GRAPHS what the names of its graphs begin with; tests/python/agent starts it and this.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";

import { GetTaskRequest, CancelTaskRequest, SendMessageRequest, SubscribeToTaskRequest, TaskState } from "@a2a-js/sdk";
import { ClientFactory } from "@a2a-js/sdk/client";

const graph = (name) => `${process.env.TOWPATH_AGENT_GRAPHS}${name}`;
const connect = (name) => new ClientFactory().createFromUrl(`${process.env.TOWPATH_AGENT_URL}/a2a/${graph(name)}/`);

function says(part, more = {}) {
  return SendMessageRequest.fromJSON({
    message: { messageId: randomUUID(), role: "ROLE_USER", parts: [part], ...more },
  });
}

async function collect(stream) {
  const events = [];
  for await (const event of stream) events.push(event.payload);
  return events;
}

test("a message becomes a task", async () => {
  const client = await connect("agent");
  const task = await client.sendMessage(says({ text: "hello there" }));
  assert.equal(task.status.state, TaskState.TASK_STATE_COMPLETED);
  assert.match(task.artifacts[0].parts[0].content.value, /hello there/);
  const read = await client.getTask(GetTaskRequest.fromJSON({ id: task.id }));
  assert.equal(read.history.length, 2);
});

test("a stream tells of a task to its end, and can be subscribed to again", async () => {
  const client = await connect("talk");
  const events = await collect(client.sendMessageStream(says({ text: "go" })));
  assert.equal(events[0].$case, "task");
  assert.equal(events.at(-1).$case, "statusUpdate");
  assert.equal(events.at(-1).value.status.state, TaskState.TASK_STATE_COMPLETED);
  assert.equal(events.at(-2).value.artifact.parts[0].content.value, "one two three four five six");

  const slow = await connect("drawl");
  const stream = slow.sendMessageStream(says({ text: "go" }));
  const first = (await stream.next()).value.payload.value;
  await stream.return();
  const rest = await collect(slow.resubscribeTask(SubscribeToTaskRequest.fromJSON({ id: first.id })));
  assert.equal(rest[0].value.id, first.id);
  assert.equal(rest.at(-1).value.status.state, TaskState.TASK_STATE_COMPLETED);
});

test("a question is answered, and what is over cannot be canceled", async () => {
  const client = await connect("human");
  const asked = await client.sendMessage(says({ data: { log: [] } }));
  assert.equal(asked.status.state, TaskState.TASK_STATE_INPUT_REQUIRED);
  const ended = await client.sendMessage(says({ text: "yes" }, { taskId: asked.id, contextId: asked.contextId }));
  assert.equal(ended.id, asked.id);
  assert.equal(ended.status.state, TaskState.TASK_STATE_COMPLETED);
  await assert.rejects(client.cancelTask(CancelTaskRequest.fromJSON({ id: asked.id })), /has ended/);
});
