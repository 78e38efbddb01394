"""Finds and repairs overdue polls and lost workflows every 15 s, whatever the cause.

This module asks Temporal about each run with an overdue poll or a workflow that was just ended from
outside, and about each manager, graph, webhook and due time that needs a workflow. If the workflow
is missing, the repair of the audit starts one. If the workflow of a run is open, it is woken once
for each due poll, and the delay is reported. A poll is therefore made at most 60 s after it was
due, unless the database, Temporal or all workers are unavailable.

No repair depends on an earlier turn. Several workers can do this at the same time, and any of them
may die at any moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from crawler_lifecycle.background import Loop
from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain.audits.audit import LiveRun, ReportedFinding
from crawler_lifecycle.domain.audits.overdue import SEARCH_S, overdue_before
from crawler_lifecycle.domain.errors import LifecycleError, RowUnreadable
from crawler_lifecycle.domain.names import workflow_id
from crawler_lifecycle.store.audits.reads import OverdueStore

log = logging.getLogger(__name__)

#: The maximum number of runs about which one turn asks Temporal. The next turn continues after
#: them.
PAGE = 500
#: The number of failed runs after which a turn ends early. The next turn continues after them.
FAILED_MAX = 3

#: The maximum number of starts to which one turn gives priority: two per second. These starts do
#: not delay stops, and every start is reached eventually.
STARTS_MAX = 30

TAKEN_OVER = "taken_over"
WOKEN = "woken"
LEFT = "left"


@dataclass(eq=False)
class Overdue:
    """Searches and repairs repeatedly in the event loop of a worker.

    Blocking calls run in threads.

    ``take_over`` repairs a run without an open workflow, and returns ``None`` for a run whose
    workflow is open. ``wake`` sends ``poll_now`` to a workflow id. ``begin`` gives a workflow the
    highest priority, because on an overloaded machine there may always be steps of started runs,
    which take precedence over starts. Each of ``searches`` repairs lost workflows of one kind, such
    as those of managers, and returns how many are lost. ``note`` reports an overdue poll; repeated
    calls change nothing.
    """

    store: OverdueStore
    take_over: Callable[[LiveRun], ReportedFinding | None]
    wake: Callable[[str], Awaitable[bool]]
    searches: Sequence[Callable[[], int]] = ()
    note: Callable[[LiveRun], bool] = lambda run: False
    begin: Callable[[str], Awaitable[None]] | None = None
    clock: Clock = utc_now
    every_s: float = SEARCH_S
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._after: tuple[datetime, int] | None = None
        self._woken: dict[int, datetime | None] = {}
        self._overdue = self._lost = 0
        self._loop = Loop("the search for overdue polls and lost workflows", self.every_s)

    def state(self) -> Mapping[str, object]:
        """Return the state for a probe: overdue polls and lost workflows in the last turn, and
        repairs since the start.
        """
        return {
            "overdue": self._overdue,
            "lost": self._lost,
            "problem": self._loop.failures.problem,
            **self.counts,
        }

    async def run(self) -> None:
        """Search until cancelled. Never raises."""
        await self._loop.run(self._next)

    async def _next(self) -> None:
        errors = list[LifecycleError]()
        try:
            await self.turn()
        except LifecycleError as error:  # still search for the lost workflows below
            errors.append(error)
        lost = 0
        for search in self.searches:
            try:
                lost += await asyncio.to_thread(search)
            except LifecycleError as error:
                errors.append(error)
        self._lost = lost
        if errors:
            raise errors[0]

    async def turn(self) -> int:
        """Repair one page of overdue runs. Return their number. Raises ``LifecycleError``."""
        now = self.clock()
        before = overdue_before(now)
        self._overdue = (await asyncio.to_thread(self.store.overdue_polls, now)).count
        page = await asyncio.to_thread(self.store.overdue_runs, before, self._after, PAGE)
        # The next turn continues after this page. After the last page, it starts again.
        self._after = (page[-1].due_at or before, page[-1].run_id) if len(page) >= PAGE else None
        if len(page) < PAGE:
            found = {run.run_id for run in page}
            self._woken = {run_id: due for run_id, due in self._woken.items() if run_id in found}
        errors = list[LifecycleError]()
        starts = 0
        for run in page:
            try:
                await self._repair(run)
                if self.begin is not None and run.owner_run_id is None and starts < STARTS_MAX:
                    starts += 1
                    await self.begin(workflow_id(run.crawler, run.request_id))
            except LifecycleError as error:  # a failing run must not delay the others
                log.warning(
                    "the overdue poll of run %d cannot be repaired now: %s", run.run_id, error
                )
                errors.append(error)
                if len(errors) == FAILED_MAX:
                    self._after = (run.due_at or before, run.run_id)
                    break
        if errors:
            raise errors[0]
        return len(page)

    async def _repair(self, run: LiveRun) -> None:
        new = run.planned and self._woken.get(run.run_id) != run.due_at
        if new:
            with suppress(RowUnreadable):  # an unreadable row is reported elsewhere
                await asyncio.to_thread(self.note, run)
        done = await asyncio.to_thread(self.take_over, run)
        if done is not None:
            self.counts[TAKEN_OVER if done.repaired else LEFT] += 1
        elif new and run.owner_workflow_id is not None:
            # A workflow without a planned wait is busy, and a signal would only make its history
            # longer.
            self._woken[run.run_id] = run.due_at
            log.warning(
                "the poll of run %d was due at %s; waking its workflow", run.run_id, run.due_at
            )
            await self.wake(run.owner_workflow_id)
            self.counts[WOKEN] += 1
