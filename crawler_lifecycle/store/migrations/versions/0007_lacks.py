"""A verdict also records what a run lacks of what is expected."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from crawler_lifecycle.store.migrations import ddl

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

#: An older build records nothing here. Its runs that lack fields are then in no list of what needs attention.
WORKS_FROM = "0001"
FINGERPRINT = "41c33c7e653f82f0"


def upgrade() -> None:
    ddl.add_column(
        "run_history", sa.Column("lacks", sa.String(20)), sqlite_check="lacks IS NULL OR typeof(lacks) = 'text'"
    )
    ddl.fill_column("run_history", "run_id", "lacks", "outcome", "ended_by = 'service' AND outcome = 'coverage'")


def downgrade() -> None:
    op.drop_column("run_history", "lacks")
