"""Values that could not be decoded, and the reasons."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UndecodedPayload:
    """A stand-in for a payload that cannot be read."""

    why: str
    locked: bool = False
    """True if the payload is encrypted and this process does not have the key."""

    def __str__(self) -> str:
        return self.why
