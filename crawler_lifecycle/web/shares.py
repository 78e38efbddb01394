"""Shares of what a process has: requests and streams at once, bytes of bodies.

Owners stand in levels: a login below its token, a token below its project, a project below the
process. What one owner holds counts for all above it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

Owner = tuple[str, str]
"""A level, and the name of the owner on this level."""
PROCESS: Owner = ("process", "")


class Shares:
    """Counts what each owner holds."""

    def __init__(self) -> None:
        self.held = Counter[Owner]()

    def take(self, owners: Mapping[Owner, int], amount: int = 1) -> Owner | None:
        """Take this amount for all these owners; of each is given how much it may hold.

        Returns ``None``, or the first owner that would hold too much. Then nothing is taken.
        """
        for owner, most in owners.items():
            if self.held[owner] + amount > most:
                return owner
        for owner in owners:
            self.held[owner] += amount
        return None

    def give_back(self, owners: Iterable[Owner], amount: int = 1) -> None:
        """Give back what was taken for these owners."""
        for owner in owners:
            self.held[owner] -= amount
            if not self.held[owner]:
                del self.held[owner]
