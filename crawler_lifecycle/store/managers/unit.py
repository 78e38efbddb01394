"""The unit of work of managers: a write transaction on one locked manager."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crawler_lifecycle.domain.managers.manager import JobState, manager_workflow_id
from crawler_lifecycle.domain.names import EVENT_MANAGER_CHANGED, manager_subject
from crawler_lifecycle.domain.run import RunStatus, run_may_become
from crawler_lifecycle.store.base.unit import OwnedPart, RowUnit

from .queries import jobs_that_live
from .rows import counts_of, ended_by
from .tables import manager, manager_log


@dataclass
class ManagerUnit(RowUnit):
    """A write transaction on a manager."""

    table = manager
    change_event = EVENT_MANAGER_CHANGED
    told = (
        *("manager_id", "manager_uid", "name", "flow_id", "plan", "attempt", "status", "outcome", "cause", "paused"),
        *("cap", "requested_by", "error", "close_reason"),
    )

    @property
    def manager_id(self) -> int:
        return self.id

    @property
    def status(self) -> RunStatus:
        return RunStatus(self.row["status"])

    @property
    def parent(self) -> str:
        """The parent of the manager's runs."""
        return manager_workflow_id(self.row["name"], self.row["flow_id"])

    @property
    def live(self) -> int:
        """The number of jobs that hold a slot."""
        return int(self.row["jobs_starting"] + self.row["jobs_started"])

    def count(self, **more: int) -> None:
        """Add these numbers to the counters."""
        self.set(**{name: self.row[name] + n for name, n in more.items()})

    def moved(self, before: JobState | None, after: JobState, jobs: int) -> None:
        """Count ``jobs`` jobs that went from one state to another. ``None`` as ``before``: the jobs are new."""
        if before is not None:
            self.count(**{f"jobs_{before}": -jobs})
        self.count(**{f"jobs_{after}": jobs})

    def move(self, status: RunStatus) -> None:
        """Change the status. A change that the state machine does not allow is ignored."""
        if run_may_become(self.status, status):
            self.set(status=status.value)

    @property
    def subject(self) -> str:
        return manager_subject(self.id)

    def figures(self) -> Mapping[str, Any]:
        counts = counts_of(self.row)
        if self.status.terminal and self.row["jobs_started"]:
            counts = counts.settled(jobs_that_live(self.conn, [self.id]).get(self.id, 0))
        jobs = {state: n for state, n in counts.by_state.items() if n}
        names = ("yields", "duplicates", "scheduled", "retried", "good", "bad")
        counted = {name: self.row[name] for name in names}
        return {"jobs": jobs, "counts": counted, "ended_by": ended_by(self.row)}


class ManagerPart(OwnedPart[ManagerUnit]):
    """The base class of the parts of ``ManagerStore``."""

    kind = ManagerUnit
    log = manager_log
