#!/usr/bin/env python3
"""Apply a rename map with rust-analyzer. usage: rename.py ROOT MAP.tsv LOG"""
import json, os, re, subprocess, sys, threading, time, queue, urllib.parse
root, mapfile, logfile = sys.argv[1:4]
root = os.path.realpath(root)
log = open(logfile, "a", buffering=1)
def say(*a):
    line = " ".join(str(x) for x in a); print(line, file=log); print(line, flush=True)
proc = subprocess.Popen(["rust-analyzer"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open("/dev/null", "w"), cwd=root)
answers, progress = {}, {}
quiet = threading.Event(); status = {}
lock = threading.Lock()
def send(o):
    b = json.dumps(o).encode()
    with lock:
        proc.stdin.write(b"Content-Length: %d\r\n\r\n" % len(b) + b); proc.stdin.flush()
def reader():
    while True:
        n = 0
        while True:
            line = proc.stdout.readline()
            if not line: return
            if line == b"\r\n": break
            if line.lower().startswith(b"content-length"): n = int(line.split(b":")[1])
        m = json.loads(proc.stdout.read(n))
        if "id" in m and "method" in m:
            r = None
            if m["method"] == "workspace/configuration": r = [settings for _ in m["params"]["items"]]
            send({"jsonrpc": "2.0", "id": m["id"], "result": r})
        elif "id" in m: answers[m["id"]].put(m)
        elif m["method"] == "experimental/serverStatus":
            status.update(m["params"])
            if m["params"].get("quiescent"): quiet.set()
settings = {"checkOnSave": False, "cargo": {"allTargets": True, "features": "all" if False else [], "buildScripts": {"enable": True}}, "procMacro": {"enable": True}, "files": {"watcher": "client"}, "cachePriming": {"enable": True}, "lru": {"capacity": 512}}
ids = iter(range(1, 10**9))
def ask(method, params, timeout=300):
    i = next(ids); answers[i] = queue.Queue(); send({"jsonrpc": "2.0", "id": i, "method": method, "params": params})
    return answers.pop(i).get(timeout=timeout) if False else _get(i, timeout)
def _get(i, timeout):
    m = answers[i].get(timeout=timeout); del answers[i]; return m
def note(method, params): send({"jsonrpc": "2.0", "method": method, "params": params})
uri = lambda p: "file://" + urllib.parse.quote(p)
path = lambda u: urllib.parse.unquote(u[len("file://"):])
threading.Thread(target=reader, daemon=True).start()
ask("initialize", {"processId": os.getpid(), "rootUri": uri(root), "workspaceFolders": [{"uri": uri(root), "name": "w"}], "initializationOptions": settings,
  "capabilities": {"workspace": {"configuration": True, "workspaceEdit": {"documentChanges": True, "resourceOperations": ["create", "rename", "delete"]}, "didChangeWatchedFiles": {"dynamicRegistration": True}},
  "textDocument": {"rename": {"prepareSupport": True}}, "general": {"positionEncodings": ["utf-8"]}, "experimental": {"serverStatusNotification": True}, "window": {"workDoneProgress": False}}})
note("initialized", {})
began = time.time(); quiet.wait(1800); time.sleep(3)
say("ready after", round(time.time() - began), status)
moved = {}  # old path -> new path
def now_at(p):
    for a, b in moved.items():
        if p == a: p = b
        elif p.startswith(a + "/"): p = b + p[len(a):]
    return p
def apply(p, edits):
    data = open(p, "rb").read(); lines = data.split(b"\n"); off = [0]
    for l in lines: off.append(off[-1] + len(l) + 1)
    spans = sorted({(off[e["range"]["start"]["line"]] + e["range"]["start"]["character"], off[e["range"]["end"]["line"]] + e["range"]["end"]["character"], e["newText"]) for e in edits}, reverse=True)
    for a, b, t in spans: data = data[:a] + t.encode() + data[b:]
    open(p, "wb").write(data)
done = failed = 0
version = 0
for n, line in enumerate(open(mapfile)):
    line = line.rstrip("\n")
    if not line or line.startswith("#"): continue
    kind, file, at, old, new = line.split("\t")[:5]
    p = now_at(os.path.join(root, file))
    try:
        lines = open(p, "rb").read().split(b"\n")
    except OSError as e:
        say("FAIL", line, e); failed += 1; continue
    at = int(at) - 1
    rx = re.compile(rb"(?<![A-Za-z0-9_])" + re.escape(old.encode()) + rb"(?![A-Za-z0-9_])")
    kw = {"mod": rb"\bmod\s+", "fn": rb"\bfn\s+", "method": rb"\bfn\s+", "type": rb"\b(struct|enum|type|union|trait)\s+", "trait": rb"\btrait\s+", "enum": rb"\benum\s+", "alias": rb"\btype\s+", "const": rb"\b(const|static)\s+", "macro": rb"\bmacro_rules!\s+"}.get(kind)
    def find(rx):
        for d in sorted(range(-40, 41), key=abs):
            if 0 <= at + d < len(lines):
                m = rx.search(lines[at + d])
                if m: return at + d, m
        return None
    hit = None
    if kw:
        hit = find(re.compile(kw + re.escape(old.encode()) + rb"(?![A-Za-z0-9_])"))
        if hit: hit = (hit[0], hit[1].end() - len(old))
    if not hit:
        m = find(rx)
        if m: hit = (m[0], m[1].start())
    if not hit:
        say("MISSING", line); failed += 1; continue
    t0 = time.time()
    try:
        m = ask("textDocument/rename", {"textDocument": {"uri": uri(p)}, "position": {"line": hit[0], "character": hit[1]}, "newName": new})
    except queue.Empty:
        say("TIMEOUT", line); failed += 1; continue
    if "error" in m or not m.get("result"):
        if m.get("error", {}).get("code") in (-32801, -32800):
            time.sleep(1)
            m = ask("textDocument/rename", {"textDocument": {"uri": uri(p)}, "position": {"line": hit[0], "character": hit[1]}, "newName": new})
        if "error" in m or not m.get("result"):
            say("REFUSED", line, m.get("error", {}).get("message")); failed += 1; continue
    changed, created, deleted = set(), set(), set()
    outside = False
    changes = m["result"].get("documentChanges") or [{"textDocument": {"uri": u}, "edits": e} for u, e in (m["result"].get("changes") or {}).items()]
    for c in changes:
        u = c.get("textDocument", {}).get("uri") or c.get("oldUri") or c.get("uri")
        if not path(u).startswith(root + "/") or "/target/" in path(u): outside = True
    if outside: say("OUTSIDE", line); failed += 1; continue
    for c in changes:
        if c.get("kind") == "rename":
            a, b = path(c["oldUri"]), path(c["newUri"])
            if not os.path.exists(a): say("NOFILE", a); continue
            isdir = os.path.isdir(a)
            subprocess.run(["git", "mv", a, b], cwd=root, check=True)
            moved[a] = b
            if isdir:
                for d, _, fs in os.walk(b):
                    for f in fs:
                        q = os.path.join(d, f); created.add(q); deleted.add(a + q[len(b):])
            else: created.add(b); deleted.add(a)
        else:
            q = now_at(path(c["textDocument"]["uri"])); apply(q, c["edits"]); changed.add(q)
    events = [{"uri": uri(q), "type": 2} for q in changed - created] + [{"uri": uri(q), "type": 1} for q in created] + [{"uri": uri(q), "type": 3} for q in deleted]
    note("workspace/didChangeWatchedFiles", {"changes": events})
    done += 1
    say("ok", kind, old, "->", new, len(changed), "files", round(time.time() - t0, 2), "s")
say("done", done, "failed", failed)
proc.kill()
