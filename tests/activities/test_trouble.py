"""When a dependency refuses, hangs or is unavailable, activities record the reason and nothing
else.
"""

from __future__ import annotations

import dataclasses
import threading
from datetime import timedelta
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.testing import ActivityEnvironment

from crawler_lifecycle.activities.deployment import Deploy, MainJob, Requeue
from crawler_lifecycle.activities.initiation import AddWorkflowId
from crawler_lifecycle.activities.reconciliation import Sync
from crawler_lifecycle.activities.shared import alive, beating
from crawler_lifecycle.domain.errors import (
    AlreadyCompleted,
    ClusterUnavailable,
    DuplicateRequest,
    InvalidRequest,
    NotDelivered,
    NothingDeployed,
    NotInThisState,
    RunIsLive,
    RunNotFound,
    SchedulerUnavailable,
)
from crawler_lifecycle.domain.names import PROPERTY_WORKFLOW_ID, archive_key
from crawler_lifecycle.features.schedules.domain.decision import Decision
from crawler_lifecycle.features.schedules.domain.definition import ScheduleSpec
from crawler_lifecycle.features.schedules.ports import DueOrder
from crawler_lifecycle.ports.files import FileSource
from crawler_lifecycle.ports.runs import Fence
from tests.activities.cases import UNTIL_STOPPED
from tests.activities.due_cases import GRAPH, MANAGER
from tests.activities.harness import CRAWLERS, OTHER, OWNER, START, Harness, differences
from tests.support.fakes.cluster import Behaviour
from tests.support.fakes.services import FakeCatalogue, FakeNotifier


def test_a_request_of_another_workflow_is_refused(harness: Harness) -> None:
    harness.created(2)
    before = harness.tables()
    with pytest.raises(DuplicateRequest):
        harness.call("create_history_id", harness.order(2, owner=OTHER))
    assert harness.tables() == before


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (
            {"settings": {"LOG_FILE": "/etc/cron.d/x", "LOG_FORMAT": "* * * * * root id"}},
            r"^settings\.LOG_FILE: ",
        ),
        (
            {"settings": {"EXTENSIONS": '{"os.system": 1}'}},
            r"^settings\.EXTENSIONS: .*allow_settings",
        ),
        (
            {"settings": {"DOWNLOAD_DELAY": "soon"}},
            r"^settings\.DOWNLOAD_DELAY: 'soon' is not allowed; give a number",
        ),
        ({"args": {"typo": "1"}}, r"^args\.typo: "),
    ],
)
def test_what_can_never_be_carried_out_is_refused_before_anything_is_recorded(
    harness: Harness, request_: dict[str, dict[str, str]], words: str
) -> None:
    before = harness.tables()
    with pytest.raises(InvalidRequest, match=words):
        harness.call("create_history_id", harness.order(**request_))
    assert harness.tables() == before


def test_a_repeat_finds_its_run_although_the_catalogue_allows_less_by_now(harness: Harness) -> None:
    crawler = harness.catalogue.crawlers["books"]
    harness.catalogue.crawlers["books"] = dataclasses.replace(crawler, allow_settings=["SHELF"])
    order = harness.order(settings={"SHELF": "b"})
    first = harness.call("create_history_id", order)
    harness.catalogue.crawlers["books"] = crawler
    assert harness.call("create_history_id", order) == first


def test_a_run_is_not_taken_from_an_open_workflow(harness: Harness) -> None:
    harness.started()
    harness.directory.open.add(OWNER)
    before = harness.tables()
    with pytest.raises(RunIsLive, match=OWNER.workflow_id):
        harness.resumed()
    assert harness.tables() == before


def test_a_completed_run_runs_again_only_on_demand(harness: Harness) -> None:
    harness.judged()
    before = harness.tables()
    with pytest.raises(AlreadyCompleted, match="rerun"):
        harness.resumed()
    with pytest.raises(RunNotFound):
        harness.resumed(run_id=77)
    assert harness.tables() == before


def test_a_property_belongs_to_its_attempt(harness: Harness) -> None:
    """A late registration by the previous attempt takes nothing from the current one."""
    harness.cluster.behaviour = UNTIL_STOPPED
    harness.started()
    fence = harness.resumed()
    harness.call("add_workflow_id", AddWorkflowId(1, fence.attempt, OTHER.workflow_id))
    harness.call("add_workflow_id", AddWorkflowId(1, 1, OWNER.workflow_id))
    kept = {(p["attempt"], p["name"]): p["value"] for p in harness.store.runs.properties(1)}
    assert [kept[attempt, PROPERTY_WORKFLOW_ID] for attempt in (1, 2)] == [
        OWNER.workflow_id,
        OTHER.workflow_id,
    ]


def test_a_lost_answer_of_the_scheduler_service_starts_nothing_twice(harness: Harness) -> None:
    fence = harness.created(2)
    harness.scheduler.lost_answers = 1
    with pytest.raises(SchedulerUnavailable):
        harness.call("run_onetime_crawler", Deploy(fence))
    assert harness.row().waiting_for == "scheduler service: the connection broke before the answer"
    harness.forward(5)
    harness.call("run_onetime_crawler", Deploy(fence))
    assert harness.statuses() == ["PENDING", "PENDING"]
    assert len(harness.cluster._tasks) == 2


def _refused_after_a_lost_answer(harness: Harness, *, heard: bool) -> Fence:
    """A deployment call gets no response, and the crawler is then removed from the catalogue. With
    ``heard``, the call took effect.
    """
    fence = harness.created(2, crawler="shops")
    if heard:
        harness.scheduler.lost_answers = 1
    else:
        harness.scheduler.faults.add(SchedulerUnavailable("no answer"))
    with pytest.raises(SchedulerUnavailable):
        harness.call("run_onetime_crawler", Deploy(fence))
    harness.scheduler.catalogue = FakeCatalogue(CRAWLERS[:1])
    harness.forward(5)
    return fence


def test_a_refusal_of_a_later_call_fails_no_task_that_an_earlier_one_brought(
    harness: Harness,
) -> None:
    harness.cluster.behaviour = UNTIL_STOPPED
    fence = _refused_after_a_lost_answer(harness, heard=True)
    report = harness.call("run_onetime_crawler", Deploy(fence))
    assert harness.statuses() == ["RUNNING", "RUNNING"]
    assert (report.counts.active, report.counts.queued) == (2, 0)
    assert "'shops' is unknown" in report.refused


def test_a_refusal_of_a_later_call_is_final_when_the_earlier_one_is_void_and_brought_nothing(
    harness: Harness,
) -> None:
    fence = _refused_after_a_lost_answer(harness, heard=False)
    for _ in range(6):  # 25 s, and ten for different clocks
        with pytest.raises(NothingDeployed, match="'shops' is unknown"):
            harness.call("run_onetime_crawler", Deploy(fence))
        assert harness.statuses() == ["QUEUED", "QUEUED"]
        assert "earlier deployment call" in (harness.row().waiting_for or "")
        harness.forward(5)
    harness.forward(1)
    report = harness.call("run_onetime_crawler", Deploy(fence))
    assert harness.statuses() == ["FAILED", "FAILED"]
    assert (report.counts.alive, harness.tasks()[0].outcome) == (0, "deploy_failed")


def test_a_refused_call_is_no_reason_to_cancel_what_an_earlier_one_may_bring(
    harness: Harness,
) -> None:
    fence = _refused_after_a_lost_answer(harness, heard=False)
    with pytest.raises(NothingDeployed):
        harness.call("run_onetime_crawler", Deploy(fence))
    harness.call("record_stop", harness.stop(fence))
    assert harness.call("cancel_queued_tasks", fence).queued == 2


def test_a_refusal_of_a_later_wave_keeps_the_plan_of_polls_and_the_others(harness: Harness) -> None:
    harness.cluster.behaviour = UNTIL_STOPPED
    fence = harness.started(3, max_parallel=2, crawler="shops")
    # By a worker that then died.
    harness.store.deployment.offer_tasks(fence, 10, None, harness.now + timedelta(seconds=25))
    harness.scheduler.catalogue = FakeCatalogue(CRAWLERS[:1])
    planned = harness.row().next_look_at
    assert planned is not None
    harness.forward(5)
    report = harness.call("deploy_queued_tasks", Deploy(fence))
    assert (report.deferred, report.counts.queued, harness.statuses()) == (
        1,
        1,
        ["RUNNING", "RUNNING", "QUEUED"],
    )
    assert harness.row().next_look_at == planned
    harness.forward(30)
    assert harness.call("deploy_queued_tasks", Deploy(fence)).deferred == 0
    assert harness.statuses() == ["RUNNING", "RUNNING", "FAILED"]


def test_a_cluster_that_does_not_answer_about_a_refused_call_fails_no_task(
    harness: Harness,
) -> None:
    fence = _refused_after_a_lost_answer(harness, heard=False)
    harness.forward(60)
    harness.cluster.fail_with(ClusterUnavailable("no answer of the cluster"), "poll")
    with pytest.raises(ClusterUnavailable):
        harness.call("run_onetime_crawler", Deploy(fence))
    assert harness.statuses() == ["QUEUED", "QUEUED"]
    assert (harness.row().waiting_for or "").startswith("cluster: ")


def test_a_cluster_without_room_is_asked_again(harness: Harness) -> None:
    fence = harness.created(2)
    harness.cluster.behaviour = Behaviour(deployed="deferred", deploy_reason="quota exceeded")
    with pytest.raises(NothingDeployed, match="quota exceeded"):
        harness.call("run_onetime_crawler", Deploy(fence))
    assert (harness.row().waiting_for, harness.statuses()) == (
        "quota exceeded",
        ["QUEUED", "QUEUED"],
    )
    assert [t.reason for t in harness.tasks()] == ["quota exceeded"] * 2


@pytest.mark.parametrize("recorded", ["before", "after the offer"])
def test_nothing_is_deployed_under_a_stop(harness: Harness, recorded: str) -> None:
    fence = harness.created(2)
    if recorded == "after the offer":
        harness.scheduler.faults.add(SchedulerUnavailable("away"))
        with pytest.raises(SchedulerUnavailable):
            harness.call("run_onetime_crawler", Deploy(fence))
    harness.call("record_stop", harness.stop(fence))
    report = harness.call("run_onetime_crawler", Deploy(fence))
    assert (report.offered, harness.cluster._tasks) == (0, {})


def test_a_task_whose_deployment_may_be_on_its_way_is_not_cancelled_yet(harness: Harness) -> None:
    fence = harness.created()
    harness.scheduler.faults.add(SchedulerUnavailable("no answer"))
    with pytest.raises(SchedulerUnavailable):
        harness.call("run_onetime_crawler", Deploy(fence))
    harness.call("record_stop", harness.stop(fence))
    assert harness.call("cancel_queued_tasks", fence).queued == 1
    harness.forward(26)
    harness.call("get_history_statuses_to_sync", harness.poll(fence))
    assert harness.call("cancel_queued_tasks", fence).queued == 1, (
        "void by our clock; the scheduler service has its own"
    )
    harness.forward(10)
    assert harness.call("cancel_queued_tasks", fence).queued == 1, (
        "the call is void, but what it made may be there"
    )
    harness.call("get_history_statuses_to_sync", harness.poll(fence))
    assert harness.call("cancel_queued_tasks", fence).alive == 0


@pytest.mark.parametrize("tries", [1, 10, 20])
def test_the_main_task_waits_and_says_why(harness: Harness, tries: int) -> None:
    """Ten tries take 6 s each, then the pauses grow, and no alert is sent."""
    harness.cluster.behaviour = Behaviour(waits=1e6, wait_reason="waiting: 4 of 4 slots in use")
    fence = harness.deployed()
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, attempt=tries)
    with pytest.raises(ApplicationError) as caught:
        environment.run(harness.activities()["get_main_job_status"], MainJob(fence, 6))
    error = caught.value
    assert (error.type, error.category) == ("NotStarted", ApplicationErrorCategory.BENIGN)
    assert error.next_retry_delay is not None
    assert 6 <= error.next_retry_delay.total_seconds() <= 60
    assert (error.next_retry_delay.total_seconds() == 6) is (tries <= 10)
    assert harness.row().waiting_for == "waiting: 4 of 4 slots in use"


def test_a_main_task_that_ended_before_it_was_polled_at_has_started(harness: Harness) -> None:
    harness.cluster.behaviour = Behaviour(executes=1)
    fence = harness.deployed()
    harness.forward(6)
    report = harness.call("get_main_job_status", MainJob(fence, 6))
    assert report.ended
    assert harness.statuses() == ["PENDING"], "its end is for a poll that fetches the evidence"


@pytest.mark.parametrize("activity", ["get_main_job_status", "get_history_statuses_to_sync"])
def test_a_cluster_that_is_away_is_no_observation(harness: Harness, activity: str) -> None:
    fence = harness.deployed(2)
    harness.cluster.fail_with(ClusterUnavailable("the API server answered 503"))
    before = harness.tables()
    main = activity == "get_main_job_status"
    with pytest.raises(ApplicationError if main else ClusterUnavailable, match="503"):
        harness.call(activity, MainJob(fence, 6) if main else harness.poll(fence))
    told = (
        {"run_history.waiting_for"}
        if main
        else {"run_history.look_error", "run_history.look_error_since"}
    )
    assert differences(before, harness.tables()) - {"run_history.updated_at"} == told


def test_details_that_cannot_be_read_hold_nothing_up(harness: Harness) -> None:
    """The fact that a task ended matters more than its log."""
    fence = harness.started()
    harness.forward(30)
    harness.call("get_history_statuses_to_sync", harness.poll(fence))
    harness.cluster.vanish(1)
    assert harness.call("get_bulk_task_history_data", fence) == 0
    assert harness.call("reconcile_tasks", fence) == 1
    assert harness.tasks()[0].exit_code == 0


def test_only_logs_of_ended_tasks_are_read(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of tasks may start between two polls, and each log needs a call to the cluster."""
    harness.cluster.behaviour = lambda run, index, attempt: Behaviour(
        executes=20 if index == 0 else None
    )
    fence, asked = harness.deployed(3), list[int]()
    details = harness.cluster.details

    def noted(run: Any, tasks: Any) -> Any:
        asked.extend(one.index for one in tasks)
        return details(run, tasks)

    monkeypatch.setattr(harness.cluster, "details", noted)
    for seconds, began in ((1, 3), (30, 1)):
        harness.forward(seconds)
        assert harness.call("get_history_statuses_to_sync", harness.poll(fence)).changed == began
        harness.call("get_bulk_task_history_data", fence)
        harness.call("sync_statuses", Sync(fence))
    assert asked == [0]


def test_a_run_with_living_tasks_gets_no_verdict(harness: Harness) -> None:
    fence = harness.started()
    before = harness.tables()
    with pytest.raises(NotInThisState):
        harness.call("update_run_status", fence)
    assert harness.tables() == before


@pytest.mark.parametrize(
    ("activity", "sender"),
    [
        ("signal_pusher_started", "notifier"),
        ("signal_pusher_stopped", "notifier"),
        ("initiate_export_signal", "sink"),
    ],
)
def test_what_could_not_be_delivered_is_kept_with_every_try(
    harness: Harness, activity: str, sender: str
) -> None:
    fence = harness.ended()
    if activity == "signal_pusher_stopped":
        harness.call("record_stop", harness.stop(fence))
    harness.call("update_run_status", fence)
    getattr(harness, sender).faults.add(NotDelivered("connection refused"), times=2)
    for tries in (1, 2):
        with pytest.raises(NotDelivered):
            harness.call(activity, fence)
        (delivery,) = harness.tables()["outbox_delivery"]
        assert (delivery["status"], delivery["tries"], delivery["error"]) == (
            "failed",
            tries,
            "connection refused",
        )
    harness.call(activity, fence)
    (delivery,) = harness.tables()["outbox_delivery"]
    assert (delivery["status"], delivery["tries"], delivery["error"]) == ("delivered", 3, None)
    assert len({e.seq for e in harness.notifier.pushed + harness.sink.sent}) == 1


@pytest.mark.parametrize("fails", ["first", "second"])
@pytest.mark.parametrize("again", ["signal_pusher_started", "resend_pushes"])
def test_of_two_notifiers_only_the_one_that_failed_is_tried_again(
    harness: Harness, fails: str, again: str
) -> None:
    fence = harness.judged()
    one, other = harness.notifier, FakeNotifier("second")
    harness.more_notifiers.append(other)
    failing, well = (one, other) if fails == "first" else (other, one)
    failing.faults.add(NotDelivered("connection refused"))

    def records() -> dict[str, tuple[object, ...]]:
        rows = harness.tables()["outbox_delivery"]
        return {row["sink"]: (row["status"], row["tries"], row["error"]) for row in rows}

    with pytest.raises(NotDelivered, match="connection refused"):
        harness.call("signal_pusher_started", fence)
    delivered = ("delivered", 1, None)
    assert records() == {well.name: delivered, failing.name: ("failed", 1, "connection refused")}
    for _ in range(2):
        harness.call(again, fence)
        assert records() == {well.name: delivered, failing.name: ("delivered", 2, None)}
    assert (len(one.pushed), len(other.pushed)) == (1, 1)


def test_two_notifiers_push_at_the_same_time(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three tries of both then take as long as three tries of one.

    Here, each waits for the other.
    """
    fence, together, other = harness.judged(), threading.Barrier(2), FakeNotifier("second")
    harness.more_notifiers.append(other)
    for notifier in (harness.notifier, other):
        monkeypatch.setattr(notifier, "push", lambda event: together.wait(timeout=60) and None)
    harness.call("signal_pusher_started", fence)
    assert [row["status"] for row in harness.tables()["outbox_delivery"]] == ["delivered"] * 2


def test_a_notifier_that_hangs_fails_in_time_and_delays_no_other(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence, over, other = harness.judged(), threading.Event(), FakeNotifier("second")
    harness.more_notifiers.append(other)
    monkeypatch.setattr(other, "push", lambda event: over.wait(timeout=60) and None)
    try:
        with pytest.raises(NotDelivered, match=r"^no response within 1\.4 s$"):
            harness.call("signal_pusher_started", fence)
    finally:
        over.set()
    records = {
        row["sink"]: (row["status"], row["error"]) for row in harness.tables()["outbox_delivery"]
    }
    assert records == {
        harness.notifier.name: ("delivered", None),
        "second": ("failed", "no response within 1.4 s"),
    }


def test_the_end_of_an_attempt_that_was_resumed_before_it_was_told_is_told_with_the_next(
    harness: Harness,
) -> None:
    """The verdict was committed, but its worker died before responding, and a resume came before
    the next try.
    """
    harness.judged()
    second = harness.resumed(rerun=True)
    harness.call("requeue_ended_tasks", Requeue(second, True))
    harness.call("run_onetime_crawler", Deploy(second, None))
    harness.forward(30)
    harness.round(second)
    harness.call("update_run_status", second)
    harness.sink.faults.add(NotDelivered("connection refused"))
    harness.call("initiate_export_signal", second)
    assert [(event.attempt, event.type) for event in harness.sink.sent] == [(2, "run.ended")], (
        "on record, and no obstacle"
    )
    for _ in range(2):
        harness.call("initiate_export_signal", second)
    told = [event.attempt for event in harness.sink.sent]
    assert told == [2, 1, 2, 2], "what came through is not told again for it"
    statuses = {row["status"] for row in harness.tables()["outbox_delivery"]}
    assert statuses == {"delivered"}


def test_an_archive_that_could_not_be_written_says_so_until_it_is(harness: Harness) -> None:
    fence = harness.judged()
    harness.files(0)
    harness.archive.faults.add(NotDelivered("no space"))
    with pytest.raises(NotDelivered):
        harness.call("export_supporting_files", fence)
    assert [(e["status"], e["error"]) for e in harness.store.exports.list_exports(1)] == [
        ("failed", "no space")
    ]
    harness.call("export_supporting_files", fence)
    assert [(e["status"], e["error"]) for e in harness.store.exports.list_exports(1)] == [
        ("exported", None)
    ]


def test_files_that_are_missing_are_on_record_beside_those_that_are_not(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = harness.judged(2)
    harness.files(0)
    there = FileSource("task-0", harness.cluster.folders[1, 0])
    lost = FileSource("task-1", missing="nothing was uploaded")
    monkeypatch.setattr(harness.cluster, "files", lambda run_id, tasks: [there, lost])
    result = harness.call("export_supporting_files", fence)
    (record,) = harness.store.exports.list_exports(1)
    assert (record["status"], record["url"]) == ("exported", result.url)
    assert "task-1: nothing was uploaded" in str(record["error"])
    assert record["error"] == result.note
    monkeypatch.setattr(harness.cluster, "files", lambda run_id, tasks: [there])
    harness.call("export_supporting_files", fence)
    assert [e["error"] for e in harness.store.exports.list_exports(1)] == [None]


def test_files_that_are_gone_for_good_are_on_record_too(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster removed the files of an old run: no retry helps, and the earlier archive remains
    on record.
    """
    fence = harness.judged(1)
    harness.files(0)
    harness.call("export_supporting_files", fence)

    def removed(run_id: int, tasks: object) -> list[FileSource]:
        raise NotInThisState("the files were removed")

    monkeypatch.setattr(harness.cluster, "files", removed)
    with pytest.raises(NotInThisState):
        harness.call("export_supporting_files", fence)
    (record,) = harness.store.exports.list_exports(1)
    assert (record["status"], record["error"]) == ("exported", "the files were removed")
    assert record["url"] == f"memory:///{archive_key(fence.run, 1)}"


def test_a_crawlers_own_limit_of_files_holds(harness: Harness) -> None:
    crawler = harness.catalogue.crawlers["books"]
    harness.catalogue.crawlers["books"] = dataclasses.replace(crawler, files_max=1)
    fence = harness.judged(2)
    harness.files(0, 1)
    assert harness.call("export_supporting_files", fence).files == 1


def test_an_archive_of_a_resumed_run_holds_what_earlier_attempts_left(harness: Harness) -> None:
    """Their tasks are superseded; their files are not."""
    harness.cluster.behaviour = Behaviour(executes=None)
    fence = harness.stopping(2)
    harness.call("k8_stop_task", fence)
    harness.round(fence)
    harness.call("update_run_status", fence)
    again = harness.resumed()
    harness.files(0, 1)
    harness.call("export_supporting_files", again)
    (members,) = harness.outside()["archives"].values()  # type: ignore[attr-defined]
    assert {"task-0/items.jsonl", "task-1/items.jsonl"} <= set(members)


def test_a_stop_after_the_verdict_changes_nothing(harness: Harness) -> None:
    fence = harness.judged()
    before = harness.tables()
    harness.call("record_stop", harness.stop(fence))
    harness.call("add_cancellation_log_to_db", harness.stop(fence))
    assert harness.tables() == before


def test_a_limit_leaves_no_row_in_the_cancellation_log(harness: Harness) -> None:
    fence = harness.started()
    order = harness.stop(fence, None, requested_by=None, reason=None, limit="timed_out")
    assert harness.call("record_stop", order).limit == "timed_out"
    harness.call("add_cancellation_log_to_db", order)
    assert harness.store.runs.cancellations(1) == []
    assert harness.row().status == "STOPPING"


@pytest.mark.parametrize("untaken", [0, 2])
def test_a_heart_beats_while_a_call_blocks(untaken: int) -> None:
    """Heartbeats continue after some were lost because the worker's event loop hung for ten
    seconds.
    """
    beats: list[object] = []
    enough = threading.Event()

    def beat(*details: object) -> None:
        beats.append(details)
        if len(beats) >= 4:
            enough.set()
        if len(beats) <= untaken:
            raise TimeoutError

    def activity() -> bool:
        alive()  # does not fail a step either
        with beating(every_s=0.01):
            return enough.wait(60)

    environment = ActivityEnvironment()
    environment.on_heartbeat = beat
    assert environment.run(activity)
    assert not any(thread.name == "heartbeat" for thread in threading.enumerate()), (
        "it ends with the call"
    )


@pytest.mark.parametrize(("kind", "target"), [("manager", MANAGER), ("graph", GRAPH)])
def test_one_too_many_is_on_record_as_that(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, kind: str, target: object
) -> None:
    part = {"manager": harness.store.managers, "graph": harness.store.graphs}[kind]
    monkeypatch.setattr(part, "_most", {f"{kind}s": 0})
    spec = ScheduleSpec(every_s=60, **{kind: target})  # type: ignore[arg-type]
    harness.store.schedules.put("nightly", spec.document(), "ann")
    answer = harness.call("decide_due", DueOrder("nightly", START))
    assert (answer.decision, answer.begun, answer.begin) == (Decision.FAILED, None, False)
    line = harness.store.schedules.get_due(answer.due_id)
    assert line.target is None
    assert f"at most 0 {kind}s may be open (LIFECYCLE_LIMITS__{kind.upper()}S)" in str(line.reason)
    assert (harness.directory.managers_begun, harness.directory.graphs_begun) == ({}, {})


def test_a_stop_is_recorded_also_where_the_cluster_does_not_answer(harness: Harness) -> None:
    fence = harness.started()
    harness.cluster.fail_with(ClusterUnavailable("away"), "stop")
    assert harness.call("record_stop", harness.stop(fence)).requested_by == "ada"
    assert (harness.row().status, harness.statuses()) == ("STOPPING", ["RUNNING"])
    with pytest.raises(ClusterUnavailable, match="away"):
        harness.call("k8_stop_task", fence)
    harness.cluster.fail_with(None, "stop")
    assert harness.call("k8_stop_task", fence).counts.active == 1
    assert harness.statuses() == ["STOPPING"]
