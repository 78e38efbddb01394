"""The database: ``RunStore`` on SQLite, MySQL 8 and MariaDB, and its schema."""

from .schema import current_version, head_version, mismatch, upgrade
from .store import SqlRunStore, open_store

__all__ = ["SqlRunStore", "current_version", "head_version", "mismatch", "open_store", "upgrade"]
