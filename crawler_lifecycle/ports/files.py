"""Values for files and logs of tasks, and for ended tasks whose evidence a cluster keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SavedOutcome:
    """The end of a task that its cluster keeps as evidence until it is released."""

    run_id: int
    index: int
    attempt: int
    uid: str | None = None
    run_uid: str | None = None
    """The uid of the run that the task names."""
    ran: bool = True
    """True when the crawler of the task executed, so that an exit code has to be recorded."""
    ended_at: datetime | None = None

    @property
    def key(self) -> tuple[int, int, int]:
        return (self.run_id, self.index, self.attempt)


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of a task's log.

    ``next`` is the position after this part. ``ended`` is true when the log will not grow any more.
    """

    data: bytes
    next: int
    ended: bool


@dataclass(frozen=True, slots=True)
class TaskFileList:
    """Supporting files of a task, sorted by path.

    Each has its path below the folder of the task, and its size in bytes.
    """

    files: list[tuple[str, int]]
    left_out: int
    """Number of names that are not listed: they are no readable file, or exceed the limit."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a file, and the size of the whole file at this moment."""

    data: bytes
    size: int


class FilesMissing(Exception):
    """The supporting files of one task are missing or incomplete; the text explains why.

    The storage itself works.
    """


@dataclass(frozen=True, slots=True)
class FileSource:
    """The files that one task left. They go into an archive under ``prefix``.

    Exactly one of ``folder``, ``bundle`` and ``missing`` is given. Missing files are listed in the
    archive, and never treated as an empty folder.
    """

    prefix: str
    folder: Path | None = None
    bundle: Callable[[], Iterator[bytes]] | None = None
    """Opens a ``tar.gz`` that the task uploaded. Opening and reading raise ``FilesMissing`` when
    bytes are missing, and ``NotDelivered`` when they cannot be read now."""
    missing: str | None = None
    """The reason why the task has no files."""
    root: Path | None = None
    """A folder above ``folder`` that only we can change. Crawlers may write below it, so no link
    there is followed.
    """
