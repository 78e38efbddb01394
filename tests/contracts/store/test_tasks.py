"""Tasks from their offer to their end."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from itertools import product

import pytest
import sqlalchemy as sa

from crawler_lifecycle.domain.errors import RowUnreadable
from crawler_lifecycle.domain.retries import NextTry
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.task import LOG_TAIL_BYTES, Change, Counters, End, Phase, TaskStatus
from crawler_lifecycle.ports.polls import Details, Poll, TaskFinding
from crawler_lifecycle.ports.runs import DeployedTask
from crawler_lifecycle.runner.reported import STATISTICS_MAX
from crawler_lifecycle.store.columns import TEXT_MAX, compressed
from tests.contracts.store.harness import START, Harness, bad_end, good_end, seen

UNTIL = START + timedelta(seconds=25)


# --- deployment -----------------------------------------------------------------------------------


def test_offers_are_repeated_until_they_are_answered(harness: Harness) -> None:
    fence = harness.run(tasks=3)
    first, stop = harness.store.deployment.offer_tasks(fence, 2, None, UNTIL)
    assert ([t.index for t in first], [t.args for t in first], stop) == (
        [0, 1],
        [{"part": "0"}, {"part": "1"}],
        None,
    )
    assert harness.store.deployment.offer_tasks(fence, 2, None, UNTIL) == (first, None)


def test_where_tasks_are_put_is_on_record_as_long_as_they_may_live(harness: Harness) -> None:
    fence = harness.run(tasks=4)
    assert harness.store.deployment.places(fence.run_id) == []
    offered, _ = harness.store.deployment.offer_tasks(fence, 2, None, UNTIL, "day")
    assert harness.store.deployment.places(fence.run_id) == ["day"]
    answers = [DeployedTask(0, "created", "n", "u"), DeployedTask(1, "deferred", reason="quota")]
    harness.store.deployment.record_deployed(fence, "kubernetes", offered, answers, START, UNTIL)
    assert [task.place for task in harness.store.polls.found_state(fence).tasks][:1] == ["day"]
    harness.store.deployment.offer_tasks(fence, 1, None, UNTIL, "night")
    assert harness.store.deployment.places(fence.run_id) == ["day", "night"]
    tasks = harness.store.polls.found_state(fence).tasks
    assert [(task.index, task.place) for task in tasks if task.place] == [(0, "day"), (1, "night")]
    harness.store.deployment.refuse_queued(fence, "no such crawler")
    harness.finish(fence)
    assert harness.store.deployment.places(fence.run_id) == [], "nothing is alive any more"


def test_an_offer_that_is_withdrawn_was_never_made(harness: Harness) -> None:
    fence = harness.run(tasks=3)
    first, _ = harness.store.deployment.offer_tasks(fence, 2, None, UNTIL, "day")
    harness.store.deployment.withdraw_offer(fence, first, UNTIL)
    assert harness.store.deployment.places(fence.run_id) == []
    assert harness.store.stops.cancel_queued(fence, START).queued == 0, "none may be on its way"


def test_an_offer_that_is_withdrawn_leaves_the_one_before(harness: Harness) -> None:
    """If the earlier offer got no response, it may have deployed its tasks; a later offer remains
    as well.
    """
    fence = harness.run(tasks=3)
    harness.store.deployment.offer_tasks(fence, 1, None, UNTIL, "day")
    later, last = UNTIL + timedelta(seconds=5), UNTIL + timedelta(seconds=9)
    offered, _ = harness.store.deployment.offer_tasks(fence, 3, None, later, "day")
    harness.store.deployment.offer_tasks(fence, 2, None, last, "day")
    for _ in range(2):
        harness.store.deployment.withdraw_offer(fence, offered, later)
    ends = [
        task.offered_until
        for task in harness.store.tasks.task_page(fence.run_id, [TaskStatus.QUEUED])
    ]
    assert ends == [last, last, None]
    again, _ = harness.store.deployment.offer_tasks(fence, 1, None, later, "day")
    harness.store.deployment.withdraw_offer(fence, again, later)
    assert (
        harness.store.tasks.task_page(fence.run_id, [TaskStatus.QUEUED], limit=1)[0].offered_until
        == last
    )
    assert harness.store.stops.cancel_queued(fence, START).queued == 2


def test_offers_keep_within_the_parallel_limit(harness: Harness) -> None:
    fence = harness.run(tasks=6)
    offered, _ = harness.store.deployment.offer_tasks(fence, 500, 3, UNTIL)
    assert [t.index for t in offered] == [0, 1, 2]
    assert [t.index for t in harness.store.deployment.offer_tasks(fence, 1, 3, UNTIL)[0]] == [0]
    harness.store.deployment.record_deployed(
        fence, "local", offered, [DeployedTask(1, "created", "n", "u")], START
    )
    # One is active, two are in progress: nothing new fits, and the two are offered again.
    assert [t.index for t in harness.store.deployment.offer_tasks(fence, 500, 3, UNTIL)[0]] == [
        0,
        2,
    ]
    harness.clock.forward(60)
    assert [t.index for t in harness.store.deployment.offer_tasks(fence, 500, 3, UNTIL)[0]] == [
        0,
        2,
    ]
    harness.poll(fence, [])  # it shows that nobody created them
    harness.clock.forward(1)
    assert harness.store.deployment.offer_tasks(fence, 500, 1, UNTIL)[0] == []


def test_nothing_is_offered_under_a_stop_or_after_the_end(harness: Harness) -> None:
    fence = harness.run(tasks=2)
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s1")
    assert harness.store.deployment.offer_tasks(fence, 500, None, UNTIL) == ([], harness.stop())
    harness.store.stops.cancel_queued(fence, START)
    harness.end(fence)
    assert harness.store.deployment.offer_tasks(fence, 500, None, UNTIL)[0] == []


def test_answers_of_the_scheduler_service(harness: Harness) -> None:
    fence = harness.run(tasks=4)
    offered, _ = harness.store.deployment.offer_tasks(fence, 4, None, UNTIL)
    answers = [
        DeployedTask(0, "created", "crawl-0", "uid-0"),
        DeployedTask(1, "existing", "crawl-1", "uid-1"),
        DeployedTask(2, "deferred", reason="quota exceeded"),
        DeployedTask(3, "refused", reason="no such image"),
        DeployedTask(9, "created", "crawl-9", "uid-9"),
    ]
    answered = (fence, "kubernetes", offered, answers, START)
    counts = harness.store.deployment.record_deployed(*answered)
    assert counts.by_status == {"PENDING": 2, "QUEUED": 1, "FAILED": 1}
    zero, one, two, three = harness.store.tasks.list_tasks(fence.run_id)
    expected = ("kubernetes", "crawl-0", "uid-0", START)
    assert (zero.cluster, zero.cluster_name, zero.cluster_uid, zero.deployed_at) == expected
    assert one.status is TaskStatus.PENDING
    assert (two.reason, two.deployed_at) == ("quota exceeded", None)
    assert (three.outcome, three.cause, three.ended_at) == ("deploy_failed", "no such image", START)
    queued = harness.store.tasks.task_page(fence.run_id, [TaskStatus.QUEUED])
    assert [(t.index, t.offered_until) for t in queued] == [(2, None)]
    moves = [
        (t.task_id, t.from_status, t.to_status, t.source)
        for t in harness.store.runs.transitions(fence.run_id)[1:]
    ]
    assert moves == [
        (zero.task_id, "QUEUED", "PENDING", "deploy"),
        (one.task_id, "QUEUED", "PENDING", "deploy"),
        (three.task_id, "QUEUED", "FAILED", "deploy"),
    ]
    assert harness.store.deployment.record_deployed(*answered) == counts
    assert len(harness.store.runs.transitions(fence.run_id)) == 4


@pytest.mark.parametrize(("seconds", "left"), [(5, UNTIL), (26, None)])
def test_what_is_put_off_counts_as_offered_while_an_earlier_call_may_bring_it(
    harness: Harness, seconds: int, left: datetime | None
) -> None:
    fence = harness.run(tasks=2)
    harness.store.deployment.offer_tasks(fence, 1, None, UNTIL)
    harness.clock.forward(seconds)
    later = harness.clock.now + timedelta(seconds=25)
    offered, _ = harness.store.deployment.offer_tasks(fence, 2, None, later)
    answers = [DeployedTask(n, "deferred", reason="quota exceeded") for n in (0, 1)]
    for _ in range(2):
        harness.store.deployment.record_deployed(
            fence, "kubernetes", offered, answers, harness.clock.now, later
        )
        queued = harness.store.tasks.task_page(fence.run_id, [TaskStatus.QUEUED])
        assert [t.offered_until for t in queued] == [left, None]
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s1")
    assert harness.store.stops.cancel_queued(fence, harness.clock.now).queued == (
        0 if left is None else 1
    )


def test_a_late_answer_moves_nothing_backwards(harness: Harness) -> None:
    fence = harness.run()
    offered, _ = harness.store.deployment.offer_tasks(fence, 1, None, UNTIL)
    harness.begin(fence)
    harness.store.deployment.record_deployed(
        fence, "local", offered, [DeployedTask(0, "refused", reason="late")], START
    )
    assert harness.statuses(fence) == {0: TaskStatus.RUNNING}


@pytest.mark.parametrize("state", ["created", "existing", "deferred", "refused"])
def test_a_late_answer_about_a_try_that_ended_does_not_apply_to_the_next_try(
    harness: Harness, state: str
) -> None:
    """On a busy machine, a poll records start and end of a task before the deployment call is
    answered.
    """
    fence = harness.run()
    offered, _ = harness.store.deployment.offer_tasks(fence, 1, None, UNTIL)
    [task] = harness.store.polls.found_state(fence).tasks
    now = harness.clock.now
    uid = f"crawl-{fence.run_id}-0-1"
    harness.poll(fence, [seen(task, Phase.ENDED, now, uid=uid, end=bad_end(now))])
    harness.store.retries.retry_ended(fence, lambda end, used: NextTry(0.0), 3)
    before = harness.store.tasks.list_tasks(fence.run_id)
    assert [(t.attempt, t.status) for t in before] == [(2, TaskStatus.QUEUED)]
    late = [DeployedTask(0, state, "crawl-0-1", uid, "quota exceeded")]
    harness.store.deployment.record_deployed(fence, "local", offered, late, now, UNTIL)
    assert harness.store.tasks.list_tasks(fence.run_id) == before
    again, _ = harness.store.deployment.offer_tasks(fence, 1, None, UNTIL)
    assert [(t.index, t.attempt) for t in again] == [(0, 2)]


def test_refusal_of_all(harness: Harness) -> None:
    fence = harness.run(tasks=3)
    harness.deploy(fence, limit=1)
    for _ in range(2):
        assert harness.store.deployment.refuse_queued(fence, "unknown crawler").by_status == {
            "PENDING": 1,
            "FAILED": 2,
        }
    assert harness.store.tasks.list_tasks(fence.run_id)[2].cause == "unknown crawler"


def test_a_refusal_spares_what_an_earlier_call_may_have_brought(harness: Harness) -> None:
    fence = harness.run(tasks=3)
    first, _ = harness.store.deployment.offer_tasks(fence, 2, None, UNTIL)
    assert [task.offered_until for task in first] == [None, None]
    harness.clock.forward(5)
    later = UNTIL + timedelta(seconds=5)
    offered, _ = harness.store.deployment.offer_tasks(fence, 3, None, later)
    assert [task.offered_until for task in offered] == [UNTIL, UNTIL, None]
    for _ in range(2):
        counts = harness.store.deployment.refuse_queued(fence, "unknown crawler", offered, later)
        assert counts.by_status == {"QUEUED": 2, "FAILED": 1}
    assert [
        t.offered_until for t in harness.store.tasks.task_page(fence.run_id, [TaskStatus.QUEUED])
    ] == [UNTIL, UNTIL]
    # A poll before the end of the earlier call proves nothing; one after it does.
    for seconds, left in ((10, 2), (20, 0)):
        harness.clock.forward(seconds)
        queued = [
            t for t in harness.store.polls.found_state(fence).tasks if t.status is TaskStatus.QUEUED
        ]
        now = harness.clock.now
        harness.poll(fence, [seen(task, Phase.ABSENT, now) for task in queued])
        assert harness.store.deployment.refuse_queued(fence, "unknown crawler").queued == left
    assert [t.outcome for t in harness.store.tasks.list_tasks(fence.run_id)] == [
        "deploy_failed"
    ] * 3


def test_a_refusal_spares_what_was_offered_again_since(harness: Harness) -> None:
    fence = harness.run(tasks=1)
    offered, _ = harness.store.deployment.offer_tasks(fence, 1, None, UNTIL)
    later = UNTIL + timedelta(seconds=5)
    harness.store.deployment.offer_tasks(fence, 1, None, later)
    assert (
        harness.store.deployment.refuse_queued(fence, "unknown crawler", offered, UNTIL).queued == 1
    )
    [task] = harness.store.tasks.task_page(fence.run_id, [TaskStatus.QUEUED])
    assert task.offered_until == later


def test_a_refusal_of_the_only_call_is_final(harness: Harness) -> None:
    fence = harness.run(tasks=2)
    offered, _ = harness.store.deployment.offer_tasks(fence, 2, None, UNTIL)
    assert harness.store.deployment.refuse_queued(
        fence, "unknown crawler", offered, UNTIL
    ).by_status == {"FAILED": 2}


def test_waiting_start_and_stages(harness: Harness) -> None:
    fence = harness.deployed()
    for _ in range(2):
        harness.store.deployment.note_waiting(fence, "no node has 64Gi")
    assert (harness.row(fence).waiting_for, harness.row(fence).stage) == (
        "no node has 64Gi",
        "deployment",
    )
    harness.clock.forward(3)
    for _ in range(2):
        assert harness.store.deployment.mark_started(fence, START) is RunStatus.PROCESSING
    row = harness.row(fence)
    assert (row.started_at, row.waiting_for) == (START, None)
    [started] = [
        t for t in harness.store.runs.transitions(fence.run_id) if t.to_status == "PROCESSING"
    ]
    assert (started.cluster_time, started.lag_ms) == (START, 3000)
    assert row.stage == "reconciliation"
    harness.store.deployment.offer_tasks(fence, 10, None, START)
    assert harness.row(fence).stage == "reconciliation", (
        "a late try of an earlier step takes nothing back"
    )


def test_a_stop_is_not_undone_by_the_start(harness: Harness) -> None:
    fence = harness.deployed()
    harness.store.stops.record_stop(fence.run_id, harness.stop(), "s1")
    assert harness.store.deployment.mark_started(fence, START) is RunStatus.STOPPING
    assert harness.row(fence).started_at == START


# --- polls ----------------------------------------------------------------------------------------


def test_a_poll_from_finding_to_status(harness: Harness) -> None:
    fence = harness.deployed()
    [task] = harness.store.polls.found_state(fence).tasks
    assert (task.uid, task.ever_seen, task.since) == ("uid-1-0", False, START)
    harness.clock.forward(60)
    ended = START + timedelta(seconds=20)
    started = START + timedelta(seconds=5)
    observation = seen(
        task, Phase.ENDED, harness.clock.now, uid="uid-1-0", node="node-7", started_at=started, peak_memory=123,
        counters=Counters(7, 3, 1, 900), end=good_end(ended),
    )  # fmt: skip
    for _ in range(2):
        report = harness.stage(fence, [observation])
        assert (report.changed, report.active, report.queued) == (1, 1, 0)
        assert (report.pages, report.items, report.errors, report.quiet) == (7, 3, 1, timedelta(0))
    assert [f.change.after for f in harness.store.polls.staged(fence)] == [TaskStatus.SUCCEEDED]
    assert harness.statuses(fence) == {0: TaskStatus.PENDING}
    for _ in range(2):
        harness.store.polls.save_details(
            fence, [Details(task.task_id, "the log", Counters(8, 3, 1, 900), 456)]
        )
        assert harness.store.polls.apply_details(fence) == 1
    for _ in range(2):
        assert harness.store.polls.apply_findings(fence, "look").by_status == {"SUCCEEDED": 1}
    [row] = harness.store.tasks.list_tasks(fence.run_id)
    assert (row.status, row.outcome, row.cause) == (
        TaskStatus.SUCCEEDED,
        "finished",
        "The crawler finished, exit 0",
    )
    assert (row.exit_code, row.exit_signal, row.node, row.peak_memory, row.pages) == (
        0,
        None,
        "node-7",
        456,
        8,
    )
    assert (row.started_at, row.ended_at) == (started, ended)
    assert harness.store.tasks.log_tail(task.task_id) == "the log"
    assert harness.store.polls.staged(fence) == []
    [moved] = [
        t for t in harness.store.runs.transitions(fence.run_id) if t.to_status == "SUCCEEDED"
    ]
    assert (moved.cluster_time, moved.committed_at, moved.lag_ms) == (
        ended,
        harness.clock.now,
        40_000,
    )
    assert (moved.task_id, moved.from_status, moved.source) == (task.task_id, "PENDING", "look")
    assert moved.evidence["phase"] == "ended"
    assert moved.evidence["node"] == "node-7"
    assert harness.store.corrections.list_corrections(fence.run_id) == []


def test_a_quiet_poll_renews_the_proof(harness: Harness) -> None:
    fence = harness.executing(tasks=2)
    harness.store.polls.record_poll_error(fence, "503")
    harness.store.polls.record_poll_error(fence, "503")
    assert harness.row(fence).look_error == "503"
    before = harness.store.runs.transitions(fence.run_id)
    later = harness.clock.forward(60)
    tasks = harness.store.polls.found_state(fence).tasks
    report = harness.poll(fence, [seen(t, Phase.EXECUTING, later, uid=t.uid) for t in tasks])
    assert (report.changed, report.active) == (0, 2)
    row = harness.row(fence)
    assert (row.verified_at, row.next_look_at, row.look_error) == (
        later,
        later + timedelta(minutes=1),
        None,
    )
    assert (row.pages, row.last_progress_at) == (None, None)
    assert harness.store.runs.transitions(fence.run_id) == before


def test_counters_and_progress(harness: Harness) -> None:
    fence = harness.executing(tasks=2)
    zero, one = harness.store.polls.found_state(fence).tasks

    def poll(*counters: Counters) -> tuple[int | None, bool]:
        now = harness.clock.forward(60)
        pairs = zip((zero, one), counters, strict=False)
        report = harness.stage(
            fence, [seen(t, Phase.EXECUTING, now, uid=t.uid, counters=c) for t, c in pairs]
        )
        return report.pages, harness.row(fence).last_progress_at == now

    assert poll(Counters(), Counters()) == (None, False)
    assert poll(Counters(pages=0), Counters()) == (0, False)
    assert poll(Counters(pages=2), Counters()) == (2, True)
    assert poll(Counters(pages=2), Counters(pages=5)) == (7, True)
    assert poll(Counters(), Counters(pages=5)) == (7, False)
    assert poll(Counters(pages=2, bytes=10), Counters(pages=5)) == (7, True)
    state = harness.store.polls.found_state(fence)
    assert state.counters == Counters(7, None, None, 10)
    assert [t.counters.pages for t in state.tasks] == [2, 5]
    assert all(t.ever_seen for t in state.tasks)


def test_reasons_while_it_waits(harness: Harness) -> None:
    fence = harness.deployed()
    [task] = harness.store.polls.found_state(fence).tasks
    harness.poll(
        fence, [seen(task, Phase.WAITING, START, uid=task.uid, reason="image is pulled", node="n1")]
    )
    [row] = harness.store.tasks.list_tasks(fence.run_id)
    assert (row.reason, row.node, row.status) == ("image is pulled", "n1", TaskStatus.PENDING)
    harness.execute(fence)
    [row] = harness.store.tasks.list_tasks(fence.run_id)
    assert (row.reason, row.status, row.started_at) == (None, TaskStatus.RUNNING, START)


def test_another_object_under_the_name_says_nothing_about_ours(harness: Harness) -> None:
    fence = harness.deployed()
    [task] = harness.store.polls.found_state(fence).tasks
    harness.poll(
        fence, [seen(task, Phase.EXECUTING, START, uid="foreign", node="n9", counters=Counters(99))]
    )
    [row] = harness.store.tasks.list_tasks(fence.run_id)
    assert (row.status, row.outcome, row.cluster_uid, row.node) == (
        TaskStatus.LOST,
        "lost",
        task.uid,
        None,
    )
    assert row.pages is None
    [found] = harness.store.corrections.list_corrections()
    assert (found.kind, found.believed, found.truth) == ("not_ours", "PENDING", "LOST")


def test_a_newer_poll_takes_back_what_an_older_one_staged(harness: Harness) -> None:
    fence = harness.deployed()
    [task] = harness.store.polls.found_state(fence).tasks
    assert harness.stage(fence, [seen(task, Phase.GONE, START)]).changed == 1
    assert harness.stage(fence, [seen(task, Phase.WAITING, START, uid=task.uid)]).changed == 0
    harness.store.polls.apply_findings(fence, "look")
    assert harness.statuses(fence) == {0: TaskStatus.PENDING}


def test_a_correction_tells_what_was_believed(harness: Harness) -> None:
    fence = harness.executing()
    [task] = harness.store.polls.found_state(fence).tasks
    harness.clock.forward(60)
    killed = START + timedelta(seconds=10)
    end = End(exit_code=137, signal=9, finished_at=killed)
    harness.poll(
        fence, [seen(task, Phase.ENDED, harness.clock.now, uid=task.uid, end=end)], source="wake"
    )
    [found] = harness.store.corrections.list_corrections(fence.run_id)
    assert (found.kind, found.believed, found.truth, found.found_by) == (
        "killed",
        "RUNNING",
        "FAILED",
        "wake",
    )
    assert (found.believed_since, found.truth_since, found.lag_ms) == (START, killed, 50_000)
    assert (found.task_id, found.created_at) == (task.task_id, harness.clock.now)
    assert harness.store.corrections.list_corrections(after_id=found.id) == []
    assert harness.store.tasks.list_tasks(fence.run_id)[0].exit_signal == 9


def test_an_end_never_changes(harness: Harness) -> None:
    fence = harness.executing()
    [task] = harness.store.polls.found_state(fence).tasks
    harness.poll(fence, [seen(task, Phase.ENDED, START, uid=task.uid, end=bad_end(START))])
    before = (
        harness.store.tasks.list_tasks(fence.run_id),
        harness.store.runs.transitions(fence.run_id),
    )
    observation = seen(task, Phase.ENDED, START, end=good_end(START))
    for believed, after in product((TaskStatus.RUNNING, TaskStatus.FAILED), TaskStatus):
        finding = TaskFinding(
            Change(task.task_id, believed, after, START, "x", "y", "late"), observation
        )
        harness.store.polls.record_poll(fence, Poll(START, 0.1, [observation]), [finding], None)
        harness.store.polls.apply_findings(fence, "look")
    assert (
        harness.store.tasks.list_tasks(fence.run_id),
        harness.store.runs.transitions(fence.run_id),
    ) == before
    assert harness.store.corrections.list_corrections() == []


def test_a_finding_about_a_task_whose_deployment_was_not_answered(harness: Harness) -> None:
    fence = harness.run()
    harness.store.deployment.offer_tasks(fence, 1, None, UNTIL)
    [task] = harness.store.polls.found_state(fence).tasks
    assert task.offered_until == UNTIL
    harness.poll(fence, [seen(task, Phase.EXECUTING, START, uid="u", name="n", started_at=START)])
    [row] = harness.store.tasks.list_tasks(fence.run_id)
    assert (row.status, row.cluster_uid, row.cluster_name, row.deployed_at) == (
        TaskStatus.RUNNING,
        "u",
        "n",
        START,
    )
    assert harness.store.polls.found_state(fence).tasks[0].offered_until is None


def test_logs_are_cut_from_the_front_at_a_character(harness: Harness) -> None:
    fence = harness.deployed(tasks=2)
    zero, one = harness.store.polls.found_state(fence).tasks
    text = "old" + "ü" * LOG_TAIL_BYTES + "end\udc80\x00"
    harness.store.polls.save_details(fence, [Details(zero.task_id, text), Details(one.task_id)])
    assert harness.store.polls.apply_details(fence) == 2
    kept = harness.store.tasks.log_tail(zero.task_id)
    assert kept.endswith("üend?\x00")
    assert LOG_TAIL_BYTES - 1 <= len(kept.encode()) <= LOG_TAIL_BYTES
    assert harness.store.tasks.log_tail(one.task_id) is None


def test_a_log_takes_little_and_is_read_as_an_older_build_wrote_it(harness: Harness) -> None:
    fence = harness.deployed(tasks=2)
    zero, one = (task.task_id for task in harness.store.polls.found_state(fence).tasks)
    text = "".join(
        f"2026-03-01 [scrapy.core.engine] DEBUG: Crawled (200) <GET http://a/{n}> ü\n"
        for n in range(210)
    )
    for _ in range(2):
        harness.store.polls.save_details(fence, [Details(zero, text), Details(one, "x")])
        harness.store.polls.apply_details(fence)
    assert [harness.store.tasks.log_tail(task) for task in (zero, one)] == [text, "x"]
    with harness.store.database.writing() as conn:
        [(left, kept)] = conn.execute(
            sa.text(f"SELECT log_tail, compressed FROM task_log WHERE task_id = {zero}")
        )
        assert (left, len(kept) < len(text) / 5) == ("", True)
        if conn.dialect.name == "mysql":
            asked = f"SELECT CONVERT(UNCOMPRESS(compressed) USING utf8mb4) FROM task_log WHERE task_id = {zero}"
            assert conn.execute(sa.text(asked)).scalar_one() == text
        conn.execute(
            sa.text(
                f"UPDATE task_log SET log_tail = 'older', compressed = NULL WHERE task_id = {zero}"
            )
        )
    assert harness.store.tasks.log_tail(zero) == "older"
    bomb = compressed("x" * (TEXT_MAX + 1))
    for written in (b"of somebody", b"some", compressed(text)[:-9], bomb):
        with harness.store.database.writing() as conn:
            change = sa.text(f"UPDATE task_log SET compressed = :written WHERE task_id = {one}")
            conn.execute(change, {"written": written})
        with pytest.raises(
            RowUnreadable, match=f"^task_log task_id {one}: compressed is .*; set it to NULL"
        ):
            harness.store.tasks.log_tail(one)


def test_statistics_of_tasks_are_summed_over_the_run(harness: Harness) -> None:
    fence = harness.executing(tasks=3)
    first, second, _ = harness.store.polls.found_state(fence).tasks
    tasks, save, told = (
        harness.store.tasks,
        harness.store.polls.save_details,
        harness.store.tasks.statistics,
    )
    assert told(fence.run_id) == {}
    save(fence, [Details(first.task_id, "log", statistics={"a": 1, "b": 0.5})])
    save(fence, [Details(first.task_id, "longer log")])  # its node has removed the line since
    save(fence, [Details(second.task_id, statistics={"a": 2**63 - 1, "c": -3})])
    assert told(fence.run_id) == {}, "staged"
    for _ in range(2):
        harness.store.polls.apply_details(fence)
        assert told(fence.run_id) == {"b": 0.5, "c": -3}, (
            "what is too large for a number of ours is none"
        )
    save(fence, [Details(second.task_id, statistics={"a": 4})])
    harness.store.polls.apply_details(fence)
    assert told(fence.run_id) == {"a": 5, "b": 0.5}
    assert type(told(fence.run_id)["a"]) is int
    assert tasks.log_tail(first.task_id) == "longer log"
    harness.finish(fence, failed=[0])
    again = harness.resume(fence)
    assert told(again.run_id) == {"a": 4}, "of a task that runs again its next end tells"
    assert told(fence.run_id + 1) == {}


def test_statistics_of_many_tasks_stay_within_their_bounds(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawler_lifecycle.store.runs.tasks.CHUNK", 3)
    fence = harness.executing(tasks=10)
    pages = [
        Details(
            task.task_id, statistics={"all": 1, **{f"{task.index}/{n:0100}": n for n in range(60)}}
        )
        for task in harness.store.polls.found_state(fence).tasks
    ]
    harness.store.polls.save_details(fence, pages)
    harness.store.polls.apply_details(fence)
    found = harness.store.tasks.statistics(fence.run_id)
    assert found["all"] == 10
    assert len(json.dumps(found)) <= STATISTICS_MAX


def test_details_wait_for_findings_and_the_other_way_round(harness: Harness) -> None:
    fence = harness.deployed()
    [task] = harness.store.polls.found_state(fence).tasks
    harness.store.polls.save_details(fence, [Details(task.task_id, "log")])
    assert harness.store.polls.staged(fence) == []
    harness.stage(fence, [seen(task, Phase.ENDED, START, uid=task.uid, end=bad_end(START))])
    harness.store.polls.save_details(fence, [Details(task.task_id, "longer log")])
    # A node removes the log with its container; what was saved before the stop is all there will
    # ever be.
    harness.store.polls.save_details(fence, [Details(task.task_id, None, peak_memory=7)])
    assert len(harness.store.polls.staged(fence)) == 1
    assert harness.store.polls.apply_details(fence) == 1
    assert harness.store.tasks.log_tail(task.task_id) == "longer log"
    assert harness.store.polls.apply_findings(fence, "look").by_status == {"FAILED": 1}


def test_staged_findings_come_in_pages(harness: Harness) -> None:
    fence = harness.deployed(tasks=5)
    tasks = harness.store.polls.found_state(fence).tasks
    harness.stage(fence, [seen(t, Phase.EXECUTING, START, uid=t.uid) for t in tasks])
    assert [f.observation.index for f in harness.store.polls.staged(fence, limit=2)] == [0, 1]
    assert [f.observation.index for f in harness.store.polls.staged(fence, after_index=1)] == [
        2,
        3,
        4,
    ]


def test_texts_longer_than_their_columns_lose_no_status(harness: Harness) -> None:
    fence = harness.deployed()
    [task] = harness.store.polls.found_state(fence).tasks
    end = End(
        exit_code=1,
        reason="R" * 9000,
        message="M\ud800" * 9000,
        finish_reason="F" * 9000,
        finished_at=START,
    )
    harness.poll(fence, [seen(task, Phase.ENDED, START, uid=task.uid, node="n" * 999, end=end)])
    [row] = harness.store.tasks.list_tasks(fence.run_id)
    assert row.status is TaskStatus.FAILED
    assert row.outcome == "F" * 199 + "…"
    assert row.node == "n" * 254 + "…"


def test_pages_of_tasks(harness: Harness) -> None:
    fence = harness.run(tasks=5)
    harness.deploy(fence, limit=3)
    page = harness.store.tasks.task_page(
        fence.run_id, [TaskStatus.PENDING, TaskStatus.QUEUED], after_index=1, limit=2
    )
    assert [(t.index, t.status) for t in page] == [(2, TaskStatus.PENDING), (3, TaskStatus.QUEUED)]
    rows = harness.store.tasks.list_tasks(fence.run_id, limit=2)
    assert [
        t.task_index
        for t in harness.store.tasks.list_tasks(fence.run_id, after_task_id=rows[-1].task_id)
    ] == [
        2,
        3,
        4,
    ]


def test_lists_count_the_tasks_of_many_runs_at_once(harness: Harness) -> None:
    waits, plain = harness.run("waits", tasks=3), harness.run("plain")
    harness.deploy(waits, limit=2)
    now = harness.clock.forward(5)
    tasks = harness.store.polls.found_state(waits).tasks
    reasons = ["waiting: 4 of 4 slots in use", None]
    harness.poll(
        waits,
        [
            seen(task, Phase.WAITING, now, uid=task.uid, reason=why)
            for task, why in zip(tasks[:2], reasons, strict=True)
        ],
    )
    found = harness.store.tasks.tasks_of_runs([waits.run_id, plain.run_id, 10**9])
    for fence in (waits, plain):
        assert found[fence.run_id].counts == harness.store.tasks.count_tasks(fence.run_id)
    assert found[waits.run_id].counts.positive() == {"PENDING": 2, "QUEUED": 1}
    assert (found[waits.run_id].reason, found[plain.run_id].reason) == (reasons[0], None)
    assert harness.store.tasks.tasks_of_runs([]) == {}
    with pytest.raises(ValueError, match="at most 2000"):
        harness.store.tasks.tasks_of_runs(range(2001))


def test_some_tasks_are_read_by_their_ids(harness: Harness) -> None:
    fence = harness.run(tasks=5)
    rows = harness.store.tasks.list_tasks(fence.run_id)
    ids = [rows[1].task_id, rows[4].task_id]
    assert harness.store.tasks.list_tasks(fence.run_id, among=[*ids, 10**9]) == [rows[1], rows[4]]
    assert harness.store.tasks.list_tasks(fence.run_id, among=[]) == []
    assert harness.store.tasks.list_tasks(fence.run_id + 1, among=ids) == []
    with pytest.raises(ValueError, match="at most 2000"):
        harness.store.tasks.list_tasks(fence.run_id, among=range(2001))


def test_tasks_have_their_indexes(harness: Harness) -> None:
    run = harness.run(tasks=3)
    rows = harness.store.tasks.list_tasks(run.run_id)
    found = harness.store.tasks.task_indexes([*(row.task_id for row in rows), 10**9])
    assert found == {row.task_id: row.task_index for row in rows}
    assert len(found) > 1
    assert harness.store.tasks.task_indexes([]) == {}
    with pytest.raises(ValueError, match="at most 2000"):
        harness.store.tasks.task_indexes(range(2001))
