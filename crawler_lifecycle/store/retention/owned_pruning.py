"""Pruning of what managers and graphs leave, and what all pruning is told in (``pruning.py``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from sqlalchemy import Column, Connection, Label, Table, select, update

from crawler_lifecycle.domain.graph.spec import GraphState
from crawler_lifecycle.domain.names import graph_subject, manager_subject
from crawler_lifecycle.domain.retention import Stays, stays
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.store.base.bulk import CHUNK, chunks, delete_rows
from crawler_lifecycle.store.base.row_validation import Row
from crawler_lifecycle.store.graphs.tables import graph, graph_log, graph_page, graph_result, graph_step
from crawler_lifecycle.store.managers.tables import manager, manager_addition, manager_item

#: The key of the last row of a chunk; the second number counts only where a key has two.
Place = tuple[int, int]

_PRIMARY = "FORCE INDEX (PRIMARY)"


@dataclass(frozen=True, slots=True)
class Leaving:
    """A row that may go."""

    key: Place
    run_id: int | None
    owner: tuple[str, int] | None = None
    """What else it belongs to: an ``Owner`` by name, and which."""

    @property
    def alone(self) -> bool:
        """Whether it belongs to nothing."""
        return self.run_id is None and self.owner is None


@dataclass
class Chunk:
    """What was found among the next rows of a table."""

    goes: list[Leaving] = field(default_factory=list)
    stays: Counter[Stays] = field(default_factory=Counter)
    sent: int = 0
    """Deliveries that go with their events."""
    sent_stays: Counter[Stays] = field(default_factory=Counter)
    next: Place | None = None
    """Where to go on; ``None``: there are no more rows."""


@dataclass(frozen=True, slots=True)
class Owner:
    """What has an end, and rows of its own that go long after that."""

    name: str
    id: Column[int]
    state: Column[str]
    words: type[StrEnum]
    over: frozenset[str]
    ended: Column[datetime]
    subject: str
    """What subjects of its events begin with."""
    rows: Mapping[str, tuple[Column[int], ...]]
    """Tables below it, with their keys as far as a place tells them."""
    mark: str | None = None
    """The column that tells when rows of it were removed."""

    @property
    def table(self) -> Table:
        found: Table = self.id.table
        return found

    def stays(self, row: Row, before: datetime) -> Stays | None:
        """Why nothing of it may go; ``row`` has the columns of ``facts``."""
        return stays(row["its_state"], self.words, self.over, (row["its_end"], row["its_change"]), before)

    @property
    def facts(self) -> list[Label[Any]]:
        """What decides about it."""
        changed = self.table.c.updated_at.label("its_change")
        return [self.id.label("its_id"), self.state.label("its_state"), self.ended.label("its_end"), changed]


MANAGER = Owner(
    "manager",
    manager.c.manager_id,
    manager.c.status,
    RunStatus,
    frozenset(status.value for status in RunStatus if status.terminal),
    manager.c.ended_at,
    manager_subject(0)[:-1],
    {"manager_item": (manager_item.c.item_id,), "manager_addition": (manager_addition.c.id,)},
    "jobs_pruned_at",
)
GRAPH = Owner(
    "graph",
    graph.c.graph_id,
    graph.c.state,
    GraphState,
    frozenset(state.value for state in GraphState if state.final),
    graph.c.ended_at,
    graph_subject(""),
    {
        # All parts of a result go with the first.
        "graph_result": (graph_result.c.graph_id, graph_result.c.number),
        "graph_step": (graph_step.c.graph_id, graph_step.c.number),
        "graph_log": (graph_log.c.graph_id,),
    },
    "pruned_at",
)
#: What was sent of a graph and never made whole.
DRAFT = Owner(
    "draft",
    graph.c.graph_id,
    graph.c.state,
    GraphState,
    frozenset({GraphState.DRAFT.value}),
    graph.c.updated_at,
    "drafts/",
    {"graph_page": (graph_page.c.graph_id, graph_page.c.page)},
)
OWNERS = (MANAGER, GRAPH, DRAFT)
#: Tables whose rows belong to one of them.
OWNED: Mapping[str, Owner] = MappingProxyType({name: one for one in OWNERS for name in one.rows})


#: What subjects of managers and graphs begin with.
SUBJECTS = (MANAGER.subject, GRAPH.subject)


def owners_of(
    conn: Connection, subjects: Collection[str], before: datetime
) -> dict[str, tuple[tuple[str, int], Stays | None]]:
    """The managers and graphs that these events are about, and why what is theirs stays."""
    found: dict[str, tuple[tuple[str, int], Stays | None]] = {}
    for owner, key in ((MANAGER, MANAGER.id), (GRAPH, graph.c.graph_key)):
        names = {one.removeprefix(owner.subject) for one in subjects if one.startswith(owner.subject)}
        if key is owner.id:
            names = {one for one in names if one.isascii() and one.isdecimal() and len(one) < 19}
        for chunk in chunks(sorted(names)):
            values = [int(one) for one in chunk] if key is owner.id else chunk
            query = select(key.label("key"), *owner.facts).where(key.in_(values))
            for row in conn.execute(query).mappings():
                found[f"{owner.subject}{row['key']}"] = ((owner.name, row["its_id"]), owner.stays(row, before))
    return found


def rows_of_owner(table: Table, conn: Connection, before: datetime, after: Place) -> Chunk:
    """A chunk of rows about which nothing but their manager, or their graph, decides."""
    owner = OWNED[table.name]
    keys, of = owner.rows[table.name], table.c[owner.id.name]
    names = [key.label(f"key_{place}") for place, key in enumerate(keys)]
    query = select(*names, *owner.facts).join_from(table, owner.table, owner.id == of, isouter=True)
    if len(keys) == 1:
        query = query.where(keys[0] > after[0])
    else:
        # Spelled so that every database begins to read at the place.
        query = query.where(keys[0] >= after[0], (keys[0] > after[0]) | (keys[1] > after[1]))
    if table is graph_result:
        query = query.where(graph_result.c.part == 0)
    query = query.order_by(*keys).limit(CHUNK).with_hint(table, _PRIMARY, "mysql")
    rows = conn.execute(query).mappings().all()
    places = [(row["key_0"], row["key_1"] if len(keys) == 2 else 0) for row in rows]
    chunk = Chunk(next=places[-1] if len(rows) == CHUNK else None)
    for row, place in zip(rows, places, strict=True):
        why = owner.stays(row, before)
        if why is None:
            chunk.goes.append(Leaving(place, None, (owner.name, row["its_id"])))
        else:
            chunk.stays[why] += 1
    return chunk


def held(conn: Connection, leaving: Sequence[Leaving], before: datetime) -> set[tuple[str, int]]:
    """The owners of these that ended before then. They are locked, in the order of their ids."""
    found = set[tuple[str, int]]()
    for owner in OWNERS:
        ids = {one.owner[1] for one in leaving if one.owner is not None and one.owner[0] == owner.name}
        old = (owner.state.in_(owner.over), owner.ended < before, owner.table.c.updated_at < before)
        for chunk in chunks(sorted(ids)):
            query = select(owner.id).where(owner.id.in_(chunk), *old).order_by(owner.id).with_for_update()
            rows = conn.execute(query.with_hint(owner.table, _PRIMARY, "mysql"))
            found |= {(owner.name, id) for id in rows.scalars()}
    return found


def remove_owned(conn: Connection, table: str, mine: Sequence[Leaving], now: datetime) -> dict[str, int]:
    """Remove these rows, whose owners are held, and write down with the owners that rows are gone."""
    if not mine:
        return {}
    owner = OWNED[table]
    keys = owner.rows[table]
    if len(keys) == 1:
        gone = delete_rows(conn, keys[0], "PRIMARY", sorted(one.key[0] for one in mine))
    else:
        below: dict[int, list[int]] = {}
        for one in mine:
            below.setdefault(one.key[0], []).append(one.key[1])
        gone = sum(delete_rows(conn, keys[1], "PRIMARY", rest, of={owner.id.name: id}) for id, rest in below.items())
    if gone and owner.mark is not None:
        touched = sorted({one.owner[1] for one in mine if one.owner is not None})
        conn.execute(update(owner.table).where(owner.id.in_(touched)).values({owner.mark: now}))
    return {table: gone}


def mark_owners(conn: Connection, gone: Sequence[Leaving]) -> None:
    """Write down with managers and graphs up to which event theirs were removed."""
    for owner in (MANAGER, GRAPH):
        through: dict[int, int] = {}
        for one in gone:
            if one.owner is not None and one.owner[0] == owner.name:
                through[one.owner[1]] = max(one.key[0], through.get(one.owner[1], 0))
        marked = owner.table.c.pruned_through
        for id, seq in through.items():
            known = marked.is_(None) | (marked < seq)
            conn.execute(update(owner.table).where(owner.id == id, known).values(pruned_through=seq))
