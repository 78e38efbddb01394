"""Supporting files of a run: where its tasks have them while that can be read here, else out of its newest archive."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.names import files_prefix
from crawler_lifecycle.domain.run_data import PIECE
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.cluster import LiveFiles
from crawler_lifecycle.ports.files import FilePart
from crawler_lifecycle.ports.runs import RunRow, TaskRef

from .archived import ArchivedFiles
from .shared import there

if TYPE_CHECKING:
    from crawler_lifecycle.store.runs.completion import ExportStore
    from crawler_lifecycle.store.runs.reads import RunReader
    from crawler_lifecycle.store.runs.tasks import TaskReader

#: Files that one answer names, and tasks whose folders are looked into for it.
FILES_MAX, TASKS_MAX = 2_000, 100
#: Files that one asker may read at the same time without beginning anew.
OPEN_MAX = 8
#: Bytes of a file that are read at once, and that its beginning has.
CHUNK, BEGINNING_MAX = 64 * 1024, 2 * 1024 * 1024
_OF_TASK = re.compile(r"task-([0-9]{1,9})(?:-attempt-([0-9]{1,9}))?/(.+)", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class RunFile:
    """A supporting file, by its name in the archive; while a task has it, by the task and its path there."""

    name: str
    bytes: int
    task_id: int | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class FileList:
    """Files that can be read now. ``readable``: whether any of this run can be read here at all."""

    readable: bool
    files: list[RunFile] = field(default_factory=list)
    left_out: int = 0
    note: str | None = None
    archive: int | None = None
    """The attempt whose archive they are in; ``None``: the tasks have them."""


@dataclass(slots=True)
class OpenedFile:
    """A file of this size now, and its bytes from the place ``at`` on, in pieces."""

    size: int
    pieces: Iterator[bytes]
    at: int = 0

    def part(self, first: int, end: int) -> Iterator[bytes]:
        """The bytes from ``first`` to before ``end``; an empty piece for each one that is passed over. Blocks."""
        while self.at < end and (piece := next(self.pieces, b"")):
            begin, stop = max(0, first - self.at), min(len(piece), end - self.at)
            if stop < len(piece):
                self.pieces = chain([piece[stop:]], self.pieces)
            self.at += stop
            yield piece[begin:stop]

    def beginning(self, most: int = BEGINNING_MAX) -> bytes:
        """At most so many of its first bytes. Blocks."""
        return b"".join(self.part(0, most))


@dataclass(frozen=True)
class RunFiles:
    """Reads files of runs. Methods block; they raise ``ClusterUnavailable`` and ``NotDelivered``.

    ``elsewhere`` says in words where tasks leave files that cannot be read here.
    """

    tasks: TaskReader
    exports: ExportStore
    live: LiveFiles | None
    archived: ArchivedFiles | None
    elsewhere: str

    def list(self, run: RunRow, of: TaskRef | None = None) -> FileList:
        """Files of the run, or of one of its tasks."""
        there = self._of_tasks(run.ref, of)
        record = None if there.readable else self._newest_archive(run.run_id)
        if record is None or self.archived is None:
            return there
        attempt, url, size = record
        prefix = f"{files_prefix(of.index, of.attempt)}/" if of is not None else ""
        named, left_out = self.archived.list(url, size, FILES_MAX)
        files = [RunFile(name, size) for name, size in named if name.startswith(prefix)]
        return FileList(True, files, left_out, f"from the archive of attempt {attempt}", attempt)

    def open(self, run: RunRow, name: str, offset: int = 0) -> OpenedFile | None:
        """The file with this name of the list; ``None`` when there is none that can be read here. It may be opened at
        this offset, or before it."""
        live = self._live_file(run.ref, name, offset)
        record = None if live is not None else self._newest_archive(run.run_id)
        if record is None or self.archived is None:
            return live
        _, url, size = record
        found = self.archived.open(url, size, name)
        return None if found is None else OpenedFile(*found)

    def of_task(self, run: RunRef, task: TaskRef, path: str, offset: int = 0) -> OpenedFile | None:
        """The file that a task has at this path now, as far as it is written; ``None`` when there is none."""
        live = self.live
        first = live.read(run, task, path, offset, CHUNK) if live is not None else None
        if live is None or first is None:
            return None
        return OpenedFile(first.size, _pieces(live, run, task, path, first, offset), offset)

    def _live_file(self, run: RunRef, name: str, offset: int) -> OpenedFile | None:
        parts = _OF_TASK.fullmatch(name)
        if parts is None or self.live is None:
            return None
        key = (run.run_id, int(parts[1]), int(parts[2] or 1))
        found = self.tasks.recorded_tasks([key])
        if not found:
            return None
        return self.of_task(run, TaskRef(found[0].task_id, key[1], key[2], found[0].uid), parts[3], offset)

    def _newest_archive(self, run_id: int) -> tuple[int, str, int] | None:
        """Attempt, address and size of the newest archive that is whole."""
        stored = [one for one in self.exports.list_exports(run_id) if one["status"] == "exported" and one["url"]]
        found = [(int(str(one["attempt"])), str(one["url"]), int(str(one["bytes"] or 0))) for one in stored]
        return max(found, default=None)

    def _of_tasks(self, run: RunRef, of: TaskRef | None) -> FileList:
        if self.live is None:
            return FileList(False, note=f"{self.elsewhere}; when the run has ended they come with its archive")
        rows = [] if of is not None else self.tasks.list_tasks(run.run_id, limit=TASKS_MAX + 1)
        tasks = [TaskRef(row.task_id, row.task_index, row.attempt, row.cluster_uid) for row in rows[:TASKS_MAX]]
        files: list[RunFile] = []
        left_out, here = 0, False
        for task in [of] if of is not None else tasks:
            listed = self.live.list(run, task, FILES_MAX - len(files))
            if listed is None:
                continue
            here = True
            left_out += listed.left_out
            prefix = files_prefix(task.index, task.attempt)
            files += [RunFile(f"{prefix}/{path}", size, task.task_id, path) for path, size in listed.files]
        if not here:
            return FileList(False, note="no task has a folder here: none has begun, or they were cleared away")
        more = (
            f"only those of the first {TASKS_MAX} tasks; ask with task= for others" if len(rows) > TASKS_MAX else None
        )
        return FileList(True, files, left_out, more)


class FileReading:
    """Reads files of runs on, for those who ask for piece after piece. Methods block and raise as those of
    ``RunFiles``; ``RunNotFound`` for a run that is not there."""

    def __init__(self, runs: RunReader, files: RunFiles) -> None:
        self._runs, self._files = runs, files
        self._open = OrderedDict[tuple[int, str, int], OpenedFile]()
        """Files that were read up to an offset: a member of an archive can only be read from its beginning."""

    def list(self, run_id: int) -> list[RunFile]:
        """The files of a run. Raises ``NotDelivered`` where none of it can be read here."""
        listed = self._files.list(there(self._runs.get_run(run_id), f"run {run_id}"))
        if not listed.readable:
            raise NotDelivered(f"files of run {run_id} cannot be read here: {listed.note}")
        return listed.files

    def read(self, run_id: int, name: str, offset: int) -> bytes:
        """At most ``PIECE`` bytes from this offset on; none at the end. Raises ``NotDelivered`` where the file is not
        there any more."""
        opened = self.open(run_id, name, offset)
        if opened is None:
            raise NotDelivered(f"run {run_id} has no file {name!r:.300} that can be read here")
        found = b"".join(opened.part(offset, offset + PIECE))
        self.keep(run_id, name, opened)
        return found

    def open(self, run_id: int, name: str, offset: int) -> OpenedFile | None:
        """The file at this offset or before it, as ``RunFiles.open``."""
        if (kept := self._open.pop((run_id, name, offset), None)) is not None:
            return kept
        return self._files.open(there(self._runs.get_run(run_id), f"run {run_id}"), name, offset)

    def keep(self, run_id: int, name: str, opened: OpenedFile) -> None:
        """Keep it for who reads on."""
        if 0 < opened.at < opened.size:
            self._open[run_id, name, opened.at] = opened
            if len(self._open) > OPEN_MAX:
                self._open.popitem(last=False)


def _pieces(live: LiveFiles, run: RunRef, task: TaskRef, path: str, first: FilePart, place: int) -> Iterator[bytes]:
    """The content that the file had when it was opened; what comes after is for the next question."""
    now: FilePart | None = first
    while place < first.size:
        if now is None or not now.data:
            raise NotDelivered(
                f"run {run.run_id}: {path!r:.300} was removed or cut at byte {place:,} while it was read"
            )
        data = now.data[: first.size - place]
        yield data
        place += len(data)
        now = live.read(run, task, path, place, CHUNK) if place < first.size else None
