"""Completion: the verdict about a run with its events, and the records of exports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Connection, Select, func, select, update

from crawler_lifecycle.domain.coverage import (
    GOOD_AMONG,
    GOOD_RUNS,
    RUNS,
    Brought,
    Coverage,
    ExpectedCoverage,
    judged,
)
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.errors import NotInThisState, RowUnreadable
from crawler_lifecycle.domain.names import (
    EVENT_RUN_ENDED,
    EVENT_RUN_STOPPED,
    PROPERTY_FILES_REMOVED,
    WAITING_FOR_START,
    archive_key,
    event_key,
    verdict_events,
)
from crawler_lifecycle.domain.run import (
    EndedTasks,
    ExportResult,
    RunStatus,
    Stage,
    StopIntent,
    Verdict,
)
from crawler_lifecycle.ports.runs import Fence, RunRow, TaskCounts
from crawler_lifecycle.store.base.bulk import put_row
from crawler_lifecycle.store.base.outbox import facts, outbox_event
from crawler_lifecycle.store.base.rows import Fault, unreadable

from .caps import leave_lines
from .codes import codes_of_runs
from .live_counters import count_sums
from .moves import OF_END, forget_staged
from .rows import run_row
from .stops import note_acted
from .tables import (
    export_record,
    history_property,
    run_history,
    status_transition,
    task_addition,
    task_history,
)
from .tasks import run_coverage
from .unit import RunPart, Unit, check_fence, checked_counts, current_tasks

_NOTHING = ExpectedCoverage()


def ended_groups(conn: Connection, run_id: int) -> list[EndedTasks]:
    """Group the ended tasks by status, outcome and ``ended_by``, and return the number of tasks and
    one cause for each group.

    The group that contains the most frequent cause of unsuccessful tasks gets this cause, and the
    number of tasks that have it.
    """
    t = task_history.c
    same = (t.status, t.outcome, t.ended_by)
    rows = conn.execute(
        current_tasks(run_id, *same, func.count(), func.min(t.cause))
        .group_by(*same)
        .order_by(*same)
    )
    groups = [
        EndedTasks(status, outcome, count, cause, ended_by=ended_by and EndedBy(ended_by))
        for status, outcome, ended_by, count, cause in rows
    ]
    if all(group.status == "SUCCEEDED" for group in groups):
        return groups
    alike = func.count()
    most = conn.execute(
        current_tasks(run_id, *same, t.cause, alike)
        .where(t.status.in_(["FAILED", "CANCELLED", "LOST"]))
        .group_by(*same, t.cause)
        .order_by(alike.desc(), func.min(t.task_index))
        .limit(1)
    ).one_or_none()
    if most is None:
        return groups
    *of_most, cause, count = most
    return [
        replace(g, cause=cause, alike=count) if [g.status, g.outcome, g.ended_by] == of_most else g
        for g in groups
    ]


def _with_the_wait(verdict: Verdict, unit: Unit) -> Verdict:
    """Return the verdict.

    If the run did not start in time, the cause includes the recorded reason for its wait.
    """
    waited = unit.run["waiting_for"]
    if (verdict.ended_by, verdict.outcome) != (EndedBy.LIMIT, "start_timeout") or waited in (
        None,
        WAITING_FOR_START,
    ):
        return verdict
    return replace(verdict, cause=f"{verdict.cause}; the reason for its wait was: {waited}")


def _before(unit: Unit) -> list[Coverage]:
    """Return the coverages of the last completed runs of this crawler and project before this run.

    Runs without a coverage are left out.
    """
    query = _completed_before(unit, run_history.c.fields).limit(RUNS)
    return [
        one
        for fields in unit.conn.execute(query).scalars()
        if (one := Coverage.of(fields)) is not None
    ]


def _good(unit: Unit) -> list[Brought]:
    """Return the results of this crawler's last successful runs in this project before this run,
    excluding runs without items.
    """
    r = run_history.c
    rows = unit.conn.execute(
        _completed_before(unit, r.pages, r["items"], r.lacks).limit(GOOD_AMONG)
    )
    return [Brought(pages or 0, items) for pages, items, lacks in rows if items and lacks is None][
        :GOOD_RUNS
    ]


def _completed_before(unit: Unit, *columns: Any) -> Select[Any]:
    """Return a query for completed runs of this crawler and project before this run, the newest
    first.
    """
    r = run_history.c
    query = select(*columns).where(
        r.project == unit.run["project"],
        r.crawler == unit.run["crawler"],
        r.status == RunStatus.COMPLETED,
        r.run_id < unit.run_id,
    )
    return query.order_by(r.run_id.desc()).with_hint(
        run_history, "FORCE INDEX (ix_run_history_project_crawler_status_run_id)", "mysql"
    )


class CompletionStore(RunPart):
    """The verdict about a run."""

    def end_run(
        self,
        fence: Fence,
        judge: Callable[[Sequence[EndedTasks], StopIntent | None], Verdict],
        expected: ExpectedCoverage = _NOTHING,
    ) -> RunRow:
        """Record the verdict of ``judge`` in one transaction: the terminal status, its transition
        and the event ``run.ended``.

        Unless the run was stopped, its results are also compared with ``expected``. A run that
        needs attention has further events (``verdict_events``). If a stop is recorded, the event
        ``run.stopped`` is also appended, even if no workflow has acted on the stop. Raises
        ``NotInThisState`` while tasks are alive.

        Raises ``RowUnreadable`` if a row of a task is missing, or if a manual edit set the terminal
        status. A second call returns the row without calling ``judge``.
        """
        # This is done before the lock is taken, because it takes seconds for many tasks. Ended
        # tasks do not change.
        with self._db.reading() as conn:
            coverage = run_coverage(conn, fence.run_id, expected.parts)
        with self._unit(fence) as unit:
            counts = checked_counts(unit.conn, unit.run)
            if unit.status.terminal:
                _check_judged(unit)
                return run_row(unit.run)
            if counts.alive:
                raise NotInThisState(
                    f"Run {unit.run_id} cannot end: {counts.alive} of its tasks are still alive"
                )
            _check_complete(unit, counts)
            verdict = _with_the_wait(judge(ended_groups(unit.conn, unit.run_id), unit.stop), unit)
            sums = count_sums(unit)
            if verdict.status is RunStatus.COMPLETED:
                verdict = _compared(
                    verdict, unit, sums, coverage, _NOTHING if unit.stop else expected
                )
            t = task_history.c
            last_end = unit.conn.execute(
                current_tasks(unit.run_id, func.max(t.ended_at))
            ).scalar_one()
            unit.move_run(
                verdict.status,
                "stop" if unit.stop else "look",
                {
                    "tasks": dict(counts.by_status),
                    **{name: getattr(verdict, name) for name in OF_END},
                },
                cluster_time=last_end,
                outcome=verdict.outcome,
                ended_by=verdict.ended_by,
                cause=verdict.cause,
                lacks=verdict.lacks,
                # The run ended with its last task, even if that was found later. The time must not
                # be in the future.
                ended_at=min(last_end, unit.now) if last_end else unit.now,
                stage=Stage.COMPLETION.value,
                waiting_for=None,
                next_look_at=None,
                fields=None if coverage is None else asdict(coverage),
                **sums,
            )
            forget_staged(unit)
            leave_lines(unit)
            if unit.stop is not None:
                # The run has ended, so no workflow needs to act on the stop any longer.
                note_acted(unit, unit.now)
                key = event_key(unit.ref, unit.attempt, EVENT_RUN_STOPPED)
                stopped = facts(unit.run, "run_id", "attempt", "crawler", "status", *OF_END)
                unit.append_event(EVENT_RUN_STOPPED, key, stopped)
            body = _ended_body(unit, counts, verdict.attention)
            for type in reversed(verdict_events(verdict.attention)):
                once = event_key(unit.ref, unit.attempt, type) if type == EVENT_RUN_ENDED else None
                unit.append_event(type, once, body)
            return run_row(unit.run)


def _compared(
    verdict: Verdict,
    unit: Unit,
    sums: Mapping[str, int | None],
    coverage: Coverage | None,
    expected: ExpectedCoverage,
) -> Verdict:
    """Return the verdict of a completed run after the comparison with the expected results."""
    brought = Brought(sums["pages"] or 0, sums["items"] or 0, sums["errors"] or 0, coverage)
    before = _before(unit) if expected.parts else []
    good = _good(unit) if expected.numbers or not brought.items else []
    return judged(verdict, brought, expected, before, good)


def _check_judged(unit: Unit) -> None:
    """Raise ``RowUnreadable`` if there is no event ``run.ended``, because then a manual edit set
    the terminal status.
    """
    key = event_key(unit.ref, unit.attempt, EVENT_RUN_ENDED)
    if (
        unit.conn.execute(
            select(outbox_event.c.seq).where(outbox_event.c.event_key == key)
        ).one_or_none()
        is None
    ):
        raise unreadable(
            run_history,
            unit.run,
            Fault(
                "status",
                unit.run["status"],
                f"a manual edit set it in attempt {unit.attempt}: set it back to PROCESSING, to "
                "have the run judged",
            ),
        )


def _check_complete(unit: Unit, counts: TaskCounts) -> None:
    """Raise ``RowUnreadable`` if the row of a task is missing, or if an index has two valid rows.

    A verdict about the wrong tasks would be false.
    """
    t = task_history.c
    rows = sum(counts.by_status.values())
    last = unit.conn.execute(current_tasks(unit.run_id, func.max(t.task_index))).scalar_one()
    expected = max(_tasks_made(unit), 0 if last is None else last + 1)
    if rows == expected:
        return
    found = set(unit.conn.execute(current_tasks(unit.run_id, t.task_index)).scalars())
    missing = [str(index) for index in range(expected) if index not in found]
    if missing:
        what = f"no row that counts has task_index {', '.join(missing[:10])}"
        fix = (
            "insert it again (QUEUED, to execute it; LOST with ended_at, if the task is gone), or "
            "restore a backup"
        )
    else:
        what = "a task_index has two rows that count"
        fix = "set superseded_by of the older one to the task_id of the newer one"
    raise RowUnreadable(
        f"task_history run_id {unit.run_id}: {rows} rows for {expected} tasks: {what}; {fix}"
    )


def _tasks_made(unit: Unit) -> int:
    """Return the number of the run's tasks according to the records of its start and of later
    additions.
    """
    s = status_transition.c
    a = task_addition.c
    query = select(status_transition).where(s.run_id == unit.run_id).order_by(s.seq).limit(1)
    first = unit.conn.execute(query).mappings().one_or_none()
    known = (
        first is not None and first["from_status"] is None and isinstance(first["evidence"], dict)
    )
    began = first["evidence"].get("tasks") if known and first is not None else None
    added = unit.conn.execute(select(func.sum(a.tasks)).where(a.run_id == unit.run_id)).scalar_one()
    return (began if isinstance(began, int) else 0) + int(added or 0)


def _ended_body(unit: Unit, counts: TaskCounts, attention: str | None) -> dict[str, object]:
    """Return the body of the event ``run.ended``, which has the facts that data pipelines need."""
    names = ("run_id", "attempt", "request_id", "crawler", "trigger", "flow_id", "parent", "status")
    codes = codes_of_runs(unit.conn, [unit.run_id]).get(unit.run_id, ())
    return {
        **facts(unit.run, *names, *OF_END),
        "attention": attention,
        "tasks": counts.positive(),
        **facts(unit.run, "pages", "items", "errors", "started_at", "ended_at"),
        "codes": list(map(asdict, codes)),
        "supporting_files": archive_key(unit.ref, unit.attempt),
    }


class ExportStore(RunPart):
    """The state of the exports of runs."""

    def begin_export(self, fence: Fence) -> int:
        """Record that an export of the fence's attempt begins to read files.

        Returns the last attempt whose files were released for removal; 0 if there is none.
        """
        x = export_record.c
        p = history_property.c
        with self._unit(fence.run_id) as unit:
            if fence.attempt >= unit.attempt:
                check_fence(unit.run, fence)
            key = (x.run_id == unit.run_id, x.attempt == fence.attempt)
            unit.conn.execute(update(export_record).where(*key).values(at=unit.now))
            gone = select(func.max(p.attempt)).where(
                p.run_id == unit.run_id, p.name == PROPERTY_FILES_REMOVED
            )
            return unit.conn.execute(gone).scalar_one() or 0

    def record_export(
        self, fence: Fence, status: str, result: ExportResult | None, error: str | None
    ) -> None:
        """Record the state of the export of the fence's attempt.

        The address of a stored archive stays recorded, and a later failed try only adds its error.
        An earlier attempt of a resumed run can still record its own export, because nothing else
        records it.
        """
        x = export_record.c
        with self._unit(fence.run_id) as unit:
            if fence.attempt >= unit.attempt:
                check_fence(unit.run, fence)
            values: dict[str, Any] = {"error": error, "at": unit.now}
            stored = select(x.url).where(x.run_id == unit.run_id, x.attempt == fence.attempt)
            if result is not None or unit.conn.execute(stored).scalar_one_or_none() is None:
                names = ("url", "bytes", "files", "sha256")
                values |= {
                    "status": status,
                    **{name: getattr(result, name, None) for name in names},
                }
            key = {"run_id": unit.run_id, "attempt": fence.attempt}
            put_row(unit.conn, export_record, key, values)

    def list_exports(self, run_id: int) -> list[Mapping[str, object]]:
        return self._of_run(export_record, run_id)
