"""The unit of work of managers: a write transaction on one locked manager."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, case

from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.names import (
    EVENT_MANAGER_CHANGED,
    manager_subject,
    manager_workflow_id,
)
from crawler_lifecycle.domain.run import RunStatus, run_may_become
from crawler_lifecycle.store.base.owned import OwnedPart
from crawler_lifecycle.store.base.search import ListColumns
from crawler_lifecycle.store.base.unit import RowUnit
from crawler_lifecycle.store.runs.tables import LIVE_RUNS

from ..domain.manager import JobState
from ..ports import ManagerRow
from .queries import jobs_that_live
from .rows import counts_of, ended_by, manager_row
from .tables import MANAGER_COUNTERS, manager, manager_log

_m = manager.c
#: The columns by which managers are sorted. Here, no job of an ended manager counts as live.
SORTS = {
    **{name: _m[name] for name in ("name", "flow_id", "status", "outcome", "good", "bad")},
    "live": case((_m.status.in_(LIVE_RUNS), _m.jobs_starting + _m.jobs_started), else_=0).label(
        "live"
    ),
    "wait": (_m.jobs_buffered + _m.jobs_delayed + _m.jobs_queued).label("wait"),
    "skipped": _m.jobs_skipped.label("skipped"),
}


@dataclass
class ManagerUnit(RowUnit):
    """A write transaction on a manager."""

    table = manager
    change_event = EVENT_MANAGER_CHANGED
    told = (
        "manager_id",
        "manager_uid",
        "name",
        "flow_id",
        "plan",
        "attempt",
        "status",
        "outcome",
        "cause",
        "paused",
        "cap",
        "requested_by",
        "error",
        "close_reason",
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
        """Update the counters after ``jobs`` jobs have changed from one state to another. If
        ``before`` is ``None``, the jobs are new.
        """
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
        counted = {name: self.row[name] for name in MANAGER_COUNTERS}
        return {"jobs": jobs, "counts": counted, "ended_by": ended_by(self.row)}


class ManagerPart(OwnedPart[ManagerUnit, ManagerRow]):
    """The base class of the parts of ``ManagerStore``."""

    kind = ManagerUnit
    label = _m.manager_id
    log = manager_log
    columns = tuple(_m)
    state = _m.status
    # The same as ``rows.ended_by``.
    fields: Mapping[str, ColumnElement[Any]] = {
        "ended_by": case(
            (_m.stop_requested_at.is_not(None) & (_m.outcome == "cancelled"), EndedBy.PERSON.value)
        ),
        "paused": _m.paused,
    }
    listed = ListColumns(
        _m.manager_id,
        _m.name,
        texts=("manager_id", "name", "flow_id", "plan"),
        documents={"tags": list, "options": lambda options: options.get("argv", ())},
        sorts={name: (column,) for name, column in SORTS.items()},
        left=("arguments", "classes", "flows", "tags"),
    )

    def _read(
        self, conn: Connection, query: Select[Any], *, strict: bool = False
    ) -> list[ManagerRow]:
        """Return the managers.

        The counts of an ended manager include runs that ended later, which no cycle records.
        """
        rows = [manager_row(dict(row)) for row in conn.execute(query).mappings()]
        over = [
            row.manager_id
            for row in rows
            if row.status.terminal and row.counts.by_state.get(JobState.STARTED)
        ]
        live = jobs_that_live(conn, over) if over else {}
        return [
            replace(row, counts=row.counts.settled(live.get(row.manager_id, 0)))
            if row.manager_id in over
            else row
            for row in rows
        ]
