"""Canaries of packages. Their SQL is frozen beside this module."""

from __future__ import annotations

from alembic import op

from crawler_lifecycle.store.migrations import ddl

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

#: An older build tries no versions. Its runs use the current ones.
WORKS_FROM = "0001"
FINGERPRINT = "470b5569e22593ac"


def upgrade() -> None:
    ddl.create_tables(op.get_bind(), "0016")


def downgrade() -> None:
    op.drop_table("canary")
