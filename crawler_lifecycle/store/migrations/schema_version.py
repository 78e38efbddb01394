"""The schema's version: which one a database has, which one this build needs, and the way from one to the other."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, inspect, select, text, update

from crawler_lifecycle.domain.errors import NotInThisState, StoreUnavailable
from crawler_lifecycle.store.audits.tables import schema_compatibility
from crawler_lifecycle.store.engine import Database, open_engine, parse_url, translated

_MIGRATIONS = Path(__file__).parent
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


@functools.cache
def known_versions() -> tuple[str, ...]:
    """The schema versions that this build knows, oldest first; the last one is its own."""
    found = [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()]
    return tuple(reversed(found))


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema that a database has, and the builds that it still serves."""

    version: str | None
    """``None`` when there is no schema yet."""
    works_from: str | None = None
    """The oldest version whose builds still work on this one; ``None`` where the database does not say."""

    @property
    def newer(self) -> bool:
        """Return whether a newer build must have made it, as this build does not know the version."""
        return self.version is not None and self.version not in known_versions()

    @property
    def problem(self) -> str | None:
        """The reason why this build cannot work on it, and the cure; ``None`` when it can."""
        head = head_version()
        if self.version == head or (self.newer and self.works_from in known_versions()):
            return None
        if self.newer:
            least = f" and serves builds from schema {self.works_from} on only" if self.works_from else ""
            return (
                f"The database has schema version {self.version}, which this build (schema {head}) does not know"
                f"{least}: a newer version made it; run that version, or restore a backup from before"
            )
        found = self.version or "none"
        return f"The database has schema version {found}, this build needs {head}; run: crawlctl db upgrade"

    def __str__(self) -> str:
        if self.newer and self.problem is None:
            return f"{self.version}, which is newer than this build's {head_version()} and still serves it"
        return self.version or "none"


def schema_of(connection: Connection) -> Schema:
    """The schema of the database."""
    found = Schema(MigrationContext.configure(connection).get_current_revision())
    # Every version reports this; only for unknown ones we have to read it.
    if not found.newer or not inspect(connection).has_table(schema_compatibility.name):
        return found
    return Schema(found.version, connection.scalar(select(schema_compatibility.c.works_from)))


def read_schema(url: str) -> Schema:
    """The schema of the database at ``url``; a SQLite file that is not there has none, and asking makes none.

    Raises ``InvalidRequest`` and ``StoreUnavailable``.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").exists():
        return Schema(None)
    with _database(parsed) as database, database.reading() as connection:
        return schema_of(connection)


def upgrade(url: str) -> None:
    """Bring the database at ``url`` to the version of this build, creating a SQLite file and its folder if needed.

    A second call changes nothing and needs no rights but to read, nor does one on a newer schema that still serves this
    build (a deployment that was rolled back); calls at the same time wait for each other. Where only the version is
    missing, what is there is kept: each migration leaves alone what it finds made. Raises ``InvalidRequest``,
    ``StoreUnavailable``, and ``NotInThisState`` for a newer schema that does not serve us, which stays as it is.
    """
    if read_schema(url).version == head_version():
        return
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
        found = schema_of(connection)
        if found.newer:
            if found.problem is not None:
                raise NotInThisState(found.problem)
            return
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        _tell_works_from(connection)
        connection.commit()


def _tell_works_from(connection: Connection) -> None:
    """Record which builds still work on this schema: the strictest ``WORKS_FROM`` of its migrations."""
    versions = known_versions()
    scripts = ScriptDirectory.from_config(_config()).walk_revisions()
    told = [script.module.WORKS_FROM for script in scripts]
    connection.execute(update(schema_compatibility).values(works_from=max(told, key=versions.index)))


def _database(url: URL) -> closing[Database]:
    return closing(Database(open_engine(url, pool_size=1, answer_timeout_s=_ANSWER_TIMEOUT_S)))


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
