"""The database of tests that work with any: SQLite, or the server that ``LIFECYCLE_TEST_DATABASE``
names.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pymysql.connections import Connection
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.pool import NullPool

from crawler_lifecycle.store import engine
from crawler_lifecycle.store.columns import json_text
from crawler_lifecycle.store.engine import open_engine, parse_url
from crawler_lifecycle.store.migrations.schema_version import upgrade
from crawler_lifecycle.store.tables import metadata
from tests.support.servers import empty_database, shared_server
from tests.support.sql_server import SqlServer

#: Seconds after which, on any machine, earlier waiters are done.
PATIENT_S = 120
VARIABLE = "LIFECYCLE_TEST_DATABASE"
KINDS = ("sqlite", "mariadb", "mysql")


def wait_patiently(patch: pytest.MonkeyPatch) -> None:
    """Let databases that are opened from now on wait for locks, connections and responses as long
    as a slow machine takes.

    This is for tests of several writers that do not test the timeouts of production.
    """
    for limit in ("BUSY_TIMEOUT_S", "CONNECT_TIMEOUT_S", "LOCK_WAIT_S", "IDLE_WRITE_S"):
        patch.setattr(engine, limit, PATIENT_S)
    defaults = engine.open_engine.__kwdefaults__
    assert defaults is not None
    patch.setitem(defaults, "answer_timeout_s", 2 * PATIENT_S)


@contextmanager
def fresh_database(folder: Path, name: str = "testbed.db") -> Iterator[str]:
    """Return the URL of an empty database without tables, removed afterwards or with ``folder``."""
    kind = os.environ.get(VARIABLE, "sqlite")
    if kind not in KINDS:
        raise ValueError(f"{VARIABLE}: {kind!r} is not allowed; give {', '.join(KINDS)}")
    with empty_database(kind, folder / name) as url:
        yield url


def make_tables(url: str) -> str:
    """Give an empty database the schema of this build by a copy, which takes SQLite a hundredth and
    a server a fifth of the time of an upgrade.

    Returns its URL. An existing file stays unchanged, because other processes may have it open.
    """
    kind, _, file = url.partition(":///")
    if kind == "sqlite":
        Path(file).parent.mkdir(exist_ok=True)
        copy = Path(f"{file}.{os.getpid()}.new")
        if not Path(file).exists():
            copy.write_bytes(_migrated())
            with suppress(FileExistsError):  # another process was first
                os.link(copy, file)
            copy.unlink()
    else:
        _make_on_server(url)
    return url


#: What makes a database equal to an upgraded one, by the version of its server: tables, and the few
#: rows in them.
_upgraded: dict[str, list[str]] = {}


def _make_on_server(url: str) -> None:
    engine = open_engine(parse_url(url), pool_size=1)
    with closing(engine.raw_connection()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        [[version]] = cursor.fetchall()
        if version in _upgraded:
            cursor.execute("SET SESSION foreign_key_checks = 0")
            for statement in _upgraded[version]:
                cursor.execute(statement)
            connection.commit()
        else:
            upgrade(url)
            _upgraded[version] = list(_copied(cursor))
    engine.dispose()


def _copied(cursor: Any) -> Iterator[str]:
    cursor.execute("SHOW TABLES")
    for (table,) in cursor.fetchall():
        cursor.execute(f"SHOW CREATE TABLE {table}")
        yield cursor.fetchone()[1]
        cursor.execute(f"SELECT * FROM {table}")
        for row in cursor.fetchall():
            values = ", ".join(["%s"] * len(row))
            yield cursor.mogrify(f"INSERT INTO {table} VALUES ({values})", row)


#: One for all tests of a server. In a database called ``test_…``, MariaDB lets everybody do
#: everything.
SHARED = "shared"


def without_rows(server: SqlServer) -> str:
    """Return the URL of one database for all tests of a server, with the schema of this build and
    without rows of earlier tests.

    Creating its tables again takes longer than most tests: MySQL needs two seconds of processor
    time.
    """
    url = server.url_of(SHARED)
    if not server.execute(f"SHOW DATABASES LIKE '{SHARED}'"):
        server.execute(f"CREATE DATABASE {SHARED}")
        make_tables(url)
    with closing(server.connect(SHARED)) as connection, connection.cursor() as cursor:
        for table in reversed(metadata.sorted_tables):
            # Records which builds the schema serves, like its version.
            if table.name != "schema_compatibility":
                cursor.execute(f"DELETE FROM {table.name}")
        cursor.execute("INSERT INTO outbox_counter (id, seq) VALUES (1, 0)")
        cursor.execute("INSERT INTO pool_gate (id, state) VALUES (1, '{}')")
    return url


def empty_tables(kind: str, file: Path) -> str:
    """Return the URL of a database with the schema of this build: ``file`` for SQLite, or that of
    ``without_rows``.
    """
    if kind == "sqlite":
        return make_tables(f"sqlite:///{file}")
    return without_rows(shared_server(kind))


@functools.cache
def _migrated() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "empty.db"
        upgrade(f"sqlite:///{file}")
        return file.read_bytes()


def make_databases_cheap() -> None:
    """Engines that are opened from now on share what is made of each statement, and SQLite does not
    wait for the disk; connections to a server share what they encrypt with.

    Each test has an engine of its own, which would compile every statement anew: half of such a
    test's time. Each connection to a server would read the certificates of the machine anew, which
    nobody asks for here. Files outlive a killed process without a flush; only one of the machine
    would take them.
    """
    make_context = Connection._create_ssl_ctx
    plain = functools.cache(lambda: make_context(None, {}))
    prepare = engine._prepare_sqlite

    @functools.wraps(prepare)
    def hasty(connection: Any, record: object) -> None:
        prepare(connection, record)
        connection.execute("PRAGMA synchronous = OFF")

    def create(url: URL, **options: Any) -> Engine:
        made = create_engine(url, **options)
        if url.get_backend_name() == "sqlite":
            _share(made, _sqlite())
        elif url.database == SHARED:
            _share(made, _on_server(url.host, url.port, options["isolation_level"]))
        return made

    engine._prepare_sqlite = hasty
    engine.create_engine = create
    Connection._create_ssl_ctx = lambda self, options: (
        make_context(self, options) if options else plain()
    )


def _share(made: Engine, shared: Engine) -> None:
    made.dialect, made._compiled_cache = shared.dialect, shared._compiled_cache


@functools.cache
def _sqlite() -> Engine:
    shared = create_engine("sqlite+pysqlite://", query_cache_size=5_000, json_serializer=json_text)
    shared.connect().close()
    return shared


@functools.cache
def _on_server(host: str | None, port: int | None, isolation: Any) -> Engine:
    """Keep the cache for one database, because a dialect knows its name."""
    url = URL.create("mysql+pymysql", "root", host=host, port=port, database=SHARED)
    shared = create_engine(
        url,
        poolclass=NullPool,
        query_cache_size=5_000,
        isolation_level=isolation,
        json_serializer=json_text,
    )
    shared.connect().close()
    return shared
