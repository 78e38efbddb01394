"""Retries: further tries of tasks that ended without success, by the run's retry policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from crawler_lifecycle.domain.crawlers.crawler import CrawlerKind
from crawler_lifecycle.domain.ends import NO_ENDS, RUNNER, Ends, Reading, reading
from crawler_lifecycle.domain.resources import parse_memory
from crawler_lifecycle.domain.retries import (
    EndedTry,
    NextTry,
    Retries,
    budget_of,
    next_try,
    resolved,
)
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.ports.protocols import Catalogue
from crawler_lifecycle.ports.runs import Fence, QueuedTask, Resting

from .shared import (
    Counts,
    activity_method,
    alive,
    ordered_at,
    reporting,
)

if TYPE_CHECKING:
    from crawler_lifecycle.store.runs.deployment import DeploymentStore
    from crawler_lifecycle.store.runs.reads import RunReader
    from crawler_lifecycle.store.runs.retries import RetryStore
    from crawler_lifecycle.store.runs.tasks import TaskReader

#: The maximum number of pages of ended tasks that one activity processes. Each page is one
#: transaction.
PAGES = 10


@dataclass(frozen=True, slots=True)
class RetryReport:
    """Result of ``retry_ended_tasks``."""

    counts: Counts
    ended: int
    """The number of tasks that ended without success and are not retried. This number is lower than
    the final number while there are undecided ends.
    """
    resting: Resting


@dataclass(frozen=True, slots=True)
class Policies:
    """The rules for ends and retries: the installation's rules, and the rules in the crawlers'
    entries."""

    retries: RetryStore
    catalogue: Catalogue
    installation: Retries
    ends: Ends = NO_ENDS

    def reading(self, crawler: str | None) -> Reading | None:
        """Return how this crawler's exit codes and finish reasons are interpreted, or ``None`` if
        this worker does not have the crawler's entry.
        """
        entry = self.catalogue.get(crawler or "")
        return (
            None
            if entry is None
            else reading(entry.ends, self.ends, scrapy=entry.kind is CrawlerKind.SCRAPY)
        )

    def of(self, request: RunRequest) -> tuple[Retries, str | None]:
        """Return the retry policy for a run, and the memory limit with which the run's tasks begin,
        if it is set."""
        crawler = self.catalogue.get(request.crawler or "")
        policy = resolved(
            request.retries, None if crawler is None else crawler.retries, self.installation
        )
        resources = (
            request.resources if crawler is None else request.resources.over(crawler.resources)
        )
        known = (
            self.retries.memory_of(request.project, request.crawler or "")
            if policy.remember
            else None
        )
        if policy.memory_cap is not None:
            known = min(known, policy.memory_cap, key=_bytes)
        return policy, max(resources.memory, known, key=_bytes)

    def for_tasks(self, request: RunRequest, tasks: Sequence[QueuedTask]) -> list[QueuedTask]:
        """Return the tasks, with the memory and the nodes that the policy sets."""
        policy, memory = self.of(request)
        first = memory if policy.remember else None
        elsewhere = policy.retry_on
        found = []
        for task in tasks:
            given = elsewhere is not None and task.retry >= elsewhere.after
            labels: Mapping[str, str] = (
                elsewhere.node_selector if elsewhere is not None and given else {}
            )
            found.append(replace(task, memory=task.memory or first, node_selector=labels))
        return found


def _bytes(text: str | None) -> int:
    return parse_memory(text) or 0


@dataclass
class RetryActivities:
    """Activities of retries."""

    retries: RetryStore
    waits: DeploymentStore
    runs: RunReader
    tasks: TaskReader
    policies: Policies

    @activity_method
    def retry_ended_tasks(self, fence: Fence) -> RetryReport:
        """Insert QUEUED rows for tasks that ended without success and that the policy retries, for
        a few pages of ends.

        Second execution: each end is decided only once, so the next pages are processed.
        """
        with reporting(self.waits.note_waiting, fence):
            request = self.runs.request_of(fence.run_id)
            policy, memory = self.policies.of(request)
            ends = self.policies.reading(request.crawler) or RUNNER
            tasks = sum(self.tasks.count_tasks(fence.run_id).by_status.values())
            budget = budget_of(policy, tasks)

            def decide(end: EndedTry, used: int) -> NextTry | str:
                return next_try(
                    policy, replace(end, memory=end.memory or memory), used, budget, ends
                )

            # Waits are measured by Temporal's clock alone, so they do not depend on clocks that are
            # set or that differ between workers.
            more: Any = {"remember": bool(policy.remember), "now": ordered_at()}
            for _ in range(PAGES):
                done = self.retries.retry_ended(fence, decide, policy.max or 0, **more)
                if not done.left:
                    break
                alive()
        return RetryReport(Counts.of(done.counts), done.ended, done.resting)
