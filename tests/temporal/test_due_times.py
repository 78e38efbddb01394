"""Every due time has one row and starts once, whatever was down, compared with an independent list
of due times.

Temporal is a small fake (``support/firing.py``): it fires at the minutes in its specs, catches up
as Temporal does, and is sometimes down, like the workers. Store, activities and keeper are real;
the clock is the test's.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import select, update
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from crawler_lifecycle.domain.due_ids import due_request_id, temporal_schedule_id
from crawler_lifecycle.features.schedules.activities.due import PREVIOUS_LIVE
from crawler_lifecycle.features.schedules.domain.decision import Decision
from crawler_lifecycle.features.schedules.domain.definition import Overlap, ScheduleSpec
from crawler_lifecycle.features.schedules.ports import DueOrder, DueRow
from crawler_lifecycle.features.schedules.temporal import ScheduleKeeper
from crawler_lifecycle.store.runs.tables import run_history
from tests.activities.harness import Harness
from tests.support.firing import MINUTE, FiringTemporal

CRON, OTHER_CRON = "10,40 1-2 * * *", "25,55 1-2 * * *"
#: Both clock changes in three zones, in UTC.
CHANGES = {
    "Europe/Berlin": ("2027-03-28T01:00", "2027-10-31T01:00"),
    "America/New_York": ("2027-03-14T07:00", "2027-11-07T06:00"),
    "Australia/Lord_Howe": ("2027-04-03T15:00", "2027-10-02T15:30"),
}
#: In `make test-more`: an hour that is skipped, and half an hour that occurs twice; the rest is
#: slow. A zone decides only which minutes are due, and ``domain/schedules/test_calendar.py``
#: compares those in many zones.
ALWAYS = {("Europe/Berlin", "2027-03-28T01:00"), ("Australia/Lord_Howe", "2027-04-03T15:00")}


def due_by_hand(zone: str, minutes: set[int], after: datetime, until: datetime) -> list[datetime]:
    """Return every minute whose local time is one of these minutes of one or two o'clock."""
    at, found = after.replace(second=0, microsecond=0) + MINUTE, []
    while at <= until:
        wall = at.astimezone(ZoneInfo(zone))
        if wall.minute in minutes and wall.hour in (1, 2):
            found.append(at)
        at += MINUTE
    return found


class Play:
    """Some days around a clock change, minute by minute."""

    def __init__(self, harness: Harness, zone: str, change: datetime, seed: int) -> None:
        self.w, self.zone, self.random = harness, zone, random.Random(seed)
        self.start, self.end = change - timedelta(hours=27), change + timedelta(hours=27)
        harness.now = self.start
        self.temporal = FiringTemporal(harness.clock)
        self.keeper = ScheduleKeeper(
            harness.store.schedules, cast(Any, self.temporal), harness.clock
        )
        self.acts = harness.activities()
        self.ends: dict[int, datetime] = {}
        self.spans: dict[int, tuple[datetime, datetime]] = {}
        self.near = due_by_hand(zone, {10, 40}, self.start, self.end)
        self.down = {who: list(self._windows()) for who in ("temporal", "workers")}

    def _windows(self) -> Iterator[tuple[datetime, datetime]]:
        for at in self.random.sample(self.near, 2):
            start = at - MINUTE * self.random.choice((0, 1, 5, 45))
            yield start, start + MINUTE * self.random.choice((2, 8, 12, 70, 130, 400))

    def is_up(self, who: str) -> bool:
        return not any(start <= self.w.now < end for start, end in self.down[who])

    async def put(self, name: str, **fields: Any) -> None:
        spec = ScheduleSpec(
            **{"run": {"crawler": "books"}, "cron": CRON, "time_zone": self.zone, **fields}
        )
        self.w.store.schedules.put(name, spec.document(), "ann")
        await self.told(name)

    async def told(self, name: str) -> None:
        """Report it as the gateway does: at once if possible, else a worker does it."""
        if self.temporal.up:
            await self.keeper.keep(name)

    async def minute(self) -> None:
        self.w.now += MINUTE
        self.temporal.up = self.is_up("temporal")
        self._verdicts()
        if not self.temporal.up:
            return
        self.temporal.fire()
        if self.is_up("workers"):
            self.temporal.orders = [
                order for order in self.temporal.orders if not self._worked(order)
            ]
            if self.w.now.minute == 5:
                await self.keeper.turn()

    def _worked(self, order: DueOrder) -> bool:
        """Return whether the workflow of this due time has ended."""
        try:
            decided = self._do("decide_due", order)
            if decided is not None and decided.begin and decided.stop:
                self._do("stop_previous_due", decided.due_id)
            begun = None if decided is None else decided.begun
            if decided is not None and decided.begin:
                begun = self._do("begin_due", decided.due_id)
        except ApplicationError as error:
            if error.type != PREVIOUS_LIVE:
                raise
            return False
        if begun is not None:
            assert begun.id not in self.ends, "it was begun once"
            self.ends[begun.id] = self.w.now + MINUTE * self.random.choice((1, 15, 50))
            self.spans[begun.id] = (self.w.now, self.ends[begun.id])
        return True

    def _do(self, name: str, argument: Any) -> Any:
        return ActivityEnvironment().run(self.acts[name], argument)

    def _verdicts(self) -> None:
        """Write what a run's own workflow would write."""
        r, live = (
            run_history.c,
            [run_id for run_id, (_, end) in self.spans.items() if end >= self.w.now],
        )
        if not live:
            return
        with self.w.store.database.writing() as conn:
            rows = conn.execute(
                select(r.run_id, r.stop_requested_at).where(r.run_id.in_(live))
            ).all()
            for run_id, stop in rows:
                if stop is not None or self.ends[run_id] <= self.w.now:
                    status = "COMPLETED" if stop is None else "FAILED"
                    values = {"status": status, "outcome": "finished", "ended_at": self.w.now}
                    conn.execute(update(run_history).where(r.run_id == run_id).values(**values))
                    self.spans[run_id] = (self.spans[run_id][0], self.w.now)

    def lines(self, name: str) -> list[DueRow]:
        row = self.w.store.schedules.get(name)
        assert row is not None
        return self.w.store.schedules.list_firings(row.schedule_id, limit=1000)[::-1]

    def decided_at(self, due: datetime, catch_up_s: int) -> datetime | None:
        """Return the earliest time at which a worker can have judged this due time; ``None``:
        Temporal never fired.
        """
        at = due
        while any(start <= at < end for start, end in self.down["temporal"]):
            at += MINUTE
        if (at - due).total_seconds() > catch_up_s:
            return None
        while any(start <= at < end for one in self.down.values() for start, end in one):
            at += MINUTE
        return at


@pytest.mark.parametrize(
    ("zone", "change", "seed"),
    [
        pytest.param(
            zone,
            change,
            seed,
            marks=pytest.mark.troubles if (zone, change) in ALWAYS else pytest.mark.slow,
        )
        for seed, (zone, both) in enumerate(CHANGES.items())
        for change in both
    ],
)
async def test_each_due_time_has_one_line_and_at_most_one_run(
    zone: str, change: str, seed: int, tmp_path: Path
) -> None:
    w = Harness.over(tmp_path / "harness")
    play = Play(w, zone, datetime.fromisoformat(change).replace(tzinfo=UTC), seed)
    kinds = {
        f"{overlap}-{catch}": (overlap, catch) for overlap in Overlap for catch in (10, 600, 7200)
    }
    for name, (overlap, catch) in kinds.items():
        await play.put(name, overlap=overlap, catch_up_s=catch)
    await play.put("paused", overlap=Overlap.ALLOW)
    await play.put("changed", overlap=Overlap.ALLOW)
    pause, resume, put = sorted(play.random.sample(play.near, 3))
    while w.now < play.end:
        await play.minute()
        if w.now.replace(second=0) in (pause, resume):
            w.store.schedules.pause("paused", "a migration" if w.now == pause else None)
            await play.told("paused")
        if w.now == put:
            await play.put("changed", overlap=Overlap.ALLOW, cron=OTHER_CRON, catch_up_s=7200)
    for one in play.down.values():
        one[:] = [(start, min(end, play.end)) for start, end in one]
    while play.temporal.orders or w.now < play.end + timedelta(hours=5):
        await play.minute()
        assert w.now < play.end + timedelta(days=2), play.temporal.orders

    for name, (overlap, catch) in kinds.items():
        lines = play.lines(name)
        wanted = due_by_hand(zone, {10, 40}, play.start, w.now - timedelta(seconds=catch + 4260))
        assert [line.due_at for line in lines][: len(wanted)] == wanted
        assert all(line.due_at in due_by_hand(zone, {10, 40}, play.start, w.now) for line in lines)
        for line in lines:
            at = play.decided_at(line.due_at, catch)
            missed = at is None or (at - line.due_at).total_seconds() > catch
            assert (line.decision is Decision.MISSED) == missed, (name, line)
            assert (line.target is not None) == line.decision.begins, (name, line)
        spans = sorted(play.spans[line.target.id] for line in lines if line.target is not None)
        assert overlap is Overlap.ALLOW or all(
            a[1] <= b[0] for a, b in itertools.pairwise(spans)
        ), name
        for line in lines:
            if line.decision is Decision.SKIPPED_OVERLAP:
                assert overlap in (Overlap.SKIP, Overlap.STOP_PREVIOUS)
                held = any(start <= line.decided_at <= end for start, end in spans)
                assert held if overlap is Overlap.SKIP else "was due again" in str(line.reason)
        # After an outage, only the newest one, for which a running one is stopped.
        if overlap is Overlap.STOP_PREVIOUS:
            begun = [
                line.decided_at.replace(second=0, microsecond=0)
                for line in lines
                if line.target is not None
            ]
            assert len(begun) == len(set(begun)), name

    held = [line for line in play.lines("paused") if pause < line.due_at < resume]
    assert [line.due_at for line in held] == due_by_hand(zone, {10, 40}, pause, resume - MINUTE)
    assert {line.decision for line in held} <= {Decision.PAUSED, Decision.MISSED}
    changed = [
        line.due_at
        for line in play.lines("changed")
        if line.due_at < w.now - timedelta(seconds=11460)
    ]
    before, after = (
        due_by_hand(zone, {10, 40}, play.start, put),
        due_by_hand(zone, {25, 55}, put, w.now),
    )
    assert changed == before + after[: len(changed) - len(before)]
    assert len(after) - (len(changed) - len(before)) <= 4

    lines = [line for name in (*kinds, "paused", "changed") for line in play.lines(name)]
    seen = {line.decision for line in lines}
    assert seen >= {Decision.STARTED, Decision.MISSED, Decision.PAUSED}
    runs = {run.run_id: run.request_id for run in w.store.runs.list_runs(limit=10_000)}
    begun = {
        line.target.id: due_request_id(line.name, line.due_at)
        for line in lines
        if line.target is not None
    }
    assert begun == runs
    assert len(begun) == sum(line.target is not None for line in lines)
    assert {temporal_schedule_id(name) for name in kinds} <= set(play.temporal.there)
    w.close()
