"""Numbers with their nouns, for messages and web pages."""

from __future__ import annotations


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 run``, ``0 runs`` or ``1,200 runs``.

    ``plural`` is needed if the plural is not the noun with an s.
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
