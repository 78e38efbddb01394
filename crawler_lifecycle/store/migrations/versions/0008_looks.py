"""Looks are ordered by a number in the row of the run, which also has the interval of its looks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from crawler_lifecycle.store.migrations import ddl

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

#: An older build counts no looks. A newer one also compares the time of the last look, which every build writes.
WORKS_FROM = "0001"
FINGERPRINT = "fbc970bf0ec3f969"

_COLUMNS: dict[str, type[sa.Integer]] = {"look_revision": sa.Integer, "look_gap_ms": sa.BigInteger}


def upgrade() -> None:
    for name, kind in _COLUMNS.items():
        check = f"{name} IS NULL OR typeof({name}) = 'integer'"
        ddl.add_column("run_history", sa.Column(name, kind), sqlite_check=check)


def downgrade() -> None:
    for name in _COLUMNS:
        op.drop_column("run_history", name)
