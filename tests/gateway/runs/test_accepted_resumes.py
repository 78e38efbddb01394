"""A resume is recorded before it is acknowledged: from then on the run is live, whoever dies next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.errors import Fenced, NotInThisState
from crawler_lifecycle.domain.run import RunRequest, RunStatus
from crawler_lifecycle.ports.runs import Owner
from tests.gateway.gateway_harness import Harness

OWN = "crawl/plain/k"


@pytest.fixture
def run_id(harness: Harness, client: TestClient) -> int:
    """A failed run, whose workflow has closed."""
    answer = client.post("/v1/runs", json={"crawler": "plain"}, headers={"Idempotency-Key": "k"})
    run_id = int(answer.json()["run_id"])
    harness.claim(run_id)
    harness.end(run_id)
    return run_id


def test_the_attempt_is_on_record_before_temporal_hears_of_it(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    seen: list[tuple[str, int]] = []
    real = harness.workflows.start

    async def watching(
        request: RunRequest, workflow_id: str, run_uid: str, *, repair: bool = False
    ) -> str:
        row = harness.run(run_id)
        seen.append((row.status, row.attempt))
        return await real(request, workflow_id, run_uid, repair=repair)

    harness.workflows.start = watching  # type: ignore[method-assign]
    answer = client.post(f"/v1/runs/{run_id}/resume").json()
    assert seen == [("INITIALIZING", 2)]
    assert (answer["status"], answer["attempt"]) == ("INITIALIZING", 2)
    harness.clock.forward(5)
    assert client.get(f"/v1/runs/{run_id}").json()["waiting"] == "waiting for a worker for 5 s"


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("ended", "rerun"), [(RunStatus.FAILED, False), (RunStatus.COMPLETED, True)]
)
def test_a_stop_before_the_claim_stops_what_is_about_to_execute(
    harness: Harness, client: TestClient, run_id: int, ended: RunStatus, rerun: bool, force: bool
) -> None:
    if rerun:
        client.post(f"/v1/runs/{run_id}/resume")
        harness.claim(run_id)
        harness.end(run_id, ended)
    assert client.post(f"/v1/runs/{run_id}/resume", json={"rerun": rerun}).status_code == 202
    answer = client.post(f"/v1/runs/{run_id}/stop", json={"request_id": "s", "force": force})
    assert (answer.status_code, answer.json()["status"]) == (202, "STOPPING")
    assert harness.workflows.signals[-1][0] == OWN, "its workflow is told, too"
    handle = harness.claim(run_id)
    assert handle.stop is not None
    assert (handle.stop.force, handle.rerun, handle.status) == (force, rerun, "STOPPING")
    assert [entry["attempt"] for entry in harness.store.runs.cancellations(run_id)] == [
        handle.attempt
    ]


def lost(harness: Harness, client: TestClient, run_id: int) -> None:
    """The gateway dies after writing to its database and before calling Temporal."""
    harness.workflows.down = True
    former = harness.run(run_id)
    harness.store.initiation.resume_run(RunRequest(run_id=run_id), OWN, former.attempt)
    harness.workflows.down = False


def refused(harness: Harness, client: TestClient, run_id: int) -> None:
    """Temporal fails after it was asked whether the previous workflow is open."""
    real = harness.workflows.start

    async def down(
        request: RunRequest, workflow_id: str, run_uid: str, *, repair: bool = False
    ) -> str:
        harness.workflows.down = True
        return await real(request, workflow_id, run_uid, repair=repair)

    harness.workflows.start = down  # type: ignore[method-assign]
    answer = client.post(f"/v1/runs/{run_id}/resume")
    assert answer.status_code == 503
    assert "is recorded and starts as soon as Temporal can be reached" in answer.json()["detail"]
    harness.workflows.start = real  # type: ignore[method-assign]
    harness.workflows.down = False


@pytest.mark.parametrize("how", [lost, refused])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_start_that_was_lost_is_brought_by_the_sweep(
    harness: Harness,
    client: TestClient,
    run_id: int,
    how: Callable[[Harness, TestClient, int], None],
    stopped: bool,
) -> None:
    how(harness, client, run_id)
    started = len(harness.workflows.started)
    if stopped:
        assert client.post(f"/v1/runs/{run_id}/stop").status_code == 202
        assert len(harness.workflows.started) == started + 1, (
            "a stop starts what is to carry it out"
        )
    else:
        assert asyncio.run(harness.sweep().once()) == 0, (
            "just now it is left to the request that wrote it"
        )
        harness.clock.forward(11)
        assert asyncio.run(harness.sweep().once()) == 1
    handle = harness.claim(run_id)
    assert (handle.attempt, handle.stop is not None, handle.repair) == (2, stopped, False)
    harness.clock.forward(600)
    harness.store.stops.acted_on_stop(harness.fence(run_id), harness.clock())
    assert asyncio.run(harness.sweep().once()) == 0


def test_the_former_workflow_claims_no_accepted_attempt(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    former = harness.run(run_id)
    client.post(f"/v1/runs/{run_id}/resume")
    owner = Owner(former.owner_workflow_id or "", former.owner_run_id or "")
    with pytest.raises(Fenced, match="may not claim it again"):
        harness.store.initiation.claim_run(RunRequest(run_id=run_id), owner, lambda _: False)


def test_many_resumes_at_once_are_one_attempt(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    started = len(harness.workflows.started)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.post(f"/v1/runs/{run_id}/resume"), range(24)))
    assert {(a.status_code, a.json()["attempt"]) for a in answers} == {(202, 2)}
    assert len(harness.workflows.started) == started + 1
    assert client.post(f"/v1/runs/{run_id}/stop").status_code == 202
    assert harness.claim(run_id).stop is not None


def test_a_rerun_of_what_was_resumed_without_is_refused(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    client.post(f"/v1/runs/{run_id}/resume")
    answer = client.post(f"/v1/runs/{run_id}/resume", json={"rerun": True})
    assert (answer.status_code, answer.json()["code"]) == (409, "not_in_this_state")
    assert "without rerun" in answer.json()["detail"]
    assert harness.claim(run_id).rerun is False


def test_a_late_start_of_a_resume_executes_nothing_again(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    client.post(f"/v1/runs/{run_id}/resume")
    harness.claim(run_id)
    harness.end(run_id)
    with pytest.raises(NotInThisState, match="so it needs no repair"):
        harness.store.initiation.claim_run(
            RunRequest(run_id=run_id), Owner(OWN, "late"), lambda _: False, repair=True
        )


def test_tasks_may_be_added_as_soon_as_the_resume_is_accepted(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    assert (
        client.post(f"/v1/runs/{run_id}/tasks", json={"tasks": [{"args": {}}]}).status_code == 409
    )
    client.post(f"/v1/runs/{run_id}/resume")
    assert (
        client.post(f"/v1/runs/{run_id}/tasks", json={"tasks": [{"args": {}}]}).status_code == 202
    )
