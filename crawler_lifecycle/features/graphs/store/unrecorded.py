"""Search for runs and managers that a cancelled step started but whose start was not recorded.

The worker that started such a run died before it could record the start in the step's row. The run
is found by the request id that the step gives it (a manager: by its name and flow id). If the step
had resumed its previous run, the row names that run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Column, Connection, and_, or_, select

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.names import graph_workflow_id
from crawler_lifecycle.features.managers.store.tables import manager
from crawler_lifecycle.store.base.bulk import chunks, rows_in
from crawler_lifecycle.store.base.rows import Row
from crawler_lifecycle.store.runs.tables import LIVE_RUNS, run_history

from ..domain.checks import check_job
from ..domain.commands import step_manager, step_request_id
from ..domain.spec import StepKind
from .tables import graph_step
from .unit import BY_STATE, CANCELLED

_s = graph_step.c
#: The maximum number of managers that one query finds by their names.
_NAMES = 100


def unrecorded(conn: Connection, kind: StepKind, graph: Row) -> dict[int, int]:
    """Return the live runs or managers that cancelled steps of this kind started, by the number of
    the step.

    ``graph`` is a row with ``graph_id``, ``graph_key`` and ``graph_uid``. Only starts that were not
    recorded count.
    """
    query = (
        select(_s.graph_id, _s.number, _s.path, _s.attempt, _s.run_id, _s.run_attempt, _s.job)
        .where(
            _s.graph_id == graph["graph_id"],
            _s.kind == kind,
            CANCELLED,
            _s.begun_attempt < _s.attempt,
        )
        .with_hint(*BY_STATE)
    )
    steps = conn.execute(query).mappings().all()
    found = dict[int, int]()
    key = RUNS[kind].key
    resumed = {row["run_id"]: row for row in steps if row["run_id"] is not None}
    live = select(key, key.table.c.attempt).where(key.table.c.status.in_(LIVE_RUNS))
    for row in rows_in(conn, live, key, resumed):
        step = resumed[row[key.name]]
        if row["attempt"] > step["run_attempt"]:
            found[step["number"]] = row[key.name]
    first = [row for row in steps if row["run_id"] is None]
    return found | dict(RUNS[kind].unrecorded(conn, graph, first))


def _runs(conn: Connection, graph: Row, steps: Sequence[Row]) -> Iterator[tuple[int, int]]:
    r = run_history.c
    asked = {
        step_request_id(graph["graph_key"], row["path"], row["attempt"]): row["number"]
        for row in steps
    }
    live = select(r.request_id, r.run_id).where(r.status.in_(LIVE_RUNS))
    for row in rows_in(conn, live, r.request_id, asked):
        yield asked[row["request_id"]], row["run_id"]


def _managers(conn: Connection, graph: Row, steps: Sequence[Row]) -> Iterator[tuple[int, int]]:
    m = manager.c
    asked = dict[tuple[str, str], int]()
    for row in steps:
        job = row["job"]
        try:
            check_job("step", StepKind.MANAGER, job)
        except InvalidRequest:
            continue  # a manual edit made the job invalid, so no manager was started for it
        asked[step_manager(graph["graph_uid"], row["number"], job)] = row["number"]
    for chunk in chunks(sorted(asked), _NAMES):
        named = or_(*(and_(m.name == name, m.flow_id == flow_id) for name, flow_id in chunk))
        live = select(m.name, m.flow_id, m.manager_id).where(named, m.status.in_(LIVE_RUNS))
        live = live.where(m.parent == graph_workflow_id(graph["graph_key"]))
        yield from (
            (asked[name, flow_id], manager_id) for name, flow_id, manager_id in conn.execute(live)
        )


@dataclass(frozen=True, slots=True)
class StartedRuns:
    """The search for the runs or managers that steps of a kind start."""

    key: Column[int]
    """The key column of the table with these runs or managers."""
    unrecorded: Callable[[Connection, Row, Sequence[Row]], Iterator[tuple[int, int]]]
    """Finds the runs or managers that a graph's steps started for the first time, by step number.
    """


#: The search for each kind of steps that ``counts_as_run``.
RUNS: Mapping[StepKind, StartedRuns] = {
    StepKind.CRAWL: StartedRuns(run_history.c.run_id, _runs),
    StepKind.MANAGER: StartedRuns(manager.c.manager_id, _managers),
}
