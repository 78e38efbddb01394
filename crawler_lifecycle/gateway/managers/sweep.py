"""The sweep of managers: begins and wakes what was recorded while Temporal was away, or its gateway died.

Several gateways may sweep at once: a start finds the open workflow, and a signal only wakes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.background import Loop
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.ports.store.managers import ManagerReader, ManagerRow

from .commands import ManagerCommands

logger = logging.getLogger(__name__)

#: Younger rows are left to the request that wrote them.
GRACE = timedelta(seconds=10)
#: A row that stays is tried again ever more rarely: each signal is an event in a workflow's history.
RETRY_MAX = timedelta(minutes=10)
PAGE = 200


class ManagerSweep:
    """One round with ``once``, rounds for ever with ``run``."""

    def __init__(
        self,
        managers: ManagerReader,
        commands: ManagerCommands,
        *,
        every_s: float = 15.0,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._managers = managers
        self._commands = commands
        self._every_s = every_s
        self._clock = clock
        self._tried: dict[int, tuple[datetime, timedelta]] = {}
        self._loop = Loop("the sweep for accepted managers", every_s)

    async def run(self) -> None:
        """Sweep until it is cancelled. Raises nothing."""
        await self._loop.run(self._next)

    async def _next(self) -> None:
        await self.once()

    async def once(self) -> int:
        """One round; how many managers were begun or woken. Raises ``LifecycleError``."""
        waiting = await run_in_threadpool(self._waiting)
        self._tried = {key: value for key, value in self._tried.items() if key in waiting}
        return sum([await self._tell(row) for row in waiting.values()])

    def _waiting(self) -> dict[int, ManagerRow]:
        due = self._clock() - GRACE
        found = [row for row in self._all(RunStatus.INITIALIZING) if row.owner_run_id is None and row.updated_at <= due]
        found += [row for row in self._all(RunStatus.STOPPING) if row.updated_at <= due]
        found += filter(None, (self._managers.get_manager(one) for one in sorted(self._commands.untold)))
        return {row.manager_id: row for row in found}

    def _all(self, status: RunStatus) -> list[ManagerRow]:
        found: list[ManagerRow] = []
        while True:
            before = found[-1].manager_id if found else None
            page = self._managers.list_managers(before, PAGE, status=status)
            found += page
            if len(page) < PAGE:
                return found

    async def _tell(self, row: ManagerRow) -> int:
        now = self._clock()
        next_at, wait = self._tried.get(row.manager_id, (now, timedelta(seconds=self._every_s)))
        if now < next_at and row.manager_id not in self._commands.untold:
            return 0
        self._tried[row.manager_id] = (now + wait, min(wait * 2, RETRY_MAX))
        try:
            if await self._commands.tell(row) is not None:
                del self._tried[row.manager_id]
                return 0
        except Exception:
            logger.exception("manager %d could not be brought to Temporal", row.manager_id)
            return 0
        logger.info("brought manager %d to Temporal", row.manager_id)
        return 1
