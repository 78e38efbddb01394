"""All routes of the page. Each is an operation like those of the API, with an entry in ``ACCESS``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from fastapi import FastAPI

from crawler_lifecycle.gateway.access.logins import Logins
from crawler_lifecycle.gateway.graphs.answers import GraphViews
from crawler_lifecycle.gateway.graphs.commands import GraphCommands
from crawler_lifecycle.gateway.graphs.page import add_graphs
from crawler_lifecycle.gateway.health import Health
from crawler_lifecycle.gateway.managers.commands import ManagerCommands
from crawler_lifecycle.gateway.managers.page import add_managers
from crawler_lifecycle.gateway.managers.routes import ManagerViews
from crawler_lifecycle.gateway.page.ledger import add_crawlers, add_ledger
from crawler_lifecycle.gateway.page.live import add_stream
from crawler_lifecycle.gateway.page.login import add_login
from crawler_lifecycle.gateway.page.parts.forms import Once
from crawler_lifecycle.gateway.page.parts.rendering import add_assets
from crawler_lifecycle.gateway.page.runs.commands import add_commands, add_runs
from crawler_lifecycle.gateway.page.runs.reading import add_files, add_log
from crawler_lifecycle.gateway.page.runs.run import add_run
from crawler_lifecycle.gateway.page.runs.starting import add_start
from crawler_lifecycle.gateway.runs.commands import Commands
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.gateway.runs.deliveries import Deliveries
from crawler_lifecycle.gateway.runs.files import RunFiles
from crawler_lifecycle.gateway.runs.recent import RecentRuns
from crawler_lifecycle.gateway.runs.routes import RunViews
from crawler_lifecycle.gateway.schedules.commands import ScheduleCommands
from crawler_lifecycle.gateway.schedules.page import add_schedule_form, add_schedules
from crawler_lifecycle.gateway.schedules.routes import ScheduleViews
from crawler_lifecycle.gateway.streams.feed import Feed
from crawler_lifecycle.gateway.streams.logs import LogReader
from crawler_lifecycle.gateway.webhooks.commands import WebhookCommands
from crawler_lifecycle.gateway.webhooks.page import add_webhook_form, add_webhooks
from crawler_lifecycle.gateway.webhooks.routes import WebhookViews
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.temporal.client import Workflows


@dataclass(frozen=True, slots=True)
class Behind:
    """The readers and commands of the API, on which the page stands."""

    store: Store
    views: RunViews
    feed: Feed
    reader: LogReader
    files: RunFiles
    health: Health
    recent: RecentRuns
    crawlers: Crawlers
    commands: Commands
    deliveries: Deliveries
    logins: Logins | None
    """``None``: the gateway is open."""
    clock: Callable[[], datetime]
    workflows: Workflows
    manager_commands: ManagerCommands
    manager_views: ManagerViews
    graph_commands: GraphCommands
    graph_views: GraphViews
    schedule_commands: ScheduleCommands
    schedule_views: ScheduleViews
    webhook_commands: WebhookCommands
    webhook_views: WebhookViews
    temporal_ui: str | None
    """The address at which Temporal shows the workflows of our namespace."""


def add_page(app: FastAPI, behind: Behind) -> None:
    """Add the page."""
    store, views, clock = behind.store, behind.views, behind.clock
    add_assets(app)
    add_login(app, behind.logins, clock)
    add_start(app, behind.commands, behind.crawlers, store.tasks)  # before the runs: "new" is no number
    add_runs(app, views, behind.health)
    add_run(app, store, views, behind.temporal_ui, behind.deliveries)
    add_log(app, behind.reader, views, store.runs, store.tasks)
    add_files(app, behind.files, views, store.runs)
    add_commands(app, behind.commands, clock)
    add_crawlers(app, behind.recent, behind.crawlers)
    once = Once()
    add_ledger(app, store, views, behind.workflows, once)
    add_managers(app, behind.manager_commands, behind.manager_views, once)
    add_graphs(app, behind.graph_commands, behind.graph_views, once)
    add_schedule_form(app, behind.schedule_commands, behind.crawlers)  # before the schedules: "new" is none of them
    add_schedules(app, behind.schedule_commands, behind.schedule_views, once)
    add_webhook_form(app, behind.webhook_commands)
    add_webhooks(app, behind.webhook_commands, behind.webhook_views, store.events, once)
    add_stream(app, behind.feed, clock)
