"""Port of readers: runs and tasks. Nothing here writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol, TypedDict, Unpack

from crawler_lifecycle.domain.audit import RecordedTask
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.domain.task import TaskState, TaskStatus
from crawler_lifecycle.ports.rows import Resumption, RunRow, TaskCounts, TaskRow, TransitionRow


class RunFilters(TypedDict, total=False):
    """What the runs of a list must fit; what is ``None`` or empty filters nothing."""

    status: Sequence[str]
    """Any of these."""
    stage: str | None
    crawler: str | None
    trigger: str | None
    outcome: str | None
    flow_id: str | None
    tag: str | None
    created_from: datetime | None
    created_until: datetime | None
    """This moment is not included."""


class RunReader(Protocol):
    """Runs, and what is on record beside them."""

    def get_run(self, run_id: int) -> RunRow | None: ...

    def find_run(self, request_id: str) -> RunRow | None: ...

    def request_of(self, run_id: int) -> RunRequest:
        """The stored request of a run, without its task list, for its own workflow. Raises ``RowMissing``."""
        ...

    def list_runs(
        self, *, before_run_id: int | None = None, limit: int = 50, **filters: Unpack[RunFilters]
    ) -> list[RunRow]:
        """Runs, newest first, that fit every given filter; ``before_run_id`` is the last one of the page before."""
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
