"""Notes that processes leave for each other. Their SQL is frozen beside this module."""

from __future__ import annotations

from alembic import op

from crawler_lifecycle.store.migrations import ddl

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

#: An older build leaves no notes, and reads none.
WORKS_FROM = "0001"
FINGERPRINT = "71c6607bdc17ca20"


def upgrade() -> None:
    ddl.create_tables(op.get_bind(), "0005")


def downgrade() -> None:
    op.drop_table("process_note")
