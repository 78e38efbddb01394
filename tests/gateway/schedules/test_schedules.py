"""Schedules over HTTP during outages, and definitions that are returned as they were set."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, cast

import httpx
import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.due_ids import due_workflow_id
from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.features.managers.domain.manager import BUILT_IN
from crawler_lifecycle.features.schedules.ports import ScheduleRow
from crawler_lifecycle.features.schedules.temporal import OURS, ScheduleKeeper
from tests.gateway.gateway_harness import Harness
from tests.support.fakes.services import FakeDirectory
from tests.support.firing import FiringTemporal

PATH = "/v1/schedules/nightly"
RUN: dict[str, Any] = {
    "crawler": "plain", "args": {"page": "7"}, "tags": ["night"], "priority": 2, "max_parallel_tasks": 1,
    "tasks": [{"args": {"page": "1"}}, {"args": {"page": "2"}}], "limits": {"run_timeout_s": 60}, "poll_minutes": [1],
}  # fmt: skip
MANAGER = {
    "crawler": "plain",
    "options": {"args": {"site": "x"}, "max_running": 3, "retries": 1},
    "tags": ["night"],
}
GRAPH = {
    "name": "shops",
    "steps": [{"path": "one", "kind": "crawl", "job": {"crawler": "plain"}}],
    "context": {"a": 1},
}


def row_of(harness: Harness) -> ScheduleRow:
    return harness.schedule()


@pytest.mark.parametrize(
    "target",
    [{"run": RUN}, {"manager": MANAGER}, {"graph": GRAPH}],
    ids=["run", "manager", "graph"],
)
def test_what_is_shown_may_be_put_again(
    harness: Harness, client: TestClient, target: dict[str, Any]
) -> None:
    """``crawlctl schedule update`` applies its options to what it reads."""
    whole = {
        **target,
        "cron": "30 2 * * *",
        "time_zone": "Europe/Berlin",
        "excluded": ["2026-12-24"],
        "jitter_s": 60,
    }
    more = {
        "start_at": "2026-12-01T00:00:00Z",
        "overlap": "queue",
        "pause_after_failures": 3,
        "catch_up_s": 60,
    }
    made = client.put(PATH, json={**whole, **more, "requested_by": "ann"}).json()
    assert made["revision"] == 1, made
    again = client.put(PATH, json={**made["definition"], "requested_by": "bob"}).json()
    assert (again["revision"], again["definition"]) == (1, made["definition"])
    changed = client.put(PATH, json={**made["definition"], "cron": None, "every_s": 120}).json()
    assert (changed["revision"], changed["kind"]) == (2, next(iter(target)))
    if "manager" in target:
        assert made["definition"]["manager"]["plan"] == BUILT_IN
        assert made["definition"]["manager"]["argv"][:3] == ["plain", "--max-running-jobs", "3"]


async def test_while_temporal_is_away_all_is_recorded_and_done_later(
    harness: Harness, client: TestClient
) -> None:
    body = {"run": RUN, "cron": "0 13 * * *"}
    made = client.put(PATH, json=body).json()
    assert (made["in_temporal"], "The command is recorded" in made["note"]) == (False, True)
    harness.workflows.down = True
    paused = client.post(f"{PATH}/pause", json={"reason": "a migration"}).json()
    assert (paused["paused"], "The command is recorded" in paused["note"]) == (True, True)
    asked = client.post(f"{PATH}/trigger", json={"requested_by": "ann"})
    assert (asked.status_code, asked.json()["firings"][0]["decision"], asked.json()["firings"][0]["target_id"]) == (
        202, "started", None,
    )  # fmt: skip
    assert "The command is recorded" in asked.json()["note"]
    harness.clock.forward(7200)
    temporal = FiringTemporal(harness.clock)
    keeper = ScheduleKeeper(harness.store.schedules, cast(Any, temporal), harness.clock)
    await keeper.turn()
    directory = FakeDirectory()
    search = harness.audit(directory).search
    assert await asyncio.to_thread(search, "due time", repair=True) == 1
    asked_at = harness.clock.now - timedelta(hours=2)
    assert list(directory.due_begun) == [due_workflow_id("nightly", asked_at)], (
        "what was asked for begins"
    )
    state = temporal.there["crawl-schedule/nightly"].schedule.state
    assert state.paused
    assert str(state.note).startswith(OURS)
    assert str(state.note).endswith(" paused: paused over HTTP: a migration")
    [first, asked_line] = client.get(f"{PATH}/firings").json()["firings"]
    assert (first["decision"], asked_line["decision"]) == ("paused", "started"), (
        "of one o'clock Temporal never heard"
    )
    assert client.get(PATH).json()["in_temporal"]
    assert client.delete(PATH).status_code == 200
    await keeper.turn()
    assert temporal.there == {}
    await keeper.turn()


def test_without_the_database(
    harness: Harness, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.put(PATH, json={"run": RUN, "every_s": 60})

    def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("it does not answer")

    for name in ("get", "put", "page", "count_schedules"):
        monkeypatch.setattr(harness.store.schedules, name, away)
    answers = [
        client.put(PATH, json={"run": RUN, "every_s": 120}),
        client.get(PATH),
        client.get("/v1/schedules"),
        client.get(f"{PATH}/firings"),
        *(client.post(f"{PATH}/{verb}") for verb in ("pause", "resume", "trigger")),
        client.delete(PATH),
    ]
    assert {answer.status_code for answer in answers} == {503}
    assert {answer.json()["code"] for answer in answers} == {"store_unavailable"}
    figures = [
        line
        for line in client.get("/metrics").text.splitlines()
        if line.startswith("lifecycle_schedules")
    ]
    assert {line.rpartition(" ")[2] for line in figures} == {"NaN"}
    monkeypatch.undo()
    assert row_of(harness).definition["every_s"] == 60


def test_a_trigger_that_is_sent_again_finds_its_due_time(
    harness: Harness, client: TestClient
) -> None:
    client.put(PATH, json={"run": RUN, "every_s": 86400})

    def trigger(key: str, **more: Any) -> httpx.Response:
        return client.post(
            f"{PATH}/trigger", headers={"Idempotency-Key": key} if key else {}, **more
        )

    first = trigger("one")
    assert (first.status_code, "Idempotency-Replayed" in first.headers) == (202, False)
    taken = trigger("two")
    assert (taken.status_code, taken.json()["code"]) == (409, "not_in_this_state")
    assert "a second later" in taken.json()["detail"]
    harness.clock.forward(3600)
    again = trigger('"one"', json={"request_id": "one"})
    assert (again.status_code, again.headers["Idempotency-Replayed"]) == (202, "true")
    assert [line["due_at"] for line in again.json()["firings"]] == [
        line["due_at"] for line in first.json()["firings"]
    ]
    assert trigger("two").json()["firings"][0]["due_at"] > first.json()["firings"][0]["due_at"]
    harness.clock.forward(1)
    plain = trigger("").json()["firings"][0]["due_at"]
    late = trigger("three")
    assert late.json()["firings"][0]["due_at"] == plain, "it was due in this second"
    harness.clock.forward(1)
    assert trigger("three").json()["firings"][0]["due_at"] == plain
    assert len(client.get(f"{PATH}/firings").json()["firings"]) == 3
    assert trigger(" x" * 80).status_code == 422
    assert trigger("one", json={"request_id": "other"}).status_code == 422


def test_two_who_put_the_same_name_at_once_make_one(harness: Harness, client: TestClient) -> None:
    with ThreadPoolExecutor(8) as pool:
        bodies = [{"run": RUN, "every_s": 60 + n % 2} for n in range(16)]
        answers = list(pool.map(lambda body: client.put(PATH, json=body), bodies))
    assert {answer.status_code for answer in answers} == {200}
    assert row_of(harness).revision <= 16
    assert [one["name"] for one in client.get("/v1/schedules").json()["schedules"]] == ["nightly"]
    figures = client.get("/metrics").text
    assert 'lifecycle_schedules{project="default",state="active"} 1.0' in figures
    assert 'lifecycle_schedules_unsynced{project="default"} 0.0' in figures
    assert (
        harness.store.schedules.count_schedules(harness.clock.now + timedelta(seconds=1)).untold
        == 1
    )


def test_odd_numbers_and_texts_are_refused(client: TestClient) -> None:
    for body, says in [
        ({"every_s": 1e308}, "every_s"),
        ({"every_s": -1}, "a whole number from 10"),
        ({"every_s": 10**400}, "every_s"),
        ({"every_s": 60, "jitter_s": 61}, "less than the 60 s"),
        ({"cron": "* * * * *", "jitter_s": 60}, "less than the 60 s"),
        ({"every_s": 60, "catch_up_s": 10**9}, "catch_up_s"),
        ({"cron": "0 0 * * *", "end_at": "9999-12-31T23:59:59Z"}, "years 1970 to 2100"),
        ({"cron": "0 0 * * *", "start_at": "2026-01-01T00:00:00"}, "start_at"),
        ({"cron": "0 0 " + "1," * 200 + "1 * *"}, "at most 200 characters"),
        ({"cron": "0 0 * * *", "excluded": ["2026-12-24"] * 367}, "excluded"),
        ({"cron": "0 0 * * *", "time_zone": "A" * 100_000}, "time_zone"),
        ({"every_s": 60, "manager": {"crawler": "plain", "name": "no name"}, "run": None}, "name"),
    ]:
        answer = client.put(PATH, json={"run": RUN, **body})
        assert answer.status_code == 422, answer.text[:300]
        assert says in answer.text
        assert len(answer.text) < 5000


def test_a_window_that_no_backfill_has(client: TestClient) -> None:
    assert client.put(PATH, json={"run": RUN, "cron": "0 0 29 2 */7"}).json()["next_due"] != [], (
        "a Sunday, in years"
    )
    for after, until, says in (
        ("2026-11-20T00:00:00Z", "2026-11-19T00:00:00Z", "give a time later than after"),
        ("1900-01-01T00:00:00Z", "2026-11-19T00:00:00Z", "after"),
        ("2026-11-19T00:00:00", "2026-11-20T00:00:00", "after"),
    ):
        answer = client.post(f"{PATH}/backfill", json={"after": after, "until": until})
        assert (answer.status_code, says in answer.text) == (422, True), answer.text
    until_now = client.post(f"{PATH}/backfill", json={"after": "2026-11-19T00:00:00Z"})
    assert (until_now.status_code, until_now.json()["firings"]) == (202, [])
