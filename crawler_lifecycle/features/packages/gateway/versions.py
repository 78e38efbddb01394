"""The versions of a crawler, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.features.canaries.domain.canary import CanaryRow, CanaryState
from crawler_lifecycle.features.catalogue.store.entries import EntryStore
from crawler_lifecycle.ports.entries import CatalogueEntry
from crawler_lifecycle.web.problems import refused

from ..store.canaries import CanaryStore
from ..store.packages import PackageStore

#: The maximum number of versions that are shown.
SHOWN_MAX = 200


class CrawlerVersions:
    """The versions of crawlers: those of their packages, or those of their entries in the
    database. All methods block.
    """

    def __init__(
        self,
        packages: PackageStore,
        canaries: CanaryStore,
        entries: EntryStore,
    ) -> None:
        self._packages = packages
        self._canaries = canaries
        self._entries = entries

    def of_crawler(
        self, name: str, crawler: CrawlerDefinition | None
    ) -> Sequence[Mapping[str, Any]]:
        """Return the newest versions of a crawler, newest first; empty if it has none because its
        entry is in the catalogue's file.

        One is ``current``, and at most one is ``before``: it was in use before the current one.
        """
        if crawler is not None and crawler.package is not None:
            rows = self._of_package(crawler.package)
            before = self._packages.package_version_before(crawler.package)
        else:
            entry = self._entries.get_entry(name)
            rows = [] if entry is None else self._of_entry(entry)
            before = self._entries.entry_version_before(name)
        return [{**row, "before": row["version"] == before} for row in rows]

    def _of_package(self, package: str) -> Sequence[Mapping[str, Any]]:
        notes = self._notes(package=package)
        return [
            {
                "version": row.version,
                "current": row.current,
                "digest": row.digest,
                "at": row.created_at,
                "by": row.created_by,
                "note": row.note or notes.get(row.version),
            }
            for row in self._packages.versions(package, SHOWN_MAX)
        ]

    def _of_entry(self, entry: CatalogueEntry) -> Sequence[Mapping[str, Any]]:
        history = self._entries.entry_history(entry.name, limit=SHOWN_MAX)
        notes = self._notes(crawler=entry.name)
        return [
            {
                "version": str(row.number),
                "current": row.number == entry.number,
                "digest": None,
                "at": row.changed_at,
                "by": row.changed_by,
                "note": row.note or notes.get(str(row.number)),
            }
            for row in history
        ]

    def _notes(
        self, *, package: str | None = None, crawler: str | None = None
    ) -> dict[str, str | None]:
        """Return a sentence about the newest canary of each version of a package or entry."""
        tried = self._canaries.list_canaries(limit=SHOWN_MAX, package=package, crawler=crawler)
        return {row.new_version: _canary_note(row) for row in reversed(tried)}

    def use(
        self, name: str, crawler: CrawlerDefinition | None, version: str, by: str | None
    ) -> bool:
        """Make a version of a crawler the one that new runs execute. Return whether another one
        was.

        Raises ``Problem`` and ``LifecycleError`` if there is no such version.
        """
        if crawler is not None and crawler.package is not None:
            return self._packages.use_version(crawler.package, version, by).fresh
        if not version.isascii() or not version.isdigit():
            raise refused("version", "choose one of the versions on this page", version[:100])
        return self._entries.use_entry(name, int(version), by)[1]


def _canary_note(row: CanaryRow) -> str | None:
    if row.state is CanaryState.OPEN:
        return f"canary: {row.given} of {row.asked} new runs execute it (share {row.share:.0%})"
    return row.result
