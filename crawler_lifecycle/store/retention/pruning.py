"""Pruning: removes working rows of runs that ended long ago (``domain.retention`` says which).

Each table is gone through by its primary key, so a call reads no more than one chunk, however large the database is and
however much of it stays. What may go is removed in one short transaction for each chunk, which holds the rows of its
runs: a run that is resumed meanwhile comes before it or after it, and before it nothing of the run is removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import zip_longest
from typing import Any

from sqlalchemy import Column, Connection, Select, Table, insert, select, update

from crawler_lifecycle.domain.names import EVENT_RUN_CHANGED, PROPERTY_PRUNED
from crawler_lifecycle.domain.retention import (
    CLOSED,
    Stays,
    due_stays,
    event_stays,
    finding_stays,
    mark,
    marked_through,
    run_stays,
)
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.webhooks.definition import webhook_sink
from crawler_lifecycle.store.audits.tables import audit_finding
from crawler_lifecycle.store.base.bulk import CHUNK, chunks, delete_rows
from crawler_lifecycle.store.base.outbox import outbox_delivery, outbox_event
from crawler_lifecycle.store.base.unit import Clock, utc_now
from crawler_lifecycle.store.engine import Database, open_engine, parse_url
from crawler_lifecycle.store.runs.tables import (
    history_property,
    run_history,
    task_finding,
    task_history,
    task_log,
    task_observation,
    task_stats,
)
from crawler_lifecycle.store.schedules.due_lines import BEGINS, OVER, status_column
from crawler_lifecycle.store.schedules.tables import schedule_due
from crawler_lifecycle.store.tables import metadata

from .owned_pruning import (
    OWNED,
    SUBJECTS,
    Chunk,
    Leaving,
    Place,
    held,
    mark_owners,
    owners_of,
    remove_owned,
    rows_of_owner,
)

_OVER = [status.value for status in RunStatus if status.terminal]
_PRIMARY = "FORCE INDEX (PRIMARY)"
_BY_SINK = "uq_outbox_delivery_seq_sink"
_BY_NAME = "FORCE INDEX (uq_history_property_run_id_attempt_name)"


class Pruner:
    """Goes through the tables and removes what may go. ``tables`` are those that have chunks of their own."""

    def __init__(self, database: Database, clock: Clock = utc_now) -> None:
        self._db = database
        self._clock = clock
        self._readers: Mapping[str, Callable[[Connection, datetime, Place], Chunk]] = {
            "outbox_event": _events,
            "task_log": partial(_of_tasks, task_log),
            "task_stats": partial(_of_tasks, task_stats),
            "task_observation": _observations,
            "task_finding": _staged_findings,
            "schedule_due": _due_lines,
            **{name: partial(rows_of_owner, metadata.tables[name]) for name in OWNED},
            "audit_finding": _closed_findings,
        }

    @property
    def tables(self) -> tuple[str, ...]:
        """Their names, in the order in which they are to be gone through."""
        return tuple(self._readers)

    def close(self) -> None:
        """Close all connections. A second call does nothing."""
        self._db.close()

    def look(self, table: str, before: datetime, after: Place = (0, 0)) -> Chunk:
        """The next 500 rows behind ``after``: which may go, and why the others stay. Nothing is changed."""
        with self._db.reading() as conn:
            return self._readers[table](conn, before, after)

    def remove(self, table: str, leaving: Sequence[Leaving], before: datetime) -> dict[str, int]:
        """Remove those that still may go, in one transaction; how many went, by table. Again: none."""
        if not leaving:
            return {}
        keys = sorted(one.key for one in leaving)
        with self._db.writing() as conn:
            if table == "audit_finding":
                return {table: _remove_findings(conn, keys, before)}
            if table == "schedule_due":
                return {table: _remove_due(conn, keys, before)}
            # First, as in every transaction of ours: two of them never wait for each other.
            owners = held(conn, leaving, before)
            if table in OWNED:
                return remove_owned(conn, table, [one for one in leaving if one.owner in owners], self._clock())
            runs = _held(conn, {one.run_id for one in leaving if one.run_id is not None}, before)
            mine = [
                one
                for one in sorted(leaving, key=lambda one: one.key)
                if one.run_id in runs or one.owner in owners or (table == "outbox_event" and one.alone)
            ]
            if not mine:
                return {}
            if table == "outbox_event":
                return self._remove_events(conn, mine, runs)
            if table == "task_finding":
                return {table: _remove_staged(conn, mine)}
            if table == "task_log":
                self._mark(conn, runs, {one.run_id: 0 for one in mine if one.run_id is not None})
            column = metadata.tables[table].c.task_id
            return {table: delete_rows(conn, column, "PRIMARY", [one.key[0] for one in mine])}

    def _remove_events(self, conn: Connection, mine: Sequence[Leaving], runs: Mapping[int, int]) -> dict[str, int]:
        e, seqs = outbox_event.c, [one.key[0] for one in mine]
        # Whoever writes down a try holds the event: it is done, or it will find none.
        there = select(e.seq).where(e.seq.in_(seqs)).order_by(e.seq).with_for_update()
        found = set(conn.execute(there.with_hint(outbox_event, _PRIMARY, "mysql")).scalars())
        through: dict[int, int] = {}
        for one in mine:
            if one.run_id is not None and one.key[0] in found:
                through[one.run_id] = max(one.key[0], through.get(one.run_id, 0))
        self._mark(conn, runs, through)
        mark_owners(conn, [one for one in mine if one.key[0] in found])
        sent = delete_rows(conn, outbox_delivery.c.seq, _BY_SINK, sorted(found))
        gone = delete_rows(conn, e.seq, "PRIMARY", sorted(found))
        return {"outbox_event": gone, "outbox_delivery": sent}

    def _mark(self, conn: Connection, attempts: Mapping[int, int], through: Mapping[int, int]) -> None:
        """Write down with the present attempts that rows were removed, and up to which event."""
        if not through:
            return
        p = history_property.c
        known: dict[int, tuple[int, int]] = {}
        query = select(p.id, p.run_id, p.attempt, p.value).where(p.run_id.in_(through), p.name == PROPERTY_PRUNED)
        for id, run_id, attempt, value in conn.execute(query.with_hint(history_property, _BY_NAME, "mysql")):
            if attempt == attempts[run_id]:
                known[run_id] = (id, marked_through(value))
        now, new = self._clock(), []
        for run_id, seq in through.items():
            if run_id not in known:
                row = {"run_id": run_id, "attempt": attempts[run_id], "name": PROPERTY_PRUNED}
                new.append({**row, "value": mark(seq, now)})
            elif seq > known[run_id][1]:
                moved = update(history_property).where(p.id == known[run_id][0]).values(value=mark(seq, now))
                conn.execute(moved)
        if new:
            conn.execute(insert(history_property), new)


def open_pruner(url: str, *, clock: Clock = utc_now) -> Pruner:
    """A pruner of the database at ``url``; nothing is connected before the first use. Raises ``InvalidRequest``."""
    return Pruner(Database(open_engine(parse_url(url), pool_size=1)), clock)


# --- reading -------------------------------------------------------------------------------------------------------


def _with_run(table: Table, *columns: Any, run_id: Column[int] | None = None) -> Select[Any]:
    """Those columns, with what decides about the run. The table comes first, whatever the optimizer would like."""
    r = run_history.c
    on = r.run_id == (table.c.run_id if run_id is None else run_id)
    run = (r.run_id.label("run"), r.status.label("run_status"), r.ended_at, r.updated_at)
    query = select(*columns, *run).select_from(table)
    if run_id is not None:
        query = query.outerjoin_from(table, task_history, task_history.c.task_id == table.c.task_id)
        query = query.outerjoin(run_history, on)
    else:
        query = query.outerjoin_from(table, run_history, on)
    return query.with_hint(table, _PRIMARY, "mysql").limit(CHUNK)


def _run_stays(row: Mapping[Any, Any], before: datetime) -> Stays | None:
    return run_stays(row["run_status"], row["ended_at"], row["updated_at"], before)


def _chunk(
    rows: Sequence[Mapping[Any, Any]],
    keys: Sequence[Place],
    whys: Sequence[Stays | None],
    owners: Sequence[tuple[str, int] | None] = (),
) -> Chunk:
    chunk = Chunk(next=keys[-1] if len(rows) == CHUNK else None)
    for row, key, why, owner in zip_longest(rows, keys, whys, owners):
        if why is None:
            chunk.goes.append(Leaving(key, row["run"], owner))
        else:
            chunk.stays[why] += 1
    return chunk


def _by_run(conn: Connection, query: Select[Any], before: datetime, *keys: str) -> Chunk:
    """A chunk of rows about which nothing but their run decides."""
    rows = conn.execute(query).mappings().all()
    places = [(row[keys[0]], row[keys[1]] if len(keys) > 1 else 0) for row in rows]
    return _chunk(rows, places, [_run_stays(row, before) for row in rows])


def _of_tasks(table: Table, conn: Connection, before: datetime, after: Place) -> Chunk:
    key = table.c.task_id
    query = _with_run(table, key, run_id=task_history.c.run_id).where(key > after[0]).order_by(key)
    return _by_run(conn, query, before, "task_id")


def _observations(conn: Connection, before: datetime, after: Place) -> Chunk:
    key = task_observation.c.task_id
    query = _with_run(task_observation, key).where(key > after[0]).order_by(key)
    return _by_run(conn, query, before, "task_id")


def _staged_findings(conn: Connection, before: datetime, after: Place) -> Chunk:
    c = task_finding.c
    # Spelled so that every database begins to read at the place.
    behind = (c.run_id >= after[0], (c.run_id > after[0]) | (c.task_id > after[1]))
    query = _with_run(task_finding, c.run_id, c.task_id).where(*behind).order_by(c.run_id, c.task_id)
    return _by_run(conn, query, before, "run_id", "task_id")


def _events(conn: Connection, before: datetime, after: Place) -> Chunk:
    e, d = outbox_event.c, outbox_delivery.c
    columns = (e.seq, e.run_id, e.subject, e.event_key, e.type, e.created_at)
    rows = conn.execute(_with_run(outbox_event, *columns).where(e.seq > after[0]).order_by(e.seq)).mappings().all()
    sent: Counter[int] = Counter()
    unsent: set[int] = set()
    if rows:
        query = select(d.seq, d.status, d.sink).where(d.seq.in_([row["seq"] for row in rows]))
        for seq, status, sink in conn.execute(query.with_hint(outbox_delivery, f"FORCE INDEX ({_BY_SINK})", "mysql")):
            sent[seq] += 1
            # A webhook that was down for months is not waited for.
            if status != "delivered" and not sink.startswith(webhook_sink("")):
                unsent.add(seq)
    owners = owners_of(conn, {row["subject"] for row in rows if row["run_id"] is None}, before)
    whose = [owners.get(row["subject"]) if row["run_id"] is None else None for row in rows]
    whys = [
        event_stays(_whose_stays(row, of, before), row["event_key"], row["created_at"], before)
        for row, of in zip(rows, whose, strict=True)
    ]
    failed = [why is None and row["seq"] in unsent for row, why in zip(rows, whys, strict=True)]
    again = _sendable(conn, {row["subject"] for row, did in zip(rows, failed, strict=True) if did})
    for place, row in enumerate(rows):
        if failed[place] and row["seq"] in again:
            whys[place] = Stays.UNSENT
    chunk = _chunk(rows, [(row["seq"], 0) for row in rows], whys, [of and of[0] for of in whose])
    for row, why in zip(rows, whys, strict=True):
        if why is None:
            chunk.sent += sent[row["seq"]]
        elif sent[row["seq"]]:
            chunk.sent_stays[why] += sent[row["seq"]]
    return chunk


def _whose_stays(row: Mapping[Any, Any], of: tuple[object, Stays | None] | None, before: datetime) -> Stays | None:
    """Why what an event is about stays. News of schedules and webhooks, which have no end, go by their own age."""
    if of is not None:
        return of[1]
    endless = row["run_id"] is None and not row["subject"].startswith(SUBJECTS)
    return None if endless else _run_stays(row, before)


def _sendable(conn: Connection, subjects: Collection[str]) -> set[int]:
    """The newest ``run.changed`` of each of these runs: the one that is pushed again when its push failed."""
    e, found = outbox_event.c, set()
    for subject in sorted(subjects):
        newest = select(e.seq).where(e.subject == subject, e.type == EVENT_RUN_CHANGED)
        newest = newest.order_by(e.seq.desc()).limit(1)
        found |= set(conn.execute(newest).scalars())
    return found


def _due_lines(conn: Connection, before: datetime, after: Place) -> Chunk:
    d = schedule_due.c
    query = select(d.due_id, d.decision, d.target_id, d.decided_at, status_column()).where(d.due_id > after[0])
    query = query.order_by(d.due_id).limit(CHUNK).with_hint(schedule_due, _PRIMARY, "mysql")
    rows = [{**row, "run": None} for row in conn.execute(query).mappings()]
    whys = []
    for row in rows:
        live = row["target_id"] is None or (row["status"] is not None and row["status"] not in OVER)
        whys.append(due_stays(row["decision"] in BEGINS, live, row["decided_at"], before))
    return _chunk(rows, [(row["due_id"], 0) for row in rows], whys)


def _closed_findings(conn: Connection, before: datetime, after: Place) -> Chunk:
    a = audit_finding.c
    columns = (a.id, a.status, a.last_seen, a.repaired_at)
    rows = conn.execute(_with_run(audit_finding, *columns).where(a.id > after[0]).order_by(a.id)).mappings().all()
    whys = [
        finding_stays(_run_stays(row, before), row["status"], (row["last_seen"], row["repaired_at"]), before)
        for row in rows
    ]
    return _chunk(rows, [(row["id"], 0) for row in rows], whys)


# --- removing ------------------------------------------------------------------------------------------------------


def _held(conn: Connection, run_ids: Collection[int], before: datetime) -> dict[int, int]:
    """Those of the runs that ended before then, with their attempts. They are locked, in the order of their ids."""
    r = run_history.c
    found: dict[int, int] = {}
    for chunk in chunks(sorted(run_ids)):
        old = (r.status.in_(_OVER), r.ended_at < before, r.updated_at < before)
        query = select(r.run_id, r.attempt).where(r.run_id.in_(chunk), *old).order_by(r.run_id).with_for_update()
        found |= dict(conn.execute(query.with_hint(run_history, _PRIMARY, "mysql")).all())
    return found


def _remove_staged(conn: Connection, mine: Sequence[Leaving]) -> int:
    tasks: dict[int, list[int]] = {}
    for one in mine:
        tasks.setdefault(one.key[0], []).append(one.key[1])
    column = task_finding.c.task_id
    return sum(delete_rows(conn, column, "PRIMARY", ids, of={"run_id": run_id}) for run_id, ids in tasks.items())


def _remove_due(conn: Connection, keys: Sequence[Place], before: datetime) -> int:
    """A person may have asked for one of them since they were read."""
    d = schedule_due.c
    query = select(d.due_id).where(d.due_id.in_([key[0] for key in keys]), d.decided_at < before).order_by(d.due_id)
    ids = conn.execute(query.with_for_update().with_hint(schedule_due, _PRIMARY, "mysql")).scalars().all()
    return delete_rows(conn, d.due_id, "PRIMARY", ids)


def _remove_findings(conn: Connection, keys: Sequence[Place], before: datetime) -> int:
    """An audit may have seen one of them again since they were read."""
    a = audit_finding.c
    still = (a.status.in_(CLOSED), a.last_seen < before)
    query = select(a.id).where(a.id.in_([key[0] for key in keys]), *still).order_by(a.id).with_for_update()
    ids = conn.execute(query.with_hint(audit_finding, _PRIMARY, "mysql")).scalars().all()
    return delete_rows(conn, a.id, "PRIMARY", ids)
