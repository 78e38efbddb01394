"""The catalogue in the database: entries and their versions. Both tables are frozen beside this module."""

from __future__ import annotations

from alembic import op

from crawler_lifecycle.store.migrations import ddl

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

#: An older build does not know these entries, and reads the file only.
WORKS_FROM = "0001"
FINGERPRINT = "abae8b8c66fd3d73"


def upgrade() -> None:
    ddl.create_tables(op.get_bind(), "0015")


def downgrade() -> None:
    op.drop_table("catalogue_change")
    op.drop_table("catalogue_entry")
