"""Runs whose tasks wait for their code: polls record the reason until the crawler executes."""

from __future__ import annotations

from typing import Any

from crawler_lifecycle import redaction
from crawler_lifecycle.activities.poll_step import Recorder
from crawler_lifecycle.activities.reconciliation import PollAnswer, PollOrder
from crawler_lifecycle.activities.retries import Policies
from crawler_lifecycle.domain.ends import NO_ENDS
from crawler_lifecycle.domain.polling_schedule import CODE_SECONDS
from crawler_lifecycle.domain.retries import Retries
from crawler_lifecycle.domain.waiting import Wait, waiting
from crawler_lifecycle.gateway.runs.answers import standing_of
from crawler_lifecycle.ports.runs import Fence
from tests.activities.harness import Harness
from tests.support.fakes.cluster import Behaviour

EVERY_S = 60.0


def away(run_id: int, index: int, attempt: int) -> Behaviour:
    """The code of the second task arrives after 200 s."""
    return Behaviour(executes=None, code_after=200.0 * index, code_wait="503: token=hunter2")


def poll(harness: Harness, fence: Fence) -> PollAnswer:
    order = PollOrder(fence, EVERY_S, EVERY_S, "look")
    answer: PollAnswer = harness.activities()["get_history_statuses_to_sync"](order)
    return answer


def sentence(harness: Harness) -> str | None:
    return waiting(standing_of(harness.row(), harness.clock()))


def listed(harness: Harness, **more: Any) -> list[int]:
    return [row.run_id for row in harness.store.runs.list_runs(waits=Wait.CODE, **more)]


def reasons(harness: Harness) -> list[str | None]:
    return [task.reason for task in harness.tasks()]


def test_a_run_names_the_task_whose_code_is_missing_until_it_arrives(harness: Harness) -> None:
    harness.cluster.behaviour = away
    fence = harness.started(2)
    harness.forward(EVERY_S)
    assert poll(harness, fence).gap_s == CODE_SECONDS
    harness.forward(CODE_SECONDS)
    assert poll(harness, fence).gap_s == CODE_SECONDS
    words = f"503: token={redaction.MASK}"
    assert sentence(harness) == f"the code of task 1 has been missing for 15 s: {words}"
    assert reasons(harness) == [None, f"it is waiting for its code: {words}"]
    assert listed(harness) == [fence.run_id]
    [live] = harness.store.runs.live_runs(9)
    assert (live.wait, live.runs) == (Wait.CODE, 1)
    harness.forward(200)
    assert poll(harness, fence).gap_s == EVERY_S
    assert (sentence(harness), reasons(harness), listed(harness)) == (None, [None, None], [])


def test_what_queued_tasks_wait_for_stays_on_record(harness: Harness) -> None:
    harness.cluster.behaviour = Behaviour(executes=None, code_after=200)
    fence = harness.started(3, max_parallel=2)
    harness.store.deployment.note_waiting(fence, "quota exceeded")
    poll(harness, fence)
    assert harness.row().waiting_for == "quota exceeded"
    harness.store.deployment.note_waiting(fence, None)
    poll(harness, fence)
    assert str(sentence(harness)).startswith("the code of task 0 has been missing")


def test_a_poll_that_an_observer_ordered_records_both_ends_of_the_wait(harness: Harness) -> None:
    harness.cluster.behaviour = away
    fence = harness.started(2)
    recorder = Recorder(
        harness.store.polls,
        harness.store.retries,
        harness.cluster,
        Policies(harness.store.retries, harness.catalogue, Retries(), NO_ENDS),
        harness.clock,
    )
    found = recorder.record(fence, "wake")
    assert found is not None
    assert found.again_s == CODE_SECONDS
    assert listed(harness) == [fence.run_id]
    harness.forward(200)
    found = recorder.record(fence, "wake")
    assert found is not None
    assert found.again_s is None
    assert (listed(harness), harness.row().waiting_for) == ([], None)
