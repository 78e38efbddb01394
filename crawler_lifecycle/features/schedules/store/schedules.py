"""Schedules: their definitions, and the decisions about their due times."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, and_, case, func, or_, select, update

from crawler_lifecycle.domain.bounds import ID_MAX, check_request_id
from crawler_lifecycle.domain.due_ids import due_text
from crawler_lifecycle.domain.errors import RunNotFound
from crawler_lifecycle.store.base.named import Change, NamedPart
from crawler_lifecycle.store.base.outbox import append_events
from crawler_lifecycle.store.base.rows import Row, change_row, made, seen

from ..domain.decision import (
    CAUGHT_UP_S,
    Circumstances,
    Decision,
    decide,
    gave_way,
    too_many_failures,
)
from ..domain.definition import Overlap, ScheduleSpec
from ..ports import (
    DueRow,
    NotedFirings,
    PreviousTarget,
    ScheduleCounts,
    ScheduleRow,
    TargetRef,
)
from . import firings
from .tables import schedule, schedule_due

_s = schedule.c
_d = schedule_due.c
#: The due times, each with the name of its schedule.
_NAMED = select(schedule_due, _s.name).join(schedule, _s.schedule_id == _d.schedule_id)
#: Without this index hint, MySQL can read and sort all firings of a schedule that owns most of the
#: rows.
_BY_DUE = (schedule_due, "FORCE INDEX (uq_schedule_due_schedule_id_due_at)", "mysql")
#: The maximum time by which our clock can be behind Temporal's. Due times further in the future are
#: refused.
_AHEAD = timedelta(hours=1)


class ScheduleStore(NamedPart[ScheduleRow]):
    """Schedules and their firings.

    Most writing methods lock the row of the schedule first. Before a new definition, the end of a
    pause, or a deletion, each past due time gets its firing by the previous definition.
    """

    table = schedule
    kind = ScheduleRow

    # --- definitions ---

    def _defined(
        self, conn: Connection, found: dict[Any, Any] | None, now: datetime, *, anew: bool
    ) -> Change:
        if found is None:
            return {"failures_after": 0, "checked_until": now}, ()
        new = {"ended_at": None, "checked_until": now}
        if anew:
            return new | dict.fromkeys(("paused_at", "pause_reason", "told")), ()
        return new, firings.note_all(conn, found, now)

    def _deleted(self, conn: Connection, row: dict[Any, Any], now: datetime) -> Change:
        return {}, [*firings.note_all(conn, row, now), *firings.drop_queued(conn, row, now)]

    def pause(self, name: str, reason: str | None, at: datetime | None = None) -> ScheduleRow:
        """Pause the schedule for this reason. ``None`` as the reason resumes it.

        ``at`` is the time of the pause; the default is now. Raises ``RunNotFound``.
        """
        with self._db.writing() as conn:
            row = self._needed(conn, name)
            if (row["paused_at"] is None) == (reason is None):
                return made(ScheduleRow, row)
            now = self._clock()
            tell = list[Row]()
            values: dict[str, Any] = {
                "pause_reason": reason,
                "updated_at": now,
                "paused_at": None if reason is None else at or now,
            }
            if reason is None:
                tell = firings.note_all(conn, row, now)
                newest = (
                    select(_d.due_id)
                    .where(_d.schedule_id == row["schedule_id"])
                    .order_by(_d.due_id.desc())
                )
                values["failures_after"] = conn.execute(newest.limit(1)).scalar_one_or_none() or 0
            change_row(conn, schedule, row, values)
            append_events(conn, tell)
            return made(ScheduleRow, {**row, **values})

    def told_schedule(
        self, schedule_id: int, told: int | None, *, trouble: str | None, ended_at: datetime | None
    ) -> None:
        """Record the revision that Temporal has and the error of the last update.

        ``ended_at`` is since when the schedule has no further due times.
        """
        values = {"told": told, "trouble": trouble, "ended_at": ended_at}
        with self._db.writing() as conn:
            conn.execute(update(schedule).where(_s.schedule_id == schedule_id).values(**values))

    def count_schedules(self, before: datetime) -> ScheduleCounts:
        """Return the numbers of schedules by state.

        ``untold`` is the number of schedules that were changed before ``before`` and whose change
        Temporal does not have.
        """
        there = _s.deleted_at.is_(None)
        untold = and_(there, or_(_s.told.is_(None), _s.told < _s.revision)) | and_(
            ~there, _s.told.is_not(None)
        )
        asked = (
            there & _s.paused_at.is_(None),
            there & _s.paused_at.is_not(None),
            untold & (_s.updated_at < before),
        )
        with self._db.reading() as conn:
            counts = select(
                *(func.sum(case((condition, 1), else_=0)) for condition in asked)
            ).where(*seen(schedule))
            found = conn.execute(counts).one()
        return ScheduleCounts(*(int(n or 0) for n in found))

    # --- due times ---

    def decide_due(self, name: str, due_at: datetime, revision: int | None = None) -> DueRow | None:
        """Record the decision about a due time, once for each due time, and return the firing.

        A second call returns the existing firing, even if the schedule was deleted. ``revision`` is
        the revision of the definition with which Temporal fired. Return ``None`` if there is no
        such schedule, or if the schedule is not due at ``due_at``.
        """
        with self._db.writing() as conn:
            row = self._locked(conn, name, deleted=True)
            before = None if row is None else firings.at(conn, row, due_at)
            if row is None or (row["deleted_at"] is not None and before is None):
                return None
            # A recorded decision is final, unless it was recorded only because Temporal had not
            # fired.
            if before is not None and (
                before["reason"] != firings.UNFIRED or row["deleted_at"] is not None
            ):
                return firings.due_row(before, name)
            spec = firings.spec_of(row)
            now = self._clock()
            asked = before is None and not spec.is_due(due_at)
            # By the definition, Temporal never fires at this time, so a person triggered the
            # schedule in Temporal.
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
            decision, reason = decide(
                Circumstances(late, allowed, spec.overlap, live, paused, again)
            )
            values = firings.new_row(row, due_at, now, decision, reason, previous)
            firing = firings.written(conn, row, values, before)
            # The event of a missed firing was appended when the firing was recorded as missed.
            if before is None or decision is not Decision.MISSED:
                append_events(conn, [firings.event_of(row, [values], now)])
            return firing

    def _failing(self, conn: Connection, row: Row, spec: ScheduleSpec) -> str | None:
        """Pause the schedule if its last targets all failed.

        Return the reason, or ``None`` if the schedule was not paused.
        """
        if spec.pause_after_failures is None:
            return None
        newest = (
            select(schedule_due)
            .where(_d.schedule_id == row["schedule_id"], _d.due_id > row["failures_after"])
            .where(_d.decision.in_([*firings.BEGINS, Decision.FAILED]))
            .order_by(_d.due_id.desc())
            .limit(spec.pause_after_failures)
        )
        failed = [
            firings.has_failed(conn, firing) for firing in conn.execute(newest).mappings().all()
        ]
        why = too_many_failures(failed, spec.pause_after_failures)
        if why is not None:
            change_row(conn, schedule, row, {"paused_at": self._clock(), "pause_reason": why})
        return why

    def asked_due(self, name: str, request_key: str) -> DueRow | None:
        """Return the firing that this request asked for, or ``None`` if there is none.

        Raises ``InvalidRequest`` for an invalid key.
        """
        check_request_id(request_key)
        rows = self._rows(
            _NAMED.where(_s.name == name, _d.request_key == request_key, *seen(schedule))
        )
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
        """For each of these due times, write a firing that starts a target, as a person requested.

        Return the firings.

        A due time that has such a firing already keeps it. ``request_key`` identifies a request
        with one due time: a repeated request returns the firing of the first one. ``seen`` is the
        latest due time for which this person has seen a firing. Raises ``RunNotFound``. Raises
        ``NotInThisState`` if another request asked for the same due time, or if a person requested
        a due time after ``seen``.
        """
        with self._db.writing() as conn:
            row = self._needed(conn, name)
            now = self._clock()
            answer = list[DueRow]()
            of_request = (_d.schedule_id == row["schedule_id"], _d.request_key == request_key)
            if request_key is not None and (before := firings.find(conn, *of_request)) is not None:
                # This is true even if a person has requested a different due time since.
                return [firings.due_row(before, name)]
            if seen is not None:
                firings.check_seen(conn, row["schedule_id"], seen)
            spec = firings.spec_of(row)
            previous = firings.previous(conn, row["schedule_id"])
            for at in sorted(due_at):
                firing = firings.at(conn, row, at)
                if firing is not None and request_key is not None:
                    firings.take(conn, firing, request_key)
                if firing is not None and Decision(firing["decision"]).begins:
                    answer.append(firings.due_row(firing, name))
                    continue
                # A requested firing is never skipped. Such a firing waits, unless the schedule
                # allows parallel targets.
                live = previous is not None and firings.is_live(conn, previous)
                overlap = Circumstances(0, 0, spec.overlap, live, asked=True)
                decision = decide(overlap)[0]
                decision = Decision.QUEUED if decision is Decision.SKIPPED_OVERLAP else decision
                values = firings.new_row(row, at, now, decision, reason, previous)
                values |= {"asked_by": asked_by} | (
                    {} if request_key is None else {"request_key": request_key}
                )
                if firing is not None:
                    values["reason"] = f"{reason}; it was {firing['decision']}: {firing['reason']}"
                answer.append(firings.written(conn, row, values, firing))
                previous = firings.at(conn, row, at)
            return answer

    def unfired_due(self, schedule_id: int, until: datetime) -> list[datetime]:
        """Return due times until ``until`` that have no firing, among the first 1,000 due times
        since the last check.
        """
        with self._db.reading() as conn:
            row = (
                conn.execute(select(schedule).where(_s.schedule_id == schedule_id)).mappings().one()
            )
            return firings.unfired_times(conn, row, until)[0]

    def note_due(self, schedule_id: int, until: datetime) -> NotedFirings:
        """Write a firing for each due time until ``until`` that has none, at most 1,000 at a time.

        The decision is ``paused`` for due times during a pause, and ``missed`` for all others.
        """
        with self._db.writing() as conn:
            query = select(schedule).where(_s.schedule_id == schedule_id).with_for_update()
            row = conn.execute(query).mappings().one_or_none()
            if row is None or row["deleted_at"] is not None:
                return NotedFirings()
            noted, tell = firings.note(conn, dict(row), until, self._clock())
            append_events(conn, tell)
            return noted

    def get_due(self, due_id: int) -> DueRow:
        """Return the firing with this number. Raises ``RunNotFound``."""
        rows = self._rows(_NAMED.where(_d.due_id == due_id)) if 0 < due_id <= ID_MAX else []
        if not rows:
            raise RunNotFound(f"There is no due time {due_id}")
        return firings.due_row(rows[0], rows[0]["name"])

    def previous_target(self, due_id: int) -> PreviousTarget | None:
        """Return the target for which a queued firing waits, or ``None`` if the firing does not
        wait for a target.
        """
        with self._db.reading() as conn:
            after = conn.execute(
                select(_d.after_id).where(_d.due_id == due_id)
            ).scalar_one_or_none()
            firing = None if after is None else firings.find(conn, _d.due_id == after)
            if firing is None:
                return None
            return PreviousTarget(
                firing["due_id"], firings.is_live(conn, firing), firings.target_of(firing)
            )

    def give_way(self, due_id: int) -> bool:
        """Skip a queued firing if a later firing would stop its target immediately (overlap
        ``stop_previous``). Return whether the queued firing was skipped.

        A skipped firing starts no target. Firings that waited for the skipped firing then wait for
        the firing before it.
        """
        with self._db.writing() as conn:
            its_schedule = select(_d.schedule_id).where(_d.due_id == due_id).scalar_subquery()
            query = select(schedule).where(_s.schedule_id == its_schedule).with_for_update()
            row = conn.execute(query).mappings().one()
            firing = firings.find(conn, _d.due_id == due_id)
            assert firing is not None, "it has a schedule"
            waits = firing["decision"] == Decision.QUEUED and firing["target_id"] is None
            if (
                not waits
                or firing["asked_by"] is not None
                or firings.spec_of(row).overlap is not Overlap.STOP_PREVIOUS
            ):
                return False
            mine = (
                _d.schedule_id == row["schedule_id"],
                _d.due_at > firing["due_at"],
                _d.asked_by.is_(None),
            )
            later = conn.execute(
                select(func.min(_d.due_at)).where(*mine, _d.decision.in_(firings.BEGINS))
            ).scalar_one()
            if later is None:
                return False
            values = {
                "decision": Decision.SKIPPED_OVERLAP.value,
                "reason": gave_way(due_text(later)),
            }
            change_row(conn, schedule_due, firing, values)
            queued = (_d.schedule_id == row["schedule_id"], _d.decision == Decision.QUEUED)
            conn.execute(
                update(schedule_due)
                .where(*queued, _d.after_id == due_id)
                .values(after_id=firing["after_id"])
            )
            append_events(conn, [firings.event_of(row, [{**firing, **values}], self._clock())])
            return True

    def due_begun(self, due_id: int, target: TargetRef) -> None:
        """Record that the target of a firing exists. A second call changes nothing."""
        values = {
            "target_kind": target.kind.value,
            "target_id": target.id,
            "begun_at": self._clock(),
        }
        mine = (_d.due_id == due_id, _d.target_id.is_(None))
        with self._db.writing() as conn:
            # The schedule may have been deleted while the target was being started. In that case,
            # the firing was marked as failed.
            failed = update(schedule_due).where(*mine, _d.decision == Decision.FAILED)
            conn.execute(failed.values(decision=Decision.STARTED.value, reason=None))
            conn.execute(update(schedule_due).where(*mine).values(**values))

    def due_failed(self, due_id: int, reason: str) -> None:
        """Record that the target of a firing can never start.

        If it has started, or if this was already recorded, nothing changes.
        """
        with self._db.writing() as conn:
            query = (
                select(schedule)
                .join(schedule_due, _s.schedule_id == _d.schedule_id)
                .where(_d.due_id == due_id)
            )
            row = conn.execute(query).mappings().one()
            still_open = (
                _d.due_id == due_id,
                _d.target_id.is_(None),
                _d.decision.in_(firings.BEGINS),
            )
            failed = {"decision": Decision.FAILED.value, "reason": reason}
            if conn.execute(update(schedule_due).where(*still_open).values(**failed)).rowcount:
                firing = (
                    conn.execute(select(schedule_due).where(_d.due_id == due_id)).mappings().one()
                )
                append_events(conn, [firings.event_of(row, [firing], self._clock())])

    def due_to_begin(self, until: datetime, after_id: int = 0, limit: int = 100) -> list[DueRow]:
        """Return firings that were decided before ``until`` and whose target has not started, with
        numbers higher than ``after_id``.
        """
        found: list[Row] = []
        for decision in firings.BEGINS:  # one query per decision, so that each can use an index
            query = _NAMED.where(
                _d.decision == decision, _d.target_id.is_(None), _d.due_id > after_id
            )
            found += self._rows(query.where(_d.decided_at < until).order_by(_d.due_id).limit(limit))
        found.sort(key=lambda row: row["due_id"])
        return [firings.due_row(row, row["name"]) for row in found[:limit]]

    def latest_due(self) -> dict[int, DueRow]:
        """Return the firing with the latest due time of each schedule that has one, by the
        schedule's number.

        Deleted schedules are excluded.
        """
        its = schedule_due.alias().c
        newest = (
            select(its.due_id)
            .where(its.schedule_id == _s.schedule_id)
            .order_by(its.due_at.desc())
            .limit(1)
        )
        joined = schedule.join(
            schedule_due, _d.due_id == newest.correlate(schedule).scalar_subquery()
        )
        query = select(schedule_due, _s.name, firings.status_column()).select_from(joined)
        query = query.where(_s.deleted_at.is_(None), *seen(schedule))
        return {row["schedule_id"]: firings.due_row(row, row["name"]) for row in self._rows(query)}

    def count_due(
        self, schedule_id: int, since: datetime, until: datetime, most: int
    ) -> dict[tuple[Decision, bool, str | None], int]:
        """Count the newest firings since ``since`` and before ``until``, at most ``most`` of them.

        The counts are grouped by decision, by whether the target has begun, and by the status of
        the target.
        """
        which = (_d.schedule_id == schedule_id, _d.due_at >= since, _d.due_at < until)
        begun = _d.target_id.is_not(None).label("begun")
        each = (
            select(_d.decision, begun, firings.status_column())
            .where(*which)
            .order_by(_d.due_at.desc())
        )
        some = each.with_hint(*_BY_DUE).limit(most).subquery("each_due")
        query = select(*some.c, func.count().label("many")).group_by(*some.c)
        rows = self._rows(query)
        return {
            (Decision(row["decision"]), bool(row["begun"]), row["status"]): row["many"]
            for row in rows
        }

    def list_firings(
        self,
        schedule_id: int,
        before: datetime | None = None,
        limit: int = 100,
        decision: Decision | None = None,
    ) -> list[DueRow]:
        """Return firings of a schedule with the status of their targets, with the latest due time
        first.

        ``before`` limits them to earlier due times, and ``decision`` to one decision.
        """
        query = _NAMED.add_columns(firings.status_column()).with_hint(*_BY_DUE)
        query = query.where(_d.schedule_id == schedule_id)
        if before is not None:
            query = query.where(_d.due_at < before)
        if decision is not None:
            query = query.where(_d.decision == decision)
        return [
            firings.due_row(row, row["name"])
            for row in self._rows(query.order_by(_d.due_at.desc()).limit(limit))
        ]
