"""Deployment beside looks: waves of tasks go to the scheduler service, and neither waits for the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow

from crawler_lifecycle.activities.deployment import Deploy, DeploymentActivities, DeployReport
from crawler_lifecycle.activities.reconciliation import ReconciliationActivities

from .calls import Interrupted, call, may_leave
from .state import RunState
from .steps import gap

Wave = Callable[[DeploymentActivities, Deploy], DeployReport]


class Deploying:
    """One wave at a time, each a page after the other for as long as there is room. The first and all later ones.

    An outage of the scheduler service is carried by the retries of the one call under way, so it costs no history.
    What did not fit is offered again when a look has come since.
    """

    def __init__(self, state: RunState) -> None:
        self._s = state
        self._task: asyncio.Task[None] | None = None
        self._may_begin, self._left = True, False

    @property
    def under_way(self) -> bool:
        return self._task is not None and not self._task.done()

    def over(self) -> bool:
        """Return whether a wave has ended of which ``settle`` has not taken note."""
        return self._task is not None and self._task.done()

    def begin(self) -> None:
        """Begin a wave when there is capacity, unless one is under way or no look has come since the last."""
        s = self._s
        if self._task is None and self._may_begin and s.room:
            self._may_begin = False
            # From the first call on, tasks may be on the cluster, whether an answer comes or not.
            s.next_look_at = s.next_look_at or workflow.now() + timedelta(seconds=gap(s))
            self._task = asyncio.create_task(self._wave())

    def looked(self) -> None:
        """A look has come: what did not fit before may fit now."""
        self._may_begin = True

    def settle(self) -> None:
        """Handle the end of a wave. Raises its error if no further try could help."""
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            task.result()

    async def leave(self) -> None:
        """Leave a call under way behind: it is asked to cancel, creates nothing after its time, and is made anew."""
        self._left = True
        if self._task is not None:
            await workflow.wait([self._task])
            self._task.exception()
        self._task, self._may_begin, self._left = None, True, False

    async def _wave(self) -> None:
        s, acts = self._s, DeploymentActivities
        first: Wave = acts.run_scheduled_crawler if s.trigger == "scheduled" else acts.run_onetime_crawler
        while s.room and not may_leave():
            looks = s.looks
            order = Deploy(s.fence, s.max_parallel, s.attempt > 1 and not s.rerun, s.next_look_at)
            try:
                report = await call(acts.deploy_queued_tasks if s.deployed else first, order, wake=self._pointless)
                s.deployed, s.counts = True, report.counts
                s.pages_deployed += 1
                if s.looks > looks:  # it is unknown which of the two counted later
                    s.counts = await call(ReconciliationActivities.count_alive_tasks, s.run_id, wake=self._pointless)
            except Interrupted:
                return
            if not report.offered or report.deferred:
                return

    def _pointless(self) -> bool:
        s = self._s
        return self._left or s.stop_wanted() or (s.counted and not s.counts.queued)
