"""Port of stops: the intent, and the tasks that are asked to end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.domain.task import TaskState
from crawler_lifecycle.ports.rows import RunRow, TaskCounts
from crawler_lifecycle.ports.values import Fence


class StopIntentStore(Protocol):
    """That a run is to stop."""

    def record_stop(self, run_id: int, stop: StopIntent, request_id: str | None, fence: Fence | None = None) -> RunRow:
        """Write the intent, STOPPING (unless terminal) and, for a person, the row of ``cancellation_log``.

        The gateway calls it without a fence before it signals. A second stop keeps the first intent's time; a forced
        one adds force; a person's outweighs a limit's. On a terminal run nothing is written. Of a run whose row cannot
        be read a person's log row alone is written, by its keys, and ``RowUnreadable`` raised.
        """
        ...


class StopStore(StopIntentStore, Protocol):
    """Which tasks are to be asked to end, and which were."""

    def cancel_queued(self, fence: Fence, now: datetime) -> TaskCounts:
        """QUEUED tasks become CANCELLED, except those offered by a call that no look has proved to be without effect.

        That takes a look from after the moment at which the call is void; its answer may be lost for ever.
        """
        ...

    def unstopped(
        self, fence: Fence, force: bool, killed_before: datetime | None = None, after_index: int = -1, limit: int = 500
    ) -> list[TaskState]:
        """A page of the tasks that are to be asked to end and were not yet, by index: those PENDING or RUNNING.

        With ``force`` those active ones that were not killed yet, or were before ``killed_before``. Raises ``Fenced``.
        """
        ...

    def mark_stopping(self, fence: Fence, task_ids: Sequence[int], *, killed: bool = False) -> None:
        """These tasks were asked to end: PENDING and RUNNING become STOPPING. ``killed``: by force, just now."""
        ...

    def last_asked(self, run_id: int) -> datetime | None:
        """When the last of the tasks that are STOPPING was asked to end."""
        ...

    def acted_on_stop(self, fence: Fence, at: datetime) -> None:
        """Fill ``acted_at`` of the intent's cancellation log rows without one, also of those of an earlier attempt."""
        ...
