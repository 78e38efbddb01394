"""Queries of graphs and their steps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict, Unpack

from sqlalchemy import ColumnElement, case, func, select

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.names import request_fingerprint
from crawler_lifecycle.store.base.bulk import rows_in
from crawler_lifecycle.store.base.rows import Row, seen
from crawler_lifecycle.store.base.unit import read_row
from crawler_lifecycle.store.columns import json_text

from ..domain.engine import Graph
from ..domain.kinds import CONTAINING
from ..domain.rows import StepFacts
from ..domain.spec import DEPTH_MAX, GraphState, StepKind, StepState
from ..ports import GraphRow, StepOutline, StepRow
from .rows import GRAPH, LISTED, STATES, graph_row, step_row
from .tables import graph, graph_result, graph_step
from .unit import BY_STATE, PRIMARY, GraphPart, load_graph

#: The maximum number of bytes of results (before compression) and of steps that one query reads.
PAGE_BYTES = 8 * 1024 * 1024
PAGE_STEPS = 200
_BY_PARENT = (graph_step, "FORCE INDEX (ix_graph_step_graph_id_parent)", "mysql")

_g = graph.c
_s = graph_step.c
#: The columns of a step that readers see.
_LISTED = [
    column for column in _s if column.name not in ("path_hash", "graft_attempt", "graft_digest")
]


class StepQuery(TypedDict, total=False):
    """The filters of a list of steps. ``search`` is a part of the path; case is ignored."""

    states: Collection[StepState]
    kinds: Collection[StepKind]
    search: str | None


class GraphReads(GraphPart):
    """The methods of ``GraphStore`` that read."""

    def get_graph(self, graph_id: int) -> GraphRow | None:
        return self._one(_g.graph_id == graph_id) if 0 < graph_id <= ID_MAX else None

    def find_graph(self, key: str) -> GraphRow | None:
        row = self._one(_g.graph_key == key)
        # MySQL ignores spaces at the end of a key.
        return row if row is not None and row.key == key else None

    def untold_graphs(self, until: datetime, silent_until: datetime) -> list[GraphRow]:
        """Return executing graphs whose workflow may not know about them.

        First come graphs that have no owner or a recorded stop, and were last changed at ``until``
        or before. Then come graphs that were last changed at ``silent_until`` or before, because
        their workflow may no longer exist.
        """
        untold = _g.owner_run_id.is_(None) | _g.stop_requested_at.is_not(None)
        query = select(*LISTED).where(_g.state == GraphState.EXECUTING, _g.updated_at <= until)
        query = query.where(untold | (_g.updated_at <= silent_until))
        order = (case((untold, 0), else_=1), _g.graph_id)
        return [graph_row(row) for row in self._rows(query.order_by(*order).limit(1000))]

    def count_graphs(self) -> int:
        """Return the number of graphs that are executing."""
        query = select(func.count()).where(
            _g.state == GraphState.EXECUTING, *seen(graph, leads=True)
        )
        with self._db.reading() as conn:
            return int(conn.execute(query).scalar_one())

    def list_steps(
        self,
        graph_id: int,
        after: int = -1,
        limit: int = 500,
        *,
        paths: Collection[str] = (),
        **filters: Unpack[StepQuery],
    ) -> list[StepRow]:
        """Return steps with a number above ``after``, by number.

        ``paths`` and the filters limit them.
        """
        query = (
            select(*_LISTED)
            .where(_s.graph_id == graph_id, _s.number > after, *_filtered(**filters))
            .order_by(_s.number)
            .limit(limit)
        )
        with self._db.reading() as conn:
            if paths:
                found = rows_in(conn, query, _s.path_hash, map(request_fingerprint, paths))
                rows = sorted(found, key=lambda row: int(row["number"]))[:limit]
            else:
                rows = list(conn.execute(query.with_hint(*PRIMARY)).mappings())
            named = select(_s.number, _s.path).where(_s.graph_id == graph_id).with_hint(*PRIMARY)
            needed = rows_in(conn, named, _s.number, (dep for row in rows for dep in _deps(row)))
        names = {row["number"]: row["path"] for row in needed}
        missing = [_shape(row).get("missing", ()) for row in rows]
        return [
            step_row(row, [*(names.get(dep, f"#{dep}") for dep in _deps(row)), *absent])
            for row, absent in zip(rows, missing, strict=True)
        ]

    def count_listed_steps(self, graph_id: int, **filters: Unpack[StepQuery]) -> int:
        """Return the number of steps that ``list_steps`` finds with these filters."""
        query = select(func.count()).where(_s.graph_id == graph_id, *_filtered(**filters))
        index = PRIMARY if filters.get("search") else BY_STATE
        with self._db.reading() as conn:
            return int(conn.execute(query.with_hint(*index)).scalar_one())

    def outline(self, graph_id: int) -> list[StepOutline]:
        """Return the outlines of all steps, by number."""
        holds = case((_s.kind.in_(sorted(CONTAINING)), _s.job))
        columns = (
            _s.number,
            _s.path,
            _s.kind,
            _s.state,
            _s.ending,
            holds,
            _s.started_at,
            _s.ended_at,
        )
        query = select(*columns).where(_s.graph_id == graph_id).order_by(_s.number)
        with self._db.reading() as conn:
            rows = conn.execute(query.with_hint(*PRIMARY)).all()
        return [
            StepOutline(path, kind, STATES[state], bool(ending), job or {}, started_at, ended_at)
            for _, path, kind, state, ending, job, started_at, ended_at in rows
        ]

    def load(self, graph_id: int) -> Graph:
        """Return the engine with the current state of all steps, for reading.

        ``GraphStore.change`` gives the same engine to its function. Raises ``RunNotFound``.
        """
        with self._db.reading() as conn:
            return load_graph(conn, read_row(conn, graph, graph_id, GRAPH), strict=False)

    # --- results and inputs of steps ---

    def result(self, graph_id: int, number: int) -> Iterator[bytes]:
        """Return the parts of a step's recorded result, or nothing if there is no such result."""
        return (data for _, data in self.results(graph_id, [number]))

    def results(self, graph_id: int, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Return the parts of the recorded results of these steps, each with the number of its
        step.

        The steps come in the order of ``numbers``. The results are read in pages.
        """
        query = select(_s.number, _s.result_bytes).where(
            _s.graph_id == graph_id, _s.result_bytes.is_not(None)
        )
        query = query.with_hint(*PRIMARY)
        with self._db.reading() as conn:
            sizes = {
                row["number"]: int(row["result_bytes"])
                for row in rows_in(conn, query, _s.number, numbers)
            }
        for page in _pages([number for number in dict.fromkeys(numbers) if number in sizes], sizes):
            yield from self._parts(graph_id, page, sizes)

    def _parts(
        self, graph_id: int, page: Sequence[int], sizes: Mapping[int, int]
    ) -> Iterator[tuple[int, bytes]]:
        """Return the parts of a page of results. One query reads the whole page, except that a
        large result needs several.
        """
        r = graph_result.c
        after = -1
        query = select(r.number, r.part, r.data).where(r.graph_id == graph_id, r.number.in_(page))
        alone = len(page) == 1 and sizes[page[0]] > PAGE_BYTES
        while True:
            more = (
                query.where(r.part > after).order_by(r.part).limit(4)
                if alone
                else query.order_by(r.number, r.part)
            )
            with self._db.reading() as conn:
                rows = conn.execute(
                    more.with_hint(graph_result, "FORCE INDEX (PRIMARY)", "mysql")
                ).all()
            order = {number: position for position, number in enumerate(page)}
            yield from (
                (number, data)
                for number, _, data in sorted(rows, key=lambda row: (order[row[0]], row[1]))
            )
            if not alone or len(rows) < 4:
                return
            after = rows[-1][1]

    def given(
        self, graph_id: int, numbers: Sequence[int], depth: int = DEPTH_MAX
    ) -> list[StepFacts]:
        """Return these steps and the steps that they contain, by number.

        These steps are the input of a dependent step.

        ``depth`` is the maximum number of levels of contained steps.
        """
        columns = (
            _s.number,
            _s.path,
            _s.kind,
            _s.state,
            _s.shape,
            _s.graft_digest,
            _s.result_bytes,
        )
        query = select(*columns).where(_s.graph_id == graph_id)
        found = dict[int, Row]()
        with self._db.reading() as conn:
            read = rows_in(conn, query.with_hint(*PRIMARY), _s.number, numbers)
            for level in range(depth + 1):
                found |= {row["number"]: row for row in read}
                if level == depth:
                    break
                holding = [
                    r["number"] for r in read if r["kind"] in CONTAINING or _shape(r).get("graft")
                ]
                read = rows_in(conn, query.with_hint(*_BY_PARENT), _s.parent, holding)
                if not read:
                    break
        return [_given(found[number]) for number in sorted(found)]

    def context(self, graph_id: int, number: int | None) -> list[bytes]:
        """Return the encoded contexts of a step, from the outermost graph to the innermost."""
        with self._db.reading() as conn:
            row = read_row(conn, graph, graph_id, [_g.graph_id, _g.context])
            found = list[Any]()
            for _ in range(DEPTH_MAX + 1):
                if number is None:
                    break
                query = select(_s.graph_id, _s.number, _s.parent, _s.job)
                step = (
                    conn.execute(query.where(_s.graph_id == graph_id, _s.number == number))
                    .mappings()
                    .one_or_none()
                )
                if step is None:
                    break
                found.append(step["job"].get("context"))
                number = step["parent"]
        return [
            json_text(context).encode() for context in (row["context"], *reversed(found)) if context
        ]


def _filtered(
    states: Collection[StepState] = (), kinds: Collection[StepKind] = (), search: str | None = None
) -> list[ColumnElement[bool]]:
    """Return one condition for each filter that is given."""
    found = [
        column.in_(sorted(values))
        for column, values in ((_s.state, states), (_s.kind, kinds))
        if values
    ]
    return [*found, *([_s.path.icontains(search, autoescape=True)] if search else [])]


def _shape(row: Row) -> Mapping[str, Any]:
    return row["shape"] or {}


def _deps(row: Row) -> Sequence[int]:
    deps = _shape(row).get("deps", ())
    return [dep for dep in deps if isinstance(dep, int)] if isinstance(deps, list) else ()


def _pages(numbers: Sequence[int], sizes: Mapping[int, int]) -> Iterator[list[int]]:
    """Split the numbers into pages of at most ``PAGE_BYTES`` and ``PAGE_STEPS``. A larger result
    has its own page.
    """
    page = list[int]()
    size = 0
    for number in numbers:
        if page and (size + sizes[number] > PAGE_BYTES or len(page) == PAGE_STEPS):
            yield page
            page = []
            size = 0
        page.append(number)
        size += sizes[number]
    if page:
        yield page


def _given(row: Row) -> StepFacts:
    return StepFacts(
        number=row["number"],
        path=row["path"],
        kind=row["kind"],
        state=STATES[row["state"]],
        graft=bool(_shape(row).get("graft", False)),
        attached=row["graft_digest"] is not None,
        result_bytes=row["result_bytes"],
    )
