"""``GET /v1/runs/{id}?wait=`` responds when there is news, and costs no more than a stream."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.gateway.access.limits import Quota
from crawler_lifecycle.gateway.access.operations import Entrance
from crawler_lifecycle.gateway.access.tokens import Role, TokenFile, new_token
from crawler_lifecycle.gateway.api import long_poll
from crawler_lifecycle.gateway.streams import feed as feed_module
from crawler_lifecycle.ports.runs import Owner, RunRow
from crawler_lifecycle.web.origins import named_hosts
from tests.gateway.gateway_harness import Harness
from tests.gateway.served import metric, served, until

pytestmark = pytest.mark.usefixtures("only_by_news")


@pytest.fixture
def only_by_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads the run again without a notification, so every response below was triggered by
    one.
    """
    monkeypatch.setattr(long_poll, "REREAD_S", 10_000.0)


def _run(harness: Harness, name: str) -> int:
    """Return a run whose end is a single change, because it has no tasks left to be refused first."""
    asked = RunRequest(crawler="plain")
    run_id = harness.store.initiation.create_run(
        asked, name, Owner(f"w/{name}", f"chain-{name}")
    ).run_id
    harness.store.deployment.refuse_queued(harness.fence(run_id), "no such image")
    return run_id


def _end(harness: Harness, run_id: int) -> None:
    harness.end(run_id, close=False)


@pytest.fixture
def run_id(harness: Harness) -> int:
    return _run(harness, "waited-for")


async def test_it_answers_when_the_run_changes(harness: Harness, run_id: int) -> None:
    async with (
        served(harness.app) as server,
        httpx.AsyncClient(base_url=server.url, timeout=90) as http,
    ):
        tag = (await http.get(f"/v1/runs/{run_id}")).headers["ETag"]
        for headers in ({}, {"If-None-Match": tag}):
            asked = asyncio.create_task(http.get(f"/v1/runs/{run_id}?wait=60", headers=headers))
            await until(lambda: metric(harness.app, "readers", "waits") == 1)
            await asyncio.sleep(0.1)
            assert not asked.done()
            asked.cancel()
            await until(lambda: metric(harness.app, "readers", "waits") == 0)
        both = [
            asyncio.create_task(http.get(f"/v1/runs/{run_id}?wait=60", headers=headers))
            for headers in ({}, {"If-None-Match": tag})
        ]
        await until(lambda: metric(harness.app, "readers", "waits") == 2)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(_end, harness, run_id)
        for answer in await asyncio.gather(*both):
            assert answer.status_code == 200
            assert answer.json()["status"] == "FAILED"
            assert answer.headers["ETag"] != tag
        await until(lambda: metric(harness.app, "readers", "waits") == 0)
        # It has ended: a client that knows this waits, another one gets a response at once.
        assert (await http.get(f"/v1/runs/{run_id}?wait=60")).json()["status"] == "FAILED"
        known = {"If-None-Match": answer.headers["ETag"]}
        assert (await http.get(f"/v1/runs/{run_id}?wait=1", headers=known)).status_code == 304


async def test_a_change_before_the_wait_is_told_at_once(
    harness: Harness, run_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_run, seen = harness.store.runs.get_run, 0

    def and_then_it_ends(number: int) -> RunRow | None:
        nonlocal seen
        row = get_run(number)
        seen += 1
        if seen == 1:
            harness.store.runs.get_run = get_run  # type: ignore[method-assign]
            _end(harness, run_id)
        return row

    monkeypatch.setattr(harness.store.runs, "get_run", and_then_it_ends)
    async with (
        served(harness.app) as server,
        httpx.AsyncClient(base_url=server.url, timeout=90) as http,
    ):
        assert (await http.get(f"/v1/runs/{run_id}?wait=60")).json()["status"] == "FAILED"


async def test_changes_of_other_runs_wake_nobody_up(harness: Harness, run_id: int) -> None:
    other = _run(harness, "other")
    async with (
        served(harness.app) as server,
        httpx.AsyncClient(base_url=server.url, timeout=90) as http,
    ):
        asked = asyncio.create_task(http.get(f"/v1/runs/{run_id}?wait=2"))
        await until(lambda: metric(harness.app, "readers", "waits") == 1)
        await asyncio.to_thread(_end, harness, other)
        answer = await asked
        assert (answer.status_code, answer.json()["status"]) == (200, "INITIALIZING")


async def test_what_changes_without_an_event_is_told(
    harness: Harness, run_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_poll, "REREAD_S", 0.2)
    monkeypatch.setattr(feed_module, "IDLE_S", 10_000.0)
    async with (
        served(harness.app) as server,
        httpx.AsyncClient(base_url=server.url, timeout=90) as http,
    ):
        asked = asyncio.create_task(http.get(f"/v1/runs/{run_id}?wait=60"))
        await until(lambda: metric(harness.app, "readers", "waits") == 1)
        await asyncio.sleep(0.5)
        fence = harness.fence(run_id)
        await asyncio.to_thread(harness.store.deployment.note_waiting, fence, "a slot")
        assert (await asked).json()["waiting_for"] == "a slot"


async def test_it_ends_with_the_gateway(harness: Harness, run_id: int) -> None:
    async with (
        served(harness.app) as server,
        httpx.AsyncClient(base_url=server.url, timeout=90) as http,
    ):
        asked = asyncio.create_task(http.get(f"/v1/runs/{run_id}?wait=60"))
        await until(lambda: metric(harness.app, "readers", "waits") == 1)
        await asyncio.sleep(0.3)
        await server.stop()
        assert (await asked).json()["run_id"] == run_id


async def test_it_ends_with_its_token_and_takes_a_place_of_a_stream(
    harness: Harness, run_id: int, tmp_path: Path
) -> None:
    token, lines = new_token("viewer", Role.READ)
    _, others = new_token("other", Role.READ)
    file = tmp_path / "tokens.toml"
    file.write_text(lines)
    callers = TokenFile(file)
    harness.app = harness.new_app(
        entrance=Entrance(callers, None, Quota(max_concurrent_streams=1), named_hosts(()))
    )
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        served(harness.app) as server,
        httpx.AsyncClient(base_url=server.url, timeout=90, headers=headers) as http,
    ):
        asked = asyncio.create_task(http.get(f"/v1/runs/{run_id}?wait=60"))
        await until(lambda: metric(harness.app, "readers", "waits") == 1)
        refused = await http.get(f"/v1/runs/{run_id}?wait=1")
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_at_once")
        assert (await http.get(f"/v1/runs/{run_id}?wait=0")).status_code == 200
        file.write_text(others)
        answer = await asked
        assert (answer.status_code, answer.json()["code"]) == (401, "invalid_token")


def test_only_so_many_seconds_are_taken(client: TestClient, run_id: int) -> None:
    for wait in ["61", "-1", "1.5", "soon", "", "nan"]:
        answer = client.get(f"/v1/runs/{run_id}", params={"wait": wait})
        assert answer.status_code == 422, wait
        assert answer.json()["errors"][0]["field"] == "wait"


def test_a_run_that_does_not_exist_is_not_waited_for(client: TestClient) -> None:
    assert client.get("/v1/runs/4711?wait=60").json()["code"] == "run_not_found"
