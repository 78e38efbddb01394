"""The first page: each of its numbers agrees with the tables, and it never contradicts incidents."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.domain.results import is_good
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.features.incidents.gateway.rounds import OFTEN, Rounds
from crawler_lifecycle.gateway.ui.parts.charts import run_kind
from crawler_lifecycle.ports.runs import ShortRun
from crawler_lifecycle.store.runs.tables import run_history
from crawler_lifecycle.store.store import open_store
from tests.gateway.gateway_harness import Clock, Harness
from tests.gateway.keys import Keys
from tests.gateway.ui.conftest import as_browser
from tests.gateway.ui.fleet_scene import (
    CRAWLERS,
    LONG,
    SICK,
    TROUBLES,
    condition,
    fill_fleet,
    fill_healthy,
)
from tests.gateway.ui.test_things import words
from tests.support.databases import make_tables


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """The fleet of all tests, which takes most of a second to record."""
    file, clock = tmp_path_factory.mktemp("fleet") / "runs.db", Clock()
    store = open_store(make_tables(f"sqlite:///{file}"), pool_size=2, clock=clock)
    harness = Harness(store, clock)
    fill_fleet(harness)
    yield harness
    store.close()


@pytest.fixture
def filled(harness: Harness, scene: Harness, tmp_path: Path) -> Harness:
    """A gateway with a copy of the fleet."""
    harness.scheduler.catalogue.crawlers = dict(scene.scheduler.catalogue.crawlers)
    with (
        closing(sqlite_files.connect(scene.store.database.writer.url.database or "")) as fleet,
        closing(sqlite_files.connect(tmp_path / "runs.db")) as copy,
    ):
        fleet.backup(copy)
    return harness


def rows_of(text: str) -> dict[str, str]:
    """Return the rows of the crawlers, each as its visible text, in order."""
    found = {}
    for row in re.findall(r'<tr id="crawler-.*?</tr>', text, re.DOTALL):
        name = re.search(r'<a href="/crawlers/[^"]*">([^<]*)</a>', row)
        assert name is not None
        plain = re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", row))
        found[html.unescape(name[1])] = html.unescape(plain).strip()
    return found


def test_the_sick_are_first_and_no_crawler_is_left_out(
    filled: Harness, browser: TestClient
) -> None:
    page = browser.get("/")
    rows = rows_of(page.text)
    assert len(rows) == 100
    sick = [name for names in SICK.values() for name in sorted(names, reverse=True)]
    assert set(list(rows)[: len(sick)]) == set(sick)
    assert "fails since 9 h" in rows["shop-437"]
    assert "brings less since 9 h" in rows["shop-7"]
    assert list(rows)[len(sick) : len(sick) + 3] == ["shop-20", "shop-21", "shop-30"]
    assert "1 run is waiting for a worker" in rows["shop-20"]
    seen = set[str]()
    following = ["/?sort=crawler"]
    for n in range(1, 7):
        shown = browser.get(html.unescape(following[0])).text
        seen |= set(rows_of(shown))
        following = re.findall(r'rel="next" href="([^"]+)"', shown)
        assert bool(following) is (n < 6)
    assert len(seen) == CRAWLERS + 1, "with the one that never ran"
    length = int(page.headers["content-length"])
    assert length < 20 * 1024, length


def test_the_page_of_a_crawler_has_its_state_in_the_fleet(
    filled: Harness, browser: TestClient
) -> None:
    states = dict[str, str]()
    for row in csv.DictReader(io.StringIO(browser.get("/?format=csv").text)):
        state = row["State"].partition(" since ")[0]
        states.setdefault(state, row["Crawler"])
    assert {"fails", "flaky", "brings less", "waits", "healthy", "never ran"} <= states.keys()
    for state, name in states.items():
        head = browser.get(f"/crawlers/{name}").text.partition('class="tabs"')[0]
        assert re.findall(r'<span class="pill [^"]*">([^<]*)</span>', head)[-1] == state, name


def test_each_number_is_that_of_the_tables(
    filled: Harness, browser: TestClient, tmp_path: Path
) -> None:
    said = words(browser.get("/"))
    with sqlite_files.connect(tmp_path / "runs.db") as database:

        def number(query: str, *values: object) -> int:
            return int(database.execute(query, values).fetchone()[0])

        live = number(
            "SELECT count(*) FROM run_history WHERE status IN ('INITIALIZING', 'PROCESSING')"
        )
        hour = filled.clock.now.replace(minute=0) - timedelta(hours=23)
        day = "FROM run_history WHERE created_at >= ?"
        since = f"{hour:%Y-%m-%d %H:%M:%S}"
        total = number(f"SELECT count(*) {day}", since)
        completed = number(f"SELECT count(*) {day} AND status = 'COMPLETED'", since)
        failed = number(f"SELECT count(*) {day} AND status = 'FAILED'", since)
        fails = number(
            "SELECT count(DISTINCT subject) FROM incident WHERE kind = 'crawler_failing'"
        )
        needs = number("SELECT count(*) FROM incident WHERE state = 'open'")
        assert f"{needs} need attention · 514 crawlers · {fails} fail" in said
        assert "1 is flaky · 2 bring less" in said
        assert f"{live} runs live" in said
        good = 100 * completed / (completed + failed)
        assert f"{total:,} runs in 24 h, {good:.1f} % completed" in said
        assert "Everything works" not in said
        rows = rows_of(browser.get("/?search=fails").text)
        ended = database.execute(
            "SELECT sum(status = 'COMPLETED'), count(*) FROM run_history WHERE crawler = 'shop-437'"
            " AND status IN ('COMPLETED', 'FAILED')"
        ).fetchone()
        assert f"{100 * ended[0] / ended[1]:.0f} %" in rows["shop-437"]
        assert "0 of ~1 003" in rows["shop-437"]
        links = re.findall(r'href="(/runs\?[^"]*)">(\d[\d,]*) runs', browser.get("/").text)
        assert len(links) == 2
        for link, many in links[:1]:
            assert f"{many} runs" in words(browser.get(html.unescape(link)))


def test_no_crawler_is_healthy_whose_incident_is_open(filled: Harness, browser: TestClient) -> None:
    for row in filled.store.incidents.open_incidents(1_000):
        if row.kind.startswith("crawler_"):
            text = rows_of(browser.get("/", params={"search": row.name}).text)[row.name]
            assert row.cause in text
            assert not re.search("healthy|running|waits", text.replace(row.cause, ""))
            head = browser.get(f"/crawlers/{row.name}").text.partition('id="subject-head"')[2]
            head = head.partition("</header>")[0]
            [state] = re.findall(r'<h1>.*<span class="pill [^"]*">([^<]*)</span></h1>', head)
            assert f"{state} since" in text, "its own page contradicts the first page"
            assert html.escape(row.cause) in head
    page = browser.get("/").text
    listed = page.partition('id="fleet-incidents"')[2].partition("</section>")[0]
    for sentence in (
        "shop-437 fails",
        f"{LONG} fails",
        "Schedule nightly stopped itself",
        "Pool batch is full",
    ):
        assert sentence in listed
    assert re.search(r'action="/schedules/nightly">.*value="resume">Resume', listed)
    assert 'href="/pools">Open' in listed


def test_what_is_muted_is_folded_and_what_is_closed_is_gone(
    filled: Harness, browser: TestClient
) -> None:
    rows = {row.subject: row for row in filled.store.incidents.open_incidents(1_000)}
    muted = rows["crawlers/shop-437"].incident_id
    until = filled.clock.now + timedelta(hours=1)
    filled.store.incidents.change_incident(muted, muted_until=until)
    filled.store.incidents.close_incident(rows["crawlers/shop-7"].incident_id, "ann")
    text = browser.get("/").text
    assert "<summary>1 muted</summary>" in text
    assert "shop-437 fails" in text.partition("<summary>1 muted")[2]
    assert "fails since" in rows_of(text)["shop-437"], "it fails, whoever wants to hear of it"
    assert "shop-7" not in list(rows_of(text))[:4]


def test_all_is_well_only_if_nothing_needs_somebody(
    harness: Harness, browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawler_lifecycle.gateway.ui.fleet.WAIT_S", 60.0)
    monkeypatch.setattr("crawler_lifecycle.gateway.runs.fleet.FRESH_S", 0.0)
    said = words(browser.get("/"))
    assert "Everything works" in said
    assert "never ran" in said
    harness.store.incidents.record_conditions(
        [condition(harness, "webhook_failing", "webhooks/chat")], lambda row: True
    )
    with harness.client(harness.new_app()) as other:
        said = words(as_browser(other).get("/"))
    assert "Everything works" not in said
    assert "Webhook chat fails" in said


def test_fleet_mirrors_the_tables_in_each_state_of_the_scene(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Problems appear one after the other and disappear together: no page invents or omits one."""
    monkeypatch.setattr("crawler_lifecycle.gateway.ui.fleet.WAIT_S", 60.0)
    monkeypatch.setattr("crawler_lifecycle.gateway.runs.fleet.FRESH_S", 0.0)
    fill_healthy(harness)
    incidents = harness.store.incidents
    planted = [condition(harness, kind, subject) for kind, subject, _, _ in TROUBLES]
    with harness.client(harness.new_app()) as client:
        page = as_browser(client)
        for n in (*range(len(planted) + 1), 0):
            incidents.record_conditions(planted[:n], lambda row: True)
            text = page.get("/").text
            listed = html.unescape(text.partition('id="fleet-incidents"')[2])
            listed = listed.partition("</section>")[0]
            said = words(page.get("/"))
            with sqlite_files.connect(tmp_path / "runs.db") as database:
                opened = dict(
                    database.execute("SELECT subject, kind FROM incident WHERE state = 'open'")
                )
                crawlers = database.execute(
                    "SELECT count(DISTINCT crawler) + 1 FROM run_history"
                ).fetchone()[0]
            assert len(opened) == n
            assert f"{crawlers} crawlers" in said
            assert ("Everything works" in said) == (not opened)
            needs = f"{n} needs" if n == 1 else f"{n} need"
            assert (f"{needs} attention · " in said) == (n > 0)
            parts = words(page.get("/parts"))
            of_parts = [subject for subject in opened if subject.startswith("parts/")]
            assert ("All parts work" in parts) == (not of_parts), parts
            assert listed.count("<li class=") == n
            for kind, subject, sentence, act in TROUBLES:
                assert (f"<b>{sentence}</b>" in listed) == (opened.get(subject) == kind), subject
                assert (f'">{act}<span class="hidden">: {sentence}</span>' in listed) == (
                    subject in opened
                )
            kinds = list(opened.values())
            for kind, one in (
                ("crawler_failing", "1 fails"),
                ("crawler_flaky", "1 is flaky"),
            ):
                assert (one in said) == (kind in kinds), one
            less = kinds.count("crawler_less") + kinds.count("crawler_empty")
            assert (f"{less} bring" in said) == (less > 0)


def test_old_addresses_of_the_list_lead_to_it(browser: TestClient) -> None:
    for query in ("status=FAILED", "attention=true", "search=a&crawler=b"):
        moved = browser.get(f"/?{query}")
        assert (moved.status_code, moved.headers["location"]) == (307, f"/runs?{query}")
    assert browser.get("/?search=a").status_code == 200
    assert browser.get("/crawlers").headers["location"] == "/"
    assert browser.get("/runs").status_code == 200
    assert browser.get("/?sort=size").status_code == 422


STATES = (
    "fails",
    "flaky",
    "brings less",
    "failed last",
    "waits",
    "running",
    "healthy",
    "never ran",
)


def test_each_order_is_that_of_an_independent_sort(
    filled: Harness, browser: TestClient, tmp_path: Path
) -> None:
    """Equal values keep the order of the unsorted page, and rows without a value are last."""

    def listed(query: str) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(browser.get(f"/?{query}format=csv").text)))

    first = listed("")
    with sqlite_files.connect(tmp_path / "runs.db") as database:
        newest = database.execute(
            "SELECT crawler, created_at FROM run_history"
            " WHERE run_id IN (SELECT max(run_id) FROM run_history GROUP BY crawler)"
        ).fetchall()
        items = database.execute(
            "SELECT crawler, items FROM run_history WHERE items IS NOT NULL AND run_id IN"
            " (SELECT max(run_id) FROM run_history"
            " WHERE status IN ('COMPLETED', 'FAILED') GROUP BY crawler)"
        ).fetchall()
        shares = database.execute(
            "SELECT crawler, avg(status = 'COMPLETED') FROM run_history"
            " WHERE status IN ('COMPLETED', 'FAILED') GROUP BY crawler"
        ).fetchall()
    ranks = [(row["Crawler"], row["State"].partition(" since")[0]) for row in first]
    values: dict[str, dict[str, Any]] = {
        "crawler": {name: name for name, _ in ranks},
        "state": {name: STATES.index(state) for name, state in ranks},
        "last_run": dict(newest),
        "good": dict(shares),
        "items": dict(items),
    }
    names = [row["Crawler"] for row in first]
    assert len(names) == CRAWLERS + 1
    for (sort, own), sign in product(values.items(), ("", "-")):
        known = [name for name in names if name in own]
        known.sort(key=own.__getitem__, reverse=sign == "-")
        expected = known + [name for name in names if name not in own]
        found = [row["Crawler"] for row in listed(f"sort={sign}{sort}&")]
        assert found == expected, (sort, sign)


def test_shares_are_read_for_a_bounded_number_of_crawlers(
    filled: Harness, browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawler_lifecycle.gateway.ui.fleet.RESULTS_MAX", 5)
    page = words(browser.get("/?sort=-good&page_size=5"))
    assert "Only the 5 crawlers in the worst states are in this order." in page


def test_a_crawler_that_left_has_no_start(filled: Harness, browser: TestClient) -> None:
    rows: dict[str, Any] = rows_of(browser.get("/?search=shop-0").text)
    assert rows["shop-0"].endswith("no longer in the catalogue")
    assert rows_of(browser.get("/?search=shop-1&sort=crawler").text)["shop-1"].endswith("shop-1")


def test_the_rail_counts_what_needs_somebody(filled: Harness, browser: TestClient) -> None:
    page = browser.get("/pools").text
    rail = re.sub(
        r"\s+", " ", re.sub("<[^>]*>", " ", page.partition("<nav")[2].partition("</nav>")[0])
    )
    assert "Fleet 5 need attention Runs 3 live" in rail
    assert "Schedules 1 need attention Capacity 1 need attention Truth" in rail
    assert page.count("<li><a href=") == 9


def test_a_caller_of_one_project_sees_its_own_fleet(harness: Harness, tmp_path: Path) -> None:
    keys = Keys(tmp_path, "a", "b")
    with harness.client(harness.new_app(entrance=keys.entrance(quota=None))) as client:
        client.post(
            "/v1/runs", json={"crawler": "plain"}, headers=keys.headers("a-operate")
        ).raise_for_status()
        for who, state in (("a", "waits"), ("b", "never ran")):
            page = client.get("/", headers={"Accept": "text/html", **keys.headers(f"{who}-read")})
            assert state in rows_of(page.text)["plain"]


def test_a_bar_is_green_only_for_a_good_run() -> None:
    """A run that completed with less than expected counts as good nowhere."""
    at = datetime(2026, 11, 20, 12, tzinfo=UTC)
    for status, lacks in (("COMPLETED", None), ("COMPLETED", "coverage"), ("FAILED", None)):
        run = ShortRun(9, "plain", status, None, 1, None, lacks, at, "same")
        assert (run_kind(run) == "completed") == is_good(run)


def test_all_places_agree_on_what_is_usual_and_on_what_is_less(
    harness: Harness, browser: TestClient
) -> None:
    """Runs with other arguments, live, failed and older runs do not change what is usual."""
    with harness.client() as client:

        def runs(items: int, status: RunStatus | None = RunStatus.COMPLETED, arg: str = "a") -> int:
            body = {"crawler": "plain", "args": {"page": arg}}
            run_id = int(client.post("/v1/runs", json=body).json()["run_id"])
            if status is not None:
                harness.claim(run_id)
                harness.end(run_id, status)
            with harness.store.database.writing() as conn:
                mine = run_history.c.run_id == run_id
                conn.execute(sa.update(run_history).where(mine).values(items=items, lacks=None))
            harness.clock.forward(60)
            return run_id

        for items in (9, 9, 9, 300, 300, 200, 400):
            runs(items)
        for _ in range(6):
            runs(7, RunStatus.FAILED)
            runs(7, arg="b")
        for _ in range(4):
            last_good = runs(300)
        newest = runs(20)
        for _ in range(2):
            runs(1, None, "c")
        for _ in range(OFTEN):
            Rounds(harness.gateway()).once(())
        row = rows_of(browser.get("/").text)["plain"]
        assert "brings less since" in row
        assert "good runs with the same arguments produce 300 (median)" in row
        run = words(browser.get(f"/runs/{newest}"))
        assert "items 20 of ~300" in run
        crawler = words(browser.get("/crawlers/plain"))
        assert f"run {newest} produced 20 items; good runs with the same arguments produce 300" in (
            crawler
        )
        assert "items 20 300 " in crawler
        [share] = re.findall(r"Good, 7 d: (\d+ %)", crawler)
        assert share in row
        [incident] = client.get("/v1/incidents").json()["incidents"]
        assert (incident["kind"], incident["last_run_id"]) == ("crawler_less", newest)
        assert incident["cause"] in crawler
        assert last_good < newest
