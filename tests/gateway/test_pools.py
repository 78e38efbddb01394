"""Pools as people see them: the list, a run's position in the queue, and the entry points that
refuse unknown pools.
"""

from __future__ import annotations

import html
import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.conditions import IncidentCondition
from crawler_lifecycle.domain.errors import SchedulerUnavailable, StoreUnavailable
from crawler_lifecycle.domain.pools import Pool, Pools
from crawler_lifecycle.features.managers.domain.manager import BUILT_IN
from crawler_lifecycle.store.runs.pools import PoolStore
from crawler_lifecycle.store.store import open_store
from tests.gateway.gateway_harness import CRAWLERS, Clock, Harness
from tests.gateway.keys import Keys
from tests.support.databases import make_tables
from tests.support.fakes.services import FakeScheduler
from tests.support.sites import limit

POOLS = Pools({"shop-a": Pool(max=2, weight=3), "shop-b": Pool(reserved=1)}, slots=4)


#: Pool shop-x belongs to project x. Everybody may use the others.
OWNED = Pools({**POOLS.named, "shop-x": Pool(project="x")}, slots=4)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    clock = Clock()
    url = make_tables(f"sqlite:///{tmp_path}/runs.db")
    store = open_store(url, pool_size=30, clock=clock, pools=POOLS)
    yield Harness(store, clock)
    store.close()


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path, "x", "y")


@pytest.fixture
def owned(harness: Harness, keys: Keys, tmp_path: Path) -> Iterator[tuple[Harness, TestClient]]:
    """The same with a pool of project x, and a gateway with tokens."""
    store = open_store(
        f"sqlite:///{tmp_path}/runs.db", pool_size=30, clock=harness.clock, pools=OWNED
    )
    there = Harness(store, harness.clock)
    with there.client(there.new_app(entrance=keys.entrance(), scrapyd="default")) as client:
        yield there, client
    store.close()


def start(
    harness: Harness,
    client: TestClient,
    tasks: int = 1,
    headers: dict[str, str] | None = None,
    **more: Any,
) -> int:
    """Start a run, and let its workflow offer as many tasks as its pool has slots for."""
    body = {"crawler": "plain", "tasks": [{"args": {"page": str(n)}} for n in range(tasks)], **more}
    answer = client.post("/v1/runs", json=body, headers=headers)
    assert answer.status_code == 202, answer.text
    run_id = int(answer.json()["run_id"])
    harness.claim(run_id)
    harness.deploy(run_id)
    return run_id


def test_runs_that_wait_for_a_site_are_seen_everywhere(
    harness: Harness, client: TestClient
) -> None:
    limit(harness.store, "shop.example", tasks=1)
    first = start(harness, client, sites=["www.shop.example"])
    last = start(harness, client, sites=["shop.example"])
    harness.clock.forward(245)
    said = f"shop.example: 1 of 1 task (run {first})"
    assert client.get(f"/v1/runs/{last}").json()["waiting"] == f"waiting for 4 min: {said}"
    assert said in client.get(f"/runs/{last}").text
    [run] = client.get("/v1/runs", params={"waits": "site"}).json()["runs"]
    assert run["waiting"] == "waiting for a slot of site shop.example for 4 min"
    assert run["run_id"] == last
    assert "1 run is waiting for a slot of a site" in client.get("/").text
    answer = client.post("/v1/runs", json={"crawler": "plain", "sites": ["http://"]})
    assert answer.status_code == 422
    assert "sites[0]: 'http://'" in answer.text


def test_the_line_is_seen_everywhere(harness: Harness, client: TestClient) -> None:
    begun = start(harness, client, 3, pool="shop-a")
    harness.clock.forward(60)
    urgent = start(harness, client, 2, pool="shop-a", priority=1)
    harness.clock.forward(245)
    last = start(harness, client, pool="shop-a")
    found = {pool["name"]: pool for pool in client.get("/v1/pools").json()["pools"]}
    assert sorted(found) == ["default", "shop-a", "shop-b"]
    mine = {
        name: found["shop-a"][name]
        for name in ("in_use", "max", "waiting_runs", "waiting_tasks", "weight")
    }
    assert mine == {"in_use": 2, "max": 2, "waiting_runs": 3, "waiting_tasks": 4, "weight": 3}
    harness.clock.forward(245)
    line = "waiting for a slot in pool shop-a (2 of 2 in use; 2 more urgent and 1 older tasks come first"
    assert client.get(f"/v1/runs/{last}").json()["waiting"].startswith(line)
    harness.store.deployment.mark_started(harness.fence(begun), harness.clock.now)
    part = "1 task QUEUED: waiting for a slot in pool shop-a (2 of 2 in use; 2 more urgent tasks come first"
    assert client.get(f"/v1/runs/{begun}").json()["waiting"].startswith(part)
    listed = client.get("/v1/runs", params={"pool": "shop-a"}).json()["runs"]
    assert [run["run_id"] for run in listed] == [last, urgent, begun]
    assert listed[0]["waiting"] == "waiting for a slot in pool shop-a for 4 min"
    assert client.get("/v1/runs", params={"pool": "shop-b"}).json()["runs"] == []
    page = client.get(f"/runs/{last}").text
    assert "2 more urgent and 1 older tasks come first" in page
    assert '<a href="/runs?pool=shop-a">shop-a</a>' in page
    assert re.search(
        r'<a href="/runs\?pool=shop-a">shop-a</a></th><td role="cell" class="n"[^>]*>2 of 2</td>',
        pools(client),
    )
    figures = client.get("/metrics").text
    for said in ("waiting_tasks", "slots_in_use", "slots_max"):
        assert re.search(rf'lifecycle_pool_{said}{{pool="shop-a"}} [24]\.0', figures), said
    assert 'lifecycle_pool_oldest_wait_seconds{pool="shop-a"} 550.0' in figures
    assert 'lifecycle_pool_slots_max{pool="default"} NaN' in figures


def pools(client: TestClient) -> str:
    return client.get("/pools").text


def test_a_holder_of_a_full_pool_is_stopped_where_it_is_named(
    harness: Harness, client: TestClient
) -> None:
    holder = start(harness, client, 2, pool="shop-a")
    assert "Who holds" not in pools(client), "nobody waits"
    start(harness, client, pool="shop-a")
    page = {"Accept": "text/html", "Origin": "http://127.0.0.1:8500"}
    fields = re.search(
        r"Who holds the slots of pool shop-a.*?plain · 2 slots.*?"
        r'name="key" value="(\w+)"><input type="hidden" name="run" value="([0-9.]+)">'
        r'<button class="button" name="do" value="stop">',
        pools(client),
        re.DOTALL,
    )
    assert fields is not None
    data = {"key": fields[1], "run": fields[2], "do": "stop"}
    answer = client.post("/runs", data=data, headers=page, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/{holder}")
    assert client.get(f"/v1/runs/{holder}").json()["stop"] is not None
    assert "stop requested" in pools(client)
    condition = IncidentCondition(
        "pool_full", "pools/shop-a", "*", "full", harness.clock.now, harness.clock.now
    )
    harness.store.incidents.record_conditions([condition], lambda row: False)
    [row] = harness.store.incidents.list_incidents()
    assert "Who holds the slots of pool shop-a" in client.get(f"/incidents/{row.incident_id}").text


def test_an_installation_without_pools_says_so(harness: Harness, tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/runs.db", clock=harness.clock)
    with Harness(store, harness.clock).client() as client:
        assert "This installation has no pools" in pools(client)
        assert 'name="pool"' not in client.get("/runs/new?crawler=plain").text
        refused = client.post("/v1/runs", json={"crawler": "plain", "pool": "shop-a"})
    store.close()
    assert (refused.status_code, "there is no such pool" in refused.text) == (
        422,
        True,
    )


def test_the_form_offers_the_pools(harness: Harness, client: TestClient) -> None:
    form = client.get("/runs/new?crawler=plain").text
    assert re.findall(r"<option>(default|shop-\w)</option>", form) == [
        "default",
        "shop-a",
        "shop-b",
    ]
    run_id = start(harness, client, pool="shop-b")
    assert "<option selected>shop-b</option>" in client.get(f"/runs/new?like={run_id}").text


RUN = {"crawler": "plain", "pool": "shop-x"}
POOL = {"argv": ["plain", "--pool", "shop-x"]}
GRAPH = {"id": "g", "steps": [{"path": "a", "kind": "crawl", "job": RUN}]}
DOORS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a run": ("POST", "/v1/runs", RUN),
    "a schedule of a run": ("PUT", "/v1/schedules/s", {"every_s": 60, "run": RUN}),
    "a graph": ("POST", "/v1/graphs", GRAPH),
    "a schedule of a graph": (
        "PUT",
        "/v1/schedules/s",
        {"every_s": 60, "graph": {"steps": GRAPH["steps"]}},
    ),
    "a manager": ("POST", "/v1/managers", {"crawler": "plain", "options": {"pool": "shop-x"}}),
    "a manager of a class": (
        "POST",
        "/v1/managers",
        {"plan": "shops:Shops", "argv": ["--pool=shop-x"]},
    ),
    "a graph of a manager": (
        "POST",
        "/v1/graphs",
        {"steps": [{"path": "m", "kind": "manager", "job": {"plan": BUILT_IN, "options": POOL}}]},
    ),
    "a schedule of a manager": (
        "PUT",
        "/v1/schedules/s",
        {"every_s": 60, "manager": {"crawler": "plain", "options": {"pool": "shop-x"}}},
    ),
}


@pytest.mark.parametrize(("given", "checked"), [("shop-a", ["shop-a"]), (None, [None, None])])
def test_the_pool_of_a_manager_is_checked_once(
    client: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    given: str | None,
    checked: list[str | None],
) -> None:
    """This holds for a given pool, and for that of the crawler's entry, of which there is none
    here.
    """
    asked, check = list[str | None](), Pools.check

    def counted(pools: Pools, name: str | None, project: str) -> None:
        asked.append(name)
        check(pools, name, project)

    monkeypatch.setattr(Pools, "check", counted)
    body = {"name": "walks", "crawler": "plain", "options": {"pool": given} if given else {}}
    assert client.post("/v1/managers", json=body).status_code in (200, 201, 202)
    assert asked == checked


@pytest.mark.parametrize("api", DOORS)
def test_an_unknown_pool_is_refused_by_name(client: TestClient, api: str) -> None:
    method, path, body = DOORS[api]
    answer = client.request(method, path, json=body)
    assert answer.status_code == 422, answer.text
    assert "pool: 'shop-x' is not allowed; there is no such pool" in answer.text


@pytest.mark.parametrize(
    "api", [*DOORS, "a page of a graph", "more steps", "jobs", "the form", "quotas", "scrapyd"]
)
def test_a_pool_of_another_project_is_as_unknown_as_one_that_is_not_there(
    owned: tuple[Harness, TestClient], keys: Keys, api: str
) -> None:
    harness, client = owned

    def ask(who: str, method: str, path: str, **more: Any) -> Any:
        return client.request(method, path, headers=keys.headers(who), **more)

    def knock(who: str, pool: str, **project: str) -> Any:
        """Ask for this pool; ``project`` is what a token of all projects names."""
        if api in DOORS:
            method, path, body = json.loads(json.dumps(DOORS[api]).replace("shop-x", pool))
            return ask(who, method, path, json=body | project)
        made, steps = (
            {"crawler": "plain", **project},
            [{"path": "b", "kind": "crawl", "job": {**RUN, "pool": pool}}],
        )
        match api:
            case "a page of a graph":
                key = ask(
                    who, "POST", "/v1/graphs", json={"pages": 1, "fingerprint": "0" * 64, **project}
                ).json()["id"]
                return ask(who, "PUT", f"/v1/graphs/{key}/pages/0", json={"steps": steps})
            case "more steps":
                whole = [{"path": "a", "kind": "crawl", "job": {"crawler": "plain"}}]
                key = ask(who, "POST", "/v1/graphs", json={"steps": whole, **project}).json()["id"]
                return ask(who, "POST", f"/v1/graphs/{key}/append", json={"steps": steps})
            case "jobs":
                manager = ask(who, "POST", "/v1/managers", json=made).json()["manager_id"]
                return ask(
                    who, "POST", f"/v1/managers/{manager}/jobs", json={"jobs": [{"pool": pool}]}
                )
            case "the form":
                form = {"key": uuid.uuid4().hex, "pool": pool, **made}
                return ask(who, "POST", "/runs/new", data=form, follow_redirects=False)
            case "quotas":
                return ask(who, "GET", "/v1/quotas", params={"pool": pool})
        harness.scheduler = FakeScheduler([replace(CRAWLERS[0], pool=pool)])
        with harness.client(harness.new_app(entrance=keys.entrance(), scrapyd="default")) as other:
            form = {"project": "default", "spider": "plain"}
            return other.post("/schedule.json", data=form, headers=keys.headers(who))

    answers = [knock("y-operate", pool) for pool in ("shop-x", "shop-z")]
    said = [
        re.sub(r"shop-z|\b[0-9a-f]{32}\b", "shop-x", html.unescape(answer.text))
        for answer in answers
    ]
    assert answers[0].status_code == answers[1].status_code == (200 if api == "scrapyd" else 422), (
        said
    )
    assert "'shop-x' is not allowed; there is no such pool" in said[0]
    assert said[0] == said[1]
    assert "is not allowed" not in knock("x-operate", "shop-x").text
    if api not in ("quotas", "scrapyd"):
        named = [knock("operate", "shop-x", project=project).text for project in ("y", "x")]
        assert ["is not allowed; there is no such pool" in answer for answer in named] == [
            True,
            False,
        ], named


def test_a_token_of_a_project_is_told_of_its_own_runs_and_pools(
    owned: tuple[Harness, TestClient], keys: Keys
) -> None:
    harness, client = owned
    x, y, every = (keys.headers(who) for who in ("x-operate", "y-operate", "read"))
    start(harness, client, 2, headers=x, pool="shop-a")
    harness.clock.forward(60)
    for tasks in (7, 1):
        mine = start(harness, client, tasks, headers=y, pool="shop-a")
    start(harness, client, 5, headers=x, pool="shop-a", priority=1)
    harness.clock.forward(45)
    said = client.get(f"/v1/runs/{mine}", headers=y).json()["waiting"]
    assert re.fullmatch(
        r"waiting .* shop-a \(of this project 1 older task comes first; about \d+ min\) for 45 s",
        said,
    )
    assert (
        "shop-a (of this project 1 older task comes first; "
        in client.get(f"/runs/{mine}", headers=y).text
    )
    assert (
        "(2 of 2 in use; 5 more urgent and 1 older tasks come first; "
        in (client.get(f"/v1/runs/{mine}", headers=every).json()["waiting"])
    )

    def rows(headers: dict[str, str]) -> dict[str, tuple[object, ...]]:
        known = client.get("/v1/pools", headers=headers).json()["pools"]
        return {
            one["name"]: (one["in_use"], one["max"], one["waiting_tasks"], one["share"])
            for one in known
        }

    assert rows(y) == {
        "default": (0, None, 0, None),
        "shop-a": (0, None, 8, None),
        "shop-b": (0, None, 0, None),
    }
    assert rows(x)["shop-a"] == (2, None, 5, None)
    assert rows(every)["shop-a"][:3] == (2, 2, 13)
    assert "shop-x" in rows(x)
    assert "of plain · 2 slots" in client.get("/pools", headers=x).text
    assert "No run that you can see holds a slot" in client.get("/pools", headers=y).text
    for path in ("/pools", "/runs/new?crawler=plain", f"/runs/new?like={mine}"):
        assert "shop-x" not in client.get(path, headers=y).text, path
        assert "shop-x" in client.get(path.replace(f"like={mine}", "crawler=plain"), headers=x).text


def test_the_pool_of_a_crawlers_entry_is_checked_too(harness: Harness) -> None:
    harness.scheduler = FakeScheduler([replace(CRAWLERS[0], pool="shop-x")])
    run = {"crawler": "plain"}
    bodies = (
        ("POST", "/v1/runs", run),
        ("PUT", "/v1/schedules/s", {"every_s": 60, "run": run}),
        ("POST", "/v1/graphs", {"steps": [{"path": "a", "kind": "crawl", "job": run}]}),
        ("POST", "/v1/managers", run),
    )
    with harness.client() as client:
        for method, path, body in bodies:
            assert (
                "pool: 'shop-x' is not allowed" in client.request(method, path, json=body).text
            ), path


def test_jobs_of_a_manager_have_pools(harness: Harness, client: TestClient) -> None:
    manager = client.post(
        "/v1/managers", json={"crawler": "plain", "options": {"pool": "shop-a"}}
    ).json()
    path = f"/v1/managers/{manager['manager_id']}/jobs"
    jobs = [{"spider_args": {"page": "1"}}, {"spider_args": {"page": "2"}, "pool": "shop-b"}]
    assert client.post(path, json={"jobs": jobs}).status_code == 202
    listed = client.get(path).json()["jobs"]
    assert [job["job"]["pool"] for job in listed] == ["shop-a", "shop-b"]
    refused = client.post(path, json={"jobs": [{"pool": "shop-x"}]})
    assert (refused.status_code, "jobs[0].pool: 'shop-x'" in refused.text) == (422, True)


def ok(answer: Any, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


SET = {"max": 2, "weight": 1, "reserved": 1, "requested_by": "ann"}


def test_a_pool_is_set_changed_and_deleted_at_run_time(
    harness: Harness, client: TestClient
) -> None:
    done = ok(client.put("/v1/pools/shop-c", json=SET))
    assert done["note"] == "max: none → 2, reserved: 0 → 1"
    assert [done[name] for name in ("origin", "changed_by", "max")] == ["people", "ann", 2]
    assert ok(client.put("/v1/pools/shop-c", json=SET))["note"] == "Nothing changed."
    assert ok(client.put("/v1/pools/shop-d", json={}))["note"] == "created"
    done = ok(client.put("/v1/pools/shop-c", json={"weight": 3, "requested_by": "ann"}))
    assert done["note"] == "max: 2 → none, weight: 1 → 3, reserved: 1 → 0"
    run_id = start(harness, client, pool="shop-c")
    assert re.search(
        r'lifecycle_pool_slots_in_use{pool="shop-c"} 1\.0', client.get("/metrics").text
    )
    assert "<option>shop-d</option>" in client.get("/runs/new?crawler=plain").text
    assert re.search(r">settings</td>.*>people</td>.*>ann</td>", pools(client), re.DOTALL)
    refused = client.delete("/v1/pools/shop-c")
    assert refused.status_code == 409
    assert f"pool 'shop-c' is named by run {run_id}; change or end them" in refused.text
    assert ok(client.delete("/v1/pools/shop-d"))["note"] == "deleted"
    assert "did you mean" in ok(client.delete("/v1/pools/shop-d"), 404)["detail"]
    assert ok(client.get("/v1/pools/shop-d"), 405)


def test_a_change_of_some_limits_keeps_what_others_changed_meanwhile(
    harness: Harness, client: TestClient
) -> None:
    def shown() -> list[Any]:
        [row] = [row for row in client.get("/v1/pools").json()["pools"] if row["name"] == "shop-c"]
        return [row[name] for name in ("max", "weight", "reserved", "project")]

    def change(**limits: Any) -> Any:
        return ok(client.patch("/v1/pools/shop-c", json=limits))["note"]

    assert change(max=2, weight=3) == "max: none → 2, weight: 1 → 3"
    notes = [change(max=4), change(reserved=1)]
    assert notes == ["max: 2 → 4", "reserved: 0 → 1"]
    assert shown() == [4, 3, 1, None]
    answer = client.patch("/v1/pools/shop-c", json={"reserved": 2, "max": 1})
    assert answer.status_code == 422
    assert change(max=1) == "max: 4 → 1"
    answer = client.patch("/v1/pools/shop-c", json={"reserved": 2})
    assert answer.status_code == 422
    assert "reserved: 2 is above max: 1; reserve fewer" in answer.text
    assert change(max=None, reserved=0) == "max: 1 → none, reserved: 1 → 0"
    assert change() == "Nothing changed."
    assert ok(client.patch("/v1/pools/shop-a", json={"max": 9}), 409)


def test_a_pool_that_a_crawler_of_the_file_names_is_not_deleted(harness: Harness) -> None:
    harness.scheduler = FakeScheduler([replace(CRAWLERS[0], pool="shop-c")])
    with harness.client() as client:
        ok(client.put("/v1/pools/shop-c", json={}))
        assert "is named by crawler plain;" in client.delete("/v1/pools/shop-c").text


def test_a_pool_is_not_deleted_while_crawlers_are_unknown(harness: Harness) -> None:
    harness.scheduler.faults.add(SchedulerUnavailable("down"), 9)
    with harness.client() as client:
        ok(client.put("/v1/pools/shop-c", json={}))
        ok(client.delete("/v1/pools/shop-c"), 503)
        assert "shop-c" in harness.store.pools.known_pools().named


def test_a_change_is_recorded_and_answered_though_waiting_runs_were_not_moved(
    harness: Harness, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: PoolStore) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(PoolStore, "adopt", fails)
    admin = keys.headers("admin")
    body = {
        "max": 2,
        "weight": 3,
        "reserved": 1,
        "project": "a-project-with-a-long-name-for-its-shops",
    }
    with harness.client(harness.new_app(entrance=keys.entrance())) as client:
        ok(client.put("/v1/pools/shop-c", json=body, headers=admin))
        ok(client.delete("/v1/pools/shop-c", headers=admin))
    rows = harness.store.access.list_access(kind="pool", outcome="done")
    assert rows[0].verb == "deleted"
    assert str(rows[1].verb).startswith("project: none → a-project-")


@pytest.mark.parametrize(
    ("name", "body", "status", "said"),
    [
        ("shop-a", {}, 409, "pool 'shop-a' is set by LIFECYCLE_POOLS; change it there"),
        ("shop-c", {"reserved": 4}, 422, "reserved: 5 slots in total are too many for 4 slots"),
        ("shop-c", {"max": 1, "reserved": 2}, 422, "reserved: 2 is above max: 1; reserve fewer"),
        ("shop-c", {"max": 0}, 422, "max"),
        ("shop-c", {"weight": 0}, 422, "weight"),
        ("shop-c", {"queue": "crawls"}, 422, "queue"),
        ("shop-c", {"project": "no name"}, 422, "project"),
        ("default", {"project": "x"}, 422, "default: project: 'x' is not allowed"),
        ("no pool", {}, 422, "pool"),
        ("a" * 64, {}, 422, "pool"),
    ],
)
def test_what_cannot_be_set_is_refused_by_name(
    client: TestClient, name: str, body: dict[str, Any], status: int, said: str
) -> None:
    answer = client.put(f"/v1/pools/{name}", json=body)
    assert (answer.status_code, said in answer.text) == (status, True), answer.text
    assert sorted(row["name"] for row in client.get("/v1/pools").json()["pools"]) == [
        "default",
        "shop-a",
        "shop-b",
    ]


def test_only_an_administrator_of_all_projects_sets_pools(harness: Harness, keys: Keys) -> None:
    pool = "/v1/pools/shop-c"
    with harness.client(harness.new_app(entrance=keys.entrance())) as client:
        for who in ("operate", "x-admin"):
            ok(client.put(pool, json={}, headers=keys.headers(who)), 403)
            ok(client.delete(pool, headers=keys.headers(who)), 403)
        ok(client.put(pool, json={"max": 1}, headers=keys.headers("admin")))
        ok(client.delete(pool, headers=keys.headers("admin")))
    rows = harness.store.access.list_access(kind="pool", outcome="done")
    assert [(row.caller, row.operation, row.subject, row.verb) for row in rows] == [
        ("the-admin", "deletePool", "shop-c", "deleted"),
        ("the-admin", "putPool", "shop-c", "max: none → 1"),
    ]
