"""A gateway with a real SQLite store, and a scheduler service and a Temporal in memory."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import Mock

from fastapi import FastAPI
from fastapi.testclient import TestClient
from temporalio.client import Client

from crawler_lifecycle.activities.audits.parents import ParentAudit
from crawler_lifecycle.compose import Parts, build_parent_audit
from crawler_lifecycle.domain.audits.audit import AuditReport, UnknownDecision
from crawler_lifecycle.domain.crawlers.arguments import Argument
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.domain.names import export_workflow_id
from crawler_lifecycle.domain.run import RunRequest, RunStatus, StopRequest, Verdict
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.features.graphs.domain.commands import GraphOrder
from crawler_lifecycle.features.managers.domain.manager import ManagerOrder
from crawler_lifecycle.features.managers.ports import ManagerRow
from crawler_lifecycle.features.packages.adapters.code_store import CodeFolder
from crawler_lifecycle.features.packages.ports import Inspection
from crawler_lifecycle.features.schedules.ports import ScheduleRow
from crawler_lifecycle.features.webhooks.ports import WebhookOrder, WebhookRow
from crawler_lifecycle.gateway.access.operations import Entrance
from crawler_lifecycle.gateway.app import create_app
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.sweep import Sweep
from crawler_lifecycle.ports.runs import DeployedTask, Fence, Owner, RunHandle, RunRow
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.temporal.operator.task_queues import Queue
from crawler_lifecycle.temporal.workflow_problems import WorkflowProblem
from tests.support.fakes.services import FakeDirectory, FakeScheduler
from tests.support.routes import make_routes_cheap

make_routes_cheap()

Row = TypeVar("Row")
BASE = "http://127.0.0.1:8500"

CRAWLERS = [
    CrawlerDefinition(
        "plain",
        CrawlerKind.COMMAND,
        command=["true"],
        args={"site": Argument("http://127.0.0.1"), "page": Argument()},
        limits={"stall_timeout_s": 77.0},
    ),
    CrawlerDefinition(
        "strict", CrawlerKind.COMMAND, command=["true"], args={"site": Argument(required=True)}
    ),
]


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@dataclass
class FakeWorkflows:
    """``Workflows`` in memory, with the conflict policy of the real ones: an open workflow is
    found, not started.
    """

    open: dict[str, str] = field(default_factory=dict)
    started: list[tuple[str, RunRequest]] = field(default_factory=list)
    signals: list[tuple[str, StopRequest | None]] = field(default_factory=list)
    exports: list[tuple[Fence, bool, bool]] = field(default_factory=list)
    deletions: list[RunRef] = field(default_factory=list)
    troubles: dict[str, WorkflowProblem] = field(default_factory=dict)
    listed: dict[str, str] = field(default_factory=dict)
    audits: list[bool] = field(default_factory=list)
    report: AuditReport | None = None
    managers: list[tuple[str, int]] = field(default_factory=list)
    graphs: list[tuple[str, int]] = field(default_factory=list)
    woken: list[str] = field(default_factory=list)
    webhooks: list[tuple[str, bool]] = field(default_factory=list)
    queues: list[Queue] = field(default_factory=list)
    asked_for_queues: int = 0
    inspection: Inspection = field(default_factory=Inspection)
    down: bool = False
    lose_answers: int = 0
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def start(
        self, request: RunRequest, workflow_id: str, run_uid: str, *, repair: bool = False
    ) -> str:
        await self._reach()
        if workflow_id not in self.open:
            self.open[workflow_id] = f"chain-{next(self.numbers)}"
            self.started.append((workflow_id, request))
        await self._lose()
        return self.open[workflow_id]

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[Client]:
        """No server is available here: ``tests/workflows/schedules`` tests what needs one."""
        raise TemporalUnavailable("Temporal cannot be reached: not connected yet")
        yield

    async def result(
        self, kind: str, order: object, workflow_id: str, life_s: float, answer: type[Any]
    ) -> Any:
        """An inspection of a Scrapy project."""
        await self._reach()
        return self.inspection

    async def start_for(self, order: Any, workflow_id: str, *, wake: bool = False) -> str:
        match order:
            case ManagerOrder(manager_id):
                return await self._start_manager(manager_id, workflow_id)
            case GraphOrder(graph_id):
                return await self._start_graph(graph_id, workflow_id)
        await self._reach()
        if isinstance(order, WebhookOrder):
            self.webhooks.append((order.name, wake))
        return "chain-of-another"

    async def _start_manager(self, manager_id: int, workflow_id: str) -> str:
        await self._reach()
        if workflow_id not in self.open:
            self.open[workflow_id] = f"chain-{next(self.numbers)}"
            self.managers.append((workflow_id, manager_id))
        await self._lose()
        return self.open[workflow_id]

    async def _start_graph(self, graph_id: int, workflow_id: str) -> str:
        await self._reach()
        if workflow_id not in self.open:
            self.open[workflow_id] = f"chain-{next(self.numbers)}"
            self.graphs.append((workflow_id, graph_id))
        else:
            self.woken.append(workflow_id)
        await self._lose()
        return self.open[workflow_id]

    async def wake(self, workflow_id: str) -> bool:
        await self._reach()
        if workflow_id in self.open:
            self.woken.append(workflow_id)
        await self._lose()
        return workflow_id in self.open

    async def stop(
        self, workflow_id: str, stop: StopRequest, *, run_uid: str | None = None
    ) -> bool:
        await self._reach()
        if workflow_id in self.open:
            self.signals.append((workflow_id, stop))
        await self._lose()
        return workflow_id in self.open

    async def poll_now(self, workflow_id: str) -> bool:
        await self._reach()
        if workflow_id in self.open:
            self.signals.append((workflow_id, None))
        return workflow_id in self.open

    async def export_again(self, fence: Fence, *, event: bool, files: bool) -> str:
        await self._reach()
        self.exports.append((fence, event, files))
        return export_workflow_id(fence.run, fence.attempt)

    async def delete_run(self, run: RunRef) -> None:
        await self._reach()
        self.deletions.append(run)

    async def audit(
        self, repair: bool, wait_s: float, unknown: UnknownDecision
    ) -> tuple[str, AuditReport | None]:
        await self._reach()
        self.audits.append(repair)
        self.unknown = unknown
        return "audit-1", self.report

    async def is_open(self, workflow_id: str, first_run_id: str | None = None) -> bool:
        await self._reach()
        found = self.open.get(workflow_id)
        return found is not None and first_run_id in (None, found)

    async def problem(self, workflow_id: str) -> WorkflowProblem | None:
        await self._reach()
        return self.troubles.get(workflow_id)

    async def problems(self) -> dict[str, str]:
        await self._reach()
        return dict(self.listed)

    async def task_queues(self, workflows: Sequence[str], activities: Sequence[str]) -> list[Queue]:
        await self._reach()
        self.asked_for_queues += 1
        return self.queues

    async def ping(self) -> None:
        await self._reach()

    async def _reach(self) -> None:
        await asyncio.sleep(0)
        if self.down:
            raise TemporalUnavailable("Temporal refused the call (UNAVAILABLE): refused")

    async def _lose(self) -> None:
        if self.lose_answers:
            self.lose_answers -= 1
            raise TemporalUnavailable("Temporal did not answer within 10 s")


def _there(row: Row | None) -> Row:
    assert row is not None
    return row


class Harness:
    """Everything around one gateway, and the workflow's part of the work with the store."""

    def __init__(self, store: Store, clock: Clock, code: Path = Path("/nonexistent")) -> None:
        self.store = store
        self.code = code
        self.clock = clock
        self.workflows = FakeWorkflows()
        self.scheduler = FakeScheduler(CRAWLERS)

    @cached_property
    def app(self) -> FastAPI:
        return self.new_app()

    def gateway(self, **options: Any) -> Gateway:
        options = {"entrance": Entrance(), "outbox_retry_s": None, "clock": self.clock, **options}
        options.setdefault("code", CodeFolder(self.code))
        return Gateway(self.store, self.workflows, self.scheduler, **options)

    def new_app(self, **options: Any) -> FastAPI:
        return create_app(self.gateway(**options))

    @contextmanager
    def client(self, app: FastAPI | None = None) -> Iterator[TestClient]:
        with TestClient(app or self.app, base_url=BASE) as client:
            yield client

    def audit(self, directory: FakeDirectory) -> ParentAudit:
        """The audit of a worker, with only this Temporal as an external system."""
        audit = build_parent_audit(Parts(self.store, *[Mock()] * 7, directory))
        for owner in (
            audit,
            *(getattr(kind.read, "__self__", None) for kind in audit.kinds.values()),
        ):
            if hasattr(owner, "clock"):
                owner.clock = self.clock
        return audit

    def sweep(self) -> Sweep:
        return self.gateway().sweep(15)

    # --- what a workflow would do -----------------------------------------------------------------

    def run(self, run_id: int) -> RunRow:
        return _there(self.store.runs.get_run(run_id))

    def schedule(self, name: str = "nightly") -> ScheduleRow:
        return _there(self.store.schedules.get(name))

    def webhook(self, name: str) -> WebhookRow:
        return _there(self.store.webhooks.get(name))

    def manager(self, manager_id: int) -> ManagerRow:
        return _there(self.store.managers.get_manager(manager_id))

    def ref(self, run_id: int) -> RunRef:
        return self.run(run_id).ref

    def claim(self, run_id: int, *, rerun: bool = False) -> RunHandle:
        """Let the open workflow of the run claim it."""
        workflow_id = next(
            w for w, request in reversed(self.workflows.started) if request.run_id == run_id
        )
        owner = Owner(workflow_id, self.workflows.open[workflow_id])
        return self.store.initiation.claim_run(
            RunRequest(run_id=run_id, rerun=rerun), owner, lambda _: False
        )

    def fence(self, run_id: int) -> Fence:
        row = self.run(run_id)
        assert row.owner_run_id is not None
        return Fence(run_id, row.attempt, row.owner_run_id, row.run_uid)

    def end(self, run_id: int, status: RunStatus = RunStatus.FAILED, *, close: bool = True) -> None:
        """Give the run its verdict; its workflow closes unless it still exports."""
        fence = self.fence(run_id)
        self.store.deployment.refuse_queued(fence, "no such image")
        self.store.completion.end_run(
            fence, lambda groups, stop: Verdict(status, "finished", "It is over")
        )
        if close:
            self.workflows.open.pop(self.run(run_id).owner_workflow_id or "")

    def deploy(self, run_id: int) -> None:
        fence = self.fence(run_id)
        tasks, _ = self.store.deployment.offer_tasks(
            fence, 100, None, self.clock() + timedelta(seconds=25)
        )
        answers = [
            DeployedTask(t.index, "created", f"crawl-{t.index}", f"uid-{t.index}") for t in tasks
        ]
        self.store.deployment.record_deployed(fence, "fake", tasks, answers, self.clock())
