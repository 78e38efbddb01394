"""Pools that people set. Their table is frozen beside this module. Minutes of sites count more requests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from crawler_lifecycle.store.migrations import ddl

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

#: An older build does not know these pools: it refuses new runs that name one, and ``default``
#: serves the present runs.
WORKS_FROM = "0001"
FINGERPRINT = "6e1997baafd770ee"


def upgrade() -> None:
    ddl.create_tables(op.get_bind(), "0017")
    ddl.change_type("site_minute", sa.Column("requests", sa.BigInteger, nullable=False))


def downgrade() -> None:
    # Older builds use the wider column without a change.
    op.drop_table("pool")
