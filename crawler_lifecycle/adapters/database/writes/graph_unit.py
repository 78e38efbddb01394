"""The unit of work of graphs: a write transaction on one locked graph."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select

from crawler_lifecycle.adapters.database.schema.graph_rows import GRAPH
from crawler_lifecycle.adapters.database.schema.rows import Row
from crawler_lifecycle.adapters.database.schema.tables import graph, graph_step
from crawler_lifecycle.domain.errors import Fenced
from crawler_lifecycle.domain.graph.spec import GraphState, StepState
from crawler_lifecycle.domain.names import EVENT_GRAPH_CHANGED, graph_subject
from crawler_lifecycle.ports.store.graphs import GraphFence

from .graph_queries import count_steps
from .row_unit import OutputPart, RowUnit, read_row

log = logging.getLogger(__name__)

_TOLD = ("graph_id", "graph_uid", "name", "attempt", "state", "cause", "requested_by")


def check_graph_fence(row: Row, fence: GraphFence) -> None:
    """Raise ``Fenced`` unless the graph is still the writer's."""
    if row["attempt"] == fence.attempt and row["owner_run_id"] == fence.owner_run_id:
        return
    text = (
        f"Graph {fence.graph_id} is at attempt {row['attempt']} of owner {row['owner_run_id']}; attempt "
        f"{fence.attempt} of owner {fence.owner_run_id} may no longer write"
    )
    log.warning("refused a late write: %s", text)
    raise Fenced(text)


@dataclass
class GraphUnit(RowUnit):
    """A write transaction on a graph."""

    table = graph

    counts: Mapping[StepState, int] | None = None
    """Its steps by state, when they are known; else whoever needs them counts."""

    @property
    def state(self) -> GraphState:
        return GraphState(self.row["state"])

    @property
    def over(self) -> bool:
        return self.state.final

    def counted(self) -> Mapping[StepState, int]:
        if self.counts is None:
            self.counts = count_steps(self.conn, [self.id]).get(self.id, {})
        return self.counts

    def began(self) -> datetime | None:
        """When the first of its steps began; ``None``: none has."""
        query = select(func.min(graph_step.c.started_at)).where(graph_step.c.graph_id == self.id)
        first: datetime | None = self.conn.execute(query).scalar_one()
        return first

    def announce(self, type: str, key: str | None = None) -> None:
        """Append the event that tells what the graph looks like now. Nothing may follow it in the transaction."""
        row = self.row
        body: dict[str, Any] = {name: row[name] for name in _TOLD}
        body |= {
            "key": row["graph_key"],
            "waiting": row["waiting_for"],
            "stopping": row["stop_requested_at"] is not None,
        }
        for name in ("started_at", "ended_at"):
            body[name] = row[name].isoformat() if row[name] is not None else None
        body["steps"] = {state.value: n for state, n in self.counted().items() if n}
        self.append_event(graph_subject(row["graph_key"]), type, key, body)


class GraphPart(OutputPart):
    """What the adapters of graphs share: how a unit of work begins and ends."""

    @contextmanager
    def _graph(self, graph_id: int, fence: GraphFence | None = None) -> Iterator[GraphUnit]:
        """Lock the graph first, check the fence, write its row at the end, and tell of the change if there was one.

        The graph's row comes first in every transaction, so that two of them cannot wait for each other.
        """
        with self._db.writing() as conn:
            row = read_row(conn, graph, graph_id, GRAPH, lock="write")
            if fence is not None:
                check_graph_fence(row, fence)
            unit = GraphUnit(conn, row, self._clock())
            yield unit
            unit.write()
            if unit.changed:
                unit.announce(EVENT_GRAPH_CHANGED)
