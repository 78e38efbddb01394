"""Ends of logs are compressed. What is there stays as text until it is pruned."""

from __future__ import annotations

import zlib
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from crawler_lifecycle.store.migrations import ddl

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

#: An older build finds no text in what this build writes; nothing that it does depends on a log.
WORKS_FROM = "0001"
FINGERPRINT = "e3e42e5a55561059"


def upgrade() -> None:
    kind = sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql")
    ddl.add_column("task_log", sa.Column("compressed", kind))


def downgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        driver: Any = connection.connection.driver_connection
        driver.create_function("UNCOMPRESS", 1, lambda data: zlib.decompress(data[4:]).decode())
    op.execute("UPDATE task_log SET log_tail = UNCOMPRESS(compressed) WHERE compressed IS NOT NULL")
    op.drop_column("task_log", "compressed")
