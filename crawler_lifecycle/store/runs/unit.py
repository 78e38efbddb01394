"""The unit of work of runs, a write transaction on one locked run, and queries that several modules
need.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import (
    BindParameter,
    Connection,
    Select,
    Table,
    bindparam,
    exists,
    func,
    insert,
    select,
    text,
)

from crawler_lifecycle.domain.audits.corrections import untrue_ms
from crawler_lifecycle.domain.clocks import not_ahead
from crawler_lifecycle.domain.errors import Fenced, RowEdited, RowMissing, RunDeleted, RunNotFound
from crawler_lifecycle.domain.names import EVENT_CORRECTION_MADE, EVENT_RUN_CHANGED, run_subject
from crawler_lifecycle.domain.run import RunStatus, Stage, StopIntent, run_may_become
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.waiting import Standing, waiting
from crawler_lifecycle.ports.polls import (
    CommittedChanges,
    CommittedCorrection,
    CorrectionRow,
    Start,
    TaskChanged,
)
from crawler_lifecycle.ports.runs import Event, Fence, TaskCounts
from crawler_lifecycle.store.base.outbox import facts, insert_event
from crawler_lifecycle.store.base.rows import Fault, Row, change_row, made, seen, unreadable, where
from crawler_lifecycle.store.base.unit import StorePart, Told, read_row, stop_of

from .search_documents import SEARCHED, write_words
from .tables import run_history, status_transition, task_history

log = logging.getLogger(__name__)


#: The maximum number of corrections in an event.
CORRECTIONS_SHOWN = 20
#: The fields of a correction in an event.
_SHOWN = (
    "id",
    "task_id",
    "attempt",
    "kind",
    "believed",
    "believed_since",
    "truth",
    "truth_since",
    "found_by",
    "lag_ms",
    "created_at",
)


#: The indexes by which all tasks of a run are read. Without this hint, the optimizer scans the
#: whole table if a large part of its rows belongs to the run.
BY_RUN = (
    task_history,
    "FORCE INDEX (ix_task_history_current, uq_task_history_run_id_task_index_attempt)",
    "mysql",
)


def current_tasks(run_id: int | BindParameter[int], *columns: Any) -> Select[Any]:
    """Return a query for these columns of the run's tasks, excluding superseded tasks."""
    t = task_history.c
    query = (
        select(*columns)
        .select_from(task_history)
        .where(t.run_id == run_id, t.superseded_by.is_(None))
    )
    return query.with_hint(*BY_RUN)


#: This query runs after every change and every poll. It is built only once, because building the
#: query takes longer than executing it.
_COUNT = current_tasks(bindparam("run_id"), task_history.c.status, func.count()).group_by(
    task_history.c.status
)


def count_tasks(conn: Connection, run_id: int) -> TaskCounts:
    """Return the number of tasks of the run in each status, excluding superseded tasks."""
    return TaskCounts(dict(conn.execute(_COUNT, {"run_id": run_id}).all()))


def check_run(run: Row, ref: RunRef) -> None:
    """Raise ``Fenced`` if the row belongs to another run. The error is also logged."""
    if run["run_uid"] != ref.uid:
        text = ref.foreign(f"The row of run {ref.run_id}", run["run_uid"])
        log.warning("refused a write for another run: %s", text)
        raise Fenced(text)


def check_kept(run: Row) -> None:
    """Raise ``RunDeleted`` if the run was deleted."""
    if run["deleted_at"] is not None:
        raise RunDeleted(
            f"Run {run['run_id']} was deleted at {run['deleted_at'].isoformat()}; start a new one"
        )


def check_fence(run: Row, fence: Fence) -> None:
    """Raise ``Fenced`` unless the run still belongs to the writer. The error is also logged.

    Raises ``RowEdited`` if a manual edit changed the attempt or the owner.
    """
    check_run(run, fence.run)
    same_attempt = run["attempt"] == fence.attempt
    same_owner = run["owner_run_id"] == fence.owner_run_id
    if same_attempt and same_owner:
        return
    text = (
        f"Run {fence.run_id} is at attempt {run['attempt']} of owner {run['owner_run_id']}; "
        f"attempt {fence.attempt} of owner {fence.owner_run_id} may no longer write"
    )
    if same_attempt or same_owner:
        # A takeover changes both columns, so this one was changed by a manual edit. After a repair,
        # the writer continues.
        column, value = (
            ("owner_run_id", fence.owner_run_id) if same_attempt else ("attempt", fence.attempt)
        )
        fault = Fault(column, run[column], f"a manual edit changed it: set it back to {value!r}")
        raise RowEdited(f"{text}. {where(run_history, run)}: {fault}")
    log.warning("refused a late write: %s", text)
    raise Fenced(text)


def missing(run_id: int) -> RowMissing:
    """Return the error for the workflow of a run whose row is missing."""
    fix = "crawlctl audit --adopt inserts it again; until then the run waits"
    return RowMissing(
        f"The row of run {run_id} is missing, perhaps after a restore of the database: {fix}"
    )


def read_run(
    conn: Connection, run_id: int, *, lock: bool = False, owned: bool = False
) -> dict[Any, Any]:
    """Return the row of the run. If ``lock`` is true, the row stays locked until the end of the
    transaction.

    Raises ``RunNotFound`` if there is none, or ``RowMissing`` if the caller ``owned`` the run.
    """
    try:
        return read_row(conn, run_history, run_id, lock="write" if lock else None)
    except RunNotFound:
        if owned:
            raise missing(run_id) from None
        raise


def checked_counts(conn: Connection, run: Row) -> TaskCounts:
    """Return the counts of ``count_tasks``.

    Raises ``RowUnreadable`` if the run has ended but still has live tasks.
    """
    counts = count_tasks(conn, run["run_id"])
    if counts.alive and RunStatus(run["status"]).terminal:
        raise unreadable(
            run_history,
            run,
            Fault(
                "status",
                run["status"],
                f"{counts.alive} of its tasks are alive: set it back to PROCESSING, or stop the "
                "run (crawlctl stop)",
            ),
        )
    return counts


@dataclass
class Unit:
    """A write transaction on a run whose row is locked.

    Other writers in this program wait until the transaction ends.

    ``run`` is the row that will be committed. ``changed`` requests an event ``run.changed`` at the
    end.
    """

    conn: Connection
    run: dict[Any, Any]
    now: datetime
    changed: bool = False
    told: Told | None = None
    """Called after the commit with the new transitions and corrections."""
    told_changes: list[TaskChanged] = field(default_factory=list)
    told_corrections: list[CommittedCorrection] = field(default_factory=list)
    corrections: list[CorrectionRow] = field(default_factory=list)
    """The corrections that the transaction wrote. An event reports them."""
    reworded: bool = False
    """True if strings by which searches find the run have changed."""
    by_database: bool = False
    """True if ``by_server`` asks the database."""

    @cached_property
    def by_server(self) -> datetime:
        """The current time by the database's clock."""
        # A SQLite file uses our own clock.
        if not self.by_database or self.conn.dialect.name != "mysql":
            return self.now
        told: datetime = self.conn.execute(text("SELECT UTC_TIMESTAMP(6)")).scalar_one()
        return told.replace(tzinfo=UTC)

    @property
    def dated(self) -> datetime:
        """The time to record for changes and corrections of tasks: our time, or the database's time
        if our clock is ahead.
        """
        return not_ahead(self.now, self.by_server) or self.by_server

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
        """Write the values that differ from the row. If no value differs, write nothing."""
        new = {name: value for name, value in values.items() if self.run[name] != value}
        if not new:
            return
        if "waiting_for" in new:
            new["waiting_since"] = self._waiting_since(new["waiting_for"])
        new["updated_at"] = self.now
        change_row(self.conn, run_history, self.run, new)
        self.run.update(new)
        self.reworded = self.reworded or any(name in new for name in SEARCHED)

    @property
    def next_revision(self) -> int:
        """The number to write with a change. Polls that read the run before this change can no
        longer write.
        """
        return (self.run["look_revision"] or 0) + 1

    def _waiting_since(self, wait: str | None) -> datetime | None:
        """Return since when the run has been waiting for the same reason.

        The part before the colon identifies the reason, and the part after it may change.
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
        """Change the status of the run, and record the transition.

        Returns whether the status changed.

        A change that the state machine does not allow is ignored. ``values`` are further columns.
        """
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
        """Append a transition of the run itself.

        This is only for ``move_run``, a new attempt and a new run.
        """
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
        """Append the event ``run.changed`` with the current state of the run."""
        names = (
            "run_id",
            "attempt",
            "crawler",
            "trigger",
            "status",
            "stage",
            "outcome",
            "ended_by",
        )
        tasks = dict(self.counts().by_status)
        body = facts(self.run, *names, "pages", "items", "errors") | {"tasks": tasks}
        poll = facts(self.run, "verified_at", "next_look_at", "look_error", "look_error_since")
        body |= {name.replace("look", "poll"): value for name, value in poll.items()}
        body["waiting"] = waiting(standing(self.run, tasks))
        self.append_event(EVENT_RUN_CHANGED, None, body)

    def report_corrections(self) -> None:
        """Append one event for all corrections of the transaction.

        The event contains the first ``CORRECTIONS_SHOWN`` corrections.
        """
        # The event omits the evidence, which is in the table.
        shown = [facts(asdict(row), *_SHOWN) for row in self.corrections[:CORRECTIONS_SHOWN]]
        body = {
            "attempt": self.attempt,
            "crawler": self.run["crawler"],
            "flow_id": self.run["flow_id"],
            "status": self.run["status"],
            "count": len(self.corrections),
            "corrections": shown,
        }
        self.append_event(EVENT_CORRECTION_MADE, None, body)

    def append_event(self, type: str, key: str | None, body: Mapping[str, Any]) -> Event:
        """Append an event. This must be the last statement in the transaction."""
        subject = run_subject(self.run_id)
        uid = self.ref.uid
        more = {"attempt": self.attempt, "event_key": key}
        body = {"run_id": self.run_id, "run_uid": uid, "project": self.run["project"], **body}
        return insert_event(
            self.conn, self.now, type, subject, uid, body, run_id=self.run_id, **more
        )


_STAGES = [stage.value for stage in Stage]


def enter_stage(unit: Unit, stage: Stage) -> None:
    """Enter a stage, unless the run is in a later stage.

    A late retry of an earlier step must not reset it.
    """
    if _STAGES.index(stage) > _STAGES.index(unit.run["stage"]):
        unit.update_run(stage=stage.value)


def begin_run(unit: Unit, start: Start) -> None:
    """Record that the run has started: INITIALIZING becomes PROCESSING, and the stage becomes
    reconciliation.
    """
    enter_stage(unit, Stage.RECONCILIATION)
    unit.update_run(started_at=unit.run["started_at"] or start.at)
    plan: dict[str, Any] = {"waiting_for": None, "next_look_at": start.next_look_at}
    if start.next_look_at is not None:
        plan["look_gap_ms"] = max(start.next_look_at - unit.now, timedelta(0)) // timedelta(
            milliseconds=1
        )
    unit.move_run(RunStatus.PROCESSING, "look", {}, cluster_time=start.at, **plan)


def standing(run: Row, tasks: Mapping[str, int]) -> Standing:
    """Return the facts that describe the wait of a run.

    These facts contain times instead of ages, because events are read later.
    """
    return made(
        Standing,
        run,
        status=str(run["status"]),
        created_at=run["attempt_at"] or run["created_at"],
        owned=run["owner_run_id"] is not None,
        next_look_at=None,
        stop_at=run["stop_requested_at"],
        stop_by=run["stop_limit"] or run["stop_requested_by"],
        stop_heard=run["stop_acted_at"] is not None,
        tasks=tasks,
        max_parallel=run["request"].get("max_parallel_tasks"),
    )


class RunPart(StorePart):
    """The base class of parts of the store that work on one run."""

    def _of_run(self, table: Table, run_id: int) -> list[Mapping[str, object]]:
        query = select(table).where(table.c.run_id == run_id).order_by(table.c.id)
        if mine := seen(run_history):
            query = query.where(
                exists(select(run_history.c.run_id).where(run_history.c.run_id == run_id, *mine))
            )
        return [{str(name): value for name, value in row.items()} for row in self._rows(query)]

    @contextmanager
    def _unit(self, of: int | Fence, *, of_deleted: bool = False) -> Iterator[Unit]:
        """Lock the run with this number, or check a fence and lock its run.

        At the end of the block, append an event if the run changed.

        Every transaction locks the row of the run first, which prevents deadlocks. Raises
        ``RunDeleted`` for a deleted run, unless ``of_deleted`` is true.
        """
        with self._db.writing() as conn:
            if isinstance(of, Fence):
                run = read_run(conn, of.run_id, lock=True, owned=True)
                check_fence(run, of)
            else:
                run = read_run(conn, of, lock=True)
            if not of_deleted:
                check_kept(run)
            # The clock is read after the wait for the lock, because lag counts until the commit.
            unit = Unit(conn, run, self._clock(), told=self._told, by_database=self._dated)
            yield unit
            if unit.reworded:
                write_words(conn, unit.run)
            if unit.corrections:
                unit.report_corrections()
            if unit.changed:
                unit.announce()
        self._report(unit)

    def _report(self, unit: Unit) -> None:
        """Report the committed changes, and the time that has passed since the timestamp in the
        rows.
        """
        if self._told is None or not (unit.told_changes or unit.told_corrections):
            return
        took = self._clock() - unit.now
        self._told(
            CommittedChanges(
                unit.run_id, unit.attempt, unit.told_changes, unit.told_corrections, took
            )
        )
