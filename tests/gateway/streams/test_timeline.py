"""The timeline: everything that happened, in order, in words, in pages."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.retries import NextTry
from crawler_lifecycle.domain.run import RunStatus, Verdict
from crawler_lifecycle.domain.task import Change, End, Observation, Phase, TaskStatus
from crawler_lifecycle.gateway.streams.timeline import TEXT_MAX, _sentence
from crawler_lifecycle.ports.polls import TaskFinding
from tests.gateway.api.test_etags import Run
from tests.gateway.gateway_harness import Harness


@pytest.fixture
def run(harness: Harness, client: TestClient) -> Run:
    return Run(harness, client)


def _timeline(client: TestClient, run_id: int, size: int = 50) -> list[dict[str, Any]]:
    found, token = [], None
    while True:
        params = {"page_size": size, **({"page_token": token} if token else {})}
        answer = client.get(f"/v1/runs/{run_id}/timeline", params=params)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["timeline"]) <= size
        found += page["timeline"]
        token = page["next_page_token"]
        if token is None:
            return found


def _play(harness: Harness, client: TestClient, run: Run) -> None:
    """Record a life with everything in it."""
    harness.clock.forward(1)
    run.task_lost()
    harness.clock.forward(1)
    body = {"request_id": "s", "requested_by": "ada", "reason": "wrong\nsite", "force": True}
    client.post(f"/v1/runs/{run.run_id}/stop", json=body)
    harness.clock.forward(1)
    run.stop_is_acted_on()
    second = run.store.tasks.list_tasks(run.run_id)[1].task_id
    run.store.stops.mark_stopping(run.fence, [second])
    harness.clock.forward(1)
    now = harness.clock()
    end = End(
        exit_code=137, signal=9, reason="OOMKilled", message="limit\x1b[31m 512Mi", finished_at=now
    )
    change = Change(
        second, TaskStatus.STOPPING, TaskStatus.CANCELLED, now, "cancelled", "Stopped", None
    )
    run.poll(TaskFinding(change, Observation(1, 1, Phase.ENDED, now, end=end)))
    harness.clock.forward(90)
    run.store.polls.apply_details(run.fence)
    run.store.polls.apply_findings(run.fence, "look")
    run.store.completion.end_run(
        run.fence, lambda groups, stop: Verdict(RunStatus.FAILED, "cancelled", "Stopped by ada")
    )
    harness.clock.forward(1)
    run.exported()
    run.delivery_failed()
    harness.workflows.open.clear()
    client.post(f"/v1/runs/{run.run_id}/resume")
    harness.clock.forward(1)
    harness.claim(run.run_id)


def test_everything_is_told_in_order_and_in_words(
    harness: Harness, client: TestClient, run: Run
) -> None:
    _play(harness, client, run)
    told = _timeline(client, run.run_id)
    times = [entry["at"] for entry in told]
    assert times == sorted(times)
    assert len({entry["key"] for entry in told}) == len(told)
    assert {entry["kind"] for entry in told} == {
        *("attempt", "status", "task", "correction", "stop", "export", "delivery")
    }  # fmt: skip
    words = {entry["text"] for entry in told}
    first, second = (
        task.task_id for task in run.store.tasks.list_tasks(run.run_id, superseded=True)[:2]
    )
    assert {
        "Requested with 2 tasks (manual)",
        "ada requested a stop by force: wrong site",
        "Being stopped",
        f"Task 1 (id {second}) became STOPPING",
        f"Task 1 (id {second}) became CANCELLED: OOMKilled, exit 137, signal 9, limit [31m 512Mi; recorded 90.0 s "
        "after it happened",
        "Ended FAILED, cancelled: Stopped by ada; recorded 90.0 s after it happened",
        "Supporting files archived: 1 files, 10 bytes, file:///x.zip",
        "run.told could not be delivered to bus (1 tries): refused",
        "Attempt 2 began; the previous one was FAILED",
    } <= words, words
    corrected = next(entry for entry in told if entry["kind"] == "correction")
    assert re.fullmatch(
        re.escape(f"Corrected: task 0 (id {first}) was recorded as PENDING but was LOST")
        + r"(, for [0-9.]+ m?s)?\. "
        + re.escape(f"{CorrectionKind.VANISHED.meaning} It was found by a poll that was due."),
        corrected["text"],
    ), corrected["text"]
    assert corrected["record"]["kind"] == "vanished"
    # What programs read about changes of status is in the same place as before.
    statuses = [entry for entry in told if entry["seq"] is not None]
    assert [entry["seq"] for entry in statuses] == sorted(entry["seq"] for entry in statuses)
    assert [(e["from_status"], e["to_status"]) for e in statuses if e["task_id"] is None] == [
        (None, "INITIALIZING"), ("INITIALIZING", "STOPPING"), ("STOPPING", "FAILED"), ("FAILED", "INITIALIZING"),
    ]  # fmt: skip
    assert all(entry["committed_at"] == entry["at"] and entry["source"] for entry in statuses)


def test_each_further_try_is_one_line(harness: Harness, client: TestClient, run: Run) -> None:
    run.task_lost()
    run.store.retries.retry_ended(run.fence, lambda end, used: NextTry(240, "768Mi"), 3)
    [told] = [entry for entry in _timeline(client, run.run_id) if entry["source"] == "retry"]
    again = max(task.task_id for task in run.store.tasks.list_tasks(run.run_id))
    assert (told["kind"], told["task_id"], told["attempt"], told["to_status"]) == (
        "task",
        again,
        2,
        "QUEUED",
    )
    text = f"Task 0 (id {again}) is tried again (1 of 3) with 768Mi of memory, not before {told['evidence']['not_before']}"
    assert told["text"] == f"{text}: the previous try ended as lost"
    answer = client.get(f"/v1/runs/{run.run_id}").json()
    assert answer["waiting"].startswith("retrying in ")


def test_pages_say_the_same_as_the_whole(harness: Harness, client: TestClient, run: Run) -> None:
    _play(harness, client, run)
    whole = _timeline(client, run.run_id)
    assert [size for size in (1, 2, 3, 7) if _timeline(client, run.run_id, size) != whole] == []


def test_what_comes_while_somebody_turns_pages_is_on_a_later_one(
    harness: Harness, client: TestClient, run: Run
) -> None:
    path = f"/v1/runs/{run.run_id}/timeline"
    first = client.get(path, params={"page_size": 1}).json()
    _play(harness, client, run)
    rest, token = [], first["next_page_token"]
    while token:
        page = client.get(path, params={"page_size": 4, "page_token": token}).json()
        rest, token = rest + page["timeline"], page["next_page_token"]
    assert first["timeline"] + rest == _timeline(client, run.run_id)


def test_tokens_of_other_lists_are_refused(client: TestClient, run: Run) -> None:
    for token in ["dGltZWxpbmU6MQ", "dGltZWxpbmU6MS4yLjMuNC41LjY", "cnVuOjE", "x"]:
        answer = client.get(f"/v1/runs/{run.run_id}/timeline", params={"page_token": token})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "page_token"), (
            token
        )


def test_a_sentence_is_one_short_line_whatever_a_crawler_says() -> None:
    assert _sentence("a\n\tb\x00\x1b[2J\u2028\u202ec") == "a b [2J c"
    assert len(_sentence("x" * 5000)) == TEXT_MAX
