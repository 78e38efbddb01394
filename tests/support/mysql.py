"""A private MySQL 8 server for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.sql_server import SqlServer, as_root, data_folder, install, needs, running
from tools import mysql as package

MISSING = "MySQL is not installed, so nothing was tested on it; `make test-deps` installs it"
#: Connections come from 127.0.0.1, which is not ``localhost`` where no names are resolved.
USERS = """\
CREATE USER IF NOT EXISTS 'root'@'127.0.0.1';
GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;
"""


class MySql(SqlServer):
    """A running MySQL 8."""


@contextmanager
def running_mysql(*options: str) -> Iterator[MySql]:
    """Start a server, with further options, and end it.

    Without MySQL the tests are skipped in words, and fail where ``CI`` is ``true``.
    """
    needs(package.installed(), MISSING)
    base, server = f"--basedir={package.folder()}", str(package.folder() / "bin" / "mysqld")
    with data_folder("mysql-") as folder:
        data = f"--datadir={folder / 'data'}"
        install([server, "--no-defaults", "--initialize-insecure", base, data, *as_root()], folder)
        users = folder / "users.sql"
        users.write_text(USERS)
        # What a small server does without: another protocol, statistics of itself (0.2 GB).
        small = ["--mysqlx=OFF", "--performance-schema=OFF"]
        with running(MySql, server, folder, [base, f"--init-file={users}", *small, *options]) as started:
            yield started
