"""The unit of work of managers: a write transaction on one locked manager."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from crawler_lifecycle.adapters.database.schema.manager_rows import counts_of
from crawler_lifecycle.adapters.database.schema.rows import Row
from crawler_lifecycle.adapters.database.schema.tables import manager
from crawler_lifecycle.domain.errors import Fenced
from crawler_lifecycle.domain.manager import JobState, manager_workflow_id
from crawler_lifecycle.domain.names import EVENT_MANAGER_CHANGED, manager_subject
from crawler_lifecycle.domain.run import RunStatus, run_may_become
from crawler_lifecycle.ports.store.managers import ManagerFence

from .row_unit import OutputPart, RowUnit, read_row

log = logging.getLogger(__name__)

_TOLD = ("manager_id", "manager_uid", "name", "flow_id", "plan", "attempt", "status", "outcome", "cause")


def check_manager_fence(row: Row, fence: ManagerFence) -> None:
    """Raise ``Fenced`` unless the manager is still the writer's."""
    same = row["attempt"] == fence.attempt and row["owner_run_id"] == fence.owner_run_id
    if same and fence.generation in (None, row["generation"]):
        return
    text = (
        f"Manager {fence.manager_id} is at attempt {row['attempt']}, generation {row['generation']} of owner "
        f"{row['owner_run_id']}; attempt {fence.attempt}, generation {fence.generation} of owner "
        f"{fence.owner_run_id} may no longer write"
    )
    log.warning("refused a late write: %s", text)
    raise Fenced(text)


def read_manager(conn: Connection, manager_id: int, *, lock: bool = False) -> dict[Any, Any]:
    """The manager's row, locked until the end of the transaction if asked for. Raises as ``read_row`` does."""
    return read_row(conn, manager, manager_id, lock="write" if lock else None)


@dataclass
class ManagerUnit(RowUnit):
    """A write transaction on a manager."""

    table = manager

    @property
    def manager_id(self) -> int:
        return self.id

    @property
    def status(self) -> RunStatus:
        return RunStatus(self.row["status"])

    @property
    def parent(self) -> str:
        """What the manager's runs have as their parent."""
        return manager_workflow_id(self.row["name"], self.row["flow_id"])

    @property
    def live(self) -> int:
        """Jobs that hold a slot."""
        return int(self.row["jobs_starting"] + self.row["jobs_started"])

    def count(self, **more: int) -> None:
        """Add to counters."""
        self.set(**{name: self.row[name] + n for name, n in more.items()})

    def moved(self, before: JobState | None, after: JobState, jobs: int) -> None:
        """So many jobs went from one state to another; ``None``: they are new."""
        if before is not None:
            self.count(**{f"jobs_{before}": -jobs})
        self.count(**{f"jobs_{after}": jobs})

    def move(self, status: RunStatus) -> None:
        """Change the status, forwards only."""
        if run_may_become(self.status, status):
            self.set(status=status.value)

    def announce(self, type: str, key: str | None = None) -> None:
        """Append the event that tells what the manager looks like now. Nothing may follow it in the transaction."""
        row = self.row
        body: dict[str, Any] = {name: row[name] for name in _TOLD}
        body |= {"paused": row["paused"], "cap": row["cap"], "requested_by": row["requested_by"]}
        body |= {"waiting": row["waiting_for"], "error": row["error"], "close_reason": row["close_reason"]}
        for name in ("started_at", "ended_at"):
            body[name] = row[name].isoformat() if row[name] is not None else None
        counts = counts_of(row)
        body["jobs"] = {state: n for state, n in counts.by_state.items() if n}
        body["counts"] = {name: row[name] for name in ("yields", "duplicates", "scheduled", "retried", "good", "bad")}
        self.append_event(manager_subject(self.manager_id), type, key, body)


class ManagerPart(OutputPart):
    """What the adapters of managers share: how a unit of work begins and ends."""

    @contextmanager
    def _manager(self, manager_id: int, fence: ManagerFence | None = None) -> Iterator[ManagerUnit]:
        """Lock the manager first, check the fence, write its row at the end, and tell of the change if there was one.

        The manager's row comes first in every transaction, so that two of them cannot wait for each other.
        """
        with self._db.writing() as conn:
            row = read_manager(conn, manager_id, lock=True)
            if fence is not None:
                check_manager_fence(row, fence)
            unit = ManagerUnit(conn, row, self._clock())
            yield unit
            unit.write()
            if unit.changed:
                unit.announce(EVENT_MANAGER_CHANGED)
