"""Port of looks: staged findings, and counters between looks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.values import (
    Counted,
    Details,
    Fence,
    FoundState,
    Look,
    LookReport,
    TaskCounts,
    TaskFinding,
)


class DetailStore(Protocol):
    """Debugging information that waits to be written."""

    def save_details(self, fence: Fence, details: Sequence[Details]) -> None:
        """Stage debugging information until ``apply_details``."""
        ...


class LookStore(DetailStore, Protocol):
    """Looks: their findings are staged, and then applied in one transaction."""

    def found_state(self, fence: Fence) -> FoundState:
        """The unsettled tasks of the run and what is needed to judge a look."""
        ...

    def record_look(
        self,
        fence: Fence,
        look: Look,
        findings: Sequence[TaskFinding],
        next_look_at: datetime | None,
        source: str,
        ordered_at: datetime | None = None,
    ) -> LookReport:
        """Stage the findings; commit ``verified_at``, ``next_look_at``, counters and ``last_progress_at``.

        ``next_look_at`` None: this look is beside those that are planned, and their plan stays.

        ``ordered_at`` is when this try of the look was ordered, by the one clock that orders them all. Raises
        ``Overtaken`` when a look that was ordered later is on record: this one comes from a worker that was frozen.
        """
        ...

    def record_look_error(self, fence: Fence, error: str, ordered_at: datetime | None = None) -> None:
        """Write down why the last look failed, and since when looks do, until one succeeds.

        Nothing when a look that was ordered later is on record.
        """
        ...

    def staged(self, fence: Fence, after_index: int = -1, limit: int = 500) -> list[TaskFinding]:
        """The staged findings in order of the task's index."""
        ...

    def apply_details(self, fence: Fence) -> int:
        """Write staged observations and details into ``task_history``, ``task_log``, ``task_stats``; how many tasks."""
        ...

    def apply_findings(self, fence: Fence, source: str, observed_at: datetime | None = None) -> TaskCounts:
        """Change the staged statuses by compare-and-set, with transitions, corrections and one ``run.changed``.

        With ``observed_at`` only what that look staged; when another one came after it, nothing.
        """
        ...


class LiveCounterStore(Protocol):
    """Counters of crawlers that execute."""

    def record_counts(self, run: RunRef, counted: Sequence[Counted]) -> int:
        """Raise counters of the run's live tasks, between looks; how many tasks. ``counted`` is of that run.

        Never lowers one, and touches neither what has ended nor what is of another attempt or another run's uid. Moves
        ``last_progress_at``, and neither ``updated_at`` nor anything of looks; makes no event. Raises ``RunNotFound``.
        """
        ...
