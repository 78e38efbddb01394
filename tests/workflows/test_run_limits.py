"""A run's own limits (stall, run time, start time): each ends it through the same stop, with its
outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.run import RunResult
from crawler_lifecycle.domain.task import Counters, End
from tests.support.fakes.cluster import Behaviour
from tests.support.testbed import WorkflowHarness

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.troubles]

#: Counts for ten minutes and then continues without counting.
STALLS = Behaviour(executes=None, counts_for=600, heeds_stop_after=1)
TWO = {"tasks": [{}, {}, {}], "max_parallel_tasks": 2}

#: A poll every 16 minutes: the second one after the last count would not see a stall of half an
#: hour, the third one does.
RARELY = {"poll_minutes": [16]}

#: Limit of the request, behaviour of its tasks, outcome, and tasks that reached the cluster for a
#: single and a multi-process run.
LIMITS: list[tuple[dict[str, float], Behaviour, str]] = [
    ({"stall_timeout_s": 1800}, STALLS, "cancelled (stalled)"),
    ({"run_timeout_s": 900}, Behaviour(executes=None, heeds_stop_after=1), "timed_out"),
    ({"start_timeout_s": 600}, Behaviour(waits=1e7), "start_timeout"),
]
IDS = [outcome for _, _, outcome in LIMITS]


def ended_by_limit(
    testbed: WorkflowHarness, result: RunResult, outcome: str, tasks: int = 1, on_cluster: int = 1
) -> None:
    """Check what holds for every run that one of its limits ended."""
    run_id = result.run_id
    ends = {"FAILED": on_cluster, "CANCELLED": tasks - on_cluster}
    assert (result.status, result.outcome) == ("FAILED", outcome)
    assert result.tasks == {status: count for status, count in ends.items() if count}
    row = testbed.store.runs.get_run(run_id)
    assert (row.status, row.outcome, row.stop.limit, row.stop.requested_by) == (
        "FAILED",
        outcome,
        outcome,
        None,
    )
    assert {t.outcome for t in testbed.store.tasks.list_tasks(run_id)} == {outcome}
    assert testbed.store.runs.cancellations(run_id) == [], "nobody asked for it"
    moves = [t.to_status for t in testbed.store.runs.transitions(run_id) if t.task_id is None]
    assert moves[-2:] == ["STOPPING", "FAILED"]
    executed = 0 if outcome == "start_timeout" else on_cluster
    assert [testbed.cluster.signals(run_id, n) for n in range(tasks)] == [
        int(n < executed) for n in range(tasks)
    ]
    assert testbed.cluster.calls["kill"] == 0
    assert testbed.cluster.alive(run_id) == []
    assert len([key for key in testbed.cluster._tasks if key[0] == run_id]) == on_cluster, (
        "queued ones never start"
    )
    assert [e.body["outcome"] for e in testbed.outside.pushed if e.type == "run.stopped"] == [
        outcome
    ]
    assert [(e.body["status"], e.body["outcome"]) for e in testbed.outside.sent] == [
        ("FAILED", outcome)
    ]
    assert testbed.corrections(run_id) == []


@pytest.mark.parametrize(("limits", "behaviour", "outcome"), LIMITS, ids=IDS)
async def test_a_multi_process_run(
    testbed: WorkflowHarness, limits: dict[str, float], behaviour: Behaviour, outcome: str
) -> None:
    testbed.cluster.behaviour = behaviour
    result = await testbed.run({"crawler": "books", "limits": limits, **TWO, **RARELY})
    ended_by_limit(testbed, result, outcome, tasks=3, on_cluster=2)


async def test_one_task_that_counts_keeps_a_run_from_stalling(testbed: WorkflowHarness) -> None:
    testbed.cluster.behaviour = lambda run, index, attempt: (
        STALLS if index == 0 else Behaviour(executes=2700, heeds_stop_after=1)
    )
    request = {"crawler": "books", "limits": {"stall_timeout_s": 1800}, "tasks": [{}, {}]}
    result = await testbed.run({**request, **RARELY})
    assert (result.outcome, result.tasks) == ("partial", {"SUCCEEDED": 1, "FAILED": 1})
    ends = {t.task_index: t for t in testbed.store.tasks.list_tasks(result.run_id)}
    assert (ends[0].outcome, ends[1].outcome) == ("cancelled (stalled)", "finished")
    assert ends[0].ended_at > ends[1].ended_at, "stalled only when nothing counted any more"


@pytest.mark.parametrize(
    "counters",
    [pytest.param(Counters(), marks=pytest.mark.slow), Counters(pages=0, items=0)],
    ids=["untold", "zero"],
)
async def test_a_crawler_that_never_counted_anything_does_not_stall(
    testbed: WorkflowHarness, counters: Counters
) -> None:
    testbed.cluster.behaviour = Behaviour(executes=2700, counters=counters)
    result = await testbed.run({"crawler": "books", "limits": {"stall_timeout_s": 1800}, **RARELY})
    assert (result.status, result.outcome) == ("COMPLETED", "finished")


async def test_one_that_counts_nothing_stalls_when_it_writes_nothing_any_more(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = Behaviour(
        executes=None, counters=Counters(), writes_for=900, heeds_stop_after=1
    )
    result = await testbed.run({"crawler": "books", "limits": {"stall_timeout_s": 1800}, **RARELY})
    ended_by_limit(testbed, result, "cancelled (stalled)")
    (task,) = testbed.store.tasks.list_tasks(result.run_id)
    assert task.started_at is not None
    assert task.ended_at is not None
    lasted = (task.ended_at - task.started_at).total_seconds()
    assert 2700 <= lasted <= 2700 + 17 * 60, (
        "half an hour after its last sign of life, and the poll that saw it"
    )


async def test_one_that_counts_nothing_and_writes_goes_on(testbed: WorkflowHarness) -> None:
    """So does one next to it that never wrote anything, because nobody knows what it does."""
    for others in ([], [{}]):
        testbed.cluster.behaviour = lambda run, index, attempt: Behaviour(
            executes=2700, counters=Counters(), writes_for=1e6 if index == 0 else None
        )
        tasks = [{}, *others]
        result = await testbed.run(
            {"crawler": "books", "limits": {"stall_timeout_s": 1800}, "tasks": tasks, **RARELY}
        )
        assert (result.status, result.outcome) == ("COMPLETED", "finished")
    testbed.cluster.behaviour = lambda run, index, attempt: Behaviour(
        executes=2700, counters=Counters(), writes_for=0 if index == 0 else None
    )
    result = await testbed.run(
        {"crawler": "books", "limits": {"stall_timeout_s": 1800}, "tasks": [{}, {}], **RARELY}
    )
    assert result.status == "COMPLETED"


class Outage:
    """Polls of the cluster fail from one time to another of the run's own time, in seconds from its
    first poll.
    """

    def __init__(self, testbed: WorkflowHarness, begins: float, ends: float) -> None:
        self._poll: Callable[..., Any] = testbed.cluster.poll
        self._clock, self._first, self._away = testbed.cluster.clock, None, (begins, ends)
        self.failed = 0
        testbed.cluster.poll = self  # type: ignore[method-assign, assignment]

    _first: Any

    def __call__(self, *args: Any) -> Any:
        now = self._clock()
        self._first = self._first or now
        if self._away[0] <= (now - self._first).total_seconds() < self._away[1]:
            self.failed += 1
            raise ClusterUnavailable("the API server answered 503")
        return self._poll(*args)


async def test_an_outage_of_polls_stalls_nobody(testbed: WorkflowHarness) -> None:
    """It counts before and after; between them, polls failed for longer than the limit."""
    testbed.cluster.behaviour = Behaviour(executes=900)
    outage = Outage(testbed, 150, 150 + 450)
    result = await testbed.run(
        {"crawler": "books", "limits": {"stall_timeout_s": 300}, "poll_minutes": [2]}
    )
    assert (result.status, result.outcome) == ("COMPLETED", "finished")
    assert outage.failed > 5


async def test_the_time_of_an_outage_does_not_count_for_a_stall(testbed: WorkflowHarness) -> None:
    """It stalled before the outage, and is ended only after five minutes that polls cover."""
    testbed.cluster.behaviour = replace(STALLS, counts_for=45)
    outage = Outage(testbed, 150, 150 + 450)
    result = await testbed.run(
        {"crawler": "books", "limits": {"stall_timeout_s": 300}, "poll_minutes": [1, 2]}
    )
    assert outage.failed > 5
    ended_by_limit(testbed, result, "cancelled (stalled)")
    row = testbed.store.runs.get_run(result.run_id)
    assert (row.stop.requested_at - row.started_at).total_seconds() > 150 + 450 + 150
    assert row.look_error is None


async def test_run_timeout_s_passes_while_nobody_can_poll(testbed: WorkflowHarness) -> None:
    testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=1)
    outage = Outage(testbed, 60, 500)
    request = {"crawler": "books", "limits": {"run_timeout_s": 300, "force_stop_after_s": None}}
    result = await testbed.run(request)
    assert outage.failed
    ended_by_limit(testbed, result, "timed_out")
    row = testbed.store.runs.get_run(result.run_id)
    assert 295 < (row.stop.requested_at - row.created_at).total_seconds() < 300 + 65, (
        "the limit itself ended it"
    )


@pytest.mark.parametrize(
    ("limits", "behaviour", "outcome"),
    [
        pytest.param(*one, marks=() if "run_timeout_s" in one[0] else pytest.mark.slow, id=one[2])
        for one in LIMITS
    ],
)
async def test_a_single_process_run_that_is_resumed_has_its_limits_anew(
    testbed: WorkflowHarness, limits: dict[str, float], behaviour: Behaviour, outcome: str
) -> None:
    """Stopped by its limit and resumed, it is measured from the beginning of the new attempt."""
    testbed.cluster.behaviour = behaviour
    first = await testbed.run({"crawler": "books", "limits": limits, **RARELY})
    ended_by_limit(testbed, first, outcome)
    again = await testbed.run({"run_id": first.run_id})
    assert (again.run_id, again.attempt, again.status, again.outcome) == (
        first.run_id,
        2,
        "FAILED",
        outcome,
    )
    assert testbed.cluster.signals(first.run_id, 0, 2) == int(outcome != "start_timeout")
    assert testbed.store.runs.cancellations(first.run_id) == []
    own = [
        t
        for t in testbed.store.runs.transitions(first.run_id)
        if t.task_id is None and t.attempt == 2
    ]
    assert [t.to_status for t in own][-2:] == ["STOPPING", "FAILED"]
    least = next(iter(limits.values()))
    assert (own[-2].committed_at - own[0].committed_at).total_seconds() >= least


async def test_a_stop_by_a_limit_that_is_ignored_is_forced_and_keeps_its_outcome(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=None)
    result = await testbed.run(
        {"crawler": "books", "limits": {"run_timeout_s": 300, "force_stop_after_s": 60}}
    )
    assert (result.outcome, result.tasks) == ("timed_out", {"FAILED": 1})
    row = testbed.store.runs.get_run(result.run_id)
    (task,) = testbed.store.tasks.list_tasks(result.run_id)
    assert (task.ended_at - row.stop.requested_at).total_seconds() >= 60
    assert (testbed.cluster.signals(result.run_id), testbed.cluster.calls["kill"]) == (1, 1)


async def test_what_finished_before_its_limit_took_effect_stays_finished(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = Behaviour(
        executes=301, heeds_stop_after=None, end=End(exit_code=0, finish_reason="finished")
    )
    result = await testbed.run({"crawler": "books", "limits": {"run_timeout_s": 300}})
    assert (result.status, result.outcome) == ("COMPLETED", "finished")
