"""The schema's version: which one a database has, which one this build needs, and the way from one to the other."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, text

from crawler_lifecycle.domain.errors import NotInThisState, StoreUnavailable

from .engine import Database, open_engine, parse_url, translated

_MIGRATIONS = Path(__file__).parent / "migrations"
_LOCK_WAIT_S = 120
#: A migration of a large table takes longer than any statement of the service may.
_ANSWER_TIMEOUT_S = 3600.0


def _config() -> Config:
    config = Config()
    # ConfigParser would take a percent sign in the path for an interpolation.
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


@functools.cache
def head_version() -> str:
    """The schema version of this build."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None, "the package has migrations"
    return head


def is_newer(found: str | None) -> bool:
    """Whether this version is none that this build knows, so that a newer one must have made it."""
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    return found is not None and found not in known


def mismatch(found: str | None) -> str | None:
    """What is wrong with a database at this schema version, and the cure; ``None`` when it fits this build."""
    head = head_version()
    if found == head:
        return None
    if is_newer(found):
        return (
            f"The database has schema version {found}, which this build (schema {head}) does not know: "
            "a newer version made it; run that version, or restore a backup from before"
        )
    return f"The database has schema version {found or 'none'}, this build needs {head}; run: crawlctl db upgrade"


def current_of(connection: Connection) -> str | None:
    """The schema version of the database, ``None`` when it has none yet."""
    return MigrationContext.configure(connection).get_current_revision()


def current_version(url: str) -> str | None:
    """The schema version of the database at ``url``; a SQLite file that is not there has none, and asking makes none.

    Raises ``InvalidRequest`` and ``StoreUnavailable``.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").exists():
        return None
    with _database(parsed) as database, database.reading() as connection:
        return current_of(connection)


def upgrade(url: str) -> None:
    """Bring the database at ``url`` to the version of this build, creating a SQLite file and its folder if needed.

    A second call changes nothing; calls at the same time wait for each other. Raises ``InvalidRequest``,
    ``StoreUnavailable``, and ``NotInThisState`` for a database that a newer version made, which stays as it is.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    # On SQLite the writing transaction is the lock, and undoes a migration that fails half-way. On MySQL the version
    # must be committed before the lock is given up, so the transaction ends inside of it.
    with (
        _database(parsed) as database,
        translated(),
        database.writer.connect() as connection,
        _locked(connection),
    ):
        found = current_of(connection)
        if is_newer(found):
            raise NotInThisState(mismatch(found))
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.commit()


@contextmanager
def _database(url: URL) -> Iterator[Database]:
    database = Database(open_engine(url, pool_size=1, answer_timeout_s=_ANSWER_TIMEOUT_S))
    try:
        yield database
    finally:
        database.close()


@contextmanager
def _locked(connection: Connection) -> Iterator[None]:
    """Hold the schema's lock. MySQL commits at every DDL statement, so there it is a named lock of the session."""
    if connection.dialect.name == "sqlite":
        yield
        return
    # Such locks belong to the server, not to a database, and their names end at 64 characters.
    database = hashlib.sha256(str(connection.engine.url.database).encode()).hexdigest()[:16]
    name = f"crawler_lifecycle_schema_{database}"
    if connection.execute(text("SELECT GET_LOCK(:name, :wait)"), {"name": name, "wait": _LOCK_WAIT_S}).scalar() != 1:
        raise StoreUnavailable("Another process has been changing the schema for two minutes; try again later")
    try:
        yield
    finally:
        connection.execute(text("SELECT RELEASE_LOCK(:name)"), {"name": name})
