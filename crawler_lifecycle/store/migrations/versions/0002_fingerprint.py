"""A database keeps the fingerprint of its tables, so that a build finds out whether another build made them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from crawler_lifecycle.store.migrations import ddl

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

WORKS_FROM = "0001"
FINGERPRINT = "6dfd8badaca70b8c"


def upgrade() -> None:
    ddl.add_column(
        "schema_compatibility",
        sa.Column("fingerprint", sa.String(16)),
        sqlite_check="fingerprint IS NULL OR typeof(fingerprint) = 'text'",
    )


def downgrade() -> None:
    with op.batch_alter_table("schema_compatibility") as table:
        if op.get_bind().dialect.name == "sqlite":
            table.drop_constraint("ck_schema_compatibility_types_fingerprint", "check")
        table.drop_column("fingerprint")
