"""The unit of work of graphs, which is a write transaction on one locked graph, and queries that
several modules need.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, and_, func, or_, select

from crawler_lifecycle.domain.names import EVENT_GRAPH_CHANGED, graph_subject, graph_workflow_id
from crawler_lifecycle.store.base.bulk import chunks
from crawler_lifecycle.store.base.owned import OwnedPart
from crawler_lifecycle.store.base.rows import Row
from crawler_lifecycle.store.base.search import ListColumns
from crawler_lifecycle.store.base.unit import RowUnit

from ..domain.engine import Graph
from ..domain.kinds import CONTAINING, STEP_RULES
from ..domain.spec import GraphState, StepState
from ..ports import GraphRow
from .rows import (
    ENGINE,
    GRAPH,
    LISTED,
    engine_steps,
    graph_row,
    load_options,
    some_steps,
    whole_graph,
)
from .tables import graph, graph_log, graph_step

#: Kinds of steps that execute something themselves.
WORKING = [kind.value for kind in STEP_RULES if kind not in CONTAINING]
#: Kinds of steps that start a run or a manager.
BEGINNING = [kind.value for kind, rules in STEP_RULES.items() if rules.counts_as_run]
#: Hints for ``with_hint``: the table, its index, and the dialect that needs them.
BY_STATE = (graph_step, "FORCE INDEX (ix_graph_step_states)", "mysql")
BY_BATCH = (graph_step, "FORCE INDEX (ix_graph_step_graph_id_batch)", "mysql")
PRIMARY = (graph_step, "FORCE INDEX (PRIMARY)", "mysql")
#: Steps that were cancelled and may still be running, and steps that are executing or may still be
#: running.
CANCELLED = and_(graph_step.c.state == StepState.CANCELLED, graph_step.c.ending)
OPEN = or_(graph_step.c.state == StepState.EXECUTING, CANCELLED)
#: The minimum number of steps of a graph whose engine is cached, the maximum number of cached
#: engines, and the seconds after which whole graphs are read again.
LARGE = 500
REMEMBERED = 4
AGE_S = 10.0

_g = graph.c
#: The columns by which graphs are sorted, each with the columns that are read for it.
SORTS = {
    "id": (_g.graph_key.label("id"),),
    "name": (_g.name,),
    "state": (_g.state,),
    "took": (_g.started_at, _g.ended_at),
}


def count_steps(conn: Connection, graph_ids: Collection[int]) -> Mapping[int, dict[StepState, int]]:
    """Return the number of steps in each state, for each of these graphs. Steps of the kind
    ``graph`` are not counted.
    """
    s = graph_step.c
    found = defaultdict[int, dict[StepState, int]](dict)
    for chunk in chunks(sorted(graph_ids)):
        query = select(s.graph_id, s.state, func.count()).where(
            s.graph_id.in_(chunk), s.kind.in_(WORKING)
        )
        query = query.group_by(s.graph_id, s.state).with_hint(*BY_STATE)
        for graph_id, state, n in conn.execute(query).all():
            found[graph_id][StepState(state)] = n
    return found


def load_graph(conn: Connection, row: Row, *, strict: bool = True) -> Graph:
    """Return the engine of a graph with all its steps (``engine_steps``).

    A pruned graph has no steps. Raises ``RowUnreadable``.
    """
    graph_id = row["graph_id"]
    if row["pruned_at"] is not None:
        return Graph(load_options(row), [])
    query = select(*ENGINE).where(graph_step.c.graph_id == graph_id).order_by(graph_step.c.number)
    rows = conn.execute(query.with_hint(*PRIMARY)).all()
    return Graph(
        load_options(row),
        engine_steps(graph_id, rows, strict=strict),
        row["next_batch"],
        key=row["graph_key"],
    )


class EngineCache:
    """A cache of the engines of large graphs, as they were after the last change in this process.
    The next change to a graph reads only the rows that calls have written since the last change.
    Every other change to steps also changes the graph's row, except a manual edit. Such an edit is
    noticed when the engine is ``AGE_S`` old, and whole graphs are read again.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Row, Graph, float]] = {}

    def keep(self, row: Row, known: Graph, read_at: float) -> None:
        """Store an engine in the cache after its change was committed.

        ``row`` is the graph's row as it was written.
        """
        large = len(known.steps) >= LARGE and known.state is GraphState.EXECUTING
        if large and all(step.unreadable is None for step in known.steps):
            self._known.pop(row["graph_id"], None)
            self._known[row["graph_id"]] = (row, known, read_at)
            for graph_id in list(self._known)[:-REMEMBERED]:
                self._known.pop(graph_id, None)

    def take(self, conn: Connection, row: Row) -> tuple[Graph, float]:
        """Return the engine of a graph, and the time when all its rows were read. The engine is
        removed from the cache.
        """
        before, known, read_at = self._known.pop(row["graph_id"], (None, None, 0.0))
        now = time.monotonic()
        if known is not None and before == row and now - read_at < AGE_S:
            steps = some_steps(_touched(conn, row["graph_id"], known), len(known.steps))
            if steps is not None and known.seen(steps):
                return known, read_at
        return load_graph(conn, row, strict=False), now


def _touched(conn: Connection, graph_id: int, known: Graph) -> list[Any]:
    """Return the rows of the steps that calls or started runs may have changed since ``known``."""
    s = graph_step.c
    query = select(*ENGINE).where(graph_step.c.graph_id == graph_id)
    open_ = query.where(s.kind.in_(WORKING), OPEN).with_hint(*BY_STATE)
    found = {row[0]: row for row in conn.execute(open_)}
    given = select(s.number).where(s.graph_id == graph_id, s.batch.is_not(None))
    still = set(conn.execute(given.with_hint(*BY_BATCH)).scalars())
    for chunk in chunks([number for number in known.moved(still) if number not in found]):
        rows = conn.execute(query.where(s.number.in_(chunk)).with_hint(*PRIMARY))
        found |= {row[0]: row for row in rows}
    return list(found.values())


@dataclass
class GraphUnit(RowUnit):
    """A write transaction on a graph."""

    table = graph
    columns = GRAPH
    change_event = EVENT_GRAPH_CHANGED
    told = ("graph_id", "graph_uid", "name", "attempt", "state", "cause", "requested_by")

    counts: Mapping[StepState, int] | None = None
    """The number of steps in each state, or ``None`` if not counted yet (see ``counted``)."""

    @property
    def state(self) -> GraphState:
        return GraphState(self.row["state"])

    @property
    def over(self) -> bool:
        return self.state.final

    @property
    def parent(self) -> str:
        """The parent of the graph's runs."""
        return graph_workflow_id(self.row["graph_key"])

    def counted(self) -> Mapping[StepState, int]:
        if self.counts is None:
            self.counts = count_steps(self.conn, [self.id]).get(self.id, {})
        return self.counts

    def began(self) -> datetime | None:
        """Return the time when the first step began, or ``None`` if no step has begun."""
        query = select(func.min(graph_step.c.started_at)).where(graph_step.c.graph_id == self.id)
        first: datetime | None = self.conn.execute(query).scalar_one()
        return first

    @property
    def subject(self) -> str:
        return graph_subject(self.row["graph_key"])

    def figures(self) -> Mapping[str, Any]:
        steps = {state.value: n for state, n in self.counted().items() if n}
        return {"key": self.row["graph_key"], "stopping": self.stop is not None, "steps": steps}


class GraphPart(OwnedPart[GraphUnit, GraphRow]):
    """The base class of the parts of ``GraphStore``."""

    kind = GraphUnit
    label = _g.graph_key
    log = graph_log
    columns = LISTED
    state = _g.state
    unless = (_g.state != GraphState.DRAFT,)
    listed = ListColumns(
        _g.graph_id, _g.name, ("graph_key", "name"), {"tags": list}, SORTS, left=("ids", "tags")
    )

    def _read(
        self, conn: Connection, query: Select[Any], *, strict: bool = False
    ) -> list[GraphRow]:
        """Return the graphs, with new counts of steps for those that are executing."""
        read = whole_graph if strict else graph_row
        rows = [read(row) for row in conn.execute(query).mappings()]
        live = [row.graph_id for row in rows if row.state is GraphState.EXECUTING]
        counts = count_steps(conn, live) if live else {}
        return [
            replace(row, counts=counts.get(row.graph_id, {})) if row.graph_id in live else row
            for row in rows
        ]
