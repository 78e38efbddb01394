"""A stack with something on every page: runs of all kinds, a manager, a graph, schedules, a
webhook, a correction.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from urllib.parse import urlencode

from examples.story_checks import task_processes
from tests.e2e.harness import Harness, until
from tests.ui.people import start

#: A page of each kind; braces contain a key of the result of ``prepare``.
PAGES = {
    "fleet": "/",
    "runs": "/runs",
    "attention": "/runs?attention=true",
    "found": "/runs?search=pla&status=COMPLETED&sort=-pages&all=true",
    "start": "/runs/new?crawler=plain",
    "again": "/runs/new?like={stopped}",
    "stopped": "/runs/{stopped}",
    "waiting": "/runs/{waiting}",
    "killed": "/runs/{killed}",
    "tasks": "/runs/{waiting}/tasks",
    "timeline": "/runs/{stopped}/timeline",
    "request": "/runs/{stopped}/request",
    "compared": "/runs/{stopped}?compare={done}",
    "log": "/runs/{done}/log",
    "files": "/runs/{done}/files",
    "items": "/runs/{done}/items?{file}",
    "crawler": "/crawlers/plain",
    "crawler-runs": "/crawlers/plain/runs",
    "crawler-failures": "/crawlers/plain/failures",
    "crawler-fields": "/crawlers/plain/fields",
    "crawler-schedules": "/crawlers/plain/schedules",
    "crawler-arguments": "/crawlers/plain/arguments",
    "pools": "/pools",
    "sites": "/sites",
    "site": "/sites/shop.example",
    "site-blocks": "/sites/shop.example/blocks",
    "site-runs": "/sites/shop.example/runs",
    "site-limits": "/sites/shop.example/limits",
    "site-form": "/sites/new",
    "parts": "/parts",
    "search": "/search?q=plain",
    "corrections": "/corrections",
    "audit": "/audit",
    "access": "/access",
    "schedules": "/schedules",
    "schedule": "/schedules/nightly",
    "due-times": "/schedules/nightly/due-times",
    "backfill": "/schedules/nightly/backfill",
    "schedule-form": "/schedules/new",
    "managers": "/managers",
    "manager-form": "/start/manager?plan=examples.managers:Walks",
    "graph-form": "/start/graph?plan=examples.graphs:nightly",
    "manager": "/managers/{manager}",
    "manager-jobs": "/managers/{manager}/jobs",
    "manager-runs": "/managers/{manager}/runs",
    "graphs": "/graphs",
    "graph": "/graphs/{graph}",
    "graph-steps": "/graphs/{graph}/steps",
    "graph-runs": "/graphs/{graph}/runs",
    "webhooks": "/webhooks",
    "webhook": "/webhooks/shop",
    "deliveries": "/webhooks/shop/deliveries",
    "definition": "/webhooks/shop/definition",
    "webhook-form": "/webhooks/new",
    "login": "/login",
}


def prepare(harness: Harness) -> Mapping[str, object]:
    """Create the scene. Returns what addresses need of it."""
    gateway = harness.gateway
    gateway.put(
        "/v1/schedules/nightly",
        {"run": {"crawler": "plain", "args": {"max_pages": "3"}}, "cron": "30 2 * * *"},
    )
    gateway.put(
        "/v1/webhooks/shop",
        {"url": "https://hooks.example.com/crawls", "secrets": ["env:CRAWL_HOOK"]},
    )
    gateway.put("/v1/sites/shop.example", {"tasks": 2, "requests_per_s": 10, "connections": 4})
    gateway.put("/v1/sites/*.blogs.example", {"hours": "22:00-06:00 Europe/Berlin"})
    gateway.post("/v1/sites/shop.example/close", {"for_s": 86_400, "reason": "A sale"})
    manager = gateway.start(
        {"plan": "examples.managers:Walks", "flow_id": "walks"}, "scene", "manager"
    )["manager_id"]
    graph = json.loads(
        harness.crawlctl("graph", "start", "examples.graphs:nightly", "-o", "json").stdout
    )["id"]
    given = [
        start(harness, args={"max_pages": "24", "delay": "0"}, tags=["nightly"]) for _ in range(5)
    ]
    killed, stopped = start(harness), start(harness, tags=["prices"])
    letters = ("a-c", "d-i", "j-q", "r-z")
    tasks = [{"args": {"letters": some}} for some in letters]
    waiting = start(
        harness, "operations", tasks=tasks, max_parallel_tasks=1, settings={"DOWNLOAD_DELAY": "5"}
    )
    start(harness, "broken")
    until(
        lambda: all(harness.tasks(one).get("RUNNING") for one in (killed, stopped, waiting)),
        "crawlers that run",
    )
    os.killpg(task_processes(harness.places, killed)["0/1"][2], signal.SIGKILL)
    gateway.stop(stopped, reason="The shop asked us to pause", requested_by="Ada")
    until(
        lambda: all(harness.status(one) == "COMPLETED" for one in given), "the end of what is good"
    )
    done = start(harness, args={"max_pages": "6", "delay": "0"}, tags=["nightly"])
    until(lambda: harness.status(done) == "COMPLETED", "the run that brought less")
    until(lambda: not set(harness.open_runs()) & {killed, stopped}, "the end of what was stopped")
    ended = [gateway.run(one)["status"] for one in (killed, stopped)]
    assert ended == ["FAILED", "FAILED"]
    found = {"killed": killed, "stopped": stopped, "waiting": waiting, "done": done}
    files = gateway.get(f"/v1/runs/{done}/files")["files"]
    (items,) = (file["name"] for file in files if file["name"].endswith("items.jsonl"))
    return {**found, "manager": manager, "graph": graph, "file": urlencode({"name": items})}
