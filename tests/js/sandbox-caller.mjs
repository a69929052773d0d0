// Does with sandboxes what the official client can, as a program of its own, and prints which public methods it called
// and which it did not.
//
//     node sandbox-caller.mjs URL KEY PREFIX
//
// The client is found in the folder that TOWPATH_TEST_NODE_MODULES names: it is installed once and cached.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.TOWPATH_TEST_NODE_MODULES}/`);
const sdk = await import(pathToFileURL(require.resolve("langsmith-newest/sandbox")).href);

const [url, key, prefix] = process.argv.slice(2);
const endpoint = `${url}/api/v2/sandboxes`;

// Every public method and accessor of these classes has to be called.
const CLASSES = ["SandboxClient", "Sandbox", "CommandHandle", "ServiceUrl"];
// The client calls them itself, for headers of its connections.
const INNER = ["SandboxClient.getApiKey", "SandboxClient.getDefaultHeaders", "Sandbox.requireDataplaneUrl"];
const missing = new Set();
for (const name of CLASSES) {
  const prototype = sdk[name].prototype;
  for (const [member, about] of Object.entries(Object.getOwnPropertyDescriptors(prototype))) {
    const full = `${name}.${member}`;
    if (member === "constructor" || member.startsWith("_") || INNER.includes(full)) continue;
    missing.add(full);
    const part = about.get ? "get" : "value";
    const own = about[part];
    const counted = function (...parameters) {
      missing.delete(full);
      return own.apply(this, parameters);
    };
    Object.defineProperty(prototype, member, { ...about, [part]: counted });
  }
}

const text = (bytes) => new TextDecoder().decode(bytes);
const names = (list) => list.map((item) => item.name);

const client = new sdk.SandboxClient({ apiEndpoint: endpoint, apiKey: key });
assert.match(client.toString(), /LangSmithSandboxClient/);
assert.ok(!`${client}`.includes(key));

async function commands(box) {
  const result = await box.run("echo out; echo err >&2; exit 3");
  assert.deepEqual(result, { stdout: "out\n", stderr: "err\n", exit_code: 3 });
  const placed = await box.run("echo $NAME; pwd", { env: { NAME: "value" }, cwd: "/tmp" });
  assert.equal(placed.stdout, "value\n/tmp\n");
  const configured = await box.run("echo $NAME; pwd", { runConfig: { work_dir: "/var/tmp", env_vars: { NAME: "other" } } });
  assert.equal(configured.stdout, "other\n/var/tmp\n");
  const chunks = [];
  const errors = [];
  const streamed = await box.run("for i in 1 2 3; do echo $i; echo e$i >&2; done", {
    onStdout: (data) => chunks.push(data),
    onStderr: (data) => errors.push(data),
  });
  assert.equal(chunks.join(""), streamed.stdout);
  assert.equal(errors.join(""), "e1\ne2\ne3\n");
  const big = "çanal-運河-".repeat(20_000);
  await box.write("big", big);
  assert.equal((await box.run("cat big", { timeout: 120 })).stdout, big);
  await assert.rejects(box.run("sleep 60", { timeout: 1 }), sdk.LangSmithCommandTimeoutError);
  // The same id never runs twice.
  const commandId = randomUUID().replaceAll("-", "");
  for (let attempt = 0; attempt < 2; attempt += 1) {
    const once = await box.run("echo x >> count; cat count", { commandId });
    assert.equal(once.stdout, "x\n");
  }
  const terminal = await box.run("test -t 0 && echo a terminal", { pty: true });
  assert.match(terminal.stdout, /a terminal/);
  const numbers = await Promise.all([...Array(8).keys()].map((n) => box.run(`sleep 0.2; echo ${n}`)));
  assert.deepEqual(numbers.map((one) => one.stdout), [...Array(8).keys()].map((n) => `${n}\n`));
}

// Without the end of a loop, which would close the connection.
const nextChunk = async (handle) => (await handle[Symbol.asyncIterator]().next()).value;

async function handles(box) {
  const reader = await box.run("echo first; cat", { wait: false, closeInput: false });
  assert.ok(reader.pid > 0 && reader.commandId);
  reader.sendInput("a line\n");
  reader.closeInput();
  assert.equal((await reader.result).stdout, "first\na line\n");
  assert.equal(reader.lastStdoutOffset, "first\na line\n".length);
  assert.equal(reader.lastStderrOffset, 0);

  const sleeper = await box.run("echo begun; sleep 600", { wait: false });
  assert.equal((await nextChunk(sleeper)).data, "begun\n");
  sleeper.kill();
  assert.equal((await sleeper.result).exit_code, 137);

  const slow = await box.run("for i in 1 2 3; do echo $i; done; sleep 1; echo end", { wait: false });
  const first = await nextChunk(slow);
  const rest = await (await slow.reconnect()).result;
  assert.equal(first.data + rest.stdout, "1\n2\n3\nend\n");
  const again = await box.reconnect(slow.commandId, { stdoutOffset: 2 });
  assert.equal((await again.result).stdout, "2\n3\nend\n");
}

async function files(box) {
  const content = new Uint8Array(1 << 20).map((_, index) => index % 251);
  await box.write("folder/data.bin", content);
  assert.deepEqual(await box.read("folder/data.bin"), content);
  await assert.rejects(box.read("nothing"), sdk.LangSmithResourceNotFoundError);
  const stat = await box.stat("folder/data.bin");
  assert.equal(stat.size_bytes, content.length);
  const middle = await box.readRange("folder/data.bin", { start: 10, end: 19, ifRange: stat.etag });
  assert.deepEqual([middle.content, middle.start, middle.total_bytes, middle.partial],
    [content.slice(10, 20), 10, content.length, true]);
  const end = await box.readRange("folder/data.bin", { suffixBytes: 5 });
  assert.deepEqual(end.content, content.slice(-5));
  const same = await box.readRange("folder/data.bin", { start: 0, ifNoneMatch: stat.etag });
  assert.equal(same.unchanged, true);
  const past = box.readRange("folder/data.bin", { start: content.length });
  await assert.rejects(past, sdk.LangSmithSandboxOperationError);
  await box.write("folder/a.py", "import this\n");
  const home = (await box.run("pwd")).stdout.trim();
  const found = await box.glob("*.py", `${home}/folder`);
  assert.deepEqual(found.matches.map((entry) => entry.path), [`${home}/folder/a.py`]);
  const listed = await box.ls(`${home}/folder`, { limit: 1 });
  assert.deepEqual([listed.matches.length, listed.truncated], [1, true]);
  const lines = await box.grep("import", `${home}/folder`, { glob: "*.py" });
  assert.deepEqual(lines.matches.map((one) => [one.line, one.text]), [[1, "import this"]]);
}

async function links(box) {
  await box.write("/tmp/page", "from the box");
  await box.run("nohup python3 -m http.server 8099 --directory /tmp >/dev/null 2>&1 & echo on");
  await box.run("until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8099))' 2>/dev/null; do :; done");
  const service = await client.serviceUrl(box.name, { port: 8099, expiresInSeconds: 300 });
  assert.equal(await (await service.fetch("/page")).text(), "from the box");
  assert.equal((await fetch(`${await service.serviceUrl()}/page`)).status, 401);
  assert.ok((await service.browserUrl()).includes(await service.token()));
  assert.ok(Date.parse(await service.expiresAt()) > Date.now());
  assert.deepEqual([await service.embedUrl(), service.embedOrigins], ["", []]);
  const login = client.serviceUrl(box.name, { port: 8099, access: "workspace" });
  await assert.rejects(login, /access of a service URL is not available/);

  const options = { expiresInSeconds: 300, contentType: "text/plain", contentDisposition: "inline" };
  const link = await box.generateDownloadURL("/tmp/page", options);
  const answer = await fetch(link.download_url);
  assert.deepEqual([await answer.text(), answer.headers.get("content-type")], ["from the box", "text/plain"]);
  const lasting = await client.generateDownloadURL(box.name, "/tmp/page");
  assert.equal(lasting.expires_at, null);
}

async function lifecycle(box) {
  await box.write("kept", "over a stop");
  await box.stop();
  assert.equal((await client.getSandboxStatus(box.name)).status, "stopped");
  // A request starts it again.
  assert.equal(text(await box.read("kept")), "over a stop");
  await client.stopSandbox(box.name);
  assert.equal((await client.startSandbox(box.name)).status, "ready");
  await box.stop();
  await box.start();
  assert.equal(box.status, "ready");

  const renamed = await client.updateSandbox(box.name, `${prefix}-renamed`);
  assert.equal(renamed.name, `${prefix}-renamed`);
  const changed = await client.updateSandbox(renamed.name, {
    newName: box.name,
    idleTtlSeconds: 1200,
    deleteAfterStopSeconds: 3600,
    runConfig: { work_dir: "/tmp" },
  });
  assert.deepEqual([changed.id, changed.idle_ttl_seconds, changed.delete_after_stop_seconds], [box.id, 1200, 3600]);

  const other = `${prefix}-other`;
  const later = await client.createSandbox({ name: other, waitForReady: false, persistent: true, idleTtlSeconds: 0 });
  assert.equal((await client.waitForSandbox(other)).id, later.id);
  const taken = client.updateSandbox(other, { newName: box.name });
  await assert.rejects(taken, sdk.LangSmithResourceNameConflictError);
  await later.delete();
}

// Until what happens in the background is over.
async function eventually(attempt) {
  for (const deadline = Date.now() + 120_000; ; ) {
    try {
      return await attempt();
    } catch (error) {
      if (Date.now() > deadline) throw error;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
}

async function snapshots(box) {
  await box.write("kept", "in a snapshot");
  const captured = await box.captureSnapshot(`${prefix}-snapshot`);
  assert.equal(captured.status, "ready");
  const fork = await client.createSandbox(captured.id, { name: `${prefix}-fork` });
  assert.equal(fork.snapshot_id, captured.id);
  assert.equal(text(await fork.read("kept")), "in a snapshot");
  const refused = client.deleteSnapshot(captured.id);
  await assert.rejects(refused, sdk.LangSmithSandboxError);
  await fork.delete();
  const second = await client.captureSnapshot(box.name, `${prefix}-second`);
  const named = await client.createSandbox({ name: `${prefix}-named`, snapshotName: `${prefix}-second` });
  await client.deleteSandbox(named.name);
  const found = await client.listSnapshots({ nameContains: prefix, limit: 10, offset: 0 });
  assert.deepEqual(names(found).sort(), [`${prefix}-second`, `${prefix}-snapshot`]);
  for (const snapshot of [captured, second]) {
    assert.equal((await client.getSnapshot(snapshot.id)).name, snapshot.name);
    assert.equal((await client.waitForSnapshot(snapshot.id)).status, "ready");
    // A box that is being removed still uses it.
    await eventually(() => client.deleteSnapshot(snapshot.id));
  }
  const isGone = () => assert.rejects(client.getSnapshot(captured.id), sdk.LangSmithResourceNotFoundError);
  await eventually(isGone);

  // The driver has the machine's own image, under names of usual ones.
  const built = await client.createSnapshot(`${prefix}-python`, "python:3.12-slim", 2 ** 30);
  assert.equal(built.docker_image, "python:3.12-slim");
  await client.deleteSnapshot(built.id);
  const foreign = client.createSnapshot(`${prefix}-foreign`, "10.255.255.1:5000/own:1", 2 ** 30);
  await assert.rejects(foreign, /the registry cannot be called/);
}

async function dockerfile() {
  const context = await mkdtemp(join(tmpdir(), "towpath-context."));
  await writeFile(join(context, "Dockerfile"), "FROM scratch\n");
  // The client builds in a box as its user, for whom the image would have to be prepared.
  const build = client.createSnapshotFromDockerfile(`${prefix}-built`, "Dockerfile", { context });
  await assert.rejects(build, sdk.LangSmithSandboxError);
  await rm(context, { recursive: true });
  assert.ok(!names(await client.listSandboxes()).some((name) => name.startsWith("snapshot-builder-")));
}

async function registries() {
  const { registries: known } = client;
  const name = `${prefix}-registry`;
  const made = await known.create({ name, url: "registry.example.com", username: "robot", password: "hidden" });
  assert.ok(!JSON.stringify(made).includes("hidden"));
  assert.equal((await known.retrieve(name)).id, made.id);
  assert.equal((await known.update(name, { url: "other.example.com" })).url, "other.example.com");
  assert.ok(names((await known.list()).items).includes(name));
  await known.delete(name);
  await assert.rejects(known.retrieve(name));
}

async function network() {
  const seen = [];
  const server = createServer((request, response) => {
    seen.push(request.headers["x-agent"]);
    response.end("reached");
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  const headers = [{ name: "X-Agent", type: "plaintext", value: "canal" }];
  const box = await client.createSandbox({
    name: `${prefix}-network`,
    proxyConfig: {
      rules: [{ name: "who", type: "attribution", headers }],
      access_control: { allow_list: [`127.0.0.1:${port}`] },
    },
  });
  const script = `import urllib.request as u; print(u.urlopen("http://127.0.0.1:${port}/", timeout=20).read().decode())`;
  const fetchIt = `env -u NO_PROXY -u no_proxy python3 -c '${script}'`;
  assert.equal((await box.run(fetchIt)).stdout, "reached\n");
  await client.updateSandbox(box.name, { proxyConfig: { rules: [] } });
  const closed = await box.run(fetchIt);
  assert.ok(closed.exit_code !== 0 && closed.stderr.includes("403"), closed.stderr);
  assert.deepEqual(seen, ["canal"]);
  await box.delete();
  server.close();
}

async function refusals() {
  const mount = sdk.gitMount({ id: "code", mountPath: "/code", remoteUrl: "https://example.com/code.git" });
  for (const [options, said] of [
    [{ mountConfig: sdk.mountConfig({ mounts: [mount] }) }, /mount_config/],
    [{ accessDelegation: { mode: "INHERIT" } }, /access_delegation/],
    [{ preserveMemoryOnStop: true }, /memory/],
    [{ restoreMemory: true }, /memory/],
  ]) {
    await assert.rejects(client.createSandbox({ name: `${prefix}-refused`, ...options }), (error) => {
      assert.ok(error instanceof sdk.LangSmithSandboxError, error);
      assert.match(error.message, said);
      return true;
    });
  }
  await assert.rejects(client.getSandbox(`${prefix}-nothing`), sdk.LangSmithResourceNotFoundError);
  await assert.rejects(client.deleteSandbox(`${prefix}-nothing`), sdk.LangSmithResourceNotFoundError);
  const stranger = new sdk.SandboxClient({ apiEndpoint: endpoint, apiKey: "unknown", maxRetries: 0 });
  await assert.rejects(stranger.createSandbox(), sdk.LangSmithSandboxAuthenticationError);
}

const box = await client.createSandbox({ name: `${prefix}-box`, labels: { of: prefix } });
assert.deepEqual([box.status, box.labels], ["ready", { of: prefix }]);
assert.equal((await client.getSandbox(box.name)).id, box.id);
assert.ok(names(await client.listSandboxes()).includes(box.name));
await commands(box);
await handles(box);
await files(box);
await links(box);
await snapshots(box);
await lifecycle(box);
await box.delete();
await assert.rejects(client.getSandbox(box.name), sdk.LangSmithResourceNotFoundError);
await dockerfile();
await registries();
await network();
await refusals();
console.log(JSON.stringify([...missing]));
