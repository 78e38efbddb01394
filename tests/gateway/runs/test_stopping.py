"""POST …/stop, …/resume, …/poll: recorded first, sent afterwards, with one effect however often
they are sent.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.run import RunRequest, RunStatus, StopIntent, StopRequest
from tests.gateway.gateway_harness import Harness


@pytest.fixture
def run_id(harness: Harness, client: TestClient) -> int:
    """A run that its workflow owns."""
    answer = client.post("/v1/runs", json={"crawler": "plain"}, headers={"Idempotency-Key": "k"})
    run_id = int(answer.json()["run_id"])
    harness.claim(run_id)
    return run_id


OWN = "crawl/plain/k"


def test_a_stop_is_recorded_and_told(harness: Harness, client: TestClient, run_id: int) -> None:
    body = {"reason": "enough", "requested_by": "ada", "request_id": "s1"}
    answer = client.post(f"/v1/runs/{run_id}/stop", json=body)
    assert (answer.status_code, answer.json()["status"]) == (202, "STOPPING")
    stop = answer.json()["stop"]
    assert (stop["requested_by"], stop["reason"], stop["force"]) == ("ada", "enough", False)
    assert harness.workflows.signals == [(OWN, StopRequest("s1", "ada", "enough"))]
    [logged] = harness.store.runs.cancellations(run_id)
    assert logged["request_id"] == "s1"


def test_the_row_exists_before_temporal_hears_of_the_stop(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    seen: list[bool] = []
    real = harness.workflows.stop

    async def watching(workflow_id: str, stop: StopRequest, *, run_uid: str | None = None) -> bool:
        row = harness.store.runs.get_run(run_id)
        seen.append(row is not None and row.stop is not None)
        return await real(workflow_id, stop, run_uid=run_uid)

    harness.workflows.stop = watching  # type: ignore[method-assign]
    client.post(f"/v1/runs/{run_id}/stop")
    assert seen == [True]


def test_a_second_stop_is_200_and_a_forced_one_after_it_is_new(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    codes = [
        client.post(f"/v1/runs/{run_id}/stop", json=body).status_code
        for body in (
            {"request_id": "a"},
            {"request_id": "a"},
            {"force": True, "request_id": "b"},
            {"force": True},
        )
    ]
    assert codes == [202, 200, 202, 200]
    assert [entry["request_id"] for entry in harness.store.runs.cancellations(run_id)][:2] == [
        "a",
        "b",
    ]
    assert harness.workflows.signals[2][1] == StopRequest("b", force=True)


def test_whether_a_run_is_to_end_can_be_asked(client: TestClient, run_id: int) -> None:
    def asked() -> tuple[bool, bool]:
        answer = client.get(f"/v1/runs/{run_id}/stop").json()
        assert set(answer) == {"run_id", "asked", "force"}, (
            "its crawler may ask: not who wants it, nor why"
        )
        return answer["asked"], answer["force"]

    told = [asked()]
    for body in (
        {"reason": "enough"},
        {"force": True},
        {"reason": "a plain one takes nothing back"},
    ):
        client.post(f"/v1/runs/{run_id}/stop", json=body)
        told.append(asked())
    assert told == [(False, False), (True, False), (True, True), (True, True)]


def test_many_stops_under_one_id_make_one_log_row(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    def stop(_: int) -> int:
        return client.post(f"/v1/runs/{run_id}/stop", json={"request_id": "same"}).status_code

    with ThreadPoolExecutor(10) as pool:
        codes = list(pool.map(stop, range(30)))
    assert set(codes) <= {200, 202}
    assert 202 in codes
    assert len(harness.store.runs.cancellations(run_id)) == 1


def test_a_stop_of_an_ended_run_is_200_and_writes_nothing(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    harness.end(run_id)
    answer = client.post(f"/v1/runs/{run_id}/stop", json={"reason": "too late"})
    assert (answer.status_code, answer.json()["status"]) == (200, "FAILED")
    assert "already ended" in answer.json()["note"]
    assert harness.store.runs.cancellations(run_id) == []
    assert harness.workflows.signals == []


def test_a_stop_before_the_workflow_claimed_the_run_reaches_it(
    harness: Harness, client: TestClient
) -> None:
    run_id = client.post(
        "/v1/runs", json={"crawler": "plain"}, headers={"Idempotency-Key": "k"}
    ).json()["run_id"]
    assert client.post(f"/v1/runs/{run_id}/stop").status_code == 202
    assert [w for w, _ in harness.workflows.signals] == [OWN]


def test_where_no_workflow_is_open_a_stop_starts_one_for_the_run(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    harness.workflows.open.clear()  # terminated by somebody
    assert client.post(f"/v1/runs/{run_id}/stop", json={"force": True}).status_code == 202
    assert harness.workflows.signals == []
    assert harness.workflows.started[-1] == (OWN, RunRequest(crawler="plain", run_id=run_id))
    handle = harness.claim(run_id)
    assert handle.stop is not None
    assert handle.stop.force


def test_an_owner_with_an_id_of_its_own_is_told_under_that(
    harness: Harness, client: TestClient
) -> None:
    harness.workflows.open["my-own-id"] = "chain-x"
    row, _ = harness.store.initiation.reserve_run(RunRequest(crawler="plain"), "outside")
    harness.workflows.started.append(("my-own-id", RunRequest(crawler="plain", run_id=row.run_id)))
    harness.claim(row.run_id)
    assert client.get(f"/v1/runs/{row.run_id}").json()["workflow_id"] == "my-own-id"
    client.post(f"/v1/runs/{row.run_id}/stop")
    assert [w for w, _ in harness.workflows.signals] == ["my-own-id"]


def test_temporal_down_does_not_lose_a_stop(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    harness.workflows.down = True
    answer = client.post(
        f"/v1/runs/{run_id}/stop", json={"request_id": "s", "reason": "now", "force": True}
    )
    assert answer.status_code == 202
    assert "carried out as soon as Temporal" in answer.json()["note"]
    harness.workflows.down = False
    harness.clock.forward(11)
    sweep = harness.sweep()
    assert asyncio.run(sweep.once()) == 1
    assert harness.workflows.signals == [(OWN, StopRequest("s", None, "now", True))]
    assert asyncio.run(sweep.once()) == 0, "told just now"
    harness.store.stops.acted_on_stop(harness.fence(run_id), harness.clock())
    harness.clock.forward(600)
    assert asyncio.run(sweep.once()) == 0


def test_the_sweep_starts_a_workflow_for_a_stop_that_nobody_can_hear(
    harness: Harness, run_id: int
) -> None:
    harness.workflows.open.clear()
    harness.store.stops.record_stop(run_id, StopIntent(harness.clock()), "s")
    harness.clock.forward(11)
    assert asyncio.run(harness.sweep().once()) == 1
    assert harness.workflows.started[-1][1].run_id == run_id


def test_a_limits_stop_is_not_told_to_the_workflow_that_set_it(
    harness: Harness, run_id: int
) -> None:
    intent = StopIntent(harness.clock(), limit="timed_out")
    harness.store.stops.record_stop(run_id, intent, None, harness.fence(run_id))
    harness.clock.forward(11)
    asyncio.run(harness.sweep().once())
    assert harness.workflows.signals == []
    assert len(harness.workflows.started) == 1


def test_an_unknown_run_is_404(client: TestClient) -> None:
    for action in ["stop", "resume", "poll"]:
        answer = client.post(f"/v1/runs/4711/{action}")
        assert (answer.status_code, answer.json()["code"]) == (404, "run_not_found"), action


@pytest.mark.parametrize(
    ("action", "body", "field"),
    [
        ("stop", {"forced": True}, "forced"),
        ("stop", {"force": "yes"}, "force"),
        ("stop", {"request_id": " padded "}, "request_id"),
        ("stop", {"request_id": ""}, "request_id"),
        ("stop", {"reason": "x" * 2001}, "reason"),
        ("resume", {"re_run": True}, "re_run"),
        ("resume", {"poll_minutes": []}, "poll_minutes"),
    ],
)
def test_wrong_bodies(
    harness: Harness,
    client: TestClient,
    run_id: int,
    action: str,
    body: dict[str, object],
    field: str,
) -> None:
    if action == "resume":
        harness.end(run_id)
    answer = client.post(f"/v1/runs/{run_id}/{action}", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field


# --- resume ---------------------------------------------------------------------------------------


def test_a_failed_run_is_resumed_under_its_own_id(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    harness.end(run_id)
    answer = client.post(
        f"/v1/runs/{run_id}/resume", json={"requested_by": "ada", "poll_minutes": [0.5]}
    )
    assert answer.status_code == 202
    assert harness.workflows.started[-1] == (OWN, RunRequest(crawler="plain", run_id=run_id))
    handle = harness.claim(run_id)
    assert handle.attempt == 2
    assert (handle.request.requested_by, handle.request.poll_minutes) == ("ada", [0.5])


def test_resume_while_the_former_workflow_still_exports(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    harness.end(run_id, close=False)
    assert [client.post(f"/v1/runs/{run_id}/resume").status_code for _ in range(2)] == [202, 202]
    assert [w for w, _ in harness.workflows.started] == [OWN, f"{OWN}/2"]
    assert harness.claim(run_id).attempt == 2
    client.post(f"/v1/runs/{run_id}/stop")
    assert harness.workflows.signals[-1][0] == f"{OWN}/2"


def exporting_since_the_first_attempt(harness: Harness, client: TestClient, run_id: int) -> None:
    """The first workflow of the run is still exporting, and the run was continued under another id."""
    harness.end(run_id, close=False)
    client.post(f"/v1/runs/{run_id}/resume")
    assert harness.claim(run_id).attempt == 2


def test_resume_while_the_workflow_before_the_last_still_exports(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    exporting_since_the_first_attempt(harness, client, run_id)
    harness.end(run_id)
    assert [client.post(f"/v1/runs/{run_id}/resume").status_code for _ in range(2)] == [202, 202]
    assert [w for w, _ in harness.workflows.started] == [OWN, f"{OWN}/2", f"{OWN}/3"]
    assert harness.claim(run_id).attempt == 3


@pytest.mark.parametrize("verb", ["stop", "resume"])
def test_a_lost_run_gets_a_workflow_beside_one_that_exports(
    harness: Harness, client: TestClient, run_id: int, verb: str
) -> None:
    exporting_since_the_first_attempt(harness, client, run_id)
    del harness.workflows.open[f"{OWN}/2"]  # terminated by somebody
    assert client.post(f"/v1/runs/{run_id}/{verb}").status_code == 202
    assert harness.workflows.signals == [], "the one that exports carries out no stop"
    assert harness.workflows.started[-1][0] == f"{OWN}/3"
    assert (harness.claim(run_id).stop is not None) is (verb == "stop")


def test_a_live_run_cannot_be_resumed(client: TestClient, run_id: int) -> None:
    for _ in range(2):
        answer = client.post(f"/v1/runs/{run_id}/resume")
        assert (answer.status_code, answer.json()["code"]) == (409, "not_in_this_state")
        client.post(f"/v1/runs/{run_id}/stop")  # nor one that is being stopped


def test_a_run_whose_workflow_is_gone_can(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    harness.workflows.open.clear()
    assert client.post(f"/v1/runs/{run_id}/resume").status_code == 202
    assert len(harness.workflows.started) == 2


def test_a_completed_run_needs_rerun(harness: Harness, client: TestClient, run_id: int) -> None:
    harness.end(run_id, RunStatus.COMPLETED)
    answer = client.post(f"/v1/runs/{run_id}/resume")
    assert (answer.status_code, answer.json()["code"]) == (409, "already_completed")
    assert "rerun: true" in answer.json()["detail"]
    assert client.post(f"/v1/runs/{run_id}/resume", json={"rerun": True}).status_code == 202
    assert harness.claim(run_id).rerun is True


def test_temporal_down_resumes_nothing_and_says_so(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    harness.end(run_id)
    harness.workflows.down = True
    answer = client.post(f"/v1/runs/{run_id}/resume")
    assert answer.status_code == 503
    assert "was not resumed" in answer.json()["detail"]


# --- poll -----------------------------------------------------------------------------------------


def test_a_poll_is_asked_of_the_workflow(harness: Harness, client: TestClient, run_id: int) -> None:
    assert client.post(f"/v1/runs/{run_id}/poll").status_code == 202
    assert harness.workflows.signals == [(OWN, None)]
    harness.workflows.down = True
    assert client.post(f"/v1/runs/{run_id}/poll").status_code == 503


def test_nobody_polls_at_an_ended_run_or_without_a_workflow(
    harness: Harness, client: TestClient, run_id: int
) -> None:
    harness.workflows.open.clear()
    assert client.post(f"/v1/runs/{run_id}/poll").json()["code"] == "not_in_this_state"
    harness.workflows.open[OWN] = "chain-1"
    harness.end(run_id)
    assert client.post(f"/v1/runs/{run_id}/poll").status_code == 409
