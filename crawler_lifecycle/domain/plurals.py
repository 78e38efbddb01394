"""Numbers with their nouns and units, for messages and web pages."""

from __future__ import annotations


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 run``, ``0 runs`` or ``1,200 runs``.

    ``plural`` is needed if the plural is not the noun with an s.
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def duration(seconds: float) -> str:
    """Return a duration in whole units, the largest one or two: ``44 s``, ``2 min 44 s``, ``3 h 2
    min`` or ``5 d 1 h``.
    """
    whole = max(0, int(seconds))
    for large, name, small, part in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= large:
            rest = whole % large // small
            return f"{whole // large} {name}" + (f" {rest} {part}" if rest else "")
    return f"{whole} s"
