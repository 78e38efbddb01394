"""Detects loops of redirects. Standard library only."""

from __future__ import annotations

from typing import Any

#: Redirects one after the other that are followed, as browsers do.
CHAIN_MAX = 20

#: Address, links from the start, where it was named.
Facts = tuple[str, int, "str | None"]


class Redirects:
    """Every address that was asked for and its target, kept in the crawl's state."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._to: dict[bytes, bytes] = state.setdefault("redirects", {})
        self._into: dict[bytes, list[tuple[bytes, Facts]]] = state.setdefault("redirected_from", {})
        self._caught: set[bytes] = state.setdefault("caught", set())

    def add(self, mark: bytes, target: bytes, facts: Facts) -> list[Facts]:
        """One more redirect; those of which it shows that they lead into a loop, each told once."""
        self._to[mark] = target
        self._into.setdefault(target, []).append((mark, facts))
        place = target
        while place != mark and place in self._to and place not in self._caught:
            place = self._to[place]
        if place != mark and place not in self._caught:
            return []
        found, todo = [], [(mark, facts)]
        while todo:
            one, its = todo.pop()
            if one not in self._caught:
                self._caught.add(one)
                found.append(its)
                todo.extend(self._into.get(one, ()))
        return found
