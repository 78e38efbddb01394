"""The database: the ports of the store on SQLite, MySQL 8 and MariaDB, and its schema."""

from crawler_lifecycle.store.migrations.schema_version import (
    Schema,
    current_version,
    head_version,
    read_schema,
    upgrade,
)
from crawler_lifecycle.store.retention.owned_pruning import Place
from crawler_lifecycle.store.retention.pruning import Pruner, open_pruner

from .diagnosis import Diagnosis, diagnose, sqlite_file, try_writing
from .engine import masked
from .store import SqlStore, open_store

__all__ = [
    "Diagnosis",
    "Place",
    "Pruner",
    "Schema",
    "SqlStore",
    "current_version",
    "diagnose",
    "head_version",
    "masked",
    "open_pruner",
    "open_store",
    "read_schema",
    "sqlite_file",
    "try_writing",
    "upgrade",
]
