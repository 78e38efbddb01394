"""The entries of the database, and the values about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition


@dataclass(frozen=True, slots=True)
class EntryMark:
    """An entry with the number of the version in use, without its document."""

    name: str
    project: str
    number: int
    """The number of the version, counted for each name from 1. It never means another document."""
    package: str | None
    """The package whose deployment made the entry; ``None`` if a person did."""


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """An entry with the document of the version that is in use."""

    name: str
    project: str
    number: int
    package: str | None
    document: Mapping[str, Any]
    changed_at: datetime
    """The time of the last change, which may be the return to an older version."""
    changed_by: str | None


@dataclass(frozen=True, slots=True)
class EntryVersion:
    """A version of an entry. It stays when the entry is deleted, because runs name it."""

    name: str
    number: int
    document: Mapping[str, Any]
    changed_at: datetime
    changed_by: str | None
    note: str | None
    """The reason for it, in the words of its author."""


def number_of(version: str) -> int:
    """Return the number of the version that a run names; 0, which no version has, for a name of
    another form.
    """
    return int(version) if version.isdecimal() and len(version) < 10 else 0


class Entries(Protocol):
    """The readers of the store of the catalogue (``store/entries.py``)."""

    def entry_marks(self) -> Sequence[EntryMark]: ...

    def list_entries(self) -> Sequence[CatalogueEntry]: ...

    def get_entry(self, name: str) -> CatalogueEntry | None: ...

    def entry_version(self, name: str, number: int) -> EntryVersion | None: ...

    def entry_history(
        self, name: str, before: int | None = None, limit: int = 50
    ) -> Sequence[EntryVersion]: ...


class ReadEntries(Protocol):
    """The entries of the database as crawlers."""

    @property
    def problem(self) -> str | None:
        """The reason why entries are missing."""

    def all(self) -> Mapping[str, CrawlerDefinition]: ...

    def get(self, name: str) -> CrawlerDefinition | None: ...
