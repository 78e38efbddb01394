"""The databases that a test runs on, and one server of each kind for all tests of a process.

``DATABASES`` and ``SERVERS`` are for ``params``; a test with such a value gets the marker
``servers`` automatically.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.mariadb import MariaDb, running_mariadb
from tests.support.mysql import running_mysql
from tests.support.sql_server import SqlServer

SERVERS = ("mariadb", "mysql")
DATABASES = ("sqlite", *SERVERS)
#: For tests that run on MySQL only before a release: what MariaDB proves, and plans of statements.
#: MySQL takes other samples for its statistics each time, so its plans refuse nobody's change.
EXPLAINED = ("sqlite", "mariadb", pytest.param("mysql", marks=pytest.mark.slow))


def each_on_sqlite(values: Iterable[Any], on_servers: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize what our own code decides by ``value``: every value on SQLite, and on the servers
    only those that cause another statement.
    """
    every, few = list(values), list(on_servers)
    pairs = [(kind, value) for kind in DATABASES for value in (every if kind == "sqlite" else few)]
    return pytest.mark.parametrize(("store_url", "value"), pairs, indirect=["store_url"])


_open = ExitStack()


def running_server(kind: str, *options: str) -> AbstractContextManager[SqlServer]:
    """Start a separate server, with further options, that may be killed."""
    return {"mariadb": running_mariadb, "mysql": running_mysql}[kind](*options)


@functools.cache
def shared_server(kind: str) -> SqlServer:
    """Return the server of this process, started for its first test and ended with the process."""
    atexit.register(_open.close)
    return _open.enter_context(running_server(kind))


@contextmanager
def empty_database(kind: str, file: Path) -> Iterator[str]:
    """Return the URL of a database without tables: ``file`` for SQLite, or one on the shared
    server, dropped afterwards.
    """
    if kind == "sqlite":
        yield f"sqlite:///{file}"
        return
    with shared_server(kind).database() as url:
        yield url


@pytest.fixture(scope="session")
def mariadb() -> MariaDb:
    """Only MariaDB, for what other servers would show in the same way."""
    found = shared_server("mariadb")
    assert isinstance(found, MariaDb)
    return found
