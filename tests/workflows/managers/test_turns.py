"""What a manager's turns survive: retries, resumes, foreign signals, dead workers, long histories."""

from __future__ import annotations

from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.run import RunStatus, StopIntent
from crawler_lifecycle.domain.task import End
from crawler_lifecycle.features.managers.activities.cycles import CycleAnswer, CycleOrder
from crawler_lifecycle.features.managers.activities.managing import ManagerEnded
from crawler_lifecycle.features.managers.domain.manager import Job, ManagerResult
from crawler_lifecycle.features.managers.workflows import manager
from crawler_lifecycle.features.managers.workflows.manager import CrawlManagerWorkflow
from crawler_lifecycle.features.managers.workflows.manager_state import ManagerState
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.workflows import lifecycle
from tests.support.fakes.cluster import FINISHED, Behaviour
from tests.support.managing import manager_testbed, quick
from tests.support.testbed import WorkflowHarness, open_testbed
from tests.workflows.impossible_starts import fail_at_once

pytestmark = pytest.mark.asyncio(loop_scope="session")

INSTANT = Behaviour(executes=0)
FAILS = Behaviour(executes=0, end=End(exit_code=1, reason="Error"))


async def test_a_window_of_three_over_six_jobs(real_testbed: WorkflowHarness) -> None:
    real_testbed.cluster.behaviour = INSTANT
    m = manager_testbed(real_testbed, source=[quick(n) for n in range(6)])
    async with m.user_code():
        handle = await m.start(parent="nobody")
        result = await real_testbed.ended(handle)
    assert (result.status, result.outcome, result.attempt) == ("COMPLETED", "finished", 1)
    row, runs = m.row(), m.runs()
    assert (row.status, row.outcome, row.counts.scheduled, row.counts.good) == (
        "COMPLETED",
        "finished",
        6,
        6,
    )
    assert [run.request_id for run in runs] == [f"manager/1/{n}" for n in range(1, 7)]
    assert {run.parent for run in runs} == {"manager/stream/f1"}
    assert {run.request["args"]["n"] for run in runs} == set("012345")
    assert sorted(m.plan.ends) == [(n, 0, 1, False) for n in range(1, 7)]
    at = sorted(
        (moment, one) for run in runs for moment, one in ((run.created_at, 1), (run.ended_at, -1))
    )
    assert max(m.plan.lives) == max(accumulate(one for _, one in at)) == 3
    events = sum(len(history.events) for history in await real_testbed.chain(handle))
    assert events <= 6 * 20, "at most as many for a job as where jobs end one at a time"


@pytest.mark.troubles
async def test_bad_ends_are_tried_again_under_the_number_of_their_job(
    real_testbed: WorkflowHarness,
) -> None:
    real_testbed.cluster.behaviour = lambda run, index, attempt: (
        FAILS if run in (1, 3, 4) else INSTANT
    )
    m = manager_testbed(real_testbed, source=[quick(1), quick(2)], window=1, retries=1)
    async with m.user_code():
        result = await real_testbed.ended(await m.start())
    assert (result.status, result.outcome) == ("COMPLETED", "finished")
    assert [run.request_id for run in m.runs()] == [
        f"manager/1/{n}" for n in ("1", "1.r1", "2", "2.r1")
    ]
    assert m.plan.ends == [(1, 0, 1, True), (1, 1, 1, False), (2, 0, 1, True), (2, 1, 1, True)]
    counts = m.row().counts
    assert (counts.scheduled, counts.retried, counts.good, counts.bad) == (2, 2, 1, 3)


@pytest.mark.parametrize(
    ("told", "end"),
    [
        ({}, ("FAILED", "errors in hooks: 2")),
        ({"on_hook_error": "complete"}, ("COMPLETED", "errors in hooks: 2")),
        ({"close_reason": "failed"}, ("FAILED", "failed")),
        ({"close_reason": "banned", "failed": True}, ("FAILED", "banned")),
        ({"error": "position 2: no dictionary"}, ("FAILED", "failed")),
    ],
)
async def test_hooks_that_failed_for_good_are_told_by_the_end(
    told: dict[str, Any], end: tuple[str, str]
) -> None:
    state = ManagerState()
    state.ends_by(CycleAnswer(None, over=True, hook_errors=2, **told))
    assert state.over is not None
    assert (state.over.status, state.over.outcome) == end
    assert "error" in told or "errors in hooks: 2" in state.over.cause


@pytest.mark.troubles
async def test_a_job_that_no_crawler_takes_ends_badly_and_holds_up_no_other(
    real_testbed: WorkflowHarness,
) -> None:
    real_testbed.cluster.behaviour = INSTANT
    m = manager_testbed(
        real_testbed, source=[Job("nobody"), Job("quick", {"colour": "red"}), quick(1)]
    )
    async with m.user_code():
        result = await real_testbed.ended(await m.start())
    assert result.outcome == "finished"
    assert sorted(m.plan.ends) == [(1, 0, 1, True), (2, 0, 1, True), (3, 0, 1, False)]
    errors = [job.error for job in real_testbed.store.managers.list_jobs(1)]
    assert "spider: 'nobody' is unknown" in errors[0]
    assert "colour" in errors[1]
    assert [run.request_id for run in m.runs()] == ["manager/1/3"]


@pytest.mark.troubles
async def test_its_flow_id_resumes_it_and_what_is_known_is_skipped(
    real_testbed: WorkflowHarness,
) -> None:
    real_testbed.cluster.behaviour = INSTANT
    m = manager_testbed(real_testbed, source=[quick(n) for n in range(2)])
    async with m.user_code():
        await real_testbed.ended(await m.start())
        m.plan.source.append(quick(9))
        again = await m.start()
        result = await real_testbed.ended(again)
    assert (result.attempt, m.row().attempt, m.row().status) == (2, 2, "COMPLETED")
    assert [run.request["args"]["n"] for run in m.runs()] == ["0", "1", "9"]
    assert m.plan.closed == [1, 2]


@pytest.mark.troubles
async def test_a_run_that_a_person_resumed_counts_again(real_testbed: WorkflowHarness) -> None:
    real_testbed.cluster.behaviour = lambda run, index, attempt: (
        FAILS if (run, attempt) == (1, 1) else Behaviour(executes=None)
    )
    m = manager_testbed(real_testbed, source=[quick(1)], window=1, stays=True)
    async with m.user_code():
        handle = await m.start()
        await real_testbed.until(lambda: m.plan.ends == [(1, 0, 1, True)])
        resumed = await real_testbed.start({"run_id": 1})
        await real_testbed.until(lambda: real_testbed.cluster.alive())
        m.plan.source.append(quick(2))
        real_testbed.store.managers.steer_manager(1, cap=1)
        await Workflows(real_testbed.client).wake(handle.id)
        await m.snapshot_where(handle, lambda s: s.live == 1)
        assert len(m.runs()) == 1, "its slot is taken"
        real_testbed.cluster.end_now(1, 0, 2, FINISHED)
        await resumed.signal("poll_now")
        await real_testbed.until(lambda: (1, 0, 2, False) in m.plan.ends)
        await handle.signal("force_stop")
        assert (await real_testbed.ended(handle)).outcome == "cancelled"
    assert len([end for end in m.plan.ends if end[0] == 1]) == 2


@pytest.mark.troubles
async def test_lost_doubled_foreign_and_unreadable_signals_change_nothing(
    real_testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_testbed.cluster.behaviour = INSTANT
    told: list[Any] = []

    async def lose(state: Any) -> None:
        told.append(state.run_id)

    monkeypatch.setattr(lifecycle, "tell_parent", lose)
    m = manager_testbed(real_testbed, source=[quick(n) for n in range(3)])
    m.plan.answered = lambda answer: CycleAnswer(**{**_fields(answer), "again_s": 0.3})
    async with m.user_code():
        handle = await m.start()
        for payload in ({"run_id": 4711}, b"\xff\x00", [1, 2], None):
            for name in ("run_ended", "run_ended", "wake", "dance"):
                await handle.signal(name, payload)
        result = await real_testbed.ended(handle)
    assert (result.status, m.row().counts.good, len(m.runs())) == ("COMPLETED", 3, 3)
    assert sorted(m.plan.ends) == [(n, 0, 1, False) for n in range(1, 4)]
    assert max(m.plan.lives) == 3
    snapshot = await m.snapshot_where(handle, lambda s: True)
    assert "unknown signal 'dance' ignored" in snapshot.notes[0]


def _fields(answer: CycleAnswer) -> dict[str, Any]:
    return {name: getattr(answer, name) for name in answer.__dataclass_fields__}


@pytest.mark.troubles
async def test_a_cycle_that_died_before_or_after_its_commit_doubles_nothing(
    real_testbed: WorkflowHarness,
) -> None:
    real_testbed.cluster.behaviour = INSTANT
    m = manager_testbed(real_testbed, source=[quick(n) for n in range(4)])
    deaths = iter(["before", "after", "", "after", "before"])
    tries: list[tuple[str, str]] = []

    def die(moment: str) -> None:
        if tries[-1][1] == moment:
            m.plan.forget()
            raise RuntimeError("the worker died")

    def before(order: CycleOrder) -> None:
        tries.append((activity.info().task_queue, next(deaths, "")))
        die("before")

    def after(answer: CycleAnswer) -> CycleAnswer:
        die("after")
        return answer

    m.plan.before, m.plan.answered = before, after
    async with m.user_code():
        result = await real_testbed.ended(await m.start())
    assert (result.status, m.row().counts.good, len(m.runs())) == ("COMPLETED", 4, 4)
    assert [run.request_id for run in m.runs()] == [f"manager/1/{n}" for n in range(1, 5)]
    assert max(m.plan.lives) <= 3
    after_deaths = {queue for (_, died), (queue, _) in pairwise(tries) if died}
    assert next(deaths, None) is None, "all of them came"
    assert after_deaths == {names.QUEUE_USER_CODE}, "nobody waits for a worker that may be dead"


@pytest.mark.troubles
async def test_another_worker_goes_on_when_the_one_with_the_object_is_gone(
    real_testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "TAKEN_S", 0.5)
    real_testbed.cluster.behaviour = INSTANT
    m = manager_testbed(real_testbed, source=[quick(n) for n in range(2)], window=1)
    m.plan.queue = names.user_code_queue("dead")

    def revive(order: CycleOrder) -> None:
        if m.plan.cycles == 1:
            m.plan.forget()
            m.plan.queue = names.user_code_queue("testbed")

    m.plan.before = revive
    async with m.user_code():
        result = await real_testbed.ended(await m.start())
    assert (result.outcome, len(m.runs()), m.row().generation) == ("finished", 2, 2)


@pytest.mark.troubles
async def test_a_manager_whose_worker_leaves_in_order_waits_for_nobody(
    real_testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "TAKEN_S", 3600.0)
    m = manager_testbed(real_testbed, source=[quick(n) for n in range(2)], window=1)
    m.plan.queue = names.user_code_queue("leaves")
    async with m.user_code():
        handle = await m.start()
        await real_testbed.until(lambda: len(real_testbed.cluster.alive()) == 1)
        await m.snapshot_where(handle, lambda s: s.cycles == 1)
        m.plan.forget()
        m.plan.queue = names.user_code_queue("testbed")
        await Workflows(real_testbed.client).moved(handle.id)
        real_testbed.cluster.behaviour = INSTANT
        real_testbed.cluster.end_now(1)
        await Workflows(real_testbed.client).poll_now(m.runs()[0].owner_workflow_id)
        result = await real_testbed.ended(handle)
    assert (result.outcome, len(m.runs()), m.row().generation) == ("finished", 2, 2)


@pytest.mark.troubles
async def test_pause_cap_and_jobs_from_outside(real_testbed: WorkflowHarness) -> None:
    real_testbed.cluster.behaviour = INSTANT
    m = manager_testbed(real_testbed, source=[], stays=True)
    managers, wake = real_testbed.store.managers, Workflows(real_testbed.client).wake
    async with m.user_code():
        handle = await m.start(options={"argv": ["--job-settings", '{"DEPTH_LIMIT": 2}']})
        managers.steer_manager(1, paused=True, cap=1)
        page = {
            "jobs": [{"spider": "quick", "spider_args": {"n": n}} for n in "12"],
            "request_id": "p1",
        }
        assert [await handle.execute_update("add_job", page) for _ in range(2)] == [2, 2]
        for wrong in ({"jobs": []}, {"jobs": [{"spider": 5}]}, None, b"\xff"):
            with pytest.raises(WorkflowUpdateFailedError) as failed:
                await handle.execute_update("add_job", wrong)
            assert failed.value.cause.type == "InvalidRequest"
        with pytest.raises(WorkflowUpdateFailedError) as failed:
            await handle.execute_update(
                "add_job", {"jobs": [{"spider": "quick"}], "request_id": "p1"}
            )
        assert failed.value.cause.type == "DuplicateRequest"
        await m.snapshot_where(handle, lambda s: s.waiting == "nothing to pick")
        assert m.runs() == []
        assert [one.job.job_settings for one in managers.list_jobs(1) if one.job] == [
            {"DEPTH_LIMIT": "2"}
        ] * 2
        managers.steer_manager(1, paused=False)
        await wake(handle.id)
        await real_testbed.until(lambda: m.row().counts.good == 2)
        managers.record_manager_stop(1, StopIntent(utc_now()))
        late = {"jobs": [{"spider": "quick", "spider_args": {"n": "4"}}]}
        # Only in the row, without a signal to the workflow.
        with pytest.raises(WorkflowUpdateFailedError) as failed:
            await handle.execute_update("add_job", late)
        assert failed.value.cause.type == "NotInThisState"
        await wake(handle.id)
        assert (await real_testbed.ended(handle)).outcome == "cancelled"
    assert max(m.plan.lives) == 1
    assert m.row().counts.scheduled == 2


ENDED = ManagerEnded(RunStatus.COMPLETED, "finished", "")


@pytest.mark.parametrize("ends", [{"outcome": "finished"}, {"over": ENDED}, {}])
async def test_a_manager_that_ends_takes_no_more_jobs(ends: dict[str, Any]) -> None:
    """They are refused before the history has anything of them; ``{}``: it was told to stop."""
    flow, page = object.__new__(CrawlManagerWorkflow), {"jobs": [{"spider": "quick"}]}
    flow._s = ManagerState(manager_id=7)
    flow._check_jobs(page)
    if not ends:
        flow._s.inbox.want(StopIntent(utc_now()))
    for name, value in ends.items():
        setattr(flow._s, name, value)
    with pytest.raises(
        ApplicationError, match="manager 7 is ending and takes no more jobs"
    ) as refused:
        flow._check_jobs(page)
    assert refused.value.type == "NotInThisState"


@pytest.mark.troubles
async def test_what_the_class_says_at_its_end_is_the_managers(
    real_testbed: WorkflowHarness,
) -> None:
    real_testbed.cluster.behaviour = Behaviour(executes=None)
    m = manager_testbed(real_testbed, close_reason="no items", failed=True)
    parent = await real_testbed.start({"crawler": "books"}, id="parent of a manager")
    async with m.user_code():
        handle = await m.start(parent=parent.id)
        result = await real_testbed.ended(handle)
    assert (result.status, result.outcome) == ("FAILED", "no items")
    found = (await handle.describe()).typed_search_attributes
    assert {pair.key.name: pair.value for pair in found if pair.key.name.startswith("Crawl")} == {
        "CrawlName": "stream",
        "CrawlFlow": "f1",
        "CrawlStatus": "FAILED",
        "CrawlOutcome": "no items",
        "CrawlParent": parent.id,
    }
    told = await real_testbed.snapshot_where(parent, lambda s: s.notes)
    assert "manager_ended" in told.notes[0]
    await parent.signal("force_stop")
    await real_testbed.ended(parent)


async def test_a_start_that_cannot_be_fails_at_once(real_testbed: WorkflowHarness) -> None:
    m = manager_testbed(real_testbed)
    m.reserve()
    await fail_at_once(
        real_testbed, names.MANAGER_WORKFLOW, ManagerResult, "manager_id", "manager/stream/f1"
    )
    assert m.row().owner_run_id is None


@pytest.mark.troubles
async def test_a_long_stream_continues_as_new_and_forgets_nothing(
    unhurried: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "HISTORY_MAX", 12)
    async with open_testbed(unhurried.client, tmp_path, clock=utc_now) as testbed:
        testbed.cluster.behaviour = INSTANT
        m = manager_testbed(testbed, source=[quick(n) for n in range(5)])
        async with m.user_code():
            handle = await m.start()
            result = await testbed.ended(
                testbed.client.get_workflow_handle(handle.id, result_type=ManagerResult)
            )
        assert (result.status, m.row().counts.good, len(m.runs())) == ("COMPLETED", 5, 5)
        assert max(m.plan.lives) == 3
        assert len(await testbed.chain(handle)) > 2
