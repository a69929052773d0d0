"""One run of some suites: what the machine lacks, the quick suites, the build, the servers, the lanes, the report."""

import concurrent.futures
import json
import os
import pathlib
import shutil
import sys
import tempfile
import threading
import time

from testing import git, history, machine, processes, results, rust, suites
from testing.arguments import Options
from testing.context import Context
from testing.lanes import Lanes, in_use
from testing.machine import TOP, SetupError
from testing.processes import GRACE_SECONDS, MARK, Children, Finished
from testing.results import Outcome
from testing.servers import SYNCED, UNSYNCED, Postgres, Redis
from testing.suites import FIRST, LAST, PROCESSOR, WAITING, Suite

# Cold, it compiles every dependency.
BUILD_LIMIT_SECONDS = 3600
COMMITS = "commits"

printing = threading.Lock()


def say(*lines: str):
    """One block, whatever other lanes print."""
    with printing:
        print("\n".join(lines), flush=True)


class Run:
    """Owns the folder, the servers and the child processes of the run."""

    def __init__(self, options: Options, selected: list[Suite], packages: frozenset[str] | None):
        self.options, self.selected = options, selected
        self.began = time.monotonic()
        self.began_at = history.now()
        self.commit, self.dirty = git.head(), git.is_dirty()
        target = machine.target_folder()
        self.runs = target / "test-runs"
        # 0711: the account of PostgreSQL must be able to walk through, nobody can list.
        run_folder = pathlib.Path(tempfile.mkdtemp(prefix="towpath-test."))
        run_folder.chmod(0o711)
        for name in ("logs", "ports"):
            (run_folder / name).mkdir()
        (run_folder / "logs").chmod(0o711)
        self.context = Context(
            top=TOP,
            target=target,
            results=results.new_folder(self.runs, self.began_at),
            run_folder=run_folder,
            arguments=options.arguments,
            packages=packages,
        )
        # Every process of the run inherits the mark, so that leftovers are known to be ours.
        self.env = os.environ | {
            MARK: str(run_folder),
            "CARGO_TARGET_DIR": str(target),
            "CARGO_TERM_COLOR": "never",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.children = Children()
        self.servers: list[Postgres | Redis] = []
        # By kind and lane; the address of each.
        self.addresses: dict[tuple[str, str], str] = {}
        self.outcomes: list[Outcome] = []
        self.lanes: Lanes | None = None
        self.build_failed = False
        self.error: BaseException | None = None
        self.stopped = False

    # ---- the walk, in a thread of its own: the main thread takes signals ----

    def walk(self):
        try:
            self.prepare()
            self.run_lanes((FIRST,))
            if any("build" in suite.needs for suite in self.selected):
                self.build()
            self.start_servers()
            self.run_lanes((PROCESSOR, WAITING))
            self.run_lanes((LAST,))
        except BaseException as error:  # Raised again in the main thread.
            self.error = error

    def prepare(self):
        """Installs what is missing. Nothing begins before all of it is there."""
        needs = set().union(*(suite.needs for suite in self.selected))
        machine.prepare(needs)
        for requirements in dict.fromkeys(file for suite in self.selected for file in suite.venvs):
            self.context.venvs[requirements] = machine.venv(TOP / requirements, say)
        if "node" in needs:
            self.context.node_modules = machine.node_modules(say)
        if any(suite.name in rust.AT_ONCE for suite in self.selected):
            self.context.nextest = machine.nextest(say)
            if self.context.nextest:
                rust.write_nextest_config(self.context)

    def build(self):
        say("build        running…")
        context = self.context
        messages = context.run_folder / "build.json"
        finished = self.execute("build", list(rust.BUILD), BUILD_LIMIT_SECONDS, messages)
        if finished.code == 0:
            context.build = rust.read_build(messages)
            if context.nextest:
                for command, output in rust.nextest_metadata(context):
                    asked = self.execute("build", command, BUILD_LIMIT_SECONDS, output)
                    finished = added(finished, asked)
                binaries, cargo = (output for _, output in rust.nextest_metadata(context))
                context.build.binaries_metadata, context.build.cargo_metadata = binaries, cargo
        self.build_failed = finished.code != 0
        self.report(Outcome("build", "build", self.since_start() - finished.seconds, finished))

    def start_servers(self):
        """Each lane has servers of its own, so that suites side by side do not wait for each other's commits."""
        served = [suite for suite in self.selected if suite.lane != FIRST and not (self.build_failed and "build" in suite.needs)]
        last = {suite.lane for suite in served if suite.lane == LAST}
        lanes = last.union(in_use([suite for suite in served if suite.lane != LAST], (PROCESSOR, WAITING)))
        folder = self.context.run_folder
        postgres = [suite for suite in served if "postgres" in suite.needs]
        wanted = {}
        for lane in sorted(lanes):
            if any(not suite.commits for suite in postgres) and lane != LAST:
                wanted["postgres", lane] = Postgres(f"postgres-{lane}", folder, self.env, UNSYNCED)
            if any("redis" in suite.needs for suite in served):
                wanted["redis", lane] = Redis(f"redis-{lane}", folder, self.env)
        if any(suite.commits for suite in postgres):
            wanted["postgres", COMMITS] = Postgres(f"postgres-{COMMITS}", folder, self.env, SYNCED)
        self.servers += wanted.values()
        if wanted and not self.children.stopping:
            with concurrent.futures.ThreadPoolExecutor(len(wanted)) as pool:
                started = pool.map(lambda server: server.start(), wanted.values())
                self.addresses = dict(zip(wanted, started, strict=True))

    def run_lanes(self, names: tuple[str, ...]):
        queued = [suite for suite in self.selected if suite.lane in names]
        if queued and not self.children.stopping:
            self.lanes = Lanes(queued, in_use(queued, names), results.last_seconds(self.runs))
            self.lanes.run(self.perform)

    # ---- one suite ----

    def perform(self, suite: Suite, lane: str):
        if reason := suite.unavailable():
            return say(f"{suite.name:<12} SKIPPED: {reason}")
        if "build" in suite.needs and self.build_failed:
            return say(f"{suite.name:<12} not run: the build failed")
        say(f"{suite.name:<12} running…{f' (lane {lane})' if lane in (PROCESSOR, WAITING) else ''}")
        began = self.since_start()
        environment = self.environment(suite, lane)
        finished = self.execute(suite.name, suite.command(self.context), suite.limit_seconds, None, environment)
        if self.children.stopping:
            return None
        cases = suites.read_cases(suite, self.context)
        shown = suites.shown_lines(suite, cases, self.context.log(suite.name).read_text(errors="replace"))
        self.report(Outcome(suite.name, lane, began, finished, tuple(cases), tuple(shown)))
        return None

    def execute(self, name, command, limit_s, stdout=None, environment=None) -> Finished:
        return self.children.run(command, self.context.log(name), environment or self.env, TOP, limit_s, stdout)

    def environment(self, suite: Suite, lane: str) -> dict[str, str]:
        """What the tests of a suite read. A suite is given only what it says it needs."""
        context = self.context
        given = {
            "TOWPATH_BIN": context.build.towpath if "build" in suite.needs else None,
            "TOWPATH_TEST_POSTGRES": self.addresses.get(("postgres", COMMITS if suite.commits else lane)),
            "TOWPATH_TEST_REDIS": self.addresses.get(("redis", lane)),
            "TOWPATH_TEST_PYTHON": context.venv_python(suites.PYTHON) if suites.PYTHON in suite.venvs else None,
            "TOWPATH_TEST_NEWEST_PYTHON": context.venv_python(suites.NEWEST) if suites.NEWEST in suite.venvs else None,
            "TOWPATH_TEST_SANDBOX_PYTHON": context.venv_python(suites.SANDBOX) if suites.SANDBOX in suite.venvs else None,
            "TOWPATH_TEST_NODE_MODULES": context.node_modules if "node" in suite.needs else None,
        }
        if not {"postgres", "redis"} & suite.needs:
            given.pop("TOWPATH_TEST_POSTGRES")
            given.pop("TOWPATH_TEST_REDIS")
        return self.env | {name: str(value) for name, value in given.items() if value} | dict(suite.environment)

    def report(self, outcome: Outcome):
        if self.children.stopping:
            return
        lines = outcome.failure_report(self.context.log(outcome.suite)) if outcome.failed else []
        if self.options.arguments and not outcome.failed and outcome.suite != "build":
            lines += self.context.log(outcome.suite).read_text(errors="replace").splitlines()
        with printing:
            self.outcomes.append(outcome)
        say(*lines, outcome.line(), *outcome.skips(), *outcome.shown)

    def since_start(self) -> float:
        return time.monotonic() - self.began

    # ---- the end ----

    def finish(self) -> int:
        """Keeps and prints what the run found; the closing line is the last one."""
        passed, failed = results.totals(self.outcomes)
        moved = git.head() != self.commit or git.is_dirty()
        dirty = self.dirty or moved
        summary = results.summary(self.outcomes, self.commit, dirty, self.began_at, self.since_start())
        (self.context.results / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        self.keep_whole_run(summary)
        slowest = results.slowest(self.outcomes)
        lines = ["", f"the slowest {len(slowest)} tests"] if slowest else []
        lines += [f"{seconds:8.1f} s   {suite:<12} {name}" for seconds, suite, name in slowest]
        lines += ["", "suites", *(outcome.line() for outcome in self.outcomes)]
        broken = [outcome.suite for outcome in self.outcomes if outcome.failed]
        if broken:
            lines += [f"failed: {' '.join(broken)}", f"the first failure: {summary['first_failure']}"]
        lines.append(f"logs and reports: {self.context.results}")
        lines.append(f"all suites took {self.since_start():.0f} s")
        say(*lines, f"{passed} passed, {failed} failed")
        return int(failed > 0)

    def fail_to_set_up(self, error: SetupError) -> int:
        print(f"scripts/test: {error}", file=sys.stderr, flush=True)
        first = f"set-up: {results.first_line(str(error))}"
        summary = results.summary(self.outcomes, self.commit, self.dirty, self.began_at, self.since_start())
        self.keep_whole_run(summary | {"failed": 1, "first_failure": first})
        return 1

    def keep_whole_run(self, summary: dict):
        if self.options.all_suites and self.options.changed is None:
            history.append(self.runs, summary, self.options.beside_load, self.context.results)

    def clean_up(self, walk: threading.Thread):
        """Ends everything that this run started. A test has to end what it starts; where it does not, that is said."""
        if self.lanes:
            self.lanes.stop()
        self.children.stop()
        self.end_processes()
        if self.stopped:
            # A server may have been about to start.
            walk.join(GRACE_SECONDS)
            self.end_processes()
        if self.options.keep:
            print(f"kept: {self.context.run_folder}", file=sys.stderr, flush=True)
        else:
            shutil.rmtree(self.context.run_folder, ignore_errors=True)

    def end_processes(self):
        for server in self.servers:
            server.stop()
        told = "ended" if self.stopped else "left behind by a test, ended"
        for line in processes.end_leftovers(self.context.run_folder):
            print(f"{told}: {line}", file=sys.stderr, flush=True)


def added(one: Finished, other: Finished) -> Finished:
    return Finished(
        one.code or other.code,
        one.seconds + other.seconds,
        one.user + other.user,
        one.system + other.system,
        one.timed_out or other.timed_out,
    )
