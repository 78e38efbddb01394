"""Firings: rows of ``schedule_due``, one for each due time with a decision.

The functions work in an open transaction.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, case, insert, select, update

from crawler_lifecycle.domain.due_ids import due_text
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.errors import NotInThisState, RowUnreadable
from crawler_lifecycle.domain.names import (
    EVENT_SCHEDULE_MISSED,
    EVENT_SCHEDULE_SKIPPED,
    schedule_subject,
)
from crawler_lifecycle.domain.retention import Stays, due_stays
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.features.graphs.domain.spec import GraphState
from crawler_lifecycle.features.graphs.store.tables import graph
from crawler_lifecycle.features.managers.store.tables import manager
from crawler_lifecycle.store.base.rows import Row, change_row, definition_of, made
from crawler_lifecycle.store.retention.parts import FeatureRetention, Source
from crawler_lifecycle.store.runs.tables import run_history

from ..domain.decision import Decision
from ..domain.definition import ScheduleSpec, TargetKind, kind_of
from ..ports import DueRow, NotedFirings, TargetRef
from .tables import schedule, schedule_due

BEGINS = [decision.value for decision in Decision if decision.begins]
_d = schedule_due.c
#: The key column and the state column of each kind of target, and the condition that a person
#: stopped it.
_TARGETS: Mapping[TargetKind, tuple[Any, Any, Any]] = {
    TargetKind.RUN: (
        run_history.c.run_id,
        run_history.c.status,
        run_history.c.ended_by == EndedBy.PERSON,
    ),
    TargetKind.MANAGER: (
        manager.c.manager_id,
        manager.c.status,
        manager.c.stop_requested_at.is_not(None),
    ),
    TargetKind.GRAPH: (graph.c.graph_id, graph.c.state, graph.c.state == GraphState.CANCELLED),
}
OVER = {status.value for status in RunStatus if status.terminal} | {
    status.value for status in GraphState if status.final
}
GOOD = {RunStatus.COMPLETED.value, GraphState.COMPLETED.value}
DELETED = "its schedule was deleted before it began"
UNFIRED = "Temporal did not fire at this time; Backfill begins it (crawlctl schedule backfill)"
#: The maximum number of due times that one call of ``note`` checks.
_NOTED_MAX = 1000
_EVENTS = {
    Decision.MISSED: EVENT_SCHEDULE_MISSED,
    Decision.FAILED: EVENT_SCHEDULE_MISSED,
    Decision.SKIPPED_OVERLAP: EVENT_SCHEDULE_SKIPPED,
}


def spec_of(row: Row) -> ScheduleSpec:
    """Return the definition in a row. Raises ``RowUnreadable``."""
    return definition_of(schedule, row, ScheduleSpec.read)


def new_row(
    row: Row,
    due_at: datetime,
    now: datetime,
    decision: Decision,
    reason: str | None,
    last: Row | None = None,
) -> dict[str, Any]:
    """Return the values of a new firing with this decision, made at ``now``.

    ``last`` is the last firing that starts a target, for which a queued one waits. The decision is
    later than that one's, even if the clocks of workers differ.
    """
    if last is not None:
        now = max(now, last["decided_at"] + timedelta(microseconds=1))
    return {
        "schedule_id": row["schedule_id"],
        "revision": row["revision"],
        "target_kind": kind_of(row["definition"]).value,
        "due_at": due_at.astimezone(UTC),
        "decision": decision.value,
        "reason": reason,
        "lateness_ms": max(0, int((now - due_at) / timedelta(milliseconds=1))),
        "decided_at": now,
        "after_id": last["due_id"] if last is not None and decision is Decision.QUEUED else None,
    }


def written(conn: Connection, row: Row, values: Mapping[str, Any], before: Row | None) -> DueRow:
    """Write these values into a new firing, or into the firing ``before``. Return the firing."""
    if before is not None:
        change_row(conn, schedule_due, before, values)
    else:
        conn.execute(insert(schedule_due).values(**values))
    firing = at(conn, row, values["due_at"])
    assert firing is not None, "it was written in this transaction"
    return due_row(firing, row["name"])


def note_all(conn: Connection, row: dict[Any, Any], now: datetime) -> list[Row]:
    """Write a firing for each due time up to now, before the definition changes.

    Return the events to append.
    """
    events = list[Row]()
    more = True
    # An unreadable definition has no due times, and is about to be replaced or removed.
    with suppress(RowUnreadable):
        while more:
            noted, new = note(conn, row, now, now)
            events, more = events + new, noted.more
    return events


def drop_queued(conn: Connection, row: Row, now: datetime) -> list[Row]:
    """Cancel the queued firings of a schedule that is being deleted. Return the events to append.

    A later schedule with the same name must not inherit them. Firings that a person requested stay.
    """
    mine = (
        _d.schedule_id == row["schedule_id"],
        _d.decision == Decision.QUEUED,
        _d.target_id.is_(None),
    )
    queued = conn.execute(select(schedule_due).where(*mine).order_by(_d.due_at)).mappings().all()
    firings = {firing["due_id"]: firing for firing in queued if firing["asked_by"] is None}
    if not firings:
        return []
    failed = {"decision": Decision.FAILED.value, "reason": DELETED}
    conn.execute(update(schedule_due).where(*mine, _d.asked_by.is_(None)).values(**failed))
    for firing in queued:
        after = firing["after_id"]
        # A requested firing now waits for the last firing before the cancelled ones.
        while after in firings:
            after = firings[after]["after_id"]
        if firing["due_id"] not in firings and after != firing["after_id"]:
            change_row(conn, schedule_due, firing, {"after_id": after})
    return [event_of(row, [{**firing, **failed} for firing in firings.values()], now)]


def note(
    conn: Connection, row: dict[Any, Any], until: datetime, now: datetime
) -> tuple[NotedFirings, list[Row]]:
    """Write a firing for each due time without one, from the last check until ``until``, at most
    1,000 at a time.

    Return the numbers of new firings and the events to append.
    """
    unfired, last = unfired_times(conn, row, until)
    paused_at = row["paused_at"]
    firings = []
    for due_at in unfired:
        paused = paused_at is not None and due_at >= paused_at
        why = (Decision.PAUSED, row["pause_reason"]) if paused else (Decision.MISSED, UNFIRED)
        firings.append(new_row(row, due_at, now, *why))
    if firings:
        conn.execute(insert(schedule_due), firings)
    until = last or until
    if until > row["checked_until"]:
        change_row(conn, schedule, row, {"checked_until": until})
        row["checked_until"] = until
    missed = [firing for firing in firings if firing["decision"] == Decision.MISSED]
    events = [event_of(row, missed, now)] if missed else []
    return NotedFirings(len(missed), len(firings) - len(missed), last is not None), events


def unfired_times(
    conn: Connection, row: Row, until: datetime
) -> tuple[list[datetime], datetime | None]:
    """Return the due times since the last check that have no firing, among the first 1,000 due
    times.

    The second value is the last examined due time, or ``None`` if there are no more due times until
    ``until``.
    """
    due = list(itertools.islice(spec_of(row).due_times(row["checked_until"], until), _NOTED_MAX))
    if not due:
        return [], None
    window = (_d.due_at >= due[0], _d.due_at <= due[-1])
    query = select(_d.due_at).where(_d.schedule_id == row["schedule_id"], *window)
    known = set(conn.execute(query).scalars())
    return [at for at in due if at not in known], due[-1] if len(due) == _NOTED_MAX else None


def event_of(row: Row, firings: Sequence[Row], now: datetime) -> Row:
    """Return the event about these firings, which all have the same decision.

    The result is empty if this decision has no event.
    """
    first = firings[0]
    last = firings[-1]
    decision = Decision(firings[0]["decision"])
    if decision not in _EVENTS:
        return {}
    names = ("schedule_id", "revision", "decision", "reason", "lateness_ms")
    body = {name: first[name] for name in names}
    for name, value in (("due_at", first["due_at"]), ("last_due_at", last["due_at"])):
        body[name] = value.astimezone(UTC).isoformat()
    kind = TargetKind(first["target_kind"])
    crawler = (
        (row["definition"].get(kind.value) or {}).get("crawler") if kind is TargetKind.RUN else None
    )
    body |= {
        "name": row["name"],
        "count": len(firings),
        "kind": kind.value,
        "crawler": crawler,
        "project": row["project"],
    }
    # A due time identifies a firing of its schedule, in this database and in any other.
    about = {
        "subject": schedule_subject(row["name"]),
        "uid": f"{first['due_at'].astimezone(UTC):%Y%m%dT%H%M%SZ}",
    }
    return {**about, "at": now, "type": _EVENTS[decision], "attempt": row["revision"], "body": body}


def check_seen(conn: Connection, schedule_id: int, seen: datetime) -> None:
    """Raise ``NotInThisState`` if a person requested a due time after ``seen``."""
    mine = (_d.schedule_id == schedule_id, _d.due_at > seen, _d.asked_by.is_not(None))
    found = conn.execute(
        select(_d.due_at, _d.asked_by).where(*mine).order_by(_d.due_at.desc()).limit(1)
    ).one_or_none()
    if found is not None:
        what = (
            f"{found.asked_by} requested the due time {due_text(found.due_at)} after you loaded "
            "the schedule"
        )
        raise NotInThisState(f"Nothing was started: {what}. Load the schedule again first.")


def find(conn: Connection, *which: ColumnElement[bool]) -> dict[Any, Any] | None:
    """Return the one firing that meets these conditions, or ``None`` if there is none."""
    row = conn.execute(select(schedule_due).where(*which)).mappings().one_or_none()
    return None if row is None else dict(row)


def at(conn: Connection, row: Row, due_at: datetime) -> dict[Any, Any] | None:
    """Return the firing for this due time of a schedule, or ``None`` if there is no such firing
    yet.
    """
    return find(conn, _d.schedule_id == row["schedule_id"], _d.due_at == due_at)


def take(conn: Connection, firing: Mapping[Any, Any], request_key: str) -> None:
    """Record that the request with this key requested this firing.

    Raises ``NotInThisState`` if another request did.
    """
    if firing["request_key"] is not None:
        at = due_text(firing["due_at"])
        raise NotInThisState(
            f"Another request has started the due time {at}; send your request again a second later"
        )
    change_row(conn, schedule_due, firing, {"request_key": request_key})


def previous(conn: Connection, schedule_id: int) -> Row | None:
    """Return the last decided firing that starts a target, or ``None`` if there is none."""
    found: list[Row] = []
    for decision in BEGINS:  # one query per decision, so that each can use an index
        mine = select(schedule_due).where(_d.schedule_id == schedule_id, _d.decision == decision)
        found += conn.execute(mine.order_by(_d.decided_at.desc()).limit(1)).mappings().all()
    last: Row | None = max(found, key=lambda firing: firing["decided_at"], default=None)
    return last


def target_status(conn: Connection, firing: Row) -> str | None:
    """Return the status of a firing's target, or ``None`` if the target no longer exists."""
    key, state, _ = _TARGETS[TargetKind(firing["target_kind"])]
    found: str | None = conn.execute(
        select(state).where(key == firing["target_id"])
    ).scalar_one_or_none()
    return found


def has_failed(conn: Connection, firing: Row) -> bool:
    """Return whether a firing started nothing, or its target ended badly without being stopped by a
    person.
    """
    if firing["decision"] == Decision.FAILED or firing["target_id"] is None:
        return bool(firing["decision"] == Decision.FAILED)
    key, state, stopped = _TARGETS[TargetKind(firing["target_kind"])]
    found = conn.execute(select(state, stopped).where(key == firing["target_id"])).one_or_none()
    return found is not None and found[0] in OVER - GOOD and not found[1]


def is_live(conn: Connection, firing: Row) -> bool:
    """Return whether the target of a firing has not ended yet.

    A target that has not started also counts as live.
    """
    if not Decision(firing["decision"]).begins:
        return False
    if firing["target_id"] is None:
        return True
    status = target_status(conn, firing)
    return status is not None and status not in OVER


def status_column() -> Any:
    """Return a column with the status of the target, for lists of firings."""
    whens = [
        (
            _d.target_kind == kind,
            select(state).where(key == _d.target_id).correlate(schedule_due).scalar_subquery(),
        )
        for kind, (key, state, _) in _TARGETS.items()
    ]
    return case(*whens).label("status")


def target_of(firing: Row) -> TargetRef | None:
    """Return the target that the firing started, or ``None`` if no target has started yet."""
    return (
        None
        if firing["target_id"] is None
        else TargetRef(TargetKind(firing["target_kind"]), firing["target_id"])
    )


def due_row(firing: Row, name: str) -> DueRow:
    """Return the firing as the value that the port defines."""
    return made(
        DueRow,
        firing,
        name=name,
        decision=Decision(firing["decision"]),
        target=target_of(firing),
        status=firing.get("status"),
    )


# --- retention ------------------------------------------------------------------------------------


def _firing_stays(row: Row, owner: Stays | None, before: datetime) -> Stays | None:
    live = row["target_id"] is None or (row["status"] is not None and row["status"] not in OVER)
    return due_stays(row["decision"] in BEGINS, live, row["decided_at"], before)


RETENTION = FeatureRetention(
    sources=(
        Source(
            schedule_due,
            columns=(_d.decision, _d.target_id, _d.decided_at, status_column()),
            rule=_firing_stays,
            # A person may have requested the due time in the meantime.
            still=lambda before: (_d.decided_at < before,),
        ),
    )
)
