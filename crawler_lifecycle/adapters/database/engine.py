"""Connections: how each database is opened, what a transaction is, and which failures mean "not now".

One path for both databases; the differences are all here: SQLite gets its pragmas and ``BEGIN IMMEDIATE`` for writers
(a writer that upgrades a read lock cannot wait, it fails), MySQL and MariaDB get READ COMMITTED, strict mode and
timeouts on every wait.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, ProgrammingError, TimeoutError
from sqlalchemy.pool import QueuePool

from crawler_lifecycle.domain.errors import InvalidRequest, StoreUnavailable

from .columns import json_text, read_json

URL_SETTING = "LIFECYCLE_DATABASE__URL"
CURE = "give sqlite:////folder/state.db or mysql+pymysql://user:password@host:3306/database"

BUSY_TIMEOUT_S = 10.0
"""How long a SQLite writer waits for another one, and how long anybody waits for a pooled connection."""
CONNECT_TIMEOUT_S = 5
ANSWER_TIMEOUT_S = 10
LOCK_WAIT_S = 8
"""Below the answer timeout, so that a lock that is not freed is reported as such and not as a lost connection."""
RECYCLE_S = 280
"""Below the idle timeouts that proxies and managed databases like to set (300 s)."""

_SQL_MODE = "STRICT_TRANS_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
#: A server that became read-only (a failover): the connection must not go back to the pool.
_READ_ONLY = (1290, 1792, 1836)
#: A table or column that this build expects is not there.
_NO_SUCH_THING = (1054, 1146)


def masked(text: str) -> str:
    """A database URL, well formed or not, without its password."""
    hidden = re.sub(r"^(.*?//)?([^:/@]*):(.*)@", r"\1\2:***@", text)
    return re.sub(r"((?:password|passwd)=)[^&]*", r"\1***", hidden)


def parse_url(text: str) -> URL:
    """The URL with the one driver that is supported for its database.

    Raises ``InvalidRequest`` naming the setting, the value without its password, and the cure.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise _bad_url(text, "is not a database URL") from None
    kind = url.drivername.partition("+")[0]
    if kind == "sqlite":
        if url.drivername not in ("sqlite", "sqlite+pysqlite"):
            raise _bad_url(text, "names another driver than pysqlite")
        if not url.database or url.database == ":memory:" or "mode=memory" in text:
            raise _bad_url(text, "names no file; a database in memory cannot be shared between processes")
        return url.set(drivername="sqlite+pysqlite")
    if kind in ("mysql", "mariadb"):
        if url.drivername not in (kind, f"{kind}+pymysql"):
            raise _bad_url(text, "names another driver than pymysql")
        if not url.database:
            raise _bad_url(text, "names no database")
        return url.set(drivername="mysql+pymysql")
    raise _bad_url(text, f"names a database that is not supported ({kind})")


def _bad_url(text: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{URL_SETTING}: {masked(text)!r} {what}; {CURE}")


def open_engine(url: URL, *, pool_size: int, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> Engine:
    """An engine for a URL of ``parse_url``; nothing is connected yet."""
    pool: Mapping[str, Any] = {
        "poolclass": QueuePool,
        "pool_size": pool_size,
        "max_overflow": 0,
        "pool_timeout": BUSY_TIMEOUT_S,
        "json_serializer": json_text,
        "json_deserializer": read_json,
        # Values may be personal or secret (arguments of crawlers); they never belong into messages.
        "hide_parameters": True,
    }
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False}, **pool)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    engine = create_engine(
        url,
        isolation_level="READ COMMITTED",
        pool_pre_ping=True,
        pool_recycle=RECYCLE_S,
        connect_args={
            "charset": "utf8mb4",
            "connect_timeout": CONNECT_TIMEOUT_S,
            "read_timeout": answer_timeout_s,
            "write_timeout": answer_timeout_s,
            "init_command": f"SET SESSION sql_mode='{_SQL_MODE}', innodb_lock_wait_timeout={LOCK_WAIT_S}",
        },
        **pool,
    )
    event.listen(engine, "handle_error", _drop_read_only)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # Python's own transaction handling would begin late and commit early; we begin ourselves.
    connection.isolation_level = None
    cursor = connection.cursor()
    try:
        # Switching to WAL needs the whole file, so it is asked for only when it is not yet so.
        if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
    finally:
        cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("lifecycle_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _drop_read_only(context: Any) -> None:
    if _code(context.original_exception) in _READ_ONLY:
        context.is_disconnect = True


def _code(error: BaseException | None) -> int | None:
    args = getattr(error, "args", ())
    return args[0] if args and isinstance(args[0], int) else None


def unavailable(error: Exception) -> StoreUnavailable | None:
    """The database's failure as our error, or ``None`` when it is no failure of the database but of our statement."""
    if isinstance(error, TimeoutError):
        return StoreUnavailable("The database cannot be used now: no free connection in the pool")
    if not isinstance(error, DBAPIError) or isinstance(error, IntegrityError | DataError):
        return None
    text = str(error.orig)
    missing = _code(error.orig) in _NO_SUCH_THING or text.startswith(("no such table", "no such column"))
    if missing:
        return StoreUnavailable(f"The database lacks what this build needs ({text}); run: crawlctl db upgrade")
    if isinstance(error, ProgrammingError):
        return None
    if text == "unable to open database file":
        text += "; the folder that LIFECYCLE_DATABASE__URL names has to exist and be writable"
    return StoreUnavailable(f"The database cannot be used now: {text}")


@contextmanager
def translated() -> Iterator[None]:
    """Turn every failure of the database itself into ``StoreUnavailable``. Texts of drivers hold no passwords."""
    try:
        yield
    except (DBAPIError, TimeoutError) as error:
        ours = unavailable(error)
        if ours is None:
            raise
        raise ours from error


_TURNSTILES: dict[str, threading.Lock] = {}


def _turnstile(url: URL) -> threading.Lock | None:
    """The lock that all writers of one SQLite file share in this process; other databases need none."""
    if url.get_backend_name() != "sqlite":
        return None
    return _TURNSTILES.setdefault(os.path.realpath(url.database or ""), threading.Lock())


class Database:
    """Transactions on one database. Nothing here retries: whoever calls does (Temporal's policies)."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._turnstile = _turnstile(engine.url)
        # The same pool; its transactions take SQLite's write lock when they begin.
        self.writer = engine.execution_options(lifecycle_write=True)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One transaction that only reads."""
        with translated(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction that writes: committed when the block ends, rolled back when it raises.

        SQLite has one writer at a time, and whoever waits for it polls with ever longer sleeps. So writers of the same
        process queue here, and only those of other processes meet at the file.
        """
        with self._turn(), translated(), self.writer.begin() as connection:
            yield connection

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self._turnstile is None:
            yield
            return
        if not self._turnstile.acquire(timeout=2 * BUSY_TIMEOUT_S):
            raise StoreUnavailable("The database cannot be used now: other writers do not let go of it")
        try:
            yield
        finally:
            self._turnstile.release()

    def close(self) -> None:
        """Close all connections. A second call does nothing."""
        self.engine.dispose()
