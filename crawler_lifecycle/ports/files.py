"""Files, logs and kept ends of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True, slots=True)
class KeptEnd:
    """The end of a task that its cluster keeps as evidence until it is released."""

    run_id: int
    index: int
    attempt: int
    uid: str | None = None
    run_uid: str | None = None
    """The uid of the run that it names."""
    ran: bool = True
    """True when its crawler ever executed, so that there is an exit code to be recorded."""
    ended_at: datetime | None = None

    @property
    def key(self) -> tuple[int, int, int]:
        return (self.run_id, self.index, self.attempt)


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of a task's log. ``next``: the position after it; ``ended``: nothing will ever follow it."""

    data: bytes
    next: int
    ended: bool


@dataclass(frozen=True, slots=True)
class TaskFileList:
    """Supporting files of a task: paths below its folder, with sizes, by path."""

    files: list[tuple[str, int]]
    left_out: int
    """Number of names that are no readable file, or exceed the limit."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a file, and the size of the whole file at this moment."""

    data: bytes
    size: int


class FilesMissing(Exception):
    """The supporting files of one task are not there, or not whole; the text says why. No error of the storage."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """The files that one task left, which go into an archive under ``prefix``: a folder, a bundle, or the reason why
    there are none.

    Exactly one of the three is given. Missing files are listed in the archive, and never treated as an empty folder.
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
