"""Calls of waiting runs: when a pool or a site has a free slot, the next run in its line gets the
signal ``place_free``.

Every worker with the ``cluster`` role does this. A row lock in the database ensures that no slot is
announced twice. A failure only costs time, because a run also requests slots after each of its
polls.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from crawler_lifecycle.background import Loop
from crawler_lifecycle.store.runs.tickets import SlotLines

#: Seconds between two turns. Without waiting runs, a turn is one small query.
EVERY_S = 0.5
#: The number of turns between two adoptions. While pools are changed, workers with the old settings
#: may still write tickets.
ADOPT_TURNS = 120
#: Seconds until the next turn after an error: the first pause and the longest pause.
RETRY_S = (1.0, 30.0)

CALLED = "called"
GONE = "gone"


class SlotCalls:
    """Calls waiting runs repeatedly in the event loop of a worker.

    ``name`` says whose slots the runs wait for. ``call`` sends ``place_free`` to a workflow id, and
    returns whether that workflow is open.
    """

    def __init__(
        self,
        name: str,
        lines: SlotLines,
        call: Callable[[str], Awaitable[bool]],
        every_s: float = EVERY_S,
    ) -> None:
        self._lines = lines
        self._call = call
        self._turns = 0
        self._loop = Loop(
            f"calling runs that wait for slots of their {name}", every_s, retry_s=RETRY_S
        )
        self.counts: Counter[str] = Counter()

    def state(self) -> Mapping[str, object]:
        """Return the state for a probe, with the number of calls since the start."""
        return {"problem": self._loop.failures.problem, **self.counts}

    async def run(self) -> None:
        """Call waiting runs until cancelled. Never raises."""
        await self._loop.run(self._turn)

    async def _turn(self) -> None:
        if self._turns % ADOPT_TURNS == 0:
            await asyncio.to_thread(self._lines.adopt)
        self._turns += 1
        errors = dict[int, Exception]()
        gone = list[int]()
        calls = await asyncio.to_thread(self._lines.call)
        for run_id, workflow_id in calls.items():
            try:
                is_open = await self._call(workflow_id)
                self.counts[CALLED if is_open else GONE] += 1
                gone += [] if is_open else [run_id]
            except Exception as error:  # the other runs must not wait for their next call
                errors[run_id] = error
        if gone:
            await asyncio.to_thread(self._lines.uncall, gone, gone=True)
        if errors:
            if len(errors) == len(calls):  # without Temporal, no run loses its turn
                await asyncio.to_thread(self._lines.uncall, list(errors), gone=False)
            raise next(iter(errors.values()))
