"""Leases of tasks at the gateway: who gets lanes, and when a site is closed for all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import insert, select, update

from crawler_lifecycle.domain.errors import StoreRefused, StoreUnavailable
from crawler_lifecycle.features.sites.domain.lanes import LONG_LEASE_S, PACE
from crawler_lifecycle.features.sites.domain.site import SiteLimits
from crawler_lifecycle.features.sites.gateway import closings as closings_module
from crawler_lifecycle.features.sites.gateway import leases as gateway_module
from crawler_lifecycle.features.sites.gateway.closings import ClosingWatch
from crawler_lifecycle.features.sites.gateway.leases import LeaseDesk
from crawler_lifecycle.features.sites.store import leases as leases_module
from crawler_lifecycle.features.sites.store import minutes as minutes_module
from crawler_lifecycle.features.sites.store.entries import FRESH, db_now
from crawler_lifecycle.features.sites.store.leases import LeaseCall, SiteAnswer, SiteReport
from crawler_lifecycle.features.sites.store.tables import (
    run_site,
    site,
    site_block,
    site_day,
    site_minute,
)
from crawler_lifecycle.gateway.access.operations import Entrance
from crawler_lifecycle.store.runs.tables import task_history
from crawler_lifecycle.task_tokens import Purpose, TaskClaim, sign, sign_task
from tests.gateway.gateway_harness import Harness
from tests.gateway.keys import Keys

KEY = b"k" * 32
SHOP = "shop.example"


@pytest.fixture
def client(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr(leases_module, "CACHE_S", 0.0)
    with harness.client(harness.new_app(entrance=Entrance(task_key=KEY))) as client:
        yield client


class Tasks:
    """Tasks of executing runs, and the limits of sites."""

    def __init__(self, harness: Harness, client: TestClient) -> None:
        self.harness = harness
        self.client = client

    def start(self) -> int:
        run_id = int(self.client.post("/v1/runs", json={"crawler": "plain"}).json()["run_id"])
        self.harness.claim(run_id)
        self.harness.deploy(run_id)
        return run_id

    def limit(self, name: str, **limits: Any) -> None:
        values = {"limits": SiteLimits(**limits).to_json(), "origin": "people"}
        with self.harness.store.database.writing() as conn:
            conn.execute(insert(site).values(site=name, **FRESH, **values))

    def change(self, **values: Any) -> None:
        with self.harness.store.database.writing() as conn:
            conn.execute(update(site).where(site.c.site == SHOP).values(**values))

    def rows(self, table: Any) -> list[dict[str, Any]]:
        with self.harness.store.database.reading() as conn:
            return [dict(row) for row in conn.execute(select(table)).mappings()]

    def post(
        self, run_id: int, sites: dict[str, Any], token: str | None = None, **query: str
    ) -> Any:
        if token is None:
            claim = TaskClaim(Purpose.LEASES, self.harness.ref(run_id), 0, 1)
            token = sign_task(KEY, claim)
        path = f"/v1/runs/{run_id}/tasks/0/attempts/1/leases"
        headers = {"Authorization": f"Bearer {token}"}
        return self.client.post(path, headers=headers, json={"sites": sites}, params=query)

    def ask(self, run_id: int, host: str = SHOP, wanted: int = 1, **more: Any) -> Any:
        answer = self.post(run_id, {host: {"wanted": wanted, **more}})
        assert answer.status_code == 200, answer.text
        return answer.json()["sites"][host]


@pytest.fixture
def tasks(harness: Harness, client: TestClient) -> Tasks:
    return Tasks(harness, client)


def test_tasks_of_all_runs_share_the_lanes_of_a_site(tasks: Tasks) -> None:
    tasks.limit(SHOP, requests_per_s=10, connections=4)
    first = tasks.start()
    second = tasks.start()
    mine = tasks.ask(first, "WWW.Shop.example", wanted=3)
    assert mine["site"] == SHOP
    assert mine["exclusive"]
    assert not mine["free"]
    assert all(lane["every_s"] == pytest.approx(0.4 * PACE) for lane in mine["lanes"])
    assert all(0 < lane["until_s"] <= 6 for lane in mine["lanes"])
    others = tasks.ask(second, "de.shop.example", wanted=3)
    numbers = [lane["lane"] for lane in [*mine["lanes"], *others["lanes"]]]
    assert sorted(numbers) == [0, 1, 2, 3]
    assert tasks.ask(first, "WWW.Shop.example", wanted=0)["lanes"] == []
    kept = {"wanted": 4, "kept": numbers[3:]}
    assert len(tasks.ask(second, "de.shop.example", **kept)["lanes"]) == 4


def test_processes_of_a_task_that_say_so_have_lanes_of_their_own(tasks: Tasks) -> None:
    tasks.limit(SHOP, connections=2)
    run_id = tasks.start()
    told = [tasks.post(run_id, {SHOP: {"wanted": 1}}, process=name) for name in ("a1", "b2", "c3")]
    lanes = [answer.json()["sites"][SHOP]["lanes"] for answer in told]
    assert [[lane["lane"] for lane in mine] for mine in lanes] == [[0], [1], []]
    wrong = tasks.post(run_id, {SHOP: {"wanted": 1}}, process="not one")
    assert wrong.status_code == 422
    assert "process" in wrong.text


class RefusingStore:
    """A database that refuses what the task of run 3 reports."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.calls = 0

    def answer(self, calls: Sequence[LeaseCall]) -> list[dict[str, SiteAnswer]]:
        self.calls += 1
        if any(call.run_id == 3 for call in calls):
            raise self.error
        return [{SHOP: SiteAnswer(f"site of {call.run_id}")} for call in calls]


async def ask_together(store: RefusingStore) -> list[Any]:
    """Let a task of each run from 0 to 7 ask. Return the answers and errors."""
    desk = LeaseDesk(store)  # type: ignore[arg-type]
    calls = (desk.answer(LeaseCall(run_id, None, 0, 1, {})) for run_id in range(8))
    return await asyncio.gather(*calls, return_exceptions=True)


def test_a_call_that_the_database_refuses_fails_alone() -> None:
    store = RefusingStore(StoreRefused("out of range"))
    answers = asyncio.run(ask_together(store))
    refused = answers.pop(3)
    assert isinstance(refused, StoreRefused)
    names = [answer[SHOP].site for answer in answers]
    assert names == [f"site of {run_id}" for run_id in (0, 1, 2, 4, 5, 6, 7)]
    assert store.calls <= 7


@pytest.mark.parametrize("error", [StoreUnavailable("away"), KeyError("a fault of the code")])
def test_a_database_that_does_not_refuse_a_value_is_not_asked_for_each_call(
    error: Exception,
) -> None:
    store = RefusingStore(error)
    answers = asyncio.run(ask_together(store))
    assert [type(answer) for answer in answers] == [type(error)] * 8
    assert store.calls == 1


class CountingStore:
    """A database that notes the processes of each transaction."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def answer(self, calls: Sequence[LeaseCall]) -> list[dict[str, SiteAnswer]]:
        self.batches.append([call.process for call in calls])
        return [{} for _ in calls]


def test_one_transaction_answers_all_processes_of_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two urgent calls of one process need two, and the second one does not wait for others."""
    monkeypatch.setattr(gateway_module, "PATIENCE_S", 3_600.0)
    store = CountingStore()

    async def ask() -> None:
        desk = LeaseDesk(store)  # type: ignore[arg-type]
        urgent = {SHOP: SiteReport(SHOP, 1)}
        calls = [LeaseCall(1, None, 0, 1, urgent, name) for name in ("a", "b", "c", "a")]
        await asyncio.wait_for(asyncio.gather(*map(desk.answer, calls)), 60)

    asyncio.run(ask())
    assert store.batches == [["a", "b", "c"], ["a"]]


def test_a_repeated_call_counts_once(tasks: Tasks) -> None:
    """Its connection broke before the answer. A call without a number is always another one."""
    tasks.limit(SHOP, connections=2)
    run_id = tasks.start()

    def report(**query: str) -> Any:
        report = {"wanted": 1, "statuses": {"200": 5}, "proxies": {"p:1": {"200": 5}}}
        answer = tasks.post(run_id, {SHOP: report}, **query)
        return answer.json()["sites"][SHOP]["lanes"]

    def counted() -> int:
        return sum(row["requests"] for row in tasks.rows(site_minute))

    assert report(process="a", call="1")
    assert report(process="a", call="1"), "it is answered"
    assert counted() == 5
    report(process="b", call="1")
    report(process="a", call="2")
    assert counted() == 15
    report(process="a")
    report(process="a")
    assert counted() == 25
    assert [row["proxies"] for row in tasks.rows(site_day)] == [{"p:1": {"200": 25}}]


def test_a_call_that_failed_counts_when_it_is_repeated() -> None:
    store = RefusingStore(StoreUnavailable("away"))
    desk = LeaseDesk(store)  # type: ignore[arg-type]
    seen: list[int] = []

    def answer(calls: Sequence[LeaseCall]) -> list[dict[str, SiteAnswer]]:
        seen.extend(call.reports[SHOP].refused for call in calls)
        if len(seen) == 1:
            raise store.error
        return [{} for _ in calls]

    store.answer = answer  # type: ignore[method-assign]
    call = LeaseCall(3, None, 0, 1, {SHOP: SiteReport(SHOP, 1, refused=7)}, "a", 1)

    async def ask() -> None:
        with pytest.raises(StoreUnavailable):
            await desk.answer(call)
        await desk.answer(call)
        await desk.answer(call)

    asyncio.run(ask())
    assert seen == [7, 7, 0]


def test_a_run_of_a_project_token_leases_lanes_and_closes_its_site(
    harness: Harness, tmp_path: Path
) -> None:
    """The site belongs to all projects, and the task's token does not know any."""
    keys = Keys(tmp_path, "a")
    with harness.client(harness.new_app(entrance=keys.entrance(task_key=KEY))) as client:
        client.headers.update(keys.headers("a-operate"))
        tasks = Tasks(harness, client)
        tasks.limit(SHOP, connections=2)
        run_id = tasks.start()
        assert client.get(f"/v1/runs/{run_id}").json()["project"] == "a"
        assert len(tasks.ask(run_id, wanted=2)["lanes"]) == 2
        assert tasks.ask(run_id, block={"status": 429, "retry_after_s": 20.0})["closed_s"] > 19


def watch(tasks: Tasks, run_id: int) -> Any:
    """Wait for closings as the run's task."""
    claim = TaskClaim(Purpose.LEASES, tasks.harness.ref(run_id), 0, 1)
    headers = {"Authorization": f"Bearer {sign_task(KEY, claim)}"}
    path = f"/v1/runs/{run_id}/tasks/0/attempts/1/leases/closings"
    return tasks.client.get(path, headers=headers)


@pytest.mark.parametrize("here", [True, False], ids=["here", "at another gateway"])
def test_a_task_learns_of_a_closing_until_it_has_asked(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    tasks.limit(SHOP, connections=2)
    first = tasks.start()
    second = tasks.start()
    for run_id in (first, second):
        assert tasks.ask(run_id)["lanes"]
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(watch, tasks, second)
        every_s = closings_module.SEARCH_S
        time.sleep(2 * every_s)
        assert not waits.done()
        if here:
            monkeypatch.setattr(closings_module, "SEARCH_S", 3_600.0)
            time.sleep(2 * every_s)
            tasks.ask(first, block={"status": 429, "retry_after_s": 20.0})
        else:
            with tasks.harness.store.database.writing() as conn:
                closed = {"closed_until": db_now(conn) + 20.0, "closures": 1}
                conn.execute(update(site).values(**closed))
        assert waits.result(20).json() == {"sites": [SHOP]}
    if not here:
        assert watch(tasks, second).json() == {"sites": [SHOP]}, "it has not asked yet"
    assert tasks.ask(second)["closed_s"] > 0
    monkeypatch.setattr(closings_module, "WAIT_S", 0.6)
    assert watch(tasks, second).json() == {"sites": []}


def test_too_many_tasks_do_not_wait_for_closings(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closings_module, "WAITING_MAX", 0)
    answer = watch(tasks, tasks.start())
    assert (answer.status_code, answer.json()["code"]) == (503, "overloaded")


def test_waiting_tasks_do_not_delay_the_end_of_the_gateway(harness: Harness) -> None:
    """A call that waits is answered."""

    async def end() -> list[str]:
        closings = ClosingWatch(harness.store.database, asyncio.Event())
        waits = asyncio.create_task(closings.closed_sites("1.0.1"))
        await asyncio.sleep(0.1)
        closings.close()
        return await asyncio.wait_for(waits, 5)

    assert asyncio.run(end()) == []


@pytest.mark.parametrize("jump_s", [600.0, -600.0])
def test_no_lane_is_leased_after_the_clock_of_the_database_was_set(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    """Wait until all leases that tasks may still use are over."""
    begun = 100.0
    now = {"steady": begun, "set": 1e9}
    monkeypatch.setattr(leases_module, "db_now", lambda conn: now["steady"] + now["set"])
    monkeypatch.setattr(leases_module, "time", SimpleNamespace(monotonic=lambda: now["steady"]))
    tasks.limit(SHOP, connections=1)
    first = tasks.start()
    second = tasks.start()
    assert tasks.ask(first)["lanes"]
    now["set"] += jump_s
    for passed_s in (1.0, LONG_LEASE_S):
        now["steady"] = begun + passed_s
        assert not tasks.ask(second)["lanes"]
    now["steady"] = begun + LONG_LEASE_S + 2
    assert tasks.ask(second)["lanes"]
    assert not tasks.ask(first)["lanes"]


def test_a_host_without_limits_is_free(tasks: Tasks) -> None:
    run_id = tasks.start()
    answer = tasks.ask(run_id, "[2001:DB8::1]", statuses={"200": 5})
    assert answer["free"]
    assert not answer["lanes"]
    assert tasks.rows(site) == tasks.rows(site_minute) == []


@pytest.mark.parametrize("limits", [{"requests_per_s": 10.0}, {}])
def test_a_refused_request_closes_the_site_for_all_and_a_probe_opens_it(
    tasks: Tasks, limits: dict[str, Any]
) -> None:
    tasks.limit(SHOP, **limits)
    first = tasks.start()
    second = tasks.start()
    with tasks.harness.store.database.writing() as conn:
        conn.execute(insert(run_site).values(run_id=first, host=SHOP, site=SHOP))
    block = {"status": 429, "retry_after_s": 20.0}
    for run_id, more in ((first, {"block": block}), (second, {"wanted": 4})):
        answer = tasks.ask(run_id, **more)
        assert 19 < answer["closed_s"] <= 20
        assert not answer["free"]
        assert not answer["lanes"]
    [row] = tasks.rows(site)
    assert (row["closed_by_run"], row["closed_status"], row["closures"]) == (first, 429, 1)
    tasks.change(closed_until=1.0)
    probe = tasks.ask(second, wanted=4)
    assert probe["probe"]
    assert probe["exclusive"]
    assert [one["lane"] for one in probe["lanes"]] == [0]
    assert tasks.ask(first, passed=True)["lanes"] == [], "only the task that probes opens the site"
    opened = tasks.ask(second, wanted=4, passed=True)
    assert not opened["probe"]
    assert not opened["closed_s"]
    assert tasks.ask(first)["free"] == (not limits)
    [recorded] = tasks.rows(site_block)
    assert (recorded["run_id"], recorded["retry_after_s"]) == (first, 20.0)


def test_a_task_cannot_close_a_site_that_it_does_not_visit(tasks: Tasks) -> None:
    run_id = tasks.start()
    for _ in range(3):
        answer = tasks.ask(run_id, block={"status": 429, "retry_after_s": 1e9})
        assert answer["free"]
        assert not answer["closed_s"]
    [recorded] = tasks.rows(site_block)
    assert (recorded["site"], recorded["run_id"], recorded["closed_until"]) == (SHOP, run_id, 0)
    tasks.limit(SHOP, connections=1)
    assert tasks.ask(tasks.start())["lanes"]
    assert tasks.ask(run_id, block={"status": 429})["closed_s"] == 0


def test_a_site_is_closed_for_a_day_at_most(tasks: Tasks) -> None:
    tasks.limit(SHOP, connections=1)
    run_id = tasks.start()
    tasks.ask(run_id)
    block = {"status": 503, "retry_after_s": 1e300}
    closed_s = tasks.ask(run_id, block=block)["closed_s"]
    assert closed_s == pytest.approx(3_600, abs=1), "another project may name it"
    with tasks.harness.store.database.writing() as conn:
        conn.execute(insert(run_site).values(run_id=run_id, host=SHOP, site=SHOP))
    assert tasks.ask(run_id, block=block)["closed_s"] == pytest.approx(86_400, abs=1)
    for wrong in (-1.0, "soon", True):
        told = tasks.post(
            run_id, {SHOP: {"wanted": 0, "block": {"status": 429, "retry_after_s": wrong}}}
        )
        assert told.status_code == 422, wrong


def test_responses_are_counted_by_minute_where_a_site_is_known(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "db_now", lambda conn: 600.0)
    tasks.limit(SHOP, connections=2)
    for statuses in ({"200": 5, "error": 1}, {"200": 2, "404": 1}):
        tasks.ask(tasks.start(), statuses=statuses)
    [row] = tasks.rows(site_minute)
    assert (row["site"], row["minute"], row["requests"]) == (SHOP, 10, 9)
    assert row["statuses"] == {"200": 7, "404": 1, "error": 1}


def test_responses_are_counted_by_proxy_and_day(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minutes_module, "PROXIES_MAX", 2)
    tasks.limit(SHOP, connections=2)
    run_id = tasks.start()
    for proxies in (
        {"a:1": {"200": 2}, "direct": {"200": 1}},
        {"a:1": {"429": 1}, "b:1": {"200": 7}, "others": {"error": 1}},
    ):
        tasks.ask(run_id, statuses={"200": 1}, proxies=proxies)
    [row] = tasks.rows(site_day)
    assert row["proxies"] == {
        "a:1": {"200": 2, "429": 1},
        "direct": {"200": 1},
        "others": {"200": 7, "error": 1},
    }
    found = tasks.client.get(f"/v1/sites/{SHOP}").json()["proxies"]
    assert [(row["proxy"], row["requests"]) for row in found] == [
        ("others", 8),
        ("a:1", 3),
        ("direct", 1),
    ]
    page = tasks.client.get(f"/sites/{SHOP}").text
    assert "Responses by proxy and day" in page
    assert "200: 2, 429: 1" in page


def test_a_report_of_an_odd_response_is_mapped_to_what_is_known(tasks: Tasks) -> None:
    """Older crawlers report what the site or the proxy wrote, and a refused call frees them."""
    tasks.limit(SHOP, connections=2)
    run_id = tasks.start()
    assert tasks.ask(run_id)["lanes"]
    odd = {"200": 1, "999": 2, "error": 3, "42": 4}
    proxies = {"bücher:1": odd, "me:secret@a:1": {"200": 1}, "x" * 256: {"999": 1}, "a:1": {}}
    block = {"status": 302, "retry_after_s": 20.0}
    assert tasks.ask(run_id, statuses=odd, proxies=proxies, block=block)["closed_s"] > 19
    [minute] = tasks.rows(site_minute)
    assert minute["statuses"] == {"200": 1, "error": 9}
    [day] = tasks.rows(site_day)
    assert day["proxies"] == {"others": {"200": 2, "error": 10}, "a:1": {}}
    [recorded] = tasks.rows(site_block)
    assert recorded["status"] == 429


def test_only_a_task_that_executes_gets_leases(tasks: Tasks) -> None:
    run_id = tasks.start()
    other = tasks.start()
    ref = tasks.harness.ref(run_id)
    for token in (
        sign(KEY, ref),
        sign_task(KEY, TaskClaim(Purpose.FILES, ref, 0, 1)),
        sign_task(KEY, TaskClaim(Purpose.LEASES, ref, 0, 2)),
        sign_task(KEY, TaskClaim(Purpose.LEASES, tasks.harness.ref(other), 0, 1)),
    ):
        assert tasks.post(run_id, {}, token).status_code == 403
    assert tasks.post(run_id, {}).status_code == 200
    with tasks.harness.store.database.writing() as conn:
        of_run = task_history.c.run_id == run_id
        ended = {"status": "SUCCEEDED", "ended_at": datetime.now(UTC)}
        conn.execute(update(task_history).where(of_run).values(**ended))
    ended = tasks.post(run_id, {SHOP: {"wanted": 1}})
    assert (ended.status_code, ended.json()["code"]) == (409, "not_in_this_state")


@pytest.mark.parametrize(
    ("sites", "named"),
    [
        ({"no host/": {"wanted": 1}}, "sites: 'no host/'"),
        ({SHOP: {"wanted": 65}}, "wanted"),
        ({SHOP: {"wanted": 1, "kept": [-1]}}, "kept"),
        ({SHOP: {"wanted": 1, "statuses": {"200": -1}}}, "sites.shop.example.statuses.200"),
        ({f"{n}.example": {"wanted": 1} for n in range(101)}, "sites"),
    ],
)
def test_a_wrong_value_is_named(tasks: Tasks, sites: dict[str, Any], named: str) -> None:
    answer = tasks.post(tasks.start(), sites)
    assert answer.status_code == 422
    assert named in answer.text


def test_many_calls_at_once_get_different_lanes(tasks: Tasks) -> None:
    tasks.limit(SHOP, connections=4)
    runs = [tasks.start() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda run_id: tasks.ask(run_id, wanted=2), [*runs, *runs]))
    lanes = [lane["lane"] for answer in answers[8:] for lane in answer["lanes"]]
    assert sorted(lanes) == sorted(set(lanes))
    assert len(lanes) <= 4
