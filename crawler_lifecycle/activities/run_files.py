"""Reads a run's supporting files from the folders of its tasks or, if the folders are not readable
here, from the run's archives. The files of a run are the files of all tries that count
(``domain/tries.py``). A try whose folder was removed is read from the newest archive that has its
files.
"""

from __future__ import annotations

import binascii
import re
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain.bounds import ID_MAX, refusal
from crawler_lifecycle.domain.code import Code
from crawler_lifecycle.domain.errors import InvalidRequest, NotDelivered, NotYetDelivered
from crawler_lifecycle.domain.item_code import code_groups
from crawler_lifecycle.domain.names import files_prefix
from crawler_lifecycle.domain.run import DELIVERY_S
from crawler_lifecycle.domain.run_data import PIECE
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.tries import counting, own_items
from crawler_lifecycle.ports.cluster import LiveFiles
from crawler_lifecycle.ports.files import FilePart
from crawler_lifecycle.ports.runs import RunRow, TaskRef

from .archived import ArchivedFiles
from .shared import alive, beating, there

if TYPE_CHECKING:
    from crawler_lifecycle.store.runs.completion import ExportStore
    from crawler_lifecycle.store.runs.reads import RunReader
    from crawler_lifecycle.store.runs.tasks import TaskReader

#: Maximum number of files in one list, and in a list for a whole run.
FILES_MAX = 2_000
ALL_FILES = 20_000
#: Maximum number of tries whose files are listed. If a whole run has more tries or files, the list
#: is refused.
TRIES_MAX = 10_000
#: Total time in seconds that one reader waits for archives, and seconds between two checks.
WAIT_S = 30.0
CHECK_S = 0.5
#: Maximum time of one read, in seconds. A piece far inside a compressed file takes longer.
READ_S = 60.0
#: Number of files that one reader can keep open, so that the next read need not start from the
#: beginning.
OPEN_MAX = 8
#: Number of bytes in one read from a file.
CHUNK = 64 * 1024
_OF_TASK = re.compile(r"task-([0-9]{1,9})(?:-attempt-([0-9]{1,9}))?/(.+)", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class RunFile:
    """A supporting file with its name in the archive. ``task_id`` and ``path`` are set while its
    task has the file.
    """

    name: str
    bytes: int
    task_id: int | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class FileList:
    """Files that can be read now. ``readable`` is false if no file of this run can be read here."""

    readable: bool
    files: list[RunFile] = field(default_factory=list)
    left_out: int = 0
    note: str | None = None
    archive: int | None = None
    """The attempt whose archive contains the files. ``None`` means that the files are in the tasks'
    folders.
    """
    items_missing: int = 0
    """The number of counted items whose files cannot be read here."""


@dataclass(slots=True)
class OpenedFile:
    """An open file: its size, and its remaining bytes in pieces, beginning at offset ``at``."""

    size: int
    pieces: Iterator[bytes]
    at: int = 0
    rest: bytes = b""
    """Bytes that were read but not returned yet."""

    def part(self, first: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from ``first`` up to, but not including, the byte at ``end``.

        Blocks. Each piece before ``first`` is yielded as an empty piece.
        """
        while self.at < end and (piece := self.rest or next(self.pieces, b"")):
            begin = max(0, first - self.at)
            stop = min(len(piece), end - self.at)
            self.rest = piece[stop:]
            self.at += stop
            yield piece[begin:stop]


@dataclass(frozen=True)
class RunFiles:
    """Reads files of runs. Methods block, and raise ``ClusterUnavailable`` and ``NotDelivered``.

    ``elsewhere`` is a sentence, for users, that names where tasks leave files that cannot be read
    here.
    """

    tasks: TaskReader
    exports: ExportStore
    live: LiveFiles | None
    archived: ArchivedFiles | None
    elsewhere: str

    def list(self, run: RunRow, of: TaskRef | None = None, *, whole: bool = False) -> FileList:
        """Return files of all tries of the run that count or, if ``of`` is given, of the tries
        whose items that task counts. If ``whole`` is true, the higher limit applies.
        """
        most = ALL_FILES if whole else FILES_MAX
        tries = self.tasks.tries(run.run_id)
        if of is not None:
            tries = [
                task_try
                for task_try in tries
                if task_try.task_index == of.index and task_try.task_id <= of.task_id
            ]
        tries = counting(tries)
        notes = list[str]()
        left_out = int(len(tries) > TRIES_MAX)
        if left_out:
            notes.append(
                f"only files of the first {TRIES_MAX:,} tasks; give task= for another task"
            )
            del tries[TRIES_MAX:]
        found: dict[int, list[RunFile]] = {}
        room = most
        for task_try in tries:
            listed = (
                None if self.live is None else self.live.list(run.ref, TaskRef.of(task_try), room)
            )
            if listed is not None:
                room -= len(listed.files)
                left_out += listed.left_out
                folder = files_prefix(task_try.task_index, task_try.attempt)
                found[task_try.task_id] = [
                    RunFile(f"{folder}/{path}", n, task_try.task_id, path)
                    for path, n in listed.files
                ]
        here = bool(found)
        archive = None
        for attempt, url, size in self._archives(run.run_id):
            wanted = {
                files_prefix(task_try.task_index, task_try.attempt): task_try.task_id
                for task_try in tries
                if task_try.task_id not in found
                and task_try.run_attempt <= attempt
                and (task_try.cluster_uid or not here)
            }
            if wanted and self.archived is not None:
                members, more = self.archived.list(url, size, ALL_FILES)
                left_out += more
                for name, n in members:
                    if (task_id := wanted.get(name.partition("/")[0])) is not None:
                        found.setdefault(task_id, []).append(RunFile(name, n))
                archive = archive or attempt
                notes.append(
                    f"{'some files are ' if here else ''}from the archive of attempt {attempt}"
                )
        if not here and archive is None:
            gone = "no task has a folder here: no task has begun, or the folders were removed"
            notes.append(
                gone
                if self.live
                else f"{self.elsewhere}; after the end of the run they are in its archive"
            )
        own = own_items(tries)
        lost = [
            task_try
            for task_try in tries
            if task_try.task_id not in found and own[task_try.task_id]
        ]
        missing = sum(own[task_try.task_id] for task_try in lost)
        if lost:
            first = files_prefix(lost[0].task_index, lost[0].attempt)
            notes.append(
                f"{missing:,} of {sum(own.values()):,} counted items cannot be read here: {first} "
                "has no files"
            )
        files = [file for task_try in tries for file in found.get(task_try.task_id, ())]
        left_out += len(files[most:])
        readable = here or archive is not None
        note = "; ".join(notes) or None
        return FileList(readable, files[:most], left_out, note, None if here else archive, missing)

    def open(self, run: RunRow, name: str, offset: int = 0) -> OpenedFile | None:
        """Open the file with this name. Return ``None`` if no such file can be read here. The file
        may be opened at this offset or at an offset before it.
        """
        if (live := self._live_file(run.ref, name, offset)) is not None:
            return live
        for _, url, size in self._archives(run.run_id):
            if (
                self.archived is not None
                and (found := self.archived.open(url, size, name)) is not None
            ):
                return OpenedFile(*found)
        return None

    def of_task(self, run: RunRef, task: TaskRef, path: str, offset: int = 0) -> OpenedFile | None:
        """Open a task's file at this path, up to its current size.

        Return ``None`` if there is no such file.
        """
        if (live := self.live) is None or (
            first := live.read(run, task, path, offset, CHUNK)
        ) is None:
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
        return self.of_task(
            run, TaskRef(found[0].task_id, key[1], key[2], found[0].uid), parts[3], offset
        )

    def _archives(self, run_id: int) -> Sequence[tuple[int, str, int]]:
        """Return the attempt, URL and size of each complete archive, the newest first."""
        if self.archived is None:
            return ()
        stored = [
            export
            for export in self.exports.list_exports(run_id)
            if export["status"] == "exported" and export["url"]
        ]
        found = [
            (int(str(export["attempt"])), str(export["url"]), int(str(export["bytes"] or 0)))
            for export in stored
        ]
        return sorted(found, reverse=True)

    def coming(self, run: RunRow, now: datetime) -> str | None:
        """Return the state of the archive for the run's newest attempt: ``exported``, ``empty`` or
        ``coming``. Return ``None`` if the run has not ended, or if no further export of the archive
        will be tried.
        """
        records = {
            export["attempt"]: str(export["status"])
            for export in self.exports.list_exports(run.run_id)
        }
        status = records.get(run.attempt)
        if status in ("exported", "empty"):
            return status
        tried = run.ended_at is not None and (now - run.ended_at).total_seconds() < DELIVERY_S
        return "coming" if run.status.terminal and tried else None


class OpenedFiles:
    """A cache of open files between two reads. Without this cache, each read of an archive's member
    would decompress the member from its beginning again.
    """

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._kept = OrderedDict[tuple[int, str, int], OpenedFile]()

    def open(self, run: RunRow, name: str, offset: int) -> OpenedFile | None:
        """Return the file, opened at this offset or before it, as ``RunFiles.open`` does."""
        return self._kept.pop((run.run_id, name, offset), None) or self._files.open(
            run, name, offset
        )

    def keep(self, run_id: int, name: str, opened: OpenedFile) -> None:
        """Keep the file open for the next read, unless it is at its beginning or at its end."""
        if 0 < opened.at < opened.size:
            self._kept[run_id, name, opened.at] = opened
            if len(self._kept) > OPEN_MAX:
                self._kept.popitem(last=False)


@dataclass
class FileReading:
    """Lists and reads files of runs, piece by piece.

    Methods block, and send heartbeats in the meantime. They raise the same errors as ``RunFiles``,
    ``RunNotFound`` for an unknown run, and ``InvalidRequest`` for a run that ``parent`` did not
    begin.
    """

    runs: RunReader
    files: RunFiles
    parent: str
    """The workflow whose runs may be read: the workflow id of a graph or, for all flows of the
    managers with one name, ``manager/NAME/``.
    """
    clock: Clock = utc_now
    late: bool = field(default=False, init=False)
    """True if an archive was not ready in time."""
    _waits_until: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._opened = OpenedFiles(self.files)

    def list(self, run_id: int) -> list[RunFile]:
        """Return the files of a run. Wait while the run's archive is not ready, for at most
        ``WAIT_S`` seconds in total. Raises ``NotYetDelivered`` after that time, and
        ``NotDelivered`` if no file of the run can be read here.
        """
        with beating():
            while True:
                run = self._run(run_id)
                listed = self.files.list(run, whole=True)
                if listed.readable and listed.archive in (None, run.attempt):
                    break
                state = self.files.coming(run, self.clock())
                if state != "coming" and listed.readable:
                    break
                if state == "empty":
                    return []
                if state is None:
                    raise NotDelivered(f"files of run {run_id} cannot be read here: {listed.note}")
                self._wait(run_id)
        if listed.left_out:
            raise InvalidRequest(
                f"run {run_id}: it has too many files to list; download its archive"
            )
        # If there is no file, the items may have been stored elsewhere.
        if listed.items_missing and listed.files:
            raise NotDelivered(f"run {run_id}: {listed.note}")
        return listed.files

    def codes(self, run_id: int) -> dict[str, Code]:
        """Return the known codes of the tries of a run, by the folders of their files."""
        return self.files.tasks.codes(self._run(run_id).run_id)

    def read(self, run_id: int, name: str, offset: int) -> bytes:
        """Return up to ``PIECE`` bytes, starting at this offset. At the end of the file, return no
        bytes. Raises ``NotDelivered`` if the file or its remaining part is missing.
        """
        if type(offset) is not int or not 0 <= offset <= ID_MAX:
            raise refusal("offset", offset, "give a whole number that is not negative")
        file = f"{name!r:.300}"
        found = bytearray()
        until = time.monotonic() + READ_S
        with beating():
            opened = self._opened.open(self._run(run_id), name, offset)
            if opened is None:
                raise NotDelivered(f"run {run_id} has no file {file} that can be read here")
            for piece in opened.part(offset, offset + PIECE):
                if time.monotonic() > until:
                    raise NotDelivered(
                        f"run {run_id}: {file} takes too long to read; read it from its beginning"
                    )
                found += piece
        if opened.at < min(offset + PIECE, opened.size):
            raise NotDelivered(
                f"run {run_id}: {file} was removed while it was being read; start over"
            )
        self._opened.keep(run_id, name, opened)
        return bytes(found)

    def _run(self, run_id: int) -> RunRow:
        if type(run_id) is not int or not 0 < run_id <= ID_MAX:
            raise refusal("run_id", run_id, "give the number of a run")
        run = there(self.runs.get_run(run_id), f"run {run_id}")
        if run.deleted_at is not None:
            raise NotDelivered(f"run {run_id} was deleted together with its files")
        whose = run.parent or ""
        if not (
            whose.startswith(self.parent)
            if self.parent.startswith("manager/")
            else whose == self.parent
        ):
            raise InvalidRequest(
                f"run_id: {self.parent} did not begin run {run_id}; give one of its own runs"
            )
        return run

    def _wait(self, run_id: int) -> None:
        now = time.monotonic()
        self._waits_until = self._waits_until or now + WAIT_S
        if now >= self._waits_until:
            self.late = True
            fix = f"try later; crawlctl export {run_id} shows the state of the archive"
            raise NotYetDelivered(f"the archive of run {run_id} is not ready yet; {fix}")
        alive()
        time.sleep(CHECK_S)


class FileQuestions:
    """Answers questions from ``domain.run_data.AskedFiles`` about files."""

    reading: FileReading

    def ask_files(self, run_id: int) -> object:
        return [[file.name, file.bytes] for file in self.reading.list(run_id)]

    def ask_codes(self, run_id: int) -> object:
        return code_groups(self.reading.codes(run_id))

    def ask_read(self, run_id: int, file: str, offset: int) -> object:
        return binascii.b2a_base64(self.reading.read(run_id, file, offset), newline=False).decode()


def _pieces(
    live: LiveFiles, run: RunRef, task: TaskRef, path: str, first: FilePart, offset: int
) -> Iterator[bytes]:
    """Yield the content that the file had when it was opened. Bytes that were added after that need
    another read.
    """
    now: FilePart | None = first
    while offset < first.size:
        # Otherwise the caller would take this part for the whole file.
        if now is None or not now.data:
            raise NotDelivered(
                f"run {run.run_id}: {path!r:.300} was removed while it was being read, or cut at "
                f"byte {offset:,}; start over"
            )
        data = now.data[: first.size - offset]
        yield data
        offset += len(data)
        now = live.read(run, task, path, offset, CHUNK) if offset < first.size else None
