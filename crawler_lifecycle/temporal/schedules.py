"""Keeps the Temporal Schedules as the database defines them, and records times that they did not fire.

A person may pause, resume, change or delete one in Temporal's UI. A pause is taken over; any other change is undone,
and reported. The note shows who changed it: ours begins with ``OURS`` and a digest of what we wrote. If it is unchanged
and still not correct, we wrote it earlier: with another build, or older rules of a zone.

The Temporal Schedule of audits is made, changed or removed as the settings say.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
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
    ScheduleUpdateInput,
)
from temporalio.client import ScheduleSpec as TemporalSpec
from temporalio.service import RPCStatusCode

from crawler_lifecycle.activities.audits.parents import note_unfired, settled_until
from crawler_lifecycle.background import Loop
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.schedules.calendar import Calendar
from crawler_lifecycle.domain.schedules.definition import ScheduleSpec, due_workflow_id, temporal_schedule_id
from crawler_lifecycle.ports.schedules import DueOrder, ScheduleRow
from crawler_lifecycle.temporal.client import AUDIT_LIFE, DUE_FIRST, Workflows
from crawler_lifecycle.temporal.errors import allowing
from crawler_lifecycle.workflows.audit import AuditOrder

if TYPE_CHECKING:
    from crawler_lifecycle.store.schedules.schedules import ScheduleStore

log = logging.getLogger(__name__)

#: The prefix of our notes; any other note is a person's.
OURS = "crawler-lifecycle "
#: Schedules that one turn compares, and seconds between two turns: a thousand have their turn within five minutes.
PAGE, TURN_S = 50, 15.0
#: The number of failed schedules of one turn that counts as an outage.
FAILED_MAX = 3
#: Seconds after which the last check is recorded, even if nothing was due.
QUIET = timedelta(days=1)
#: A schedule without a due time in so long has ended: a 29th of February on a given weekday may take forty years.
AHEAD = timedelta(days=41 * 366)


def temporal_spec(spec: ScheduleSpec, now: datetime) -> TemporalSpec:
    """The times at which Temporal fires: in UTC, every due time and some more, which the due workflow leaves out.

    Temporal's own arithmetic of zones leaves out times of days whose clock is put back, and fires at wrong ones.
    """
    every = None if spec.every_s is None else timedelta(seconds=spec.every_s)
    return TemporalSpec(
        calendars=[_calendar(one) for one in spec.firing(now)] if every is None else [],
        intervals=[] if every is None else [ScheduleIntervalSpec(every, timedelta(seconds=spec.offset_s))],
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
    """Each value, as few ranges as steps of one allow."""
    ends = [n for n, value in enumerate(values) if n + 1 == len(values) or values[n + 1] != value + 1]
    return [
        ScheduleRange(values[first], values[last])
        for first, last in zip([0, *(n + 1 for n in ends)], ends, strict=False)
    ]


def temporal_schedule(row: ScheduleRow, spec: ScheduleSpec, now: datetime) -> Schedule:
    """The Temporal Schedule of a row."""
    order = DueOrder(row.name, revision=row.revision)
    wanted = Schedule(
        action=ScheduleActionStartWorkflow(
            names.DUE_WORKFLOW, order, id=due_workflow_id(row.name), task_queue=names.QUEUE_MAIN, priority=DUE_FIRST
        ),
        spec=temporal_spec(spec, now),
        # Who may run beside whom is judged by the database: a workflow of a due time is no measure of that.
        policy=SchedulePolicy(
            overlap=ScheduleOverlapPolicy.ALLOW_ALL, catchup_window=timedelta(seconds=spec.catch_up_s)
        ),
        state=ScheduleState(paused=row.paused_at is not None),
    )
    why = f"paused: {row.pause_reason}" if wanted.state.paused else "kept"
    wanted.state.note = f"{OURS}{_digest(wanted, [order])} {why}"[:500]
    return wanted


class ScheduleKeeper:
    """Keeps schedules and Temporal alike, in the event loop of a worker or a gateway; what blocks is in threads."""

    def __init__(
        self, store: ScheduleStore, workflows: Workflows, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._store = store
        self._workflows = workflows
        self._clock = clock
        self._after = 0
        self._loop = Loop("the comparison of schedules with Temporal", TURN_S)
        self.counts: Counter[str] = Counter()

    def state(self) -> Mapping[str, object]:
        """For a probe: what was done since the start, and the present error."""
        return {"problem": self._loop.failures.problem, **self.counts}

    async def run(self) -> None:
        """Until it is cancelled. Raises nothing."""
        await self._loop.run(self.turn)

    async def turn(self) -> None:
        """Compare one page of schedules.

        A failing one does not delay the others. Raises the first error after all others were compared, or after a few
        failed: then the next turn continues after those.
        """
        troubles = list[Exception]()
        page = await asyncio.to_thread(self._store.list_schedules, self._after, PAGE, deleted=True)
        self._after = page[-1].schedule_id if len(page) == PAGE else 0
        for row in page:
            if row.deleted_at is not None and row.told is None:
                continue
            try:
                await self.keep(row.name)
            except Exception as error:  # also an error that only an odd row or an odd Temporal Schedule causes
                unexpected = None if isinstance(error, LifecycleError) else error
                log.warning("schedule %s is not compared now: %s", row.name, error, exc_info=unexpected)
                troubles.append(error)
            self.counts["compared"] += 1
            if len(troubles) == FAILED_MAX:
                self._after = row.schedule_id
                break
        if troubles:
            raise troubles[0]

    async def keep(self, name: str) -> None:
        """Update the Temporal Schedule from the row; record due times that never fired.

        Raises ``LifecycleError``: of the store, and ``TemporalUnavailable``.
        """
        row = await asyncio.to_thread(self._store.get_schedule, name)
        if row is None:
            return
        async with self._workflows.asking() as client:
            handle = client.get_schedule_handle(temporal_schedule_id(name))
            if row.deleted_at is not None:
                with allowing(RPCStatusCode.NOT_FOUND):
                    await handle.delete()
                await self._write(row, None, None, row.deleted_at)
                return
            found = await _described(handle)
        row = await self._taken_over(row, found)
        spec, now = ScheduleSpec.read(row.definition), self._clock()
        await self._note(row, spec)
        ended = spec.end_at is not None and next(spec.due_times(now, now + AHEAD), None) is None
        trouble = row.trouble if row.told == row.revision else None
        if found is not None or row.ended_at is None or row.told != row.revision:  # Temporal removes ended schedules
            done = await self._set(name, found, temporal_schedule(row, spec, now))
            if done is not None and row.told == row.revision:
                trouble = f"it was {done} at {now:%Y-%m-%d %H:%M} UTC"
                log.warning("schedule %s: %s", name, trouble)
        await self._write(row, row.revision, trouble, (row.ended_at or now) if ended else None)

    async def _set(self, name: str, found: ScheduleDescription | None, wanted: Schedule) -> str | None:
        """Make the Temporal Schedule that, if it is not; what a person had done to it, if one had."""
        async with self._workflows.asking() as client:
            if found is None:
                with suppress(ScheduleAlreadyRunningError):  # another worker or gateway made it at this moment
                    await client.create_schedule(temporal_schedule_id(name), wanted)
                return "deleted in Temporal, and made again"
            there, note = found.schedule, found.schedule.state.note or ""
            digest = _digest(there, await _input(client, there))
            if (there.state.paused, note, digest) == (wanted.state.paused, wanted.state.note, _left(wanted)[0]):
                return None
            await client.get_schedule_handle(temporal_schedule_id(name)).update(lambda _: ScheduleUpdate(wanted))
            return None if digest in (_left(there)[0], _left(wanted)[0]) else "changed in Temporal, and set back"

    async def _write(self, row: ScheduleRow, told: int | None, trouble: str | None, ended_at: datetime | None) -> None:
        if (told, trouble, ended_at) != (row.told, row.trouble, row.ended_at):
            write = self._store.told_schedule
            await asyncio.to_thread(write, row.schedule_id, told, trouble=trouble, ended_at=ended_at)

    async def _taken_over(self, row: ScheduleRow, found: ScheduleDescription | None) -> ScheduleRow:
        """The row after a person's change in Temporal."""
        if found is None or row.told is None:
            return row
        state, (digest, paused) = found.schedule.state, _left(found.schedule)
        if state.paused == (paused if digest else row.paused_at is not None):
            return row
        words = "" if digest else state.note
        reason = f"paused in Temporal: {words or 'without a reason'}" if state.paused else None
        log.warning("schedule %s was %s in Temporal", row.name, "paused" if state.paused else "resumed")
        at = found.info.last_updated_at or self._clock()
        return await asyncio.to_thread(self._store.pause_schedule, row.name, reason, at)

    async def _note(self, row: ScheduleRow, spec: ScheduleSpec) -> None:
        now = self._clock()
        until = settled_until(spec, now)
        if next(spec.due_times(row.checked_until, until), None) is None and until - row.checked_until < QUIET:
            return
        noted = await asyncio.to_thread(note_unfired, self._store, row, now)
        self.counts["missed"] += noted.missed


def _digest(schedule: Schedule, order: list[object]) -> str:
    """Of everything that decides what fires when, but a pause."""
    action, policy = schedule.action, schedule.policy
    assert isinstance(action, ScheduleActionStartWorkflow), "there is no other action"
    ends = (action.execution_timeout or None, action.run_timeout or None, action.retry_policy)
    starts = (action.workflow, action.id, action.task_queue, action.priority.priority_key, order, ends)
    rules = (policy.overlap, policy.catchup_window, policy.pause_on_failure, schedule.state.limited_actions)
    return hashlib.sha256(repr((starts, _plain(schedule.spec), rules)).encode()).hexdigest()[:8]


def _left(schedule: Schedule) -> tuple[str, bool]:
    """The digest in our note, and whether it was paused then; an empty one in a person's."""
    note = schedule.state.note or ""
    digest, _, words = note[len(OURS) :].partition(" ")
    return (digest, words.startswith("paused: ")) if note.startswith(OURS) else ("", False)


async def _input(client: Client, schedule: Schedule) -> list[object]:
    """The input of the workflow of a due time; empty if it is unreadable."""
    action = schedule.action
    assert isinstance(action, ScheduleActionStartWorkflow), "there is no other action"
    try:
        return list(await client.data_converter.decode(action.args, [DueOrder]))
    except Exception:  # whatever a person wrote there, and in whatever encoding
        return []


def _plain(spec: TemporalSpec) -> list[object]:
    """Everything of a spec, so that what was sent and what comes back compare."""
    calendars = [
        [list(getattr(one, name)) for name in ("second", "minute", "hour", "day_of_month", "month", "year")]
        + [list(one.day_of_week)]
        for one in [*spec.calendars, *spec.skip]
    ]
    plain = [[[(r.start, max(r.end, r.start)) for r in part] for part in one] for one in calendars]
    moments = [None if at is None else at.astimezone(UTC) for at in (spec.start_at, spec.end_at)]
    intervals = [(one.every, one.offset or timedelta()) for one in spec.intervals]
    return [len(spec.calendars), plain, intervals, moments, spec.jitter or timedelta(), spec.time_zone_name or "UTC"]


async def _described(handle: ScheduleHandle) -> ScheduleDescription | None:
    with allowing(RPCStatusCode.NOT_FOUND):
        return await handle.describe()
    return None


#: A scheduled audit that could not start within this time is left out.
CATCH_UP = timedelta(seconds=60)


async def keep_audit_schedule(client: Client, every_s: float, repair: bool, *, only_missing: bool = False) -> None:
    """Make the Temporal Schedule of audits what the settings say; without ``every_s`` there is none.

    Whoever paused it finds it paused. Audits never overlap, and those that were missed are not made up for: the next
    one finds the same. With ``only_missing`` what is there stays as it is. Raises ``RPCError`` when the right to do so
    is missing.
    """
    handle = client.get_schedule_handle(names.AUDIT_SCHEDULE)
    if every_s <= 0:
        if only_missing:
            return
        with allowing(RPCStatusCode.NOT_FOUND):
            await handle.delete()
        return
    wanted = Schedule(
        action=ScheduleActionStartWorkflow(
            names.AUDIT_WORKFLOW,
            AuditOrder(repair),
            id=names.AUDIT_SCHEDULE,
            task_queue=names.QUEUE_AUDIT,
            execution_timeout=AUDIT_LIFE,
        ),
        spec=TemporalSpec(intervals=[ScheduleIntervalSpec(every=timedelta(seconds=every_s))]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=CATCH_UP),
        state=ScheduleState(note="compares database, cluster and Temporal; kept by the workers of the role audit"),
    )

    def renewed(found: ScheduleUpdateInput) -> ScheduleUpdate:
        wanted.state.paused = found.description.schedule.state.paused
        wanted.state.note = found.description.schedule.state.note or wanted.state.note
        return ScheduleUpdate(wanted)

    try:
        await client.create_schedule(names.AUDIT_SCHEDULE, wanted)
    except ScheduleAlreadyRunningError:
        if not only_missing:
            await handle.update(renewed)
