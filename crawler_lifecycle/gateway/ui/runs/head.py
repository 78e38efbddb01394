"""The part that all tabs of a run share: its name, state, cause, actions and tabs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.gateway.runs.answers import RunDetail
from crawler_lifecycle.gateway.runs.commands import found
from crawler_lifecycle.gateway.runs.routes import RunViews
from crawler_lifecycle.gateway.streams.timeline import Timeline
from crawler_lifecycle.gateway.ui.parts.formats import number
from crawler_lifecycle.gateway.ui.parts.tabs import tabs_of
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.subjects import RUN

from .story import cause


@dataclass(eq=False)
class RunHead:
    """Reads the data that every tab of a run shows.

    ``temporal_page`` returns the address of a workflow in Temporal's web UI.
    """

    store: Store
    views: RunViews
    temporal_page: Callable[[str, str], str | None]

    def __post_init__(self) -> None:
        store = self.store
        self.timeline = Timeline(
            store.runs, store.tasks, store.corrections, store.exports, store.events
        )

    async def read(self, run_id: int) -> tuple[RunRow, dict[str, Any]]:
        """Return the run, and the values for its head. Raises ``Problem`` 404."""
        row = await run_in_threadpool(found, self.store.runs, run_id)
        run = await self.views.detail_of(row)
        return row, await run_in_threadpool(self._values, row, run)

    def _values(self, row: RunRow, run: RunDetail) -> dict[str, Any]:
        return {
            "head": "run_head.html",
            "run": run,
            "cause": cause(run),
            "tabs": tabs_of(RUN.path(run.run_id), counts(run)),
            "temporal": self.temporal_page("workflows", run.workflow_id),
            "now": self.views.clock(),
        }


def counts(run: RunDetail) -> dict[str, str | None]:
    """Return the count of each tab by its word. A count is ``None`` if it is unknown or takes too
    long.
    """
    kept = [export.files for export in run.exports if export.files is not None]
    found: dict[str, str | None] = dict.fromkeys(("Overview", "Log"))
    found["Items"] = None if run.items is None else number(run.items)
    found["Files"] = number(kept[-1]) if kept else None
    found["Tasks"] = number(sum(run.tasks.values()))
    return found | dict.fromkeys(("Timeline", "Request"))
