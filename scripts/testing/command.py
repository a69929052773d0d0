"""The command: what the caller asked for, as one run, as many, or as a look at the history."""

import pathlib
import subprocess
import sys
import threading

from testing import arguments, changed, git, graph, history, machine, processes, suites
from testing.arguments import Options
from testing.machine import SetupError
from testing.processes import Stopped
from testing.run import Run, say
from testing.suites import Suite


def select(options: Options) -> tuple[list[Suite], frozenset[str] | None]:
    """The suites to run, and what the suite rust is restricted to."""
    chosen = suites.of_groups(options.suites)
    if options.changed is None:
        return chosen, None
    base, why = (options.changed, "as given") if options.changed else git.default_base()
    files = git.changed_files(base)
    selection = changed.select(files, graph.load())
    say(f"{len(files)} files changed since {base[:12]} ({why})", *selection.lines(options.suites))
    return [suite for suite in chosen if suite.group in selection.reasons], selection.packages


def main(argv: list[str]) -> int:
    options = arguments.parse(argv)
    runs = machine.target_folder() / "test-runs"
    if options.history:
        say(*history.lines(runs, git.head()))
        return 0
    if options.repeat:
        return history.repeat(options.repeat, options.beside_load, runs)
    try:
        selected, packages = select(options)
    except (SetupError, git.GitError) as error:
        print(f"scripts/test: {error}", file=sys.stderr)
        return 1
    if not selected:
        say("nothing to run", "0 passed, 0 failed")
        return 0
    return perform_run(options, selected, packages)


def perform_run(options: Options, selected: list[Suite], packages: frozenset[str] | None) -> int:
    processes.stop_on_signals()
    run = Run(options, selected, packages)
    walk = threading.Thread(target=run.walk, daemon=True)
    load = None
    # Cleaning up comes before the report: its last line has to be the last of all.
    try:
        try:
            if options.beside_load:
                command = [sys.executable, str(pathlib.Path(__file__).with_name("load.py"))]
                load = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            walk.start()
            walk.join()
        except Stopped:
            run.stopped = True
            raise
        finally:
            if load:
                load.kill()
                load.wait()
            run.clean_up(walk)
        if isinstance(run.error, SetupError):
            return run.fail_to_set_up(run.error)
        if run.error:
            raise run.error
        return run.finish()
    except Stopped as stopped:
        print(f"scripts/test: stopped by {stopped}", file=sys.stderr, flush=True)
        return stopped.code
