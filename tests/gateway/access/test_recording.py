"""The access log: what people and tokens did through any entry point, and what was refused."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.gateway.access import recorder
from crawler_lifecycle.gateway.access.recorder import EACH_MAX, STRANGERS_MAX, WINDOW_S, Recorder
from crawler_lifecycle.gateway.app import create_app
from crawler_lifecycle.gateway.cursors import encode
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.ports.access import AccessRow
from crawler_lifecycle.task_tokens import sign
from crawler_lifecycle.web.tries import Tries
from tests.gateway.gateway_harness import BASE, Harness
from tests.gateway.keys import KEY, Keys
from tests.gateway.ui.conftest import as_browser

BODY = {"crawler": "plain", "args": {"page": "zebra-body"}, "requested_by": "zebra-name"}


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path, "a", "b")


@pytest.fixture
def gateway(harness: Harness, keys: Keys) -> Gateway:
    gateway = harness.gateway(entrance=keys.entrance(quota=None), scrapyd="default")
    # On a slow machine, many requests take longer than the interval of one row, or than the pause
    # after wrong tokens.
    gateway.recorder.monotonic = lambda: 0.0
    assert gateway.logins is not None
    gateway.logins.tries = Tries(clock=lambda: 0.0)
    return gateway


@pytest.fixture
def api(harness: Harness, gateway: Gateway) -> Iterator[TestClient]:
    with harness.client(create_app(gateway)) as client:
        yield client


def close(api: TestClient, gateway: Gateway) -> None:
    """Write everything, like the end of a gateway does."""
    assert api.portal is not None
    api.portal.call(gateway.recorder.close)


def told(harness: Harness, *names: str, **filters: Any) -> list[tuple[object, ...]]:
    rows = harness.store.access.list_access(500, **filters)
    return [tuple(getattr(row, name) for name in names) for row in reversed(rows)]


WHAT = ("caller", "operation", "verb", "kind", "subject", "status", "outcome")


def test_each_change_has_one_row_by_whichever_api_it_came(
    harness: Harness, keys: Keys, gateway: Gateway, api: TestClient
) -> None:
    operate, admin = keys.headers("operate"), keys.headers("admin")
    run = api.post("/v1/runs", json=BODY, headers=operate).json()
    api.get(f"/v1/runs/{run['run_id']}", headers=operate)
    api.post("/v1/runs/1/stop", headers=operate)
    api.post("/v1/runs/77/stop", headers=operate)
    api.post("/v1/runs", json={"crawler": 7}, headers=operate)
    api.put(
        "/v1/schedules/nightly",
        json={"run": {"crawler": "plain"}, "every_s": 3600},
        headers=operate,
    )
    api.post("/v1/schedules/nightly/pause", headers=operate)
    api.post(
        "/v1/graphs",
        json={"id": "walk me", "steps": [{"path": "a", "kind": "crawl", "job": BODY}]},
        headers=admin,
    )
    job = api.post(
        "/schedule.json", data={"project": "default", "spider": "plain"}, headers=operate
    ).json()["jobid"]
    api.post("/cancel.json", data={"project": "default", "job": job}, headers=operate)
    api.post("/cancel.json", data={"project": "default", "job": "none"}, headers=operate)
    browser = as_browser(api)
    browser.post("/login", data={"token": keys.tokens["operate"]})
    browser.post("/runs", data={"key": "0" * 32, "do": "stop", "run": ["1.1", "2.1", "99.1"]})
    browser.post("/runs/new", data={"key": "1" * 32, "crawler": "plain"})
    asked = browser.post("/runs", data={"key": "2" * 32, "do": "force", "run": ["3.1"]})
    assert 'name="typed"' in asked.text, "it asks first, and does nothing"
    browser.post("/logout")
    who = "the-operate"
    name = keys.tokens["read"]
    api.post(f"/v1/graphs/{name}/stop", headers=operate | {"Origin": BASE})
    close(api, gateway)
    assert told(harness, *WHAT) == [
        (who, "startRun", None, "run", "1", 202, "done"),
        (who, "stopRun", None, "run", "1", 202, "done"),
        (who, "putSchedule", None, "schedule", "nightly", 200, "done"),
        (who, "pauseSchedule", None, "schedule", "nightly", 200, "done"),
        ("the-admin", "startGraph", None, "graph", "walk me", 202, "done"),
        (who, "scrapydSchedule", None, "run", "2", 200, "done"),
        (who, "scrapydCancel", None, "run", "2", 200, "done"),
        (who, "scrapydCancel", None, None, None, 200, "done"),
        (who, "pressRuns", "Stop", "run", "1", 200, "done"),
        (who, "pressRuns", "Stop", "run", "2", 200, "done"),
        (who, "pressStart", None, "run", "3", 303, "done"),
        # Failures and logins are counted, so they are written last.
        (who, "stopRun", None, "run", "77", 404, "run_not_found"),
        (who, "startRun", None, None, None, 422, "invalid_request"),
        (who, "logIn", None, None, None, 303, "done"),
        (who, "pressRuns", "Stop", "run", "99", 200, "not_done"),
        (who, "logOut", None, None, None, 303, "done"),
        (who, "stopGraph", None, "graph", "…", 404, "graph_not_found"),
    ]  # fmt: skip
    [first, *_] = told(
        harness, "subject_uid", "project", "address", "caller_project", "requests", "at"
    )
    assert first == (harness.run(1).run_uid, "default", "testclient", "*", 1, harness.clock.now)
    everything = json.dumps(told(harness, *AccessRow.__dataclass_fields__), default=str)
    assert "zebra" not in everything
    assert not [token for token in keys.tokens.values() if token in everything]


def test_refused_requests_are_counted_and_cannot_fill_the_table(
    harness: Harness, keys: Keys, gateway: Gateway, api: TestClient
) -> None:
    read = keys.headers("read")
    for _ in range(60):
        api.post("/v1/runs/1/stop", headers={"Authorization": "Bearer crawl_wrong"})
        api.post("/v1/runs/1/stop", headers=read)
    api.get("/v1/runs")
    api.post("/v1/runs", headers={"Origin": "https://evil.example"} | read)
    api.post("/login", data={"token": "crawl_wrong"}, headers={"Origin": BASE})
    close(api, gateway)
    rows = told(harness, "caller", "operation", "subject", "status", "outcome", "requests")
    assert rows == [
        (None, "stopRun", "1", 401, "invalid_token", 10),
        (None, "stopRun", "1", 429, "rate_limited", 50),
        (None, "listRuns", None, 401, "unauthenticated", 1),
        (None, "startRun", None, 403, "foreign_origin", 1),
        (None, "logIn", None, 429, "rate_limited", 1),
        ("the-read", "stopRun", "1", 403, "forbidden", 60),
    ]
    assert {one[0] for one in told(harness, "caller_project", caller="the-read")} == {"*"}


def test_a_flood_from_everywhere_has_a_row_for_the_others(harness: Harness) -> None:
    now = [0.0]
    found = Recorder(harness.store.access, harness.clock, lambda: now[0])
    for _ in range(2):
        for n in range(5_000):
            address = f"2001:db8::{n:x}"
            row = AccessRow(
                harness.clock(),
                None,
                "",
                "stopRun",
                address,
                401,
                "invalid_token",
                kind="run",
                subject="1",
            )
            found.count(row, known=False)
        now[0] += WINDOW_S
    asyncio.run(found.close())
    rows = told(harness, "address", "operation", "subject", "requests")
    one = [*((f"2001:db8::{n:x}", "stopRun", "1", 1) for n in range(STRANGERS_MAX))]
    assert rows == [*one, (None, "others", "1", 5_000 - STRANGERS_MAX)] * 2


def test_no_caller_hides_what_another_one_did(harness: Harness) -> None:
    found = Recorder(harness.store.access, harness.clock, lambda: 0.0)
    for n in range(1_000):
        found.count(
            AccessRow(harness.clock(), "eve", "a", f"op{n}", "::1", 403, "forbidden"), known=True
        )
        found.count(
            AccessRow(
                harness.clock(), f"c{n % 9}", "b", "stopRun", "::1", 409, "not_in_this_state"
            ),
            known=True,
        )
    asyncio.run(found.close())
    rows = told(harness, "caller", "operation", "requests")
    assert [one for one in rows if one[0] == "eve"] == [
        ("eve", f"op{n}", 1) for n in range(EACH_MAX)
    ]
    assert [one[:2] for one in rows if one[0] != "eve"] == [
        *((f"c{n}", "stopRun") for n in range(9)), (None, "others")
    ]  # fmt: skip
    assert sum(int(str(one[2])) for one in rows) == 2_000


def test_what_crawlers_do_is_counted(
    harness: Harness, keys: Keys, gateway: Gateway, api: TestClient
) -> None:
    api.post("/v1/runs", json={"crawler": "plain"}, headers=keys.headers("a-operate"))
    harness.claim(1)
    own = {"Authorization": f"Bearer {sign(KEY, harness.ref(1))}"}
    for n in range(5):
        answer = api.post(
            "/v1/runs/1/tasks", json={"tasks": [{}]}, headers=own | {"Idempotency-Key": f"k{n}"}
        )
        assert answer.status_code < 300, answer.text
    close(api, gateway)
    assert told(harness, "caller", "operation", "project", "requests", operation="addTasks") == [
        ("run 1", "addTasks", "a", 5)
    ]  # fmt: skip


def test_a_crawler_shows_itself_to_no_project_but_its_own(
    harness: Harness, keys: Keys, gateway: Gateway, api: TestClient
) -> None:
    for who in ("a-operate", "b-operate"):
        api.post("/v1/runs", json={"crawler": "plain"}, headers=keys.headers(who))
    token = sign(KEY, harness.ref(1))
    for path in (
        "runs/2/stop",
        f"schedules/{token}/pause",
        f"graphs/files.{harness.ref(1)}.0.1.{token[-43:]}/stop",
    ):
        assert (
            api.post(f"/v1/{path}", headers={"Authorization": f"Bearer {token}"}).status_code == 403
        )
    close(api, gateway)
    rows = told(harness, "caller", "kind", "subject", "subject_uid", "project", outcome="forbidden")
    assert rows == [
        ("run 1", "run", "2", None, ""),
        *(("run 1", one, "…", None, "") for one in ("schedule", "graph")),
    ]
    with limited("b"):
        assert told(harness, "caller", "operation") == [("the-b-operate", "startRun")]


def test_logins_without_end_are_counted_and_are_about_nothing(
    harness: Harness, keys: Keys, gateway: Gateway, api: TestClient
) -> None:
    api.post("/v1/runs", json={"crawler": "plain"}, headers=keys.headers("a-operate"))
    for n in range(20):
        api.post(
            "/login",
            data={"token": keys.tokens["read"], "next": f"/runs/{n % 2}"},
            headers={"Origin": BASE},
        )
        api.post("/logout", headers=keys.headers("read"))
    close(api, gateway)
    assert told(harness, "operation", "subject", "project", "requests", caller="the-read") == [
        ("logIn", None, "*", 20), ("logOut", None, "*", 20),
    ]  # fmt: skip


def test_a_database_that_is_away_changes_no_answer_and_loses_nothing(
    harness: Harness, keys: Keys, gateway: Gateway, api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = harness.store.access
    record = store.record_access

    def away(rows: Sequence[AccessRow]) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(store, "record_access", away)
    for _ in range(3):
        assert (
            api.post(
                "/v1/runs", json={"crawler": "plain"}, headers=keys.headers("operate")
            ).status_code
            == 202
        )
    assert api.portal is not None
    with pytest.raises(StoreUnavailable):
        api.portal.call(gateway.recorder.flush)
    monkeypatch.setattr(store, "record_access", record)
    close(api, gateway)
    assert told(harness, "operation", "subject") == [
        ("startRun", "1"),
        ("startRun", "2"),
        ("startRun", "3"),
    ]


def test_rows_that_find_no_room_are_told_in_the_log(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder, "WAITING_MAX", 3)
    found = Recorder(harness.store.access, harness.clock)
    for n in range(5):
        found.note(AccessRow(harness.clock(), f"c{n}", "*", "stopRun", None, 200, "done"))
    with caplog.at_level(logging.ERROR):
        asyncio.run(found.close())
    assert told(harness, "caller") == [("c0",), ("c1",), ("c2",)]
    assert "has lost 1 rows" in caplog.text


def test_a_project_sees_what_was_done_in_it_and_by_its_tokens(
    harness: Harness, keys: Keys, gateway: Gateway, api: TestClient
) -> None:
    a, b, every = keys.headers("a-admin"), keys.headers("b-admin"), keys.headers("admin")
    api.post("/v1/runs", json={"crawler": "plain"}, headers=a)
    api.post("/v1/runs/1/stop", headers=every)
    api.post("/v1/runs/1/stop", headers=b)
    api.post("/v1/runs/99/stop", headers=b)
    api.post("/v1/runs/1/stop", headers={"Authorization": "Bearer crawl_wrong"})
    close(api, gateway)
    what = ("caller", "subject", "subject_uid", "status")
    uid = harness.run(1).run_uid
    with limited("a"):
        assert told(harness, *what) == [
            ("the-a-admin", "1", uid, 202),
            ("the-admin", "1", uid, 202),
        ]
    with limited("b"):
        # Nothing shows which of the two exists: they are one row.
        assert told(harness, *what) == [("the-b-admin", None, None, 404)]
    seen = {
        who: api.get("/v1/access", headers=keys.headers(who)).json()["access"]
        for who in ("a-admin", "admin")
    }
    assert [len(one) for one in seen.values()] == [2, 4]
    assert len(api.get("/v1/access?project=a", headers=every).json()["access"]) == 2
    refused = api.get("/v1/access?project=a", headers=b)
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "project")
    assert api.get("/v1/access", headers=keys.headers("a-operate")).status_code == 403


def test_pages_are_whole_and_wrong_filters_are_named(
    harness: Harness, keys: Keys, gateway: Gateway, api: TestClient
) -> None:
    every = keys.headers("admin")
    rows = [
        AccessRow(harness.clock(), f"c{n % 2}", "*", f"op{n % 3}", None, 200, "done")
        for n in range(25)
    ]
    harness.store.access.record_access(rows)
    found, token = list[int](), dict[str, str]()
    while True:
        page = api.get("/v1/access", params={"page_size": 7, **token}, headers=every).json()
        found += [row["id"] for row in page["access"]]
        if page["next_page_token"] is None:
            break
        token = {"page_token": page["next_page_token"]}
    assert found == list(range(25, 0, -1))
    both = api.get("/v1/access?caller=c1&operation=op2", headers=every).json()["access"]
    assert [row["id"] for row in both] == [24, 18, 12, 6]
    for asked, field in (
        ("who=x", "who"), ("kind=planet", "kind"), ("since=7", "since"), ("page_token=x", "page_token"),
        ("since=2026-11-20T12:00:00Z&until=2026-11-20T12:00:00Z", "until"), ("page_size=0", "page_size"),
    ):  # fmt: skip
        answer = api.get(f"/v1/access?{asked}", headers=every)
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field), asked
    far = encode("access", ID_MAX, 1)
    assert api.get(f"/v1/access?page_token={far}", headers=every).status_code == 200


def test_no_text_of_a_row_is_code(harness: Harness, keys: Keys, api: TestClient) -> None:
    text = "<img src=x onerror=alert(1)>\u202e\U0001f577" + "y" * 150
    row = AccessRow(
        harness.clock(),
        text,
        "*",
        "stopRun",
        text,
        200,
        "done",
        verb=text,
        kind="graph",
        subject=text,
    )
    harness.store.access.record_access([row])
    shown = as_browser(api).get("/access", headers=keys.headers("admin"))
    assert shown.status_code == 200
    assert "<img" not in shown.text
    assert "\u202e" not in shown.text
    assert shown.text.count("&lt;img src=x onerror") == 5
    assert 'href="/graphs/%3Cimg%20src' in shown.text


def test_an_open_gateway_records_what_anybody_did(harness: Harness, client: TestClient) -> None:
    client.post("/v1/runs", json={"crawler": "plain"})
    client.__exit__(None, None, None)
    client.__enter__()
    assert told(harness, "caller", "caller_project", "project", "subject") == [
        (None, "*", "default", "1")
    ]
    assert ">anybody<" in as_browser(client).get("/access").text
