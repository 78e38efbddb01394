"""The sweep: finds what was accepted but never reached Temporal, and brings it there.

A gateway may die between its database and Temporal, or Temporal may be down at that moment. Both leave a row that says
what was accepted. Several gateways may sweep at once: starts find the open workflow, stops are known by their id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.activities.run_commands import workflow_ids
from crawler_lifecycle.background import Loop
from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.domain.run import StopRequest
from crawler_lifecycle.ports import RunReader, RunRow, SweepStore
from crawler_lifecycle.temporal.client import Workflows

from .commands import Commands

logger = logging.getLogger(__name__)

#: Younger rows are left to the request that wrote them.
GRACE = timedelta(seconds=10)
#: A row that stays is tried again ever more rarely: each signal is an event in a workflow's history.
RETRY_MAX = timedelta(minutes=10)


class Sweep:
    """One round with ``once``, rounds for ever with ``run``."""

    def __init__(
        self,
        sweep: SweepStore,
        runs: RunReader,
        workflows: Workflows,
        commands: Commands,
        *,
        every_s: float = 15.0,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._sweep = sweep
        self._runs = runs
        self._workflows = workflows
        self._commands = commands
        self._every_s = every_s
        self._clock = clock
        self._tried: dict[tuple[str, int], tuple[datetime, timedelta]] = {}
        self._loop = Loop("the sweep for accepted work", every_s)

    async def run(self) -> None:
        """Sweep until it is cancelled. Raises nothing."""
        await self._loop.run(self._next)

    async def _next(self) -> None:
        await self.once()

    async def once(self) -> int:
        """One round; how many runs it started or told. Raises ``LifecycleError``."""
        mended, due = 0, self._clock() - GRACE
        unowned = await run_in_threadpool(self._sweep.unowned_runs, due)
        unheard = await run_in_threadpool(self._sweep.unheard_stops, due)
        self._forget({("start", r.run_id) for r in unowned} | {("stop", r.run_id) for r in unheard})
        for row in unowned:
            mended += await self._mend("start", row)
        for row in unheard:
            mended += await self._mend("stop", row)
        return mended

    async def _mend(self, what: str, row: RunRow) -> int:
        if not self._is_due((what, row.run_id)):
            return 0
        if row.unreadable is not None:
            logger.error("the %s of run %d waits until its row is mended: %s", what, row.run_id, row.unreadable)
            return 0
        try:
            if what == "start":
                await self._commands.take_over(row)
            else:
                await self._tell(row)
        except TemporalUnavailable:
            del self._tried[what, row.run_id]
            raise
        except Exception:
            logger.exception("the %s of run %d could not be brought to Temporal", what, row.run_id)
            return 0
        logger.info("brought the %s of run %d to Temporal", what, row.run_id)
        return 1

    async def _tell(self, row: RunRow) -> None:
        logged = await run_in_threadpool(self._runs.cancellations, row.run_id)
        ours = [entry for entry in logged if entry.get("attempt") == row.attempt]
        if ours:
            last = ours[-1]
            # Under its own id: the workflow may have heard it, and must not log a second stop.
            stop = StopRequest(
                str(last["request_id"]),
                _text(last.get("requested_by")),
                _text(last.get("reason")),
                any(bool(entry.get("force")) for entry in ours),
            )
            await self._commands.tell_stop(row, stop)
            return
        # A limit's stop, recorded by a workflow: if that is open it knows, if not another one has to go on.
        for candidate in workflow_ids(row):
            if await self._workflows.is_open(candidate):
                return
        await self._commands.take_over(row)

    def _is_due(self, key: tuple[str, int]) -> bool:
        now = self._clock()
        next_at, wait = self._tried.get(key, (now, timedelta(seconds=self._every_s)))
        if now < next_at:
            return False
        self._tried[key] = (now + wait, min(wait * 2, RETRY_MAX))
        return True

    def _forget(self, found: set[tuple[str, int]]) -> None:
        self._tried = {key: value for key, value in self._tried.items() if key in found}


def _text(value: object) -> str | None:
    return None if value is None else str(value)
