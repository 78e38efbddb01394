"""Statements for migrations: the frozen first schema, and changes to large tables while services
use them.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Connection, func, inspect, literal_column, select, text, update
from sqlalchemy import column as sql_column
from sqlalchemy import table as sql_table
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import CreateColumn

_FOLDER = Path(__file__).parent / "versions"
_CREATES = re.compile(
    r"CREATE (?:TABLE IF NOT EXISTS|INDEX|UNIQUE INDEX) [`\"]?(\w+)[`\"]?(?: ON [`\"]?(\w+))?"
)
#: Seconds for which an ALTER waits for transactions that use its table. All later statements on the
#: table queue behind the ALTER, so the ALTER gives up early and is tried again.
_WAIT_S = 2
_TRIES = 60
#: The maximum number of rows that one transaction fills.
_ROWS = 10_000
#: Error numbers of MySQL and MariaDB: a lock timeout, and an algorithm that the server does not
#: support for a change.
_NOT_FREE = 1205
_NO_ALGORITHM = {1221, 1845, 1846, 4080, 4092}


def frozen_statements(dialect: str, version: str = "0001") -> list[str]:
    """Return the statements that create the tables of a version, which is the first schema by
    default.
    """
    return (
        (_FOLDER / f"{version}.{dialect}.sql").read_text().rstrip().removesuffix(";").split(";\n\n")
    )


@functools.cache
def first_columns() -> Mapping[str, frozenset[str]]:
    """Return the columns of each table of the first schema, in the order in which the tables are
    created.
    """
    found = {}
    for statement in frozen_statements("sqlite"):
        if (made := _CREATES.match(statement)) and not made[2]:
            found[made[1]] = frozenset(re.findall(r"^\t\"?([a-z_]+)\"? ", statement, re.MULTILINE))
    return found


def create_first(connection: Connection) -> None:
    """Create the first schema."""
    create_tables(connection, "0001")


def create_tables(connection: Connection, version: str) -> None:
    """Create the tables of a version.

    Existing tables and indexes are kept, because MySQL does not roll back an interrupted upgrade.
    """
    for statement in frozen_statements(connection.dialect.name, version):
        made = _CREATES.match(statement)
        if made is None or made[2] is None or not inspect(connection).has_index(made[2], made[1]):
            connection.exec_driver_sql(statement)


def add_column(table: str, column: Column[Any], *, sqlite_check: str = "") -> None:
    """Add a column, unless an interrupted upgrade has already added it.

    Services continue to read and write the table.

    ``sqlite_check`` is the type check of ``store.base.checks`` for the column on SQLite; columns of
    bytes have none.

    On MySQL and MariaDB this changes only the table's metadata, not its rows. The server refuses a
    change that is impossible in this way. The migration must then use a different method, and
    docs/deployment.md must name the table.
    """
    from alembic import op

    connection = op.get_bind()
    if column.name in {found["name"] for found in inspect(connection).get_columns(table)}:
        return
    statement = (
        f"ALTER TABLE {table} ADD COLUMN {CreateColumn(column).compile(dialect=connection.dialect)}"
    )
    if connection.dialect.name == "sqlite":
        statement += (
            f" CONSTRAINT ck_{table}_types_{column.name} CHECK ({sqlite_check})"
            if sqlite_check
            else ""
        )
        connection.exec_driver_sql(statement)
    else:
        _alter(connection, statement, ("INSTANT", "INPLACE"))


def add_index(table: str, name: str, *columns: str) -> None:
    """Add an index, unless it already exists.

    MySQL and MariaDB build it while services read and write the table.

    This reads the whole table once, which takes about a minute per few million rows.
    """
    from alembic import op

    connection = op.get_bind()
    if inspect(connection).has_index(table, name):
        return
    if connection.dialect.name == "sqlite":
        op.create_index(name, table, list(columns))
    else:
        _alter(
            connection, f"ALTER TABLE {table} ADD INDEX {name} ({', '.join(columns)})", ("INPLACE",)
        )


def change_type(table: str, column: Column[Any]) -> None:
    """Give a column of MySQL and MariaDB another type. A repeat changes nothing.

    The server copies the table, and writes to the table wait; docs/deployment.md must name the
    table. SQLite stores every integer in any column of integers, so it needs no change.
    """
    from alembic import op

    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        return
    connection.execute(text(f"SET SESSION lock_wait_timeout = {_WAIT_S}"))
    made = CreateColumn(column).compile(dialect=connection.dialect)
    _patiently(connection, f"ALTER TABLE {table} MODIFY COLUMN {made}")


def replace_check(table: str, name: str, before: str, after: str) -> None:
    """Replace a constraint of ``store.base.checks``. No other table may refer to this one.

    All databases copy the table, and writes to the table wait; docs/deployment.md must name the
    table.
    """
    from alembic import op

    connection = op.get_bind()
    constraint = f"CONSTRAINT ck_{table}_{name}"
    if connection.dialect.name != "sqlite":
        connection.execute(text(f"SET SESSION lock_wait_timeout = {_WAIT_S}"))
        # MySQL before 8.0.16 has no CHECK constraints.
        if not inspect(connection).get_check_constraints(table):
            return
        drop = "CONSTRAINT" if getattr(connection.dialect, "is_mariadb", False) else "CHECK"
        statement = (
            f"ALTER TABLE {table} DROP {drop} ck_{table}_{name}, ADD {constraint} CHECK ({after})"
        )
        _patiently(connection, statement)
        return
    query = text(
        "SELECT sql FROM sqlite_master WHERE tbl_name = :name AND sql IS NOT NULL ORDER BY type "
        "DESC, name"
    )
    create, *indexes = connection.execute(query, {"name": table}).scalars()
    # An interrupted upgrade has already replaced the constraint.
    if f"{constraint} CHECK ({before})" not in create:
        return
    for statement in (
        f"ALTER TABLE {table} RENAME TO {table}_before",
        create.replace(f"{constraint} CHECK ({before})", f"{constraint} CHECK ({after})"),
        f"INSERT INTO {table} SELECT * FROM {table}_before",  # noqa: S608
        f"DROP TABLE {table}_before",
        *indexes,
    ):
        connection.exec_driver_sql(statement)


def fill_column(table: str, key: str, column: str, value: str, where: str) -> None:
    """Set a new column to the SQL ``value`` in the rows that match ``where`` and have null.

    Each transaction changes few rows, so no service waits long. After an interruption, the next
    upgrade continues.
    """
    from alembic import op

    connection = op.get_bind()
    rows = sql_table(table, sql_column(key), sql_column(column))
    number = rows.c[key]
    filled = rows.c[column]
    last = connection.scalar(select(func.max(number))) or 0
    for after in range(0, last, _ROWS):
        page = (number > after, number <= after + _ROWS, filled.is_(None), text(where))
        connection.execute(update(rows).where(*page).values({filled: literal_column(value)}))
        if connection.dialect.name != "sqlite":  # on SQLite the transaction is the lock
            connection.commit()


def _alter(connection: Connection, statement: str, algorithms: tuple[str, ...]) -> None:
    connection.execute(text(f"SET SESSION lock_wait_timeout = {_WAIT_S}"))
    for tried, algorithm in enumerate(algorithms, 1):
        lock = "" if algorithm == "INSTANT" else ", LOCK=NONE"
        try:
            _patiently(connection, f"{statement}, ALGORITHM={algorithm}{lock}")
            return
        except OperationalError as error:
            if _code(error) not in _NO_ALGORITHM or tried == len(algorithms):
                raise


def _patiently(connection: Connection, statement: str) -> None:
    for left in reversed(range(_TRIES)):
        try:
            connection.execute(text(statement))
            return
        except OperationalError as error:
            if _code(error) != _NOT_FREE or not left:
                raise
            time.sleep(1.0)


def _code(error: OperationalError) -> object:
    return error.orig.args[0] if error.orig is not None and error.orig.args else None
