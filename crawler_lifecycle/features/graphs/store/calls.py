"""The execution of steps: calls of functions, crawls and managers, from their start to their end.

Several workers may record ends at the same time, so they share the lock on the graph's row. A
change to the whole graph (``graphs.py``) waits until they have released the lock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from graphlib import TopologicalSorter
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, insert, or_, select, update

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.names import graph_workflow_id
from crawler_lifecycle.domain.run import DELIVERY_S, RunStatus
from crawler_lifecycle.domain.values import RESULT_PART
from crawler_lifecycle.features.managers.ports import ManagerRow
from crawler_lifecycle.features.managers.store.rows import manager_row
from crawler_lifecycle.features.managers.store.tables import manager
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.store.base.bulk import change_in, delete_rows, rows_in
from crawler_lifecycle.store.base.rows import Row
from crawler_lifecycle.store.base.unit import check_owner, read_row
from crawler_lifecycle.store.runs.lists import live_runs, runs_by_id
from crawler_lifecycle.store.runs.tables import OVER_RUNS, export_record

from ..domain.engine import StepEnd, after_failure, may_begin_again
from ..domain.kinds import STEP_RULES, StepRules
from ..domain.spec import LOST_MAX, StepKind, StepState
from ..ports import ExecutionEnd, GraphFence, StepWork
from .rows import work_of
from .steps import LOST, with_error
from .tables import graph, graph_result, graph_step
from .unit import (
    BEGINNING,
    BY_BATCH,
    BY_STATE,
    CANCELLED,
    OPEN,
    PRIMARY,
    WORKING,
    GraphPart,
)
from .unrecorded import RUNS, unrecorded

#: States in which a step of a call may begin.
_MAY_BEGIN = (StepState.SUSPENDED, StepState.AVAILABLE, StepState.EXECUTING)

_g = graph.c
_s = graph_step.c
_x = export_record.c
_FENCE = (_g.graph_id, _g.attempt, _g.owner_run_id, _g.options, _g.stop_requested_at)
#: Columns of a run or manager that show its outcome, and its parent.
_FACTS = ("status", "attempt", "outcome", "cause", "stop_requested_at", "stop_limit", "parent")
#: Columns of a run that its step records as the result.
_RECORDED = ("status", "outcome", "pages", "items", "errors", "archive")
#: Columns of a graph that identify its runs.
_NAMED = (_g.graph_id, _g.graph_key, _g.graph_uid)
#: Columns of a step that are read before its row changes.
_STEP = (
    _s.graph_id,
    _s.number,
    _s.kind,
    _s.shape,
    _s.state,
    _s.attempt,
    _s.tries,
    _s.snoozed,
    _s.batch,
    _s.run_id,
    _s.begun_attempt,
    _s.ending,
    _s.errors,
    _s.result_bytes,
)


class GraphCalls(GraphPart):
    """The methods of ``GraphStore`` for the execution of steps."""

    @contextmanager
    def _recording(self, fence: GraphFence) -> Iterator[tuple[Connection, Row, datetime]]:
        """Open a transaction that records ends, possibly in parallel with others.

        Yields its connection, the graph's row and the time. Raises ``Fenced``.
        """
        with self._db.writing() as conn:
            row = read_row(conn, graph, fence.graph_id, _FENCE, lock="share")
            check_owner(row, fence)
            yield conn, row, self._clock()

    # --- functions ---

    def batch(self, fence: GraphFence, batch: int) -> list[StepWork]:
        """Return the steps of a call that may begin, by priority.

        A dependency in the call comes before its dependents.
        """
        query = (
            select(graph_step)
            .where(_s.graph_id == fence.graph_id, _s.batch == batch)
            .order_by(_s.number)
        )
        with self._db.reading() as conn:
            check_owner(read_row(conn, graph, fence.graph_id, _FENCE), fence)
            rows = conn.execute(query.with_hint(*BY_BATCH)).mappings().all()
        may = [row for row in rows if row["state"] in _MAY_BEGIN]
        may.sort(key=lambda row: int(_shape(row, "priority", 0)))
        work = [work_of(row, attempt=row["attempt"] + 1, tries=row["tries"] + 1) for row in may]
        return _in_order(work)

    def record(
        self, fence: GraphFence, done: Sequence[ExecutionEnd], begin: Sequence[StepWork] = ()
    ) -> set[int]:
        """Record ends with their results, and begin the steps ``begin``, in one transaction.

        Returns the numbers of the steps that began. A step that had already begun in this attempt
        is included, because the response to the first call may have been lost. A step does not
        begin when it was cancelled, when its row does not name this call (``Step.batch``), when a
        dependency is not completed, when a later attempt began, or when a stop is recorded.

        The end of an attempt that is no longer executing changes only ``ending``. An end with the
        state ``AVAILABLE`` means that the function was not called: this attempt does not count as a
        try.
        """
        numbers = {*(execution.end.number for execution in done), *(step.number for step in begin)}
        with self._recording(fence) as (conn, row, now):
            steps = _Steps(conn, fence.graph_id, numbers, now)
            for execution in done:
                steps.end(execution)
            failed = any(execution.end.state is StepState.DISCARDED for execution in done)
            over = row["stop_requested_at"] is not None
            if begin and not over and row["options"].get("fail_fast"):
                over = failed or steps.discarded()
            begun = (
                set() if over else {step.number for step in steps.free(begin) if steps.begin(step)}
            )
            steps.write()
            return begun

    def cancelled(self, fence: GraphFence, numbers: Collection[int]) -> set[int]:
        """Return the steps among these that must not continue. After a stop or a takeover of the
        graph, return all of them.

        Raises ``RunNotFound``.
        """
        with self._db.reading() as conn:
            row = read_row(conn, graph, fence.graph_id, _FENCE)
            owns = (row["attempt"], row["owner_run_id"]) == (fence.attempt, fence.owner_run_id)
            if row["stop_requested_at"] is not None or not owns:
                return set(numbers)
            query = select(_s.number).where(
                _s.graph_id == fence.graph_id, _s.state == StepState.CANCELLED
            )
            return {row["number"] for row in rows_in(conn, query, _s.number, numbers)}

    # --- crawls and managers ---

    def to_begin(self, fence: GraphFence, limit: int = 100) -> list[StepWork]:
        """Return executing steps whose run or manager has not been started yet in the current
        attempt.
        """
        query = (
            select(graph_step)
            .where(
                _s.graph_id == fence.graph_id,
                _s.kind.in_(BEGINNING),
                _s.state == StepState.EXECUTING,
            )
            .where(_s.begun_attempt < _s.attempt)
            .order_by(_s.number)
            .limit(limit)
        )
        with self._db.reading() as conn:
            check_owner(read_row(conn, graph, fence.graph_id, _FENCE), fence)
            rows = conn.execute(query.with_hint(*BY_STATE)).mappings().all()
        return [work_of(row, attempt=row["attempt"], tries=row["tries"]) for row in rows]

    def run_begun(
        self, fence: GraphFence, number: int, run_id: int | None, error: str | None = None
    ) -> bool:
        """Record that the run or manager of a step exists, or that it can never be started.

        Give either ``run_id`` or ``error``. If ``error`` is given, the step is discarded
        (``deploy_failed``). ``run_attempt`` stays unchanged, so that only an end of a later attempt
        counts. Returns ``False`` if the step was cancelled in the meantime; the step then keeps the
        run and is ``ending``. A second call changes nothing.
        """
        if (run_id is None) == (error is None):
            raise InvalidRequest("run_id: give either run_id or the error that prevents the start")
        with self._recording(fence) as (conn, _, now):
            steps = _Steps(conn, fence.graph_id, [number], now)
            step = steps.rows.get(number)
            if step is None or step["kind"] not in BEGINNING:
                raise InvalidRequest(
                    f"number: {number} is not allowed; graph {fence.graph_id} has no such crawl"
                )
            executes: bool = step["state"] == StepState.EXECUTING
            if executes and error is not None:
                end = StepEnd(number, step["attempt"], StepState.DISCARDED, "deploy_failed", error)
                steps.end(ExecutionEnd(end, error=error))
            elif run_id is not None and (step["begun_attempt"], step["run_id"]) != (
                step["attempt"],
                run_id,
            ):
                # A step that was cancelled in the meantime keeps its run, because the run must be
                # stopped. A step whose previous run was removed gets a new run. Every end of the
                # new run counts, so run_attempt is reset.
                other = {"run_attempt": 0} if step["run_id"] not in (None, run_id) else {}
                steps.set(
                    number,
                    run_id=run_id,
                    begun_attempt=step["attempt"],
                    ending=not executes,
                    **other,
                )
            steps.write()
            return executes

    def runs_ended(self, fence: GraphFence) -> list[StepEnd]:
        """Return the recorded outcomes of the runs and managers that executing or ending steps have
        started.

        An end counts when its attempt is above ``run_attempt`` of the step. A step that was
        cancelled before its run was started has ended as well. After the end of its run, a crawl
        waits at most ``DELIVERY_S`` seconds for the delivery of the archive. The crawl counts as
        executing during this time, unless its step was cancelled.
        """
        with self._db.reading() as conn:
            its = read_row(conn, graph, fence.graph_id, (*_FENCE, _g.graph_key, _g.graph_uid))
            check_owner(its, fence)
            whose = graph_workflow_id(its["graph_key"])
            now = self._clock()
            found = list[StepEnd]()
            for kind, runs in RUNS.items():
                key = runs.key
                of = key.table.c
                lives = unrecorded(conn, kind, its)
                facts: list[ColumnElement[Any]] = [of[name] for name in _FACTS]
                joined = graph_step.join(key.table, key == _s.run_id, isouter=True)
                if STEP_RULES[kind].brings_items:
                    joined = joined.join(
                        export_record, (_x.run_id == key) & (_x.attempt == of.attempt), isouter=True
                    )
                    facts += [
                        of.pages,
                        of["items"],
                        of.errors,
                        of.ended_at,
                        _x.status.label("export"),
                    ]
                    facts.append(_x.url.label("archive"))
                query = (
                    select(
                        *_STEP,
                        _s.run_attempt,
                        _s.reason,
                        *(fact.label(f"its_{fact.name}") for fact in facts),
                    )
                    .select_from(joined)
                    .where(_s.graph_id == fence.graph_id, OPEN, _s.kind == kind)
                    .with_hint(*BY_STATE)
                )
                rows = conn.execute(query).mappings()
                ends = ((row, _run_end(row, whose, now)) for row in rows)
                found += [
                    _with_archive(row, end, now)
                    for row, end in ends
                    if end and end.number not in lives
                ]
        return sorted(found, key=lambda end: end.number)

    def live_graph_runs(
        self, graph_id: int, after_run_id: int = 0, limit: int = 100, *, ending: bool = False
    ) -> list[RunRow]:
        """Return the ids of the graph's runs that have not ended. If ``ending`` is true, return
        only runs whose step was cancelled.
        """
        with self._db.reading() as conn:
            named = read_row(conn, graph, graph_id, _NAMED)
            run = RUNS[StepKind.CRAWL].key
            more = []
            if ending:
                cancelled = run.in_(_run_ids(graph_id, StepKind.CRAWL, CANCELLED))
                lives = unrecorded(conn, StepKind.CRAWL, named)
                more = [or_(cancelled, run.in_(lives.values())) if lives else cancelled]
            whose = graph_workflow_id(named["graph_key"])
            found = live_runs(conn, whose, "graph/%", *more, after=after_run_id, limit=limit)
            return runs_by_id(conn, found)

    def live_graph_managers(self, graph_id: int, *, ending: bool = False) -> list[ManagerRow]:
        """Return all managers of executing or ending steps that have not ended. If ``ending`` is
        true, return only managers whose step was cancelled.
        """
        m = manager.c
        live = select(manager).where(m.status.not_in(OVER_RUNS)).order_by(m.manager_id)
        with self._db.reading() as conn:
            named = read_row(conn, graph, graph_id, _NAMED)
            query = _run_ids(graph_id, StepKind.MANAGER, CANCELLED if ending else OPEN)
            known = conn.execute(query.with_hint(*BY_STATE)).scalars()
            ids = {*known, *unrecorded(conn, StepKind.MANAGER, named).values()} - {None}
            return [manager_row(row) for row in rows_in(conn, live, m.manager_id, ids)]


def _run_ids(graph_id: int, kind: StepKind, which: ColumnElement[bool]) -> Select[tuple[int]]:
    """Return the query for the runs (or managers) of these steps of the graph."""
    return select(_s.run_id).where(_s.graph_id == graph_id, _s.kind == kind, which)


# --- steps ----------------------------------------------------------------------------------------


class _Steps:
    """Locked steps of one graph. Changes are collected and then written in a few statements."""

    def __init__(
        self, conn: Connection, graph_id: int, numbers: Collection[int], now: datetime
    ) -> None:
        self._conn = conn
        self._graph_id = graph_id
        self._now = now
        query = select(*_STEP).where(_s.graph_id == graph_id).order_by(_s.number).with_for_update()
        locked = rows_in(conn, query.with_hint(*PRIMARY), _s.number, numbers)
        self.rows: dict[int, dict[Any, Any]] = {row["number"]: dict(row) for row in locked}
        self._new = defaultdict[int, dict[str, Any]](dict)
        self._results: list[dict[str, Any]] = []
        self._stale: list[int] = []

    def set(self, number: int, **values: Any) -> None:
        """Change columns of a step. ``write`` writes them to the database."""
        self.rows[number].update(values)
        self._new[number].update(values)

    def write(self) -> None:
        """Write the changes and the results.

        Equal changes to several steps share one statement.
        """
        alike = defaultdict[str, list[int]](list)
        for number, values in self._new.items():
            alike[repr(sorted(values.items()))].append(number)
        for numbers in alike.values():
            same = (
                update(graph_step)
                .where(_s.graph_id == self._graph_id)
                .values(**self._new[numbers[0]])
            )
            change_in(self._conn, same, _s.number, numbers)
        delete_rows(
            self._conn,
            graph_result.c.number,
            "PRIMARY",
            self._stale,
            of={"graph_id": self._graph_id},
        )
        if self._results:
            self._conn.execute(insert(graph_result), self._results)

    def end(self, done: ExecutionEnd) -> None:
        """Record the end of an execution.

        If the step is no longer executing, only ``ending`` is reset.

        Raises ``InvalidRequest`` for an end with an invalid state, or without its ``not_before``.
        """
        end = done.end
        step = self.rows.get(done.end.number)
        if end.state in (StepState.SUSPENDED, StepState.EXECUTING):
            raise InvalidRequest(
                f"state: {end.state} is not allowed; give a state that ends an execution"
            )
        if end.state in (StepState.RETRYABLE, StepState.SCHEDULED) and end.not_before is None:
            raise InvalidRequest(f"not_before: give it with the state {end.state}")
        if step is None or step["attempt"] != end.attempt:
            return
        if step["state"] != StepState.EXECUTING:
            if step["ending"]:
                self.set(end.number, ending=False, batch=None)
            return
        values: dict[str, Any] = {
            "state": end.state.value,
            "not_before": end.not_before,
            "outcome": end.outcome,
            "reason": end.reason,
            "batch": None,
            "alternative": None,
        }
        if end.state in (StepState.SCHEDULED, StepState.AVAILABLE):
            values["tries"] = max(0, step["tries"] - 1)
            values["snoozed"] = step["snoozed"] + (end.state is StepState.SCHEDULED)
        if end.state in (StepState.RETRYABLE, StepState.DISCARDED):
            values["errors"] = self._errors(step, done.error or end.reason)
        if end.state.final:
            values |= {"ended_at": self._now, "result_bytes": self._keep(step, done)}
        self.set(end.number, **values)

    def _errors(self, step: Row, error: str | None) -> list[Any]:
        return with_error(step["errors"], step["attempt"], self._now.isoformat(), error)

    def _keep(self, step: Row, done: ExecutionEnd) -> int | None:
        """Replace the result of an earlier execution with the new result. Return the size of the
        new result in bytes.
        """
        if step["result_bytes"] is not None:
            self._stale.append(step["number"])
        if done.result is None:
            return None
        for part, data in enumerate(done.result):
            if len(data) > RESULT_PART:
                raise InvalidRequest(
                    f"result: part {part} has {len(data)} bytes; give at most {RESULT_PART} in one"
                )
            key = {"graph_id": self._graph_id, "number": step["number"], "part": part}
            self._results.append({**key, "data": data})
        return done.result_bytes

    def free(self, work: Sequence[StepWork]) -> list[StepWork]:
        """Return the steps among these that exist and whose dependencies allow them to begin."""
        known = {number: (row["state"], row["ending"]) for number, row in self.rows.items()}
        existing = [step for step in work if step.number in self.rows]
        wanted = {dep for step in existing for dep in _shape(self.rows[step.number], "deps", ())}
        query = select(_s.number, _s.state, _s.ending).where(_s.graph_id == self._graph_id)
        query = query.with_hint(*PRIMARY)
        for row in rows_in(self._conn, query, _s.number, wanted - known.keys()):
            known[row["number"]] = (row["state"], row["ending"])
        return [step for step in existing if self._lets(self.rows[step.number], known)]

    def discarded(self) -> bool:
        """Return whether the database has a discarded step of the graph.

        A different call may have recorded this step.
        """
        query = select(_s.number).where(_s.graph_id == self._graph_id, _s.kind.in_(WORKING))
        query = query.where(_s.state == StepState.DISCARDED).limit(1)
        return self._conn.execute(query.with_hint(*BY_STATE)).first() is not None

    @staticmethod
    def _lets(step: Row, known: Mapping[int, tuple[str, bool]]) -> bool:
        """Return whether the step's dependencies allow it to begin."""
        lets = {StepState.COMPLETED.value}
        lets |= {StepState.CANCELLED.value} if _shape(step, "ignore_cancelled", False) else set()
        lets |= {StepState.DISCARDED.value} if _shape(step, "ignore_discarded", False) else set()
        found = (known.get(dep, ("", True)) for dep in _shape(step, "deps", ()))
        return all(state in lets and not ending for state, ending in found)

    def begin(self, work: StepWork) -> bool:
        """Begin this execution of a step. Returns ``False`` when the step may not begin."""
        step = self.rows[work.number]
        if step["batch"] is None or step["batch"] != work.batch:
            return False
        if step["state"] == StepState.EXECUTING and step["attempt"] == work.attempt:
            return True
        if step["state"] not in _MAY_BEGIN or step["attempt"] != work.attempt - 1:
            return False
        values: dict[str, Any] = {"outcome": None, "reason": None}
        if step["state"] == StepState.EXECUTING:
            values["errors"] = self._errors(step, LOST)
            if not may_begin_again(step["tries"], _shape(step, "max_attempts", 1)):
                self.set(
                    work.number,
                    state=StepState.DISCARDED.value,
                    outcome="lost",
                    reason=f"{LOST}, {LOST_MAX} times",
                    errors=values["errors"],
                    batch=None,
                    alternative=None,
                    ended_at=self._now,
                )
                return False
        values |= {
            "state": StepState.EXECUTING.value,
            "attempt": work.attempt,
            "tries": step["tries"] + 1,
        }
        self.set(work.number, **values, not_before=None, started_at=self._now, ended_at=None)
        return True


def _shape(step: Row, name: str, default: Any) -> Any:
    return (step["shape"] or {}).get(name, default)


def _rules(step: Row) -> StepRules:
    return STEP_RULES[StepKind(step["kind"])]


def _in_order(work: Sequence[StepWork]) -> list[StepWork]:
    """Return the steps in their order, except that each step comes after its dependencies."""
    known = {step.number: step for step in work}
    order = TopologicalSorter(
        {step.number: [dep for dep in step.deps if dep in known] for step in work}
    )
    return [known[number] for number in order.static_order()]


def _with_archive(row: Row, end: StepEnd, now: datetime) -> StepEnd:
    """Return the end of a run. The run counts as executing until its archive, which dependents may
    need, is delivered.
    """
    if (
        not _rules(row).brings_items
        or row["ending"]
        or not end.state.final
        or row["its_ended_at"] is None
    ):
        return end
    if (
        row["its_export"] in ("exported", "empty")
        or (now - row["its_ended_at"]).total_seconds() >= DELIVERY_S
    ):
        return end
    run_id = row["run_id"]
    why = (
        f"run {run_id} is {row['its_status']}, and its archive is not delivered yet (crawlctl "
        f"export {run_id})"
    )
    return StepEnd(end.number, end.attempt, StepState.EXECUTING, reason=why)


def _run_end(row: Row, whose: str, now: datetime) -> StepEnd | None:
    """Return the end of the run or manager of a step of this graph, or ``None`` if the run or
    manager has not ended.
    """
    number = row["number"]
    attempt = row["attempt"]
    if row["begun_attempt"] < attempt:
        # The run was not started. An executing step will start it, but a cancelled step will not.
        return StepEnd(number, attempt, StepState.CANCELLED) if row["ending"] else None
    if row["its_status"] is None or row["its_parent"] != whose:
        what = f"{_rules(row).run} {row['run_id']}"
        gone = f"the row of {what} is missing"
        foreign = f"{what} belongs to {row['its_parent']}, not to this graph"
        reason = gone if row["its_status"] is None else foreign
        return StepEnd(number, attempt, StepState.DISCARDED, "lost", reason)
    if row["its_status"] not in OVER_RUNS or row["its_attempt"] <= row["run_attempt"]:
        # The reason shows that the step waited for the archive. The reason is removed, because a
        # person has resumed the run.
        return (
            StepEnd(number, attempt, StepState.EXECUTING)
            if row["reason"] and not row["ending"]
            else None
        )
    facts = {
        "outcome": row["its_outcome"],
        "reason": row["its_cause"],
        "run_attempt": row["its_attempt"],
    }
    if _rules(row).brings_items:
        facts["record"] = {
            "run_id": row["run_id"],
            **{name: row[f"its_{name}"] for name in _RECORDED},
        }
    if row["its_status"] == RunStatus.COMPLETED:
        return StepEnd(number, attempt, StepState.COMPLETED, **facts)
    if row["its_stop_requested_at"] is not None and row["its_stop_limit"] is None:
        return StepEnd(number, attempt, StepState.CANCELLED, **facts)
    shape = row["shape"] or {}
    state, not_before = after_failure(
        row["tries"], shape.get("max_attempts", 1), shape.get("backoff_s", 1.0), now
    )
    return StepEnd(number, attempt, state, not_before=not_before, **facts)
