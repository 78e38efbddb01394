"""Keeps the Temporal Schedules in line with the database, and records the times at which they did
not fire.

A person may pause, resume, change or delete a Temporal Schedule in Temporal's UI. We copy a pause
into the database. We undo any other change and report it. The note of the schedule shows who
changed it, because our notes begin with ``OURS`` and a digest of what we wrote. If the digest still
matches the schedule, but the schedule differs from what we want now, then an older build, or older
time zone data, produced the schedule. Such a schedule is updated without a report.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleCalendarSpec,
    ScheduleDescription,
    ScheduleHandle,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleRange,
    ScheduleState,
    ScheduleUpdate,
)
from temporalio.client import ScheduleSpec as TemporalSpec
from temporalio.service import RPCStatusCode

from crawler_lifecycle.background import Loop
from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.due_ids import due_workflow_id, temporal_schedule_id
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.temporal.client import GOES_FIRST, Workflows
from crawler_lifecycle.temporal.errors import allowing

from .activities.audits import note_unfired, settled_until
from .domain.calendar import Calendar
from .domain.definition import ScheduleSpec
from .ports import DueOrder, ScheduleRow

if TYPE_CHECKING:
    from crawler_lifecycle.store.store import Store

    from .store.schedules import ScheduleStore

log = logging.getLogger(__name__)

#: The prefix of our notes. Any other note was written by a person.
OURS = "crawler-lifecycle "
#: The number of schedules that one turn compares.
PAGE = 50
#: Seconds between two turns. A thousand schedules take five minutes.
TURN_S = 15.0
#: The number of failed schedules after which a turn ends early, because there is probably an
#: outage.
FAILED_MAX = 3
#: The time after which a check is recorded even if nothing was due.
QUIET = timedelta(days=1)
#: A schedule without a due time in this period has ended. February 29 on a given weekday can be
#: forty years away.
AHEAD = timedelta(days=41 * 366)


def temporal_spec(spec: ScheduleSpec, now: datetime) -> TemporalSpec:
    """Return the times at which Temporal fires, in UTC: every due time, and some further times that
    the due workflow ignores.

    Temporal's own time zones are not used, because when clocks are set back, it skips times and
    fires at wrong times.
    """
    every = None if spec.every_s is None else timedelta(seconds=spec.every_s)
    return TemporalSpec(
        calendars=[_calendar(calendar) for calendar in spec.firing(now)] if every is None else [],
        intervals=[]
        if every is None
        else [ScheduleIntervalSpec(every, timedelta(seconds=spec.offset_s))],
        start_at=None if spec.start_at is None else spec.start_at - timedelta(days=1),
        end_at=None if spec.end_at is None else spec.end_at + timedelta(days=1),
        jitter=timedelta(seconds=spec.jitter_s) if spec.jitter_s else None,
        time_zone_name="UTC",
    )


def _calendar(one: Calendar) -> ScheduleCalendarSpec:
    return ScheduleCalendarSpec(
        second=[ScheduleRange(0, 0)],
        minute=_ranges(one.minutes),
        hour=_ranges(one.hours),
        day_of_month=_ranges(one.days),
        month=_ranges(one.months),
        day_of_week=_ranges(one.weekdays),
    )


def _ranges(values: Sequence[int]) -> list[ScheduleRange]:
    """Return the values as ranges. Consecutive values share a range."""
    ends = [
        n for n, value in enumerate(values) if n + 1 == len(values) or values[n + 1] != value + 1
    ]
    return [
        ScheduleRange(values[first], values[last])
        for first, last in zip([0, *(n + 1 for n in ends)], ends, strict=False)
    ]


def temporal_schedule(row: ScheduleRow, spec: ScheduleSpec, now: datetime) -> Schedule:
    """Return the Temporal Schedule that a row needs."""
    order = DueOrder(row.name, revision=row.revision)
    wanted = Schedule(
        action=ScheduleActionStartWorkflow(
            names.DUE_WORKFLOW,
            order,
            id=due_workflow_id(row.name),
            task_queue=names.QUEUE_MAIN,
            priority=GOES_FIRST,
            static_summary=f"schedule {row.name}",
        ),
        spec=temporal_spec(spec, now),
        # Temporal allows every overlap. The database decides about overlaps of runs, because the
        # workflow of a due time ends long before its run.
        policy=SchedulePolicy(
            overlap=ScheduleOverlapPolicy.ALLOW_ALL,
            catchup_window=timedelta(seconds=spec.catch_up_s),
        ),
        state=ScheduleState(paused=row.paused_at is not None),
    )
    why = f"paused: {row.pause_reason}" if wanted.state.paused else "kept"
    wanted.state.note = f"{OURS}{_digest(wanted, [order])} {why}"[:500]
    return wanted


@dataclass(eq=False)
class ScheduleKeeper:
    """Keeps Temporal in line with the schedules in the database, in the event loop of a worker or
    gateway.

    Blocking calls run in threads.
    """

    store: ScheduleStore
    workflows: Workflows
    clock: Clock = utc_now

    def __post_init__(self) -> None:
        self._after = 0
        self._loop = Loop("the comparison of schedules with Temporal", TURN_S)
        self.counts: Counter[str] = Counter()

    def state(self) -> Mapping[str, object]:
        """Return the state for a probe: counts since the start, and the current error."""
        return {"problem": self._loop.failures.problem, **self.counts}

    async def run(self) -> None:
        """Compare until cancelled. This method never raises."""
        await self._loop.run(self.turn)

    async def turn(self) -> None:
        """Compare one page of schedules.

        A failing schedule does not delay the others. Raises the first error at the end of the page.
        After ``FAILED_MAX`` errors, the turn ends early, and the next turn continues with the
        following schedule.
        """
        errors = list[Exception]()
        page = await asyncio.to_thread(self.store.page, self._after, PAGE, deleted=True)
        self._after = page[-1].schedule_id if len(page) == PAGE else 0
        for row in page:
            if row.deleted_at is not None and row.told is None:
                continue
            try:
                await self.keep(row.name)
            except Exception as error:  # an unusual row or Temporal Schedule can cause any error
                unexpected = None if isinstance(error, LifecycleError) else error
                log.warning(
                    "schedule %s cannot be compared now: %s", row.name, error, exc_info=unexpected
                )
                errors.append(error)
            self.counts["compared"] += 1
            if len(errors) == FAILED_MAX:
                self._after = row.schedule_id
                break
        if errors:
            raise errors[0]

    async def keep(self, name: str) -> None:
        """Update the Temporal Schedule from the row, and record due times at which it did not fire.

        Raises the store's errors (``LifecycleError``) and ``TemporalUnavailable``.
        """
        row = await asyncio.to_thread(self.store.get, name)
        if row is None:
            return
        async with self.workflows.asking() as client:
            handle = client.get_schedule_handle(temporal_schedule_id(name))
            if row.deleted_at is not None:
                with allowing(RPCStatusCode.NOT_FOUND):
                    await handle.delete()
                await self._write(row, None, None, row.deleted_at)
                return
            found = await _described(handle)
        row = await self._taken_over(row, found)
        spec = ScheduleSpec.read(row.definition)
        now = self.clock()
        await self._note(row, spec)
        ended = spec.end_at is not None and next(spec.due_times(now, now + AHEAD), None) is None
        report = row.trouble if row.told == row.revision else None
        # Temporal removes ended schedules automatically.
        if found is not None or row.ended_at is None or row.told != row.revision:
            done = await self._set(name, found, temporal_schedule(row, spec, now))
            if done is not None and row.told == row.revision:
                report = f"it was {done} at {now:%Y-%m-%d %H:%M} UTC"
                log.warning("schedule %s: %s", name, report)
        await self._write(row, row.revision, report, (row.ended_at or now) if ended else None)

    async def _set(
        self, name: str, found: ScheduleDescription | None, wanted: Schedule
    ) -> str | None:
        """Create the Temporal Schedule, or change it to ``wanted`` if it differs.

        Return a description of a person's change that was undone, or ``None`` if there was none.
        """
        async with self.workflows.asking() as client:
            if found is None:
                # Another worker or gateway may just have created it.
                with suppress(ScheduleAlreadyRunningError):
                    await client.create_schedule(temporal_schedule_id(name), wanted)
                return "deleted in Temporal, and created again"
            there = found.schedule
            note = found.schedule.state.note or ""
            digest = _digest(there, await _input(client, there))
            # Temporal returns an empty summary for schedules of earlier builds.
            summary = str(getattr(there.action, "static_summary", ""))
            if summary and (there.state.paused, note, digest) == (
                wanted.state.paused,
                wanted.state.note,
                _left(wanted)[0],
            ):
                return None
            await client.get_schedule_handle(temporal_schedule_id(name)).update(
                lambda _: ScheduleUpdate(wanted)
            )
            return (
                None
                if digest in (_left(there)[0], _left(wanted)[0])
                else "changed in Temporal, and restored"
            )

    async def _write(
        self, row: ScheduleRow, sent: int | None, report: str | None, ended_at: datetime | None
    ) -> None:
        if (sent, report, ended_at) != (row.told, row.trouble, row.ended_at):
            write = self.store.told_schedule
            await asyncio.to_thread(write, row.schedule_id, sent, trouble=report, ended_at=ended_at)

    async def _taken_over(self, row: ScheduleRow, found: ScheduleDescription | None) -> ScheduleRow:
        """Copy a pause or resumption in Temporal into the row. Return the row."""
        if found is None or row.told is None:
            return row
        state = found.schedule.state
        (digest, paused) = _left(found.schedule)
        if state.paused == (paused if digest else row.paused_at is not None):
            return row
        words = "" if digest else state.note
        reason = f"paused in Temporal: {words or 'without a reason'}" if state.paused else None
        log.warning(
            "schedule %s was %s in Temporal", row.name, "paused" if state.paused else "resumed"
        )
        at = found.info.last_updated_at or self.clock()
        return await asyncio.to_thread(self.store.pause, row.name, reason, at)

    async def _note(self, row: ScheduleRow, spec: ScheduleSpec) -> None:
        now = self.clock()
        until = settled_until(spec, now)
        if (
            next(spec.due_times(row.checked_until, until), None) is None
            and until - row.checked_until < QUIET
        ):
            return
        noted = await asyncio.to_thread(note_unfired, self.store, row, now)
        self.counts["missed"] += noted.missed


def keeper(store: Store, workflows: Workflows) -> ScheduleKeeper:
    """Return the schedule keeper of a worker."""
    return ScheduleKeeper(store.schedules, workflows)


def _digest(schedule: Schedule, order: list[object]) -> str:
    """Return a digest of everything that decides what fires and when, excluding the pause."""
    action = schedule.action
    policy = schedule.policy
    assert isinstance(action, ScheduleActionStartWorkflow), "there is no other action"
    ends = (action.execution_timeout or None, action.run_timeout or None, action.retry_policy)
    starts = (
        action.workflow,
        action.id,
        action.task_queue,
        action.priority.priority_key,
        order,
        ends,
    )
    rules = (
        policy.overlap,
        policy.catchup_window,
        policy.pause_on_failure,
        schedule.state.limited_actions,
    )
    return hashlib.sha256(repr((starts, _plain(schedule.spec), rules)).encode()).hexdigest()[:8]


def _left(schedule: Schedule) -> tuple[str, bool]:
    """Return the digest in our note, and whether the schedule was paused when we wrote it.

    The digest is empty if a person wrote the note.
    """
    note = schedule.state.note or ""
    digest, _, words = note[len(OURS) :].partition(" ")
    return (digest, words.startswith("paused: ")) if note.startswith(OURS) else ("", False)


async def _input(client: Client, schedule: Schedule) -> list[object]:
    """Return the input that a schedule passes to the due workflow. An unreadable input is returned
    as an empty one.
    """
    action = schedule.action
    assert isinstance(action, ScheduleActionStartWorkflow), "there is no other action"
    try:
        return list(await client.data_converter.decode(action.args, [DueOrder]))
    except Exception:  # a person may have written anything there, in any encoding
        return []


def _plain(spec: TemporalSpec) -> list[object]:
    """Return a spec in a normal form, in which the spec that we sent equals the spec that Temporal
    returns for it.
    """
    calendars = [
        [
            list(getattr(calendar, name))
            for name in ("second", "minute", "hour", "day_of_month", "month", "year")
        ]
        + [list(calendar.day_of_week)]
        for calendar in [*spec.calendars, *spec.skip]
    ]
    plain = [
        [[(r.start, max(r.end, r.start)) for r in part] for part in calendar]
        for calendar in calendars
    ]
    moments = [None if at is None else at.astimezone(UTC) for at in (spec.start_at, spec.end_at)]
    intervals = [(interval.every, interval.offset or timedelta()) for interval in spec.intervals]
    return [
        len(spec.calendars),
        plain,
        intervals,
        moments,
        spec.jitter or timedelta(),
        spec.time_zone_name or "UTC",
    ]


async def _described(handle: ScheduleHandle) -> ScheduleDescription | None:
    with allowing(RPCStatusCode.NOT_FOUND):
        return await handle.describe()
    return None
