"""Runs whose workflow cannot continue: what the gateway shows, and that no read waits for Temporal."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.due_ids import due_workflow_id
from crawler_lifecycle.domain.names import EVENT_RUN_BLOCKED
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.features.webhooks.domain.definition import webhook_workflow_id
from crawler_lifecycle.gateway.metrics import Metrics
from crawler_lifecycle.gateway.runs import blocked
from crawler_lifecycle.gateway.runs.blocked import BlockedRuns, in_words
from crawler_lifecycle.temporal.workflow_problems import WorkflowProblem
from tests.gateway.gateway_harness import Harness
from tests.support.answering import Answering, leaves

SINCE = datetime(2026, 11, 20, 11, 58, tzinfo=UTC)
BUG = WorkflowProblem(SINCE, "RuntimeError: boom")


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "FRESH_S", 0.0)


def started(client: TestClient) -> tuple[int, str]:
    run = client.post("/v1/runs", json={"crawler": "plain", "args": {"page": "1"}}).json()
    return run["run_id"], run["workflow_id"]


def soon(condition: Callable[[], Any]) -> Any:
    """Wait for the first true value, because the gateway's background work has to run first."""
    until = time.monotonic() + 150
    while not (value := condition()):
        assert time.monotonic() < until, "not within 150 s"
        time.sleep(0.02)
    return value


def figure(client: TestClient) -> str:
    lines = client.get("/metrics").text.splitlines()
    return next(line.split()[1] for line in lines if line.startswith("lifecycle_runs_blocked "))


def test_one_run_is_asked_about_before_the_server_lists_it(harness: Harness) -> None:
    with harness.client(harness.new_app(blocked_s=0.05)) as client:
        run_id, workflow_id = started(client)
        assert client.get(f"/v1/runs/{run_id}").json()["blocked"] is None
        harness.workflows.troubles[workflow_id] = BUG
        text = client.get(f"/v1/runs/{run_id}").json()["blocked"]
        assert text == in_words(BUG)
        assert (
            "since 2026-11-20 11:58:00 UTC: RuntimeError: boom; deploy a build that fixes this"
            in text
        )
        assert client.get("/v1/runs").json()["runs"][0]["blocked"] is None, (
            "a list asks for nobody alone"
        )


def test_the_list_and_the_figure_come_from_one_query(harness: Harness) -> None:
    with harness.client(harness.new_app(blocked_s=0.05)) as client:
        run_id, workflow_id = started(client)
        soon(lambda: figure(client) == "0.0")
        harness.workflows.troubles[workflow_id] = BUG
        harness.workflows.listed[workflow_id] = "WorkflowWorkerUnhandledFailure"
        soon(lambda: client.get("/v1/runs").json()["runs"][0]["blocked"] == in_words(BUG))
        assert figure(client) == "1.0"
        soon(
            lambda: [
                one for one in harness.store.events.events_after(0) if one.type == EVENT_RUN_BLOCKED
            ]
        )
        del harness.workflows.listed[workflow_id], harness.workflows.troubles[workflow_id]
        soon(lambda: figure(client) == "0.0")
        assert client.get(f"/v1/runs/{run_id}").json()["blocked"] is None
        [event] = [
            one for one in harness.store.events.events_after(0) if one.type == EVENT_RUN_BLOCKED
        ]
        assert (event.run_id, event.body["why"], event.body["since"]) == (
            run_id,
            in_words(BUG),
            SINCE.isoformat(),
        )


def test_a_list_tells_why_a_poll_is_overdue(harness: Harness) -> None:
    """No worker takes its next step, and the server has no list of such workflows."""
    with harness.client(harness.new_app(blocked_s=0.05)) as client:
        _, workflow_id = started(client)
        harness.workflows.troubles[workflow_id] = idle = WorkflowProblem(SINCE, None)
        time.sleep(0.2)
        assert client.get("/v1/runs").json()["runs"][0]["blocked"] is None
        harness.clock.forward(31)
        soon(lambda: client.get("/v1/runs").json()["runs"][0]["blocked"] == in_words(idle))
        assert "no worker has started its next step" in in_words(idle)
        assert figure(client) == "0.0", "the figure is of those that no worker can help"
        del harness.workflows.troubles[workflow_id]
        soon(lambda: client.get("/v1/runs").json()["runs"][0]["blocked"] is None)


def test_a_listed_run_that_cannot_be_explained_is_shown_all_the_same(harness: Harness) -> None:
    with harness.client(harness.new_app(blocked_s=0.05)) as client:
        run_id, workflow_id = started(client)
        harness.workflows.listed[workflow_id] = "WorkflowWorkerUnhandledFailure"
        words = "its workflow cannot continue (WorkflowWorkerUnhandledFailure); deploy a build that fixes this"
        soon(lambda: client.get("/v1/runs").json()["runs"][0]["blocked"] == words)
        assert client.get(f"/v1/runs/{run_id}").json()["blocked"] == words


def test_an_ended_run_is_blocked_when_its_delivery_is(harness: Harness) -> None:
    with harness.client(harness.new_app(blocked_s=0.05)) as client:
        run_id, workflow_id = started(client)
        harness.claim(run_id)
        harness.end(run_id, RunStatus.FAILED, close=False)
        harness.workflows.troubles[workflow_id] = BUG
        assert client.get(f"/v1/runs/{run_id}").json()["blocked"] is None, (
            "its workflow is not asked any more"
        )
        harness.workflows.listed[workflow_id] = "x"
        soon(lambda: client.get(f"/v1/runs/{run_id}").json()["blocked"] == in_words(BUG))


def test_while_temporal_is_away_nobody_claims_to_know(harness: Harness) -> None:
    with harness.client(harness.new_app(blocked_s=0.05)) as client:
        run_id, _ = started(client)
        soon(lambda: figure(client) == "0.0")
        harness.workflows.down = True
        soon(lambda: figure(client) == "NaN")
        blocked = client.get(f"/v1/runs/{run_id}").json()["blocked"]
        assert blocked.startswith("Temporal has not answered since ")
        assert blocked.endswith(
            "retries, stops and the verdict wait; its status is not verified yet, and polls continue"
        )
        harness.workflows.down = False
        soon(lambda: figure(client) == "0.0")
        assert client.get(f"/v1/runs/{run_id}").json()["blocked"] is None


async def test_reading_waits_for_temporal_once_and_not_each_time(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocked, "ANSWER_S", 0.05)
    asked = []

    async def hang(workflow_id: str) -> None:
        asked.append(workflow_id)
        await asyncio.sleep(3600)

    with harness.client() as client:
        run_id, _ = started(client)
    monkeypatch.setattr(harness.workflows, "problem", hang)
    row = harness.run(run_id)
    known = BlockedRuns(harness.store, harness.workflows, Metrics(), harness.clock, every_s=3600)
    assert [await known.of(row) for _ in range(5)] == [None] * 5
    assert len(asked) == 1


def test_the_figure_is_no_number_before_anybody_asked() -> None:
    assert math.isnan(Metrics().registry.get_sample_value("lifecycle_runs_blocked") or 0)


def test_the_sentence() -> None:
    for trouble, words in [
        (
            WorkflowProblem(SINCE, None),
            "no worker has started its next step since 2026-11-20 11:58:00 UTC; start one",
        ),
        (WorkflowProblem(SINCE, "x" * 1000 + "y"), "x" * 300 + ";"),
        (WorkflowProblem(SINCE, "two\nlines  and tabs\t."), ": two lines and tabs .;"),
        (
            WorkflowProblem(
                SINCE,
                "[TMPRL1101] Potential deadlock detected: workflow didn't yield within 2 second(s).",
            ),
            "or it receives too many signals (temporal workflow show lists them); give the role workflows more",
        ),
        (
            WorkflowProblem(SINCE, "no match", misfit=True),
            "the work of an earlier build (no match); deploy the earlier build again",
        ),
    ]:
        assert words in in_words(trouble), trouble


PAUSED = WorkflowProblem(SINCE, "by bob (a migration)", paused="workflow")


async def test_a_paused_workflow_of_anything_is_told_where_people_look(harness: Harness) -> None:
    with harness.client(harness.new_app(blocked_s=0.02)) as client:
        run_id, run = started(client)
        assert (
            client.put(
                "/v1/webhooks/w",
                json={"url": "https://hooks.example.com/in", "secrets": ["env:CRAWL_HOOK"]},
            ).status_code
            == 200
        )
        spec = {"run": {"crawler": "plain"}, "cron": "0 13 * * *"}
        assert client.put("/v1/schedules/s", json=spec).status_code == 200
        assert client.post("/v1/schedules/s/trigger").status_code == 202
        for name in (run, webhook_workflow_id("w"), due_workflow_id("s", harness.clock.now)):
            harness.workflows.troubles[name] = PAUSED
            harness.workflows.listed[name] = ""
        words = in_words(PAUSED)
        assert (
            "its workflow is paused in Temporal since 2026-11-20 11:58:00 UTC by bob (a migration); unpause"
            in words
        )
        soon(lambda: client.get("/v1/runs").json()["runs"][0]["waiting"].startswith(words))
        assert client.get(f"/v1/runs/{run_id}").json()["waiting"].startswith(words)
        soon(lambda: client.get("/v1/webhooks/w").json()["error"] == words)
        soon(lambda: client.get("/v1/schedules/s").json()["trouble"] == words)
        [due] = client.get("/v1/schedules/s/firings").json()["firings"]
        assert due["reason"].endswith(words)


async def test_a_gateway_leaves_also_in_the_moment_in_which_a_blocked_run_is_explained(
    harness: Harness,
) -> None:
    answering = Answering()

    class Troubled:
        async def problems(self) -> dict[str, str]:
            return {"crawl/plain/k": "its next step fails"}

        async def problem(self, _: str) -> None:
            await answering()

    blocked = BlockedRuns(
        harness.store, cast(Any, Troubled()), Metrics(), harness.clock, every_s=3600
    )
    await leaves(asyncio.create_task(blocked.run()), answering)


async def test_a_manager_whose_workflow_cannot_go_on_says_so_in_what_it_waits_for(
    harness: Harness,
) -> None:
    class Troubled:
        async def problems(self) -> dict[str, str]:
            return {"manager/shelves/f": "its next step fails"}

        async def problem(self, name: str) -> WorkflowProblem | None:
            return WorkflowProblem(SINCE, "no match") if name == "manager/shelves/f" else None

    blocked = BlockedRuns(
        harness.store, cast(Any, Troubled()), Metrics(), harness.clock, every_s=3600
    )
    await blocked.once()
    name = "manager/shelves/f"
    for why in (blocked.listed_workflow(name), await blocked.of_workflow(name, is_open=True)):
        assert "its workflow cannot continue" in str(why)
        assert "no match" in str(why)
    name = "graph/nightly"
    assert (blocked.listed_workflow(name), await blocked.of_workflow(name, is_open=True)) == (
        None,
        None,
    )
