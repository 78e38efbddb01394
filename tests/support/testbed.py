"""A testbed for the workflow: the real activities and the real store, with fakes of everything
outside.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle, WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer, Worker

from crawler_lifecycle.activities import meters
from crawler_lifecycle.compose import ROLES, WEBHOOKS, WORKFLOWS, Parts, activities_of, workflows_of
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.crawlers.arguments import Argument
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import DeploymentRefused, SchedulerUnavailable
from crawler_lifecycle.domain.polling_schedule import LATE_TOLERANCE_SECONDS
from crawler_lifecycle.domain.pools import NO_POOLS, Pools
from crawler_lifecycle.domain.retries import Retries
from crawler_lifecycle.domain.run import ExportResult, RunResult, RunSnapshot
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.features.webhooks.adapters import HttpWebhooks
from crawler_lifecycle.features.webhooks.domain.addresses import WebhookRules
from crawler_lifecycle.ports.files import FileSource
from crawler_lifecycle.ports.polls import CorrectionRow
from crawler_lifecycle.ports.runs import DeployedTask, Deployment, Event
from crawler_lifecycle.store.store import open_store
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.temporal.directory import TemporalDirectory
from crawler_lifecycle.temporal.plugin import plugin
from tests.support.databases import fresh_database, make_tables
from tests.support.fakes.cluster import FakeCluster
from tests.support.fakes.packages import FakeCodeStore, FakeInspector
from tests.support.fakes.services import FakeCatalogue
from tests.support.receiver import ENVIRONMENT

#: Far longer than anything takes that works, in seconds: a wait that reaches it has failed.
PATIENCE_S = 150.0
#: A late end is recorded as such. On a busy machine, any end may be late: this is true, and no
#: fault.
OF_LATENESS = ("late", "repair")

NO_RETRIES = Retries(max=0)

#: The server's error if no worker has answered a query in the server's own time.
NO_ANSWER = (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED, RPCStatusCode.UNAVAILABLE)

T = TypeVar("T")

CRAWLERS = {
    "books": CrawlerDefinition("books", args={"shelf": Argument(default="a")}, resumable=True),
    "shops": CrawlerDefinition("shops", partial_ok=True, limits={"run_timeout_s": 7200.0}),
}


def longer_and_longer() -> Iterator[float]:
    """Yield growing pauses in seconds, because asking without a pause takes time from others."""
    pause = 0.02
    while True:
        yield pause
        pause = min(pause * 1.4, 0.2)


async def each_at_once(play: Callable[[T], Awaitable[None]], cases: Iterable[T]) -> None:
    """Play all cases at once, which takes a quarter less time than one by one.

    Reports each that fails.
    """
    chosen = list(cases)
    assert chosen, "nothing to play"
    failed = []
    for case, error in zip(
        chosen, await asyncio.gather(*map(play, chosen), return_exceptions=True), strict=True
    ):
        if error is not None:
            error.add_note(f"in the case {case!r}")
        if isinstance(error, Exception):
            failed.append(error)
        elif error is not None:
            raise error
    if failed:
        raise ExceptionGroup(f"{len(failed)} of {len(chosen)} cases", failed)


def workflow_clock() -> datetime:
    """Return when the running activity was scheduled: virtual time, if the server skips time."""
    if activity.in_activity():
        return activity.info().current_attempt_scheduled_time
    return datetime.now(UTC)


@dataclass
class DirectScheduler:
    """The scheduler service without HTTP; ``before`` runs before each call, and ``lose`` drops this
    many responses.
    """

    cluster: FakeCluster
    catalogue: FakeCatalogue
    lose: int = 0
    before: Callable[[Deployment], None] = lambda _: None
    problem: str | None = None
    calls: list[Deployment] = field(default_factory=list)

    def deploy(self, deployment: Deployment) -> list[DeployedTask]:
        self.calls.append(deployment)
        self.before(deployment)
        crawler = self.catalogue.get(deployment.crawler)
        if crawler is None:
            raise DeploymentRefused(f"crawler: {deployment.crawler!r} is not in the catalogue")
        answers = self.cluster.deploy(deployment, crawler)
        if self.lose > 0:
            self.lose -= 1
            raise SchedulerUnavailable("the answer was lost")
        return answers

    def crawlers(self) -> list[CrawlerDefinition]:
        return self.catalogue.all()


@dataclass
class Outside:
    """Notifier, event sink and archive that record calls, and fail on request."""

    name: str = "outside"
    sends: bool = False
    pushed: list[Event] = field(default_factory=list)
    sent: list[Event] = field(default_factory=list)
    stored: list[str] = field(default_factory=list)
    fail: dict[str, Exception] = field(default_factory=dict)

    def push(self, event: Event) -> None:
        """Record each event once: after a slow try, the same one comes again, and a front end
        recognizes it.
        """
        self._maybe("push")
        if event not in self.pushed:
            self.pushed.append(event)

    def send(self, event: Event) -> None:
        self._maybe("send")
        self.sent.append(event)

    def store(
        self,
        key: str,
        sources: Sequence[FileSource],
        manifest: Any,
        progress: Callable[[int, int], None],
        *,
        files_max: int | None = None,
    ) -> ExportResult:
        self._maybe("store")
        progress(1, 1)
        self.stored.append(key)
        return ExportResult(f"memory:///{key}", 1, len(sources), "0" * 64)

    def open(self, url: str) -> Iterator[bytes]:
        yield self.stored[self.stored.index(url.removeprefix("memory:///"))].encode()

    def remove(self, run: RunRef) -> None:
        self._maybe("remove")
        self.stored = [key for key in self.stored if not key.startswith(f"{run}/")]

    def check(self) -> str:
        return "in memory"

    def _maybe(self, what: str) -> None:
        if what in self.fail:
            raise self.fail[what]


@dataclass
class WorkflowHarness:
    """The harness of one test."""

    client: Client
    parts: Parts
    cluster: FakeCluster
    scheduler: DirectScheduler
    outside: Outside
    folder: Path
    handles: list[WorkflowHandle[Any, Any]] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    count: int = 0

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Workers of every role that executes no user code and delivers to no webhook, while this
        is open.
        """
        async with AsyncExitStack() as stack:
            await start_workers(
                stack, self, roles=[role for role in ROLES if role not in ("user-code", WEBHOOKS)]
            )
            yield

    @property
    def store(self) -> Any:
        return self.parts.store

    async def start(
        self, request: object, *, id: str | None = None, **more: Any
    ) -> WorkflowHandle[Any, RunResult]:
        """Start a run with JSON, as an outside client would."""
        self.count += 1
        handle: WorkflowHandle[Any, RunResult] = await self.client.start_workflow(
            names.LIFECYCLE_WORKFLOW,
            request,
            id=id or f"testbed/{self.count}",
            task_queue=names.QUEUE_MAIN,
            result_type=RunResult,
            **more,
        )
        handle.result = partial(self.ended, handle)  # type: ignore[method-assign]
        self.handles.append(handle)
        return handle

    async def run(self, request: object, **more: Any) -> RunResult:
        """Start a run and wait for its result."""
        return await (await self.start(request, **more)).result()

    async def ended(
        self, handle: WorkflowHandle[Any, RunResult], seconds: float = PATIENCE_S
    ) -> RunResult:
        """Return the run's result; if it does not come in time, raise an error with what its
        workflow does instead.
        """
        try:
            return await asyncio.wait_for(type(handle).result(handle), seconds)
        except TimeoutError:
            history = await self.client.get_workflow_handle(handle.id).fetch_history()
        failed = [
            e.workflow_task_failed_event_attributes.failure.message
            for e in history.events
            if e.HasField("workflow_task_failed_event_attributes")
        ]
        last = [
            EventType.Name(e.event_type).removeprefix("EVENT_TYPE_") for e in history.events[-5:]
        ]
        silent = [worker.task_queue for worker in self.workers if not worker.is_running]
        text = f"its end did not come within {seconds:g} s; failures of its workflow task: {failed}; last: {last}"
        text += f"; workers that do not run: {silent}"
        raise AssertionError(f"{handle.id}: {text}")

    async def until(self, condition: Callable[[], Any], seconds: float = PATIENCE_S) -> Any:
        """Wait in real time until ``condition()`` is true. Returns its value."""
        end, pauses = time.monotonic() + seconds, longer_and_longer()
        while not (value := await asyncio.to_thread(condition)):
            assert time.monotonic() < end, f"not within {seconds:g} s: {condition}"
            await asyncio.sleep(next(pauses))
        return value

    async def snapshot_where(
        self,
        handle: WorkflowHandle[Any, Any],
        condition: Callable[[RunSnapshot], Any],
        seconds: float = PATIENCE_S,
    ) -> RunSnapshot:
        """Query the workflow until its snapshot matches.

        A query without a response is repeated.
        """
        end, last, pauses = time.monotonic() + seconds, "no answer", longer_and_longer()
        while True:
            try:
                snapshot = await handle.query(names.QUERY_STATUS, result_type=RunSnapshot)
            except RPCError as error:
                if error.status not in NO_ANSWER:
                    raise
                last = str(error)
            else:
                if condition(snapshot):
                    return snapshot
                last = str(snapshot)
            assert time.monotonic() < end, f"not within {seconds:g} s; last: {last}"
            await asyncio.sleep(next(pauses))

    def tasks(self, run_id: int) -> dict[int, str]:
        """Return the status of the current tasks by index."""
        return {t.task_index: str(t.status) for t in self.store.tasks.list_tasks(run_id)}

    def corrections(self, run_id: int) -> list[CorrectionRow]:
        """Return the corrections of a run, except ends that were found late; whether these were
        late is checked.
        """
        found: list[CorrectionRow] = self.store.corrections.list_corrections(run_id)
        late = [c for c in found if c.kind in OF_LATENESS]
        tolerance = timedelta(seconds=LATE_TOLERANCE_SECONDS)
        assert all(
            c.truth_since is not None and c.created_at - c.truth_since >= tolerance for c in late
        ), late
        return [c for c in found if c not in late]

    async def events(self, handle: WorkflowHandle[Any, Any]) -> list[str]:
        """Return the names of the scheduled activities, in order."""
        history = await handle.fetch_history()
        return [
            e.activity_task_scheduled_event_attributes.activity_type.name
            for e in history.events
            if e.HasField("activity_task_scheduled_event_attributes")
        ]

    async def chain(self, handle: WorkflowHandle[Any, Any]) -> list[WorkflowHistory]:
        """Return the histories of a chain of executions, from the first on."""
        histories, run_id = [], handle.first_execution_run_id
        while run_id:
            history = await self.client.get_workflow_handle(
                handle.id, run_id=run_id
            ).fetch_history()
            histories.append(history)
            last = history.events[-1]
            attributes = last.workflow_execution_continued_as_new_event_attributes
            run_id = attributes.new_execution_run_id if attributes.new_execution_run_id else None
        return histories

    async def replay_all(self) -> int:
        """Replay every history that the test produced, each execution of a chain. Returns their
        number.
        """
        histories = [history for handle in self.handles for history in await self.chain(handle)]

        async def each() -> AsyncIterator[WorkflowHistory]:
            for history in histories:
                yield history

        await Replayer(workflows=WORKFLOWS, plugins=[plugin()]).replay_workflows(each())
        assert len(histories) >= len(self.handles)
        return len(histories)


@asynccontextmanager
async def open_testbed(
    client: Client,
    folder: Path,
    *,
    workers: bool = True,
    clock: Callable[[], datetime] = workflow_clock,
    database: str | None = None,
    pools: Pools = NO_POOLS,
    retries: Retries = NO_RETRIES,
) -> AsyncIterator[WorkflowHarness]:
    """Open a testbed with running workers; at the end, every history is replayed, and open
    workflows are terminated.

    ``database`` is the URL of an empty database; by default, ``LIFECYCLE_TEST_DATABASE`` chooses
    one.
    """
    with ExitStack() as opened:
        url = database or opened.enter_context(fresh_database(folder))
        async with _laboratory(client, folder, url, workers, clock, pools, retries) as testbed:
            yield testbed


@asynccontextmanager
async def _laboratory(
    client: Client,
    folder: Path,
    url: str,
    workers: bool,
    clock: Callable[[], datetime],
    pools: Pools,
    retries: Retries,
) -> AsyncIterator[WorkflowHarness]:
    make_tables(url)
    store = open_store(url, clock=clock, told=meters.committed, pools=pools)
    cluster = FakeCluster(clock=clock)
    outside, catalogue = Outside(), FakeCatalogue(CRAWLERS.values())
    scheduler = DirectScheduler(cluster, catalogue)
    directory = TemporalDirectory(asyncio.get_running_loop(), Workflows(client))
    parts = Parts(
        store, cluster, cluster, catalogue, scheduler, [outside], outside, outside, directory
    )
    parts.webhooks = HttpWebhooks(WebhookRules(loopback=True), environment=ENVIRONMENT)
    parts.places = []  # a test adds some
    parts.retries = retries
    parts.code = FakeCodeStore()
    parts.inspector = FakeInspector()
    testbed = WorkflowHarness(client, parts, cluster, scheduler, outside, folder)
    try:
        async with AsyncExitStack() as stack:
            if workers:
                await stack.enter_async_context(testbed.working())
            try:
                yield testbed
                await testbed.replay_all()
            finally:  # a failed test leaves nothing open for the workers of the next one
                for handle in testbed.handles:
                    latest = client.get_workflow_handle(handle.id)
                    if (await latest.describe()).status is WorkflowExecutionStatus.RUNNING:
                        await _terminate(latest)
    finally:
        store.close()


async def _terminate(handle: WorkflowHandle[Any, Any]) -> None:
    try:
        await handle.terminate("end of test")
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:  # NOT_FOUND: it has ended meanwhile
            raise


async def start_workers(
    stack: AsyncExitStack,
    testbed: WorkflowHarness,
    *,
    threads: int = 8,
    roles: Sequence[str] = tuple(ROLES),
    cached: int = 1000,
) -> None:
    """Start one worker for each of these roles, as in production, in this process, with these
    numbers of threads and cached workflows.
    """
    for role in roles:
        queue = ROLES[role]
        executor = stack.enter_context(ThreadPoolExecutor(threads))
        worker = Worker(
            testbed.client,
            task_queue=queue,
            workflows=workflows_of(role),
            activities=[with_clock(a) for a in activities_of(role, testbed.parts)],
            activity_executor=executor,
            max_concurrent_activities=threads,
            max_cached_workflows=cached,
            # Each poll is work for the server: when it begins, when it ends, and when the worker
            # cancels it.
            max_concurrent_workflow_task_polls=2,
            max_concurrent_activity_task_polls=2,
        )
        await stack.enter_async_context(worker)
        testbed.workers.append(worker)


def with_clock(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the activity with the workflow's clock in place of the wall clock, if it has one."""
    owner = method.__self__  # type: ignore[attr-defined]
    if any(f.name == "clock" for f in dataclasses.fields(owner)):
        owner.clock = workflow_clock
    return method
