"""The tables: one schema for SQLite, MySQL 8 and MariaDB. Each table is defined in the package of its subject.

Table and column names are a contract, because people build reports on them. The migrations in ``migrations/`` create
exactly these tables; a test compares both on every database.

Every database compares texts by code point (``utf8mb4_bin``). With the default collation of MySQL, ``Run-1`` and
``run-1`` would be the same request id.
"""

from __future__ import annotations

from . import access, notes, webhooks
from .audits import tables as audits
from .base import outbox
from .columns import metadata
from .graphs import tables as graphs
from .managers import tables as managers
from .runs import tables as runs
from .schedules import tables as schedules

__all__ = ["access", "audits", "graphs", "managers", "metadata", "notes", "outbox", "runs", "schedules", "webhooks"]
