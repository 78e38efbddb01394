"""The tables, one schema for SQLite and for MySQL 8 / MariaDB; each stands in the room of its subject.

Table and column names are a contract: people build reports on them. The migrations in ``migrations/`` create exactly
this; a test compares the two on both databases.

All texts compare by code point on every database (``utf8mb4_bin``): the collation that MySQL would choose takes
``Run-1`` and ``run-1`` for one request id.
"""

from __future__ import annotations

from . import webhooks
from .audits import tables as audits
from .base import outbox
from .columns import metadata
from .graphs import tables as graphs
from .managers import tables as managers
from .runs import tables as runs
from .schedules import tables as schedules

__all__ = ["audits", "graphs", "managers", "metadata", "outbox", "runs", "schedules", "webhooks"]
