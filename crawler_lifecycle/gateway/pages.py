"""All routes of the web UI.

Each route has an operation id and an entry in ``ACCESS``, like the routes of the API.
"""

from __future__ import annotations

from fastapi import FastAPI

from crawler_lifecycle.features import FEATURES
from crawler_lifecycle.gateway.ui.channel import add_channels
from crawler_lifecycle.gateway.ui.crawlers import add_crawlers
from crawler_lifecycle.gateway.ui.fleet import add_fleet, rail_counts
from crawler_lifecycle.gateway.ui.ledger import add_ledger
from crawler_lifecycle.gateway.ui.live import add_stream
from crawler_lifecycle.gateway.ui.login import add_login
from crawler_lifecycle.gateway.ui.parts.rendering import add_assets
from crawler_lifecycle.gateway.ui.runs.commands import add_runs
from crawler_lifecycle.gateway.ui.runs.head import RunHead
from crawler_lifecycle.gateway.ui.runs.reading import add_files, add_items, add_log
from crawler_lifecycle.gateway.ui.runs.run import add_run
from crawler_lifecycle.gateway.ui.runs.starting import add_start
from crawler_lifecycle.gateway.ui.runs.why import ErrorLines
from crawler_lifecycle.gateway.ui.search import add_search

from .parts import Gateway
from .pools import add_pool_page


def add_page(app: FastAPI, gateway: Gateway) -> None:
    """Add the web UI."""
    store = gateway.store
    views = gateway.views
    clock = gateway.clock
    rail_counts(app, store)
    add_assets(app)
    add_login(app, gateway.logins, clock)
    add_fleet(app, gateway.fleet, gateway.health)
    # Before the runs, or "new" would be a run.
    add_start(app, gateway.commands, gateway.crawlers, store, gateway.crawler_versions.of_crawler)
    runs = gateway.run_list
    add_runs(app, runs)
    head = RunHead(store, views, gateway.temporal_page)
    add_run(app, store, head, ErrorLines(gateway.reader), gateway.deliveries)
    add_log(app, gateway.reader, head)
    add_files(app, gateway.files, head, store.runs)
    add_items(app, gateway.items, head)
    add_search(app, store, gateway.fleet, views, clock)
    add_pool_page(app, store.pools, clock)
    add_ledger(app, store, views, gateway.workflows, gateway.once)
    for feature in FEATURES:
        for name in feature.pages:
            feature.load(name)(app, gateway)
    # After the features, because one of them adds a tab.
    add_crawlers(app, gateway.crawler_pages, runs)
    app.router.dependencies.pop()
    add_stream(app, gateway.feed, clock, gateway.needs, store.runs)
    add_channels(app, gateway.feed)
