"""The catalogue of a process: the entries of its file, and those of the database."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import replace

from crawler_lifecycle.adapters.catalogue import read_document
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, merged, overridden
from crawler_lifecycle.domain.crawlers.pod import ReservedNames
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.ports.entries import CatalogueEntry, Entries, EntryMark, ReadEntries
from crawler_lifecycle.ports.protocols import Catalogue

logger = logging.getLogger(__name__)

_UNREADABLE = (
    "an entry of the database has keys that this build does not know, so its crawler is missing; "
    "our log names it"
)
#: The maximum number of entries that stay in memory after they were read.
_READ_MAX = 20_000


class StoredEntries:
    """Reads the entries of the database that the present caller may see.

    Each call asks the database which versions are in use, so a change counts at once. A document is
    read only once, because a version never changes.
    """

    def __init__(self, entries: Entries, owned: ReservedNames) -> None:
        self._entries = entries
        self._owned = owned
        self._lock = threading.Lock()
        self._read: dict[tuple[str, int], CrawlerDefinition | InvalidRequest] = {}
        self.problem: str | None = None
        """The reason why entries are missing. It names none, as they may be of other projects."""

    def all(self) -> dict[str, CrawlerDefinition]:
        """Return the entries by name, without those that this build cannot read."""
        marks = self._entries.entry_marks()
        with self._lock:
            if all((mark.name, mark.number) in self._read for mark in marks):
                return self._usable(marks)
        entries = self._entries.list_entries()
        with self._lock:
            if len(self._read) > _READ_MAX:
                self._read.clear()
            for entry in entries:
                self._read_once(entry)
            return self._usable(entries)

    def get(self, name: str) -> CrawlerDefinition | None:
        """Return the entry with this name; ``None`` if there is none that this build can read."""
        entry = self._entries.get_entry(name)
        if entry is None:
            return None
        with self._lock:
            self._read_once(entry)
            return self._usable([entry]).get(name)

    def _read_once(self, entry: CatalogueEntry) -> None:
        key = (entry.name, entry.number)
        if key not in self._read:
            try:
                found = read_document({**entry.document, "name": entry.name}, self._owned)
            except InvalidRequest as error:
                logger.warning("crawler %s, version %d: %s", *key, error)
                self._read[key] = error
            else:
                number = entry.number if found.package is None else None
                self._read[key] = replace(found, number=number)

    def _usable(self, marks: Iterable[EntryMark | CatalogueEntry]) -> dict[str, CrawlerDefinition]:
        entries = {mark.name: self._read[mark.name, mark.number] for mark in marks}
        found = {
            name: entry for name, entry in entries.items() if not isinstance(entry, InvalidRequest)
        }
        self.problem = None if len(found) == len(entries) else _UNREADABLE
        return found


class StoredCatalogue:
    """The port ``Catalogue`` of a worker: its file, and the database.

    An entry of the file wins over one of the database (``overridden``).
    """

    def __init__(self, file: Catalogue, stored: ReadEntries) -> None:
        self.file = file
        self._stored = stored

    @property
    def problem(self) -> str | None:
        """The reason why entries are missing or old."""
        return self.file.problem or self._stored.problem

    def get(self, name: str) -> CrawlerDefinition | None:
        """Return the crawler with this name, or ``None``."""
        found = self.file.get(name)
        if found is not None and found.package is None:
            return found
        stored = self._stored.get(name)
        if found is None or stored is None:
            return found or stored
        return overridden(stored, found)

    def all(self) -> list[CrawlerDefinition]:
        """Return all crawlers, those of the file first."""
        return list(merged(self.file.all(), self._stored.all()).values())
