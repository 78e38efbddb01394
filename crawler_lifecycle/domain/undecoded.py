"""A value that could not be decoded, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Undecoded:
    """The stand-in for a payload that cannot be read."""

    why: str
    locked: bool = False
    """True when it is encrypted with a key that this process does not have: with the key it can be read."""

    def __str__(self) -> str:
        return self.why
