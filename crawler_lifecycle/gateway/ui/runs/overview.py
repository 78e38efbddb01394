"""The overview above the list of runs: what is running, what waits and why, and what needs
attention.

The template makes the links. Each number is the length of the list to which it links.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.domain.audits.corrections import wrong_for
from crawler_lifecycle.gateway.runs.answers import WEEK
from crawler_lifecycle.gateway.runs.routes import RunViews
from crawler_lifecycle.gateway.ttl_cache import TtlCache
from crawler_lifecycle.store.store import Store

from .day import LastDay

#: Seconds for which the figures of live runs are reused.
LIVE_S = 2.0
#: The same for figures that are expensive and change less often.
INCIDENTS_S = 10.0
#: The maximum number of live runs per status that are counted. The page shows if there are more.
LIVE_MAX = 10_000
#: The maximum number of runs that need attention that are counted.
ATTENTION_MAX = 100
#: The maximum number of runs and schedules with problems that are named.
NAMED = 3
#: The maximum number of reasons for waiting that are named.
REASONS = 4


@dataclass(eq=False)
class Overview:
    """Creates the overview once for all callers who may see the same runs."""

    store: Store
    views: RunViews

    def __post_init__(self) -> None:
        self._parts: dict[str, TtlCache[Any]] = {
            "live": TtlCache(partial(run_in_threadpool, self._live), LIVE_S),
            "incidents": TtlCache(partial(run_in_threadpool, self._incidents), INCIDENTS_S),
            "day": LastDay(self.store.runs, self.views.clock).kept,
        }

    async def read_within(self, seconds: float) -> dict[str, Any]:
        """Return the values of the templates.

        If a part takes longer, return its last values or ``None``.

        Raises ``StoreUnavailable``.
        """
        parts = await asyncio.gather(
            *(part.own.read_within(seconds) for part in self._parts.values())
        )
        return dict(zip(self._parts, parts, strict=True))

    def _live(self) -> dict[str, Any]:
        live = self.store.runs.live_now(LIVE_MAX)
        waits = sorted(live.waits, key=lambda one: -one.runs)
        said = self._why([wait.oldest for wait in waits[:REASONS]])
        return {
            "runs": live,
            "most": LIVE_MAX,
            "waits": waits[:REASONS],
            "more": len(waits[REASONS:]),
            "said": said,
        }

    def _why(self, run_ids: list[int]) -> dict[int, str | None]:
        """Return for each of these runs a sentence about why it waits."""
        near = [self.store.runs.list_runs(before_run_id=run_id + 1, limit=1) for run_id in run_ids]
        rows = [
            row
            for run_id, page in zip(run_ids, near, strict=True)
            for row in page
            if row.run_id == run_id
        ]
        tasks = self.views.tasks_of(rows)
        now = self.views.clock()
        return {row.run_id: self.views.of(row, now, tasks[row.run_id]).waits for row in rows}

    def _incidents(self) -> dict[str, Any]:
        store = self.store
        runs = store.runs.brief_runs(ATTENTION_MAX, attention=True)
        due = [one for one in store.schedules.latest_due().values() if one.trouble]
        due.sort(key=lambda one: one.due_at, reverse=True)
        wrong = store.corrections.correction_summary(self.views.clock() - WEEK)
        found = {"attention": len(runs), "most": ATTENTION_MAX, "runs": runs[:NAMED]}
        return found | {
            "schedules": len(due),
            "due": due[:NAMED],
            "corrections": wrong.count,
            "wrong": wrong_for(wrong.worst_ms),
        }
