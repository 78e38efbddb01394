"""The unit of work: a write transaction on one locked run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import BindParameter, Connection, Select, Table, bindparam, func, insert, select, update

from crawler_lifecycle.domain.audits.corrections import untrue_ms
from crawler_lifecycle.domain.errors import Fenced, RowEdited, RowMissing, RunDeleted, RunNotFound
from crawler_lifecycle.domain.names import EVENT_CORRECTION_MADE, EVENT_RUN_CHANGED, run_subject
from crawler_lifecycle.domain.run import RunStatus, StopIntent, run_may_become
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.waiting import Standing, waiting
from crawler_lifecycle.ports.looks import Committed, Corrected, CorrectionRow, TaskChanged
from crawler_lifecycle.ports.runs import Event, Fence, TaskCounts
from crawler_lifecycle.store.base.outbox import facts, insert_event
from crawler_lifecycle.store.base.rows import Fault, Row, unreadable, where
from crawler_lifecycle.store.base.unit import StorePart, Told, read_row, stop_of

from .tables import run_history, status_transition, task_history

log = logging.getLogger(__name__)


#: Corrections that one event shows.
CORRECTIONS_TOLD = 20
_TOLD = (
    *("id", "task_id", "attempt", "kind", "believed", "believed_since", "truth", "truth_since", "found_by", "lag_ms"),
    "created_at",
)


#: All tasks of a run are read by one of these, however large a part of the table the run is: left to itself, the
#: optimizer then prefers to read the tasks of all runs.
BY_RUN = "FORCE INDEX (ix_task_history_current, uq_task_history_run_id_task_index_attempt)"


def current_tasks(run_id: int | BindParameter[int], *columns: Any) -> Select[Any]:
    """Columns of the run's tasks that are not superseded."""
    t = task_history.c
    query = select(*columns).select_from(task_history).where(t.run_id == run_id, t.superseded_by.is_(None))
    return query.with_hint(task_history, BY_RUN, "mysql")


#: Executed after every change and every look: building it each time would take longer than the query.
_COUNT = current_tasks(bindparam("run_id"), task_history.c.status, func.count()).group_by(task_history.c.status)


def count_tasks(conn: Connection, run_id: int) -> TaskCounts:
    """Tasks of the run that are not superseded, by status."""
    return TaskCounts(dict(conn.execute(_COUNT, {"run_id": run_id}).all()))


def check_run(run: Row, ref: RunRef) -> None:
    """Raise ``Fenced`` for the row of another run. It is told in the log of whoever tried, too."""
    if run["run_uid"] != ref.uid:
        text = ref.foreign(f"The row of run {ref.run_id}", run["run_uid"])
        log.warning("refused a write for another run: %s", text)
        raise Fenced(text)


def check_kept(run: Row) -> None:
    """Raise ``RunDeleted`` for a run that was deleted."""
    if run["deleted_at"] is not None:
        raise RunDeleted(f"Run {run['run_id']} was deleted at {run['deleted_at'].isoformat()}; start a new one")


def check_fence(run: Row, fence: Fence) -> None:
    """Raise ``Fenced`` unless the run is still the writer's. It is told in the log of whoever tried, too."""
    check_run(run, fence.run)
    same_attempt, same_owner = run["attempt"] == fence.attempt, run["owner_run_id"] == fence.owner_run_id
    if same_attempt and same_owner:
        return
    text = (
        f"Run {fence.run_id} is at attempt {run['attempt']} of owner {run['owner_run_id']}; "
        f"attempt {fence.attempt} of owner {fence.owner_run_id} may no longer write"
    )
    if same_attempt or same_owner:
        # A takeover changes both. A manual edit changed one: the writer continues once that is repaired.
        column, value = ("owner_run_id", fence.owner_run_id) if same_attempt else ("attempt", fence.attempt)
        fault = Fault(column, run[column], f"no takeover wrote it: set it back to {value!r}")
        raise RowEdited(f"{text}. {where(run_history, run)}: {fault}")
    log.warning("refused a late write: %s", text)
    raise Fenced(text)


def missing(run_id: int) -> RowMissing:
    """The error for a run's own workflow when the run's row is not there any more."""
    cure = "an audit with adopt makes it again (crawlctl audit --adopt); until then the run waits"
    return RowMissing(f"The row of run {run_id} is gone, as after a restore of the database: {cure}")


def read_run(conn: Connection, run_id: int, *, lock: bool = False, owned: bool = False) -> dict[Any, Any]:
    """The run's row, locked until the end of the transaction if asked for.

    Raises ``RunNotFound`` (to whoever ``owned`` the run ``RowMissing``).
    """
    try:
        return read_row(conn, run_history, run_id, lock="write" if lock else None)
    except RunNotFound:
        if owned:
            raise missing(run_id) from None
        raise


def checked_counts(conn: Connection, run: Row) -> TaskCounts:
    """``count_tasks``. Raises ``RowUnreadable`` for a run that ended and has tasks that are alive."""
    counts = count_tasks(conn, run["run_id"])
    if counts.alive and RunStatus(run["status"]).terminal:
        cure = f"{counts.alive} of its tasks are alive: set it back to PROCESSING, or stop the run (crawlctl stop)"
        raise unreadable(run_history, run, Fault("status", run["status"], cure))
    return counts


@dataclass
class Unit:
    """A write transaction on a run with a locked row, so that no other writer of ours comes between.

    ``run`` is the row that will be committed. ``changed`` requests one ``run.changed`` event at the end.
    """

    conn: Connection
    run: dict[Any, Any]
    now: datetime
    changed: bool = False
    told: Told | None = None
    """The function that is called, after the commit, with the additions to the ledger."""
    told_changes: list[TaskChanged] = field(default_factory=list)
    told_corrections: list[Corrected] = field(default_factory=list)
    corrections: list[CorrectionRow] = field(default_factory=list)
    """The written corrections, for the event about them."""

    @property
    def run_id(self) -> int:
        return int(self.run["run_id"])

    @property
    def ref(self) -> RunRef:
        return RunRef(self.run_id, self.run["run_uid"])

    @property
    def attempt(self) -> int:
        return int(self.run["attempt"])

    @property
    def status(self) -> RunStatus:
        return RunStatus(self.run["status"])

    @property
    def stop(self) -> StopIntent | None:
        return stop_of(self.run)

    def counts(self) -> TaskCounts:
        return count_tasks(self.conn, self.run_id)

    def update_run(self, **values: Any) -> None:
        """Write the values that differ; nothing at all when none does."""
        new = {name: value for name, value in values.items() if self.run[name] != value}
        if not new:
            return
        if "waiting_for" in new:
            new["waiting_since"] = self._waiting_since(new["waiting_for"])
        new["updated_at"] = self.now
        self.conn.execute(update(run_history).where(run_history.c.run_id == self.run_id).values(**new))
        self.run.update(new)

    def _waiting_since(self, wait: str | None) -> datetime | None:
        """The time since which the run waits for this. The text before the colon names the reason; the rest may
        change.
        """
        before = self.run["waiting_for"]
        if wait is None:
            return None
        same = before is not None and before.partition(":")[0] == wait.partition(":")[0]
        return self.run["waiting_since"] if same else self.now

    def move_run(
        self,
        status: RunStatus,
        source: str,
        evidence: Mapping[str, Any],
        cluster_time: datetime | None = None,
        **values: Any,
    ) -> bool:
        """Change the run's status, forwards only, with its transition. Returns whether it changed."""
        if not run_may_become(self.status, status):
            return False
        self.note_transition(self.run["status"], status, source, evidence, cluster_time)
        self.update_run(status=status.value, **values)
        return True

    def note_transition(
        self,
        before: str | None,
        after: RunStatus,
        source: str,
        evidence: Mapping[str, Any],
        cluster_time: datetime | None = None,
    ) -> None:
        """Append the run's own transition. Only ``move_run``, a new attempt and a new run may call it."""
        self.conn.execute(
            insert(status_transition).values(
                run_id=self.run_id,
                attempt=self.attempt,
                from_status=before,
                to_status=after.value,
                cluster_time=cluster_time,
                committed_at=self.now,
                lag_ms=untrue_ms(self.now, cluster_time),
                source=source,
                evidence=dict(evidence),
            )
        )
        self.changed = True

    def announce(self) -> None:
        """The event with the present state of the run."""
        names = ("run_id", "attempt", "crawler", "trigger", "status", "stage", "outcome", "pages", "items", "errors")
        tasks = dict(self.counts().by_status)
        body = facts(self.run, *names) | {"tasks": tasks}
        body |= facts(self.run, "verified_at", "next_look_at", "look_error", "look_error_since")
        body["waiting"] = waiting(standing(self.run, tasks))
        self.append_event(EVENT_RUN_CHANGED, None, body)

    def tell_corrections(self) -> None:
        """One event for all corrections of the transaction, with the first of them."""
        # The evidence stays in the ledger.
        shown = [facts(asdict(row), *_TOLD) for row in self.corrections[:CORRECTIONS_TOLD]]
        body = {"attempt": self.attempt, "crawler": self.run["crawler"], "flow_id": self.run["flow_id"]}
        body |= {"status": self.run["status"], "count": len(self.corrections), "corrections": shown}
        self.append_event(EVENT_CORRECTION_MADE, None, body)

    def append_event(self, type: str, key: str | None, body: Mapping[str, Any]) -> Event:
        """Append one event. Nothing may follow it in the transaction."""
        row = {
            "subject": run_subject(self.run_id),
            "subject_uid": self.ref.uid,
            "run_id": self.run_id,
            "attempt": self.attempt,
            "type": type,
            "event_key": key,
            "body": {"run_id": self.run_id, "run_uid": self.ref.uid, **body},
            "created_at": self.now,
        }
        return insert_event(self.conn, row)


def standing(run: Row, tasks: Mapping[str, int]) -> Standing:
    """The standing of the run, without ages: an event is read at any later time."""
    return Standing(
        status=str(run["status"]),
        created_at=run["attempt_at"] or run["created_at"],
        owned=run["owner_run_id"] is not None,
        waiting_for=run["waiting_for"],
        waiting_since=run["waiting_since"],
        look_error=run["look_error"],
        look_error_since=run["look_error_since"],
        stop_at=run["stop_requested_at"],
        stop_by=run["stop_limit"] or run["stop_requested_by"],
        stop_force=run["stop_force"],
        stop_heard=run["stop_acted_at"] is not None,
        tasks=tasks,
        max_parallel=run["request"].get("max_parallel_tasks"),
    )


class RunPart(StorePart):
    """A part of the store that works on one run: how its unit of work begins and ends."""

    def _of_run(self, table: Table, run_id: int) -> list[Mapping[str, object]]:
        query = select(table).where(table.c.run_id == run_id).order_by(table.c.id)
        return [{str(name): value for name, value in row.items()} for row in self._rows(query)]

    @contextmanager
    def _unit(self, run_id: int, fence: Fence | None = None, *, of_deleted: bool = False) -> Iterator[Unit]:
        """Lock the run first, check the fence, and tell of the change at the end if there was one.

        The run's row comes first in every transaction, so that two of them cannot wait for each other. Raises
        ``RunDeleted``, unless this is ``of_deleted`` runs as well.
        """
        with self._db.writing() as conn:
            run = read_run(conn, run_id, lock=True, owned=fence is not None)
            if fence is not None:
                check_fence(run, fence)
            if not of_deleted:
                check_kept(run)
            # The clock is read after the wait for the lock: lag counts until the commit, not until the attempt.
            unit = Unit(conn, run, self._clock(), told=self._told)
            yield unit
            if unit.corrections:
                unit.tell_corrections()
            if unit.changed:
                unit.announce()
        self._tell(unit)

    def _tell(self, unit: Unit) -> None:
        """Report the committed changes, and their lateness against the times in the rows."""
        if self._told is None or not (unit.told_changes or unit.told_corrections):
            return
        took = self._clock() - unit.now
        self._told(Committed(unit.run_id, unit.attempt, unit.told_changes, unit.told_corrections, took))
