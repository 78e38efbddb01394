"""A time that a workflow waits for, beside whatever else it waits for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from temporalio import workflow

from .calls import pause


class Alarm:
    """Rings when a time has come: ``rang`` is true until the workflow says otherwise.

    One timer goes on while that time moves further away: a timer for each wait would cost two events more.
    """

    def __init__(self, at: Callable[[], datetime | None], summary: str) -> None:
        self._at, self._summary = at, summary
        self.rang = False

    async def keep(self, over: Callable[[], bool]) -> None:
        """Watch the time until it is over. Raises ``MustLeave``."""
        while not over():
            await workflow.wait_condition(lambda: self._at() is not None and not self.rang)
            at = self._at()
            if at is None:
                continue
            left = (at - workflow.now()).total_seconds()
            if left > 0.002:  # the server's timers have whole milliseconds
                await pause(left, lambda at=at: (now := self._at()) is None or now < at, self._summary)  # type: ignore[misc]
            else:
                self.rang = True
