"""A run continues by itself after ends that the cluster caused: at once, after a wait, within
limits, until a stop.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import text
from temporalio.client import WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.activities import retries
from crawler_lifecycle.domain.retries import OtherNodes, Retries
from crawler_lifecycle.domain.task import End
from crawler_lifecycle.store.runs import retries as store_of_retries
from tests.support.fakes.cluster import FINISHED, KILLED, Behaviour
from tests.support.testbed import WorkflowHarness, open_testbed, workflow_clock

pytestmark = pytest.mark.asyncio(loop_scope="session")

EVICTED = End(reason="Evicted", message="its node was drained", disruption="evicted")
OOM = End(exit_code=137, signal=9, reason="OOMKilled", memory_limit="512Mi")
SOON = [0.05]


@pytest_asyncio.fixture(loop_scope="session")
async def testbed(skipping: WorkflowEnvironment, tmp_path: Path) -> AsyncIterator[WorkflowHarness]:
    async with open_testbed(
        skipping.client, tmp_path, retries=Retries(backoff_s=120, jitter=0)
    ) as testbed:
        yield testbed


def evict(testbed: WorkflowHarness, tries: int, end: End = EVICTED) -> None:
    """Let every task end like this in its first tries, and then finish."""
    testbed.cluster.behaviour = lambda run, index, attempt: (
        Behaviour(end=end) if attempt <= tries else Behaviour()
    )


def rows(testbed: WorkflowHarness, run_id: int = 1) -> list[Any]:
    found = testbed.store.tasks.list_tasks(run_id, superseded=True)
    return sorted(found, key=lambda row: (row.task_index, row.attempt))


async def test_an_evicted_task_is_tried_again_after_its_wait(testbed: WorkflowHarness) -> None:
    evict(testbed, 2)
    result = await testbed.run({"crawler": "books", "tasks": [{}, {}]})
    assert (result.status, result.outcome, result.tasks) == (
        "COMPLETED",
        "finished",
        {"SUCCEEDED": 2},
    )
    assert [(row.task_index, row.attempt, row.retry, row.outcome) for row in rows(testbed)] == [
        (index, *one)
        for index in (0, 1)
        for one in ((1, 0, "evicted"), (2, 1, "evicted"), (3, 2, "finished"))
    ]
    waits = [
        (row.deployed_at - row.not_before).total_seconds() for row in rows(testbed) if row.retry
    ]
    assert min(waits) >= 0, "no try begins before its time"
    assert [call.tasks[0].retry for call in testbed.scheduler.calls][-1] == 2


@pytest.mark.troubles
@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_clock_that_is_set_makes_no_try_wait_longer_or_shorter(
    skipping: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """The clock of the workers and of the database is changed between the decision and the time of
    the try.
    """
    wrong, decided, begun = timedelta(0), list[datetime](), list[datetime]()
    decide = store_of_retries.RetryStore.retry_ended

    def then_set(*args: Any, **named: Any) -> Any:
        nonlocal wrong
        done = decide(*args, **named)
        decided.append(workflow_clock())
        wrong = timedelta(hours=hours)
        return done

    monkeypatch.setattr(store_of_retries.RetryStore, "retry_ended", then_set)
    policy = Retries(backoff_s=120, jitter=0)
    async with open_testbed(
        skipping.client, tmp_path, retries=policy, clock=lambda: workflow_clock() + wrong
    ) as testbed:
        evict(testbed, 1)
        testbed.cluster.clock = workflow_clock
        testbed.scheduler.before = lambda call: begun.append(workflow_clock())
        assert (await testbed.run({"crawler": "books"})).status == "COMPLETED"
    assert 120 <= (begun[1] - decided[0]).total_seconds() < 150


@pytest.mark.troubles
async def test_tries_end_with_the_policy_and_the_last_one_is_the_verdict(
    testbed: WorkflowHarness,
) -> None:
    evict(testbed, 99)
    result = await testbed.run({"crawler": "books", "retries": {"max": 2, "backoff_s": 0}})
    assert (result.status, result.outcome) == ("FAILED", "evicted")
    assert [row.retry_note for row in rows(testbed)] == [None, None, "2 of 2 tries made"]


async def test_what_the_crawler_did_is_not_tried_again(testbed: WorkflowHarness) -> None:
    testbed.cluster.behaviour = lambda run, index, attempt: Behaviour(end=KILLED)
    result = await testbed.run({"crawler": "books"})
    assert (result.outcome, [row.retry_note for row in rows(testbed)]) == (
        "failed",
        ["failed is not in retries.on"],
    )


async def test_a_stop_ends_a_wait_at_once(testbed: WorkflowHarness) -> None:
    evict(testbed, 99)
    handle = await testbed.start(
        {"crawler": "books", "retries": {"backoff_s": 80_000, "cap_s": 86_400}}
    )
    await testbed.until(
        lambda: testbed.store.runs.get_run(1) is not None and len(rows(testbed)) == 2
    )
    assert (
        "(1 of 3): Ended from outside: its node was drained"
        in testbed.store.runs.get_run(1).waiting_for
    )
    await handle.signal("stop", {"requested_by": "ann"})
    result = await handle.result()
    assert (result.outcome, result.tasks) == ("cancelled", {"CANCELLED": 1})


@pytest.mark.troubles
async def test_a_limit_of_the_run_ends_a_wait(testbed: WorkflowHarness) -> None:
    evict(testbed, 99)
    result = await testbed.run(
        {
            "crawler": "books",
            "limits": {"run_timeout_s": 600},
            "retries": {"backoff_s": 80_000, "cap_s": 86_400},
        }
    )
    assert (result.status, result.outcome) == ("FAILED", "timed_out")
    assert len(rows(testbed)) == 2


@pytest.mark.troubles
async def test_many_tasks_that_go_at_once_are_within_the_budget_of_the_run(
    testbed: WorkflowHarness,
) -> None:
    evict(testbed, 99)
    result = await testbed.run(
        {"crawler": "books", "tasks": [{}] * 6, "retries": {"budget": 8, "backoff_s": 5}}
    )
    assert (result.outcome, result.tasks) == ("evicted", {"FAILED": 6})
    assert sum(row.retry > 0 for row in rows(testbed)) == 8
    assert {row.retry_note for row in rows(testbed)} == {
        None,
        "the run's budget of 8 tries is used up",
    }


@pytest.mark.troubles
async def test_more_ends_than_one_activity_decides_about_are_decided_by_several(
    testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_of_retries, "PAGE", 2)
    monkeypatch.setattr(retries, "PAGES", 2)
    evict(testbed, 1)
    handle = await testbed.start(
        {"crawler": "books", "tasks": [{}] * 14, "retries": {"backoff_s": 5}}
    )
    assert (await handle.result()).tasks == {"SUCCEEDED": 14}
    assert [row.retry for row in rows(testbed)] == [0, 1] * 14
    assert (await testbed.events(handle)).count("retry_ended_tasks") >= 4


@pytest.mark.troubles
async def test_after_oom_the_next_try_has_more_memory_and_the_crawler_remembers_it(
    testbed: WorkflowHarness,
) -> None:
    evict(testbed, 2, OOM)
    asked = {"crawler": "books", "resources": {"memory": "512Mi"}}
    asked["retries"] = {"on": ["oom"], "backoff_s": 0, "remember": True}
    assert (await testbed.run(asked)).status == "COMPLETED"
    evict(testbed, 0)
    assert (await testbed.run(asked)).status == "COMPLETED"
    given = [task.memory for call in testbed.scheduler.calls for task in call.tasks]
    assert given == ["512Mi", "768Mi", "1152Mi", "1152Mi"]


@pytest.mark.troubles
async def test_later_tries_avoid_the_node_and_may_go_elsewhere(testbed: WorkflowHarness) -> None:
    evict(testbed, 2)
    books = testbed.scheduler.catalogue.crawlers["books"]
    elsewhere = Retries(backoff_s=0, retry_on=OtherNodes({"capacity": "on-demand"}, after=2))
    testbed.scheduler.catalogue.crawlers["books"] = replace(books, retries=elsewhere)
    await testbed.run({"crawler": "books"})
    given = [dict(task.node_selector) for call in testbed.scheduler.calls for task in call.tasks]
    assert given == [{}, {}, {"capacity": "on-demand"}]


@pytest.mark.troubles
async def test_a_resumed_run_begins_to_count_again(testbed: WorkflowHarness) -> None:
    evict(testbed, 3)
    policy = {"max": 1, "backoff_s": 0}
    assert (await testbed.run({"crawler": "books", "retries": policy})).outcome == "evicted"
    assert (await testbed.run({"run_id": 1})).status == "COMPLETED"
    assert [(row.attempt, row.run_attempt, row.retry) for row in rows(testbed)] == [
        (1, 1, 0),
        (2, 1, 1),
        (3, 2, 0),
        (4, 2, 1),
    ]
    assert [(call.attempt, call.tasks[0].attempt) for call in testbed.scheduler.calls] == [
        (1, 1),
        (1, 2),
        (2, 3),
        (2, 4),
    ]


@pytest.mark.troubles
async def test_the_answer_of_a_try_that_was_lost_starts_nothing_twice(
    testbed: WorkflowHarness,
) -> None:
    evict(testbed, 1)
    testbed.scheduler.before = lambda call: setattr(
        testbed.scheduler,
        "lose",
        int(call.tasks[0].retry == 1 and len(testbed.scheduler.calls) == 2),
    )
    result = await testbed.run({"crawler": "books", "retries": {"backoff_s": 0}})
    assert (result.status, len(rows(testbed))) == ("COMPLETED", 2)
    assert [call.tasks[0].attempt for call in testbed.scheduler.calls] == [1, 2, 2]


@pytest.mark.troubles
async def test_the_catalogue_says_how_its_crawler_is_tried_again(testbed: WorkflowHarness) -> None:
    shops = testbed.parts.catalogue.get("shops")
    assert shops is not None
    own = Retries(max=1, on=["failed"], backoff_s=0, final_exits=[9])
    testbed.scheduler.catalogue.crawlers["shops"] = replace(shops, retries=own)
    evict(testbed, 1, End(exit_code=1, reason="Error", finish_reason="a word of its own"))
    assert (await testbed.run({"crawler": "shops"})).status == "COMPLETED"
    evict(testbed, 9, End(exit_code=9, reason="Error", finish_reason="a word of its own"))
    assert (await testbed.run({"crawler": "shops"})).outcome == "a word of its own"
    assert [row.retry_note for row in rows(testbed, 2)] == ["exit 9 is final"]


def restore_from_before_the_decision(testbed: WorkflowHarness, *, ended: bool) -> None:
    """Restore a database that knows only the first try of the first task, which is executing or has
    just ended.
    """
    executes = (
        ", status = 'RUNNING', outcome = NULL, cause = NULL, ended_at = NULL, exit_code = NULL"
    )
    again = "superseded_by = NULL" + ("" if ended else executes)
    of_later = ("correction", "status_transition", "task_log", "task_stats", "task_observation")
    with testbed.store.database.writer.begin() as connection:
        for statement in (
            *(
                f"DELETE FROM {one} WHERE task_id IN (SELECT task_id FROM task_history)"
                for one in of_later
            ),
            "DELETE FROM task_history WHERE attempt > 1",
            f"UPDATE task_history SET {again} WHERE attempt = 1",
        ):
            connection.execute(text(statement))


async def between_two_polls(testbed: WorkflowHarness, handle: WorkflowHandle[Any, Any]) -> None:
    """Return when a poll has found nothing new, and nothing is in progress, because calls in the
    middle would mix both copies.
    """
    seen = testbed.store.runs.get_run(1).verified_at
    await testbed.until(lambda: testbed.store.runs.get_run(1).verified_at != seen)
    while (await handle.describe()).raw_description.pending_activities:
        continue  # each query is a call that takes a moment


#: How the first try was polled before, and which later one is executing: each once in ``make
#: test-more``.
BEFORE = ["seen", "on record", "gone", "gone and no longer tried again", "stopped"]
ALWAYS = {
    ("seen", 2),
    ("on record", 3),
    ("gone", 2),
    ("gone and no longer tried again", 3),
    ("stopped", 2),
}


@pytest.mark.troubles
@pytest.mark.parametrize(
    ("before", "executes"),
    [
        pytest.param(*cell, marks=() if cell in ALWAYS else pytest.mark.slow)
        for cell in itertools.product(BEFORE, [2, 3])
    ],
)
async def test_a_try_that_a_restored_database_does_not_know_is_taken_up(
    testbed: WorkflowHarness, before: str, executes: int
) -> None:
    """The cluster is already executing the next try.

    No other one begins next to it, and the run ends after it.
    """
    testbed.cluster.behaviour = lambda run, index, attempt: (
        Behaviour(executes=0, end=EVICTED) if attempt < executes else Behaviour(executes=None)
    )
    policy = {"on": ["evicted"] if "no longer" in before else ["evicted", "lost"], "backoff_s": 0}
    handle = await testbed.start({"crawler": "books", "retries": policy, "poll_minutes": SOON})
    await testbed.until(
        lambda: [row.status for row in rows(testbed) if row.attempt == executes] == ["RUNNING"]
    )
    if before not in ("seen", "on record"):
        for attempt in range(1, executes):
            testbed.cluster.vanish(1, 0, attempt)
    await between_two_polls(testbed, handle)
    calls = len(testbed.scheduler.calls)
    restore_from_before_the_decision(testbed, ended=before == "on record")
    if before == "stopped":
        await handle.signal("stop", {"requested_by": "ann"})
        assert (await handle.result()).outcome == "cancelled"
    else:
        await testbed.until(
            lambda: [row.status for row in rows(testbed) if row.attempt == executes] == ["RUNNING"]
        )
        testbed.cluster.end_now(1, 0, executes, FINISHED)
        assert (await handle.result()).status == "COMPLETED"
    assert [(row.attempt, row.retry) for row in rows(testbed)] == [(1, 0), (executes, executes - 1)]
    assert (testbed.cluster.alive(), len(testbed.scheduler.calls)) == ([], calls), (
        "nothing was deployed beside it"
    )
