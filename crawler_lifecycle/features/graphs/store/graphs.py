"""Writes graphs: their rows from the reservation to the end, and the changes to their steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import Connection, delete, insert, select, update

from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.errors import (
    DuplicateRequest,
    Fenced,
    InvalidRequest,
    NotInThisState,
    RowUnreadable,
)
from crawler_lifecycle.domain.names import EVENT_GRAPH_ENDED
from crawler_lifecycle.domain.projects import chosen
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.ports.runs import Owner
from crawler_lifecycle.store.base.rows import check_free
from crawler_lifecycle.store.base.unit import NO_STOP
from crawler_lifecycle.store.runs.lists import live_runs

from ..domain.engine import Graph
from ..domain.pages import decode_page, decode_pages, fingerprint
from ..domain.spec import GraphSpec, GraphState, StepState
from ..ports import GraphFence, GraphRow, NewGraph
from .calls import GraphCalls
from .reads import GraphReads
from .rows import GRAPH, load_options, whole_graph
from .steps import insert_steps, states_of, write_steps
from .tables import graph, graph_log, graph_page, graph_step
from .unit import EngineCache, GraphUnit, load_graph

log = logging.getLogger(__name__)

T = TypeVar("T")

_IS_OPEN = graph.c.state == GraphState.EXECUTING
#: The number of seconds after which drafts that were not started are removed.
DRAFT_S = 86_400.0
#: How many of a graph's latest commands have their result stored.
COMMANDS_MAX = 100


class PageMissing(InvalidRequest):
    """Raised while a draft does not have all its pages yet."""


class GraphStore(GraphCalls, GraphReads):
    """Graphs, their steps, and the inputs and results of steps.

    A method with a fence raises ``Fenced`` and writes nothing if the graph has another attempt or
    owner.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._remembered = EngineCache()

    # --- from draft to graph ---

    def reserve_graph(self, new: NewGraph, spec: GraphSpec | None = None) -> tuple[GraphRow, bool]:
        """Insert the graph, or find the graph with this key. Returns the row and whether the graph
        is new.

        With ``spec``, the graph is started in the same transaction. Without ``spec``, the graph is
        a draft whose pages follow. A draft with this key is replaced, unless it has the same
        fingerprint and its pages still follow. Raises ``DuplicateRequest`` when the existing graph
        has a different fingerprint, ``InvalidRequest`` for an invalid spec, and ``TooManyOpen``.
        """

        def reserve(conn: Connection) -> tuple[GraphRow, bool]:
            while (found := _found(conn, new.key)) is not None:
                check_free(found["project"], new.project, repr(new.key))
                same = (found["fingerprint"], found["pages"]) == (new.fingerprint, new.pages)
                if found["state"] != GraphState.DRAFT or (same and spec is None):
                    break
                _drop(conn, found["graph_id"])
            if is_new := found is None:
                conn.execute(
                    insert(graph).values(**_new_row(new, self._clock()), graph_uid=self.new_uid())
                )
                found = _found(conn, new.key)
            assert found is not None, "it was inserted in this transaction"
            if found["graph_key"] != new.key:  # MySQL ignores spaces at the end of a key
                raise refusal("key", new.key, "remove the spaces at its end")
            if found["fingerprint"] != new.fingerprint:
                raise DuplicateRequest(
                    f"key {new.key!r} belongs to graph {found['graph_id']}, which was sent with "
                    "other steps, "
                    "options or context; use another key"
                )
            unit = GraphUnit(conn, found, self._clock())
            if is_new and spec is not None:
                self._make(unit, spec)
                unit.write()
                unit.announce(unit.change_event)
            elif is_new:
                self._check_most(conn, graph, _IS_OPEN, unit.row["project"])
            return _shown(unit), is_new

        return self._db.inserting(f"graph {new.key!r}", reserve)

    def add_graph_page(self, graph_id: int, page: int, data: bytes, *, again: bool = False) -> None:
        """Store one page of a draft (``domain.graph.pages``). A second call with the same page
        changes nothing.
        If ``again`` is true, a call after the start of the graph changes nothing either.

        Raises ``NotInThisState`` when the graph is not a draft, ``InvalidRequest`` for an
        unexpected page number, and ``DuplicateRequest`` when a different page with this number is
        stored.
        """
        decode_page(page, data)
        p = graph_page.c
        with self._unit(graph_id) as unit:
            if unit.state is not GraphState.DRAFT:
                if again:
                    return
                raise NotInThisState(
                    f"Graph {graph_id} is {unit.state} already and accepts no more pages"
                )
            if not 0 <= page < unit.row["pages"]:
                most = unit.row["pages"] - 1
                raise InvalidRequest(
                    f"page: {page} is not allowed; this graph was announced with pages 0 to {most}"
                )
            query = select(p.data).where(p.graph_id == graph_id, p.page == page)
            before = unit.conn.execute(query).scalar_one_or_none()
            if before is None:
                unit.conn.execute(
                    insert(graph_page).values(graph_id=graph_id, page=page, data=data)
                )
            elif before != data:
                text = (
                    f"page {page} of graph {graph_id} already has other steps; send the same, "
                    "or use another key"
                )
                raise DuplicateRequest(text)

    def make_graph(self, graph_id: int) -> GraphRow:
        """Start a complete draft in one transaction: read its pages, check the spec, and insert the
        steps.

        A second call changes nothing. Raises ``PageMissing``, ``InvalidRequest`` when the spec is
        invalid, and ``TooManyOpen``.
        """
        with self._unit(graph_id) as unit:
            if unit.state is GraphState.DRAFT:
                self._make(unit, _sent(unit))
                unit.conn.execute(delete(graph_page).where(graph_page.c.graph_id == graph_id))
            return _shown(unit)

    def _make(self, unit: GraphUnit, spec: GraphSpec) -> None:
        """Insert the steps of a draft, and let it execute."""
        insert_steps(unit, Graph.of(spec).added)
        context = dict(spec.context) or None
        unit.conn.execute(update(graph).where(graph.c.graph_id == unit.id).values(context=context))
        # This lock comes last: all writers of events wait for it, so its holder must not wait for a
        # row.
        self._check_most(unit.conn, graph, _IS_OPEN, unit.row["project"])
        unit.set(state=GraphState.EXECUTING.value)

    def draft_spec(self, graph_id: int) -> GraphSpec:
        """Return the spec of a complete draft.

        Raises ``PageMissing``, and ``InvalidRequest`` for pages of another spec."""
        with self._unit(graph_id) as unit:
            return _sent(unit)

    def drop_draft(self, graph_id: int) -> bool:
        """Remove a draft with its pages, and return whether the draft existed. A started graph is
        kept.
        """
        with self._db.writing() as conn:
            return _drop(conn, graph_id)

    def drop_old_drafts(self) -> None:
        """Remove drafts that were not started within ``DRAFT_S`` seconds."""
        old = (
            graph.c.state == GraphState.DRAFT,
            graph.c.created_at < self._clock() - timedelta(seconds=DRAFT_S),
        )
        for draft in self._rows(
            select(graph.c.graph_id).where(*old).order_by(graph.c.graph_id).limit(100)
        ):
            self.drop_draft(draft["graph_id"])

    # --- while it runs ---

    def claim_graph(self, graph_id: int, owner: Owner) -> GraphRow:
        """Make ``owner`` the owner of a graph that is executing.

        A second call, or a call after the end, changes nothing.

        If the graph had a different owner, its next attempt begins. Unfinished steps in calls of
        the previous owner begin again. Raises ``RunIsLive``, ``Fenced`` and ``RunNotFound`` as
        ``claim_manager`` does, and ``NotInThisState`` for a draft.
        """
        with self._unit(graph_id) as unit:
            if unit.state is GraphState.DRAFT:
                raise NotInThisState(
                    f"Graph {graph_id} is a draft; send all its pages and start it first"
                )
            if not unit.over and unit.take(owner, over=False):
                known = load_graph(unit.conn, unit.row, strict=False)
                before = states_of(known)
                known.released({step.batch for step in known.steps if step.batch is not None})
                write_steps(unit, known, before)
            return _shown(unit)

    def change(self, fence: GraphFence, how: Callable[[Graph], T]) -> T:
        """Load the graph, call ``how`` to change it, and write the changes with the event
        ``graph.changed``.

        All this is one transaction, which an error in ``how`` rolls back. Returns the result of
        ``how``. A step with an invalid row waits until the row is repaired (``Step.unreadable``).
        Raises ``RowUnreadable`` when the position of such a step in the graph is unknown. For a
        large graph, only the rows that may have changed since are read (``EngineCache``).
        """
        with self._unit(fence.graph_id, fence) as unit:
            known, read_at = self._remembered.take(unit.conn, unit.row)
            answer = _change(unit, how, known)
        self._remembered.keep(unit.row, known, read_at)
        return answer

    def command(self, graph_id: int, request_id: str, how: Callable[[Graph], int]) -> int:
        """Execute a command from a person as ``change`` does, once for each ``request_id``.

        A second call returns the stored result. If an ended graph has open steps after the command,
        the graph executes again, and its owner and its stop are cleared. Raises ``RunNotFound``,
        and ``RowUnreadable`` for any invalid step. Raises ``NotInThisState`` for a draft, a pruned
        graph and a graph that is stopping.
        """
        with self._unit(graph_id) as unit:
            commands = unit.row["commands"]
            if (
                before := next(
                    (command for command in commands if command[:1] == [request_id]), None
                )
            ) is not None:
                return int(before[1])
            _check_takes_commands(unit)
            if unit.over:
                self._check_most(unit.conn, graph, _IS_OPEN, unit.row["project"])
            answer = _change(unit, how, load_graph(unit.conn, unit.row))
            unit.row["commands"] = [*commands, [request_id, answer]][-COMMANDS_MAX:]
            return answer

    def begin_graft(
        self, graph_id: int, number: int, attempt: int, spec: GraphSpec, digest: str
    ) -> None:
        """Add the steps of ``spec`` below the step that grafts them, once.

        The context of ``spec`` is stored as ``context`` in the job of the step, as for a sub-graph.
        A second call with the same steps changes nothing, even from a later attempt. Raises
        ``Fenced`` when this attempt is not executing, ``DuplicateRequest`` when the step has
        grafted other steps, and ``InvalidRequest`` for invalid steps.
        """
        s = graph_step.c
        mine = (s.graph_id == graph_id, s.number == number)
        with self._unit(graph_id) as unit:
            columns = (
                s.graph_id,
                s.number,
                s.state,
                s.attempt,
                s.job,
                s.graft_attempt,
                s.graft_digest,
            )
            row = unit.conn.execute(select(*columns).where(*mine)).mappings().one_or_none()
            if row is None or row["state"] != StepState.EXECUTING or row["attempt"] != attempt:
                raise Fenced(
                    f"Step {number} of graph {graph_id} is not executing as attempt {attempt}, so "
                    "it cannot graft steps"
                )
            if row["graft_digest"] is not None:
                # An earlier attempt may have been lost after its graft. The grafted steps may have
                # begun since.
                if row["graft_digest"] != digest:
                    raise DuplicateRequest(
                        f"Step {number} of graph {graph_id} has grafted other steps (attempt "
                        f"{row['graft_attempt']}); "
                        "a graft is made once: let the function return the same steps each time"
                    )
                return
            _change(
                unit, lambda known: known.add(spec.steps, number), load_graph(unit.conn, unit.row)
            )
            job = {**row["job"], "context": dict(spec.context)} if spec.context else row["job"]
            unit.conn.execute(
                update(graph_step)
                .where(*mine)
                .values(graft_attempt=attempt, graft_digest=digest, job=job)
            )

    # --- stop and end ---

    def record_graph_stop(self, graph_id: int, intent: StopIntent) -> GraphRow:
        """Record a stop, and cancel every step that has not ended (``Graph.cancel``), in one
        transaction.

        No further step begins. A second stop is merged with the first. After the end of the graph,
        a stop changes nothing. Raises ``NotInThisState`` for a draft.
        """
        with self._unit(graph_id) as unit:
            if unit.state is GraphState.DRAFT:
                raise NotInThisState(
                    f"Graph {graph_id} is a draft and is not executing; there is nothing to stop"
                )
            if not unit.over:
                unit.ask_to_stop(intent)
                try:
                    _change(unit, lambda _: None, load_graph(unit.conn, unit.row, strict=False))
                except RowUnreadable as error:
                    # The stop must be recorded nevertheless. The next change to the steps cancels
                    # them.
                    log.error(
                        "graph %d is stopped, but its steps cannot be cancelled yet: %s",
                        graph_id,
                        error,
                    )
            return _shown(unit)

    def end_graph(self, fence: GraphFence, cause: str | None) -> GraphRow:
        """Record the end of the graph with the event ``graph.ended``.

        The states of its steps decide the final state.

        A second call changes nothing. Raises ``NotInThisState`` while a step or a run of the graph
        has not ended.
        """
        with self._unit(fence.graph_id, fence) as unit:
            if unit.over:
                return _shown(unit)
            known = load_graph(unit.conn, unit.row)
            if known.state is GraphState.EXECUTING:
                raise NotInThisState(f"Graph {unit.id} has steps that have not ended")
            if live := live_runs(unit.conn, unit.parent, "graph/%", limit=1):
                raise NotInThisState(
                    f"Graph {unit.id} has runs that have not ended, such as {live[0]}"
                )
            before = states_of(known)
            write_steps(unit, known, before)
            unit.counts = known.counts()
            unit.end(
                EVENT_GRAPH_ENDED,
                state=known.state.value,
                counts=_plain(unit.counts),
                cause=cause,
                started_at=unit.row["started_at"] or unit.began(),
            )
            return _shown(unit)


def _shown(unit: GraphUnit) -> GraphRow:
    """Return the row that readers will see after the commit."""
    row = whole_graph(unit.row)
    return (
        row
        if unit.over or unit.state is GraphState.DRAFT
        else replace(row, counts=dict(unit.counted()))
    )


def _change(unit: GraphUnit, how: Callable[[Graph], T], known: Graph) -> T:
    """Call ``how`` with the engine and write the changes."""
    before = states_of(known)
    if unit.stop is not None and not unit.over:
        by = f" by {unit.stop.requested_by}" if unit.stop.requested_by else ""
        why = f": {unit.stop.reason}" if unit.stop.reason else ""
        known.cancel(None, f"the graph was stopped{by}{why}")
    answer = how(known)
    write_steps(unit, known, before)
    if known.changed:
        unit.changed = True
        unit.row["updated_at"] = unit.now  # so that other processes read the rows again
    unit.counts = known.counts()
    # Calls may have recorded ends since the last change, so the counts may differ without a change
    # by ``how``.
    unit.set(
        next_batch=known.next_batch,
        waiting_for=known.waits(called=True),
        counts=_plain(unit.counts),
    )
    if unit.row["started_at"] is None and any(step.attempt for step in known.steps):
        unit.set(started_at=unit.began() or unit.now)
    if unit.over and known.state is GraphState.EXECUTING:
        again = dict.fromkeys(("cause", "ended_at", "owner_workflow_id", "owner_run_id"))
        unit.set(
            state=GraphState.EXECUTING.value, attempt=unit.row["attempt"] + 1, **again, **NO_STOP
        )
        # The workflow of the previous attempt may still be open and claim the graph again.
        # Therefore the attempt is increased, which alone makes late writes of earlier calls fail.
    return answer


def _plain(counts: Mapping[StepState, int]) -> dict[str, int]:
    return {state.value: n for state, n in sorted(counts.items())}


def _found(conn: Connection, key: str) -> dict[Any, Any] | None:
    row = conn.execute(select(*GRAPH).where(graph.c.graph_key == key)).mappings().one_or_none()
    return None if row is None else dict(row)


def _drop(conn: Connection, graph_id: int) -> bool:
    """Delete the graph and its pages if the graph is a draft. Return whether it was a draft."""
    draft = (graph.c.graph_id == graph_id, graph.c.state == GraphState.DRAFT)
    if (
        conn.execute(select(graph.c.graph_id).where(*draft).with_for_update()).scalar_one_or_none()
        is None
    ):
        return False
    for table in (graph_page, graph_log, graph):
        conn.execute(delete(table).where(table.c.graph_id == graph_id))
    return True


def _new_row(new: NewGraph, now: datetime) -> dict[str, Any]:
    return {
        "graph_key": new.key,
        "project": chosen(new.project),
        "name": new.name,
        "fingerprint": new.fingerprint,
        "pages": new.pages,
        "options": asdict(new.options),
        "state": GraphState.DRAFT.value,
        "attempt": 1,
        "former_owners": [],
        "next_batch": 1,
        "commands": [],
        **NO_STOP,
        "tags": sorted(set(new.tags)),
        "requested_by": new.requested_by,
        "parent": new.parent,
        "created_at": now,
        "updated_at": now,
    }


def _sent(unit: GraphUnit) -> GraphSpec:
    """Return the spec that was sent in pages.

    Raises ``PageMissing``, and ``InvalidRequest`` for pages of another spec.
    """
    p = graph_page.c
    query = select(p.page, p.data).where(p.graph_id == unit.id).order_by(p.page)
    pages = dict(unit.conn.execute(query).all())
    lacks = next((page for page in range(unit.row["pages"]) if page not in pages), None)
    if lacks is not None:
        raise PageMissing(
            f"page {lacks} of graph {unit.id} is missing; send it, and then start the graph"
        )
    spec = decode_pages(pages.values(), load_options(unit.row))
    if fingerprint(spec) != unit.row["fingerprint"]:
        raise InvalidRequest(
            f"fingerprint: the pages of graph {unit.id} do not match the announced "
            "fingerprint; use a separate key for each graph"
        )
    return spec


def _check_takes_commands(unit: GraphUnit) -> None:
    if unit.state is GraphState.DRAFT:
        raise NotInThisState(
            f"Graph {unit.id} is a draft: some of its pages may be missing; start it first"
        )
    if unit.row["pruned_at"] is not None:
        raise NotInThisState(
            f"The steps of graph {unit.id} were removed long after its end; send the graph again"
        )
    if not unit.over and unit.stop is not None:
        raise NotInThisState(f"Graph {unit.id} is stopping; wait for its end")
