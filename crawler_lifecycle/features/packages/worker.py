"""The background service of a worker that judges canaries."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from crawler_lifecycle.background import Loop
from crawler_lifecycle.domain.errors import TooManyOpen
from crawler_lifecycle.features.canaries.domain.canary import CanaryRow, CanaryState
from crawler_lifecycle.features.canaries.domain.judge import judgement
from crawler_lifecycle.store.store import Store

from .store.canaries import JUDGE

#: Seconds between two rounds.
EVERY_S = 3.0


class CanaryKeeper:
    """Ends canaries when enough runs of their new versions have ended. Several workers may do so at
    once.
    """

    def __init__(self, store: Store) -> None:
        self._canaries = store.canaries
        self._seen: dict[int, list[int]] = {}
        self._ended = 0

    def state(self) -> Mapping[str, object]:
        """Return how many canaries are open, and how many this worker has ended."""
        return {"open": len(self._seen), "ended": self._ended}

    async def run(self) -> None:
        """Judge canaries until cancelled. Never raises."""

        async def turn() -> None:
            await asyncio.to_thread(self.once)

        await Loop("the judgement of canaries", EVERY_S).run(turn)

    def once(self) -> None:
        """Judge all open canaries once. This call blocks.

        Raises ``TooManyOpen`` after all others were judged.
        """
        before = self._seen
        self._seen = {}
        failure = None
        for row in self._canaries.held(CanaryState.OPEN):
            try:
                self._seen[row.canary_id] = self._judge(row, before.get(row.canary_id))
            except TooManyOpen as error:
                failure = error
        if failure is not None:
            raise failure

    def _judge(self, row: CanaryRow, before: list[int] | None) -> list[int]:
        """Judge a canary, unless its runs are those ``before``. Return the runs that were
        counted.
        """
        runs = self._canaries.new_runs(row.canary_id)
        counted = [run.run_id for run in runs]
        if not runs or counted == before:
            return counted
        old = self._canaries.old_runs(row.canary_id, {run.of for run in runs})
        found = judgement(runs, old, row.judge, row.runs)
        if found.good is not None:
            state = CanaryState.ACCEPTED if found.good else CanaryState.REJECTED
            self._canaries.end_canary(row.canary_id, state, JUDGE, found.words(row))
            self._ended += 1
        return counted


def keeper(store: Store, _: object) -> CanaryKeeper:
    """Return the canary keeper of a worker."""
    return CanaryKeeper(store)
