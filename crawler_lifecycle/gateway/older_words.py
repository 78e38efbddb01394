"""Background work that makes the runs of older builds searchable."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.background import DONE, Loop
from crawler_lifecycle.store.runs.search_documents import SearchStore

#: Seconds between two rounds, and seconds of writing in each round. The limits keep other work
#: running.
EVERY_S = 2.0
ROUND_S = 0.5


@dataclass(frozen=True)
class OlderWords:
    """Writes the words of runs from before migration 0011. Several gateways can do this at the same
    time."""

    store: SearchStore

    async def run(self) -> None:
        """Make rounds until no run is left, or until this is cancelled."""
        await Loop("writing the words of older runs", EVERY_S).run(
            partial(run_in_threadpool, self._round)
        )

    def _round(self) -> float | None:
        until = time.monotonic() + ROUND_S
        while time.monotonic() < until:
            if not self.store.fill():
                return DONE
        return None
