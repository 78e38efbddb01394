"""The versions of packages and entries that were in use before the present ones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from crawler_lifecycle.store.migrations import ddl

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

#: An older build changes versions without this record, which then names one that was in use earlier.
WORKS_FROM = "0001"
FINGERPRINT = "4adb99b490f5a936"


def upgrade() -> None:
    text = "former IS NULL OR typeof(former) = 'text'"
    ddl.add_column("package", sa.Column("former", sa.String(64)), sqlite_check=text)
    number = "former IS NULL OR typeof(former) = 'integer'"
    ddl.add_column("catalogue_entry", sa.Column("former", sa.Integer), sqlite_check=number)


def downgrade() -> None:
    op.drop_column("package", "former")
    op.drop_column("catalogue_entry", "former")
