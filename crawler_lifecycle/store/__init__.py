"""The database, on SQLite, MySQL 8 and MariaDB. Only this package changes a status, always by compare-and-set."""

from crawler_lifecycle.store.migrations.schema_version import (
    Schema,
    head_version,
    read_schema,
    recreate,
    upgrade,
)
from crawler_lifecycle.store.retention.pruning import Place, Pruner, open_pruner

from .diagnosis import Diagnosis, diagnose, sqlite_file, try_writing
from .engine import StoreDamaged, masked
from .store import Store, open_store

__all__ = [
    "Diagnosis",
    "Place",
    "Pruner",
    "Schema",
    "Store",
    "StoreDamaged",
    "diagnose",
    "head_version",
    "masked",
    "open_pruner",
    "open_store",
    "read_schema",
    "recreate",
    "sqlite_file",
    "try_writing",
    "upgrade",
]
