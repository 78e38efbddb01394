"""What reads and writes of graphs ask in one transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

from sqlalchemy import Connection, func, select

from crawler_lifecycle.adapters.database.schema.graph_rows import ENGINE, engine_steps, load_options
from crawler_lifecycle.adapters.database.schema.rows import Row
from crawler_lifecycle.adapters.database.schema.tables import graph_step
from crawler_lifecycle.domain.graph.engine import Graph
from crawler_lifecycle.domain.graph.spec import StepKind, StepState

from .bulk import chunks

#: Kinds of steps that do something themselves.
WORKING = [kind.value for kind in StepKind if kind is not StepKind.GRAPH]
#: Kinds of steps that begin something that lives by itself.
BEGINNING = [StepKind.CRAWL.value, StepKind.MANAGER.value]
BY_STATE = "FORCE INDEX (ix_graph_step_states)"
_PRIMARY = "FORCE INDEX (PRIMARY)"


def count_steps(conn: Connection, graph_ids: Collection[int]) -> Mapping[int, dict[StepState, int]]:
    """Steps of these graphs by state, those of the kind ``graph`` left out."""
    s, found = graph_step.c, defaultdict[int, dict[StepState, int]](dict)
    for chunk in chunks(sorted(graph_ids)):
        query = select(s.graph_id, s.state, func.count()).where(s.graph_id.in_(chunk), s.kind.in_(WORKING))
        query = query.group_by(s.graph_id, s.state).with_hint(graph_step, BY_STATE, "mysql")
        for graph_id, state, n in conn.execute(query).all():
            if state in set(StepState):  # another hand wrote it: the list of steps tells it
                found[graph_id][StepState(state)] = n
    return found


def load_graph(conn: Connection, row: Row) -> Graph:
    """The engine of a graph, out of all its steps; of one that was pruned it has none. Raises ``RowUnreadable``."""
    graph_id = row["graph_id"]
    if row["pruned_at"] is not None:
        return Graph(load_options(row), [])
    query = select(*ENGINE).where(graph_step.c.graph_id == graph_id).order_by(graph_step.c.number)
    rows = conn.execute(query.with_hint(graph_step, _PRIMARY, "mysql")).all()
    return Graph(load_options(row), engine_steps(graph_id, rows), row["next_batch"])
