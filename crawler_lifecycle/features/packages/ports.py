"""The ports and values of packages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, ClassVar, Protocol

from .domain.version import Spider


class CodeStore(Protocol):
    """Keeps zips of code. All methods block, and raise ``NotDelivered`` if the store is
    unavailable.
    """

    def put(self, digest: str, file: IO[bytes]) -> None:
        """Store the zip with these contents, completely or not at all."""

    def open(self, digest: str) -> IO[bytes]:
        """Open a zip. Raises ``NotDelivered`` if it is missing, too."""

    def remove(self, digest: str) -> None:
        """Remove a zip, which may be missing."""

    def stored(self, digest: str | None = None) -> Iterator[tuple[str, datetime]]:
        """Yield the digest of each zip, or of this one if it is there, and the time at which it was
        stored last.
        """


class Inspector(Protocol):
    """Finds the spiders of Scrapy projects."""

    def spiders(self, folder: Path) -> object:
        """Import the project in this folder in a process of its own, and return the unchecked
        report of that process. Raises ``UserCodeFailed``.
        """


@dataclass(frozen=True, slots=True)
class InspectionOrder:
    """The input of an inspection: the digest of the code."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    digest: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """The spiders of a Scrapy project by name, or the reason why they are unknown."""

    spiders: list[Spider] = field(default_factory=list)
    problem: str | None = None
    """The end of the traceback, or another reason."""
