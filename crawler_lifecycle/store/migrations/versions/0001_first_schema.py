"""The first schema. It is frozen as SQL beside this module, because it must never change with the tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from crawler_lifecycle.store.migrations import ddl

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

#: The oldest schema version whose builds still work on this schema. Every migration has this constant.
WORKS_FROM = "0001"
#: ``python -m tools.schema`` of the build that has this schema as its newest.
FINGERPRINT = "24cbc2bec71c7e59"


def upgrade() -> None:
    connection = op.get_bind()
    ddl.create_first(connection)
    rows: tuple[tuple[str, dict[str, object]], ...] = (
        ("outbox_counter", {"id": 1, "seq": 0}),
        ("pool_gate", {"id": 1, "state": "{}"}),
        ("schema_compatibility", {"id": 1, "works_from": WORKS_FROM}),
    )
    for table, values in rows:
        if connection.execute(sa.select(sa.text("1")).select_from(sa.table(table))).first() is None:
            connection.execute(sa.table(table, *(sa.column(name) for name in values)).insert().values(values))


def downgrade() -> None:
    for table in reversed(list(ddl.first_columns())):
        op.drop_table(table)
