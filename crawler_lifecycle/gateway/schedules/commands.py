"""Commands on schedules: put, pause, resume, trigger, backfill, delete.

The order is that of managers: first the row, then Temporal. What is on record is carried out even if this process dies
in the next moment, or Temporal is away: workers of the role audit keep both alike, and begin what was asked for.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.activities.due import run_request
from crawler_lifecycle.activities.graphs.graphs import checked_run
from crawler_lifecycle.domain.bounds import check_time, refusal
from crawler_lifecycle.domain.errors import InvalidRequest, TemporalUnavailable
from crawler_lifecycle.domain.schedules.definition import ScheduleSpec, check_schedule_name
from crawler_lifecycle.gateway.graphs.commands import GraphCommands
from crawler_lifecycle.gateway.managers.commands import ManagerCommands
from crawler_lifecycle.gateway.runs.commands import Commanded
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.ports.schedules import DueOrder, DueRow, ScheduleRow
from crawler_lifecycle.store.schedules.schedules import ScheduleStore
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.temporal.schedules import ScheduleKeeper
from crawler_lifecycle.web.problems import Problem

from .requests import AskSchedule, Backfill, PauseSchedule, PutSchedule

logger = logging.getLogger(__name__)

LATER = (
    "It is recorded, and takes effect as soon as Temporal can be reached, by a worker of the role audit, without "
    "another request."
)
#: Due times of one backfill.
BACKFILL_MAX = 500


class ScheduleCommands:
    """Change schedules, over the store and Temporal. Errors are ``Problem`` or errors of the domain."""

    def __init__(
        self,
        schedules: ScheduleStore,
        workflows: Workflows,
        crawlers: Crawlers,
        managers: ManagerCommands,
        graphs: GraphCommands,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._schedules = schedules
        self._workflows = workflows
        self._crawlers = crawlers
        self._managers = managers
        self._graphs = graphs
        self._clock = clock
        self.keeper = ScheduleKeeper(schedules, workflows, clock)

    async def find(self, name: str) -> ScheduleRow:
        """The schedule. Raises ``Problem`` 404."""
        row = await self.seen(name)
        if row is None:
            detail = f"schedule {name[:200]!r} does not exist; GET /v1/schedules lists what there is"
            raise Problem(404, "schedule_not_found", detail)
        return row

    async def seen(self, name: str) -> ScheduleRow | None:
        """The schedule of this name, if there is one."""
        row = await run_in_threadpool(self._schedules.get_schedule, name)
        return None if row is None or row.deleted_at is not None else row

    async def put(self, name: str, body: PutSchedule) -> Commanded[ScheduleRow]:
        """Make a schedule, or change its definition. Again the same: nothing more."""
        check_schedule_name(name)
        spec = body.spec()
        note = await self._check_target(name, body, spec)
        row, fresh = await run_in_threadpool(self._schedules.put_schedule, name, spec.document(), body.requested_by)
        return await self._kept(row, fresh, note)

    async def _check_target(self, name: str, body: PutSchedule, spec: ScheduleSpec) -> str | None:
        """Refuse what no due time could begin; what the caller should know. Raises ``Problem`` 422."""
        if body.run is not None:
            crawler = await self._crawlers.get(body.run.crawler)
            checked_run(run_request(name, self._clock(), spec), [crawler])
            return self._crawlers.note()
        if body.manager is not None:
            return await self._managers.check_plan(body.manager)
        return await self._graphs.check_steps(body.graph.spec().steps) if body.graph is not None else None

    async def delete(self, name: str) -> Commanded[ScheduleRow]:
        """Have nothing be due any more; its due times stay on record, and what they began goes on."""
        row = await self.find(name)
        fresh = await run_in_threadpool(self._schedules.delete_schedule, name)
        return await self._kept(row, fresh)

    async def pause(self, name: str, body: PauseSchedule) -> Commanded[ScheduleRow]:
        """Have due times begin nothing until it is resumed."""
        row = await self.find(name)
        by = f"by {body.requested_by}" if body.requested_by else "over HTTP"
        reason = f"paused {by}" + (f": {body.reason}" if body.reason else "")
        if row.paused_at is not None:
            return Commanded(row, fresh=False, note="It was paused already.")
        row = await run_in_threadpool(self._schedules.pause_schedule, name, reason)
        return await self._kept(row)

    async def resume(self, name: str) -> Commanded[ScheduleRow]:
        """Let it go on. What was due meanwhile is on record, and begins by ``backfill`` alone."""
        row = await self.find(name)
        if row.paused_at is None:
            return await self._kept(row, False, "It was not paused.")
        return await self._kept(await run_in_threadpool(self._schedules.pause_schedule, name, None))

    async def trigger(
        self, name: str, body: AskSchedule, seen: datetime | None = None, key: str | None = None
    ) -> Commanded[list[DueRow]]:
        """Have it be due now, once a second at most; the line. The same ``key`` again finds the line it asked for.

        Raises ``NotInThisState`` when somebody asked for a due time behind ``seen``, or another key has this second.
        """
        await self.find(name)
        before = None if key is None else await run_in_threadpool(self._schedules.asked_due, name, key)
        now = self._clock().replace(microsecond=0)
        lines, note = await self._ask(name, [now], body.requested_by, "triggered", seen, key)
        return Commanded(lines, fresh=before is None, note=note)

    async def backfill(self, name: str, body: Backfill) -> tuple[list[DueRow], str | None]:
        """Have all due times of a window begin that began nothing, one after the other."""
        row, now = await self.find(name), self._clock()
        until = body.until or now
        check_time("after", body.after)
        check_time("until", until)
        if not body.after < until:
            raise refusal("until", until.isoformat(), f"give a time behind after, {body.after.isoformat()}")
        if until > now:
            raise refusal("until", until.isoformat(), "it lies ahead, and comes by itself; give a past time")
        found = ScheduleSpec.read(row.definition).due_times(body.after, until)
        due = await run_in_threadpool(lambda: list(itertools.islice(found, BACKFILL_MAX + 1)))
        if len(due) > BACKFILL_MAX:
            raise InvalidRequest(
                f"until: more than {BACKFILL_MAX} due times lie in this window; "
                f"give {due[BACKFILL_MAX - 1].isoformat()}, and the rest in a request of its own"
            )
        return await self._ask(name, due, body.requested_by, "backfilled")

    async def _ask(
        self,
        name: str,
        due: Sequence[datetime],
        by: str | None,
        what: str,
        seen: datetime | None = None,
        key: str | None = None,
    ) -> tuple[list[DueRow], str | None]:
        who = by or "somebody over HTTP"
        lines = await run_in_threadpool(self._schedules.ask_due, name, due, who, f"{what} by {who}", seen, key)
        try:
            for line in lines:
                if line.target is None:
                    await self._workflows.start_due(DueOrder(name, line.due_at))
        except TemporalUnavailable as error:
            logger.warning("due times of schedule %s are recorded and not begun yet: %s", name, error)
            return lines, LATER
        return lines, None

    async def _kept(self, row: ScheduleRow, fresh: bool = True, note: str | None = None) -> Commanded[ScheduleRow]:
        later = None
        try:
            await self.keeper.keep(row.name)
        except TemporalUnavailable as error:
            logger.warning("schedule %s is recorded and Temporal is told later: %s", row.name, error)
            later = LATER
        found = await run_in_threadpool(self._schedules.get_schedule, row.name)
        return Commanded(found or row, fresh, " ".join(filter(None, (note, later))) or None)
