"""A private database server for tests: on loopback, in its own folder, ended by its own process id."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pymysql
import pytest

START_TIMEOUT_S = 600.0
TRIES = 5
PORTS = (20_000, 30_000)
"""What is above belongs to the services of a Kubernetes, and then to connections."""


@dataclass
class SqlServer:
    """A running server. ``database`` makes a fresh, empty database."""

    port: int
    process: subprocess.Popen[bytes]
    command: list[str]
    folder: Path
    names: Iterator[int] = field(default_factory=itertools.count)

    def kill(self) -> None:
        """End the server like a crash."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Start it again on the same port and data, and wait until it responds."""
        # It prints nothing, because the pipe of the first start may be gone.
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _wait(self)

    def connect(self, database: str | None = None) -> pymysql.Connection[pymysql.cursors.Cursor]:
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user="root",
            database=database,
            connect_timeout=60,
            autocommit=True,
        )

    def execute(
        self, statement: str, database: str | None = None
    ) -> tuple[tuple[object, ...], ...]:
        connection = self.connect(database)
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return tuple(cursor.fetchall())
        finally:
            connection.close()

    def transactions(self, where: str = "TRUE") -> bool:
        """Return whether a transaction is open, as the server sees it now."""
        time.sleep(0.15)  # InnoDB renews this table only if nobody has read it for 0.1 s
        return self.execute(
            f"SELECT COUNT(*) FROM information_schema.innodb_trx WHERE {where}"
        ) != ((0,),)

    def url_of(self, name: str) -> str:
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/{name}"

    @contextmanager
    def database(self) -> Iterator[str]:
        """Return the URL of a new database, dropped afterwards."""
        name = f"test_{next(self.names)}"
        self.execute(f"CREATE DATABASE {name}")
        try:
            yield self.url_of(name)
        finally:
            self.execute(f"DROP DATABASE {name}")


def denied(cursor: pymysql.cursors.Cursor, statement: str) -> bool:
    """Return whether the cursor's user has no right to execute this statement."""
    try:
        cursor.execute(statement)
    except pymysql.err.MySQLError as error:
        return "denied" in str(error)
    return False


Server = TypeVar("Server", bound=SqlServer)


def needs(found: bool, missing: str) -> None:
    """Skip tests that need a missing program, with this message; fail where ``CI`` is ``true``."""
    if found:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)


def as_root() -> list[str]:
    """Return the option without which a server refuses to run as root."""
    return ["--user=root"] if os.geteuid() == 0 else []


@contextmanager
def data_folder(prefix: str) -> Iterator[Path]:
    """Return a folder for a server, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def install(command: Sequence[str], folder: Path) -> None:
    """Execute the command that creates a server's own tables, with the temporary ones in
    ``folder``.
    """
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=START_TIMEOUT_S,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    if done.returncode:
        pytest.fail(
            f"{command[0]} failed with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"
        )


@contextmanager
def running(kind: type[Server], program: str, folder: Path, options: list[str]) -> Iterator[Server]:
    """Start the server whose data is in ``folder``, and end it."""
    server = _started(kind, program, folder, options)
    for _ in range(TRIES):
        if _answers(server) or server.process.poll() is None:
            break
        # It has ended: another test process may have taken this port first.
        server = _started(kind, program, folder, options)
    try:
        _wait(server)
        yield server
    finally:
        server.process.terminate()
        try:
            server.process.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()


def _started(kind: type[Server], program: str, folder: Path, options: list[str]) -> Server:
    port = _free_port()
    command = [
        program,
        "--no-defaults",
        f"--datadir={folder / 'data'}",
        # Its own folder, as in ``install``: a server that starts removes the temporary tables of
        # all that share the folder.
        f"--tmpdir={folder}",
        f"--socket={folder / 's'}",
        f"--pid-file={folder / 'pid'}",
        f"--port={port}",
        "--bind-address=127.0.0.1",
        "--skip-log-bin",
        "--skip-name-resolve",
        # Durable only against its own end, not against a power failure, because tests have to be
        # fast.
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-flush-method=nosync",
        "--innodb-buffer-pool-size=128M",
        *as_root(),
        *options,
    ]
    # A test process that takes too long to exit is killed, and then leaves no server behind.
    dying_with_us = ["setpriv", "--pdeathsig", "KILL", "--", *command]
    with (folder / "server.log").open("wb") as log:
        return kind(
            port,
            subprocess.Popen(dying_with_us, stdout=log, stderr=subprocess.STDOUT),
            command,
            folder,
        )


def _free_port() -> int:
    """Return an unused port below those that the kernel assigns to connections, so that it is still
    free at a restart.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    low, high = PORTS[0], min(PORTS[1], first)
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(
                ("127.0.0.1", random.SystemRandom().randrange(low, high) if low < high else 0)
            )
            return int(probe.getsockname()[1])


def _answers(server: SqlServer) -> bool:
    """Wait until this server responds; ``False`` if it has ended or does not start."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while server.process.poll() is None and time.monotonic() < deadline:
        with suppress(pymysql.err.OperationalError):
            # The port may belong to the server of another test process.
            if server.execute("SELECT @@pid_file") == ((str(server.folder / "pid"),),):
                return True
        time.sleep(0.05)
    return False


def _wait(server: SqlServer) -> None:
    if not _answers(server):
        log = server.folder / "server.log"
        pytest.fail(f"the database server did not start: {log.read_text(errors='replace')[-2000:]}")
