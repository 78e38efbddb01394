"""Quotas over HTTP: the token tells who started a run, and a refusal says when to try again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.pools import Pool, Pools
from crawler_lifecycle.domain.quotas import Quotas
from crawler_lifecycle.gateway.access.tokens import FRESH_S
from crawler_lifecycle.store.store import open_store
from crawler_lifecycle.task_tokens import sign
from tests.gateway.gateway_harness import Clock, Harness
from tests.gateway.keys import KEY, Keys
from tests.support.databases import make_tables

MINE = "token:the-operate"
POOLS = Pools({"slow": Pool(), "of-a": Pool(project="a")})


@contextmanager
def entered(folder: Path, quotas: Quotas) -> Iterator[tuple[Harness, Keys, TestClient]]:
    clock, keys = Clock(), Keys(folder, "a", "b")
    store = open_store(
        make_tables(f"sqlite:///{folder}/runs.db"),
        pool_size=30,
        clock=clock,
        quotas=quotas,
        pools=POOLS,
    )
    harness = Harness(store, clock)
    with harness.client(harness.new_app(entrance=keys.entrance(), scrapyd="default")) as client:
        yield harness, keys, client
    store.close()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Any]:
    """Return a function that opens a gateway with quotas and starts a run there."""
    with ExitStack() as stack:

        def opened(quotas: Quotas) -> tuple[Harness, Any]:
            harness, keys, client = stack.enter_context(entered(tmp_path, quotas))

            def call(
                path: str, role: str = "operate", key: str | None = None, **body: Any
            ) -> httpx.Response:
                headers = keys.headers(role) | ({"Idempotency-Key": key} if key else {})
                if path.endswith(".json"):
                    return client.post(path, data=body, auth=("", keys.tokens[role]))
                return (
                    client.post(path, json=body, headers=headers)
                    if body
                    else client.get(path, headers=headers)
                )

            return harness, call

        yield opened


def test_a_refused_start_says_when_to_come_again(api: Any) -> None:
    harness, call = api({MINE: {"starts_per_hour": 1}})
    assert call("/v1/runs", key="k1", crawler="plain").status_code == 202
    harness.clock.forward(60)
    # The client chooses the name of the requester.
    refused = call("/v1/runs", key="k2", crawler="plain", requested_by="somebody else")
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "3540")
    problem = refused.json()
    assert problem["code"] == "quota_reached"
    text = "quota starts_per_hour of token the-operate: 1 of 1 in use; free at 2026-11-20T13:00:00Z, in 3540 s"
    assert problem["detail"] == text
    repeated = call("/v1/runs", key="k1", crawler="plain")
    assert (repeated.status_code, repeated.headers["Idempotency-Replayed"]) == (202, "true")
    assert call("/v1/runs", role="admin", crawler="plain").status_code == 202
    said = call("/schedule.json", project="default", spider="plain")
    assert (said.status_code, said.headers["Retry-After"]) == (429, "3540")
    assert (said.json()["status"], said.json()["message"]) == ("error", text)
    harness.clock.forward(3540)
    assert call("/v1/runs", key="k2", crawler="plain").status_code == 202


def test_what_waiting_does_not_fix_has_no_time(api: Any) -> None:
    harness, call = api(
        {MINE: {"live_tasks": 0}, "pool:default": {"tasks_per_run": 2, "live_tasks": 3}}
    )
    frozen = call("/v1/runs", crawler="plain")
    assert (frozen.status_code, frozen.json()["code"]) == (409, "quota_reached")
    assert "Retry-After" not in frozen.headers
    large = call("/v1/runs", role="admin", crawler="plain", tasks=[{}, {}, {}])
    assert (large.status_code, large.json()["errors"][0]["field"]) == (422, "tasks")
    assert "Retry-After" not in large.headers
    run_id = call("/v1/runs", role="admin", crawler="plain", tasks=[{}, {}]).json()["run_id"]
    assert call(f"/v1/runs/{run_id}/tasks", role="admin", tasks=[{}]).status_code == 422
    assert call("/v1/runs", role="admin", crawler="plain").status_code == 202
    full = call("/v1/runs", role="admin", crawler="plain")
    assert (full.status_code, full.headers["Retry-After"]) == (429, "60")
    assert harness.run(run_id).pool == "default"


def test_a_caller_sees_its_own_quotas(api: Any) -> None:
    limits = {"starts_per_hour": 1, "live_tasks": 5, "tasks_per_run": 3, "waiting_tasks": 4}
    _, call = api({MINE: limits, "token:*": {"live_tasks": 7}, "pool:slow": {"starts_per_hour": 9}})
    call("/v1/runs", crawler="plain", tasks=[{}, {}])

    def seen(path: str, **more: str) -> list[tuple[object, ...]]:
        return [tuple(one.values()) for one in call(path, **more).json()["quotas"]]

    holder = ("token", "the-operate")
    assert seen("/v1/quotas") == [
        (*holder, "starts_per_hour", 1, 1, "2026-11-20T13:00:00Z"),
        (*holder, "live_tasks", 5, 2, None),
        (*holder, "tasks_per_run", 3, None, None),
        (*holder, "waiting_tasks", 4, 2, None),
    ]
    assert seen("/v1/quotas?pool=slow", role="read") == [
        ("token", "the-read", "live_tasks", 7, 0, None),
        ("pool", "slow", "starts_per_hour", 9, 0, None),
    ]
    assert call("/v1/quotas?pool=Slow!").status_code == 422


def test_tokens_of_one_name_in_two_projects_have_a_use_each(tmp_path: Path) -> None:
    quotas: Quotas = {"token:the-a-operate": {"starts_per_hour": 1}, "pool:*": {"live_tasks": 9}}
    with entered(tmp_path, quotas) as (_, keys, client):
        keys.file.write_text(keys.file.read_text().replace('"the-b-operate"', '"the-a-operate"'))
        keys.now += FRESH_S
        for who in ("a-operate", "b-operate"):
            headers = keys.headers(who)
            before, shared = client.get("/v1/quotas", headers=headers).json()["quotas"]
            of_a = client.get("/v1/quotas", params={"pool": "of-a"}, headers=headers)
            started = [
                client.post("/v1/runs", json={"crawler": "plain"}, headers=headers)
                for _ in range(2)
            ]
            assert (before["used"], before["name"]) == (0, "the-a-operate")
            assert shared["used"] is None, "a pool of both projects"
            assert of_a.status_code == (200 if who == "a-operate" else 422)
            assert [answer.status_code for answer in started] == [202, 429]


def test_a_crawler_adds_tasks_within_the_quota_of_who_started_its_run(tmp_path: Path) -> None:
    with entered(tmp_path, {MINE: {"live_tasks": 2}, "token:*": {"live_tasks": 0}}) as (
        harness,
        keys,
        client,
    ):
        run_id = client.post(
            "/v1/runs", json={"crawler": "plain"}, headers=keys.headers("operate")
        ).json()["run_id"]
        own = {"Authorization": f"Bearer {sign(KEY, harness.ref(run_id))}"}
        added = [
            client.post(f"/v1/runs/{run_id}/tasks", json={"tasks": [{}]}, headers=own)
            for _ in range(2)
        ]
        assert [answer.status_code for answer in added] == [202, 429]


def test_who_is_refused_is_not_told_what_others_use(tmp_path: Path) -> None:
    with entered(tmp_path, {"pool:default": {"starts_per_hour": 3, "live_tasks": 5}}) as (
        harness,
        keys,
        client,
    ):
        for who, tasks in (("a-operate", 3), ("b-operate", 1)):
            body = {"crawler": "plain", "tasks": [{}] * tasks}
            run_id = client.post("/v1/runs", json=body, headers=keys.headers(who)).json()["run_id"]
        crawler = {"Authorization": f"Bearer {sign(KEY, harness.ref(run_id))}"}
        two: dict[str, Any] = {"crawler": "plain", "tasks": [{}, {}]}
        added, form = {"tasks": two["tasks"]}, {"project": "default", "spider": "plain"}
        refused = [
            client.post("/v1/runs", json=two, headers=keys.headers("b-operate")),
            client.post(f"/v1/runs/{run_id}/tasks", json=added, headers=keys.headers("b-operate")),
            client.post(f"/v1/runs/{run_id}/tasks", json=added, headers=crawler),
        ]
        every = client.post("/v1/runs", json=two, headers=keys.headers("operate")).json()["detail"]
        assert (
            client.post(
                "/v1/runs", json={"crawler": "plain"}, headers=keys.headers("a-operate")
            ).status_code
            == 202
        )
        refused.append(client.post("/schedule.json", data=form, headers=keys.headers("b-operate")))
    assert {(answer.status_code, answer.headers["Retry-After"]) for answer in refused} == {
        (429, "60")
    }
    said = [answer.json().get("detail") or answer.json()["message"] for answer in refused]
    end = "of pool default: no capacity for this now; try again in 60 s"
    assert said == [*[f"quota live_tasks {end}"] * 3, f"quota starts_per_hour {end}"]
    assert every.startswith("quota live_tasks of pool default: 4 of 5 in use, and 2 more requested")


def test_twenty_clients_at_once_get_the_last_start_once(api: Any) -> None:
    harness, call = api({MINE: {"starts_per_hour": 2}, "pool:default": {"live_tasks": 2}})
    assert call("/v1/runs", crawler="plain").status_code == 202
    with ThreadPoolExecutor(20) as pool:
        statuses = list(
            pool.map(
                lambda n: call("/v1/runs", key=f"at-once-{n}", crawler="plain").status_code,
                range(20),
            )
        )
    assert sorted(statuses) == [202, *[429] * 19]
    assert len(harness.store.runs.list_runs()) == 2
