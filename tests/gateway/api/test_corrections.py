"""What the gateway reports about the truth: what runs wait for, corrections by kind, and the ledger
in one line.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from crawler_lifecycle.domain.audits.corrections import NOT_COUNTED, CorrectionKind
from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.domain.run import ChildTask, RunRequest, RunStatus, StopIntent, Verdict
from crawler_lifecycle.domain.task import Observation, Phase, reconcile
from crawler_lifecycle.ports.polls import Correction, Poll, TaskFinding
from crawler_lifecycle.ports.runs import DeployedTask, Fence, Owner
from tests.gateway.gateway_harness import Harness

OWNER = Owner("crawl/plain/k", "chain-1")


def claim(harness: Harness, run_id: int) -> Fence:
    """Return the run's workflow, as the store knows it."""
    handle = harness.store.initiation.claim_run(RunRequest(run_id=run_id), OWNER, lambda _: False)
    return Fence(run_id, handle.attempt, OWNER.first_run_id, handle.run_uid)


@pytest.fixture
def fence(harness: Harness) -> Fence:
    """A run with three tasks, at most two at once, that executes and is due for a poll in a minute."""
    request = RunRequest(
        crawler="plain", tasks=[ChildTask({"page": str(n)}) for n in range(3)], max_parallel_tasks=2
    )
    row, _ = harness.store.initiation.reserve_run(request, "k")
    fence = claim(harness, row.run_id)
    store, now = harness.store, harness.clock.now
    offered, _ = store.deployment.offer_tasks(fence, 10, 2, now + timedelta(seconds=25))
    store.deployment.record_deployed(
        fence,
        "local",
        offered,
        [DeployedTask(t.index, "created", f"n{t.index}", "u") for t in offered],
        now,
    )
    poll(harness, fence, Phase.EXECUTING)
    store.deployment.mark_started(fence, now, now + timedelta(minutes=1))
    return fence


def poll(harness: Harness, fence: Fence, phase: Phase) -> None:
    """Return a poll that sees every task that was deployed in this phase."""
    store, now = harness.store, harness.clock.now
    state = store.polls.found_state(fence)
    seen = [
        Observation(t.index, t.attempt, phase, now, uid=t.uid, changed_at=now)
        for t in state.tasks
        if t.uid
    ]
    tasks = {task.index: task for task in state.tasks}
    changes = [(reconcile(tasks[o.index], o, state.stop, due_at=now), o) for o in seen]
    found = [TaskFinding(change, o) for change, o in changes if change is not None]
    store.polls.record_poll(fence, Poll(now, 0.1, seen), found, now + timedelta(minutes=1))
    store.polls.apply_findings(fence, "look")


def shown(client: TestClient, fence: Fence) -> dict[str, Any]:
    run: dict[str, Any] = client.get(f"/v1/runs/{fence.run_id}").json()
    return run


def test_a_failed_poll_moves_nothing_and_says_since_when(
    harness: Harness, client: TestClient, fence: Fence
) -> None:
    before = shown(client, fence)
    harness.clock.forward(60)
    harness.store.polls.record_poll_error(fence, "503 from the API")
    harness.clock.forward(200)
    harness.store.polls.record_poll_error(fence, "503 from the API")
    after = shown(client, fence)
    for name in ("verified_at", "next_poll_at", "status"):
        assert after[name] == before[name]
    assert after["poll_error_since"] == "2026-11-20T12:01:00Z"
    assert after["waiting"] == "the cluster has not answered for 3 min: 503 from the API"
    [listed] = client.get("/v1/runs").json()["runs"]
    assert listed["waiting"] == after["waiting"]
    told = client.get(f"/v1/runs/{fence.run_id}/timeline").json()["timeline"]
    [failing] = [entry for entry in told if entry["kind"] == "poll"]
    assert failing["at"] == "2026-11-20T12:01:00Z"
    assert "503 from the API" in failing["text"]
    poll(harness, fence, Phase.EXECUTING)
    healed = shown(client, fence)
    assert (healed["poll_error"], healed["poll_error_since"]) == (None, None)
    assert healed["verified_at"] == "2026-11-20T12:04:20Z"


def test_an_overdue_poll_is_called_overdue(
    harness: Harness, client: TestClient, fence: Fence
) -> None:
    tag = client.get(f"/v1/runs/{fence.run_id}").headers["etag"]
    harness.clock.forward(61)
    assert client.get(f"/v1/runs/{fence.run_id}", headers={"if-none-match": tag}).status_code == 304
    harness.clock.forward(239)
    run = shown(client, fence)
    assert run["waiting"].startswith("the poll that was due 4 min ago is missing")
    assert run["stale"] is True
    assert run["verified_ago_s"] == 300


def test_places_and_stops_and_deliveries(
    harness: Harness, client: TestClient, fence: Fence
) -> None:
    waiting = "1 task QUEUED: at most 2 at once (max_parallel_tasks)"
    assert shown(client, fence)["waiting"] == waiting
    assert client.get("/v1/runs").json()["runs"][0]["waiting"] == waiting
    harness.store.stops.record_stop(
        fence.run_id, StopIntent(harness.clock.now, requested_by="ada"), "s1"
    )
    harness.clock.forward(7)
    assert (
        shown(client, fence)["waiting"]
        == "stop requested by ada 7 s ago: no workflow has acted on it yet"
    )
    harness.store.stops.cancel_queued(fence, harness.clock.now)
    harness.store.stops.acted_on_stop(fence, harness.clock.now)
    assert shown(client, fence)["waiting"].endswith(
        ": 2 tasks (index 0, 1) not yet proved to have ended"
    )
    poll(harness, fence, Phase.GONE)
    harness.store.completion.end_run(
        fence, lambda groups, stop: Verdict(RunStatus.FAILED, "cancelled", "Stopped by ada")
    )
    harness.store.events.record_delivery(
        harness.store.events.last_event(fence.run_id, "run.stopped").seq, "pusher", None
    )
    seq = harness.store.events.last_event(fence.run_id, "run.ended").seq
    harness.store.events.record_delivery(seq, "bus", "refused")
    harness.store.exports.record_export(fence, "failed", None, "the disk is full")
    assert shown(client, fence)["waiting"] == (
        "run.ended is not delivered after 1 try: refused; the supporting files are not archived yet: the disk is full"
    )
    harness.store.events.record_delivery(seq, "bus", None)
    harness.store.exports.record_export(fence, "empty", None, None)
    assert shown(client, fence)["waiting"] is None


def test_a_run_without_a_workflow_says_so(harness: Harness, client: TestClient) -> None:
    row, _ = harness.store.initiation.reserve_run(RunRequest(crawler="plain"), "k")
    harness.clock.forward(90)
    run = client.get(f"/v1/runs/{row.run_id}").json()
    assert (
        run["waiting"]
        == "waiting for a worker for 1 min; crawlctl doctor shows whether there is one"
    )


def test_since_when_it_waits_survives_another_number(harness: Harness, client: TestClient) -> None:
    row, _ = harness.store.initiation.reserve_run(RunRequest(crawler="plain"), "k")
    fence = claim(harness, row.run_id)
    for used in ("4 of 4", "3 of 4", "4 of 4"):
        harness.clock.forward(30)
        harness.store.deployment.note_waiting(fence, f"waiting: {used} slots in use")
    harness.clock.forward(30)
    assert shown(client, fence)["waiting"] == "waiting for 1 min: 4 of 4 slots in use"
    harness.store.deployment.note_waiting(fence, "scheduler service: 503")
    harness.clock.forward(10)
    run = shown(client, fence)
    assert run["waiting"] == "the scheduler service has accepted no deployment for 10 s: 503"
    assert run["waiting_since"] == "2026-11-20T12:02:00Z"


def wrong(harness: Harness, fence: Fence, kind: CorrectionKind, truth: str) -> None:
    harness.store.corrections.record_corrections(
        fence.run_id, [Correction(kind, "PROCESSING", truth)]
    )


def test_the_ledger_in_one_line(harness: Harness, client: TestClient, fence: Fence) -> None:
    empty = client.get("/v1/corrections/summary").json()
    assert (empty["count"], empty["worst_s"], empty["kinds"]) == (0, None, {})
    assert empty["text"] == f"no corrections this week; {NOT_COUNTED}"
    assert (empty["since"], empty["until"]) == ("2026-11-13T12:00:00Z", "2026-11-20T12:00:00Z")
    harness.clock.forward(41.25)
    wrong(harness, fence, CorrectionKind.KILLED, "FAILED")
    harness.clock.forward(8 * 86400)
    wrong(harness, fence, CorrectionKind.LATE, "FAILED")
    poll(harness, fence, Phase.EXECUTING)
    summary = client.get("/v1/corrections/summary").json()
    assert (summary["count"], list(summary["kinds"])) == (1, ["late"])
    assert (
        summary["text"]
        == f"wrong for at most 691242 s this week: 1 correction (late 1); {NOT_COUNTED}"
    )
    whole = client.get("/v1/corrections/summary", params={"since": "2026-11-20T00:00:00Z"}).json()
    assert whole["kinds"]["killed"] == {
        "count": 1, "worst_s": 41.25, "meaning": CorrectionKind.KILLED.meaning,
    }  # fmt: skip
    assert "since 2026-11-20T00:00:00Z: 2 corrections (killed 1, late 1)" in whole["text"]
    refused = client.get("/v1/corrections/summary", params={"since": "yesterday"})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "since")


NOT_LOST = {"lost": 0, "lost_since": None, "lost_what": None}


def test_overdue_polls_are_told_everywhere(
    harness: Harness, client: TestClient, fence: Fence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawler_lifecycle.gateway.metrics.FRESH_S", 0.0)
    harness.clock.forward(90)
    nothing = {
        "count": 0,
        "since": None,
        "run_id": None,
        "verified_at": None,
        **NOT_LOST,
        "text": None,
    }
    assert client.get("/v1/runs", params={"status": "FAILED"}).json()["overdue"] == nothing
    assert client.get("/v1/corrections/summary").json()["overdue"] == nothing
    harness.clock.forward(134)
    words = f"1 poll is overdue (run {fence.run_id}) by 2 min 44 s: nothing after 2026-11-20T12:00:00Z is verified"
    listed = client.get("/v1/runs", params={"status": "FAILED"}).json()
    assert listed["overdue"] == {
        "count": 1, "since": "2026-11-20T12:01:00Z", "run_id": fence.run_id,
        "verified_at": "2026-11-20T12:00:00Z", **NOT_LOST, "text": words,
    }  # fmt: skip
    summary = client.get("/v1/corrections/summary").json()
    assert summary["text"] == f"no corrections this week; {NOT_COUNTED}; {words}"
    scraped = client.get("/metrics").text
    assert 'lifecycle_polls_overdue{project="default"} 1.0' in scraped
    assert 'lifecycle_poll_overdue_seconds_max{project="default"} 164.0' in scraped
    poll(harness, fence, Phase.EXECUTING)
    assert client.get("/v1/runs").json()["overdue"] == nothing


def test_lists_by_kind(harness: Harness, client: TestClient, fence: Fence) -> None:
    wrong(harness, fence, CorrectionKind.KILLED, "FAILED")
    for truth in ("COMPLETED", "FAILED"):
        wrong(harness, fence, CorrectionKind.LATE, truth)
    for path in ("/v1/corrections", f"/v1/runs/{fence.run_id}/corrections"):
        first = client.get(path, params={"kind": "late", "page_size": 1}).json()
        assert [row["truth"] for row in first["corrections"]] == ["COMPLETED"]
        again = {"kind": "late", "page_size": 1, "page_token": first["next_page_token"]}
        assert [row["truth"] for row in client.get(path, params=again).json()["corrections"]] == [
            "FAILED"
        ]
        assert client.get(path, params={"kind": "repair"}).json()["corrections"] == []
        refused = client.get(path, params={"kind": "mistaken"})
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "kind")


def figures(client: TestClient, name: str) -> dict[str, float]:
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {
        sample.labels["kind"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == name
    }


def test_figures_of_the_ledger(
    harness: Harness, client: TestClient, fence: Fence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawler_lifecycle.gateway.metrics.FRESH_S", 0.0)
    assert figures(client, "lifecycle_week_corrections") == {
        kind.value: 0 for kind in CorrectionKind
    }
    harness.clock.forward(12)
    wrong(harness, fence, CorrectionKind.VANISHED, "LOST")
    assert figures(client, "lifecycle_week_corrections")["vanished"] == 1
    assert figures(client, "lifecycle_week_wrong_seconds_max")["vanished"] == 12
    with monkeypatch.context() as down:

        def unavailable(*_: object) -> None:
            raise StoreUnavailable("gone")

        down.setattr(harness.store.corrections, "correction_summary", unavailable)
        assert all(
            math.isnan(value) for value in figures(client, "lifecycle_week_corrections").values()
        )
    assert figures(client, "lifecycle_week_corrections")["vanished"] == 1


def test_not_every_scrape_asks_the_database(
    harness: Harness, client: TestClient, fence: Fence, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    summary = harness.store.corrections.correction_summary
    monkeypatch.setattr(
        harness.store.corrections,
        "correction_summary",
        lambda since: asked.append(since) or summary(since),
    )
    for _ in range(5):
        client.get("/metrics")
    assert len(asked) == 1
