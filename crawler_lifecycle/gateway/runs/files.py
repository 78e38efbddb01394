"""Supporting files of a run: where its tasks have them while that can be read here, else out of its newest archive."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.item_table import READ_MAX, ItemTable, item_table
from crawler_lifecycle.domain.names import files_prefix
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.cluster import LiveFiles
from crawler_lifecycle.ports.files import FilePart
from crawler_lifecycle.ports.protocols import FileArchive
from crawler_lifecycle.ports.runs import RunRow, TaskRef
from crawler_lifecycle.store.runs.exports import ExportStore
from crawler_lifecycle.store.runs.tasks import TaskReader

from .archived import ArchivedFiles

#: Files that one answer names, and tasks whose folders are looked into for it.
FILES_MAX, TASKS_MAX = 2_000, 100
#: Bytes of a file that are read at once.
CHUNK = 64 * 1024
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


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file of this size now, and its bytes, in pieces."""

    size: int
    pieces: Iterator[bytes]

    def beginning(self, most: int = READ_MAX) -> bytes:
        """At most so many of its first bytes. Blocks."""
        found = bytearray()
        for piece in self.pieces:
            found += piece
            if len(found) >= most:
                break
        return bytes(found[:most])


class RunFiles:
    """Reads files of runs. Methods block; they raise ``ClusterUnavailable`` and ``NotDelivered``.

    ``elsewhere`` says in words where tasks leave files that cannot be read here.
    """

    def __init__(
        self,
        tasks: TaskReader,
        exports: ExportStore,
        live: LiveFiles | None,
        archive: FileArchive | None,
        elsewhere: str | None = None,
    ) -> None:
        self._tasks, self._exports, self._live = tasks, exports, live
        self._archived = ArchivedFiles(archive) if archive is not None else None
        self._elsewhere = elsewhere or "they lie where this gateway cannot read"

    def list(self, run: RunRow, of: TaskRef | None = None) -> FileList:
        """Files of the run, or of one of its tasks."""
        there = self._of_tasks(run.ref, of)
        record = None if there.readable else self._newest_archive(run.run_id)
        if record is None or self._archived is None:
            return there
        attempt, url, size = record
        prefix = f"{files_prefix(of.index, of.attempt)}/" if of is not None else ""
        named, left_out = self._archived.list(url, size, FILES_MAX)
        files = [RunFile(name, size) for name, size in named if name.startswith(prefix)]
        return FileList(True, files, left_out, f"from the archive of attempt {attempt}", attempt)

    def open(self, run: RunRow, name: str) -> OpenedFile | None:
        """The file with this name of the list; ``None`` when there is none that can be read here."""
        live = self._live_file(run.ref, name)
        record = None if live is not None else self._newest_archive(run.run_id)
        if record is None or self._archived is None:
            return live
        _, url, size = record
        found = self._archived.open(url, size, name)
        return None if found is None else OpenedFile(*found)

    def of_task(self, run: RunRef, task: TaskRef, path: str) -> OpenedFile | None:
        """The file that a task has at this path now, as far as it is written; ``None`` when there is none."""
        live = self._live
        first = live.read(run, task, path, 0, CHUNK) if live is not None else None
        if live is None or first is None:
            return None
        return OpenedFile(first.size, _pieces(live, run, task, path, first))

    def table(self, run: RunRow, name: str) -> ItemTable | None:
        """The items in a file, of which at most ``READ_MAX`` bytes are read; ``None`` when there is no such file."""
        found = self.open(run, name)
        return None if found is None else item_table(name, found.beginning(), found.size)

    def _live_file(self, run: RunRef, name: str) -> OpenedFile | None:
        parts = _OF_TASK.fullmatch(name)
        if parts is None or self._live is None:
            return None
        key = (run.run_id, int(parts[1]), int(parts[2] or 1))
        found = self._tasks.recorded_tasks([key])
        if not found:
            return None
        return self.of_task(run, TaskRef(found[0].task_id, key[1], key[2], found[0].uid), parts[3])

    def _newest_archive(self, run_id: int) -> tuple[int, str, int] | None:
        """Attempt, address and size of the newest archive that is whole."""
        stored = [one for one in self._exports.list_exports(run_id) if one["status"] == "exported" and one["url"]]
        found = [(int(str(one["attempt"])), str(one["url"]), int(str(one["bytes"] or 0))) for one in stored]
        return max(found, default=None)

    def _of_tasks(self, run: RunRef, of: TaskRef | None) -> FileList:
        if self._live is None:
            return FileList(False, note=f"{self._elsewhere}; when the run has ended they come with its archive")
        rows = [] if of is not None else self._tasks.list_tasks(run.run_id, limit=TASKS_MAX + 1)
        tasks = [TaskRef(row.task_id, row.task_index, row.attempt, row.cluster_uid) for row in rows[:TASKS_MAX]]
        files: list[RunFile] = []
        left_out, here = 0, False
        for task in [of] if of is not None else tasks:
            listed = self._live.list(run, task, FILES_MAX - len(files))
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


def _pieces(live: LiveFiles, run: RunRef, task: TaskRef, path: str, first: FilePart) -> Iterator[bytes]:
    """The content that the file had when it was opened; what comes after is for the next question."""
    now: FilePart | None = first
    place = 0
    while now is not None and now.data:
        data = now.data[: first.size - place]
        yield data
        place += len(data)
        if place >= first.size:
            return
        now = live.read(run, task, path, place, CHUNK)
    if now is None:  # an end in silence would pass for all of it
        raise ClusterUnavailable(
            f"{path!r:.200} went while it was read: its run was deleted, or its files were cleared"
        )
