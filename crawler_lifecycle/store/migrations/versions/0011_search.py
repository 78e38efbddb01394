"""The words by which searches find runs. Their SQL is frozen beside this module.

Gateways fill the words of earlier runs.
"""

from __future__ import annotations

from alembic import op

from crawler_lifecycle.store.migrations import ddl

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

#: An older build writes no words, so a search finds its runs only after their end.
WORKS_FROM = "0001"
FINGERPRINT = "ec4d1fc8f3c7d26c"


def upgrade() -> None:
    ddl.create_tables(op.get_bind(), "0011")


def downgrade() -> None:
    op.drop_table("run_word")
