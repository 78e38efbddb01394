"""Facts about a database for operators: its server, schema, settings and clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection, select, text

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.store.migrations.schema_version import Schema, schema_of

from .base.pools import stored_pool
from .engine import Database, masked, parse_url

#: Server variables that determine whether our writes are possible, complete and durable.
_VARIABLES = (
    "binlog_format",
    "log_bin",
    "max_allowed_packet",
    "max_connections",
    "wait_timeout",
    "read_only",
    "innodb_flush_log_at_trx_commit",
    "innodb_doublewrite",
)
_ANSWER_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Facts about one database."""

    server: str
    """The product, version and address, excluding the password."""
    schema: Schema
    """The schema of the database."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The values of server variables of MySQL or MariaDB, by name."""
    now: float | None = None
    """The server's clock in seconds since 1970; ``None`` for a SQLite file, which uses our
    clock.
    """
    exists: bool = True
    """False if the SQLite file does not exist yet."""


def sqlite_file(url: str) -> Path | None:
    """Return the file of a SQLite database; ``None`` for other databases and for invalid URLs."""
    try:
        parsed = parse_url(url)
    except InvalidRequest:
        return None
    return Path(parsed.database or "").absolute() if parsed.get_backend_name() == "sqlite" else None


def diagnose(url: str) -> Diagnosis:
    """Return facts about the database at ``url`` without changing it.

    A missing SQLite file is not created.

    Raises ``InvalidRequest`` for an invalid URL, and ``StoreUnavailable``.
    """
    parsed = parse_url(url)
    file = sqlite_file(url)
    if file is not None and not file.exists():
        return Diagnosis(f"no file {file}", Schema(None), exists=False)
    with Database.alone(parsed, _ANSWER_TIMEOUT_S) as database, database.reading() as connection:
        schema = schema_of(connection)
        if file is not None:
            return Diagnosis(f"SQLite {sqlite_files.driver.sqlite_version} at {file}", schema)
        return _of_server(connection, url, schema)


def try_writing(url: str) -> None:
    """Begin and end a write transaction that changes nothing.

    On SQLite this takes the write lock of the file.

    On a server, the transaction proves little; a server variable shows whether the server is
    read-only (``Diagnosis.variables``). Raises ``StoreUnavailable`` after at most ten seconds if
    the database cannot be used.
    """
    with Database.alone(parse_url(url), _ANSWER_TIMEOUT_S) as database, database.writing():
        pass


def stored_pools(url: str) -> set[str]:
    """Return the names of the pools that people set.

    Raises ``LifecycleError`` if the database has no such table, or cannot be used.
    """
    with Database.alone(parse_url(url), _ANSWER_TIMEOUT_S) as database, database.reading() as conn:
        return set(conn.execute(select(stored_pool.c.name)).scalars())


def _of_server(connection: Connection, url: str, schema: Schema) -> Diagnosis:
    names = ", ".join(f"'{name}'" for name in _VARIABLES)
    rows = connection.execute(text(f"SHOW VARIABLES WHERE Variable_name IN ({names})"))
    variables = {str(name): str(value) for name, value in rows}
    version = str(connection.execute(text("SELECT VERSION()")).scalar_one())
    # Seconds since 1970 do not depend on the time zone of the server.
    now = connection.execute(text("SELECT UNIX_TIMESTAMP(NOW(6))")).scalar_one()
    product = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    return Diagnosis(f"{product} {version} at {masked(url)}", schema, variables, float(now))
