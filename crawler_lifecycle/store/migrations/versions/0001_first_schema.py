"""The first schema: runs, tasks, what is known about them, the outbox, and what audits find.

Until 1.0 it is what the tables say, so that a column has one place. The release of 1.0 writes it out here: from then on
a migration must go on meaning what it meant when it was released.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import Table, select
from sqlalchemy.schema import CreateTable

from crawler_lifecycle.store.audits.tables import schema_compatibility
from crawler_lifecycle.store.base.checks import with_checks
from crawler_lifecycle.store.base.outbox import outbox_counter
from crawler_lifecycle.store.tables import metadata

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

#: The oldest schema whose builds still work on this one; every migration says it.
WORKS_FROM = "0001"


def upgrade() -> None:
    connection = op.get_bind()
    # A start on MySQL that was cut off leaves the tables and indexes it had made: DDL is not undone there.
    for table in metadata.sorted_tables:
        connection.execute(CreateTable(with_checks(table), if_not_exists=True))
        # In one order everywhere: it decides between plans that cost the same.
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            index.create(connection, checkfirst=True)
    _first_row(outbox_counter, id=1, seq=0)
    _first_row(schema_compatibility, id=1, works_from=WORKS_FROM)


def downgrade() -> None:
    metadata.drop_all(op.get_bind())


def _first_row(table: Table, **values: object) -> None:
    if op.get_bind().execute(select(table)).first() is None:
        op.get_bind().execute(table.insert().values(values))
