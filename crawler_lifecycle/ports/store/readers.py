"""Port of readers: runs and tasks. Nothing here writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from crawler_lifecycle.domain.audit import RecordedTask
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.domain.task import TaskState, TaskStatus
from crawler_lifecycle.ports.values import Resumption, RunRow, TaskCounts, TaskRow, TransitionRow


class RunReader(Protocol):
    """Runs, and what is on record beside them."""

    def get_run(self, run_id: int) -> RunRow | None: ...

    def find_run(self, request_id: str) -> RunRow | None: ...

    def request_of(self, run_id: int) -> RunRequest:
        """The stored request of a run, without its task list, for its own workflow. Raises ``RowMissing``."""
        ...

    def list_runs(
        self,
        *,
        before_run_id: int | None = None,
        limit: int = 50,
        status: Sequence[str] = (),
        stage: str | None = None,
        crawler: str | None = None,
        trigger: str | None = None,
        outcome: str | None = None,
        flow_id: str | None = None,
        parent: str | None = None,
        tags: Sequence[str] = (),
        created_from: datetime | None = None,
        created_until: datetime | None = None,
    ) -> list[RunRow]:
        """Runs, newest first, that fit every given filter and have all of the tags. ``created_from`` is included,
        ``created_until`` is not."""
        ...

    def resumption(self, run_id: int) -> list[Resumption]:
        """What the run's tasks say about going on with saved state: at most ten notes, the commonest first."""
        ...

    def transitions(self, run_id: int, after_seq: int = 0, limit: int = 500) -> list[TransitionRow]: ...

    def cancellations(self, run_id: int) -> list[Mapping[str, object]]: ...

    def properties(self, run_id: int) -> list[Mapping[str, object]]: ...


class TaskReader(Protocol):
    """Tasks of runs."""

    def list_tasks(
        self, run_id: int, *, after_task_id: int = 0, limit: int = 500, superseded: bool = False
    ) -> list[TaskRow]: ...

    def task_page(
        self, run_id: int, statuses: Sequence[TaskStatus], after_index: int = -1, limit: int = 500
    ) -> list[TaskState]: ...

    def count_tasks(self, run_id: int) -> TaskCounts: ...

    def recorded_tasks(self, keys: Collection[tuple[int, int, int]]) -> list[RecordedTask]:
        """The rows of these tasks (run, index, attempt), those that there are."""
        ...

    def log_tail(self, task_id: int) -> str | None: ...

    def statistics(self, run_id: int) -> dict[str, int | float]:
        """The crawlers' own statistics, summed over the run's tasks that are not superseded; empty where none told.

        At most 8 KiB as JSON (``bounds.statistics``).
        """
        ...
