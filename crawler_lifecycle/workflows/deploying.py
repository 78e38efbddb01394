"""Deployment of a run's tasks in waves, in parallel with its polls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow

from crawler_lifecycle.activities.deployment import Deploy, DeploymentActivities, DeployReport
from crawler_lifecycle.activities.reconciliation import ReconciliationActivities

from .calls import StepInterrupted, call, may_leave
from .state import RunState
from .steps import gap

Wave = Callable[[DeploymentActivities, Deploy], DeployReport]


class Deploying:
    """The waves of a run, one at a time.

    A wave sends page after page of tasks while more tasks may be deployed. In an outage of the
    scheduler service, the one call without a response is retried, so the history does not grow.
    Tasks that the cluster did not accept are sent again after the next poll.
    """

    def __init__(self, state: RunState) -> None:
        self._s = state
        self._task: asyncio.Task[None] | None = None
        self._may_begin = True
        self._left = False

    @property
    def under_way(self) -> bool:
        return self._task is not None and not self._task.done()

    def over(self) -> bool:
        """Return whether a wave has ended that ``settle`` has not handled yet."""
        return self._task is not None and self._task.done()

    def begin(self) -> None:
        """Begin a wave if more tasks may be deployed.

        The previous wave must have ended, and ``allow`` must have been called since.
        """
        s = self._s
        if self._task is None and self._may_begin and s.room:
            self._may_begin = False
            # After the first call, tasks can be on the cluster even if there was no response. So a
            # poll is planned now.
            s.next_look_at = s.next_look_at or workflow.now() + timedelta(seconds=gap(s))
            self._task = asyncio.create_task(self._wave())

    def allow(self) -> None:
        """Allow a new wave after a poll, or when the pool has a slot, because the cluster may now
        accept tasks.
        """
        self._may_begin = True

    def settle(self) -> None:
        """Handle the end of a wave.

        Raises the error with which it failed.
        """
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            task.result()

    async def leave(self) -> None:
        """Cancel the current wave.

        A later wave repeats its call. The scheduler service creates no task after the expiry time
        of the cancelled call.
        """
        self._left = True
        if self._task is not None:
            await workflow.wait([self._task])
            self._task.exception()
        self._task = None
        self._may_begin = True
        self._left = False

    async def _wave(self) -> None:
        s = self._s
        acts = DeploymentActivities
        first: Wave = (
            acts.run_scheduled_crawler if s.trigger == "scheduled" else acts.run_onetime_crawler
        )
        while s.room and not may_leave():
            looks = s.looks
            order = Deploy(s.fence, s.max_parallel, s.attempt > 1 and not s.rerun, s.next_look_at)
            try:
                report = await call(
                    acts.deploy_queued_tasks if s.deployed else first, order, wake=self._pointless
                )
                s.deployed = True
                s.counts = report.counts
                s.pages_deployed += 1
                if s.looks > looks:  # the counts of a poll at the same time can be newer
                    s.counts = await call(
                        ReconciliationActivities.count_alive_tasks, s.run_id, wake=self._pointless
                    )
            except StepInterrupted:
                return
            s.in_line = report.in_line
            if not report.offered:
                s.rest(report.resting, workflow.now())
            if not report.offered or report.deferred:
                return

    def _pointless(self) -> bool:
        s = self._s
        return self._left or s.stop_wanted() or (s.counted and not s.counts.queued)
