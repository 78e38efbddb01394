"""Schedules, and the line that each due time has."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, and_, case, func, insert, or_, select, update

from crawler_lifecycle.adapters.database.schema.row_validation import check
from crawler_lifecycle.adapters.database.schema.rows import Row
from crawler_lifecycle.adapters.database.schema.tables import graph, manager, run_history, schedule, schedule_due
from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.errors import NotInThisState, RowUnreadable, RunNotFound
from crawler_lifecycle.domain.graph.spec import GraphState
from crawler_lifecycle.domain.names import EVENT_SCHEDULE_MISSED, EVENT_SCHEDULE_SKIPPED, schedule_subject
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.schedules.decision import (
    CAUGHT_UP_S,
    Circumstances,
    Decision,
    decide,
    gave_way,
    too_many_failures,
)
from crawler_lifecycle.domain.schedules.definition import Overlap, ScheduleSpec, TargetKind, due_text, kind_of
from crawler_lifecycle.ports.store.schedules import (
    DueRow,
    Noted,
    PreviousTarget,
    ScheduleCounts,
    ScheduleRow,
    TargetRef,
)

from .named_rows import definition_of, locked_row, needed_row, put_row
from .runs.additions import check_request_id
from .unit_of_work import StorePart, insert_event

BEGINS = [one.value for one in Decision if one.begins]
_SCHEDULE = tuple(ScheduleRow.__dataclass_fields__)
_OWN = tuple(name for name in DueRow.__dataclass_fields__ if name in schedule_due.c and name != "decision")
_s, _d = schedule.c, schedule_due.c
#: How each kind of target stands: its table, its key, its state; the states after an end, and those of a failure.
_TARGETS: Mapping[TargetKind, tuple[Any, Any, Any]] = {
    TargetKind.RUN: (run_history, run_history.c.run_id, run_history.c.status),
    TargetKind.MANAGER: (manager, manager.c.manager_id, manager.c.status),
    TargetKind.GRAPH: (graph, graph.c.graph_id, graph.c.state),
}
OVER = {one.value for one in RunStatus if one.terminal} | {one.value for one in GraphState if one.final}
_GOOD = {RunStatus.COMPLETED.value, GraphState.COMPLETED.value}
#: Of a schedule that has most of the lines MySQL reads and sorts all of them otherwise.
_BY_DUE = "FORCE INDEX (uq_schedule_due_schedule_id_due_at)"
_UNFIRED = "Temporal did not fire; Backfill begins it (crawlctl schedule backfill)"
#: Lines of one statement, and of one transaction where a worker looks back.
_NOTED_MAX = 1000
#: How far a clock may be behind Temporal's: what lies further ahead is not due yet.
_AHEAD = timedelta(hours=1)


def spec_of(row: Row) -> ScheduleSpec:
    """The definition of a row. Raises ``RowUnreadable``."""
    return definition_of(schedule, row, ScheduleSpec.read)


class SqlSchedules(StorePart):
    """``ScheduleStore``."""

    # --- definitions ---

    def put_schedule(
        self, name: str, definition: Mapping[str, Any], requested_by: str | None
    ) -> tuple[ScheduleRow, bool]:
        return put_row(self._db, schedule, name, lambda conn: self._put(conn, name, definition, requested_by))

    def _put(
        self, conn: Connection, name: str, definition: Mapping[str, Any], requested_by: str | None
    ) -> tuple[ScheduleRow, bool]:
        now, found, tell = self._clock(), locked_row(conn, schedule, name, deleted=True), list[Row]()
        new = {"definition": dict(definition), "requested_by": requested_by, "updated_at": now}
        if found is None:
            empty = {"revision": 1, "failures_after": 0, "checked_until": now, "created_at": now}
            conn.execute(insert(schedule).values(name=name, **empty, **new))
        elif found["definition"] == new["definition"] and found["deleted_at"] is None:
            return _schedule(found), False
        else:
            new |= {"revision": found["revision"] + 1, "ended_at": None, "deleted_at": None, "checked_until": now}
            if found["deleted_at"] is None:
                # What was due until now was due by the definition of until now.
                tell = _note_all(conn, found, now)
            else:
                new |= {"paused_at": None, "pause_reason": None, "told": None}
            conn.execute(update(schedule).where(_s.schedule_id == found["schedule_id"]).values(**new))
        row = locked_row(conn, schedule, name, deleted=True)
        assert row is not None, "it was written in this transaction"
        _tell(conn, tell)
        return _schedule(row), True

    def pause_schedule(self, name: str, reason: str | None, at: datetime | None = None) -> ScheduleRow:
        with self._db.writing() as conn:
            row = needed_row(conn, schedule, name)
            if (row["paused_at"] is None) == (reason is None):
                return _schedule(row)
            now, tell = self._clock(), list[Row]()
            values: dict[str, Any] = {"pause_reason": reason, "updated_at": now}
            values["paused_at"] = None if reason is None else at or now
            if reason is None:
                tell = _note_all(conn, row, now)
                newest = select(_d.due_id).where(_d.schedule_id == row["schedule_id"]).order_by(_d.due_id.desc())
                values["failures_after"] = conn.execute(newest.limit(1)).scalar_one_or_none() or 0
            conn.execute(update(schedule).where(_s.schedule_id == row["schedule_id"]).values(**values))
            _tell(conn, tell)
            return _schedule({**row, **values})

    def delete_schedule(self, name: str) -> bool:
        with self._db.writing() as conn:
            row, now = locked_row(conn, schedule, name), self._clock()
            if row is None:
                return False
            tell = _note_all(conn, row, now)
            mine = _s.schedule_id == row["schedule_id"]
            conn.execute(update(schedule).where(mine).values(deleted_at=now, updated_at=now))
            _tell(conn, tell)
            return True

    def told_schedule(
        self, schedule_id: int, told: int | None, *, trouble: str | None, ended_at: datetime | None
    ) -> None:
        values = {"told": told, "trouble": trouble, "ended_at": ended_at}
        with self._db.writing() as conn:
            conn.execute(update(schedule).where(_s.schedule_id == schedule_id).values(**values))

    def get_schedule(self, name: str) -> ScheduleRow | None:
        rows = self._rows(select(schedule).where(_s.name == name))
        # MySQL ignores spaces at the end.
        return _schedule(rows[0]) if rows and rows[0]["name"] == name else None

    def list_schedules(self, after_id: int = 0, limit: int = 100, *, deleted: bool = False) -> list[ScheduleRow]:
        query = select(schedule).where(_s.schedule_id > after_id).order_by(_s.schedule_id).limit(limit)
        return [_schedule(row) for row in self._rows(query if deleted else query.where(_s.deleted_at.is_(None)))]

    def count_schedules(self, before: datetime) -> ScheduleCounts:
        there = _s.deleted_at.is_(None)
        untold = and_(there, or_(_s.told.is_(None), _s.told < _s.revision)) | and_(~there, _s.told.is_not(None))
        asked = (there & _s.paused_at.is_(None), there & _s.paused_at.is_not(None), untold & (_s.updated_at < before))
        with self._db.reading() as conn:
            found = conn.execute(select(*(func.sum(case((one, 1), else_=0)) for one in asked))).one()
        return ScheduleCounts(*(int(n or 0) for n in found))

    # --- due times ---

    def decide_due(self, name: str, due_at: datetime, revision: int | None = None) -> DueRow | None:
        with self._db.writing() as conn:
            row = locked_row(conn, schedule, name)
            if row is None:
                return None
            before = _line(conn, row["schedule_id"], due_at)
            if before is not None and before["reason"] != _UNFIRED:
                return _due(before, name)
            spec, now = spec_of(row), self._clock()
            asked = before is None and not spec.is_due(due_at)
            # At no time of this definition Temporal fires by itself: a person had it do so there.
            if asked and (revision != row["revision"] or spec.fires(due_at)):
                return None
            if due_at > now + _AHEAD:
                return None
            paused = row["pause_reason"] if row["paused_at"] is not None else None
            if paused is None:
                paused = self._failing(conn, row, spec)
            previous = _previous(conn, row["schedule_id"])
            late = max(0.0, (now - due_at).total_seconds())
            live = previous is not None and _live(conn, previous)
            allowed = spec.catch_up_s + spec.jitter_s
            later = None
            caught_up = before is None and not asked and late > spec.jitter_s + CAUGHT_UP_S
            if caught_up and spec.overlap is Overlap.STOP_PREVIOUS:
                later = next(spec.due_times(due_at, now), None)
            again = None if later is None else due_text(later)
            decision, reason = decide(Circumstances(late, allowed, spec.overlap, live, paused, again))
            after = previous["due_id"] if previous is not None and decision is Decision.QUEUED else None
            values = _new_line(row, due_at, _behind(previous, now), decision, reason, after_id=after)
            line = _written(conn, row, values, before)
            if before is None or decision is not Decision.MISSED:  # else it was told when its line was written
                _tell(conn, [_event(row, [values], now)])
            return line

    def _failing(self, conn: Connection, row: Row, spec: ScheduleSpec) -> str | None:
        """Pause a schedule whose targets fail one after the other; why."""
        if spec.pause_after_failures is None:
            return None
        failed: list[bool] = []
        newest = (
            select(schedule_due)
            .where(_d.schedule_id == row["schedule_id"], _d.due_id > row["failures_after"])
            .where(_d.decision.in_([*BEGINS, Decision.FAILED.value]))
            .order_by(_d.due_id.desc())
            .limit(spec.pause_after_failures)
        )
        for line in conn.execute(newest).mappings().all():
            status = None if line["target_id"] is None else _status(conn, line)
            failed.append(line["decision"] == Decision.FAILED or (status in OVER and status not in _GOOD))
        why = too_many_failures(failed, spec.pause_after_failures)
        if why is not None:
            values = {"paused_at": self._clock(), "pause_reason": why}
            conn.execute(update(schedule).where(_s.schedule_id == row["schedule_id"]).values(**values))
        return why

    def asked_due(self, name: str, request_key: str) -> DueRow | None:
        check_request_id(request_key)
        query = select(schedule_due, _s.name).join(schedule, _s.schedule_id == _d.schedule_id)
        rows = self._rows(query.where(_s.name == name, _d.request_key == request_key))
        return _due(rows[0], name) if rows else None

    def ask_due(
        self,
        name: str,
        due_at: Sequence[datetime],
        asked_by: str,
        reason: str,
        seen: datetime | None = None,
        request_key: str | None = None,
    ) -> list[DueRow]:
        with self._db.writing() as conn:
            row, now, told = needed_row(conn, schedule, name), self._clock(), list[DueRow]()
            if request_key is not None and (before := _asked(conn, row["schedule_id"], request_key)) is not None:
                return [_due(before, name)]  # whatever was asked for since
            if seen is not None:
                _check_seen(conn, row["schedule_id"], seen)
            spec, previous = spec_of(row), _previous(conn, row["schedule_id"])
            for at in sorted(due_at):
                line = _line(conn, row["schedule_id"], at)
                if line is not None and request_key is not None:
                    _take(conn, line, request_key)
                if line is not None and Decision(line["decision"]).begins:
                    told.append(_due(line, name))
                    continue
                # What a person asks for is never left out: it waits, unless the schedule allows it beside the others.
                live = previous is not None and _live(conn, previous)
                overlap = Circumstances(0, 0, spec.overlap, live, asked=True)
                decision = decide(overlap)[0]
                decision = Decision.QUEUED if decision is Decision.SKIPPED_OVERLAP else decision
                after = previous["due_id"] if previous is not None and decision is Decision.QUEUED else None
                values = _new_line(row, at, _behind(previous, now), decision, reason, after_id=after)
                values |= {"asked_by": asked_by} | ({} if request_key is None else {"request_key": request_key})
                if line is not None:
                    values["reason"] = f"{reason}; it was {line['decision']}: {line['reason']}"
                told.append(_written(conn, row, values, line))
                previous = _line(conn, row["schedule_id"], at)
            return told

    def unfired_due(self, schedule_id: int, until: datetime) -> list[datetime]:
        with self._db.reading() as conn:
            row = conn.execute(select(schedule).where(_s.schedule_id == schedule_id)).mappings().one()
            return _unfired(conn, row, until)[0]

    def note_due(self, schedule_id: int, until: datetime) -> Noted:
        with self._db.writing() as conn:
            query = select(schedule).where(_s.schedule_id == schedule_id).with_for_update()
            row = conn.execute(query).mappings().one_or_none()
            if row is None or row["deleted_at"] is not None:
                return Noted()
            check(schedule, row, graver=True)
            noted, tell = _note(conn, dict(row), until, self._clock())
            _tell(conn, tell)
            return noted

    def get_due(self, due_id: int) -> DueRow:
        query = select(schedule_due, _s.name).join(schedule, _s.schedule_id == _d.schedule_id)
        rows = self._rows(query.where(_d.due_id == due_id)) if 0 < due_id <= ID_MAX else []
        if not rows:
            raise RunNotFound(f"There is no due time {due_id}")
        return _due(rows[0], rows[0]["name"])

    def previous_target(self, due_id: int) -> PreviousTarget | None:
        with self._db.reading() as conn:
            after = conn.execute(select(_d.after_id).where(_d.due_id == due_id)).scalar_one_or_none()
            line = None if after is None else _by_id(conn, after)
            if line is None:
                return None
            return PreviousTarget(line["due_id"], _live(conn, line), _target(line))

    def give_way(self, due_id: int) -> bool:
        with self._db.writing() as conn:
            of_line = select(_d.schedule_id).where(_d.due_id == due_id).scalar_subquery()
            query = select(schedule).where(_s.schedule_id == of_line).with_for_update()
            row, line = conn.execute(query).mappings().one(), _by_id(conn, due_id)
            assert line is not None, "it has a schedule"
            open_line = line["decision"] == Decision.QUEUED and line["target_id"] is None and line["asked_by"] is None
            if not open_line or spec_of(row).overlap is not Overlap.STOP_PREVIOUS:
                return False
            mine = (_d.schedule_id == row["schedule_id"], _d.due_at > line["due_at"], _d.asked_by.is_(None))
            later = conn.execute(select(func.min(_d.due_at)).where(*mine, _d.decision.in_(BEGINS))).scalar_one()
            if later is None:
                return False
            values = {"decision": Decision.SKIPPED_OVERLAP.value, "reason": gave_way(due_text(later))}
            conn.execute(update(schedule_due).where(_d.due_id == due_id).values(**values))
            queued = (_d.schedule_id == row["schedule_id"], _d.decision == Decision.QUEUED.value)
            conn.execute(update(schedule_due).where(*queued, _d.after_id == due_id).values(after_id=line["after_id"]))
            _tell(conn, [_event(row, [{**line, **values}], self._clock())])
            return True

    def due_begun(self, due_id: int, target: TargetRef) -> None:
        values = {"target_kind": target.kind.value, "target_id": target.id, "begun_at": self._clock()}
        with self._db.writing() as conn:
            conn.execute(update(schedule_due).where(_d.due_id == due_id, _d.target_id.is_(None)).values(**values))

    def due_failed(self, due_id: int, reason: str) -> None:
        with self._db.writing() as conn:
            query = select(schedule).join(schedule_due, _s.schedule_id == _d.schedule_id).where(_d.due_id == due_id)
            row = conn.execute(query).mappings().one()
            open_line = (_d.due_id == due_id, _d.target_id.is_(None), _d.decision.in_(BEGINS))
            failed = {"decision": Decision.FAILED.value, "reason": reason}
            if conn.execute(update(schedule_due).where(*open_line).values(**failed)).rowcount:
                line = conn.execute(select(schedule_due).where(_d.due_id == due_id)).mappings().one()
                _tell(conn, [_event(row, [line], self._clock())])

    def due_to_begin(self, until: datetime, after_id: int = 0, limit: int = 100) -> list[DueRow]:
        found: list[Row] = []
        for decision in BEGINS:  # each for itself, by the index
            query = select(schedule_due, _s.name).join(schedule, _s.schedule_id == _d.schedule_id)
            query = query.where(_d.decision == decision, _d.target_id.is_(None), _d.due_id > after_id)
            found += self._rows(query.where(_d.decided_at < until).order_by(_d.due_id).limit(limit))
        found.sort(key=lambda row: row["due_id"])
        return [_due(row, row["name"]) for row in found[:limit]]

    def list_due(
        self, schedule_id: int, before: datetime | None = None, limit: int = 100, decision: Decision | None = None
    ) -> list[DueRow]:
        query = select(schedule_due, _s.name, status_column()).with_hint(schedule_due, _BY_DUE, "mysql")
        query = query.join(schedule, _s.schedule_id == _d.schedule_id).where(_d.schedule_id == schedule_id)
        if before is not None:
            query = query.where(_d.due_at < before)
        if decision is not None:
            query = query.where(_d.decision == decision.value)
        return [_due(row, row["name"]) for row in self._rows(query.order_by(_d.due_at.desc()).limit(limit))]


def _schedule(row: Row) -> ScheduleRow:
    return ScheduleRow(**{name: row[name] for name in _SCHEDULE})


def _new_line(
    row: Row, due_at: datetime, now: datetime, decision: Decision, reason: str | None, *, after_id: int | None = None
) -> dict[str, Any]:
    return {
        "schedule_id": row["schedule_id"],
        "revision": row["revision"],
        "target_kind": kind_of(row["definition"]).value,
        "due_at": due_at.astimezone(UTC),
        "decision": decision.value,
        "reason": reason,
        "lateness_ms": max(0, int((now - due_at) / timedelta(milliseconds=1))),
        "decided_at": now,
        "after_id": after_id,
    }


def _written(conn: Connection, row: Row, values: Mapping[str, Any], before: Row | None) -> DueRow:
    """The line with these values: a new one, or ``before`` with another end."""
    if before is not None:
        conn.execute(update(schedule_due).where(_d.due_id == before["due_id"]).values(**values))
    else:
        conn.execute(insert(schedule_due).values(**values))
    line = _line(conn, row["schedule_id"], values["due_at"])
    assert line is not None, "it was written in this transaction"
    return _due(line, row["name"])


def _note_all(conn: Connection, row: dict[Any, Any], now: datetime) -> list[Row]:
    """Give all due times up to now a line, before what is due changes; what is to be told."""
    told, more = list[Row](), True
    with suppress(RowUnreadable):  # what nobody can read was never due, and is about to be given anew or to go
        while more:
            noted, tell = _note(conn, row, now, now)
            told, more = told + tell, noted.more
    return told


def _note(conn: Connection, row: dict[Any, Any], until: datetime, now: datetime) -> tuple[Noted, list[Row]]:
    """Write a line for each due time from the last check on, up to ``until``, that has none; some at once."""
    unfired, last = _unfired(conn, row, until)
    paused_at, lines = row["paused_at"], []
    for at in unfired:
        paused = paused_at is not None and at >= paused_at
        why = (Decision.PAUSED, row["pause_reason"]) if paused else (Decision.MISSED, _UNFIRED)
        lines.append(_new_line(row, at, now, *why))
    if lines:
        conn.execute(insert(schedule_due), lines)
    until = last or until
    if until > row["checked_until"]:
        conn.execute(update(schedule).where(_s.schedule_id == row["schedule_id"]).values(checked_until=until))
        row["checked_until"] = until
    missed = [line for line in lines if line["decision"] == Decision.MISSED]
    tell = [_event(row, missed, now)] if missed else []
    return Noted(len(missed), len(lines) - len(missed), last is not None), tell


def _unfired(conn: Connection, row: Row, until: datetime) -> tuple[list[datetime], datetime | None]:
    """Due times since the last check that have no line; and the last one looked at, where there may be more."""
    due = list(itertools.islice(spec_of(row).due_times(row["checked_until"], until), _NOTED_MAX))
    if not due:
        return [], None
    window = (_d.due_at >= due[0], _d.due_at <= due[-1])
    query = select(_d.due_at).where(_d.schedule_id == row["schedule_id"], *window)
    known = set(conn.execute(query).scalars())
    return [at for at in due if at not in known], due[-1] if len(due) == _NOTED_MAX else None


_EVENTS = {
    Decision.MISSED: EVENT_SCHEDULE_MISSED,
    Decision.FAILED: EVENT_SCHEDULE_MISSED,
    Decision.SKIPPED_OVERLAP: EVENT_SCHEDULE_SKIPPED,
}


def _event(row: Row, lines: Sequence[Row], now: datetime) -> Row:
    """The event that tells of these lines, which have one decision; empty where nobody is told of it."""
    first, last, decision = lines[0], lines[-1], Decision(lines[0]["decision"])
    if decision not in _EVENTS:
        return {}
    names = ("schedule_id", "revision", "decision", "reason", "lateness_ms")
    body = {name: first[name] for name in names}
    for name, value in (("due_at", first["due_at"]), ("last_due_at", last["due_at"])):
        body[name] = value.astimezone(UTC).isoformat()
    kind = TargetKind(first["target_kind"])
    crawler = (row["definition"].get(kind.value) or {}).get("crawler") if kind is TargetKind.RUN else None
    body |= {"name": row["name"], "count": len(lines), "kind": kind.value, "crawler": crawler}
    return {
        "subject": schedule_subject(row["name"]),
        # A due time is who it is, in this database and every other.
        "subject_uid": f"{first['due_at'].astimezone(UTC):%Y%m%dT%H%M%SZ}",
        "run_id": None,
        "attempt": row["revision"],
        "type": _EVENTS[decision],
        "event_key": None,
        "body": body,
        "created_at": now,
    }


def _tell(conn: Connection, events: Sequence[Row]) -> None:
    """Append these events. Nothing may follow it in the transaction."""
    for event in events:
        if event:
            insert_event(conn, event)


def _check_seen(conn: Connection, schedule_id: int, seen: datetime) -> None:
    """Raise ``NotInThisState`` when a person asked for a due time behind ``seen``."""
    mine = (_d.schedule_id == schedule_id, _d.due_at > seen, _d.asked_by.is_not(None))
    found = conn.execute(select(_d.due_at, _d.asked_by).where(*mine).order_by(_d.due_at.desc()).limit(1)).one_or_none()
    if found is not None:
        what = f"{found.asked_by} had it be due at {due_text(found.due_at)} since it was looked at"
        raise NotInThisState(f"Not carried out: {what}. Look at it again first.")


def _line(conn: Connection, schedule_id: int, due_at: datetime) -> dict[Any, Any] | None:
    query = select(schedule_due).where(_d.schedule_id == schedule_id, _d.due_at == due_at)
    row = conn.execute(query).mappings().one_or_none()
    return None if row is None else dict(row)


def _asked(conn: Connection, schedule_id: int, request_key: str) -> dict[Any, Any] | None:
    query = select(schedule_due).where(_d.schedule_id == schedule_id, _d.request_key == request_key)
    row = conn.execute(query).mappings().one_or_none()
    return None if row is None else dict(row)


def _take(conn: Connection, line: Mapping[Any, Any], request_key: str) -> None:
    """Have this line be the one that a request asked for. Raises ``NotInThisState`` when another one did."""
    if line["request_key"] is not None:
        at = due_text(line["due_at"])
        raise NotInThisState(f"Another request had it be due at {at}; send this again a second later")
    conn.execute(update(schedule_due).where(_d.due_id == line["due_id"]).values(request_key=request_key))


def _by_id(conn: Connection, due_id: int) -> Row | None:
    return conn.execute(select(schedule_due).where(_d.due_id == due_id)).mappings().one_or_none()


def _previous(conn: Connection, schedule_id: int) -> Row | None:
    """The line that was decided last of those that begin something."""
    found: list[Row] = []
    for decision in BEGINS:  # each for itself, by the index
        mine = select(schedule_due).where(_d.schedule_id == schedule_id, _d.decision == decision)
        found += conn.execute(mine.order_by(_d.decided_at.desc()).limit(1)).mappings().all()
    last: Row | None = max(found, key=lambda line: line["decided_at"], default=None)
    return last


def _behind(previous: Row | None, now: datetime) -> datetime:
    """When a line is decided: after the one before, whatever the clocks of two workers say."""
    return now if previous is None else max(now, previous["decided_at"] + timedelta(microseconds=1))


def _status(conn: Connection, line: Row) -> str | None:
    """How the target of a line stands; ``None``: it is not there any more."""
    _, key, state = _TARGETS[TargetKind(line["target_kind"])]
    found: str | None = conn.execute(select(state).where(key == line["target_id"])).scalar_one_or_none()
    return found


def _live(conn: Connection, line: Row) -> bool:
    """Whether the target of a line has no verdict yet. What is still to be begun has none."""
    if not Decision(line["decision"]).begins:
        return False
    if line["target_id"] is None:
        return True
    status = _status(conn, line)
    return status is not None and status not in OVER


def status_column() -> Any:
    """How the target stands, for lists."""
    whens = [
        (
            _d.target_kind == kind.value,
            select(state).where(key == _d.target_id).correlate(schedule_due).scalar_subquery(),
        )
        for kind, (_, key, state) in _TARGETS.items()
    ]
    return case(*whens).label("status")


def _target(line: Row) -> TargetRef | None:
    return None if line["target_id"] is None else TargetRef(TargetKind(line["target_kind"]), line["target_id"])


def _due(line: Row, name: str) -> DueRow:
    check(schedule_due, line, graver=True)
    return DueRow(
        **{field: line[field] for field in _OWN},
        name=name,
        decision=Decision(line["decision"]),
        target=_target(line),
        status=line.get("status"),
    )
