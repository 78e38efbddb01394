"""The outbox retry: it finds accepted commands that did not reach Temporal, and sends them again.

A gateway can die after its commit and before its call to Temporal, or Temporal can be down at that
moment. In both cases, a row shows the accepted command.

Several gateways can retry at the same time: a second start finds the open workflow, a second stop
has the same id, and a second notification only wakes a manager or a graph again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.activities.child_runs import workflow_ids
from crawler_lifecycle.background import Loop
from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.domain.run import StopRequest
from crawler_lifecycle.gateway.runs.commands import Commands
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.temporal.client import Workflows

logger = logging.getLogger(__name__)

#: The minimum age of a row. The request that wrote a younger row may still be sending its command.
GRACE = timedelta(seconds=10)
#: The longest pause between two tries of a row. Pauses grow, because each signal makes a workflow's
#: history longer.
RETRY_MAX = timedelta(minutes=10)

#: A command that did not reach Temporal: its name, and the call that sends it.
Unsent = tuple[str, Callable[[], Awaitable[object]]]


@dataclass(eq=False)
class Sweep:
    """The outbox retry. ``once`` makes one round, ``run`` makes rounds until it is cancelled."""

    store: Store
    workflows: Workflows
    commands: Commands
    others: Sequence[Callable[[datetime], Iterator[Unsent]]]
    """Functions that yield commands of other kinds whose rows were written before a given time."""
    every_s: float
    clock: Clock
    _tried: dict[str, tuple[datetime, timedelta]] = field(default_factory=dict)

    async def run(self) -> None:
        """Make rounds until this is cancelled. This method never raises."""
        await Loop("the retry of accepted commands", self.every_s).run(self._next)

    async def _next(self) -> None:
        await self.once()

    async def once(self) -> int:
        """Make one round, and return how many commands it sent. Raises ``LifecycleError``."""
        found = await run_in_threadpool(lambda: dict(self._found()))
        self._tried = {name: value for name, value in self._tried.items() if name in found}
        return sum([await self._send(what, send) for what, send in found.items()])

    def _found(self) -> Iterator[Unsent]:
        store = self.store
        due = self.clock() - GRACE
        for run in store.sweep.unowned_runs(due):
            take_over = partial(self.commands.take_over, run)
            yield f"the start of run {run.run_id}", take_over
        for run in store.sweep.unheard_stops(due):
            yield f"the stop of run {run.run_id}", partial(self._notify_stop, run)
        for run in store.deletion.open_deletions(due):
            yield f"the deletion of run {run.run_id}", partial(self.workflows.delete_run, run.ref)
        for unsent in self.others:
            yield from unsent(due)

    async def _send(self, what: str, send: Callable[[], Awaitable[object]]) -> int:
        if not self._is_due(what):
            return 0
        try:
            await send()
        except TemporalUnavailable as error:
            try:
                await self.workflows.ping()
            except TemporalUnavailable:
                del self._tried[what]
                raise
            # Temporal answers, but refuses this command. The other commands must not wait for it.
            logger.error("Temporal refused %s: %s", what, error)
            return 0
        except Exception:
            logger.exception("%s could not be sent to Temporal", what)
            return 0
        logger.info("sent %s to Temporal", what)
        return 1

    async def _notify_stop(self, row: RunRow) -> None:
        logged = await run_in_threadpool(self.store.runs.cancellations, row.run_id)
        ours = [entry for entry in logged if entry.get("attempt") == row.attempt]
        if ours:
            # The signal has the id of the stop, because the workflow may have received it already
            # and must not log it twice.
            last: dict[str, Any] = {
                name: ours[-1][name] for name in ("request_id", "requested_by", "reason")
            }
            await self.commands.notify_stop(
                row, StopRequest(**last, force=any(entry["force"] for entry in ours))
            )
            return
        # A workflow recorded this stop because of a limit. If that workflow is open, it knows the
        # stop; otherwise, a new workflow takes over.
        for candidate in workflow_ids(row):
            if await self.workflows.is_open(candidate):
                return
        await self.commands.take_over(row)

    def _is_due(self, name: str) -> bool:
        now = self.clock()
        next_at, wait = self._tried.get(name, (now, timedelta(seconds=self.every_s)))
        if now < next_at:
            return False
        self._tried[name] = (now + wait, min(wait * 2, RETRY_MAX))
        return True
