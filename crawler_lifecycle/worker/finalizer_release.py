"""Removes our finalizer from pods whose end is committed to the database.

Until then, the finalizer keeps the pods readable.

Each turn asks the cluster which ended tasks it keeps, and the database which of their outcomes are
committed. No decision depends on an earlier turn. Several workers can do this at the same time, and
any of them may die at any moment. A task without a row in the database is kept and reported, and an
audit decides about it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from crawler_lifecycle.background import Loop
from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain.audits.audit import RecordedTask
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.task import TERMINAL
from crawler_lifecycle.ports.cluster import EvidenceKeeper
from crawler_lifecycle.ports.files import SavedOutcome
from crawler_lifecycle.ports.runs import TaskRef
from crawler_lifecycle.store.runs.tasks import TaskReader

log = logging.getLogger(__name__)

#: Seconds until the next turn after a turn that released something, and the longest pause after
#: turns that released nothing.
TURN_S = 3.0
IDLE_S = 15.0
#: Seconds until the next turn after an error: the first pause and the longest pause.
RETRY_S = (5.0, 60.0)
#: The maximum number of ended tasks that one turn releases. If there are more, the next turn
#: follows immediately.
PAGE = 500
#: The time for which a pod is kept if its end was recorded without an exit code. Within this time,
#: an audit compares the pod with the record.
UNPROVED_FOR = timedelta(hours=1)

RELEASED = "released"
FAILED = "failed"
_ENDS = frozenset(str(status) for status in TERMINAL)


def releasable(
    kept: Iterable[SavedOutcome], rows: Mapping[tuple[int, int, int], RecordedTask], now: datetime
) -> list[SavedOutcome]:
    """Return the ended tasks in ``kept`` whose outcomes are in the database, with their debugging
    information.

    Rows of earlier attempts are included.
    """
    return [end for end in kept if _on_record(end, rows.get(end.key), now)]


def _on_record(end: SavedOutcome, row: RecordedTask | None, now: datetime) -> bool:
    if row is None or row.status not in _ENDS or row.staged or _has_no_row(end, row):
        return False
    proved = row.exit_code is not None or row.exit_signal is not None or not end.ran
    return proved or end.ended_at is None or now - end.ended_at >= UNPROVED_FOR


def _has_no_row(end: SavedOutcome, row: RecordedTask | None) -> bool:
    """Return whether ``row`` describes a different object.

    An object with the same name may belong to another installation.
    """
    if row is None:
        return True
    if end.uid is not None and end.uid == row.uid:
        return False
    # This is another run that had the same number before the database was restored.
    if end.run_uid != row.run_uid:
        return True
    if end.uid is None:
        return False
    # An ended row without a uid never had an object. For an open row the uid may not be recorded
    # yet.
    return row.uid is not None or row.status in _ENDS


@dataclass(eq=False)
class Releaser:
    """Releases ended tasks repeatedly in the event loop of a worker.

    Blocking calls run in threads.
    """

    keeper: EvidenceKeeper
    tasks: TaskReader
    clock: Clock = utc_now
    turn_s: float = TURN_S

    def __post_init__(self) -> None:
        self._pause = self.turn_s
        self._loop = Loop(
            "the release of ended tasks",
            self.turn_s,
            meanwhile="the cluster keeps them until then",
            retry_s=RETRY_S,
        )
        self._kept = self._unknown = 0
        self._last: float | None = None
        self.counts: Counter[str] = Counter()

    def state(self) -> Mapping[str, object]:
        """Return the state for a probe: the number of ended tasks that the cluster keeps, and the
        number of those without a row.
        """
        ago = None if self._last is None else round(time.monotonic() - self._last, 1)
        return {
            "kept": self._kept,
            "unknown": self._unknown,
            "problem": self._loop.failures.problem,
            "last_s": ago,
            **self.counts,
        }

    async def run(self) -> None:
        """Work until cancelled. Never raises."""
        await self._loop.run(self._next)

    async def _next(self) -> float:
        released, left = await asyncio.to_thread(self.turn)
        self._pause = self.turn_s if released else min(self._pause * 1.5, IDLE_S)
        return 0.0 if left else self._pause

    def turn(self) -> tuple[int, int]:
        """Release at most ``PAGE`` recorded ends.

        Return their number, and how many are left for the next turn.

        Raises ``LifecycleError``.
        """
        kept = self.keeper.kept()
        rows = (
            {row.key: row for row in self.tasks.recorded_tasks([end.key for end in kept])}
            if kept
            else {}
        )
        ready = releasable(kept, rows, self.clock())
        self._kept = len(kept)
        self._last = time.monotonic()
        self._report_unknown([end for end in kept if _has_no_row(end, rows.get(end.key))])
        chosen = ready[:PAGE]
        failure: LifecycleError | None = None
        for run, ends in groupby(chosen, key=lambda end: rows[end.key].run):
            refs = [TaskRef(rows[end.key].task_id, end.index, end.attempt, end.uid) for end in ends]
            try:
                self.keeper.release(run, refs)
                self.counts[RELEASED] += len(refs)
            except LifecycleError as error:  # continue with the tasks of the other runs
                self.counts[FAILED] += len(refs)
                failure = error
        if failure is not None:
            raise failure
        return len(chosen), len(ready) - len(chosen)

    def _report_unknown(self, ends: Sequence[SavedOutcome]) -> None:
        if len(ends) > self._unknown:
            run_id, index, attempt = ends[0].key
            log.warning(
                "the cluster keeps %s ended tasks that have no row in the database (one is task %s "
                "of run %s, attempt "
                "%s); crawlctl audit lists these tasks, crawlctl cluster release releases "
                "their pods",
                len(ends),
                index,
                run_id,
                attempt,
            )
        self._unknown = len(ends)
