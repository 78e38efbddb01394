"""The access log, and tokens that the database keeps. Their SQL is frozen beside this module."""

from __future__ import annotations

from alembic import op

from crawler_lifecycle.store.migrations import ddl

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

WORKS_FROM = "0001"
FINGERPRINT = "e1359fb36062c18a"


def upgrade() -> None:
    ddl.create_tables(op.get_bind(), "0003")


def downgrade() -> None:
    for table in ("access_token", "access_log"):
        op.drop_table(table)
