"""Shares of a process's limits: concurrent requests and streams, and bytes of bodies.

Owners form levels: a login belongs to a token, a token to a project, and a project to the process.
Everything that one owner holds also counts for the owners above it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

Owner = tuple[str, str]
"""A level, and the name of the owner on that level."""
PROCESS: Owner = ("process", "")


class Shares:
    """Counts what each owner holds."""

    def __init__(self) -> None:
        self.held = Counter[Owner]()

    def take(self, owners: Mapping[Owner, int], amount: int = 1) -> Owner | None:
        """Take this amount for all these owners, each with the maximum that it can hold.

        Return ``None``, or the first owner that would hold too much. In that case, nothing is
        taken.
        """
        for owner, most in owners.items():
            if self.held[owner] + amount > most:
                return owner
        for owner in owners:
            self.held[owner] += amount
        return None

    def give_back(self, owners: Iterable[Owner], amount: int = 1) -> None:
        """Give back an amount that was taken for these owners."""
        for owner in owners:
            self.held[owner] -= amount
            if not self.held[owner]:
                del self.held[owner]
