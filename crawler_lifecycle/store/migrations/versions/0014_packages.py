"""Packages with their versions. Their SQL is frozen beside this module."""

from __future__ import annotations

from alembic import op

from crawler_lifecycle.store.migrations import ddl

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

#: An older build deploys no packages, and its runs use none.
WORKS_FROM = "0001"
FINGERPRINT = "477a2b620ea3e329"


def upgrade() -> None:
    ddl.create_tables(op.get_bind(), "0014")


def downgrade() -> None:
    op.drop_table("package_version")
    op.drop_table("package")
