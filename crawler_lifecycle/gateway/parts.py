"""The parts of one gateway: what it was given, and the readers and commands that API and page share."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI

from crawler_lifecycle.activities.archived import ArchivedFiles
from crawler_lifecycle.activities.run_files import RunFiles
from crawler_lifecycle.background import Beside
from crawler_lifecycle.domain.webhooks.addresses import WebhookRules
from crawler_lifecycle.gateway.access.logins import Logins
from crawler_lifecycle.gateway.access.operations import Entrance
from crawler_lifecycle.gateway.graphs.answers import GraphViews
from crawler_lifecycle.gateway.graphs.commands import GraphCommands
from crawler_lifecycle.gateway.health import Health, Needs
from crawler_lifecycle.gateway.managers.commands import ManagerCommands
from crawler_lifecycle.gateway.managers.routes import ManagerViews
from crawler_lifecycle.gateway.metrics import Metrics
from crawler_lifecycle.gateway.runs.blocked import Blocked
from crawler_lifecycle.gateway.runs.commands import Commands
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.gateway.runs.deliveries import Deliveries
from crawler_lifecycle.gateway.runs.recent import RecentRuns
from crawler_lifecycle.gateway.runs.routes import RunViews
from crawler_lifecycle.gateway.schedules.commands import ScheduleCommands
from crawler_lifecycle.gateway.schedules.routes import ScheduleViews
from crawler_lifecycle.gateway.streams.feed import Feed
from crawler_lifecycle.gateway.streams.logs import LogReader
from crawler_lifecycle.gateway.sweep import Sweep
from crawler_lifecycle.gateway.webhooks.commands import WebhookCommands
from crawler_lifecycle.gateway.webhooks.routes import WebhookViews
from crawler_lifecycle.ports.cluster import LiveFiles, TaskLogs
from crawler_lifecycle.ports.protocols import FileArchive, SchedulerClient, TaskBundles
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.temporal.client import Workflows


@dataclass
class Gateway:
    """The things that a gateway was given, and those that it makes of them, each once."""

    store: Store
    workflows: Workflows
    scheduler: SchedulerClient
    _: KW_ONLY
    entrance: Entrance
    archive: FileArchive | None = None
    logs: TaskLogs | None = None
    """The output of tasks, where this gateway can read it."""
    live_files: LiveFiles | None = None
    """The files that tasks leave, where this gateway can read them."""
    bundles: TaskBundles | None = None
    """The storage to which tasks in pods upload their files, where they do."""
    elsewhere: str | None = None
    """Where tasks leave files that cannot be read here, in words."""
    sweep_s: float | None = 15.0
    """Seconds between two sweeps; ``None``: there are none."""
    blocked_s: float = 5.0
    """Seconds between two searches for runs that cannot go on."""
    catalogue_s: float | None = None
    """Seconds between two readings of the catalogue that nobody asked for; ``None``: there are none."""
    webhook_rules: WebhookRules = WebhookRules()  # noqa: RUF009 - it never changes
    """The addresses to which webhooks may lead."""
    scrapyd: str | None = None
    """The name of the project that scrapyd's clients see; ``None``: their dialect is not spoken."""
    temporal_ui: str | None = None
    """The address at which Temporal shows the workflows of our namespace."""
    background: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()
    """What else runs while the app does."""
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    def __post_init__(self) -> None:
        store, workflows, clock = self.store, self.workflows, self.clock
        self.metrics = Metrics()
        self.needs = Needs(store.health, workflows)
        self.crawlers = crawlers = Crawlers(self.scheduler)
        self.blocked = blocked = Blocked(store, workflows, self.metrics, clock, self.blocked_s)
        #: ``None``: the gateway is open.
        self.logins = Logins(self.entrance.callers, self.entrance.login_key) if self.entrance.callers else None
        self.feed = Feed(store.events, store.runs, self.metrics, clock)
        self.reader = LogReader(store.runs, store.tasks, self.logs, self.metrics)
        archived = ArchivedFiles(self.archive) if self.archive is not None else None
        elsewhere = self.elsewhere or "they lie where this gateway cannot read"
        self.leaving = [self.feed.close, self.reader.close]
        self.files = RunFiles(store.tasks, store.exports, self.live_files, archived, elsewhere)
        self.health = Health(self.needs, workflows, self.feed, store, clock)
        self.recent = RecentRuns(store.runs, crawlers, clock)
        self.views = RunViews(store, blocked, clock)
        parts = (store.initiation, store.additions, store.stops, store.runs, store.deletion)
        self.commands = Commands(*parts, workflows, crawlers, clock)
        self.deliveries = Deliveries(store.runs, store.events, store.exports, workflows, self.archive)
        self.manager_commands = ManagerCommands(store.managers, store.plans, workflows, crawlers, clock)
        self.manager_views = ManagerViews(store.managers, blocked, clock)
        self.graph_commands = GraphCommands(store.graphs, store.plans, workflows, crawlers, clock)
        self.graph_views = GraphViews(store.graphs, blocked, clock)
        self.schedule_commands = ScheduleCommands(
            store.schedules, workflows, crawlers, self.manager_commands, self.graph_commands, clock
        )
        self.schedule_views = ScheduleViews(store.schedules, blocked, clock)
        self.webhook_views = WebhookViews(store.webhooks, blocked, clock)
        self.webhook_commands = WebhookCommands(store.webhooks, workflows, self.webhook_rules)

    def sweep(self, every_s: float) -> Sweep:
        """The sweep for what was accepted and did not reach Temporal."""
        commands = (self.commands, self.manager_commands, self.graph_commands)
        return Sweep(self.store, self.workflows, *commands, every_s, self.clock)

    @contextlib.asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """The life of the app with its background tasks; all readers are sent away at its end."""
        self.reader.open()
        async with Beside() as beside:
            for task in self.tasks():
                beside.start(task())
            try:
                yield
            finally:
                for leave in self.leaving:
                    leave()

    def tasks(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """Everything that runs while the app does."""
        found = [*self.background, self.feed.run, self.blocked.run]
        if (catalogue_s := self.catalogue_s) is not None:
            found.append(lambda: self.crawlers.keep_reading(catalogue_s))
        if self.sweep_s is not None:
            found.append(self.sweep(self.sweep_s).run)
        return found
