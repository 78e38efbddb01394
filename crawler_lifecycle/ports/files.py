"""Files, logs and kept ends of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True, slots=True)
class KeptEnd:
    """The end of a task that its cluster keeps for the sake of evidence until it is released."""

    run_id: int
    index: int
    attempt: int
    uid: str | None = None
    run_uid: str | None = None
    """Of the run that it says it is of."""
    ran: bool = True
    """True when its crawler ever executed, so that there is an exit code to be recorded."""
    ended_at: datetime | None = None

    @property
    def key(self) -> tuple[int, int, int]:
        return (self.run_id, self.index, self.attempt)


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of a task's log. ``next`` is the place after it; ``ended``: nothing will ever come after that."""

    data: bytes
    next: int
    ended: bool


@dataclass(frozen=True, slots=True)
class TaskFileList:
    """Supporting files of a task: paths below its folder, with sizes, by path."""

    files: list[tuple[str, int]]
    left_out: int
    """Names that are no readable file, or one too many."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a file, and how large all of it is at this moment."""

    data: bytes
    size: int


class FilesMissing(Exception):
    """The supporting files of one task are not there, or not whole; the text says why. No error of the storage."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """The files that one task left, which go into an archive under ``prefix``: a folder, a bundle, or nothing and why.

    Exactly one of the three is given. What is missing is told in the archive, and never taken for an empty folder.
    """

    prefix: str
    folder: Path | None = None
    bundle: Callable[[], Iterator[bytes]] | None = None
    """Opens the bytes of a ``tar.gz`` that the task uploaded. It, or the reading, raises ``FilesMissing`` when they are
    not there or end too early, and ``NotDelivered`` when they cannot be read now."""
    missing: str | None = None
    """The reason why there is nothing."""
    root: Path | None = None
    """A folder above ``folder`` that is ours alone: below it crawlers may write, and no link is followed."""
