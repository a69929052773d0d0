"""The PostgreSQL and Redis servers of a run: on free loopback ports, with data in the folder of the run."""

import contextlib
import os
import pathlib
import secrets
import shutil
import socket
import subprocess
import time

from testing.machine import SetupError, postgres_programs

# A suite that is about commits has a server that syncs them. Every other suite would only wait for the disk.
SYNCED = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
UNSYNCED = {"fsync": "off", "synchronous_commit": "on", "full_page_writes": "off"}
# TCP only, so that no path of a socket is too long.
SETTINGS = {
    "listen_addresses": "'127.0.0.1'",
    "unix_socket_directories": "''",
    "max_connections": "400",
    "max_wal_size": "2GB",
    "log_checkpoints": "off",
}
TRIES = 3


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Postgres:
    def __init__(self, name: str, run_folder: pathlib.Path, env, settings):
        self.name, self.env, self.settings = name, env, settings
        self.programs = postgres_programs()
        self.data = run_folder / name
        self.password_file = run_folder / f"{name}.password"
        self.log = run_folder / "logs" / f"{name}.log"
        self.stopped = False

    def start(self) -> str:
        password = secrets.token_urlsafe(24)
        self.data.mkdir()
        self.password_file.touch(0o600)
        self.password_file.write_text(password + "\n")
        self.log.touch()
        if os.getuid() == 0:
            # The server refuses to run as root, so what it reads and writes belongs to its own account.
            for path in (self.data, self.password_file, self.log):
                shutil.chown(path, "postgres")
        self.run(
            "initdb",
            *("-U", "postgres", f"--pwfile={self.password_file}", "--auth=scram-sha-256"),
            *("--encoding=UTF8", "--locale=C.UTF-8", "--no-instructions", "--no-sync"),
        )
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{key} = {value}\n" for key, value in (SETTINGS | self.settings).items())
        for _ in range(TRIES):
            port = free_port()
            with contextlib.suppress(SetupError):
                self.run("pg_ctl", "-w", "-t", "60", "-l", str(self.log), "-o", f"-p {port}", "start")
                return f"postgres://postgres:{password}@127.0.0.1:{port}/postgres"
        raise SetupError(f"{self.name} did not start on {TRIES} ports:\n{self.log.read_text(errors='replace')}")

    def stop(self):
        self.stopped = True
        if (self.data / "postmaster.pid").exists():
            with contextlib.suppress(SetupError):
                self.run("pg_ctl", "-m", "immediate", "-w", "stop")

    def run(self, program, *arguments):
        if self.stopped and "start" in arguments:
            raise SetupError(f"{self.name} was stopped before it ran")
        account = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
        command = [*account, str(self.programs / program), "-D", str(self.data), *arguments]
        # A file, not a pipe: the server inherits it and would keep a pipe open. The root folder may be entered by the
        # server's account.
        output = self.log.with_name(f"{self.name}-{program}.log")
        with output.open("ab") as log:
            done = subprocess.run(command, cwd="/", env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if done.returncode != 0:
            raise SetupError(f"{program} of {self.name} failed:\n{output.read_text(errors='replace')}")


class Redis:
    def __init__(self, name: str, run_folder: pathlib.Path, env):
        self.name, self.env = name, env
        self.data = run_folder / name
        self.log = run_folder / "logs" / f"{name}.log"
        self.child = None
        self.stopped = False

    def start(self) -> str:
        self.data.mkdir()
        for _ in range(TRIES):
            if self.stopped:
                break
            port = free_port()
            command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", str(self.data)]
            command += ["--save", "", "--appendonly", "no", "--databases", "64", "--daemonize", "no"]
            with self.log.open("ab") as log:
                self.child = subprocess.Popen(
                    command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            if self.answers(port):
                return f"redis://127.0.0.1:{port}"
        raise SetupError(f"{self.name} did not start on {TRIES} ports:\n{self.log.read_text(errors='replace')}")

    def answers(self, port, limit_s=10) -> bool:
        deadline = time.monotonic() + limit_s
        while self.child.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as stream:
                stream.sendall(b"PING\r\n")
                if stream.recv(16).startswith(b"+PONG"):
                    return True
            time.sleep(0.02)
        self.end()
        return False

    def stop(self):
        self.stopped = True
        self.end()

    def end(self):
        if self.child and self.child.poll() is None:
            self.child.terminate()
            try:
                self.child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
