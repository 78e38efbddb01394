"""Connections to the databases, their transactions, and the classes of their failures.

SQLite gets its pragmas, and ``BEGIN IMMEDIATE`` for writers, because a writer that upgrades a read
lock fails immediately instead of waiting. MySQL and MariaDB get READ COMMITTED, strict mode, and a
timeout for every wait.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    StatementError,
    TimeoutError,
)
from sqlalchemy.pool import QueuePool

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.domain.errors import InvalidRequest, StoreRefused, StoreUnavailable

from .columns import json_text

T = TypeVar("T")

URL_SETTING = "LIFECYCLE_DATABASE__URL"
FIX = "give sqlite:////folder/state.db or mysql+pymysql://user:password@host:3306/database"

BUSY_TIMEOUT_S = 10.0
"""The maximum number of seconds that a SQLite writer waits for another writer, and a caller for a
pooled connection.
"""
LOG_WAIT_MS = 1000
"""The maximum number of milliseconds to wait for readers before the write-ahead log is emptied. All
writers wait during this time.
"""
CONNECT_TIMEOUT_S = 5
ANSWER_TIMEOUT_S = 10
LOCK_WAIT_S = 8
"""Seconds that a statement waits for a lock. This is below the answer timeout, so that a lock that
is not released is reported as such and not as a lost connection.
"""
IDLE_WRITE_S = 5
"""Seconds after which MariaDB ends an idle connection with an open write transaction. The process
of such a connection is frozen, and holds locks that all other processes need. MySQL has no such
limit.
"""
RECYCLE_S = 280
"""Seconds after which a connection is replaced. This is below the idle timeout of many proxies and
managed databases (300 s).
"""

_ROUNDS = 3
_SQL_MODE = (
    "STRICT_TRANS_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,"
    "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
)
#: Errors of a server that became read-only after a failover. The connection must not return to the
#: pool.
_READ_ONLY = (1290, 1792, 1836)
#: Errors about a missing table or column that this build needs.
_NO_SUCH_THING = (1054, 1146)
#: Errors of MySQL and MariaDB about the server itself, such as permissions, connections, locks and
#: disks. The messages of all other errors may quote values from rows ("Duplicate entry 'x' for
#: key", "Incorrect datetime value: 'x'"). Error numbers of the client begin at 2000.
_OF_ITSELF = frozenset(
    {
        0,
        1021,
        1023,
        1026,
        1030,
        1037,
        1038,
        1040,
        1041,
        1043,
        1044,
        1045,
        1046,
        1049,
        1053,
        1078,
        1079,
        1080,
        1114,
        1129,
        1130,
        1142,
        1143,
        1152,
        1153,
        1154,
        1155,
        1156,
        1157,
        1158,
        1159,
        1160,
        1161,
        1184,
        1189,
        1190,
        1203,
        1205,
        1206,
        1213,
        1223,
        1226,
        1227,
        1290,
        1317,
        1370,
        1637,
        1792,
        1836,
        1927,
        1969,
        3024,
        3032,
        3100,
        3101,
        4031,
    }
)
_OF_CLIENT = range(2000, 3000)
#: Error codes of SQLite about a statement: its syntax or size, a constraint, a type, or the index
#: of a parameter.
_OF_STATEMENT = frozenset({1, 18, 19, 20, 25})
#: Error codes of SQLite about a file that is damaged or is not a database.
_OF_DAMAGE = frozenset({11, 26})
#: Matches the verb and the table of a statement.
_STATEMENT = re.compile(
    r"(INSERT INTO|UPDATE|DELETE\b[^`]{0,40}?FROM|SELECT|[A-Z]+)\s+[`\"]?(\w+)?", re.IGNORECASE
)


def masked(text: str) -> str:
    """Return a database URL without its password. The URL may be invalid."""
    hidden = re.sub(r"^(.*?//)?([^:/@]*):(.*)@", r"\1\2:***@", text)
    return re.sub(r"((?:password|passwd)=)[^&]*", r"\1***", hidden)


def parse_url(text: str) -> URL:
    """Return the URL with the driver that we support for its database.

    Raises ``InvalidRequest``, whose message contains the setting, the value without its password,
    and the fix.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise _bad_url(text, "is not a database URL") from None
    kind = url.drivername.partition("+")[0]
    if kind == "sqlite":
        if url.drivername not in ("sqlite", "sqlite+pysqlite"):
            raise _bad_url(text, "names a driver other than pysqlite")
        if not url.database or url.database == ":memory:" or "mode=memory" in text:
            raise _bad_url(
                text, "names no file; a database in memory cannot be shared between processes"
            )
        # A URL is UTF-8. If paths have another encoding, as with LC_ALL=C, Python needs the bytes.
        file = os.fsdecode(url.database.encode("utf-8", "surrogateescape"))
        return url.set(drivername="sqlite+pysqlite", database=file)
    if kind in ("mysql", "mariadb"):
        if url.drivername not in (kind, f"{kind}+pymysql"):
            raise _bad_url(text, "names a driver other than pymysql")
        if not url.database:
            raise _bad_url(text, "names no database")
        return url.set(drivername="mysql+pymysql")
    raise _bad_url(text, f"names a database that is not supported ({kind})")


def _bad_url(text: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{URL_SETTING}: {masked(text)!r} {what}; {FIX}")


def open_engine(url: URL, *, pool_size: int, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> Engine:
    """Return an engine for a URL from ``parse_url``. The engine connects on first use."""
    pool = {
        "poolclass": QueuePool,
        "pool_size": pool_size,
        "max_overflow": 0,
        "pool_timeout": BUSY_TIMEOUT_S,
        "json_serializer": json_text,
        # Values may be personal or secret, such as arguments of crawlers, so messages must not
        # contain them.
        "hide_parameters": True,
    }
    if url.get_backend_name() == "sqlite":
        engine = create_engine(
            url, module=sqlite_files.driver, creator=lambda: _open_sqlite(url), **pool
        )
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
            # To MySQL, the second part is a comment.
            "init_command": f"SET SESSION sql_mode='{_SQL_MODE}', "
            f"innodb_lock_wait_timeout={LOCK_WAIT_S}"
            f" /*M!100300 , idle_write_transaction_timeout={IDLE_WRITE_S} */",
        },
        **pool,
    )
    event.listen(engine, "handle_error", _drop_read_only)
    return engine


def _open_sqlite(url: URL) -> Any:
    # Python's own transaction handling would begin late and commit early, so ``_begin_sqlite``
    # begins transactions.
    return sqlite_files.connect(
        str(url.database), timeout=BUSY_TIMEOUT_S, check_same_thread=False, isolation_level=None
    )


def _prepare_sqlite(connection: Any, _record: object) -> None:
    try:
        mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    # Python cannot decode SQLite's own error, which quotes the damaged schema.
    except UnicodeDecodeError:
        raise StoreDamaged from None
    # Switching to WAL locks the whole file, so it is done only if WAL is not set yet.
    if mode != "wal":
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    # Deleted content is overwritten. Not every build of SQLite does this by default.
    connection.execute("PRAGMA secure_delete = ON")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("lifecycle_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _drop_read_only(context: Any) -> None:
    if _code(context.original_exception) in _READ_ONLY:
        context.is_disconnect = True


def _code(error: BaseException | None) -> int | None:
    args = getattr(error, "args", ())
    return args[0] if args and isinstance(args[0], int) else None


class KeyTaken(StoreRefused):
    """A row with this key already exists, or the row that a foreign key refers to does not
    exist.
    """


class StoreDamaged(StoreUnavailable):
    """The SQLite file is damaged.

    All readers raise this error with the same message, because SQLite's own message may quote
    contents.
    """

    def __init__(
        self,
        text: str = "The database file is damaged; "
        "restore a complete copy: crawlctl db restore FILE",
    ) -> None:
        super().__init__(text)


def spoken(error: StatementError | TimeoutError) -> StoreUnavailable:
    """Return our error for a failure of the database.

    The error text contains no values from rows. Messages from drivers may contain such values,
    which would appear in logs, histories and HTTP responses.
    """
    if isinstance(error, TimeoutError):
        return StoreUnavailable("The database cannot be used now: the pool has no free connection")
    text, itself = _safe_text(error)
    if _sqlite_code(error) in _OF_DAMAGE:
        return StoreDamaged()
    if _code(error.orig) in _NO_SUCH_THING or text.startswith(("no such table", "no such column")):
        return StoreUnavailable(
            f"The database lacks what this build needs ({text}); run: crawlctl db upgrade"
        )
    if text == "unable to open database file":
        text += "; the folder in LIFECYCLE_DATABASE__URL must exist and be writable"
    if itself and isinstance(error, OperationalError | InternalError | InterfaceError):
        return StoreUnavailable(f"The database cannot be used now: {text}")
    kind = (
        KeyTaken
        if isinstance(error, IntegrityError) and not text.startswith("CHECK")
        else StoreRefused
    )
    return kind(
        f"The database refused a statement ({_head(error.statement)}): {text}; nothing was written"
    )


def _safe_text(error: StatementError) -> tuple[str, bool]:
    """Return a message about the error that contains no values from rows, and whether the error is
    about the database itself.

    The text is the driver's message if this message cannot contain values of rows.
    """
    if not isinstance(error, DBAPIError):
        return type(error.orig).__name__, False  # the column does not accept the value
    code = _code(error.orig)
    if code is None:  # SQLite names tables and columns, never values
        return str(error.orig), _sqlite_code(error) not in _OF_STATEMENT
    if code in _OF_ITSELF or code in _OF_CLIENT or code in _NO_SUCH_THING:
        return str(error.orig), True
    from pymysql.constants import ER  # pymysql raised the error, so it is already loaded

    name = next(
        (name for name, known in vars(ER).items() if known == code),
        "see the manual of the database",
    )
    return f"error {code} ({name})", False


def _sqlite_code(error: StatementError) -> int:
    return int(getattr(error.orig, "sqlite_errorcode", 0)) & 0xFF


def _head(statement: str | None) -> str:
    found = _STATEMENT.search(statement or "")
    return " ".join(filter(None, found.groups())) if found else "no statement"


@contextmanager
def translated() -> Iterator[None]:
    """Convert every failure of a statement to ``StoreUnavailable`` or its subclass
    ``StoreRefused``.
    """
    try:
        yield
    except (StatementError, TimeoutError) as error:
        # Not "from error", because logs would show the text of the cause, which may contain values.
        raise spoken(error).with_traceback(error.__traceback__) from None


_TURNSTILES: dict[str, threading.Lock] = {}


def _turnstile(url: URL) -> threading.Lock | None:
    """Return the lock that all writers of a SQLite file share in this process; ``None`` for other
    databases.
    """
    if url.get_backend_name() != "sqlite":
        return None
    return _TURNSTILES.setdefault(os.path.realpath(url.database or ""), threading.Lock())


class Database:
    """Transactions on one database.

    Failures are not retried here, because Temporal's retry policies do this.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._turnstile = _turnstile(engine.url)
        # This engine uses the same pool. Its transactions take SQLite's write lock when they begin.
        self.writer = engine.execution_options(lifecycle_write=True)
        self._together = threading.local()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a read-only transaction; inside ``together``, use the one that is already open."""
        with translated():
            if (present := getattr(self._together, "connection", None)) is not None:
                yield present
                return
            with self.engine.connect() as connection:
                yield connection

    @contextmanager
    def together(self) -> Iterator[None]:
        """Combine all reads of this thread into one transaction.

        Each transaction costs two additional round trips: one checks the connection, and one ends
        the transaction. The block must not write.
        """
        with self.reading() as self._together.connection:
            try:
                yield
            finally:
                self._together.connection = None

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a write transaction, which is committed at the end of the block, or rolled back if
        the block raises an error.

        SQLite allows one writer at a time, and a waiting writer polls with increasing pauses.
        Writers of one process therefore wait for a lock in the process, and only other processes
        wait for the file.
        """
        with self._turn(), translated(), self.writer.begin() as connection:
            yield connection

    def inserting(self, what: str, write: Callable[[Connection], T]) -> T:
        """Call ``write`` in a transaction, and return its result.

        ``write`` inserts rows that are missing.

        If another transaction inserts the same row at the same time, ``write`` is called again and
        finds that row. ``what`` names the row in the error text. Raises ``StoreUnavailable`` after
        three calls.
        """
        for _ in range(_ROUNDS):
            with suppress(KeyTaken), self.writing() as connection:
                return write(connection)
        raise StoreUnavailable(f"The {what} was inserted and removed at the same time")

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self._turnstile is None:
            yield
            return
        if not self._turnstile.acquire(timeout=2 * BUSY_TIMEOUT_S):
            raise StoreUnavailable(
                "The database cannot be used now: other writers in this process keep it locked"
            )
        try:
            yield
        finally:
            self._turnstile.release()

    @classmethod
    def alone(cls, url: URL, answer_timeout_s: float) -> closing[Database]:
        """Open a database with a single connection, for a ``with`` statement."""
        return closing(cls(open_engine(url, pool_size=1, answer_timeout_s=answer_timeout_s)))

    def empty_log(self) -> None:
        """Empty SQLite's write-ahead log, which contains former contents of rows.

        Do nothing for other databases.

        Raises ``StoreUnavailable`` if other programs read an older state for more than a second.
        """
        if self._turnstile is None:
            return
        with self._turn(), translated(), self.engine.connect() as connection:
            # This uses a separate connection with a short timeout, because all writers wait in the
            # meantime.
            connection.detach()
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {LOG_WAIT_MS}")
            busy, *_ = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
        if busy:
            raise StoreUnavailable(
                "The write-ahead log cannot be emptied: a program is still reading an older "
                "state; end that program"
            )

    def close(self) -> None:
        """Close all connections. A second call does nothing."""
        self.engine.dispose()
