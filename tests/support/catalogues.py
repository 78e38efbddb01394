"""The readers of the catalogue in a test's database."""

from __future__ import annotations

from crawler_lifecycle.adapters.catalogue import NOTHING_OWNED
from crawler_lifecycle.features.catalogue.adapters import StoredEntries
from crawler_lifecycle.store.store import Store


def stored_in(store: Store) -> StoredEntries:
    """Return the readers for this database, where no name is reserved."""
    return StoredEntries(store.entries, NOTHING_OWNED)
