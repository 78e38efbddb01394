"""The tables: one schema for SQLite, MySQL 8 and MariaDB.

Each table is defined in the package of its subject.

Importing this module defines all of them. The record of each feature lists the modules with its
tables.

Table and column names are a contract, because people build reports on them. The migrations in
``migrations/`` create exactly these tables; a test compares both on every database.

Every database compares strings by code point (``utf8mb4_bin``). With MySQL's default collation,
``Run-1`` and ``run-1`` would be the same request id.
"""

from crawler_lifecycle.features import FEATURES
from crawler_lifecycle.store import access, notes

from .audits import tables as audits
from .base import outbox
from .columns import metadata
from .runs import tables as runs

__all__ = ["access", "audits", "metadata", "notes", "outbox", "runs"]

for feature in FEATURES:
    for module in feature.tables:
        feature.load(module)
