"""Retention of graphs: removes their steps and pages, and deletes a run that a graph began."""

from __future__ import annotations

from sqlalchemy import select, update

from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.domain.names import graph_key_of, graph_subject
from crawler_lifecycle.store.base.bulk import delete_rows
from crawler_lifecycle.store.retention.parts import FeatureRetention, Owner, Source, known_outcome
from crawler_lifecycle.store.runs.unit import Unit

from ..domain.spec import GraphState, StepKind
from .tables import graph, graph_log, graph_page, graph_result, graph_step

_g = graph.c
_GRAPH = Owner(
    graph,
    state="state",
    words=GraphState,
    over=[state.value for state in GraphState if state.final],
    key=_g.graph_key,
    subject=graph_subject(""),
    mark="pruned_at",
)
#: The state of a graph that was never started, whose pages are removed.
_DRAFT = Owner(
    graph, state="state", words=GraphState, over=[GraphState.DRAFT.value], ended="updated_at"
)


def check_deletion(unit: Unit) -> None:
    """Raise ``NotInThisState`` while the run's graph is executing."""
    key = graph_key_of(unit.run["parent"] or "")
    own = select(_g.graph_id).where(_g.graph_key == key, _g.project == unit.run["project"])
    executing = own.where(_g.state == GraphState.EXECUTING.value)
    if key and unit.conn.execute(executing).scalar_one_or_none() is not None:
        why = f"graph {key} is still executing and may need the data of run {unit.run_id}"
        raise NotInThisState(
            f"{why}; wait for its end, or stop the graph (crawlctl graph stop {key})"
        )


def delete_texts(unit: Unit) -> None:
    """Remove the run's results from the run's graph.

    If the step is retried, the graph starts a new run.
    """
    if (key := graph_key_of(unit.run["parent"] or "")) is None:
        return
    conn = unit.conn
    s = graph_step.c
    mine = select(s.graph_id, s.number).join_from(graph_step, graph, _g.graph_id == s.graph_id)
    mine = mine.where(_g.graph_key == key, s.run_id == unit.run_id, s.kind == StepKind.CRAWL.value)
    for graph_id, number in conn.execute(mine).all():
        delete_rows(conn, graph_result.c.number, "PRIMARY", [number], of={"graph_id": graph_id})
        step = update(graph_step).where(s.graph_id == graph_id, s.number == number)
        step = step.values(
            outcome=known_outcome(s.outcome), reason=f"run {unit.run_id} was deleted", errors=None
        )
        conn.execute(step.values(result_bytes=None, run_id=None, run_attempt=0))


RETENTION = FeatureRetention(
    owners=(_GRAPH, _DRAFT),
    sources=(
        Source(graph_result, _GRAPH, leading=(graph_result.c.part == 0,)),
        Source(graph_step, _GRAPH),
        Source(graph_log, _GRAPH),
        Source(graph_page, _DRAFT),
    ),
    check_deletion=check_deletion,
    delete_texts=delete_texts,
)
