"""The objects of one gateway process: its settings and connections, and the readers and commands
that use them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI

from crawler_lifecycle.activities.archived import ArchivedFiles
from crawler_lifecycle.activities.run_files import RunFiles
from crawler_lifecycle.adapters.catalogue import NOTHING_OWNED
from crawler_lifecycle.background import Beside
from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain.crawlers.pod import ReservedNames
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.features import FEATURES
from crawler_lifecycle.features.catalogue.adapters import StoredEntries
from crawler_lifecycle.features.graphs.gateway.answers import GraphViews
from crawler_lifecycle.features.graphs.gateway.commands import GraphCommands
from crawler_lifecycle.features.managers.gateway.answers import ManagerViews
from crawler_lifecycle.features.managers.gateway.commands import ManagerCommands
from crawler_lifecycle.features.packages.gateway.deploying import Deployments
from crawler_lifecycle.features.packages.gateway.versions import CrawlerVersions
from crawler_lifecycle.features.packages.ports import CodeStore
from crawler_lifecycle.features.schedules.gateway.answers import ScheduleViews
from crawler_lifecycle.features.schedules.gateway.commands import ScheduleCommands
from crawler_lifecycle.features.sites.domain.site import SiteLimits
from crawler_lifecycle.features.webhooks.domain.addresses import WebhookRules
from crawler_lifecycle.features.webhooks.gateway.answers import WebhookViews
from crawler_lifecycle.features.webhooks.gateway.commands import WebhookCommands
from crawler_lifecycle.gateway.access.logins import Logins
from crawler_lifecycle.gateway.access.operations import Entrance
from crawler_lifecycle.gateway.access.recorder import Recorder
from crawler_lifecycle.gateway.access.tokens import TokenCache
from crawler_lifecycle.gateway.runs.blocked import BlockedRuns
from crawler_lifecycle.gateway.runs.commands import Commands
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.gateway.runs.deliveries import Deliveries
from crawler_lifecycle.gateway.runs.fleet import Fleet
from crawler_lifecycle.gateway.runs.items import RunItems
from crawler_lifecycle.gateway.runs.routes import RunViews
from crawler_lifecycle.gateway.streams.feed import Feed
from crawler_lifecycle.gateway.streams.logs import LogReader
from crawler_lifecycle.gateway.ui.crawlers import CrawlerPages
from crawler_lifecycle.gateway.ui.parts.forms import Once
from crawler_lifecycle.gateway.ui.runs.commands import RunList
from crawler_lifecycle.ports.cluster import LiveFiles, TaskLogs
from crawler_lifecycle.ports.protocols import FileArchive, SchedulerClient, TaskBundles
from crawler_lifecycle.store.notes import SameSettings
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.temporal.client import Workflows

from .health import Health, Needs
from .metrics import Metrics
from .older_words import OlderWords
from .sweep import Sweep


@dataclass
class Gateway:
    """All objects of one gateway.

    The caller sets the fields, and ``__post_init__`` creates the other objects once.
    """

    store: Store
    workflows: Workflows
    scheduler: SchedulerClient
    _: KW_ONLY
    entrance: Entrance
    code: CodeStore
    """The zips of packages."""
    keep_versions: int = 20
    """The versions of each package that pruning keeps."""
    archive: FileArchive | None = None
    logs: TaskLogs | None = None
    """Reads the output of tasks; ``None`` if this gateway cannot read it."""
    live_files: LiveFiles | None = None
    """Reads the files that tasks leave; ``None`` if this gateway cannot read them."""
    bundles: TaskBundles | None = None
    """The storage to which tasks in pods upload their files; ``None`` if they upload no files."""
    elsewhere: str | None = None
    """A sentence about the location of the tasks' files, if this gateway cannot read them."""
    outbox_retry_s: float | None = 15.0
    """Seconds between two rounds of the outbox retry; ``None`` turns it off."""
    blocked_s: float = 5.0
    """Seconds between two searches for runs that cannot continue."""
    catalogue_s: float | None = None
    """Seconds between two reads of the catalogue in the background; ``None`` turns them off."""
    webhook_rules: WebhookRules = WebhookRules()  # noqa: RUF009
    """The rules for the addresses of webhooks."""
    scrapyd: str | None = None
    """The name of the project that clients of scrapyd see; ``None`` turns off scrapyd's API."""
    temporal_ui: str | None = None
    """The web address at which Temporal shows the workflows of our namespace."""
    marks: Mapping[str, str] | None = None
    """Fingerprints of the settings that other processes must share; ``None`` turns off the
    comparison.
    """
    owned: ReservedNames = NOTHING_OWNED
    """The names that no entry of the catalogue may use."""
    sites: Mapping[str, SiteLimits] | None = None
    """The limits of sites from the settings; ``None`` keeps those in the database."""
    watches: bool = False
    """True if the background services of features execute here."""
    background: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()
    """Additional tasks that run as long as the app."""
    clock: Clock = utc_now

    def __post_init__(self) -> None:
        store = self.store
        workflows = self.workflows
        clock = self.clock
        self.metrics = Metrics()
        self.once = Once()
        self.recorder = Recorder(store.access, clock)
        callers = self.entrance.callers
        self.same_settings = SameSettings(store.notes, "gateway", self.marks or {})
        self.needs = Needs(store.health, workflows)
        stored = StoredEntries(store.entries, self.owned)
        self.crawlers = crawlers = Crawlers(self.scheduler, stored)
        self.blocked = blocked = BlockedRuns(store, workflows, self.metrics, clock, self.blocked_s)
        #: ``None`` if the gateway is open.
        self.logins: Logins | None = None
        self.kept_tokens: TokenCache | None = None
        if callers is not None:
            self.logins = Logins(callers, self.entrance.login_key, self.entrance.oidc, store.notes)
            self.kept_tokens = TokenCache(callers, store.tokens, self.logins.share)
        self.feed = Feed(store.events, store.runs, self.metrics, clock)
        self.reader = LogReader(store.runs, store.tasks, self.logs, self.metrics)
        archived = ArchivedFiles(self.archive) if self.archive is not None else None
        elsewhere = self.elsewhere or "this gateway cannot access their location"
        self.leaving = [self.feed.close, self.reader.close]
        self.files = RunFiles(store.tasks, store.exports, self.live_files, archived, elsewhere)
        self.items = RunItems(self.files, store.runs, store.tasks)
        self.health = Health(self.needs, workflows, self.feed, store, clock)
        self.fleet = Fleet(store, crawlers, clock)
        self.views = RunViews(store, blocked, clock)
        parts = (store.initiation, store.additions, store.stops, store.runs, store.deletion)
        self.commands = Commands(*parts, workflows, crawlers, store.versions, clock)
        self.run_list = RunList(self.views, self.commands)
        self.deliveries = Deliveries(
            store.runs, store.events, store.exports, workflows, self.archive
        )
        self.manager_commands = ManagerCommands(
            store.managers, store.user_code, self.commands, workflows, crawlers, clock
        )
        self.manager_views = ManagerViews(store.managers, blocked, clock)
        self.graph_commands = GraphCommands(
            store.graphs, store.user_code, workflows, crawlers, clock
        )
        self.graph_views = GraphViews(store.graphs, blocked, clock)
        self.schedule_commands = ScheduleCommands(
            store.schedules,
            workflows,
            crawlers,
            self.manager_commands,
            self.graph_commands,
            store.versions,
            clock,
        )
        self.deployments = Deployments(store.packages, self.code, workflows)
        self.crawler_versions = CrawlerVersions(store.packages, store.canaries, store.entries)
        self.schedule_views = ScheduleViews(store.schedules, blocked, clock)
        self.webhook_views = WebhookViews(store.webhooks, blocked, clock)
        self.crawler_pages = CrawlerPages(
            store,
            self.run_list,
            crawlers,
            clock,
            self.schedule_views.of_crawler,
            self.crawler_versions.of_crawler,
        )
        self.webhook_commands = WebhookCommands(store.webhooks, workflows, self.webhook_rules)

    def sweep(self, every_s: float) -> Sweep:
        """Return the outbox retry, which repeats accepted commands that did not reach Temporal."""
        others = (self.manager_commands.unsent, self.graph_commands.unsent)
        return Sweep(self.store, self.workflows, self.commands, others, every_s, self.clock)

    def temporal_page(self, kind: str, id: str) -> str | None:
        """Return the address at which Temporal's UI shows one of the ``workflows`` or
        ``schedules``; ``None`` if the address of the UI is unknown.
        """
        if self.temporal_ui is None:
            return None
        return f"{self.temporal_ui.rstrip('/')}/{kind}/{quote(id, safe='')}"

    @contextlib.asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Run the background tasks as long as the app runs. At the end, close all streams."""
        self.reader.open()
        if self.kept_tokens is not None:
            with contextlib.suppress(LifecycleError, TimeoutError):
                async with asyncio.timeout(2.0):  # otherwise, the loop reads them
                    await self.kept_tokens.read()
        async with Beside() as beside:
            for task in self.tasks():
                beside.start(task())
            try:
                yield
            finally:
                for leave in self.leaving:
                    leave()
        await self.recorder.close()

    def tasks(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """Return the tasks that run as long as the app."""
        found = [*self.background, self.feed.run, self.blocked.run, self.recorder.run]
        if self.kept_tokens is not None:
            found.append(self.kept_tokens.run)
        if self.entrance.oidc is not None:
            found.append(self.entrance.oidc.run)
        if self.marks is not None:
            found.append(self.same_settings.run)
        if (catalogue_s := self.catalogue_s) is not None:
            found.append(lambda: self.crawlers.keep_reading(catalogue_s))
        if self.outbox_retry_s is not None:
            found += [self.sweep(self.outbox_retry_s).run, OlderWords(self.store.search).run]
        if self.watches:
            for feature in FEATURES:
                if feature.watcher is not None:
                    found.append(feature.load(feature.watcher)(self).run)
        return found
