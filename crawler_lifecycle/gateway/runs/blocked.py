"""Runs, managers and graphs whose workflow is blocked: found by one query for all, explained for one.

What no workflow carries is told as searches found it (``worker/overdue_looks.py``), also of due times and webhooks.

Those whose look is overdue are asked about as well: no list of the server's tells that no worker takes a step up.

A bug in workflow code fails no run: its next step is tried again until a build is deployed that can take it. Until then
the run shows nothing new, which must not look like "all is well".
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

#: Seconds for which an explanation holds, and how long a reader waits for one; reading a run must not hang on Temporal.
FRESH_S, ANSWER_S = 3.0, 1.0
#: Explanations asked for in one round of the background, and kept in all.
EXPLAINED_MAX, KEPT_MAX = 20, 2000
#: Open findings that are read for what no workflow carries.
LOST_MAX = 1000
#: The due time in the id of its workflow, and the stroke before it.
_DUE_LETTERS = len("-2026-03-01T12:00:00Z")
WORDS_MAX = 300
#: How the SDK begins to tell that a step did not end in its time.
_TOO_LONG = "[TMPRL1101]"


@dataclass(frozen=True, slots=True)
class _Kept:
    at: float
    text: str | None
    since: datetime | None = None


@dataclass(eq=False)
class Blocked:
    """Knowledge about runs that cannot go on. ``listed`` asks nobody, ``of`` asks Temporal about one run."""

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
        self._loop = Loop("the search for runs that cannot go on", self.every_s)

    async def run(self) -> None:
        """Keep the list until it is cancelled. Raises nothing."""
        await self._loop.run(self.once)

    async def once(self) -> None:
        """One query, and an explanation of what it found. Raises ``TemporalUnavailable``."""
        with suppress(LifecycleError):  # the database is away: readiness tells
            self._lost = lost_words(await run_in_threadpool(self.store.findings.audit_findings, limit=LOST_MAX))
        try:
            self._known = await self.workflows.problems()
        except Exception:
            # Neither "none" nor the number of before would be true.
            self.metrics.blocked.set(math.nan)
            raise
        self.metrics.blocked.set(len(self._known))
        try:
            due_before = overdue_before(self.clock())
            runs = await run_in_threadpool(self.store.overdue.overdue_runs, due_before, limit=EXPLAINED_MAX)
        except LifecycleError:  # the database is away: readiness tells
            runs = []
        late = {run.owner_workflow_id or workflow_id(run.crawler, run.request_id): run.run_id for run in runs}
        self._late = set(late)
        for name in [*list(self._known)[:EXPLAINED_MAX], *sorted(self._late)]:
            await self._explain(name)
            await self._report(name, late.get(name))

    async def _report(self, name: str, run_id: int | None) -> None:
        """Report once that this one cannot go on."""
        kept = self._kept.get(name)
        if kept is None or kept.text is None or kept.since is None or self._noted.get(name) == kept.since:
            return
        try:
            await run_in_threadpool(self.store.troubles.note_blocked, name, run_id, kept.text, kept.since)
        except LifecycleError:
            return  # the database is away: the next round does it
        if len(self._noted) >= KEPT_MAX:
            self._noted.clear()
        self._noted[name] = kept.since

    def listed(self, row: RunRow) -> str | None:
        """The reason why this run does not go on, as far as the last query told."""
        return self.listed_workflow(*_names(row))

    async def of_workflow(self, name: str, *, is_open: bool) -> str | None:
        """As ``of``, for the workflow of a manager or a graph that has not ended."""
        return (await self._explain(name) if is_open else None) or self.listed_workflow(name)

    def webhook(self, row: WebhookRow) -> WebhookRow:
        """The same row, which fails where no workflow carries it."""
        why = self._lost.get(webhook_workflow_id(row.name))
        return row if why is None else replace(row, error=why, failing_since=row.failing_since or row.updated_at)

    def due(self, row: DueRow) -> DueRow:
        """The same row, whose reason says where no workflow carries it."""
        why = self._lost.get(due_workflow_id(row.name, row.due_at))
        return row if why is None else replace(row, reason=f"{row.reason}; {why}" if row.reason else why)

    def schedule(self, row: ScheduleRow) -> ScheduleRow:
        """The same row, in trouble where no workflow carries a due time of it."""
        mine = due_workflow_id(row.name)
        lost = (why for name, why in self._lost.items() if name[:-_DUE_LETTERS] == mine)
        return replace(row, trouble=next(lost, row.trouble))

    def listed_workflow(self, *names: str) -> str | None:
        """The same for the first of these workflows that does not go on."""
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
        """The reason why this run does not go on. Sees it before the server lists it; waits a second for the answer
        at most."""
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
            self._silent_until = time.monotonic() + self.every_s  # one reader waits in vain, not each of them
            return None
        text = None if found is None else in_words(found)
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        self._kept[name] = _Kept(time.monotonic(), text, None if found is None else found.since)
        return text


def in_words(problem: WorkflowProblem) -> str:
    """One sentence: what fails since when, and the cure."""
    since = f"since {problem.since:%Y-%m-%d %H:%M:%S} UTC"
    if problem.what is None:
        return (
            f"no worker has taken up its next step {since}; start one (crawlctl worker workflows), and if workers have "
            "build ids, make one of them current"
        )
    what = " ".join(problem.what.split())[:WORDS_MAX]
    if problem.misfit:
        return (
            f"its workflow cannot go on {since}: this build does not continue what an earlier one began ({what}); "
            "deploy the earlier build again, or one that replays its histories; its crawl goes on meanwhile, stops wait"
        )
    if _TOO_LONG in what:
        return (
            f"its workflow cannot go on {since}: its next step takes longer than the two seconds that it may; its "
            "worker has too much to do, or somebody sends it very many signals (temporal workflow show lists them): "
            "give the role workflows more processors, and end that; its crawl goes on meanwhile, stops wait"
        )
    return (
        f"its workflow cannot go on {since}: {what}; deploy a build that mends this, then it goes on by itself; "
        "its crawl goes on meanwhile, stops wait"
    )


def lost_words(found: Sequence[FindingRow]) -> dict[str, str]:
    """Workflow id -> one sentence, of what no workflow carries. Of runs their looks tell."""
    return {
        str(one.workflow_id): f"no workflow carries it: {one.detail}" + (f"; so far: {one.repair}" if one.tries else "")
        for one in found
        if one.kind in LOST and one.run_id is None
    }


def _unexplained(cause: str) -> str:
    return f"its workflow cannot go on ({cause or 'its next step fails'}); deploy a build that mends this"


def _names(row: RunRow) -> tuple[str, str]:
    """The workflows that may act for a run: its own, and the one that delivers again."""
    own = row.owner_workflow_id or workflow_id(row.crawler, row.request_id)
    return own, export_workflow_id(row.ref, row.attempt)
