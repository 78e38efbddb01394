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
FINGERPRINT = "d3c3a2dd6062c27f"


def upgrade() -> None:
    ddl.create_tables(op.get_bind(), "0010")


def downgrade() -> None:
    op.drop_table("incident")
