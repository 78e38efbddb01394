"""The versions of a crawler, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.features.catalogue.store.entries import EntryStore
from crawler_lifecycle.web.problems import refused

from ..domain.canary import CanaryRow, CanaryState
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
        """
        if crawler is not None and crawler.package is not None:
            found = self._packages.versions(crawler.package, SHOWN_MAX)
            tried = self._canaries.list_canaries(limit=SHOWN_MAX, package=crawler.package)
            notes = {row.new_version: _canary_note(row) for row in reversed(tried)}
            return [
                {
                    "version": row.version,
                    "current": row.current,
                    "digest": row.digest,
                    "at": row.created_at,
                    "by": row.created_by,
                    "note": row.note or notes.get(row.version),
                }
                for row in found
            ]
        entry = self._entries.get_entry(name)
        if entry is None:
            return []
        return [
            {
                "version": str(row.number),
                "current": row.number == entry.number,
                "digest": None,
                "at": row.changed_at,
                "by": row.changed_by,
                "note": row.note,
            }
            for row in self._entries.entry_history(name, limit=SHOWN_MAX)
        ]

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
