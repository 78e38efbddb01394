"""The routes of schedules over a real store and a real Temporal server."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.domain.due_ids import due_workflow_id, temporal_schedule_id
from crawler_lifecycle.gateway.access.operations import Entrance
from crawler_lifecycle.gateway.app import create_app
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.temporal.client import Workflows
from tests.support.fakes.packages import FakeCodeStore
from tests.support.testbed import PATIENCE_S, WorkflowHarness
from tests.workflows.schedules.test_due import Scheduled

pytestmark = pytest.mark.asyncio(loop_scope="session")

RUN = {
    "crawler": "books",
    "args": {"shelf": "b"},
    "poll_minutes": [0.002],
    "limits": {"start_check_s": 0.1},
}


@asynccontextmanager
async def gateway(testbed: WorkflowHarness) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(
        Gateway(
            testbed.store,
            Workflows(testbed.client),
            testbed.scheduler,
            entrance=Entrance(),
            code=FakeCodeStore(),
            outbox_retry_s=None,
        )
    )
    base = "http://127.0.0.1:8500"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base) as client:
        yield client


async def ok(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_a_schedule_from_its_making_to_its_deletion(real_testbed: WorkflowHarness) -> None:
    path, nightly = (
        "/v1/schedules/nightly",
        {"run": RUN, "cron": "30 2 * * *", "time_zone": "Europe/Berlin"},
    )
    async with gateway(real_testbed) as http:
        made = await ok(await http.put(path, json=nightly))
        assert (made["in_temporal"], made["paused"], made["note"], made["revision"]) == (
            True,
            False,
            None,
            1,
        )
        assert {one["effect"] for one in made["clock_changes"]} == {"skipped", "twice"}
        berlin = [datetime.fromisoformat(at).astimezone(UTC).hour for at in made["next_due"]]
        assert len(berlin) == 5
        assert set(berlin) <= {0, 1}
        assert (await ok(await http.put(path, json=nightly)))["revision"] == 1
        changed = await ok(
            await http.put(
                path, json={**nightly, "every_s": 3600, "cron": None, "overlap": "queue"}
            )
        )
        assert (changed["revision"], changed["in_temporal"], changed["clock_changes"]) == (
            2,
            True,
            [],
        )

        [due] = (await ok(await http.post(f"{path}/trigger"), 202))["firings"]
        assert (due["decision"], due["asked_by"]) == ("started", "somebody over HTTP")
        until = utc_now().replace(minute=0, second=0, microsecond=0)
        window = {
            "after": (until - timedelta(hours=2)).isoformat(),
            "until": until.isoformat(),
            "requested_by": "ann",
        }
        first = await ok(await http.post(f"{path}/backfill", json=window), 202)
        again = await ok(await http.post(f"{path}/backfill", json=window), 202)
        wanted = [until - timedelta(hours=1), until]
        for answer in (first, again):
            assert [datetime.fromisoformat(one["due_at"]) for one in answer["firings"]] == wanted
            assert {one["reason"] for one in answer["firings"]} == {"backfilled by ann"}

        async def all_ended() -> bool:
            rows = (await ok(await http.get(f"{path}/firings")))["firings"]
            return len(rows) == 3 and all(row["status"] == "COMPLETED" for row in rows)

        end = time.monotonic() + PATIENCE_S
        while not await all_ended():
            assert time.monotonic() < end
            await asyncio.sleep(0.1)
        ends = sorted(real_testbed.store.runs.list_runs(), key=lambda run: int(run.run_id))
        assert len(ends) == 3
        assert all(one.ended_at <= two.created_at for one, two in itertools.pairwise(ends)), (
            "one after another"
        )
        s = Scheduled.__new__(Scheduled)
        s.testbed, s.name = real_testbed, "nightly"
        await s.remember(*(due_workflow_id("nightly", line.due_at) for line in s.lines()))

        page = await ok(await http.get(f"{path}/firings", params={"page_size": 2}))
        rest = await ok(
            await http.get(
                f"{path}/firings", params={"page_size": 2, "page_token": page["next_page_token"]}
            )
        )
        assert [len(page["firings"]), len(rest["firings"]), rest["next_page_token"]] == [2, 1, None]

        paused = await ok(
            await http.post(f"{path}/pause", json={"reason": "a migration", "requested_by": "ann"})
        )
        assert (paused["paused"], paused["pause_reason"]) == (True, "paused by ann: a migration")
        handle = real_testbed.client.get_schedule_handle(temporal_schedule_id("nightly"))
        assert (await handle.describe()).schedule.state.paused
        assert not (await ok(await http.post(f"{path}/resume")))["paused"]
        assert not (await handle.describe()).schedule.state.paused
        assert [
            one["name"] for one in (await ok(await http.get("/v1/schedules")))["schedules"]
        ] == ["nightly"]
        await ok(await http.delete(path))
        assert (await http.get(path)).json()["code"] == "schedule_not_found"
        assert (await ok(await http.get("/v1/schedules")))["schedules"] == []


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"run": RUN, "cron": "0 0 31 2 *"}, "no year has such a day"),
    ({"run": {**RUN, "crawler": "nobody"}, "every_s": 60}, "'nobody' is unknown"),
    ({"run": {**RUN, "args": {"cellar": "b"}}, "every_s": 60}, "cellar"),
    ({"run": {**RUN, "due_at": "2026-11-22T00:00:00Z"}, "every_s": 60}, "run.due_at: leave it out"),
    (
        {"manager": {"plan": "no.module:Class", "flow_id": "mine"}, "every_s": 60},
        "manager.flow_id: leave it out",
    ),
    (
        {"graph": {"steps": [{"path": "a/b", "kind": "nothing"}]}, "every_s": 60},
        "give one of function, crawl",
    ),
    ({"every_s": 60}, "exactly one of run, manager and graph"),
    ({"run": RUN, "every_s": 60, "often": True}, "often"),
]


@pytest.mark.troubles
async def test_what_no_due_time_could_begin_is_refused(real_testbed: WorkflowHarness) -> None:
    async with gateway(real_testbed) as http:
        for body, says in REFUSED:
            answer = await http.put("/v1/schedules/nightly", json=body)
            assert answer.status_code == 422
            assert says in answer.text
        assert (await ok(await http.get("/v1/schedules")))["schedules"] == []
        assert (
            await http.put("/v1/schedules/no%20name", json={"run": RUN, "every_s": 60})
        ).status_code == 422
        window = {"after": "2026-01-01T00:00:00Z", "until": "2099-01-01T00:00:00Z"}
        assert (await http.post("/v1/schedules/nightly/backfill", json=window)).status_code == 404
        await ok(await http.put("/v1/schedules/often", json={"run": RUN, "every_s": 60}))
        answer = await http.post("/v1/schedules/often/backfill", json=window)
        assert "it is in the future; give a time in the past" in answer.text
        answer = await http.post(
            "/v1/schedules/often/backfill", json={**window, "until": "2026-02-01T00:00:00Z"}
        )
        assert "more than 500 due times" in answer.text
        await ok(await http.delete("/v1/schedules/often"))
