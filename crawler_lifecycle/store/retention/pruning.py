"""Pruning: the removal of detail rows of runs, managers and graphs that ended long ago.

``domain.retention`` has the rules. Each table is read by its primary key, so a call reads only one
chunk, even in a large database. Each chunk is pruned in one short transaction, which locks the
runs, managers and graphs of its rows. A resume therefore happens either before or after this
transaction. If it happens before, no rows of its run are removed.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection, insert, select, update

from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain.bounds import whole
from crawler_lifecycle.domain.names import EVENT_RUN_CHANGED, PROPERTY_PRUNED
from crawler_lifecycle.domain.retention import (
    CLOSED,
    Stays,
    event_stays,
    finding_stays,
    mark,
    marked_through,
)
from crawler_lifecycle.store.access import access_log
from crawler_lifecycle.store.audits.tables import audit_finding
from crawler_lifecycle.store.base.bulk import CHUNK, delete_rows, rows_in
from crawler_lifecycle.store.base.outbox import outbox_delivery, outbox_event
from crawler_lifecycle.store.base.rows import Row
from crawler_lifecycle.store.engine import Database, open_engine, parse_url
from crawler_lifecycle.store.runs.tables import (
    history_property,
    run_history,
    task_finding,
    task_log,
    task_observation,
    task_stats,
)

from .parts import PRIMARY, Owner, Place, Ref, Source, feature_retentions

_BY_SINK = "uq_outbox_delivery_seq_sink"
_BY_NAME = (history_property, "FORCE INDEX (uq_history_property_run_id_attempt_name)", "mysql")


@dataclass(frozen=True, slots=True)
class Leaving:
    """A row that can be removed."""

    key: Place
    owner: Ref | None
    """The owner of the row; ``None`` if it has none, or if its owner does not exist."""


@dataclass
class Chunk:
    """The result for the next rows of a table: the removable rows, and the reasons why other rows
    are kept.
    """

    goes: list[Leaving] = field(default_factory=list)
    stays: Counter[Stays] = field(default_factory=Counter)
    sent: int = 0
    """The number of deliveries that are removed with their events."""
    sent_stays: Counter[Stays] = field(default_factory=Counter)
    next: Place | None = None
    """The key of the last row, after which the next chunk begins; ``None`` if there are no more
    rows.
    """

    def add(self, key: Place, owner: Ref | None, why: Stays | None, sent: int = 0) -> None:
        """Count a row with its deliveries.

        ``why`` is the reason why the row is kept; ``None`` if the row may be removed.
        """
        if why is None:
            self.goes.append(Leaving(key, owner))
            self.sent += sent
        else:
            self.stays[why] += 1
            self.sent_stays += Counter({why: sent})


_FEATURES = feature_retentions()
_RUN = Owner(run_history)
#: The kinds of owners, in the order in which they are locked.
OWNERS = (*(owner for feature in _FEATURES for owner in feature.owners), _RUN)
#: Prefixes of the sinks whose failed deliveries do not keep an event.
_MAY_FAIL = tuple(sink for feature in _FEATURES for sink in feature.sinks)


def _finding(row: Row, owner: Stays | None, before: datetime) -> Stays | None:
    return finding_stays(owner, row["status"], (row["last_seen"], row["repaired_at"]), before)


_e = outbox_event.c
_f = audit_finding.c
_OF_FEATURES = [source for feature in _FEATURES for source in feature.sources]
#: The tables by their names, in the order in which they are pruned.
SOURCES: Mapping[str, Source] = {
    source.table.name: source
    for source in (
        Source(
            outbox_event,
            _RUN,
            columns=(_e.run_id, _e.subject, _e.event_key, _e.type, _e.created_at),
            # This is not a condition but a lock: a delivery either ends before the lock is taken,
            # or finds no event.
            still=lambda before: (),
        ),
        Source(task_log, _RUN),
        Source(task_stats, _RUN, marks=False),
        Source(task_observation, _RUN, marks=False),
        Source(task_finding, _RUN, marks=False),
        # Rows without an owner (due times) go first.
        *sorted(_OF_FEATURES, key=lambda source: source.owner is not None),
        Source(
            audit_finding,
            _RUN,
            columns=(_f.status, _f.last_seen, _f.repaired_at),
            rule=_finding,
            # Audits can find the same problem again.
            still=lambda before: (_f.status.in_(CLOSED), _f.last_seen < before),
            marks=False,
        ),
        Source(
            access_log,
            columns=(access_log.c.at,),
            rule=lambda row, _, before: None if row["at"] < before else Stays.RECENT,
        ),
    )
}


class Pruner:
    """The search for rows that may be removed, and their removal.

    ``tables`` are the names of the pruned tables.
    """

    tables = tuple(SOURCES)

    def __init__(self, database: Database, clock: Clock = utc_now) -> None:
        self._db = database
        self._clock = clock

    def close(self) -> None:
        """Close all connections. A second call does nothing."""
        self._db.close()

    def poll(self, table: str, before: datetime, after: Place = (0, 0)) -> Chunk:
        """Return which of the next 500 rows after ``after`` may be removed, and why other rows are
        kept.

        Nothing is changed.
        """
        source = SOURCES[table]
        with self._db.reading() as conn:
            rows = source.rows(conn, after, CHUNK)
            chunk = Chunk(next=source.place(rows[-1]) if len(rows) == CHUNK else None)
            if source.table is outbox_event:
                _add_events(conn, chunk, rows, before)
                return chunk
        for row in rows:
            chunk.add(source.place(row), *source.judge(row, before))
        return chunk

    def remove(self, table: str, leaving: Sequence[Leaving], before: datetime) -> dict[str, int]:
        """In one transaction, remove the rows that may still be removed.

        A second call removes nothing.

        Returns the number of removed rows for each table.
        """
        if not leaving:
            return {}
        source = SOURCES[table]
        gone = dict[str, int]()
        with self._db.writing() as conn:
            # Every transaction locks the owners first, which prevents deadlocks.
            attempts = _locked_owners(conn, leaving, before)
            mine = [
                (row.key, row.owner)
                for row in leaving
                if row.owner is None or row.owner in attempts
            ]
            if mine and source.still is not None:
                [column] = source.keys
                ids = [key[0] for key, _ in mine]
                query = (
                    select(column)
                    .where(column.in_(ids), *source.still(before))
                    .order_by(column)
                    .with_for_update()
                )
                found = set(conn.execute(query.with_hint(source.table, PRIMARY, "mysql")).scalars())
                mine = [row for row in mine if row[0][0] in found]
            keys = sorted(key for key, _ in mine)
            if source.table is outbox_event:
                sent = delete_rows(conn, outbox_delivery.c.seq, _BY_SINK, [key[0] for key in keys])
                gone["outbox_delivery"] = sent
            if count := source.delete(conn, keys):
                gone[table] = count
                if source.marks:
                    self._mark(conn, source, mine, attempts)
        return gone

    def _mark(
        self,
        conn: Connection,
        source: Source,
        gone: Sequence[tuple[Place, Ref | None]],
        attempts: Mapping[Ref, int],
    ) -> None:
        """Record in each owner that its rows were removed, as the number of the last removed event
        or as the time.
        """
        through: dict[Ref, int] = {}
        for (key, _), ref in gone:
            if ref is not None:
                through[ref] = max(key if source.table is outbox_event else 0, through.get(ref, 0))
        self._mark_runs(
            conn, {id: (attempts[_RUN, id], seq) for (of, id), seq in through.items() if of is _RUN}
        )
        for owner in OWNERS:
            if owner.mark is None:
                continue
            mine = {id: seq for (of, id), seq in through.items() if of is owner}
            if source.table is outbox_event:
                marked = owner.table.c.pruned_through
                for id, seq in mine.items():
                    known = marked.is_(None) | (marked < seq)
                    conn.execute(
                        update(owner.table).where(owner.id == id, known).values(pruned_through=seq)
                    )
            elif mine:
                conn.execute(
                    update(owner.table)
                    .where(owner.id.in_(mine))
                    .values({owner.mark: self._clock()})
                )

    def _mark_runs(self, conn: Connection, through: Mapping[int, tuple[int, int]]) -> None:
        """Record the last removed event as a property of the current attempt of each run.

        The recorded number is 0 if no event was removed.
        """
        p = history_property.c
        query = select(p.id, p.run_id, p.attempt, p.value).where(
            p.run_id.in_(through), p.name == PROPERTY_PRUNED
        )
        rows = conn.execute(query.with_hint(*_BY_NAME)).all() if through else []
        known = {
            (run_id, attempt): (id, marked_through(value)) for id, run_id, attempt, value in rows
        }
        now = self._clock()
        new = []
        for run_id, (attempt, seq) in through.items():
            id, before = known.get((run_id, attempt), (None, -1))
            if id is None:
                key = {"run_id": run_id, "attempt": attempt, "name": PROPERTY_PRUNED}
                new.append({**key, "value": mark(seq, now)})
            elif seq > before:
                conn.execute(
                    update(history_property).where(p.id == id).values(value=mark(seq, now))
                )
        if new:
            conn.execute(insert(history_property), new)


def open_pruner(url: str, *, clock: Clock = utc_now) -> Pruner:
    """Return a pruner for the database at ``url``.

    The pruner connects on first use. Raises ``InvalidRequest``.
    """
    return Pruner(Database(open_engine(parse_url(url), pool_size=1)), clock)


def _locked_owners(
    conn: Connection, leaving: Sequence[Leaving], before: datetime
) -> dict[Ref, int]:
    """Lock those owners of these rows that ended before ``before``, in the order of their ids.

    Returns their attempts.
    """
    found: dict[Ref, int] = {}
    for owner in OWNERS:
        ids = {row.owner[1] for row in leaving if row.owner is not None and row.owner[0] is owner}
        columns = owner.table.c
        old = (
            columns[owner.state].in_(owner.over),
            columns[owner.ended] < before,
            columns.updated_at < before,
        )
        query = (
            select(owner.id.label("id"), columns.attempt)
            .where(*old)
            .order_by(owner.id)
            .with_for_update()
        )
        rows = rows_in(conn, query.with_hint(owner.table, PRIMARY, "mysql"), owner.id, ids)
        found |= {(owner, row["id"]): row["attempt"] for row in rows}
    return found


# --- events ---------------------------------------------------------------------------------------


def _add_events(conn: Connection, chunk: Chunk, rows: Sequence[Row], before: datetime) -> None:
    """Add events to a chunk.

    An event belongs to the run with its number, or to the manager or graph in its subject.
    """
    sent, unsent = _sent(conn, [row["seq"] for row in rows])
    others = _owners_of(conn, {row["subject"] for row in rows if row["run_id"] is None}, before)
    newest = functools.cache(functools.partial(_newest, conn))
    for row in rows:
        subject = row["subject"]
        if row["run_id"] is None:
            owner, why = others[subject]
        else:
            owner = (_RUN, row["run_id"])
            why = _RUN.stays(row, before)
        why = event_stays(why, row["event_key"], row["created_at"], before)
        if why is None and row["seq"] in unsent and row["seq"] == newest(subject):
            why = Stays.UNSENT
        chunk.add((row["seq"], 0), owner, why, sent[row["seq"]])


def _sent(conn: Connection, seqs: Sequence[int]) -> tuple[Counter[int], set[int]]:
    """Return the number of deliveries of each of these events, and the events that have a failed
    delivery.
    """
    d = outbox_delivery.c
    sent = Counter[int]()
    failed = set[int]()
    query = select(d.seq, d.status, d.sink).where(d.seq.in_(seqs))
    query = query.with_hint(outbox_delivery, f"FORCE INDEX ({_BY_SINK})", "mysql")
    for seq, status, sink in conn.execute(query) if seqs else ():
        sent[seq] += 1
        if status != "delivered" and not sink.startswith(_MAY_FAIL):
            failed.add(seq)
    return sent, failed


def _owners_of(
    conn: Connection, subjects: Collection[str], before: datetime
) -> dict[str, tuple[Ref | None, Stays | None]]:
    """Return the manager or graph of each subject, and the reason why its rows are kept.

    Schedules and webhooks do not end, so their events have no owner here and are removed by age.
    """
    found: dict[str, tuple[Ref | None, Stays | None]] = dict.fromkeys(subjects, (None, None))
    for owner in OWNERS:
        if owner.key is None:
            continue
        keys = {
            subject.removeprefix(owner.subject)
            for subject in subjects
            if subject.startswith(owner.subject)
        }
        found |= {f"{owner.subject}{key}": (None, Stays.UNKNOWN) for key in keys}
        values = {whole(key) for key in keys} - {None} if owner.key is owner.id else keys
        for row in rows_in(conn, select(owner.key.label("key"), *owner.facts), owner.key, values):
            found[f"{owner.subject}{row['key']}"] = (
                (owner, row["its_id"]),
                owner.stays(row, before),
            )
    return found


def _newest(conn: Connection, subject: str) -> int | None:
    """Return the newest event ``run.changed`` of a run.

    A failed push is repeated only for this event.
    """
    e = outbox_event.c
    query = select(e.seq).where(e.subject == subject, e.type == EVENT_RUN_CHANGED)
    return conn.execute(query.order_by(e.seq.desc()).limit(1)).scalar_one_or_none()
