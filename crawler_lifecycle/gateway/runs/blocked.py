"""Runs, managers and graphs whose workflow is blocked. One query finds all of them; a second call explains one.

Managers, graphs, firings and webhooks without a workflow are also reported, as ``worker/overdue_looks.py`` found them.

Runs with an overdue look are explained too: the server has no list of workflows whose next step no worker takes.

A bug in workflow code does not fail a run. Its next step is tried again until a build is deployed that can execute it.
Until then the run shows nothing new, and people must see the reason.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.background import Loop
from crawler_lifecycle.domain.audits.audit import LOST
from crawler_lifecycle.domain.audits.overdue import overdue_before
from crawler_lifecycle.domain.errors import LifecycleError, TemporalUnavailable
from crawler_lifecycle.domain.names import export_workflow_id, workflow_id
from crawler_lifecycle.domain.schedules.definition import due_workflow_id
from crawler_lifecycle.domain.webhooks.definition import webhook_workflow_id
from crawler_lifecycle.gateway.metrics import Metrics
from crawler_lifecycle.ports.looks import FindingRow
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.ports.schedules import DueRow, ScheduleRow
from crawler_lifecycle.ports.webhooks import WebhookRow
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.temporal.workflow_problems import WorkflowProblem

#: Seconds for which an explanation is reused, and seconds that a reader waits for one: Temporal may not answer.
FRESH_S, ANSWER_S = 3.0, 1.0
#: The most explanations of one background round, and the most that are kept.
EXPLAINED_MAX, KEPT_MAX = 20, 2000
#: The most open findings about missing workflows that are read.
LOST_MAX = 1000
#: The length of the end of a firing's workflow id: a hyphen and the due time.
_DUE_LETTERS = len("-2026-03-01T12:00:00Z")
WORDS_MAX = 300
#: The beginning of the SDK's message about a step that took too long.
_TOO_LONG = "[TMPRL1101]"


@dataclass(frozen=True, slots=True)
class _Kept:
    at: float
    text: str | None
    since: datetime | None = None


@dataclass(eq=False)
class Blocked:
    """The reasons of runs that cannot continue. ``listed`` reads memory only; ``of`` asks Temporal about one run."""

    store: Store
    workflows: Workflows
    metrics: Metrics
    clock: Callable[[], datetime]
    every_s: float

    def __post_init__(self) -> None:
        self._lost: Mapping[str, str] = {}
        self._noted: dict[str, datetime] = {}
        self._known: dict[str, str] = {}
        self._late: set[str] = set()
        self._kept: dict[str, _Kept] = {}
        self._silent_until = 0.0
        self._loop = Loop("the search for runs that cannot continue", self.every_s)

    async def run(self) -> None:
        """Update the list until this is cancelled. Raises nothing."""
        await self._loop.run(self.once)

    async def once(self) -> None:
        """Make one query, and explain what it found. Raises ``TemporalUnavailable``."""
        with suppress(LifecycleError):  # the database is unavailable, as ``/readyz`` says
            self._lost = lost_words(await run_in_threadpool(self.store.findings.audit_findings, limit=LOST_MAX))
        try:
            self._known = await self.workflows.problems()
        except Exception:
            # The number is not known: neither 0 nor the last number would be true.
            self.metrics.blocked.set(math.nan)
            raise
        self.metrics.blocked.set(len(self._known))
        try:
            due_before = overdue_before(self.clock())
            runs = await run_in_threadpool(self.store.overdue.overdue_runs, due_before, limit=EXPLAINED_MAX)
        except LifecycleError:  # the database is unavailable, as ``/readyz`` says
            runs = []
        late = {run.owner_workflow_id or workflow_id(run.crawler, run.request_id): run.run_id for run in runs}
        self._late = set(late)
        for name in [*list(self._known)[:EXPLAINED_MAX], *sorted(self._late)]:
            await self._explain(name)
            await self._report(name, late.get(name))

    async def _report(self, name: str, run_id: int | None) -> None:
        """Record once that this workflow cannot continue."""
        kept = self._kept.get(name)
        if kept is None or kept.text is None or kept.since is None or self._noted.get(name) == kept.since:
            return
        try:
            await run_in_threadpool(self.store.troubles.note_blocked, name, run_id, kept.text, kept.since)
        except LifecycleError:
            return  # the database is unavailable: the next round tries again
        if len(self._noted) >= KEPT_MAX:
            self._noted.clear()
        self._noted[name] = kept.since

    def listed(self, row: RunRow) -> str | None:
        """Return the reason why this run does not continue, if the last query found one."""
        return self.listed_workflow(*_names(row))

    async def of_workflow(self, name: str, *, is_open: bool) -> str | None:
        """Return the reason why the workflow of a manager or graph does not continue, if there is one."""
        return (await self._explain(name) if is_open else None) or self.listed_workflow(name)

    def webhook(self, row: WebhookRow) -> WebhookRow:
        """Return the row. If its workflow is missing, the row has this as its error."""
        why = self._lost.get(webhook_workflow_id(row.name))
        return row if why is None else replace(row, error=why, failing_since=row.failing_since or row.updated_at)

    def due(self, row: DueRow) -> DueRow:
        """Return the row. If its workflow is missing, its reason says so."""
        why = self._lost.get(due_workflow_id(row.name, row.due_at))
        return row if why is None else replace(row, reason=f"{row.reason}; {why}" if row.reason else why)

    def schedule(self, row: ScheduleRow) -> ScheduleRow:
        """Return the row. If the workflow of one of its firings is missing, ``trouble`` says so."""
        mine = due_workflow_id(row.name)
        lost = (why for name, why in self._lost.items() if name[:-_DUE_LETTERS] == mine)
        return replace(row, trouble=next(lost, row.trouble))

    def listed_workflow(self, *names: str) -> str | None:
        """Return the reason of the first of these workflows that does not continue."""
        for name in names:
            if name in self._lost:
                return self._lost[name]
            if name in self._known:
                kept = self._kept.get(name)
                return (kept.text if kept else None) or _unexplained(self._known[name])
            if name in self._late and name in self._kept:
                return self._kept[name].text
        return None

    async def of(self, row: RunRow) -> str | None:
        """Return the reason why this run does not continue, even if the server does not list it yet. Waits at most a
        second for the server's answer."""
        main = _names(row)[0]
        if row.status.terminal and main not in self._known:
            return self.listed(row)
        return await self._explain(main) or self.listed(row)

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
            self._silent_until = time.monotonic() + self.every_s  # so not every reader waits
            return None
        text = None if found is None else in_words(found)
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        self._kept[name] = _Kept(time.monotonic(), text, None if found is None else found.since)
        return text


def in_words(problem: WorkflowProblem) -> str:
    """Return a sentence: what fails since when, and the cure."""
    since = f"since {problem.since:%Y-%m-%d %H:%M:%S} UTC"
    if problem.what is None:
        return (
            f"no worker has taken up its next step {since}; start one (crawlctl worker workflows), and if workers have "
            "build ids, make one of them current"
        )
    what = " ".join(problem.what.split())[:WORDS_MAX]
    if problem.misfit:
        return (
            f"its workflow cannot continue {since}: this build cannot continue the work of an earlier build ({what}); "
            "deploy the earlier build again, or one that replays histories; its crawl continues, but a stop has to wait"
        )
    if _TOO_LONG in what:
        return (
            f"its workflow cannot continue {since}: its next step takes longer than the allowed two seconds; its "
            "worker has too much to do, or it gets very many signals (temporal workflow show lists them); give the "
            "role workflows more processors, and end the signals; its crawl continues, but a stop has to wait"
        )
    return (
        f"its workflow cannot continue {since}: {what}; deploy a build that corrects this, and it continues by itself; "
        "its crawl continues, but a stop has to wait"
    )


def lost_words(found: Sequence[FindingRow]) -> dict[str, str]:
    """Return a sentence for each missing workflow, by its id. Runs are left out: their overdue looks show it."""
    return {
        str(one.workflow_id): f"it has no workflow: {one.detail}" + (f"; so far: {one.repair}" if one.tries else "")
        for one in found
        if one.kind in LOST and one.run_id is None
    }


def _unexplained(cause: str) -> str:
    return f"its workflow cannot continue ({cause or 'its next step fails'}); deploy a build that corrects this"


def _names(row: RunRow) -> tuple[str, str]:
    """Return the ids of the workflows of a run: its own, and the one that repeats its deliveries."""
    own = row.owner_workflow_id or workflow_id(row.crawler, row.request_id)
    return own, export_workflow_id(row.ref, row.attempt)
