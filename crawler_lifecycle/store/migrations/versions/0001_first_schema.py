"""The first schema: all tables of ``crawler_lifecycle.store.tables``.

Until release 1.0 this migration creates the tables as they are defined there, so a column is defined only once. For
release 1.0 the definitions are copied into this module, because a released migration must not change any more.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import Table, select
from sqlalchemy.schema import CreateTable

from crawler_lifecycle.store.audits.tables import schema_compatibility
from crawler_lifecycle.store.base.checks import with_checks
from crawler_lifecycle.store.base.outbox import outbox_counter
from crawler_lifecycle.store.runs.tables import pool_gate
from crawler_lifecycle.store.tables import metadata

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

#: The oldest schema version whose builds still work on this schema. Every migration has this constant.
WORKS_FROM = "0001"


def upgrade() -> None:
    connection = op.get_bind()
    # MySQL does not roll DDL back, so an interrupted upgrade may have left tables and indexes.
    for table in metadata.sorted_tables:
        connection.execute(CreateTable(with_checks(table), if_not_exists=True))
        # The order is the same everywhere, because it decides between query plans with the same cost.
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            index.create(connection, checkfirst=True)
    _first_row(outbox_counter, id=1, seq=0)
    _first_row(pool_gate, id=1, state={})
    _first_row(schema_compatibility, id=1, works_from=WORKS_FROM)


def downgrade() -> None:
    metadata.drop_all(op.get_bind())


def _first_row(table: Table, **values: object) -> None:
    if op.get_bind().execute(select(table)).first() is None:
        op.get_bind().execute(table.insert().values(values))
