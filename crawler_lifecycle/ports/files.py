"""Values that describe files and logs of tasks, and ended tasks whose evidence a cluster keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SavedOutcome:
    """The end of a task, which the cluster keeps as evidence until the task is released."""

    run_id: int
    index: int
    attempt: int
    uid: str | None = None
    run_uid: str | None = None
    """The uid of the run that the task belongs to, according to the task itself."""
    ran: bool = True
    """True if the task's crawler was executed, so that an exit code has to be recorded."""
    ended_at: datetime | None = None

    @property
    def key(self) -> tuple[int, int, int]:
        return (self.run_id, self.index, self.attempt)


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of a task's log. ``next`` is the position after this part. ``ended`` is true if the
    log will not grow.
    """

    data: bytes
    next: int
    ended: bool


@dataclass(frozen=True, slots=True)
class TaskFileList:
    """Supporting files of a task, sorted by path. Each entry has the path below the task's folder
    and the size in bytes.
    """

    files: list[tuple[str, int]]
    left_out: int
    """The number of names that are not listed, because they exceed the limit or are not names of
    readable files.
    """


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a file, and the current size of the whole file."""

    data: bytes
    size: int


class FilesMissing(Exception):
    """The supporting files of a task are missing or incomplete. The message explains why. The
    storage itself is available.
    """


@dataclass(frozen=True, slots=True)
class FileSource:
    """The files that one task left, for an archive in which they are stored under ``prefix``.

    Exactly one of ``folder``, ``bundle`` and ``missing`` is given. Missing files are listed in the
    archive, and never treated as an empty folder.
    """

    prefix: str
    folder: Path | None = None
    bundle: Callable[[], Iterator[bytes]] | None = None
    """Opens a ``tar.gz`` that the task uploaded. Opening and reading raise ``FilesMissing`` if
    bytes are missing, and ``NotDelivered`` if the bytes cannot be read now.
    """
    missing: str | None = None
    """The reason why the task has no files."""
    root: Path | None = None
    """A folder above ``folder`` that only we can change. Crawlers can write below this folder, so
    links below it are not followed.
    """
