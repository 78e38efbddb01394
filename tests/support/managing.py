"""A testbed for managers: the real workflow, activities and store, with a user's class that a test
writes.

``Scripted`` replaces ``run_manager_cycle``: it reads the same rows and commits the same decisions
as a real class.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from temporalio import activity
from temporalio.client import WorkflowHandle
from temporalio.worker import Worker

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.crawlers.arguments import Argument
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import RunNotFound
from crawler_lifecycle.domain.names import manager_workflow_id
from crawler_lifecycle.features.managers.activities.cycles import CycleAnswer, CycleOrder
from crawler_lifecycle.features.managers.domain.manager import (
    AddedJob,
    Decision,
    Facts,
    HookReport,
    Job,
    JobState,
    ManagerResult,
    ManagerSnapshot,
    Page,
    PickedJob,
    SourceItem,
)
from crawler_lifecycle.features.managers.ports import ManagerFence, ManagerRow, NewManager
from tests.support.testbed import CRAWLERS, WorkflowHarness, longer_and_longer

#: A crawler whose runs are polled without pauses.
QUICK = CrawlerDefinition("quick", args={"n": Argument(default="0")}, limits={"start_check_s": 0.0})
OWN_QUEUE = names.user_code_queue("testbed")


def quick(n: int, **more: Any) -> Job:
    return Job("quick", {"n": str(n)}, **more)


@dataclass
class Scripted:
    """A user's class: its source, its window, its retries, and a record of its calls."""

    testbed: WorkflowHarness
    source: list[Job] = field(default_factory=list)
    window: int = 3
    retries: int = 0
    stays: bool = False
    """Whether it goes on when there is nothing to do."""
    close_reason: str | None = None
    failed: bool = False
    queue: str = OWN_QUEUE
    before: Callable[[CycleOrder], None] = lambda order: None
    """Runs in the activity before each cycle."""
    answered: Callable[[CycleAnswer], CycleAnswer] = lambda answer: answer
    ends: list[tuple[int, int, int, bool]] = field(default_factory=list)
    """Number, retry and attempt of each end whose hooks ran, and whether it was bad."""
    lives: list[int] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    """Attempts whose ``on_close`` ran."""
    cycles: int = 0
    made: dict[tuple[int, int], int] = field(default_factory=dict)
    """Manager and attempt -> generation of the process that holds the object."""

    def forget(self) -> None:
        """Forget the object, as if the process had died: the next cycle creates it again."""
        self.made.clear()

    @activity.defn(name="run_manager_cycle", no_thread_cancel_exception=True)
    def run_manager_cycle(self, order: CycleOrder) -> CycleAnswer:
        self.before(order)
        managers = self.testbed.store.managers
        if order.closing:
            self.closed.append(order.attempt)
            return CycleAnswer(self.queue, over=True)
        self.cycles += 1
        fence = ManagerFence(order.manager_id, order.attempt, order.owner_run_id)
        key = (order.manager_id, order.attempt)
        if key not in self.made:
            self.made[key] = managers.new_generation(fence, "print", 0).generation
        fence = ManagerFence(order.manager_id, order.attempt, order.owner_run_id, self.made[key])
        row = managers.get_manager(order.manager_id)
        if row is None:  # like the real one
            raise RunNotFound(f"manager {order.manager_id} is not in the database")
        page = [SourceItem(n, job) for n, job in enumerate(self.source, 1) if n > row.position][:50]
        last = page[-1].position if page else row.position
        managers.add_page(fence, Page(page, last, last == len(self.source)))
        facts = managers.facts(fence, 100)
        decision = self._decide(facts)
        committed = managers.commit_decision(fence, decision)
        self.lives.append(committed.live)
        self.ends += [(e.live.seq, e.live.retry, e.attempt, e.bad) for e in facts.ended]
        if decision.over:
            self.closed.append(order.attempt)
        answer = CycleAnswer(
            self.queue,
            committed.starting,
            committed.live,
            len(decision.hooked),
            waiting=decision.waiting,
            over=decision.over,
            close_reason=self.close_reason,
            failed=self.failed,
            stopped=committed.stopped,
        )
        return self.answered(answer)

    def _decide(self, facts: Facts) -> Decision:
        managers = self.testbed.store.managers
        added = [
            AddedJob(-n, end.live.job, False, end.live.seq, end.live.retry + 1, end.live.key)
            for n, end in enumerate(facts.ended, 1)
            if end.bad and end.retryable and end.live.retry < self.retries
        ]
        waiting = [
            (w.item_id, w.job, w.seq)
            for w in managers.waiting_jobs(facts.manager_id, JobState.QUEUED)
        ]
        waiting += [(one.ref, one.job, one.seq) for one in added]
        waiting += [
            (w.item_id, w.job, w.seq)
            for w in managers.waiting_jobs(facts.manager_id, JobState.BUFFERED)
        ]
        room = (
            0 if facts.paused else max(min(self.window, facts.cap or self.window) - facts.live, 0)
        )
        picked, seq = [], facts.next_seq
        for item_id, job, own in waiting[:room]:
            picked.append(PickedJob(item_id, own or seq, job))
            seq += own is None
        over = not (waiting or facts.live or self.stays or facts.paused)
        hooked = [HookReport(end.live.item_id, end.attempt, end.bad) for end in facts.ended]
        return Decision(
            hooked,
            added=added,
            picked=picked,
            over=over,
            waiting=None if picked else "nothing to pick",
        )


@dataclass
class ManagerTestbed:
    """A testbed with managers of one class."""

    testbed: WorkflowHarness
    plan: Scripted

    def reserve(self, flow_id: str = "f1", *, name: str = "stream", **more: Any) -> ManagerRow:
        row, _ = self.testbed.store.managers.reserve_manager(
            NewManager(name, flow_id, "tests:Stream", **more)
        )
        assert isinstance(row, ManagerRow)
        return row

    async def start(
        self, flow_id: str = "f1", *, row: ManagerRow | None = None, **more: Any
    ) -> WorkflowHandle[Any, Any]:
        """Reserve a manager and start its workflow, as the gateway does."""
        row = row or self.reserve(flow_id, **more)
        handle: WorkflowHandle[Any, Any] = await self.testbed.client.start_workflow(
            names.MANAGER_WORKFLOW,
            {"manager_id": row.manager_id},
            id=manager_workflow_id(row.name, row.flow_id),
            task_queue=names.QUEUE_MAIN,
            result_type=ManagerResult,
        )
        self.testbed.handles.append(handle)
        return handle

    async def snapshot_where(
        self, handle: WorkflowHandle[Any, Any], condition: Callable[[ManagerSnapshot], Any]
    ) -> ManagerSnapshot:
        async def ask() -> ManagerSnapshot:
            snapshot: ManagerSnapshot = await handle.query(
                names.QUERY_STATUS, result_type=ManagerSnapshot
            )
            return snapshot

        end, pauses = time.monotonic() + 60, longer_and_longer()
        while True:
            snapshot = await ask()
            if condition(snapshot):
                return snapshot
            assert time.monotonic() < end, snapshot
            await asyncio.sleep(next(pauses))

    def row(self, manager_id: int = 1) -> ManagerRow:
        row: ManagerRow = self.testbed.store.managers.get_manager(manager_id)
        return row

    def runs(self) -> list[Any]:
        """Return all runs, oldest first."""
        return list(reversed(self.testbed.store.runs.list_runs(limit=500)))

    async def end_runs(self) -> None:
        """Stop every remaining run, and wait for its end: the next test has another store."""
        for run in self.runs():
            if not run.status.terminal:
                handle = self.testbed.client.get_workflow_handle(run.owner_workflow_id)
                await handle.signal(names.SIGNAL_FORCE_STOP)
                await self.testbed.ended(handle)

    @asynccontextmanager
    async def user_code(self, *queues: str) -> AsyncIterator[None]:
        """Workers with the ``user-code`` role on these queues, by default on both."""
        async with AsyncExitStack() as stack:
            for queue in queues or (names.QUEUE_USER_CODE, OWN_QUEUE):
                worker = Worker(
                    self.testbed.client,
                    task_queue=queue,
                    activities=[self.plan.run_manager_cycle],
                    activity_executor=stack.enter_context(ThreadPoolExecutor(4)),
                    max_concurrent_activity_task_polls=2,
                )
                await stack.enter_async_context(worker)
            yield


def manager_testbed(testbed: WorkflowHarness, **plan: Any) -> ManagerTestbed:
    """The testbed, with the crawler ``quick`` and a class with these properties."""
    testbed.scheduler.catalogue.crawlers = {**CRAWLERS, "quick": QUICK}
    return ManagerTestbed(testbed, Scripted(testbed, **plan))
