"""The access log, and tokens that the database keeps. Their SQL is frozen beside this module."""

from __future__ import annotations

from alembic import op

from crawler_lifecycle.store.migrations import ddl

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

WORKS_FROM = "0001"
FINGERPRINT = "760d4865ddb41654"


def upgrade() -> None:
    ddl.create_tables(op.get_bind(), "0004")


def downgrade() -> None:
    for table in ("access_token", "access_log"):
        op.drop_table(table)
