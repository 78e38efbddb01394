"""Sites as people see and change them: the API, the web pages, and who may do what."""

from __future__ import annotations

import html
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import insert

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.features.sites.domain.site import SiteLimits
from crawler_lifecycle.features.sites.gateway.answers import rate_chart
from crawler_lifecycle.features.sites.gateway.conditions import conditions
from crawler_lifecycle.features.sites.gateway.upkeep import SiteUpkeep
from crawler_lifecycle.features.sites.ports import SiteMinute
from crawler_lifecycle.features.sites.store.entries import db_now, lock_sites
from crawler_lifecycle.features.sites.store.tables import (
    run_site,
    site,
    site_block,
    site_lease,
    site_minute,
    site_ticket,
)
from crawler_lifecycle.settings import Settings
from tests.gateway.gateway_harness import BASE, Harness
from tests.gateway.keys import Keys

SITE = "/v1/sites/shop.example"
LIMITS = {"tasks": 2, "requests_per_s": 10, "hours": "00:00-00:00", "not": "31"}


def ok(answer: Any, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


def words(answer: Any) -> str:
    assert answer.status_code == 200, answer.text
    main = answer.text.partition("</header>")[2].partition("<footer")[0]
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", main).split()))


def wrong(answer: Any) -> str:
    document = ok(answer, 422)
    return f"{document['errors'][0]['field']}: {document['errors'][0]['message']}"


@pytest.fixture
def client(harness: Harness) -> Iterator[TestClient]:
    with harness.client() as client:
        yield client


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path, "a", "b")


def visit(harness: Harness, *hosts: str) -> int:
    """Record a run that visits these hosts, was refused by the first, and executes one task."""
    with harness.client() as client:
        body = {"crawler": "plain", "request_id": uuid.uuid4().hex}
        run_id = int(ok(client.post("/v1/runs", json=body), 202)["run_id"])
    harness.claim(run_id)
    harness.deploy(run_id)
    with harness.store.database.writing() as conn:
        now = db_now(conn)
        lock_sites(conn, hosts)
        for host in hosts:
            conn.execute(insert(run_site).values(run_id=run_id, host=f"www.{host}", site=host))
        name = hosts[0]
        # One of these is the last whole minute whenever the response is read.
        for minute in (int(now // 60) - 1, int(now // 60)):
            counts = {"requests": 300, "statuses": {"200": 290, "429": 10}}
            conn.execute(insert(site_minute).values(site=name, minute=minute, **counts))
        lease = {"lane": 0, "holder": f"{run_id}.0.1", "since": now, "until": now + 600}
        conn.execute(insert(site_lease).values(site=name, leaves=False, **lease))
        block = {"at": now - 5, "run_id": run_id, "task_index": 0, "status": 429}
        block |= {"retry_after_s": 600.0, "closed_until": now + 595}
        conn.execute(insert(site_block).values(site=name, **block))
        closed = {"closed_until": now + 595, "closures": 1, "closed_by_run": run_id}
        conn.execute(site.update().where(site.c.site == name).values(closed_status=429, **closed))
    return run_id


def test_limits_from_their_setting_to_their_removal(client: TestClient) -> None:
    made = ok(
        client.put(
            "/v1/sites/HTTPS:%2F%2Fshop.example:443", json={**LIMITS, "requested_by": "ann"}
        ),
        404,
    )
    assert made["code"] == "not_found", "a slash is no part of a name"
    made = ok(client.put("/v1/sites/Shop.Example:443", json={**LIMITS, "requested_by": "ann"}))
    assert (made["site"], made["origin"], made["changed_by"]) == ("shop.example", "people", "ann")
    assert made["limits"] == {**LIMITS, "rest_s": 60}
    assert made["note"].startswith("tasks: none → 2, requests_per_s: none → 10")
    assert ok(client.put(SITE, json=LIMITS))["note"] == "Nothing changed."
    made = ok(client.put(SITE, json={"tasks": 3}))
    assert (
        made["note"]
        == "tasks: 2 → 3, requests_per_s: 10 → none, hours: 00:00-00:00 → none, not: 31 → none"
    )
    ok(client.put("/v1/sites/*", json={"connections": 4}))
    ok(client.put("/v1/sites/*.blogs.example", json={"tasks": 1}))
    names = [row["site"] for row in ok(client.get("/v1/sites"))["sites"]]
    assert names == ["*", "*.blogs.example", "shop.example"]
    assert ok(client.delete(SITE))["limits"] == {"connections": 4, "rest_s": 60}
    assert ok(client.delete(SITE))["note"] == "It has no limits of its own."
    found = ok(client.get("/v1/sites", params={"show": "limited", "page_size": 1}))
    assert [row["site"] for row in found["sites"]] == ["*"]
    more = {"page_token": found["next_page_token"], "search": "BLOG"}
    assert ok(client.get("/v1/sites", params=more))["sites"] == []
    found = ok(client.get("/v1/sites", params={"search": "BLOG"}))
    assert [row["site"] for row in found["sites"]] == ["*.blogs.example"]


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("a b", {}, "site: 'a b' is not allowed; give a host"),
        ("*.co.uk", {}, "site: '*.co.uk' is not allowed; anybody can register a domain"),
        ("shop.example", {"tasks": -1}, "tasks: -1 is not allowed; give a whole number"),
        ("shop.example", {"tasks": "many"}, "tasks: "),
        ("shop.example", {"requests_per_s": 0}, "requests_per_s: 0"),
        ("shop.example", {"hours": "always"}, "hours: 'always' is not allowed; give hours"),
        ("shop.example", {"not": "1-31"}, "not: '1-31' is not allowed; leave at least one"),
        ("shop.example", {"rate": 1}, "rate: "),
    ],
)
def test_wrong_limits_are_refused_by_field(
    client: TestClient, name: str, body: dict[str, Any], said: str
) -> None:
    assert wrong(client.put(f"/v1/sites/{name}", json=body)).startswith(said)
    assert ok(client.get("/v1/sites"))["sites"] == []


def test_names_have_one_form(client: TestClient) -> None:
    for given, name in (
        ("B%C3%BCcher.example", "xn--bcher-kva.example"),
        ("me:pw@shop.example.", "shop.example"),
        ("[2001:DB8::1]:80", "2001:db8::1"),
    ):
        assert ok(client.put(f"/v1/sites/{given}", json={"tasks": 1}))["site"] == name
    document = ok(client.get("/v1/sites/de.shop.example"), 404)
    assert document["detail"].endswith("this host belongs to site shop.example")
    assert ok(client.get("/v1/sites/other.example"), 404)["code"] == "site_not_found"


def test_a_site_shows_what_happens_on_it(harness: Harness, client: TestClient) -> None:
    run_id = visit(harness, "shop.example", "other.example")
    waits = visit(harness, "other.example")
    with harness.store.database.writing() as conn:
        ticket = {"site": "shop.example", "priority": 3, "wanted": 4}
        since = datetime(2026, 11, 20, tzinfo=UTC)
        conn.execute(insert(site_ticket).values(run_id=waits, since=since, **ticket))
        conn.execute(site.update().where(site.c.site == "shop.example").values(has_tickets=True))
    ok(client.put(SITE, json={"requests_per_s": 10}))
    found = ok(client.get(SITE))
    assert (found["state"], found["closed_by_run"], found["closed_status"]) == (
        "closed",
        run_id,
        429,
    )
    assert (found["tasks"], found["waiting_runs"], found["waiting_tasks"]) == (1, 1, 4)
    assert (found["lanes"], found["last_minute"]) == (1, 300)
    assert found["statuses"] == {"200": 580, "429": 20}
    assert found["use"] == 0.5, "600 requests in two minutes, of 10 a second"
    assert [(one["run_id"], one["tasks"], one["waiting_tasks"]) for one in found["runs"]] == [
        (run_id, 1, 0),
        (waits, 0, 4),
    ]
    [block] = found["blocks"]
    assert (block["run_id"], block["status"], block["retry_after_s"]) == (run_id, 429, 600)
    for show, many in (("closed", 2), ("busy", 2), ("limited", 1)):
        assert len(ok(client.get("/v1/sites", params={"show": show}))["sites"]) == many
    [first, _] = conditions(harness.store, harness.clock())
    assert first.subject == "sites/other.example"
    assert "429 to run" in first.cause


def test_a_new_entry_holds_at_once_for_runs_that_execute(
    harness: Harness, client: TestClient
) -> None:
    run_id = visit(harness, "shop.example")
    ok(client.put("/v1/sites/www.shop.example", json={"tasks": 1}))
    [run] = ok(client.get("/v1/sites/www.shop.example"))["runs"]
    assert run["run_id"] == run_id
    ok(client.post("/v1/sites/www.shop.example/open"))
    ok(client.delete("/v1/sites/www.shop.example"))
    assert len(ok(client.get(SITE))["runs"]) == 1


def test_people_close_and_open_a_site(client: TestClient) -> None:
    ok(client.put(SITE, json={"tasks": 2}))
    assert wrong(client.post(f"{SITE}/close", json={})).startswith("for_s: give one of")
    assert wrong(client.post(f"{SITE}/close", json={"for_s": 1e9})).startswith("for_s: ")
    past = {"until": "2020-01-01T00:00:00Z"}
    assert wrong(client.post(f"{SITE}/close", json=past)).startswith("until: 2020-01-01T00:00:00")
    body = {"for_s": 3600, "reason": "a sale", "requested_by": "ann"}
    closed = ok(client.post(f"{SITE}/close", json=body))
    assert (closed["state"], closed["closed_by"]) == ("closed", "ann: a sale")
    document = ok(client.post(f"{SITE}/close", json={"for_s": 60}), 409)
    assert "already closed for 3" in document["detail"]
    assert ok(client.delete(SITE))["state"] == "closed", "removed while closed"
    opened = ok(client.post(f"{SITE}/open"))
    assert (opened["state"], opened["opens_at"], opened["closed_by"]) == ("open", None, None)
    assert ok(client.post(f"{SITE}/open"))["note"] == "It was not closed."
    blocks = ok(client.get(SITE))["blocks"]
    assert [one["person"] for one in blocks] == ["a person", "ann: a sale"]
    assert blocks[0]["closed_until"] is None
    ok(client.put("/v1/sites/*", json={"tasks": 2}))
    assert wrong(client.post("/v1/sites/*/close", json={"for_s": 60})).startswith("site: * cannot")


def test_a_site_can_be_closed_before_a_run_visits_it(client: TestClient) -> None:
    closed = ok(client.post("/v1/sites/www.new.example/close", json={"for_s": 60}))
    assert (closed["site"], closed["state"]) == ("new.example", "closed")
    ok(client.put("/v1/sites/de.new.example", json={"tasks": 2}))
    ok(client.post("/v1/sites/de.new.example/open"))
    ok(client.delete("/v1/sites/de.new.example"))
    document = ok(client.post("/v1/sites/de.new.example/close", json={"for_s": 60}), 404)
    assert document["detail"].endswith("this host belongs to site new.example")


def test_hours_keep_a_site_closed(client: TestClient) -> None:
    tomorrow = f"{datetime.now(UTC) + timedelta(hours=12):%H:00-%H:30} UTC"
    found = ok(client.put(SITE, json={"hours": tomorrow}))
    assert found["state"] == "outside_hours"
    assert found["opens_at"] is not None
    ok(client.post(f"{SITE}/close", json={"for_s": 60}))
    assert ok(client.post(f"{SITE}/open"))["note"].startswith(
        "It is closed outside its hours until "
    )


async def test_the_settings_are_applied_once(harness: Harness) -> None:
    store = harness.store.sites
    store.set_limits("shop.example", SiteLimits(tasks=9), "ann")
    store.set_limits("kept.example", SiteLimits(tasks=9), "ann")
    for sites in (
        {"shop.example": SiteLimits(tasks=2), "*": SiteLimits(connections=4)},
        {"shop.example": SiteLimits(tasks=2)},
        {},
    ):
        await SiteUpkeep(harness.gateway(sites=sites)).turn()
        found = {row.site: row.origin for row in store.list_sites(0, 10, show="limited")}
        assert found == {**dict.fromkeys(sites, "settings"), "kept.example": "people"}
        with harness.client() as client:
            if sites:
                for answer in (client.put(SITE, json={}), client.delete(SITE)):
                    assert "LIFECYCLE_SITES" in ok(answer, 409)["detail"]


def test_wrong_settings_name_the_variable_the_site_and_the_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LIFECYCLE_SITES", '{"shop.example": {"tasks": "2"}}')
    with pytest.raises(InvalidRequest) as raised:
        Settings.load()
    wanted = "LIFECYCLE_SITES: shop.example: tasks: '2' is not allowed; give a whole number from 0"
    assert str(raised.value).startswith(wanted)


def test_who_may_see_and_change_sites(harness: Harness, keys: Keys) -> None:
    run_id = visit(harness, "shop.example")
    visit(harness, "secret.example")
    with harness.store.database.writing() as conn:
        for project, name in (("a", "shop.example"), ("b", "secret.example")):
            of_site = run_site.select().with_only_columns(run_site.c.run_id)
            [run] = conn.execute(of_site.where(run_site.c.site == name)).scalars()
            conn.exec_driver_sql(
                "UPDATE run_history SET project = ? WHERE run_id = ?", (project, run)
            )
    app = harness.new_app(entrance=keys.entrance())
    with harness.client(app) as client:

        def ask(who: str, method: str, path: str, **more: Any) -> Any:
            return client.request(method, path, headers=keys.headers(who), **more)

        [seen] = ok(ask("a-read", "GET", "/v1/sites"))["sites"]
        assert (seen["site"], seen["tasks"], seen["last_minute"]) == ("shop.example", 1, None)
        assert [one["run_id"] for one in ok(ask("a-read", "GET", SITE))["blocks"]] == [run_id]
        ok(ask("a-read", "GET", "/v1/sites/secret.example"), 404)
        assert "secret" not in words(ask("a-read", "GET", "/sites"))
        assert "projects share a site" in words(ask("a-read", "GET", "/sites/shop.example"))
        close = {"for_s": 7200}
        for who in ("a-admin", "read"):
            ok(ask(who, "PUT", SITE, json={}), 403)
            ok(ask(who, "POST", f"{SITE}/close", json=close), 403)
        ok(ask("operate", "PUT", SITE, json={"tasks": 1}), 403)
        ok(ask("operate", "POST", f"{SITE}/close", json=close))
        ok(ask("admin", "PUT", SITE, json={"tasks": 1}))
        hidden = ok(ask("a-read", "GET", SITE))
        assert (hidden["closed_by"], hidden["changed_by"]) == (None, None)
    rows = harness.store.access.list_access(kind="site", outcome="done")
    assert [(row.caller, row.operation, row.verb) for row in rows] == [
        ("the-admin", "putSite", "tasks: none → 1"),
        ("the-operate", "closeSite", None),
    ]


def test_the_web_pages_of_a_site(harness: Harness, client: TestClient) -> None:
    run_id = visit(harness, "shop.example")
    client.headers["Origin"] = BASE
    form = {"site": "shop.example", "tasks": "2", "requests_per_s": "10", "not": "1-10"}
    note = words(client.post("/sites/new", data=form))
    assert "tasks: none → 2" in note
    page = words(client.get("/sites?search=SHOP&sort=-tasks"))
    assert "shop.example closed" in page
    assert "2 tasks, 10 requests/s, not 1-10" in page
    assert client.get("/sites?format=csv").text.count("\r\n") == 2
    overview = words(client.get("/sites/shop.example"))
    assert f"answered 429 to run {run_id}" in overview
    assert f"run {run_id} 429 600" in words(client.get("/sites/shop.example/blocks"))
    found = words(client.get(f"/sites/shop.example/blocks?search=run+{run_id}&sort=-status"))
    assert f"run {run_id} 429 600" in found
    assert "No block matches" in words(client.get("/sites/shop.example/blocks?search=no-such"))
    assert "plain" in words(client.get("/sites/shop.example/runs"))
    assert 'value="1-10"' in client.get("/sites/shop.example/limits").text
    wrong_form = client.post("/sites/new", data={"site": "x y", "tasks": "2"})
    assert wrong_form.status_code == 422
    assert "give a host" in html.unescape(wrong_form.text)
    assert client.post("/sites/new", data={"site": "s.example", "tasks": "two"}).status_code == 422
    key = {"key": uuid.uuid4().hex}
    assert "It is open." in words(client.post("/sites/shop.example", data={**key, "do": "open"}))
    close = {**key, "do": "close", "for_s": "600", "reason": "a sale"}
    assert "It is closed." in words(client.post("/sites/shop.example", data=close))
    assert "Closed by a person: a sale" in words(client.get("/sites/shop.example"))
    removed = client.post("/sites/new", data={"site": "shop.example", "do": "delete"})
    assert "tasks: 2 → none" in words(removed)


def test_the_chart_shows_the_last_hours() -> None:
    now = datetime(2026, 11, 20, 12, tzinfo=UTC)
    minutes = [SiteMinute(now - timedelta(minutes=n), 300, {}) for n in range(1, 6)]
    chart = rate_chart(minutes, 10, now)
    assert chart is not None
    assert (chart.most, chart.line) == (10, 0)
    assert chart.path.count("M") == 2
    assert rate_chart([], 10, now) is None
