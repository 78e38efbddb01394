"""The sweep: finds what was accepted but never reached Temporal, and brings it there.

A gateway may die between its database and Temporal, or Temporal may be down at that moment. Both leave a row that says
what was accepted. Several gateways may sweep at once: starts find the open workflow, stops are known by their id, and
what a manager is notified of only wakes it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.activities.child_runs import workflow_ids
from crawler_lifecycle.background import Loop
from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.domain.run import RunStatus, StopRequest
from crawler_lifecycle.gateway.graphs.commands import GraphCommands
from crawler_lifecycle.gateway.managers.commands import ManagerCommands
from crawler_lifecycle.gateway.runs.commands import Commands
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.temporal.client import Workflows

logger = logging.getLogger(__name__)

#: Younger rows are left to the request that wrote them.
GRACE = timedelta(seconds=10)
#: The workflow of a graph whose row nobody wrote for so long is woken, and started where somebody has ended it.
SILENT = timedelta(minutes=15)
#: A row that stays is tried again ever more rarely: each signal is an event in a workflow's history.
RETRY_MAX = timedelta(minutes=10)
#: Managers of one status that one round reads: more than may be open.
MANAGERS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class _Left:
    """Something that did not reach Temporal, and the call that brings it there."""

    what: str
    bring: Callable[[], Awaitable[object]]


@dataclass(eq=False)
class Sweep:
    """One round with ``once``, rounds for ever with ``run``."""

    store: Store
    workflows: Workflows
    commands: Commands
    manager_commands: ManagerCommands
    graph_commands: GraphCommands
    every_s: float
    clock: Callable[[], datetime]
    _tried: dict[str, tuple[datetime, timedelta]] = field(default_factory=dict)

    async def run(self) -> None:
        """Sweep until it is cancelled. Raises nothing."""
        await Loop("the sweep for accepted work", self.every_s).run(self._next)

    async def _next(self) -> None:
        await self.once()

    async def once(self) -> int:
        """One round; how many runs, managers and graphs it started or notified. Raises ``LifecycleError``."""
        found = await run_in_threadpool(lambda: list(self._found()))
        names = {one.what for one in found}
        self._tried = {name: value for name, value in self._tried.items() if name in names}
        return sum([await self._mend(one) for one in found])

    def _found(self) -> Iterator[_Left]:
        store, due = self.store, self.clock() - GRACE
        for run in store.sweep.unowned_runs(due):
            take_over = partial(self.commands.take_over, run)
            yield _Left(f"the start of run {run.run_id}", take_over)
        for run in store.sweep.unheard_stops(due):
            yield _Left(f"the stop of run {run.run_id}", partial(self._notify_stop, run))
        for run in store.deletion.open_deletions(due):
            yield _Left(f"the deletion of run {run.run_id}", partial(self.workflows.delete_run, run.ref))
        for status, what in ((RunStatus.INITIALIZING, "start"), (RunStatus.STOPPING, "stop")):
            for manager in store.managers.list_managers(limit=MANAGERS_MAX, status=status):
                if manager.updated_at <= due and (what == "stop" or manager.owner_run_id is None):
                    notify = partial(self.manager_commands.notify, manager)
                    yield _Left(f"the {what} of manager {manager.manager_id}", notify)
        for graph in store.graphs.untold_graphs(due, self.clock() - SILENT):
            what = "stop" if graph.stop else "wake-up"
            yield _Left(f"the {what} of graph {graph.graph_id}", partial(self.graph_commands.notify, graph))

    async def _mend(self, left: _Left) -> int:
        if not self._is_due(left.what):
            return 0
        try:
            await left.bring()
        except TemporalUnavailable as error:
            try:
                await self.workflows.ping()
            except TemporalUnavailable:
                del self._tried[left.what]
                raise
            # It takes others: what it refuses about this one must not hold them up.
            logger.error("%s is not taken by Temporal: %s", left.what, error)
            return 0
        except Exception:
            logger.exception("%s could not be brought to Temporal", left.what)
            return 0
        logger.info("brought %s to Temporal", left.what)
        return 1

    async def _notify_stop(self, row: RunRow) -> None:
        logged = await run_in_threadpool(self.store.runs.cancellations, row.run_id)
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
            await self.commands.notify_stop(row, stop)
            return
        # A limit's stop, recorded by a workflow: if that is open it knows, if not another one has to go on.
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


def _text(value: object) -> str | None:
    return None if value is None else str(value)
