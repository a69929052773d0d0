"""Child processes of a run: their logs, time limits and resource use, and the processes that tests leave behind."""

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import threading
import time

MARK = "TOWPATH_TEST_RUN"
# How long a child that was asked to end may take.
GRACE_SECONDS = 30


@dataclasses.dataclass(frozen=True)
class Finished:
    """How a child ended, and what it and the children it waited for used."""

    code: int
    seconds: float
    user: float
    system: float
    timed_out: bool


class Stopped(Exception):
    """A signal asked the run to end."""

    def __init__(self, number):
        super().__init__(f"signal {number}")
        self.code = 128 + number


class Children:
    """Runs commands, from several threads at once. Each is a session of its own, so that all of it can be signalled."""

    def __init__(self):
        self.lock = threading.Condition()
        self.alive = set()
        self.stopping = False

    def run(self, command, log: pathlib.Path, env, cwd, limit_s: float, stdout: pathlib.Path | None = None) -> Finished:
        """Waits for `command`. Its output goes to `log`; its standard output to `stdout` where that is given."""
        began = time.monotonic()
        with log.open("ab") as errors, stdout.open("wb") if stdout else contextlib.nullcontext(errors) as output:
            with self.lock:
                if self.stopping:
                    return Finished(-signal.SIGTERM, 0, 0, 0, False)
                try:
                    child = subprocess.Popen(
                        command,
                        cwd=cwd,
                        env=env,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=errors,
                        start_new_session=True,
                    )
                except OSError as error:
                    errors.write(f"{command[0]} did not start: {error}\n".encode())
                    return Finished(127, time.monotonic() - began, 0, 0, False)
                self.alive.add(child.pid)
        expired = threading.Event()
        timers = [
            threading.Timer(limit_s, lambda: (expired.set(), signal_group(child.pid, signal.SIGTERM))),
            threading.Timer(limit_s + GRACE_SECONDS, signal_group, (child.pid, signal.SIGKILL)),
        ]
        for timer in timers:
            timer.daemon = True
            timer.start()
        # The child is reaped only when nobody can signal its number any more: another process may get that.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        for timer in timers:
            timer.cancel()
        with self.lock:
            self.alive.discard(child.pid)
            _, status, used = os.wait4(child.pid, 0)
            self.lock.notify_all()
        child.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - began
        return Finished(child.returncode, seconds, used.ru_utime, used.ru_stime, expired.is_set())

    def stop(self):
        """Ends what runs; nothing starts from here on."""
        with self.lock:
            self.stopping = True
            for number in (signal.SIGTERM, signal.SIGKILL):
                for pid in self.alive:
                    signal_group(pid, number)
                if self.lock.wait_for(lambda: not self.alive, GRACE_SECONDS):
                    break


def signal_group(pid: int, number: int):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def stop_on_signals():
    """Turns signals that end a program into `Stopped`, in the main thread; the second one is ignored."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # nohup wants the run to outlive its terminal, and shells ignore SIGINT for commands in the background. Children inherit
    # what is ignored, but not what is handled by doing nothing: tests send these signals.
    ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, lambda _number, _frame: None)
    numbers = [number for number in numbers if number not in ignored]

    def handle(number, _frame):
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)
        raise Stopped(number)

    for number in numbers:
        signal.signal(number, handle)


def marked(run_folder: pathlib.Path) -> dict[int, str]:
    """Processes that carry the mark of this run in their environment, other than this one, with their command lines."""
    mark = f"{MARK}={run_folder}".encode()
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        pid = int(process.name)
        with contextlib.suppress(OSError):
            if pid != os.getpid() and mark in (process / "environ").read_bytes().split(b"\0"):
                found[pid] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def end_leftovers(run_folder: pathlib.Path) -> list[str]:
    """Kills what carries the mark of this run; what that was."""
    ended = []
    for pid, command in marked(run_folder).items():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            ended.append(f"{pid} {command}")
    return ended
