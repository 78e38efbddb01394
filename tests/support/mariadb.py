"""A private MariaDB server for tests: on loopback, in a folder of its own, ended by its own process id."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pymysql
import pytest

START_TIMEOUT_S = 150.0
TRIES = 5
PORTS = (20_000, 30_000)
"""What is above belongs to the services of a Kubernetes, and then to connections."""
MISSING = "MariaDB is not installed, so nothing was tested on it; `make test-deps` installs it"


@dataclass
class MariaDb:
    """A running server. ``url`` makes a fresh, empty database."""

    port: int
    process: subprocess.Popen[bytes]
    command: list[str]
    folder: Path
    names: Iterator[int] = field(default_factory=itertools.count)

    def kill(self) -> None:
        """End the server as a crash would."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Start it again on the same port and data, and wait until it answers."""
        # It says nothing to anybody: the pipe of the first start may be gone.
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _wait(self)

    def connect(self, database: str | None = None) -> pymysql.Connection[pymysql.cursors.Cursor]:
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", database=database, connect_timeout=60, autocommit=True
        )

    def execute(self, statement: str, database: str | None = None) -> tuple[tuple[object, ...], ...]:
        connection = self.connect(database)
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return tuple(cursor.fetchall())
        finally:
            connection.close()

    def url_of(self, name: str) -> str:
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/{name}"

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a new database, dropped afterwards."""
        name = f"test_{next(self.names)}"
        self.execute(f"CREATE DATABASE {name}")
        try:
            yield self.url_of(name)
        finally:
            self.execute(f"DROP DATABASE {name}")


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")


def _free_port() -> int:
    """A port that nobody has, below those that the kernel gives to connections: a restart finds it free again."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    low, high = PORTS[0], min(PORTS[1], first)
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", random.SystemRandom().randrange(low, high) if low < high else 0))
            return int(probe.getsockname()[1])


@contextmanager
def running_mariadb(*options: str) -> Iterator[MariaDb]:
    """Start a server, with further options, and end it.

    Without MariaDB the tests are skipped in words, and fail where ``CI`` is ``true``.
    """
    server, install = _program("mariadbd"), _program("mariadb-install-db")
    if server is None or install is None:
        if os.environ.get("CI") == "true":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    folder = Path(tempfile.mkdtemp(prefix="mariadb-"))
    user = ["--user=root"] if os.geteuid() == 0 else []
    data = folder / "data"
    try:
        subprocess.run(
            [install, "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal", *user],
            check=True,
            capture_output=True,
            timeout=START_TIMEOUT_S,
        )
        with (folder / "server.log").open("wb") as log, _server(server, folder, [*user, *options], log) as running:
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _server(program: str, folder: Path, options: list[str], log: IO[bytes]) -> Iterator[MariaDb]:
    running = _started(program, folder, options, log)
    for _ in range(TRIES):
        if _answers(running) or running.process.poll() is None:
            break
        # It has ended: another test process may have been quicker with this port.
        running = _started(program, folder, options, log)
    try:
        _wait(running)
        yield running
    finally:
        running.process.terminate()
        try:
            running.process.wait(60)
        except subprocess.TimeoutExpired:
            running.kill()


def _started(program: str, folder: Path, options: list[str], log: IO[bytes]) -> MariaDb:
    port = _free_port()
    command = [
        program,
        "--no-defaults",
        f"--datadir={folder / 'data'}",
        f"--socket={folder / 's'}",
        f"--pid-file={folder / 'pid'}",
        f"--port={port}",
        "--bind-address=127.0.0.1",
        "--skip-log-bin",
        "--skip-name-resolve",
        # Durable only against its own end, not against a power cut: a test wants speed.
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-flush-method=nosync",
        "--innodb-buffer-pool-size=128M",
        *options,
    ]
    return MariaDb(port, subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT), command, folder)


def _answers(running: MariaDb) -> bool:
    """Wait until this very server answers; ``False`` when it has ended or does not come."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while running.process.poll() is None and time.monotonic() < deadline:
        with suppress(pymysql.err.OperationalError):
            # Whoever answers at the port may be the server of another test process.
            if running.execute("SELECT @@pid_file") == ((str(running.folder / "pid"),),):
                return True
        time.sleep(0.05)
    return False


def _wait(running: MariaDb) -> None:
    if not _answers(running):
        log = running.folder / "server.log"
        pytest.fail(f"MariaDB did not start: {log.read_text(errors='replace')[-2000:]}")


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDb]:
    """One server for all tests of a session."""
    with running_mariadb() as running:
        yield running
