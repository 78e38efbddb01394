"""Incidents. Their SQL is frozen beside this module."""

from __future__ import annotations

from alembic import op

from crawler_lifecycle.store.migrations import ddl

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

#: An older build records no incidents, and reads none.
WORKS_FROM = "0001"
FINGERPRINT = "1f19be1efe499eb1"


def upgrade() -> None:
    ddl.create_tables(op.get_bind(), "0010")


def downgrade() -> None:
    op.drop_table("incident")
