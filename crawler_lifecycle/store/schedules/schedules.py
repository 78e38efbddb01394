"""Schedules: their definitions, and the decisions about their due times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection, and_, case, func, insert, or_, select, update

from crawler_lifecycle.domain.bounds import ID_MAX, check_request_id
from crawler_lifecycle.domain.errors import RunNotFound
from crawler_lifecycle.domain.schedules.decision import (
    CAUGHT_UP_S,
    Circumstances,
    Decision,
    decide,
    gave_way,
    too_many_failures,
)
from crawler_lifecycle.domain.schedules.definition import Overlap, ScheduleSpec, due_text
from crawler_lifecycle.ports.schedules import DueRow, Noted, PreviousTarget, ScheduleCounts, ScheduleRow, TargetRef
from crawler_lifecycle.store.base.rows import Row, locked_row, made, needed_row
from crawler_lifecycle.store.base.unit import StorePart

from . import firings
from .tables import schedule, schedule_due

_s, _d = schedule.c, schedule_due.c
#: Of a schedule that has most of the firings MySQL reads and sorts all of them otherwise.
_BY_DUE = "FORCE INDEX (uq_schedule_due_schedule_id_due_at)"
#: Seconds by which a clock may be behind Temporal's: a time further ahead is not due yet.
_AHEAD = timedelta(hours=1)


class ScheduleStore(StorePart):
    """Schedules and their firings. A schedule's row is locked first."""

    # --- definitions ---

    def put_schedule(
        self, name: str, definition: Mapping[str, Any], requested_by: str | None
    ) -> tuple[ScheduleRow, bool]:
        """Make the schedule, or give it this definition; whether anything changed. A deleted one is there again.

        What was due until now has its firing first, by the definition of until now; the same before a pause ends, and
        before a deletion.
        """
        write = partial(self._put, name, definition, requested_by)
        return self._db.inserting(f"schedule {name!r}", write)

    def _put(
        self, name: str, definition: Mapping[str, Any], requested_by: str | None, conn: Connection
    ) -> tuple[ScheduleRow, bool]:
        now, found, tell = self._clock(), locked_row(conn, schedule, name, deleted=True), list[Row]()
        new = {"definition": dict(definition), "requested_by": requested_by, "updated_at": now}
        if found is None or found["deleted_at"] is not None:
            self._check_most(conn, schedule, _s.deleted_at.is_(None))
        if found is None:
            empty = {"revision": 1, "failures_after": 0, "checked_until": now, "created_at": now}
            conn.execute(insert(schedule).values(name=name, **empty, **new))
        elif found["definition"] == new["definition"] and found["deleted_at"] is None:
            return made(ScheduleRow, found), False
        else:
            new |= {"revision": found["revision"] + 1, "ended_at": None, "deleted_at": None, "checked_until": now}
            if found["deleted_at"] is None:
                # Due times until now belong to the former definition.
                tell = firings.note_all(conn, found, now)
            else:
                new |= {"paused_at": None, "pause_reason": None, "told": None}
            conn.execute(update(schedule).where(_s.schedule_id == found["schedule_id"]).values(**new))
        row = locked_row(conn, schedule, name, deleted=True)
        assert row is not None, "it was written in this transaction"
        firings.append_events(conn, tell)
        return made(ScheduleRow, row), True

    def pause_schedule(self, name: str, reason: str | None, at: datetime | None = None) -> ScheduleRow:
        """Pause it for this reason, or (``None``) resume it. ``at``: the time of the change. Raises ``RunNotFound``."""
        with self._db.writing() as conn:
            row = needed_row(conn, schedule, name)
            if (row["paused_at"] is None) == (reason is None):
                return made(ScheduleRow, row)
            now, tell = self._clock(), list[Row]()
            values: dict[str, Any] = {"pause_reason": reason, "updated_at": now}
            values["paused_at"] = None if reason is None else at or now
            if reason is None:
                tell = firings.note_all(conn, row, now)
                newest = select(_d.due_id).where(_d.schedule_id == row["schedule_id"]).order_by(_d.due_id.desc())
                values["failures_after"] = conn.execute(newest.limit(1)).scalar_one_or_none() or 0
            conn.execute(update(schedule).where(_s.schedule_id == row["schedule_id"]).values(**values))
            firings.append_events(conn, tell)
            return made(ScheduleRow, {**row, **values})

    def delete_schedule(self, name: str) -> bool:
        """Have it deleted; whether it was there. Its due times stay on record."""
        with self._db.writing() as conn:
            row, now = locked_row(conn, schedule, name), self._clock()
            if row is None:
                return False
            tell = [*firings.note_all(conn, row, now), *firings.drop_queued(conn, row, now)]
            mine = _s.schedule_id == row["schedule_id"]
            conn.execute(update(schedule).where(mine).values(deleted_at=now, updated_at=now))
            firings.append_events(conn, tell)
            return True

    def told_schedule(
        self, schedule_id: int, told: int | None, *, trouble: str | None, ended_at: datetime | None
    ) -> None:
        """Record the revision in Temporal, its error, and since when it has no further due times."""
        values = {"told": told, "trouble": trouble, "ended_at": ended_at}
        with self._db.writing() as conn:
            conn.execute(update(schedule).where(_s.schedule_id == schedule_id).values(**values))

    def get_schedule(self, name: str) -> ScheduleRow | None:
        """The schedule of this name, deleted ones too."""
        rows = self._rows(select(schedule).where(_s.name == name))
        # MySQL ignores spaces at the end.
        return made(ScheduleRow, rows[0]) if rows and rows[0]["name"] == name else None

    def list_schedules(self, after_id: int = 0, limit: int = 100, *, deleted: bool = False) -> list[ScheduleRow]:
        """Schedules behind ``after_id``, in the order in which they were made."""
        query = select(schedule).where(_s.schedule_id > after_id).order_by(_s.schedule_id).limit(limit)
        if not deleted:
            query = query.where(_s.deleted_at.is_(None))
        return [made(ScheduleRow, row) for row in self._rows(query)]

    def count_schedules(self, before: datetime) -> ScheduleCounts:
        """Count the schedules; ``untold`` counts those changed before then of which Temporal was not told."""
        there = _s.deleted_at.is_(None)
        untold = and_(there, or_(_s.told.is_(None), _s.told < _s.revision)) | and_(~there, _s.told.is_not(None))
        asked = (there & _s.paused_at.is_(None), there & _s.paused_at.is_not(None), untold & (_s.updated_at < before))
        with self._db.reading() as conn:
            found = conn.execute(select(*(func.sum(case((one, 1), else_=0)) for one in asked))).one()
        return ScheduleCounts(*(int(n or 0) for n in found))

    # --- due times ---

    def decide_due(self, name: str, due_at: datetime, revision: int | None = None) -> DueRow | None:
        """Decide what becomes of a due time, once: again, the firing that is there, also of a deleted schedule.

        ``revision``: of the definition by which Temporal fired. ``None``: no such schedule, or it is not due then.
        """
        with self._db.writing() as conn:
            row = locked_row(conn, schedule, name, deleted=True)
            before = None if row is None else firings.at(conn, row, due_at)
            if row is None or (row["deleted_at"] is not None and before is None):
                return None
            # What is on record decides, also when the schedule was deleted since.
            if before is not None and (before["reason"] != firings.UNFIRED or row["deleted_at"] is not None):
                return firings.due_row(before, name)
            spec, now = firings.spec_of(row), self._clock()
            asked = before is None and not spec.is_due(due_at)
            # Temporal never fires at this time by itself: a person triggered it there.
            if asked and (revision != row["revision"] or spec.fires(due_at)):
                return None
            if due_at > now + _AHEAD:
                return None
            paused = row["pause_reason"] if row["paused_at"] is not None else None
            if paused is None:
                paused = self._failing(conn, row, spec)
            previous = firings.previous(conn, row["schedule_id"])
            late = max(0.0, (now - due_at).total_seconds())
            live = previous is not None and firings.is_live(conn, previous)
            allowed = spec.catch_up_s + spec.jitter_s
            later = None
            caught_up = before is None and not asked and late > spec.jitter_s + CAUGHT_UP_S
            if caught_up and spec.overlap is Overlap.STOP_PREVIOUS:
                later = next(spec.due_times(due_at, now), None)
            again = None if later is None else due_text(later)
            decision, reason = decide(Circumstances(late, allowed, spec.overlap, live, paused, again))
            after = previous["due_id"] if previous is not None and decision is Decision.QUEUED else None
            values = firings.new_row(
                row, due_at, firings.decided_after(previous, now), decision, reason, after_id=after
            )
            firing = firings.written(conn, row, values, before)
            if before is None or decision is not Decision.MISSED:  # else it was told when its firing was written
                firings.append_events(conn, [firings.event_of(row, [values], now)])
            return firing

    def _failing(self, conn: Connection, row: Row, spec: ScheduleSpec) -> str | None:
        """Pause a schedule whose targets fail one after the other. Returns the reason."""
        if spec.pause_after_failures is None:
            return None
        failed: list[bool] = []
        newest = (
            select(schedule_due)
            .where(_d.schedule_id == row["schedule_id"], _d.due_id > row["failures_after"])
            .where(_d.decision.in_([*firings.BEGINS, Decision.FAILED.value]))
            .order_by(_d.due_id.desc())
            .limit(spec.pause_after_failures)
        )
        for firing in conn.execute(newest).mappings().all():
            status = None if firing["target_id"] is None else firings.target_status(conn, firing)
            failed.append(
                firing["decision"] == Decision.FAILED or (status in firings.OVER and status not in firings.GOOD)
            )
        why = too_many_failures(failed, spec.pause_after_failures)
        if why is not None:
            values = {"paused_at": self._clock(), "pause_reason": why}
            conn.execute(update(schedule).where(_s.schedule_id == row["schedule_id"]).values(**values))
        return why

    def asked_due(self, name: str, request_key: str) -> DueRow | None:
        """The firing that this request asked for, if it exists. Raises ``InvalidRequest``."""
        check_request_id(request_key)
        query = select(schedule_due, _s.name).join(schedule, _s.schedule_id == _d.schedule_id)
        rows = self._rows(query.where(_s.name == name, _d.request_key == request_key))
        return firings.due_row(rows[0], name) if rows else None

    def ask_due(
        self,
        name: str,
        due_at: Sequence[datetime],
        asked_by: str,
        reason: str,
        seen: datetime | None = None,
        request_key: str | None = None,
    ) -> list[DueRow]:
        """Have these due times begin, because a person asks: each that began nothing yet. Raises ``RunNotFound``.

        ``request_key``, with one due time: of the request, which sent again finds the firing that it asked for,
        whenever that is. ``NotInThisState`` when another request asked for the same second.

        ``seen``: the latest due time that this person saw a firing of. ``NotInThisState`` when somebody asked for a
        later one since.
        """
        with self._db.writing() as conn:
            row, now, told = needed_row(conn, schedule, name), self._clock(), list[DueRow]()
            of_request = (_d.schedule_id == row["schedule_id"], _d.request_key == request_key)
            if request_key is not None and (before := firings.find(conn, *of_request)) is not None:
                return [firings.due_row(before, name)]  # whatever was requested since
            if seen is not None:
                firings.check_seen(conn, row["schedule_id"], seen)
            spec, previous = firings.spec_of(row), firings.previous(conn, row["schedule_id"])
            for at in sorted(due_at):
                firing = firings.at(conn, row, at)
                if firing is not None and request_key is not None:
                    firings.take(conn, firing, request_key)
                if firing is not None and Decision(firing["decision"]).begins:
                    told.append(firings.due_row(firing, name))
                    continue
                # A requested firing is never skipped: it waits, unless the schedule allows it beside the others.
                live = previous is not None and firings.is_live(conn, previous)
                overlap = Circumstances(0, 0, spec.overlap, live, asked=True)
                decision = decide(overlap)[0]
                decision = Decision.QUEUED if decision is Decision.SKIPPED_OVERLAP else decision
                after = previous["due_id"] if previous is not None and decision is Decision.QUEUED else None
                values = firings.new_row(
                    row, at, firings.decided_after(previous, now), decision, reason, after_id=after
                )
                values |= {"asked_by": asked_by} | ({} if request_key is None else {"request_key": request_key})
                if firing is not None:
                    values["reason"] = f"{reason}; it was {firing['decision']}: {firing['reason']}"
                told.append(firings.written(conn, row, values, firing))
                previous = firings.at(conn, row, at)
            return told

    def unfired_due(self, schedule_id: int, until: datetime) -> list[datetime]:
        """Due times up to ``until`` that have no firing, a thousand at most."""
        with self._db.reading() as conn:
            row = conn.execute(select(schedule).where(_s.schedule_id == schedule_id)).mappings().one()
            return firings.unfired_times(conn, row, until)[0]

    def note_due(self, schedule_id: int, until: datetime) -> Noted:
        """Write a firing for each due time up to ``until`` that has none, some at once.

        They are ``paused`` where the schedule was, else ``missed``.
        """
        with self._db.writing() as conn:
            query = select(schedule).where(_s.schedule_id == schedule_id).with_for_update()
            row = conn.execute(query).mappings().one_or_none()
            if row is None or row["deleted_at"] is not None:
                return Noted()
            noted, tell = firings.note(conn, dict(row), until, self._clock())
            firings.append_events(conn, tell)
            return noted

    def get_due(self, due_id: int) -> DueRow:
        """The firing. Raises ``RunNotFound``."""
        query = select(schedule_due, _s.name).join(schedule, _s.schedule_id == _d.schedule_id)
        rows = self._rows(query.where(_d.due_id == due_id)) if 0 < due_id <= ID_MAX else []
        if not rows:
            raise RunNotFound(f"There is no due time {due_id}")
        return firings.due_row(rows[0], rows[0]["name"])

    def previous_target(self, due_id: int) -> PreviousTarget | None:
        """The target that a queued firing waits for; ``None``: it waits for nothing."""
        with self._db.reading() as conn:
            after = conn.execute(select(_d.after_id).where(_d.due_id == due_id)).scalar_one_or_none()
            firing = None if after is None else firings.find(conn, _d.due_id == after)
            if firing is None:
                return None
            return PreviousTarget(firing["due_id"], firings.is_live(conn, firing), firings.target_of(firing))

    def give_way(self, due_id: int) -> bool:
        """Return whether a queued firing gives way: it would be stopped at once for a later one. It is written down.

        It then begins nothing, and firings that wait for it wait for what it waited for.
        """
        with self._db.writing() as conn:
            of_line = select(_d.schedule_id).where(_d.due_id == due_id).scalar_subquery()
            query = select(schedule).where(_s.schedule_id == of_line).with_for_update()
            row, firing = conn.execute(query).mappings().one(), firings.find(conn, _d.due_id == due_id)
            assert firing is not None, "it has a schedule"
            waits = firing["decision"] == Decision.QUEUED and firing["target_id"] is None
            if not waits or firing["asked_by"] is not None or firings.spec_of(row).overlap is not Overlap.STOP_PREVIOUS:
                return False
            mine = (_d.schedule_id == row["schedule_id"], _d.due_at > firing["due_at"], _d.asked_by.is_(None))
            later = conn.execute(select(func.min(_d.due_at)).where(*mine, _d.decision.in_(firings.BEGINS))).scalar_one()
            if later is None:
                return False
            values = {"decision": Decision.SKIPPED_OVERLAP.value, "reason": gave_way(due_text(later))}
            conn.execute(update(schedule_due).where(_d.due_id == due_id).values(**values))
            queued = (_d.schedule_id == row["schedule_id"], _d.decision == Decision.QUEUED.value)
            conn.execute(update(schedule_due).where(*queued, _d.after_id == due_id).values(after_id=firing["after_id"]))
            firings.append_events(conn, [firings.event_of(row, [{**firing, **values}], self._clock())])
            return True

    def due_begun(self, due_id: int, target: TargetRef) -> None:
        """Its target exists. Again: nothing more."""
        values = {"target_kind": target.kind.value, "target_id": target.id, "begun_at": self._clock()}
        mine = (_d.due_id == due_id, _d.target_id.is_(None))
        with self._db.writing() as conn:
            # Its schedule may have been deleted while it was being begun.
            failed = update(schedule_due).where(*mine, _d.decision == Decision.FAILED.value)
            conn.execute(failed.values(decision=Decision.STARTED.value, reason=None))
            conn.execute(update(schedule_due).where(*mine).values(**values))

    def due_failed(self, due_id: int, reason: str) -> None:
        """Nothing can ever be begun for it. Again, or once something was begun: nothing more."""
        with self._db.writing() as conn:
            query = select(schedule).join(schedule_due, _s.schedule_id == _d.schedule_id).where(_d.due_id == due_id)
            row = conn.execute(query).mappings().one()
            still_open = (_d.due_id == due_id, _d.target_id.is_(None), _d.decision.in_(firings.BEGINS))
            failed = {"decision": Decision.FAILED.value, "reason": reason}
            if conn.execute(update(schedule_due).where(*still_open).values(**failed)).rowcount:
                firing = conn.execute(select(schedule_due).where(_d.due_id == due_id)).mappings().one()
                firings.append_events(conn, [firings.event_of(row, [firing], self._clock())])

    def due_to_begin(self, until: datetime, after_id: int = 0, limit: int = 100) -> list[DueRow]:
        """Firings after ``after_id``, decided before ``until``, whose target is still to be begun, by their id."""
        found: list[Row] = []
        for decision in firings.BEGINS:  # each for itself, by the index
            query = select(schedule_due, _s.name).join(schedule, _s.schedule_id == _d.schedule_id)
            query = query.where(_d.decision == decision, _d.target_id.is_(None), _d.due_id > after_id)
            found += self._rows(query.where(_d.decided_at < until).order_by(_d.due_id).limit(limit))
        found.sort(key=lambda row: row["due_id"])
        return [firings.due_row(row, row["name"]) for row in found[:limit]]

    def list_due(
        self, schedule_id: int, before: datetime | None = None, limit: int = 100, decision: Decision | None = None
    ) -> list[DueRow]:
        """Its due times, the latest first, with the status of their targets."""
        query = select(schedule_due, _s.name, firings.status_column()).with_hint(schedule_due, _BY_DUE, "mysql")
        query = query.join(schedule, _s.schedule_id == _d.schedule_id).where(_d.schedule_id == schedule_id)
        if before is not None:
            query = query.where(_d.due_at < before)
        if decision is not None:
            query = query.where(_d.decision == decision.value)
        return [firings.due_row(row, row["name"]) for row in self._rows(query.order_by(_d.due_at.desc()).limit(limit))]
