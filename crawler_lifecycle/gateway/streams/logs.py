"""Logs of tasks, read from the cluster if possible, or else the end of the log that the database
keeps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.last_words import Read, last_error
from crawler_lifecycle.domain.log_search import (
    FoundLine,
    LogQuery,
    line_at,
    line_of,
    lines_around,
    search,
)
from crawler_lifecycle.domain.retention import pruned_through
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.gateway.access.slots import Slots
from crawler_lifecycle.gateway.metrics import Metrics
from crawler_lifecycle.ports.cluster import TaskLogs
from crawler_lifecycle.ports.files import LogPart
from crawler_lifecycle.ports.runs import TaskRef, TaskRow
from crawler_lifecycle.store.runs.reads import RunReader
from crawler_lifecycle.store.runs.tasks import TaskReader
from crawler_lifecycle.web.problems import Problem

from .responses import StreamedResponse

#: Bytes that are read and sent at a time.
CHUNK = 64 * 1024
#: Bytes at the end of a log in which the last error is searched for, and bytes at its beginning in
#: which lines are counted for a reader who follows its end.
ERROR_SEARCH_MAX = COUNTED_MAX = 256 * 1024 * 1024
#: The maximum number of lines that one search returns, and the seconds after which it returns the
#: lines found so far.
FOUND_MAX = 500
SEARCH_S = 3.0
#: The maximum number of bytes that are searched backwards for line breaks. A log may be one long
#: line.
BACK_MAX = 4 * 1024 * 1024
#: More lines than any stored log contains.
WHOLE = 1_000_000
#: Seconds between two reads of a log that is being followed.
FOLLOW_S = 0.3
#: Seconds between two checks of its task's status.
STATUS_S = 1.5
#: The maximum number of logs that are read at the same time: in total, and for one project.
THREADS = (6, 4)

T = TypeVar("T")
#: Reads a log, and the size of the log.
ReadableLog = tuple[Read, int]


@dataclass(frozen=True, slots=True)
class LoggedTask:
    """A task whose log is requested."""

    run: RunRef
    ref: TaskRef
    status: TaskStatus


@dataclass(frozen=True, slots=True)
class LogText:
    """The end of a log."""

    chunks: AsyncGenerator[bytes, None]
    first: int | None = None
    """The number of the first line; ``None`` if it was not counted."""


@dataclass(eq=False)
class LogReader:
    """Opens logs.

    Each result is a generator of bytes, which uses no thread while it waits, and memory for only
    one chunk. ``source`` is ``None`` if this gateway cannot read the output of tasks.
    """

    runs: RunReader
    tasks: TaskReader
    source: TaskLogs | None
    metrics: Metrics
    _closed: bool = False

    def __post_init__(self) -> None:
        # There are separate threads, because logs can be read from the cluster even if the database
        # hangs.
        self._threads = Slots(*THREADS)
        self._store_threads = Slots(*THREADS)

    def answer(
        self, chunks: AsyncGenerator[bytes, None], media_type: str, headers: Mapping[str, str]
    ) -> StreamedResponse:
        """Return a response that sends these bytes of a log and counts as a reader of logs."""
        readers = self.metrics.readers.labels("log")
        dropped = self.metrics.dropped.labels("log")
        return StreamedResponse(
            chunks, media_type, headers, entered=readers.inc, left=readers.dec, dropped=dropped.inc
        )

    def open(self) -> None:
        """Allow logs to be followed, even after ``close``."""
        self._closed = False

    def close(self) -> None:
        """End all responses that follow a log, after their present reading."""
        self._closed = True

    async def read(self, task: LoggedTask, lines: int, *, follow: bool) -> LogText:
        """Return the last ``lines`` lines of a task's log.

        With ``follow``, new output is added until the task has ended, and the lines before are
        counted, unless these are more than ``COUNTED_MAX`` bytes.

        Raises ``Problem`` 404 if no log can be read, and ``ClusterUnavailable``.
        """
        part = await self._part(task, None, CHUNK)
        if part is not None and not (part.ended and not part.next):
            begin = await self._line(task, part, lines)
            first = None
            if follow and begin <= COUNTED_MAX:
                line = await self._threads.run(None, line_at, partial(self._bytes, task), begin)
                first = line.number
            if follow and not part.ended:
                return LogText(self._follow(task, begin, seen=True), first)
            return LogText(self._copy(task, begin, part.next, lines), first)
        if follow and not task.status.terminal and self._may_come(task):
            return LogText(self._follow(task, 0, seen=False), 1)
        kept = await self._ask(self.tasks.log_tail, task.ref.task_id)
        if kept is None:
            raise self._missing(task, follow, await self._pruned(task))
        text = kept.encode()
        last = _last_lines(text, lines)
        return LogText(once(last), 1 + text.count(b"\n", 0, len(text) - len(last)))

    async def whole(self, task: LoggedTask) -> AsyncGenerator[bytes, None]:
        """Return the whole log of a task up to now, or else the stored end of it.

        Raises the same errors as ``read``.
        """
        part = await self._part(task, None, CHUNK)
        if part is not None and part.next:
            return self._copy(task, 0, part.next, WHOLE)
        return (await self.read(task, WHOLE, follow=False)).chunks

    async def around(
        self, task: LoggedTask, number: int | None, before: int, after: int
    ) -> tuple[FoundLine, int]:
        """Return the lines around a line of a task's log as one piece, and the number of that line.

        If ``number`` is ``None``, this is the line of the last error. If the log itself is not here
        or contains no error, the kept part of the log is searched instead. A number beyond the end
        means the last line.

        Raises ``Problem`` 404 if no log can be read or if it contains no error, and
        ``ClusterUnavailable``.
        """

        def around(logs: list[ReadableLog]) -> tuple[FoundLine, int]:
            for read, size in logs:
                line = _last_error(read, size) if number is None else line_of(read, size, number)
                if line is not None:
                    return lines_around(read, size, line, before, after), line.number
            detail = (
                f"the log of task {task.ref.task_id} contains no error; omit around to see its end"
            )
            raise Problem(404, "log_not_found", detail, run_id=task.run.run_id)

        return await self._search(task, around)

    async def matching(
        self, task: LoggedTask, query: LogQuery, number: int
    ) -> tuple[list[FoundLine], int | None]:
        """Return the matching lines of a task's log, starting at the line ``number``, and the
        number of the line at which the search has to continue.

        The second value is ``None`` if the search reached the end. Raises ``Problem`` 404 if no log
        can be read, and ``ClusterUnavailable``.
        """

        def matching(logs: list[ReadableLog]) -> tuple[list[FoundLine], FoundLine | None]:
            read, size = logs[0]
            first = line_of(read, size, number)
            # Waiting for a thread and finding the first line leave the search its time.
            until = time.monotonic() + SEARCH_S
            return search(read, size, query, first, FOUND_MAX, lambda: time.monotonic() > until)

        lines, next_line = await self._search(task, matching)
        return lines, None if next_line is None else next_line.number

    async def _search(self, task: LoggedTask, question: Callable[[list[ReadableLog]], T]) -> T:
        """Answer a question about a task's log, from the log itself or, failing that, from its kept
        part."""
        kept = await self._ask(self.tasks.log_tail, task.ref.task_id)
        last = (kept or "").encode()

        def ask() -> T | None:
            end = self._read(task, None, 1)
            logs: list[ReadableLog] = []
            if end is not None and (end.next or kept is None):
                logs.append((partial(self._bytes, task), end.next))
            if kept is not None:
                logs.append((lambda at, most: last[at : at + most], len(last)))
            return question(logs) if logs else None

        answer = await self._threads.run(None, ask)
        if answer is None:
            raise self._missing(task, False, await self._pruned(task))
        return answer

    def _may_come(self, task: LoggedTask) -> bool:
        """Return whether a missing log may still appear, because the task has not begun yet."""
        return self.source is not None and task.status in (TaskStatus.QUEUED, TaskStatus.PENDING)

    async def _pruned(self, task: LoggedTask) -> bool:
        """Return whether stored logs of this run were removed after its end."""
        return (
            task.status.terminal
            and pruned_through(await self._ask(self.runs.properties, task.run.run_id)) is not None
        )

    def _missing(self, task: LoggedTask, follow: bool, pruned: bool) -> Problem:
        state = f"task {task.ref.task_id} is {task.status} and has no log here; "
        if pruned:
            why = "the stored log was removed, because its run ended long ago (crawlctl db prune)"
        elif task.status.terminal:
            why = "no log was stored"
        elif self._may_come(task):
            why = "it prints nothing until it starts; follow=true waits for the first output"
        elif follow:
            why = (
                "this gateway cannot read logs of the cluster; the log's end is stored after the "
                "task has ended"
            )
        else:
            why = "the log's end is stored after the task has ended"
        return Problem(404, "log_not_found", state + why, run_id=task.run.run_id)

    async def _line(self, task: LoggedTask, part: LogPart, lines: int) -> int:
        """Return the position at which the last ``lines`` lines before ``part.next`` begin. It is
        at most ``BACK_MAX`` bytes earlier.
        """
        end = part.next
        size = len(part.data)
        while True:
            kept = len(_last_lines(part.data, lines))
            if kept < size or size >= min(end, BACK_MAX):
                return end - kept
            size = min(size * 8, BACK_MAX, end)
            found = await self._part(task, end - size, size)
            if found is None or len(found.data) < size:
                return end - kept  # the log has been shortened meanwhile
            part = found

    async def _copy(
        self, task: LoggedTask, position: int, end: int, lines: int
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes between two positions.

        If the log is gone before the first byte, yield its stored end.
        """
        begin = position
        while position < end:
            part = await self._part(task, position, min(CHUNK, end - position))
            if part is None or not part.data or part.next <= position:
                break
            yield part.data
            position = part.next
        if position == begin < end and (kept := await self._kept(task)) is not None:
            yield _last_lines(kept, lines)

    async def _follow(
        self, task: LoggedTask, position: int, *, seen: bool
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes after a position until the task has ended and its whole log has been
        sent.

        ``seen`` is true if the log has already been found. If it is never found, yield its stored
        end after the task has ended.
        """
        asked = self._now()
        over = task.status.terminal
        while not self._closed:
            try:
                part = await self._part(task, position, CHUNK)
            except LifecycleError:
                part = None  # an outage is not the end of a log
            seen = seen or part is not None
            if part is not None and part.data:
                position = part.next
                yield part.data
                if len(part.data) == CHUNK:
                    continue
            if part is not None and part.ended:
                return
            if over and (part is None or not part.data):
                break
            if self._now() - asked >= STATUS_S:
                over = await self._over(task)
                asked = self._now()
                if over:
                    continue  # read once more, because the last output came before the end
            await asyncio.sleep(FOLLOW_S)
        if not seen and over and (kept := await self._kept(task)) is not None:
            yield kept

    async def _over(self, task: LoggedTask) -> bool:
        """Return whether the task is recorded as ended, or its row is missing."""
        try:
            found = await self._ask(_row, self.tasks, task.run.run_id, task.ref.task_id)
        except LifecycleError:
            return False
        return found is None or found.status.terminal

    async def _kept(self, task: LoggedTask) -> bytes | None:
        try:
            kept = await self._ask(self.tasks.log_tail, task.ref.task_id)
        except LifecycleError:
            return None
        return None if kept is None else kept.encode()

    async def _part(self, task: LoggedTask, after: int | None, limit: int) -> LogPart | None:
        return await self._threads.run(None, self._read, task, after, limit)

    def _read(self, task: LoggedTask, after: int | None, limit: int) -> LogPart | None:
        return None if self.source is None else self.source.read(task.run, task.ref, after, limit)

    def _bytes(self, task: LoggedTask, after: int, limit: int) -> bytes:
        """Return bytes of the log itself; nothing if it is not here."""
        part = self._read(task, after, limit)
        return b"" if part is None else part.data

    async def _ask(self, question: Callable[..., T], *args: object) -> T:
        return await self._store_threads.run(None, question, *args)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def find_task(tasks: TaskReader, run: RunRef, task_id: int | None) -> LoggedTask:
    """Return the task with this id, or the run's main task. Raises ``Problem`` 404."""
    run_id = run.run_id
    if task_id is None:
        main = first_task(tasks, run, list(TaskStatus))
        if main is None:
            raise Problem(404, "task_not_found", f"run {run_id} has no tasks", run_id=run_id)
        return main
    row = _row(tasks, run_id, task_id)
    if row is None:
        fix = f"GET /v1/runs/{run_id}/tasks lists its tasks"
        raise Problem(
            404,
            "task_not_found",
            f"task {task_id} does not belong to run {run_id}; {fix}",
            run_id=run_id,
        )
    return LoggedTask(
        run, TaskRef(row.task_id, row.task_index, row.attempt, row.cluster_uid), row.status
    )


def first_task(tasks: TaskReader, run: RunRef, statuses: Sequence[TaskStatus]) -> LoggedTask | None:
    """Return the task in one of these statuses with the lowest index."""
    for state in tasks.task_page(run.run_id, statuses, limit=1):
        ref = TaskRef(state.task_id, state.index, state.attempt, state.uid)
        return LoggedTask(run, ref, state.status)
    return None


def _last_error(read: Read, size: int) -> FoundLine | None:
    found = last_error(read, size, ERROR_SEARCH_MAX)
    return None if found is None else line_at(read, found.at)


def _row(tasks: TaskReader, run_id: int, task_id: int) -> TaskRow | None:
    found = tasks.list_tasks(run_id, after_task_id=task_id - 1, limit=1, superseded=True)
    return found[0] if found and found[0].task_id == task_id else None


def _last_lines(data: bytes, lines: int) -> bytes:
    """Return the last lines. A last line without a line break counts, too."""
    if lines == 0:
        return b""
    position = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(lines):
        position = data.rfind(b"\n", 0, position)
        if position < 0:
            return data
    return data[position + 1 :]


async def once(data: bytes) -> AsyncGenerator[bytes, None]:
    """Yield the bytes if there are any."""
    if data:
        yield data
