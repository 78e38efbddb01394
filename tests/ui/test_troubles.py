"""A night with 513 crawlers and thirteen problems: from the first page, an operator finds each of
them in at most two presses, with its cause and what helps. The page invents none.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from playwright.sync_api import Browser, Locator, Page, expect

from crawler_lifecycle.domain.pools import Pool
from crawler_lifecycle.store.notes import DEAD_AFTER, WORKER
from crawler_lifecycle.store.runs.tables import run_history
from crawler_lifecycle.store.store import open_store
from tests.gateway.gateway_harness import Clock, Harness
from tests.gateway.served import served_in_thread
from tests.gateway.ui.fleet_scene import CRAWLERS, fill_good
from tests.support.databases import make_tables
from tests.ui.browser import Visitor

WIDTHS = (1440, 1024, 390)
PRESSES_MAX = 2
START = "Start with the last arguments"
#: The sentence of each planted problem, a part of its cause, and what its button leads to: what
#: helps, or the result of the last four buttons, which act at once.
PROBLEMS = {
    "Worker crawl-2/811 is silent": ("it is frozen", "start another worker (crawlctl worker)"),
    "Polls are overdue": ("403 Forbidden: no right to list pods", "a poll needs Temporal"),
    "Pool batch is full": ("1 of 1", "crawlctl pool set batch"),
    "Manager 1 is stuck": ("NameError: name 'seeds' is not defined", "Stop"),
    "Schedule prices starts nothing": ("no worker was there at 02:30", "Run now"),
    "shop-437 fails": ("KeyError: 'price'", START),
    "shop-7 brings less": ("80 items; good runs", START),
    "shop-8 brings empty fields": ("price is empty", START),
    "shop-100 is flaky": ("HTTP 503 from the proxy", START),
    "Site shop.example is closed": ("after 429 to run", "It is open."),
    "Webhook alerts fails": ("HTTP 410", "The event is sent again now."),
    "Graph daily-2 failed": ("step walk was discarded", "the graph is running"),
    "Schedule nightly stopped itself": ("the last 3 targets failed", "It continues."),
}


#: Problems of what all crawlers share.
SHARED = ("Worker crawl-2/811 is silent", "Pool batch is full", "Site shop.example is closed")


@dataclass
class Night:
    """Plants problems, and next to them what is no problem."""

    harness: Harness
    client: TestClient

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        answer = self.client.request(method, f"/v1/{path}", json=body)
        assert answer.is_success, answer.text
        return dict(answer.json())

    def run(self, crawler: str) -> int:
        """Start a run whose workflow claims it."""
        run_id = int(self.ask("POST", "runs", {"crawler": crawler})["run_id"])
        self.harness.claim(run_id)
        return run_id

    def write(self, statement: str, **values: object) -> None:
        with self.harness.store.database.writing() as connection:
            assert connection.execute(sa.text(statement), values).rowcount

    def ago(self, minutes: float) -> str:
        """The time this many minutes ago, as the database stores it."""
        return f"{self.harness.clock.now - timedelta(minutes=minutes):%Y-%m-%d %H:%M:%S.%f}"

    def change_runs(self, crawler: str, *numbers: int, **values: object) -> None:
        """Change the runs of a crawler with these numbers, the newest of which is 0."""
        h = run_history.c
        mine = sa.select(h.run_id).where(h.crawler == crawler).order_by(h.run_id.desc())
        with self.harness.store.database.writing() as connection:
            ids = connection.execute(mine).scalars().all()
            some = h.run_id.in_([ids[number] for number in numbers])
            connection.execute(sa.update(run_history).where(some).values(**values))

    def plant_crawlers(self) -> None:
        failed = {"status": "FAILED", "ended_by": "crawler", "outcome": "failed", "items": 0}
        for n in range(4):
            cause = f"KeyError: 'price' at https://shop.example/p/{n}"
            self.change_runs("shop-437", n, **failed, cause=cause)
        self.change_runs("shop-7", 0, items=80)
        cause = "price is empty in 61 % of the items; at most 5 % are allowed"
        self.change_runs("shop-8", 0, lacks="coverage", cause=cause)
        self.change_runs("shop-100", 2, 4, 7, **failed, cause="HTTP 503 from the proxy")
        # One failure, and runs that a person stopped, need nobody.
        self.change_runs("shop-200", 0, **failed, cause="HTTP 503 from the proxy")
        self.change_runs("shop-201", 0, 1, 2, **failed | {"ended_by": "person"})

    def plant_schedules(self) -> None:
        for name in ("nightly", "prices", "holiday"):
            body = {"run": {"crawler": "shop-9"}, "every_s": 3600}
            self.ask("PUT", f"schedules/{name}", body)
        reason = "the last 3 targets failed (pause_after_failures)"
        self.harness.store.schedules.pause("nightly", reason)
        self.ask("POST", "schedules/holiday/pause", {"reason": "a holiday"})
        self.ask("POST", "schedules/prices/trigger")
        missed = "UPDATE schedule_due SET decision = 'missed', reason = :why, begun_at = NULL"
        self.write(missed, why="no worker was there at 02:30, nor 60 s later")

    def plant_webhooks(self) -> None:
        failing = "UPDATE webhook SET failing_since = :at, error = 'HTTP 410' WHERE name = :name"
        for name, minutes in (("alerts", 9.0), ("chat", 0.5)):
            url = f"https://hooks.example.com/{name}"
            self.ask("PUT", f"webhooks/{name}", {"url": url, "secrets": ["env:CRAWL_HOOK"]})
            self.write(failing, name=name, at=self.ago(minutes))

    def plant_graphs_and_managers(self) -> None:
        ended = (
            "UPDATE graph SET state = :state, cause = :why, ended_at = :at WHERE graph_key = :key"
        )
        why = "step walk was discarded: its run failed"
        step = {"path": "walk", "kind": "crawl", "job": {"crawler": "shop-12"}}
        for key, state, minutes in (
            ("daily-1", "completed", 60),
            ("daily-2", "discarded", 30),
            ("weekly-1", "discarded", 60),
            ("weekly-2", "completed", 30),
        ):
            self.ask("POST", "graphs", {"id": key, "name": key.partition("-")[0], "steps": [step]})
            self.write(ended, key=key, state=state, why=why, at=self.ago(minutes))
        for name in ("feed", "images"):
            self.ask("POST", "managers", {"crawler": "shop-13", "name": name, "flow_id": name})
        self.write(
            "UPDATE manager SET status = 'PROCESSING', tries = 5, error = :why WHERE name = 'feed'",
            why="NameError: name 'seeds' is not defined",
        )

    def plant_capacity(self) -> None:
        """Let one run hold the only slot of a pool while another one waits, and close sites."""
        self.harness.store.pools.set_pool("batch", Pool(max=1), None)
        holder, waiting = self.run("shop-20"), self.run("shop-21")
        self.write(
            "UPDATE task_history SET pool = 'batch', status = 'RUNNING' WHERE run_id = :run",
            run=holder,
        )
        self.write(
            "INSERT INTO pool_ticket (run_id, pool, priority, since, waits_since, wanted) "
            "VALUES (:run, 'batch', 3, :at, :at, 1)",
            run=waiting,
            at=self.ago(25),
        )
        for site in ("shop.example", "sale.example"):
            self.ask("PUT", f"sites/{site}", {"tasks": 2})
        self.ask("POST", "sites/sale.example/close", {"for_s": 86_400, "reason": "A sale"})
        until = {"run": holder, "until": time.time() + 3000}
        self.write(
            "UPDATE site SET closures = 3, closed_until = :until, closed_by_run = :run, "
            "closed_status = 429 WHERE site = 'shop.example'",
            **until,
        )
        self.write(
            "INSERT INTO site_block (site, at, run_id, task_index, status, closed_until) "
            "VALUES ('shop.example', :at, :run, 0, 429, :until)",
            **until,
            at=time.time() - 300,
        )

    def plant_parts(self) -> None:
        """Let the poll of a run be overdue, and let a worker freeze."""
        overdue = "UPDATE run_history SET next_look_at = :at, look_error = :why WHERE run_id = :run"
        why = "403 Forbidden: no right to list pods"
        self.write(overdue, run=self.run("shop-22"), at=self.ago(12), why=why)
        note = json.dumps({"roles": "cluster workflows", "began": 1.0, "at": 2.0})
        ends_at = self.harness.clock.now + DEAD_AFTER
        self.harness.store.notes.leave_note(WORKER, "crawl-2/811", note, ends_at)


@pytest.fixture
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway that searches for incidents, in its own thread."""
    clock = Clock()
    clock.now = datetime.now(UTC)
    tables = make_tables(f"sqlite:///{tmp_path_factory.mktemp('night')}/runs.db")
    store = open_store(tables, pool_size=30, clock=clock)
    harness = Harness(store, clock)
    fill_good(harness, [f"shop-{n}" for n in range(CRAWLERS)])
    with harness.client() as client:
        night = Night(harness, client)
        night.plant_crawlers()
        night.plant_schedules()
        night.plant_webhooks()
        night.plant_graphs_and_managers()
        night.plant_capacity()
        night.plant_parts()
    with served_in_thread(harness.new_app(watches=True)) as address:
        yield address
    store.close()


def shows(page: Page, *targets: Locator) -> None:
    """Check that all of this can be seen, in full, in a window of each width."""
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        for target in targets:
            expect(target).to_be_visible()
            box = target.bounding_box()
            assert box is not None
            assert box["x"] >= 0, f"{target} at {width} pixels"
            assert box["x"] + box["width"] <= width, f"{target} at {width} pixels"
            cut = (
                "e => e.scrollHeight > e.clientHeight && getComputedStyle(e).overflow === 'hidden'"
            )
            assert not target.evaluate(cut), f"{target} at {width} pixels"


@dataclass
class Operator:
    """Somebody who looks for a problem on the first page, and counts the presses."""

    page: Page
    presses: int = 0

    def press(self, target: Locator) -> None:
        target.click()
        self.presses += 1
        assert self.presses <= PRESSES_MAX, target

    def find(self, sentence: str) -> Locator:
        """Return the line of a problem on the first page. If it is folded, unfold it."""
        self.page.goto("/")
        self.presses = 0
        line = self.page.locator(".incidents li", has=self.page.get_by_text(sentence, exact=True))
        if not line.is_visible():
            self.press(self.page.locator("#fleet-incidents > details > summary"))
        return line


def test_each_problem_is_found_in_two_presses_and_none_is_invented(
    browser: Browser, night: str
) -> None:
    visitor = Visitor(browser, night, {"color_scheme": "dark"})
    page = visitor.open("/")
    operator = Operator(page)
    # Without a reload, although the worker froze only now.
    expect(page.get_by_text(f"{len(PROBLEMS)} need attention")).to_be_visible()
    sentences = page.locator("#fleet-incidents li > div > a").all_text_contents()
    assert sorted(sentences) == sorted(PROBLEMS)
    shared = [sentences.index(sentence) for sentence in SHARED]
    assert max(shared) < sentences.index("shop-437 fails"), "they may be its reason"
    rows = page.get_by_role("row").filter(has_text=re.compile("since|failed last"))
    names = [text.split()[0] for text in rows.all_inner_texts()]
    assert sorted(names) == ["shop-100", "shop-200", "shop-437", "shop-7", "shop-8"]
    for sentence, (cause, helps) in PROBLEMS.items():
        line = operator.find(sentence)
        act = line.locator(".button")
        shows(page, line.get_by_text(cause), act)
        leads_to = act.get_attribute("href")
        operator.press(act)
        if leads_to is not None:
            expect(page).to_have_url(f"{night}{leads_to}")
            expect(page.get_by_role("main")).to_contain_text(cause)
        shows(page, page.locator("main, [role=status]").get_by_text(helps).first)
    visitor.leave()
