"""The schema as SQL, and its fingerprint: ``python -m tools.schema [sqlite|mysql]``.

The fingerprint goes into the newest migration whenever the tables change. A released migration
never changes.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator

from sqlalchemy import Dialect
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from crawler_lifecycle.store.base.checks import with_checks
from crawler_lifecycle.store.tables import metadata

DIALECTS: dict[str, Dialect] = {"sqlite": sqlite.dialect(), "mysql": mysql.dialect()}  # type: ignore[no-untyped-call]


def statements(dialect: Dialect) -> Iterator[str]:
    """Yield the statements that create all tables of this build, with their constraints and
    indexes.
    """
    for table in metadata.sorted_tables:
        created = CreateTable(with_checks(table), if_not_exists=True).compile(dialect=dialect)
        yield "\n".join(line.rstrip() for line in str(created).strip().splitlines())
        # The order is the same everywhere, because it decides between query plans with the same
        # cost.
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            yield str(CreateIndex(index).compile(dialect=dialect))


def fingerprint() -> str:
    """Return the fingerprint of the tables of this build: columns, types, constraints and
    indexes.
    """
    texts = (
        statement for dialect in DIALECTS.values() for statement in sorted(statements(dialect))
    )
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


if __name__ == "__main__":
    if sys.argv[1:]:
        print(";\n\n".join(statements(DIALECTS[sys.argv[1]])) + ";")
    else:
        print(fingerprint())
