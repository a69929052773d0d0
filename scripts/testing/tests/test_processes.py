import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

from testing import processes
from testing.processes import MARK, Children

# Says that it runs, then waits until it is ended.
WAITING = "import sys, signal; print('up', flush=True); signal.pause()"


class Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.log = self.folder / "log"
        self.children = Children()

    def run_python(self, code, limit_s=60.0, **named):
        return self.children.run([sys.executable, "-c", code], self.log, os.environ, self.folder, limit_s, **named)

    def test_output_and_how_it_ended(self):
        finished = self.run_python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
        self.assertEqual((finished.code, finished.timed_out), (3, False))
        self.assertEqual(sorted(self.log.read_text().split()), ["err", "out"])

    def test_standard_output_may_go_elsewhere(self):
        self.run_python("import sys; print('out'); print('err', file=sys.stderr)", stdout=self.folder / "out")
        self.assertEqual(((self.folder / "out").read_text(), self.log.read_text()), ("out\n", "err\n"))

    def test_processor_time_of_grandchildren_counts(self):
        busy = "import time\nwhile time.process_time() < 0.2: pass"
        finished = self.run_python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])")
        self.assertGreaterEqual(finished.user + finished.system, 0.2)

    def test_the_time_limit_ends_the_whole_group(self):
        code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WAITING!r}])"
        finished = self.run_python(code, limit_s=0.5)
        self.assertTrue(finished.timed_out)
        self.assertEqual(finished.code, -signal.SIGTERM)

    def test_a_command_that_is_not_there_fails(self):
        finished = self.children.run(["/nowhere/program"], self.log, os.environ, self.folder, 10)
        self.assertEqual(finished.code, 127)
        self.assertIn("/nowhere/program did not start", self.log.read_text())

    def test_stopping_ends_what_runs_and_starts_nothing(self):
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        found = []

        def work():
            # The fifo says that the program runs.
            command = ["/bin/sh", "-c", f"echo up > {fifo}; exec sleep 600"]
            found.append(self.children.run(command, self.log, os.environ, self.folder, 600))

        thread = threading.Thread(target=work)
        thread.start()
        fifo.read_text()
        self.children.stop()
        thread.join(10)
        self.assertEqual(found[0].code, -signal.SIGTERM)
        self.assertEqual(self.run_python("pass").code, -signal.SIGTERM)


class Signals(unittest.TestCase):
    def test_what_a_background_shell_ignores_reaches_the_children(self):
        grandchild = "import os, signal; os.kill(os.getpid(), signal.SIGINT); signal.pause()"
        child = (
            "import os, signal, subprocess, sys\n"
            "from testing.processes import stop_on_signals\n"
            "stop_on_signals()\n"
            "os.kill(os.getpid(), signal.SIGINT)\n"
            f"print(subprocess.run([sys.executable, '-c', {grandchild!r}], timeout=30).returncode)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", child],
            env=os.environ | {"PYTHONPATH": str(pathlib.Path(processes.__file__).parents[1])},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.assertEqual((done.returncode, done.stdout), (0, f"{-signal.SIGINT}\n"))


class Leftovers(unittest.TestCase):
    def test_what_carries_the_mark_is_ended_and_said(self):
        with tempfile.TemporaryDirectory() as folder:
            run_folder = pathlib.Path(folder)
            child = subprocess.Popen(
                [sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True, env=os.environ | {MARK: folder}
            )
            self.assertEqual(child.stdout.readline(), "up\n")
            said = processes.end_leftovers(run_folder)
            self.assertEqual(child.wait(10), -signal.SIGKILL)
            child.stdout.close()
            self.assertEqual(len(said), 1)
            self.assertTrue(said[0].startswith(f"{child.pid} "))

    def test_other_runs_are_left_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            mark = os.environ | {MARK: f"{folder}-other"}
            child = subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True, env=mark)
            self.assertEqual(child.stdout.readline(), "up\n")
            self.assertEqual(processes.marked(pathlib.Path(folder)), {})
            child.kill()
            child.wait()
            child.stdout.close()
