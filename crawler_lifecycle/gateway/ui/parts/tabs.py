"""The tabs of a subject's page. Each tab has an address of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tab:
    """A tab, and the number of things in it, if that is known."""

    word: str
    address: str
    count: str | None


def tabs_of(path: str, counts: Mapping[str, str | None]) -> list[Tab]:
    """Return the tabs of the subject at this path.

    ``counts`` has the count of each tab by its word. The first tab is at the path itself, and the
    others are below it: ``Due times`` is at ``/due-times``.
    """
    tabs: list[Tab] = []
    for word, count in counts.items():
        below = f"/{word.lower().replace(' ', '-')}" if tabs else ""
        tabs.append(Tab(word, path + below, count))
    return tabs


def tab_path(tabs: Sequence[Tab], word: str) -> str:
    """Return the path of the tab with this title. Raises ``KeyError``."""
    return {tab.word: tab.address for tab in tabs}[word]
