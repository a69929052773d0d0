// The agent server through the official JavaScript client of the Agent2Agent protocol. TOWPATH_AGENT_URL says where it is, and
// TOWPATH_AGENT_GRAPHS what the names of its graphs begin with; tests/python/agent starts it and this.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";

import {
  CancelTaskRequest,
  DeleteTaskPushNotificationConfigRequest,
  GetTaskPushNotificationConfigRequest,
  GetTaskRequest,
  ListTaskPushNotificationConfigsRequest,
  ListTasksRequest,
  SendMessageRequest,
  SubscribeToTaskRequest,
  TaskPushNotificationConfig,
  TaskState,
} from "@a2a-js/sdk";
import { ClientFactory, JsonRpcTransportFactory } from "@a2a-js/sdk/client";

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

test("a stream of a question goes on with its answer", async () => {
  const client = await connect("human");
  const asked = await client.sendMessage(says({ data: { log: [] } }));
  const stream = client.resubscribeTask(SubscribeToTaskRequest.fromJSON({ id: asked.id }));
  const first = (await stream.next()).value.payload.value;
  assert.equal(first.status.state, TaskState.TASK_STATE_INPUT_REQUIRED);
  const answering = client.sendMessage(says({ text: "yes" }, { taskId: asked.id }));
  const rest = await collect(stream);
  assert.equal(rest.at(-1).value.status.state, TaskState.TASK_STATE_COMPLETED);
  assert.equal((await answering).id, asked.id);
  const over = client.resubscribeTask(SubscribeToTaskRequest.fromJSON({ id: asked.id }));
  await assert.rejects(over.next(), /has ended/);
});

test("tasks of a context are listed, and addresses of a task are told and forgotten", async () => {
  const client = await connect("agent");
  const contextId = `js-${randomUUID()}`;
  const ids = [];
  for (const text of ["one", "two"]) {
    const task = await client.sendMessage(says({ text }, { contextId }));
    assert.equal(task.contextId, contextId);
    ids.unshift(task.id);
  }
  const page = await client.listTasks(ListTasksRequest.fromJSON({ contextId, pageSize: 1 }));
  const next = await client.listTasks(ListTasksRequest.fromJSON({ contextId, pageToken: page.nextPageToken }));
  assert.deepEqual([...page.tasks, ...next.tasks].map((task) => task.id), ids);
  assert.equal(next.nextPageToken, "");

  const place = { taskId: ids[0], id: "mine" };
  const config = TaskPushNotificationConfig.fromJSON({ ...place, url: "https://hooks.example.com/a", token: "t0ken" });
  const made = await client.createTaskPushNotificationConfig(config);
  assert.deepEqual([made.taskId, made.id, made.url, made.token], [ids[0], "mine", "https://hooks.example.com/a", ""]);
  const found = await client.getTaskPushNotificationConfig(GetTaskPushNotificationConfigRequest.fromJSON(place));
  assert.equal(found.url, made.url);
  await client.deleteTaskPushNotificationConfig(DeleteTaskPushNotificationConfigRequest.fromJSON(place));
  const all = ListTaskPushNotificationConfigsRequest.fromJSON({ taskId: ids[0] });
  assert.deepEqual((await client.listTaskPushNotificationConfig(all)).configs, []);
});

test("a client of version 0.3 is served in its version", async () => {
  const body = { graph_id: graph("human"), metadata: { a2a: { versions: ["0.3"] } } };
  const request = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  const made = await fetch(`${process.env.TOWPATH_AGENT_URL}/assistants`, request);
  const { assistant_id: id } = await made.json();
  const url = `${process.env.TOWPATH_AGENT_URL}/a2a/${id}/`;
  const older = new ClientFactory({ transports: [new JsonRpcTransportFactory({ legacyCompat: { enabled: true } })] });
  const client = await older.createFromUrl(url);
  const asked = await client.sendMessage(says({ data: { log: [] } }));
  assert.equal(asked.status.state, TaskState.TASK_STATE_INPUT_REQUIRED);
  const events = await collect(client.sendMessageStream(says({ text: "yes" }, { taskId: asked.id })));
  assert.equal(events.at(-1).value.status.state, TaskState.TASK_STATE_COMPLETED);
  const read = await client.getTask(GetTaskRequest.fromJSON({ id: asked.id }));
  assert.equal(read.artifacts[0].parts[0].content.value.answer, "yes");
  await assert.rejects(client.cancelTask(CancelTaskRequest.fromJSON({ id: asked.id })), /has ended/);
  // It has no other version.
  const newer = await new ClientFactory().createFromUrl(url);
  await assert.rejects(newer.sendMessage(says({ data: { log: [] } })), /not supported/);
});
