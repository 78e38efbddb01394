"""A private MariaDB server for tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.sql_server import SqlServer, as_root, data_folder, install, needs, running

MISSING = "MariaDB is not installed, so nothing was tested on it; `make test-deps` installs it"


class MariaDb(SqlServer):
    """A running MariaDB."""


def _program(name: str) -> str:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin") or ""


@contextmanager
def running_mariadb(*options: str) -> Iterator[MariaDb]:
    """Start a server, with further options, and end it.

    Without MariaDB, the tests are skipped with a message, and fail where ``CI`` is ``true``.
    """
    server, maker = _program("mariadbd"), _program("mariadb-install-db")
    needs(bool(server and maker), MISSING)
    with data_folder("mariadb-") as folder:
        data = f"--datadir={folder / 'data'}"
        install(
            [maker, "--no-defaults", data, "--auth-root-authentication-method=normal", *as_root()],
            folder,
        )
        with running(MariaDb, server, folder, list(options)) as started:
            yield started
