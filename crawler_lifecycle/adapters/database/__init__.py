"""The database: ``RunStore`` on SQLite, MySQL 8 and MariaDB, and its schema."""

from .diagnosis import Diagnosis, diagnose, sqlite_file, try_writing
from .engine import masked
from .schema import current_version, head_version, mismatch, upgrade
from .store import SqlRunStore, open_store

__all__ = [
    "Diagnosis",
    "SqlRunStore",
    "current_version",
    "diagnose",
    "head_version",
    "masked",
    "mismatch",
    "open_store",
    "sqlite_file",
    "try_writing",
    "upgrade",
]
