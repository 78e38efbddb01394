"""Port of readers: runs and tasks. Nothing here writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from crawler_lifecycle.domain.audits.audit import RecordedTask
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.domain.task import TaskState, TaskStatus
from crawler_lifecycle.ports.values import (
    DrawnTask,
    RecentRun,
    Resumption,
    RunRow,
    RunTasks,
    TaskCounts,
    TaskRow,
    TransitionRow,
)

#: Rows that ``changed_runs`` compares, and crawlers that ``recent_runs`` is asked for, at once.
ROWS_MAX, CRAWLERS_MAX = 2_000, 200


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
        attention: bool = False,
    ) -> list[RunRow]:
        """Runs, newest first, that fit every given filter and have all of the tags. ``created_from`` is included,
        ``created_until`` is not. ``attention``: only those of the last 30 days, or from ``created_from`` on, that
        failed, that no person ended, and after which no run of the same work (crawler, arguments, settings, tasks) or
        of the same schedule completed."""
        ...

    def changed_runs(self, known: Collection[RunRow]) -> list[RunRow]:
        """Those of these rows, at most ``ROWS_MAX``, that are not what they were when they were read, as they are now.

        One statement, which reads nothing of a row that cannot change: for lists that stay on a screen. A run that is
        no longer there is left out; what another hand changes of a request is not seen.
        """
        ...

    def recent_runs(self, crawlers: Collection[str], each: int) -> list[RecentRun]:
        """The newest ``each`` runs of each of these crawlers, at most ``CRAWLERS_MAX``, newest first. One statement."""
        ...

    def count_runs(self, status: Sequence[str], most: int) -> int:
        """How many runs have one of these statuses; counting ends at ``most``."""
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
        self,
        run_id: int,
        *,
        after_task_id: int = 0,
        limit: int = 500,
        superseded: bool = False,
        among: Collection[int] | None = None,
    ) -> list[TaskRow]:
        """Tasks by id, superseded ones only when asked for; ``among``: of these ids alone, at most ``ROWS_MAX``."""
        ...

    def drawn_tasks(self, run_id: int, limit: int) -> list[DrawnTask]:
        """The first tasks by id that are not superseded, in short: for so many that their whole rows take long."""
        ...

    def task_page(
        self, run_id: int, statuses: Sequence[TaskStatus], after_index: int = -1, limit: int = 500
    ) -> list[TaskState]: ...

    def count_tasks(self, run_id: int) -> TaskCounts: ...

    def tasks_of_runs(self, run_ids: Collection[int]) -> dict[int, RunTasks]:
        """The tasks of these runs, at most ``ROWS_MAX``, that are not superseded; runs without any are left out.

        One statement for all of them, and one for 50 of those that have PENDING tasks.
        """
        ...

    def task_indexes(self, task_ids: Collection[int]) -> dict[int, int]:
        """The index of each of these tasks, at most ``ROWS_MAX``; those that do not exist are left out."""
        ...

    def recorded_tasks(self, keys: Collection[tuple[int, int, int]]) -> list[RecordedTask]:
        """The rows of these tasks (run, index, attempt), those that there are."""
        ...

    def log_tail(self, task_id: int) -> str | None: ...

    def statistics(self, run_id: int) -> dict[str, int | float]:
        """The crawlers' own statistics, summed over the run's tasks that are not superseded; empty where none told.

        At most 8 KiB as JSON (``bounds.statistics``).
        """
        ...
