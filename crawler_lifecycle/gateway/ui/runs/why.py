"""The lines around the last error in a log, for the page of a failed run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.domain.errors import RowUnreadable
from crawler_lifecycle.gateway.api.paging import LogChoice
from crawler_lifecycle.gateway.streams.logs import LoggedTask, LogReader, first_task
from crawler_lifecycle.ports.runs import RunRow

from .reading import FAILED, ShownLog, shown_log

#: Seconds that a page waits for the lines. After that, it shows only a link.
WAIT_S = 1.0
#: The maximum number of logs whose lines are kept.
KEPT_MAX = 200
_CHOICE = LogChoice(around="error", before=10, after=4)


@dataclass(frozen=True, slots=True)
class FailedTask:
    """A failed task of a run. ``log`` is ``None`` if its lines could not be read in time."""

    task_id: int
    index: int
    log: ShownLog | None


class ErrorLines:
    """Finds the error of a failed run.

    The lines are read once for each task, because its log no longer changes.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._kept: dict[int, asyncio.Task[ShownLog]] = {}

    async def of(self, row: RunRow) -> FailedTask | None:
        """Return the first failed task of an ended run, with the lines around its last error or, if
        there is none, the end of its log.
        """
        if not row.status.terminal or row.deleted_at is not None:
            return None
        try:
            task = await run_in_threadpool(first_task, self._reader.tasks, row.ref, FAILED)
        except RowUnreadable:  # the tasks tab names the unreadable row
            return None
        if task is None:
            return None
        return FailedTask(task.ref.task_id, task.ref.index, await self._lines(task))

    async def _read(self, task: LoggedTask) -> ShownLog:
        """Return the lines around the last error, or the end of a log without an error."""
        log = await shown_log(self._reader, task, _CHOICE)
        if log.away:
            log = await shown_log(self._reader, task, LogChoice())
        return log

    async def _lines(self, task: LoggedTask) -> ShownLog | None:
        key = task.ref.task_id
        if key not in self._kept:
            while len(self._kept) >= KEPT_MAX:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = asyncio.create_task(self._read(task))
        reading = self._kept[key]
        await asyncio.wait([reading], timeout=WAIT_S)
        if not reading.done():
            return None
        if reading.exception() or reading.result().away:
            self._kept.pop(key, None)  # the log may become readable later
        return reading.result()
