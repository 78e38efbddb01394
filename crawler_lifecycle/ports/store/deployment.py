"""Port of deployment: offers of tasks, answers of the scheduler service, the start of the run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from crawler_lifecycle.domain.run import EndedTasks, RunStatus, StopIntent
from crawler_lifecycle.ports.rows import TaskCounts
from crawler_lifecycle.ports.values import Deployed, Fence, QueuedTask


class WaitStore(Protocol):
    """Why a run waits."""

    def note_waiting(self, fence: Fence, waiting_for: str | None) -> None:
        """Write down why the run waits (or that it no longer does)."""
        ...


class DeploymentStore(WaitStore, Protocol):
    """Which tasks are offered to the scheduler service, and what it answered."""

    def places(self, run_id: int) -> list[str]:
        """Where on the cluster tasks of the run live or may come to life, as far as it is on record."""
        ...

    def offer_tasks(
        self,
        fence: Fence,
        limit: int,
        max_parallel: int | None,
        until: datetime,
        place: str | None = None,
        next_look_at: datetime | None = None,
    ) -> tuple[list[QueuedTask], StopIntent | None]:
        """Mark the next QUEUED tasks as offered until ``until`` at ``place`` and return them, lowest index first.

        ``until`` allows for clocks that differ: after it, by anybody's clock, the call creates nothing any more. As
        many tasks as one call can carry (``bounds.OFFER_BYTES_MAX``), and one in any case.

        Never more than fit beside the active ones under ``max_parallel``; none when a stop is recorded. The run enters
        the stage deployment. From now on something may be on the cluster, so where no look is planned yet, the first
        one is planned for ``next_look_at``.
        """
        ...

    def record_deployed(
        self,
        fence: Fence,
        cluster: str,
        answers: Sequence[Deployed],
        at: datetime,
        until: datetime | None = None,
        offered: Sequence[QueuedTask] = (),
    ) -> TaskCounts:
        """Apply the answers: created, existing = PENDING; deferred = QUEUED with the reason; refused = FAILED.

        ``until`` and ``offered`` name the offer that they answer. A task that was offered again meanwhile is not put
        off by them; one that an earlier call may still bring counts as offered by that one.
        """
        ...

    def refuse_queued(
        self, fence: Fence, reason: str, offered: Sequence[QueuedTask] = (), until: datetime | None = None
    ) -> TaskCounts:
        """QUEUED tasks become FAILED / ``deploy_failed`` with this reason, unless an earlier call may have made them.

        ``offered`` and ``until`` are the offer that was refused as a whole: it brought nothing. A task that an earlier
        one offered stays QUEUED and is offered by that one only, until a look from after its end did not see the task.
        """
        ...

    def withdraw_offer(self, fence: Fence, offered: Sequence[QueuedTask], until: datetime) -> None:
        """The call of this offer brought nothing: its tasks are offered by the call before it, or not at all."""
        ...

    def mark_started(
        self, fence: Fence, started_at: datetime | None, next_look_at: datetime | None = None
    ) -> RunStatus:
        """INITIALIZING becomes PROCESSING (any later status stays), the stage reconciliation; the status now."""
        ...

    def requeue_ended(self, fence: Fence, include_succeeded: bool) -> TaskCounts:
        """New QUEUED rows of this attempt for FAILED, CANCELLED and LOST indexes; raise the attempt of QUEUED rows."""
        ...

    def ended_groups(self, run_id: int) -> list[EndedTasks]: ...
