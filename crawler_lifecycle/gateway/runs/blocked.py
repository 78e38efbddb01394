"""Runs, managers and graphs whose workflow is blocked.

One query finds all of them, and a second call explains one of them. Subjects without a workflow,
including firings and webhooks, are reported as ``worker/overdue_polls.py`` found them. Runs with an
overdue poll are explained too, because the server has no list of workflows whose next step no
worker takes.

A bug in workflow code does not fail a run. Its next step is retried until a deployed build can
execute it. Until then, the run shows nothing new, and people must see the reason.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.background import Loop
from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.audits.audit import LOST
from crawler_lifecycle.domain.audits.overdue import overdue_before
from crawler_lifecycle.domain.errors import LifecycleError, TemporalUnavailable
from crawler_lifecycle.domain.names import export_workflow_id, workflow_id
from crawler_lifecycle.gateway.metrics import Metrics
from crawler_lifecycle.ports.polls import FindingRow
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.temporal.workflow_problems import WorkflowProblem

#: Seconds for which an explanation is reused.
FRESH_S = 3.0
#: Seconds that a reader waits for an explanation, because Temporal may not answer.
ANSWER_S = 1.0
#: The maximum number of explanations in one background round.
EXPLAINED_MAX = 20
#: The maximum number of explanations that are kept.
KEPT_MAX = 2000
#: The maximum number of open findings about missing workflows that are read.
LOST_MAX = 1000
WORDS_MAX = 300
#: A statement of how a missing workflow is replaced.
_NEW = "; an audit starts a new one within a minute, unless LIFECYCLE_AUDIT__REPAIR is false"
#: The beginning of the SDK's message about a workflow step that took too long.
_TOO_LONG = "[TMPRL1101]"


@dataclass(frozen=True, slots=True)
class _BlockedText:
    at: float
    text: str | None
    since: datetime | None = None


@dataclass(eq=False)
class BlockedRuns:
    """The reasons why runs cannot continue.

    ``listed`` reads only memory, and ``of`` asks Temporal about one run.
    """

    store: Store
    workflows: Workflows
    metrics: Metrics
    clock: Clock
    every_s: float

    def __post_init__(self) -> None:
        self._lost: Mapping[str, str] = {}
        self._noted: dict[str, datetime] = {}
        self._known: dict[str, str] = {}
        self._late: set[str] = set()
        self._kept: dict[str, _BlockedText] = {}
        self._silent_until = 0.0
        self._away_since: datetime | None = None
        self._loop = Loop("the search for runs that cannot continue", self.every_s)

    async def run(self) -> None:
        """Update the list until this is cancelled. This method never raises."""
        await self._loop.run(self.once)

    async def once(self) -> None:
        """Make one query, and explain the runs that it found. Raises ``TemporalUnavailable``."""
        with suppress(LifecycleError):  # the database is unavailable, as ``/readyz`` shows
            found = await run_in_threadpool(self.store.findings.audit_findings, limit=LOST_MAX)
            self._lost = lost_words(found, self.clock())
        try:
            self._known = await self.workflows.problems()
        except Exception:
            self._away_since = self._away_since or self.clock()
            # The number is unknown, so neither 0 nor the last number would be true.
            self.metrics.blocked.set(math.nan)
            raise
        self._away_since = None
        self.metrics.blocked.set(len(self._known))
        try:
            due_before = overdue_before(self.clock())
            runs = await run_in_threadpool(
                self.store.overdue.overdue_runs, due_before, limit=EXPLAINED_MAX
            )
        except LifecycleError:  # the database is unavailable, as ``/readyz`` shows
            runs = []
        late = {
            run.owner_workflow_id or workflow_id(run.crawler, run.request_id): run.run_id
            for run in runs
        }
        self._late = set(late)
        for name in [*list(self._known)[:EXPLAINED_MAX], *sorted(self._late)]:
            await self._explain(name)
            await self._report(name, late.get(name))

    async def _report(self, name: str, run_id: int | None) -> None:
        """Record that this workflow cannot continue, once for each incident."""
        kept = self._kept.get(name)
        if (
            kept is None
            or kept.text is None
            or kept.since is None
            or self._noted.get(name) == kept.since
        ):
            return
        try:
            await run_in_threadpool(
                self.store.run_reports.note_blocked, name, run_id, kept.text, kept.since
            )
        except LifecycleError:
            return  # the database is unavailable: the next round tries again
        if len(self._noted) >= KEPT_MAX:
            self._noted.clear()
        self._noted[name] = kept.since

    def listed(self, row: RunRow) -> str | None:
        """Return the reason why this run does not continue, if the last query found one."""
        return self._away(row) or self.listed_workflow(*_names(row))

    def _away(self, row: RunRow) -> str | None:
        """Return a sentence about what waits for Temporal and what does not, or ``None`` if
        Temporal answers or the run has ended.
        """
        if self._away_since is None or row.status.terminal:
            return None
        since = _clock(self._away_since)
        polled_at = row.verified_at
        verified = (
            "is not verified yet" if polled_at is None else f"was verified at {_clock(polled_at)}"
        )
        waits = f"Temporal has not answered since {since}: retries, stops and the verdict wait"
        return f"{waits}; its status {verified}, and polls continue"

    async def of_workflow(self, *names: str, is_open: bool) -> str | None:
        """Return the reason why one of these workflows does not continue.

        For the first one, ask the server even if it is not listed yet, and wait at most a second
        for the answer.
        """
        return (await self._explain(names[0]) if is_open else None) or self.listed_workflow(*names)

    def names(self) -> tuple[str, ...]:
        """Return the ids of all workflows that are missing or do not continue, except those of runs
        with overdue polls.
        """
        return (*self._lost, *self._known)

    def listed_workflow(self, *names: str) -> str | None:
        """Return the reason for the first of these workflows that does not continue."""
        for name in names:
            if name in self._lost:
                return self._lost[name]
            kept = self._kept.get(name, _BlockedText(0.0, None))
            if name in self._known:
                return kept.text or _unexplained(self._known[name])
            if name in self._late and kept.text:
                return kept.text
        return None

    async def of(self, row: RunRow) -> str | None:
        """Return the reason why this run does not continue, as ``of_workflow`` does."""
        if (away := self._away(row)) is not None:
            return away
        names = _names(row)
        return await self.of_workflow(
            *names, is_open=not row.status.terminal or names[0] in self._known
        )

    async def _explain(self, name: str) -> str | None:
        kept = self._kept.get(name)
        if kept is not None and time.monotonic() - kept.at < FRESH_S:
            return kept.text
        if time.monotonic() < self._silent_until:
            return None
        try:
            async with asyncio.timeout(ANSWER_S):
                found = await self.workflows.problem(name)
        except (TimeoutError, TemporalUnavailable):
            # Other readers need not wait again.
            self._silent_until = time.monotonic() + self.every_s
            return None
        text = None if found is None else in_words(found)
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        self._kept[name] = _BlockedText(
            time.monotonic(), text, None if found is None else found.since
        )
        return text


def in_words(problem: WorkflowProblem) -> str:
    """Return a sentence with the failure, since when it occurs, and the fix."""
    since = f"since {problem.since:%Y-%m-%d %H:%M:%S} UTC"
    if problem.what is None:
        return (
            f"no worker has started its next step {since}; start one (crawlctl worker workflows), "
            "and if workers have build ids, make one of these current"
        )
    what = " ".join(problem.what.split())[:WORDS_MAX]
    if problem.paused is not None:
        why = f"its {problem.paused} is paused in Temporal {since} {what}; unpause it there"
    elif problem.misfit:
        why = (
            f"its workflow cannot continue {since}: this build cannot continue the work of an "
            f"earlier build ({what}); "
            "deploy the earlier build again, or one that replays histories"
        )
    elif _TOO_LONG in what:
        why = (
            f"its workflow cannot continue {since}: its next step takes longer than the allowed "
            "two seconds; its worker is overloaded, or it receives too many signals (temporal "
            "workflow show lists "
            "them); give the role workflows more processors, and stop the source of the signals"
        )
    else:
        why = (
            f"its workflow cannot continue {since}: {what}; deploy a build that fixes this, and "
            "it continues automatically"
        )
    return (
        f"{why}; its crawl continues, but a stop has to wait: a forced one ends the crawl "
        "within a minute"
    )


def lost_words(found: Sequence[FindingRow], now: datetime) -> dict[str, str]:
    """Return a sentence for each missing workflow, by its id.

    Nobody closes the finding of a run that a person resumed, so it only counts while the search
    still finds it.
    """
    since = overdue_before(now)
    return {
        str(finding.workflow_id): f"it has no workflow: {finding.detail}"
        + (f"; so far: {finding.repair}" if finding.tries else _NEW)
        for finding in found
        if finding.kind in LOST and (finding.run_id is None or finding.last_seen >= since)
    }


def _clock(at: datetime) -> str:
    return f"{at:%H:%M:%S} UTC"


def _unexplained(cause: str) -> str:
    if not cause:
        return "its workflow is paused in Temporal; unpause it there, or stop it by force"
    return f"its workflow cannot continue ({cause}); deploy a build that fixes this"


def _names(row: RunRow) -> tuple[str, str]:
    """Return the ids of a run's workflows: its own, and the one that repeats its deliveries."""
    own = row.owner_workflow_id or workflow_id(row.crawler, row.request_id)
    return own, export_workflow_id(row.ref, row.attempt)
