"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Level = Literal["ok", "warn", "bad"]


def counted(number: int, what: str) -> str:
    """``1 crawler``, ``2 crawlers``."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


@dataclass(frozen=True, slots=True)
class Line:
    """One finding: what was checked, how it is, and what to do about it."""

    check: str
    level: Level
    text: str
    cure: str | None = None

    def document(self) -> dict[str, str | None]:
        """For programs."""
        return asdict(self)
