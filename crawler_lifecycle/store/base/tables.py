"""Types, options and the metadata that all tables share."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, Column, Integer, LargeBinary, MetaData
from sqlalchemy.dialects import mysql

from crawler_lifecycle.store.columns import CAUSE_MAX, UtcTime, Words

Key = BigInteger().with_variant(Integer, "sqlite")

Long = Words(CAUSE_MAX, long=True)

Json = JSON(none_as_null=True)

Bytes = LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql")

OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    # Without it SQLite would give the id of a deleted last row to the next one.
    "sqlite_autoincrement": True,
}

metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "uq": "uq_%(table_name)s_%(column_0_N_name)s"}
)


def stop_columns() -> list[Column[Any]]:
    """The columns of a row that can be stopped: the intent (``unit.stop_of``)."""
    return [
        Column("stop_requested_at", UtcTime),
        Column("stop_force", Boolean, nullable=False),
        Column("stop_requested_by", Words(255)),
        Column("stop_reason", Long),
        Column("stop_limit", Words(200)),
        Column("stop_escalated", Boolean, nullable=False),
    ]
