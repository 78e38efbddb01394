"""The version of the schema: the version that a database has, the version of this build, and the upgrade."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, select, text, update

from crawler_lifecycle.domain.errors import NotInThisState, StoreUnavailable
from crawler_lifecycle.store.audits.tables import schema_compatibility
from crawler_lifecycle.store.engine import Database, parse_url, translated

_MIGRATIONS = Path(__file__).parent
_LOCK_WAIT_S = 120
#: The answer timeout of migrations. A migration of a large table may take much longer than other statements.
_ANSWER_TIMEOUT_S = 3600.0


def _config() -> Config:
    config = Config()
    # ConfigParser interprets a percent sign in the path as an interpolation.
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


@functools.cache
def head_version() -> str:
    """Return the schema version of this build."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None, "the package has migrations"
    return head


@functools.cache
def known_versions() -> tuple[str, ...]:
    """Return the schema versions that this build knows, the oldest first. The last one is its own."""
    found = [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()]
    return tuple(reversed(found))


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema of a database, and the builds that still work on it."""

    version: str | None
    """The version of the schema; ``None``: the database has no schema yet."""
    works_from: str | None = None
    """The oldest version whose builds still work on this schema; ``None``: it was not read."""

    @property
    def newer(self) -> bool:
        """Return whether this build does not know the version. A newer build has made the schema then."""
        return self.version is not None and self.version not in known_versions()

    @property
    def problem(self) -> str | None:
        """The reason why this build cannot work on the schema, with the cure; ``None``: it can."""
        head = head_version()
        if self.version == head or (self.newer and self.works_from in known_versions()):
            return None
        if self.newer:
            least = f"; it needs a build with schema {self.works_from} or later" if self.works_from else ""
            return (
                f"The database has schema version {self.version}, which this build (schema {head}) does not know"
                f"{least}. A newer version made it: run that version, or restore an older backup"
            )
        found = self.version or "none"
        return f"The database has schema version {found}, this build needs {head}; run: crawlctl db upgrade"

    def __str__(self) -> str:
        if self.newer and self.problem is None:
            return f"{self.version}, which is newer than this build's {head_version()} and works with it"
        return self.version or "none"


def schema_of(connection: Connection) -> Schema:
    """Return the schema of the database."""
    found = Schema(MigrationContext.configure(connection).get_current_revision())
    # For a version that this build knows, ``works_from`` is not needed.
    if not found.newer or not inspect(connection).has_table(schema_compatibility.name):
        return found
    return Schema(found.version, connection.scalar(select(schema_compatibility.c.works_from)))


def read_schema(url: str) -> Schema:
    """Return the schema of the database at ``url``. A SQLite file that does not exist has none, and is not created.

    Raises ``InvalidRequest`` for an invalid URL, and ``StoreUnavailable``.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").exists():
        return Schema(None)
    with Database.alone(parsed, _ANSWER_TIMEOUT_S) as database, database.reading() as connection:
        return schema_of(connection)


def upgrade(url: str) -> None:
    """Upgrade the database at ``url`` to the schema version of this build. Creates a SQLite file and its folder if
    needed.

    A second call changes nothing and needs only read rights. Concurrent calls wait for each other. A newer schema on
    which this build can work stays as it is (after the rollback of a deployment). A migration skips tables and indexes
    that exist already. Raises ``InvalidRequest``, ``StoreUnavailable``, and ``NotInThisState`` for a newer schema on
    which this build cannot work.
    """
    if read_schema(url).version == head_version():
        return
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    # On SQLite the writing transaction is the lock, and it rolls back a migration that fails. On MySQL the version must
    # be committed before the lock is released, so the commit is inside of the block.
    with (
        Database.alone(parsed, _ANSWER_TIMEOUT_S) as database,
        translated(),
        database.writer.connect() as connection,
        _locked(connection),
    ):
        found = schema_of(connection)
        if found.newer:
            if found.problem is not None:
                raise NotInThisState(found.problem)
            return
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        _record_works_from(connection)
        connection.commit()


def _record_works_from(connection: Connection) -> None:
    """Record the oldest version whose builds still work on this schema: the latest ``WORKS_FROM`` of all migrations."""
    versions = known_versions()
    scripts = ScriptDirectory.from_config(_config()).walk_revisions()
    found = [script.module.WORKS_FROM for script in scripts]
    connection.execute(update(schema_compatibility).values(works_from=max(found, key=versions.index)))


@contextmanager
def _locked(connection: Connection) -> Iterator[None]:
    """Hold the lock of the schema. On MySQL it is a named lock of the session, because DDL statements commit there."""
    if connection.dialect.name == "sqlite":
        yield
        return
    # Named locks belong to the server and not to a database. Their names have at most 64 characters.
    database = hashlib.sha256(str(connection.engine.url.database).encode()).hexdigest()[:16]
    name = f"crawler_lifecycle_schema_{database}"
    if connection.execute(text("SELECT GET_LOCK(:name, :wait)"), {"name": name, "wait": _LOCK_WAIT_S}).scalar() != 1:
        raise StoreUnavailable("Another process has been changing the schema for two minutes; wait, and try again")
    try:
        yield
    finally:
        connection.execute(text("SELECT RELEASE_LOCK(:name)"), {"name": name})
