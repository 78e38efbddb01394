"""The schema version of a database, the schema version of this build, and the upgrade."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, select, text, update

from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.domain.errors import NotInThisState, StoreUnavailable
from crawler_lifecycle.store.audits.tables import schema_compatibility
from crawler_lifecycle.store.base.bulk import put_row
from crawler_lifecycle.store.engine import Database, parse_url, translated
from crawler_lifecycle.store.notes import UPGRADE, process_note
from crawler_lifecycle.store.tables import metadata

from .ddl import first_columns

if TYPE_CHECKING:
    from alembic.config import Config

_MIGRATIONS = Path(__file__).parent
_CONSTANT = re.compile(r'^(revision|WORKS_FROM|FINGERPRINT) = "([^"]+)"$', re.MULTILINE)
#: Queries for all columns of a database, for each product.
_COLUMNS = {
    "sqlite": (
        "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE "
        "m.type = 'table'"
    ),
    "mysql": (
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = "
        "DATABASE()"
    ),
}
_SHOWN = 5
_RECREATE = "run: crawlctl db upgrade --recreate, which DELETES all that the database records"
_LOCK_WAIT_S = 120
#: The time after an upgrade during which a rollback to the previous build is possible. After a
#: rollback, the previous build replays the histories of workflows.
ROLLBACK = timedelta(days=1)
#: The answer timeout of migrations. A migration of a large table can take much longer than other
#: statements.
_ANSWER_TIMEOUT_S = 3600.0


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    # ConfigParser interprets a percent sign in the path as an interpolation.
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


@functools.cache
def _migrations() -> tuple[Mapping[str, str], ...]:
    """Return the constants of all migrations, oldest first.

    Each service reads them at its start. Importing Alembic to load the modules would take 0.1 s.
    """
    files = sorted((_MIGRATIONS / "versions").glob("[0-9]*.py"))
    return tuple(dict(_CONSTANT.findall(file.read_text())) for file in files)


def head_version() -> str:
    """Return the schema version of this build."""
    return known_versions()[-1]


@functools.cache
def known_versions() -> tuple[str, ...]:
    """Return the schema versions that this build knows, oldest first.

    The last version is the version of this build.
    """
    return tuple(found["revision"] for found in _migrations())


def head_fingerprint() -> str:
    """Return the fingerprint of the tables of this build."""
    return _migrations()[-1]["FINGERPRINT"]


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema of a database, and the builds that still work with it."""

    version: str | None
    """The version of the schema; ``None`` if the database has no schema yet."""
    works_from: str | None = None
    """The oldest version whose builds still work with this schema; ``None`` if it was not read."""
    lacks: tuple[str, ...] = ()
    """Tables and columns that a database of this version should have, and that this one lacks."""
    foreign: bool = False
    """True if the tables were created by a build with a different migration of the same number."""

    @property
    def newer(self) -> bool:
        """Return whether this build does not know the version, so that a newer build must have
        created the schema.
        """
        return self.version is not None and self.version not in known_versions()

    @property
    def problem(self) -> str | None:
        """The reason why this build cannot work with the schema, and the fix; ``None`` if the build
        can work with it.
        """
        found = self._problem()
        return found and f"{found[0]}; {found[1]}"

    @property
    def fault(self) -> str | None:
        """``problem`` without the fix."""
        found = self._problem()
        return found and found[0]

    def _problem(self) -> tuple[str, str] | None:
        head = head_version()
        found = f"The database has schema version {self.version or 'none'}"
        works = self.version == head or (self.newer and self.works_from in known_versions())
        if self.lacks:
            more = f" and {len(self.lacks) - _SHOWN} more" if self.lacks[_SHOWN:] else ""
            lacks = f"{found}, but lacks {', '.join(self.lacks[:_SHOWN])}{more}"
            if works:
                return lacks, f"restore a complete backup, or {_RECREATE}"
            return (
                f"{lacks}: a build older than the first schema that can be upgraded created it",
                _RECREATE,
            )
        if self.foreign:
            how = (
                "its tables differ from this build's: a build with another migration of this "
                "number made it"
            )
            return f"{found}, and {how}", f"run that build, or {_RECREATE}"
        if works:
            return None
        if self.newer:
            least = (
                f"; it needs a build with schema {self.works_from} or later"
                if self.works_from
                else ""
            )
            unknown = (
                f"{found}, which this build (schema {head}) does not know{least}. A newer "
                "version made it"
            )
            return unknown, "run that version, or restore an older backup"
        return f"{found}, this build needs {head}", "run: crawlctl db upgrade"

    def __str__(self) -> str:
        if self.newer and self.problem is None:
            return (
                f"{self.version}, which is newer than this build's {head_version()} and works "
                "with it"
            )
        return self.version or "none"


def schema_of(connection: Connection) -> Schema:
    """Return the schema of the database."""
    versioned = inspect(connection).has_table("alembic_version")
    found = Schema(
        connection.scalar(text("SELECT version_num FROM alembic_version")) if versioned else None
    )
    if found.version is None:
        # An interrupted upgrade can leave out tables but not columns, because each table is created
        # by one statement.
        return replace(
            found,
            lacks=tuple(
                column for column in _lacking(connection, first_columns()) if "." in column
            ),
        )
    if not found.newer and found.version != head_version():
        return replace(found, lacks=_lacking(connection, first_columns()))
    lacks = _lacking(
        connection, {table.name: frozenset(table.c.keys()) for table in metadata.sorted_tables}
    )
    if found.newer:
        # For a version that this build knows, ``works_from`` is not needed.
        told = inspect(connection).has_table(schema_compatibility.name)
        works_from = connection.scalar(select(schema_compatibility.c.works_from)) if told else None
        return replace(
            found, works_from=works_from, lacks=lacks if works_from in known_versions() else ()
        )
    kept = None if lacks else connection.scalar(select(schema_compatibility.c.fingerprint))
    return replace(found, lacks=lacks, foreign=not lacks and kept != head_fingerprint())


def _lacking(connection: Connection, wanted: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    """Return the missing tables, and the missing columns of existing tables."""
    found: dict[str, set[str]] = {}
    for table, column in connection.execute(text(_COLUMNS[connection.dialect.name])):
        found.setdefault(table, set()).add(column)
    tables = [f"table {table}" for table in sorted(wanted.keys() - found.keys())]
    return (
        *tables,
        *(
            f"{table}.{column}"
            for table in sorted(wanted.keys() & found)
            for column in sorted(wanted[table] - found[table])
        ),
    )


def read_schema(url: str) -> Schema:
    """Return the schema of the database at ``url``.

    A missing SQLite file has no schema, and is not created.

    Raises ``InvalidRequest`` for an invalid URL, and ``StoreUnavailable``.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").exists():
        return Schema(None)
    with Database.alone(parsed, _ANSWER_TIMEOUT_S) as database, database.reading() as connection:
        return schema_of(connection)


def upgrade(url: str) -> None:
    """Upgrade the database at ``url`` to the schema version of this build.

    Creates a SQLite file and its folder if needed.

    A second call changes nothing and needs only permission to read. Concurrent calls wait for each
    other. After the rollback of a deployment, a newer schema with which this build works is left
    unchanged. A migration skips tables and indexes that already exist. Raises ``InvalidRequest``,
    ``StoreUnavailable``, and ``NotInThisState`` for a schema with which this build cannot work: a
    newer schema, or a schema that no migration starts from.
    """
    found = read_schema(url)
    if found.version == head_version() and found.problem is None:
        return
    with _changing(url) as connection:
        _upgrade(connection)


def recreate(url: str) -> None:
    """Delete all tables of the database at ``url``, and create them anew.

    Raises the errors of ``upgrade``, and ``NotInThisState`` for a database that ``upgrade`` can
    upgrade.
    """
    with _changing(url) as connection:
        found = schema_of(connection)
        if not (found.lacks or found.foreign):
            why = found.problem or (
                f"The database has schema version {found}, which this build works with"
            )
            raise NotInThisState(
                "--recreate would delete all records in the database, which is not necessary. "
                f"{why}"
            )
        if connection.dialect.name == "mysql":
            connection.execute(text("SET SESSION foreign_key_checks = 0"))
        for table in (
            *(table.name for table in reversed(metadata.sorted_tables)),
            "alembic_version",
        ):
            connection.execute(text(f"DROP TABLE IF EXISTS {table}"))
        _upgrade(connection)


@contextmanager
def _changing(url: str) -> Iterator[Connection]:
    """Hold the lock of the schema. The changes are committed at the end."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    # On SQLite the writing transaction is the lock, and it rolls back a migration that fails. On
    # MySQL the version must be committed before the lock is released, so the commit is inside the
    # block.
    with (
        Database.alone(parsed, _ANSWER_TIMEOUT_S) as database,
        translated(),
        database.writer.connect() as connection,
        _locked(connection),
    ):
        yield connection
        connection.commit()


def _upgrade(connection: Connection) -> None:
    found = schema_of(connection)
    if found.newer or found.lacks or found.foreign:
        if found.problem is not None:
            raise NotInThisState(found.problem)
        return
    from alembic import command

    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    _record_build(connection, upgraded=found.version is not None)
    # Without a version, tables of any build may have existed, and "create if it does not exist"
    # kept them.
    if (problem := schema_of(connection).problem) is not None:
        raise NotInThisState(problem)


def _record_build(connection: Connection, *, upgraded: bool) -> None:
    """Record the fingerprint of this build, and the oldest version whose builds still work with
    this schema, which is the latest ``WORKS_FROM`` of all migrations. After an upgrade, also record
    how long a rollback is possible.
    """
    versions = known_versions()
    works_from = max((found["WORKS_FROM"] for found in _migrations()), key=versions.index)
    values = {"works_from": works_from, "fingerprint": head_fingerprint()}
    connection.execute(update(schema_compatibility).values(values))
    if upgraded:
        put_row(
            connection,
            process_note,
            {"kind": UPGRADE, "name": ""},
            {"note": "", "ends_at": utc_now() + ROLLBACK},
        )


@contextmanager
def _locked(connection: Connection) -> Iterator[None]:
    """Hold the lock of the schema.

    On MySQL this is a named lock of the session, because DDL statements commit there.
    """
    if connection.dialect.name == "sqlite":
        yield
        return
    # Named locks belong to the server and not to a database. A lock's name is limited to 64
    # characters.
    database = hashlib.sha256(str(connection.engine.url.database).encode()).hexdigest()[:16]
    name = f"crawler_lifecycle_schema_{database}"
    if (
        connection.execute(
            text("SELECT GET_LOCK(:name, :wait)"), {"name": name, "wait": _LOCK_WAIT_S}
        ).scalar()
        != 1
    ):
        raise StoreUnavailable(
            "Another process has been changing the schema for two minutes; wait, and try again"
        )
    try:
        yield
    finally:
        connection.execute(text("SELECT RELEASE_LOCK(:name)"), {"name": name})
