"""The four stages when nothing goes wrong, in virtual time."""

from __future__ import annotations

import threading

import pytest

from crawler_lifecycle.domain.run import RunSnapshot
from crawler_lifecycle.domain.task import End
from crawler_lifecycle.ports.runs import Event
from tests.support.fakes.cluster import FINISHED, Behaviour
from tests.support.testbed import WorkflowHarness

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_single_process_run_ends_completed(testbed: WorkflowHarness) -> None:
    testbed.cluster.behaviour = Behaviour(executes=600)
    handle = await testbed.start({"crawler": "books", "requested_by": "ada"})
    result = await handle.result()
    assert (result.status, result.outcome, result.tasks) == (
        "COMPLETED",
        "finished",
        {"SUCCEEDED": 1},
    )
    assert (result.items, result.pages, result.errors) == (100, 10, 0)
    row = testbed.store.runs.get_run(result.run_id)
    assert (row.status, row.stage, row.outcome) == ("COMPLETED", "completion", "finished")
    assert row.ended_at is not None
    assert [e.type for e in testbed.outside.pushed] == ["run.started"]
    assert [(e.type, e.body["status"]) for e in testbed.outside.sent] == [
        ("run.ended", "COMPLETED")
    ]
    assert (await testbed.events(handle))[:6] == [
        "create_history_id",
        "add_workflow_id",
        "run_onetime_crawler",
        "get_main_job_status",
        "update_run_started",
        "signal_pusher_started",
    ]
    assert (await testbed.events(handle))[-3:] == [
        "update_run_status",
        "initiate_export_signal",
        "export_supporting_files",
    ]


@pytest.mark.slow
async def test_a_day_on_the_ladder_stays_small(testbed: WorkflowHarness) -> None:
    """``test_classic_skipping`` covers a quarter of it, with this number of polls, and this number
    of events for each.
    """
    testbed.cluster.behaviour = Behaviour(executes=24 * 3600)
    handle = await testbed.start({"crawler": "books"})
    result = await handle.result()
    assert result.outcome == "finished"
    history = await handle.fetch_history()
    polls = [n for n in await testbed.events(handle) if n == "get_history_statuses_to_sync"]
    assert 98 <= len(polls) <= 102
    assert len(history.events) <= 2_000
    assert testbed.corrections(result.run_id) == []


async def test_a_scheduled_run_takes_the_scheduled_route(testbed: WorkflowHarness) -> None:
    handle = await testbed.start(
        {"crawler": "books", "trigger": "scheduled", "due_at": "2026-11-20T12:00:00Z"}
    )
    assert (await handle.result()).status == "COMPLETED"
    assert "run_scheduled_crawler" in await testbed.events(handle)
    assert testbed.scheduler.calls[0].scheduled
    assert testbed.scheduler.calls[0].due_at is not None


async def test_a_multi_process_run_goes_in_waves(testbed: WorkflowHarness) -> None:
    testbed.cluster.behaviour = lambda run, index, attempt: Behaviour(executes=50 + index)
    most = 0

    def count(_: object) -> None:
        nonlocal most
        most = max(most, testbed.store.tasks.count_tasks(1).active + 1)

    testbed.scheduler.before = count
    tasks = [{"args": {"shelf": str(n)}} for n in range(7)]
    result = await testbed.run({"crawler": "books", "tasks": tasks, "max_parallel_tasks": 3})
    assert result.tasks == {"SUCCEEDED": 7}
    assert result.items == 700
    assert most <= 3
    assert len(testbed.scheduler.calls[0].tasks) == 3
    assert sorted(t.args["shelf"] for c in testbed.scheduler.calls for t in c.tasks) == sorted(
        str(n) for n in range(7)
    )
    row = testbed.store.tasks.list_tasks(result.run_id)[6]
    assert row.args == {"shelf": "6"}


@pytest.mark.troubles
async def test_more_tasks_than_one_page_are_all_deployed(testbed: WorkflowHarness) -> None:
    result = await testbed.run({"crawler": "books", "tasks": [{}] * 250})
    assert result.tasks == {"SUCCEEDED": 250}
    assert [len(c.tasks) for c in testbed.scheduler.calls] == [100, 100, 50]


async def test_some_failed_tasks_make_a_partial_run(testbed: WorkflowHarness) -> None:
    bad = End(exit_code=18, reason="Error")
    testbed.cluster.behaviour = lambda run, index, attempt: Behaviour(
        end=bad if index == 1 else FINISHED
    )
    failed = await testbed.run({"crawler": "books", "tasks": [{}, {}, {}]})
    assert (failed.status, failed.outcome) == ("FAILED", "partial")
    assert "exit 18" in failed.cause
    completed = await testbed.run({"crawler": "shops", "tasks": [{}, {}, {}]})
    assert (completed.status, completed.outcome) == ("COMPLETED", "partial")


@pytest.mark.troubles
async def test_limits_of_the_catalogue_hold_where_the_caller_left_the_default(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = Behaviour(executes=None)
    result = await testbed.run({"crawler": "shops", "poll_minutes": [90]})
    assert (result.status, result.outcome) == ("FAILED", "timed_out")
    assert testbed.store.runs.request_of(result.run_id).limits.run_timeout_s == 7200
    result = await testbed.run({"crawler": "shops", "limits": {"run_timeout_s": 60}})
    assert testbed.store.runs.request_of(result.run_id).limits.run_timeout_s == 60


async def test_debugging_information_is_on_record(testbed: WorkflowHarness) -> None:
    end = End(exit_code=137, signal=9, reason="OOMKilled", memory_limit="64Mi")
    testbed.cluster.behaviour = Behaviour(
        end=end, peak_memory=67_108_864, log="tail of the log\n", statistics={"a": 1}
    )
    result = await testbed.run({"crawler": "books"})
    assert (result.outcome, result.cause) == (
        "killed by oom",
        "Out of memory (limit 64Mi), SIGKILL, exit 137",
    )
    task = testbed.store.tasks.list_tasks(result.run_id)[0]
    assert (task.reason, task.exit_code, task.exit_signal) == ("OOMKilled", 137, 9)
    assert (task.peak_memory, task.node, task.pages) == (67_108_864, "fake", 10)
    assert task.started_at is not None
    assert task.ended_at is not None
    assert testbed.store.tasks.log_tail(task.task_id) == "tail of the log\n"
    assert testbed.store.tasks.statistics(result.run_id) == {"a": 1}


@pytest.mark.troubles
async def test_the_story_is_told_in_temporal(testbed: WorkflowHarness) -> None:
    handle = await testbed.start({"crawler": "books", "trigger": "api", "flow_id": "f1"})
    result = await handle.result()
    found = (await handle.describe()).typed_search_attributes
    values = {pair.key.name: pair.value for pair in found}
    assert values["CrawlRunId"] == result.run_id
    assert values["CrawlCrawler"] == "books"
    assert values["CrawlTrigger"] == "api"
    assert values["CrawlStage"] == "completion"
    assert values["CrawlStatus"] == "COMPLETED"
    assert values["CrawlOutcome"] == "finished"
    assert values["CrawlFlow"] == "f1"
    snapshot = await handle.query("status", result_type=RunSnapshot)
    assert (snapshot.run_id, snapshot.status, snapshot.outcome) == (
        result.run_id,
        "COMPLETED",
        "finished",
    )


@pytest.mark.troubles
async def test_the_query_says_nothing_that_the_database_may_know_better(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = Behaviour(executes=None)
    handle = await testbed.start({"crawler": "books"})
    live = await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    assert (live.status, live.outcome, live.cause, live.tasks) == (None, None, None, None)
    await handle.signal("stop")
    await testbed.ended(handle)
    ended, row = (
        await testbed.snapshot_where(handle, lambda s: s.outcome),
        testbed.store.runs.get_run(1),
    )
    assert (ended.status, ended.outcome, ended.cause) == (row.status, row.outcome, row.cause)
    assert ended.tasks == testbed.store.tasks.count_tasks(1).by_status


@pytest.mark.troubles
async def test_an_ended_run_tells_its_parent_with_its_verdict(testbed: WorkflowHarness) -> None:
    """And not after its deliveries, which may take days."""
    testbed.cluster.behaviour = lambda run, index, attempt: Behaviour(
        executes=None if run == 1 else 1
    )
    parent = await testbed.start({"crawler": "books"}, id="parent")
    # The first row is run 1, so the child may not begin before that.
    await testbed.snapshot_where(parent, lambda s: s.run_id == 1)
    told, send = threading.Event(), testbed.outside.send

    def hang(event: Event) -> None:
        assert told.wait(60)
        send(event)

    testbed.outside.send = hang  # type: ignore[method-assign]
    child = await testbed.start({"crawler": "books", "parent": "parent"})
    snapshot = await testbed.snapshot_where(parent, lambda s: s.notes)
    assert "run_ended" in snapshot.notes[0]
    assert testbed.store.runs.get_run(2).status == "COMPLETED"
    assert not testbed.outside.sent
    told.set()
    assert (await testbed.ended(child)).status == "COMPLETED"
    await parent.signal("stop")
    gone = await testbed.run({"crawler": "books", "parent": "nobody"})
    assert gone.status == "COMPLETED"
