"""Finds overdue looks and lost workflows every 15 s, and repairs them, whatever the cause.

It asks Temporal about each run with an overdue look, and about each manager, graph, webhook and due time that needs a
workflow. Without a workflow, one is started by the audit's own repair; a run with an open workflow is woken, once for
each due look, and the reason why it does not continue is reported. So it takes at most 60 s from due to looked at,
unless the database or Temporal do not answer, or no worker does.

Level-triggered: it remembers nothing that matters, any number of workers may do this at once, and one that dies in the
middle costs nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from crawler_lifecycle.activities.audits.parents import OWNED
from crawler_lifecycle.background import Loop
from crawler_lifecycle.domain.audits.audit import LiveRun, Reported
from crawler_lifecycle.domain.audits.overdue import SEARCH_S, overdue_before
from crawler_lifecycle.domain.errors import LifecycleError, RowUnreadable
from crawler_lifecycle.store.audits.reads import OverdueStore

log = logging.getLogger(__name__)

#: The most runs about which one turn asks Temporal; the next turn continues after them.
PAGE = 500
#: Number of failed runs after which a turn is given up; the next one continues after them.
FAILED_MAX = 3

TAKEN_OVER, WOKEN, LEFT = "taken_over", "woken", "left"


class Overdue:
    """Turn after turn, in the event loop of a worker; what blocks happens in threads.

    ``take_over`` puts a run right that nobody works for, and answers ``None`` for one whose workflow is open. ``wake``
    sends ``look_now`` to a workflow id; ``search`` sees to one kind of what has no looks, and says how many are lost;
    ``note`` tells of an overdue look, once for each.
    """

    def __init__(
        self,
        store: OverdueStore,
        take_over: Callable[[LiveRun], Reported | None],
        wake: Callable[[str], Awaitable[bool]],
        search: Callable[[str], int] = lambda what: 0,
        *,
        note: Callable[[LiveRun], bool] = lambda run: False,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        every_s: float = SEARCH_S,
    ) -> None:
        self._store = store
        self._take_over = take_over
        self._wake = wake
        self._search = search
        self._note = note
        self._clock = clock
        self._after: tuple[datetime, int] | None = None
        self._told: dict[int, datetime | None] = {}
        self._noted: dict[int, datetime | None] = {}
        self._overdue = self._lost = 0
        self._loop = Loop("the search for overdue looks and lost workflows", every_s)
        self.counts: Counter[str] = Counter()

    def state(self) -> Mapping[str, object]:
        """For a probe: what was overdue or lost at the last turn, and the repairs since the start."""
        return {"overdue": self._overdue, "lost": self._lost, "problem": self._loop.failures.problem, **self.counts}

    async def run(self) -> None:
        """Until it is cancelled. Raises nothing."""
        await self._loop.run(self._next)

    async def _next(self) -> None:
        troubles = list[LifecycleError]()
        try:
            await self.turn()
        except LifecycleError as error:  # parents without looks are not delayed by it
            troubles.append(error)
        lost = 0
        for what in OWNED:
            try:
                lost += await asyncio.to_thread(self._search, what)
            except LifecycleError as error:
                troubles.append(error)
        self._lost = lost
        if troubles:
            raise troubles[0]

    async def turn(self) -> int:
        """Repair one page of overdue runs. Returns how many. Raises ``LifecycleError``."""
        before = overdue_before(self._clock())
        self._overdue = (await asyncio.to_thread(self._store.overdue_looks, before)).count
        page = await asyncio.to_thread(self._store.overdue_runs, before, self._after, PAGE)
        # The next one begins where this one ended, or anew.
        self._after = (page[-1].due_at or before, page[-1].run_id) if len(page) >= PAGE else None
        if len(page) < PAGE:
            found = {run.run_id for run in page}
            self._told = {run_id: due for run_id, due in self._told.items() if run_id in found}
            self._noted = {run_id: due for run_id, due in self._noted.items() if run_id in found}
        troubles = list[LifecycleError]()
        for run in page:
            try:
                await self._see_to(run)
            except LifecycleError as error:  # one failing run does not delay the others
                log.warning("the overdue look of run %d is not seen to now: %s", run.run_id, error)
                troubles.append(error)
                if len(troubles) == FAILED_MAX:
                    self._after = (run.due_at or before, run.run_id)
                    break
        if troubles:
            raise troubles[0]
        return len(page)

    async def _see_to(self, run: LiveRun) -> None:
        if run.planned and self._noted.get(run.run_id) != run.due_at:
            with suppress(RowUnreadable):  # a person is notified of that elsewhere
                await asyncio.to_thread(self._note, run)
            self._noted[run.run_id] = run.due_at
        done = await asyncio.to_thread(self._take_over, run)
        if done is not None:
            self.counts[TAKEN_OVER if done.repaired else LEFT] += 1
        elif run.planned and run.owner_workflow_id is not None and self._told.get(run.run_id) != run.due_at:
            # A workflow without a planned wait is at work; a signal would only make its history longer.
            self._told[run.run_id] = run.due_at
            log.warning("the look of run %d that was due at %s has not come; woken", run.run_id, run.due_at)
            await self._wake(run.owner_workflow_id)
            self.counts[WOKEN] += 1
