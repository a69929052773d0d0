"""Runs the commands of a page as its reader would: in one shell, in the order in which they stand there.

Comments in a page, each on a line of its own in front of a code block, say which blocks are run:

    <!-- run: NAME -->      the block runs and ends with 0; of Python, in an interpreter
    <!-- await: NAME -->    the same, again and again until it prints what is shown
    <!-- start: NAME -->    its last line is a server, which is started and becomes ready; the lines before it run
    <!-- stop: NAME -->     no block belongs to it: that server drains and ends with 0

Each line of a block of `text` that follows a block of commands occurs in what those printed; `…` stands for anything.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import urllib.request

import harness

MARK = re.compile(r"<!-- (run|await|start|stop): ([\w-]+) -->")
# Where pages say that servers listen.
PLATFORM, AGENT = "127.0.0.1:8400", "127.0.0.1:8123"
END = "the end of this block"


@dataclasses.dataclass
class Block:
    kind: str
    name: str
    language: str = ""
    text: str = ""
    shows: list[str] = dataclasses.field(default_factory=list)

    def missing_in(self, printed) -> list[str]:
        patterns = {line: ".*".join(re.escape(part) for part in line.strip().split("…")) for line in self.shows}
        return [line for line, pattern in patterns.items() if not re.search(pattern, printed)]


def blocks_of(page: pathlib.Path) -> list[Block]:
    """The marked blocks of a page, in order."""
    found, marked, printing = [], None, None
    lines = iter(page.read_text().splitlines())
    for line in lines:
        if mark := MARK.fullmatch(line):
            assert marked is None, f"{page.name}: no block behind {marked}"
            block = Block(*mark.groups())
            found.append(block)
            marked, printing = (None if block.kind == "stop" else block), None
        elif line.lstrip().startswith("```"):
            indent, language = line[: len(line) - len(line.lstrip())], line.strip().removeprefix("```")
            body = [inner.removeprefix(indent) for inner in iter(lambda: next(lines), indent + "```")]
            if marked is not None:
                marked.language, marked.text = language, "\n".join(body)
                assert language in ("sh", "python"), f"{page.name}: {marked.name} is a block of {language}"
                printing, marked = marked, None
            elif language == "text" and printing is not None:
                printing.shows, printing = body, None
            else:
                printing = None
        elif line.strip() and marked is not None:
            raise AssertionError(f"{page.name}: no block behind {marked}")
    assert marked is None, f"{page.name}: no block behind {marked}"
    names = [block.name for block in found if block.kind in ("run", "await")]
    assert len(names) == len(set(names)), f"{page.name}: two blocks have one name: {names}"
    return found


class Shell:
    """A shell that keeps its folder and its variables from block to block."""

    def __init__(self, folder, env):
        self.child = subprocess.Popen(
            ["bash", "-euo", "pipefail"],
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )
        self.script = folder / "block.sh"

    def run(self, commands) -> str:
        """What they print. One that fails ends the shell."""
        self.script.write_text(commands + "\n")
        # A command that reads its input must not read what comes next.
        self.child.stdin.write(f". '{self.script}' </dev/null\nprintf '\\n%s\\n' '{END}'\n")
        limit = threading.Timer(harness.PATIENCE_S, self.child.kill)
        limit.start()
        printed = []
        try:
            for line in self.child.stdout:
                if line == END + "\n":
                    return "".join(printed)
                printed.append(line)
        finally:
            limit.cancel()
        raise AssertionError(f"the shell ended with {self.child.wait()}:\n{commands}\n---- it printed\n{''.join(printed)}")

    def close(self):
        self.child.kill()
        self.child.wait()
        self.child.stdin.close()
        self.child.stdout.close()


class Walk:
    """A reader of one page, in a folder that is empty but for what `prepare` puts there."""

    def __init__(self, page: pathlib.Path, folder: pathlib.Path, env=None, names=None):
        self.page, self.folder = page, folder
        # Names in the page, and what they are in a test that shares a server with others.
        self.names = names or {}
        self.platform, self.agent = harness.free_address(), harness.free_address()
        programs = folder / "programs"
        programs.mkdir()
        (programs / "towpath").symlink_to(harness.binary())
        inherited = {k: os.environ[k] for k in ("HOME", "TMPDIR", "TOWPATH_TEST_RUN") if k in os.environ}
        self.work = folder / "work"
        self.work.mkdir()
        self.shell_env = inherited | {
            # The interpreter of the suite, with its packages.
            "PATH": f"{programs}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
            "TOWPATH_SERVER": f"http://{self.platform}",
            "TOWPATH_LISTEN": self.platform,
            "TOWPATH_AGENT_LISTEN": self.agent,
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_AUTHOR_NAME": "reader",
            "GIT_AUTHOR_EMAIL": "reader@example.com",
            "GIT_COMMITTER_NAME": "reader",
            "GIT_COMMITTER_EMAIL": "reader@example.com",
        } | (env or {})  # fmt: skip
        self.servers = {}

    def go(self):
        shell = Shell(self.work, self.shell_env)
        try:
            for block in blocks_of(self.page):
                self.step(shell, block)
        except AssertionError as error:
            for log in self.folder.glob("*.log"):
                error.add_note(f"---- {log.name}\n{log.read_text(errors='replace')[-4000:]}")
            raise
        finally:
            for pid in self.servers.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shell.close()

    def step(self, shell, block):
        text = block.text.replace(PLATFORM, self.platform).replace(AGENT, self.agent)
        for name, other in self.names.items():
            text = text.replace(name, other)
        if block.kind == "stop":
            self.stop(shell, block.name)
        elif block.kind == "start":
            self.start(shell, block.name, text)
        else:
            if block.language == "python":
                text = f"python3 - <<'END_OF_BLOCK'\n{text}\nEND_OF_BLOCK"
            if block.kind == "await":
                # It may fail until it shows what is awaited; a failure would end the shell.
                text = f"(\n{text}\n) || true"
            printed = shell.run(text)
            if block.kind == "await" and block.missing_in(printed):
                harness.until(
                    f"{self.page.name}, {block.name}: {block.shows}",
                    lambda: None if block.missing_in(shell.run(text)) else True,
                )
            elif missing := block.missing_in(printed):
                raise AssertionError(f"{self.page.name}, {block.name}: no {missing[0]!r} in\n{printed}")

    def start(self, shell, name, text):
        *before, last = text.splitlines()
        log = self.folder / f"{name}.log"
        command = last.partition("  #")[0]
        # The shell is its parent, and its end is that of the server.
        started = "\n".join([*before, f"( exec env {command} ) >'{log}' 2>&1 &", "echo $!"])
        pid = int(shell.run(started).split()[-1])
        self.servers[name] = pid

        def ask():
            code = shell.run(f"kill -0 {pid} 2>/dev/null && echo alive || echo gone")
            assert "alive" in code, f"{self.page.name}, {name} ended:\n{log.read_text(errors='replace')}"
            with contextlib.suppress(OSError):
                return urllib.request.urlopen(f"http://{self.platform}/readyz", timeout=2).status
            return None

        harness.until(lambda: f"{name} to become ready:\n{log.read_text(errors='replace')}", ask)

    def stop(self, shell, name):
        pid = self.servers.pop(name)
        log = self.folder / f"{name}.log"
        ended = shell.run(f"kill -TERM {pid}; wait {pid} && echo drained || echo failed")
        assert "drained" in ended, f"{self.page.name}, {name} did not drain:\n{log.read_text(errors='replace')}"
