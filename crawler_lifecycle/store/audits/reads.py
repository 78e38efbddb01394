"""Queries for the rows that an audit compares, and for overdue polls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, and_, func, literal, or_, select, union, union_all

from crawler_lifecycle.domain.audits.audit import (
    LOST,
    EndedRun,
    LiveParent,
    LiveRun,
    ParentJob,
    RecordedTask,
    StepWithoutRun,
)
from crawler_lifecycle.domain.audits.judgement import progress_mark
from crawler_lifecycle.domain.audits.overdue import OverduePolls, overdue_before, verification_due
from crawler_lifecycle.domain.names import (
    EVENT_RUN_ENDED,
    EVENT_RUN_STARTED,
    EVENT_RUN_STOPPED,
    event_key,
    graph_key_of,
    graph_workflow_id,
    manager_workflow_id,
    names_of_workflow,
)
from crawler_lifecycle.domain.projects import only
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.features.graphs.domain.commands import step_of_request
from crawler_lifecycle.features.graphs.domain.spec import GraphState, StepState
from crawler_lifecycle.features.graphs.store.rows import GRAPH, graph_row
from crawler_lifecycle.features.graphs.store.tables import graph, graph_step
from crawler_lifecycle.features.graphs.store.unit import BY_STATE as BY_STATE_OF_STEPS
from crawler_lifecycle.features.graphs.store.unrecorded import RUNS
from crawler_lifecycle.features.managers.domain.manager import JobState, job_of_request
from crawler_lifecycle.features.managers.store.tables import manager, manager_item
from crawler_lifecycle.features.webhooks.domain.definition import WEBHOOK_SINKS
from crawler_lifecycle.store.base.bulk import chunks, rows_in
from crawler_lifecycle.store.base.outbox import outbox_delivery, outbox_event
from crawler_lifecycle.store.base.rows import Row, made, seen
from crawler_lifecycle.store.base.unit import StorePart, stop_of
from crawler_lifecycle.store.runs.tables import (
    LIVE_RUNS,
    OVER_RUNS,
    export_record,
    run_history,
    task_history,
)
from crawler_lifecycle.store.runs.tasks import recorded, recorded_task
from crawler_lifecycle.store.runs.unit import BY_RUN

from .tables import audit_finding

#: The columns of a manager that show its progress.
_MOVES = ("position", "scheduled", "good", "bad", "jobs_queued", "jobs_ended")
#: Statuses of tasks whose end may have been recorded without evidence.
_UNPROVED = [TaskStatus.LOST.value, TaskStatus.CANCELLED.value, TaskStatus.FAILED.value]


class AuditStore(StorePart):
    """Rows that an audit compares with the cluster and with Temporal."""

    def open_runs(self, after_run_id: int = 0, limit: int = 500) -> list[LiveRun]:
        """Return runs that have not ended, by id."""
        r = run_history.c
        query = _open_page(r.run_id, r, r.status, LIVE_RUNS, after_run_id, limit)
        with self._db.reading() as conn:
            rows = list(conn.execute(query).mappings())
            jobs = _unknown_jobs(conn, rows) | _unknown_steps(conn, rows)
        return [replace(_live_run(row), uncounted=jobs.get(row["run_id"])) for row in rows]

    def open_managers(self, after_manager_id: int = 0, limit: int = 500) -> list[LiveParent]:
        """Return managers that have not ended, by id."""
        m = manager.c
        query = _open_page(m.manager_id, m, m.status, LIVE_RUNS, after_manager_id, limit)
        return [_live_manager(row) for row in self._rows(query)]

    def open_graphs(self, after_graph_id: int = 0, limit: int = 500) -> list[LiveParent]:
        """Return graphs that have not ended, by id, excluding drafts.

        An invalid row is reported in ``unreadable``.
        """
        g = graph.c
        query = _open_page(
            g.graph_id, GRAPH, g.state, [GraphState.EXECUTING.value], after_graph_id, limit
        )
        return [_live_graph(row) for row in self._rows(query)]

    def steps_without_runs(
        self, graph_ids: Collection[int], limit: int = 1000
    ) -> list[StepWithoutRun]:
        """Return live steps of these graphs whose run or manager does not exist, or belongs to
        another parent.

        A live step is executing, or was cancelled and has not ended yet.
        """
        g = graph.c
        s = graph_step.c
        found = list[StepWithoutRun]()
        under_way = or_(
            s.state == StepState.EXECUTING, and_(s.state == StepState.CANCELLED, s.ending)
        )
        with self._db.reading() as conn:
            for kind, runs in RUNS.items():
                key = runs.key
                parent = runs.key.table.c.parent
                for chunk in chunks(sorted(set(graph_ids)), 100):
                    query = (
                        select(
                            s.graph_id,
                            g.graph_key,
                            s.number,
                            s.path,
                            s.attempt,
                            s.run_id,
                            key,
                            parent,
                        )
                        .join_from(graph_step, graph, g.graph_id == s.graph_id)
                        .join(key.table, key == s.run_id, isouter=True)
                        .where(
                            s.graph_id.in_(chunk),
                            s.kind == kind,
                            under_way,
                            s.begun_attempt >= s.attempt,
                        )
                        .where(or_(parent.is_(None), parent != literal("graph/") + g.graph_key))
                        .limit(limit)
                        .with_hint(*BY_STATE_OF_STEPS)
                    )
                    found += [
                        StepWithoutRun(
                            graph_id,
                            name,
                            number,
                            path,
                            attempt,
                            kind,
                            run_id,
                            exists is not None,
                            whose,
                        )
                        for (graph_id, name, number, path, attempt, run_id, exists, whose) in (
                            conn.execute(query)
                        )
                    ]
        return found[:limit]

    def existing_parents(self, workflow_ids: Collection[str]) -> set[str]:
        """Return the ids whose manager or graph exists in the database."""
        m = manager.c
        g = graph.c
        found = set[str]()
        with self._db.reading() as conn:
            for workflow_id in sorted(set(workflow_ids)):
                name, flow_id = names_of_workflow(workflow_id) or ("", "")
                query = select(m.manager_id).where(m.name == name, m.flow_id == flow_id)
                if (key := graph_key_of(workflow_id)) is not None:
                    query = select(g.graph_id).where(g.graph_key == key)
                if conn.execute(query).first() is not None:
                    found.add(workflow_id)
        return found

    def ended_runs(
        self, since: datetime, after: tuple[datetime, int] | None = None, limit: int = 500
    ) -> list[EndedRun]:
        """Return runs that ended at ``since`` or later, ordered by end time and id, excluding
        deleted runs.

        ``after`` is the end time and id of the last run of the previous page.
        """
        r = run_history.c
        begin, last_id = after or (since, -1)
        # No index fits the condition ``over``, so SQLite uses the index of the end time.
        over = func.coalesce(r.status, "").in_(OVER_RUNS)
        query = (
            select(run_history)
            .where(r.ended_at >= begin, over, r.deleted_at.is_(None))
            .where((r.ended_at > begin) | (r.run_id > last_id))
            .order_by(r.ended_at, r.run_id)
            .limit(limit)
            .with_hint(run_history, "FORCE INDEX (ix_run_history_ended_at_run_id)", "mysql")
        )
        with self._db.reading() as conn:
            return _with_deliveries(conn, list(conn.execute(query).mappings()))

    def ended_run(self, run_id: int) -> EndedRun | None:
        """Return this run in the form of ``ended_runs``; ``None`` if it has not ended, was deleted
        or does not exist.
        """
        r = run_history.c
        over = (r.status.in_(OVER_RUNS), r.ended_at.is_not(None), r.deleted_at.is_(None))
        query = select(run_history).where(r.run_id == run_id, *over)
        with self._db.reading() as conn:
            found = _with_deliveries(conn, list(conn.execute(query).mappings()))
            return found[0] if found else None

    def unproved_ends(
        self, run_ids: Collection[int], since: datetime, limit: int = 500
    ) -> list[RecordedTask]:
        """Return tasks of these runs that ended at ``since`` or later and have neither an exit code
        nor a signal.
        """
        t = task_history.c
        query = (
            recorded()
            .where(t.superseded_by.is_(None), t.status.in_(_UNPROVED), t.ended_at >= since)
            .where(t.exit_code.is_(None), t.exit_signal.is_(None), t.cluster_uid.is_not(None))
            .limit(limit)
            .with_hint(*BY_RUN)
        )
        with self._db.reading() as conn:
            return [
                recorded_task(row) for row in rows_in(conn, query, t.run_id, run_ids, 200)[:limit]
            ]

    def existing_runs(self, run_ids: Collection[int]) -> dict[int, str]:
        """Return the uid of each of these runs that exists."""
        r = run_history.c
        with self._db.reading() as conn:
            rows = rows_in(conn, select(r.run_id, r.run_uid), r.run_id, run_ids)
        return {row["run_id"]: row["run_uid"] for row in rows}


class OverdueStore(StorePart):
    """Queries for planned polls that were not made in time."""

    def overdue_runs(
        self, before: datetime, after: tuple[datetime, int] | None = None, limit: int = 500
    ) -> list[LiveRun]:
        """Return live runs whose next poll was due before ``before``, ordered by due time and id.

        ``after`` is the due time and id of the last run of the previous page. A run without a
        planned poll has no owner, has no deployed task, or is waiting to start. Such a run is
        included if its row has not changed since ``before``.
        """
        r = run_history.c
        pages = [
            _due_page(r.next_look_at, r.status.in_(LIVE_RUNS), before, after, limit, "page_planned")
        ]
        for n, status in enumerate(LIVE_RUNS):
            unplanned = and_(r.next_look_at.is_(None), r.status == status)
            pages.append(
                _due_page(r.updated_at, unplanned, before, after, limit, f"page_unplanned_{n}")
            )
        ids = union(*(select(page.c.run_id) for page in pages)).subquery("page_of_due")
        found = [
            _live_run(row)
            for row in self._rows(select(run_history).join(ids, ids.c.run_id == r.run_id))
        ]
        return sorted(found, key=lambda run: (run.due_at or before, run.run_id))[:limit]

    def overdue_polls(self, now: datetime) -> OverduePolls:
        """Return the number of runs whose poll is overdue at the time ``now``, and the oldest of
        these runs.

        Polls that no workflow ordered are counted too (``verification_due``).

        For a caller with access to all projects, the result also contains the number of managers,
        graphs, due times and webhooks that audits found without a workflow, and the oldest of these
        findings.
        """
        before = overdue_before(now)
        r = run_history.c
        planned = (r.next_look_at < before, r.status.in_(LIVE_RUNS), *seen(run_history))
        columns = (r.run_id, r.next_look_at, r.verified_at, r.look_gap_ms)
        a = audit_finding.c
        kinds = [str(kind) for kind in LOST]
        mine = and_(a.status == "open", a.kind.in_(kinds), a.run_id.is_(None))
        lost = select(a.first_seen, a.detail).where(mine).order_by(a.first_seen, a.id).limit(1)
        with self._db.reading() as conn:
            rows = conn.execute(select(*columns).where(*planned)).all()
            what = None if only() is not None else conn.execute(lost).one_or_none()
            late = [(verification_due(*times), run_id, times[1]) for run_id, *times in rows]
            late = sorted(entry for entry in late if entry[0] is not None and entry[0] < before)
            found = OverduePolls()
            if late:
                error = select(r.look_error).where(r.run_id == late[0][1])
                found = OverduePolls(len(late), *late[0], conn.execute(error).scalar())
            if what is None:
                return found
            many = conn.execute(select(func.count()).where(mine)).scalar_one()
            return replace(found, lost=many, lost_since=what.first_seen, lost_what=what.detail)


def _open_page(
    key: Any, columns: Iterable[Any], state: Any, states: Sequence[str], after: int, limit: int
) -> Select[Any]:
    """Return a query for the rows with a key above ``after`` in one of these states, ordered by
    key.

    The query reads each state in a separate subquery, so that an index provides the order.
    """
    table = key.table
    index = f"FORCE INDEX (ix_{table.name}_{state.name}_{key.name})"
    behind = (
        select(key).where(key > after).order_by(key).limit(limit).with_hint(table, index, "mysql")
    )
    pages = [behind.where(state == value).subquery(f"page_{n}") for n, value in enumerate(states)]
    ids = union_all(*(select(page.c[key.name]) for page in pages)).subquery("page_of_all")
    return select(*columns).join(ids, ids.c[key.name] == key).order_by(key).limit(limit)


def _due_page(
    due: Any,
    condition: Any,
    before: datetime,
    after: tuple[datetime, int] | None,
    limit: int,
    name: str,
) -> Any:
    r = run_history.c
    query = select(r.run_id).where(condition, due < before)
    if after is not None:
        query = query.where(due >= after[0], or_(due > after[0], r.run_id > after[1]))
    hint = "FORCE INDEX (ix_run_history_overdue)"
    return (
        query.order_by(due, r.run_id)
        .limit(limit)
        .with_hint(run_history, hint, "mysql")
        .subquery(name)
    )


def _live_run(row: Row) -> LiveRun:
    priority = row["request"].get("priority")
    planned = row["next_look_at"]
    return made(
        LiveRun,
        row,
        priority=priority if isinstance(priority, int) else 3,
        stop=stop_of(row),
        due_at=planned or row["updated_at"],
        planned=planned is not None,
    )


def _live_manager(row: Row) -> LiveParent:
    forced = bool(row["stop_requested_at"] and row["stop_force"])
    return made(
        LiveParent,
        row,
        what="manager",
        number=row["manager_id"],
        workflow_id=manager_workflow_id(row["name"], row["flow_id"]),
        progress=progress_mark(
            *(row[name] for name in _MOVES), row["stop_requested_at"] is None, forced
        ),
        forced=forced,
    )


def _live_graph(row: Row) -> LiveParent:
    found = graph_row(row)
    forced = found.stop is not None and found.stop.force
    return LiveParent(
        "graph",
        found.graph_id,
        graph_workflow_id(found.key),
        status=str(found.state),
        **{name: getattr(found, name) for name in ("attempt", "updated_at", "owner_run_id")},
        unreadable=found.unreadable,
        progress=progress_mark(
            sorted((str(state), n) for state, n in found.counts.items()), found.stop is None, forced
        ),
        forced=forced,
    )


def _unknown_jobs(conn: Connection, rows: Sequence[Row]) -> dict[int, ParentJob]:
    """Return the runs that a manager started but did not record, each with the job that it names.
    Only these runs are considered.
    """
    i = manager_item.c
    found = dict[int, ParentJob]()
    jobs = {}
    for row in rows:
        job = job_of_request(str(row["request_id"]))
        parent = str(row["parent"])
        if job is not None and names_of_workflow(parent) is not None:
            jobs[row["run_id"]] = (job, parent)
    counted = {row["run_id"] for row in rows_in(conn, select(i.run_id), i.run_id, jobs)}
    for run_id in sorted(set(jobs) - counted):
        (manager_id, seq, retry), parent = jobs[run_id]
        query = select(i.state).where(i.manager_id == manager_id, i.seq == seq, i.retry == retry)
        state = conn.execute(query).scalar_one_or_none()
        found[run_id] = ParentJob(
            f"manager {manager_id}", "job", parent, state, starting=state == JobState.STARTING
        )
    return found


def _unknown_steps(conn: Connection, rows: Sequence[Row]) -> dict[int, ParentJob]:
    """Return the runs that a graph started but did not record, each with the step that it names.
    Only these runs are considered.
    """
    g = graph.c
    s = graph_step.c
    found = dict[int, ParentJob]()
    named = defaultdict[str, dict[int, tuple[str, int]]](dict)
    for run in rows:
        key = graph_key_of(str(run["parent"]))
        step = None if key is None else step_of_request(key, str(run["request_id"]))
        if key is not None and step is not None:
            named[key][run["run_id"]] = step
    for key, runs in named.items():
        graph_id = conn.execute(select(g.graph_id).where(g.graph_key == key)).scalar_one_or_none()
        query = select(s.path_hash, s.state, s.attempt, s.begun_attempt).where(
            s.graph_id == graph_id
        )
        paths = [path for path, _ in runs.values()] if graph_id is not None else ()
        steps = {step["path_hash"]: step for step in rows_in(conn, query, s.path_hash, paths)}
        for run_id, (path, attempt) in runs.items():
            row = steps.get(path)
            if row is None or row["begun_attempt"] < attempt:
                state = None if row is None else row["state"]
                starting = row is not None and (state, row["attempt"]) == (
                    StepState.EXECUTING,
                    attempt,
                )
                name = f"graph {key!r}" + (" (not in the database)" if graph_id is None else "")
                found[run_id] = ParentJob(name, "step", graph_workflow_id(key), state, starting)
    return found


def _with_deliveries(conn: Connection, rows: Sequence[Row]) -> list[EndedRun]:
    """Return these runs, each with the state of the deliveries and the export of its current
    attempt.
    """
    keys = {
        event_key(RunRef(row["run_id"], row["run_uid"]), row["attempt"], kind): (
            row["run_id"],
            kind,
        )
        for row in rows
        for kind in (EVENT_RUN_STARTED, EVENT_RUN_STOPPED, EVENT_RUN_ENDED)
    }
    delivered: set[tuple[int, str]] = set()
    waiting: set[tuple[int, str]] = set()
    e = outbox_event.c
    d = outbox_delivery.c
    x = export_record.c
    ours = and_(d.seq == e.seq, ~d.sink.like(WEBHOOK_SINKS))
    query = select(e.event_key, d.status).join_from(
        outbox_event, outbox_delivery, ours, isouter=True
    )
    for sent in rows_in(conn, query, e.event_key, keys):
        (delivered if sent["status"] == "delivered" else waiting).add(keys[sent["event_key"]])
    attempts = select(x.run_id, x.attempt).where(x.status.in_(("exported", "empty")))
    exported = {
        tuple(found.values())
        for found in rows_in(conn, attempts, x.run_id, (row["run_id"] for row in rows))
    }
    return [
        made(
            EndedRun,
            row,
            stop=stop_of(row),
            event_delivered=(row["run_id"], EVENT_RUN_ENDED) in delivered,
            pushes_delivered=not {
                (row["run_id"], kind) for kind in (EVENT_RUN_STARTED, EVENT_RUN_STOPPED)
            }
            & waiting,
            exported=(row["run_id"], row["attempt"]) in exported,
        )
        for row in rows
    ]
