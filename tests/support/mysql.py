"""A private MySQL 8 server for tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.sql_server import SqlServer, as_root, data_folder, install, needs, running
from tools import mysql as package

MISSING = "MySQL is not installed, so nothing was tested on it; `make test-deps` installs it"
#: Connections come from 127.0.0.1, which is not ``localhost`` if names are not resolved.
USERS = """\
CREATE USER IF NOT EXISTS 'root'@'127.0.0.1';
GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;
"""


class MySql(SqlServer):
    """A running MySQL 8."""


def _initialised(base: str) -> Path:
    """Return a new server's data, made once per machine and stored next to the program, because
    this takes 4 s of processor time.
    """
    made = package.folder().with_name(f"{package.folder().name}-data")
    if not made.exists():
        server = str(package.folder() / "bin" / "mysqld")
        with tempfile.TemporaryDirectory(dir=made.parent) as name:
            data = Path(name) / "data"
            install(
                [
                    server,
                    "--no-defaults",
                    "--initialize-insecure",
                    base,
                    f"--datadir={data}",
                    *as_root(),
                ],
                Path(name),
            )
            with suppress(OSError):  # another process was quicker
                data.rename(made)
    return made


@contextmanager
def running_mysql(*options: str) -> Iterator[MySql]:
    """Start a server, with further options, and end it.

    Without MySQL, the tests are skipped with a message, and fail where ``CI`` is ``true``.
    """
    needs(package.installed(), MISSING)
    base, server = f"--basedir={package.folder()}", str(package.folder() / "bin" / "mysqld")
    with data_folder("mysql-") as folder:
        shutil.copytree(_initialised(base), folder / "data")
        users = folder / "users.sql"
        users.write_text(USERS)
        # Switched off on a small server: another protocol, statistics of itself (0.2 GB), and TLS
        # handshakes for each connection, which take both sides 20 ms; MariaDB has none either.
        small = ["--mysqlx=OFF", "--performance-schema=OFF", "--ssl=OFF"]
        with running(
            MySql, server, folder, [base, f"--init-file={users}", *small, *options]
        ) as started:
            yield started
