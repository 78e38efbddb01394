"""Tasks record the code that they executed. The table of the codes of runs is frozen beside this module."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from crawler_lifecycle.store.migrations import ddl

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

#: An older build records no codes. Its tasks are the same as tasks whose code is unknown.
WORKS_FROM = "0001"
FINGERPRINT = "76cccebb8e01242a"

_COLUMNS = {"code_digest": 71, "code_version": 100, "code_commit": 64, "code_note": 200}


def upgrade() -> None:
    for name, length in _COLUMNS.items():
        check = f"{name} IS NULL OR typeof({name}) = 'text'"
        ddl.add_column("task_history", sa.Column(name, sa.String(length)), sqlite_check=check)
        ddl.add_column("task_change", sa.Column(name, sa.String(length)))
    ddl.create_tables(op.get_bind(), "0013")


def downgrade() -> None:
    op.drop_table("run_code")
    for table in ("task_history", "task_change"):
        for name in _COLUMNS:
            op.drop_column(table, name)
