"""What activities do when the world around them refuses, waits or is away: the reason is on record,
nothing else.
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
from tests.activities.world import CRAWLERS, OTHER, OWNER, START, World, differences
from tests.support.fakes.cluster import Behaviour
from tests.support.fakes.services import FakeCatalogue, FakeNotifier


def test_a_request_of_another_workflow_is_refused(world: World) -> None:
    world.created(2)
    before = world.tables()
    with pytest.raises(DuplicateRequest):
        world.call("create_history_id", world.order(2, owner=OTHER))
    assert world.tables() == before


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
    world: World, request_: dict[str, dict[str, str]], words: str
) -> None:
    before = world.tables()
    with pytest.raises(InvalidRequest, match=words):
        world.call("create_history_id", world.order(**request_))
    assert world.tables() == before


def test_a_repeat_finds_its_run_although_the_catalogue_allows_less_by_now(world: World) -> None:
    crawler = world.catalogue.crawlers["books"]
    world.catalogue.crawlers["books"] = dataclasses.replace(crawler, allow_settings=["SHELF"])
    order = world.order(settings={"SHELF": "b"})
    first = world.call("create_history_id", order)
    world.catalogue.crawlers["books"] = crawler
    assert world.call("create_history_id", order) == first


def test_a_run_is_not_taken_from_an_open_workflow(world: World) -> None:
    world.started()
    world.directory.open.add(OWNER)
    before = world.tables()
    with pytest.raises(RunIsLive, match=OWNER.workflow_id):
        world.resumed()
    assert world.tables() == before


def test_a_completed_run_runs_again_only_on_demand(world: World) -> None:
    world.judged()
    before = world.tables()
    with pytest.raises(AlreadyCompleted, match="rerun"):
        world.resumed()
    with pytest.raises(RunNotFound):
        world.resumed(run_id=77)
    assert world.tables() == before


def test_a_property_belongs_to_its_attempt(world: World) -> None:
    """A late registration of the attempt before takes nothing from the one that goes on."""
    world.cluster.behaviour = UNTIL_STOPPED
    world.started()
    fence = world.resumed()
    world.call("add_workflow_id", AddWorkflowId(1, fence.attempt, OTHER.workflow_id))
    world.call("add_workflow_id", AddWorkflowId(1, 1, OWNER.workflow_id))
    kept = {(p["attempt"], p["name"]): p["value"] for p in world.store.runs.properties(1)}
    assert [kept[attempt, PROPERTY_WORKFLOW_ID] for attempt in (1, 2)] == [
        OWNER.workflow_id,
        OTHER.workflow_id,
    ]


def test_a_lost_answer_of_the_scheduler_service_starts_nothing_twice(world: World) -> None:
    fence = world.created(2)
    world.scheduler.lost_answers = 1
    with pytest.raises(SchedulerUnavailable):
        world.call("run_onetime_crawler", Deploy(fence))
    assert world.row().waiting_for == "scheduler service: the connection broke before the answer"
    world.forward(5)
    world.call("run_onetime_crawler", Deploy(fence))
    assert world.statuses() == ["PENDING", "PENDING"]
    assert len(world.cluster._tasks) == 2


def _refused_after_a_lost_answer(world: World, *, heard: bool) -> Fence:
    """A deployment call without an answer, and the crawler is taken out of the catalogue;
    ``heard``: it took effect.
    """
    fence = world.created(2, crawler="shops")
    if heard:
        world.scheduler.lost_answers = 1
    else:
        world.scheduler.faults.add(SchedulerUnavailable("no answer"))
    with pytest.raises(SchedulerUnavailable):
        world.call("run_onetime_crawler", Deploy(fence))
    world.scheduler.catalogue = FakeCatalogue(CRAWLERS[:1])
    world.forward(5)
    return fence


def test_a_refusal_of_a_later_call_fails_no_task_that_an_earlier_one_brought(world: World) -> None:
    world.cluster.behaviour = UNTIL_STOPPED
    fence = _refused_after_a_lost_answer(world, heard=True)
    report = world.call("run_onetime_crawler", Deploy(fence))
    assert world.statuses() == ["RUNNING", "RUNNING"]
    assert (report.counts.active, report.counts.queued) == (2, 0)
    assert "'shops' is unknown" in report.refused


def test_a_refusal_of_a_later_call_is_final_when_the_earlier_one_is_void_and_brought_nothing(
    world: World,
) -> None:
    fence = _refused_after_a_lost_answer(world, heard=False)
    for _ in range(6):  # 25 s, and ten for clocks that differ
        with pytest.raises(NothingDeployed, match="'shops' is unknown"):
            world.call("run_onetime_crawler", Deploy(fence))
        assert world.statuses() == ["QUEUED", "QUEUED"]
        assert "earlier deployment call" in (world.row().waiting_for or "")
        world.forward(5)
    world.forward(1)
    report = world.call("run_onetime_crawler", Deploy(fence))
    assert world.statuses() == ["FAILED", "FAILED"]
    assert (report.counts.alive, world.tasks()[0].outcome) == (0, "deploy_failed")


def test_a_refused_call_is_no_reason_to_cancel_what_an_earlier_one_may_bring(world: World) -> None:
    fence = _refused_after_a_lost_answer(world, heard=False)
    with pytest.raises(NothingDeployed):
        world.call("run_onetime_crawler", Deploy(fence))
    world.call("record_stop", world.stop(fence))
    assert world.call("cancel_queued_tasks", fence).queued == 2


def test_a_refusal_of_a_later_wave_keeps_the_plan_of_polls_and_the_others(world: World) -> None:
    world.cluster.behaviour = UNTIL_STOPPED
    fence = world.started(3, max_parallel=2, crawler="shops")
    # By a worker that died then.
    world.store.deployment.offer_tasks(fence, 10, None, world.now + timedelta(seconds=25))
    world.scheduler.catalogue = FakeCatalogue(CRAWLERS[:1])
    planned = world.row().next_look_at
    assert planned is not None
    world.forward(5)
    report = world.call("deploy_queued_tasks", Deploy(fence))
    assert (report.deferred, report.counts.queued, world.statuses()) == (
        1,
        1,
        ["RUNNING", "RUNNING", "QUEUED"],
    )
    assert world.row().next_look_at == planned
    world.forward(30)
    assert world.call("deploy_queued_tasks", Deploy(fence)).deferred == 0
    assert world.statuses() == ["RUNNING", "RUNNING", "FAILED"]


def test_a_cluster_that_does_not_answer_about_a_refused_call_fails_no_task(world: World) -> None:
    fence = _refused_after_a_lost_answer(world, heard=False)
    world.forward(60)
    world.cluster.fail_with(ClusterUnavailable("no answer of the cluster"), "poll")
    with pytest.raises(ClusterUnavailable):
        world.call("run_onetime_crawler", Deploy(fence))
    assert world.statuses() == ["QUEUED", "QUEUED"]
    assert (world.row().waiting_for or "").startswith("cluster: ")


def test_a_cluster_without_room_is_asked_again(world: World) -> None:
    fence = world.created(2)
    world.cluster.behaviour = Behaviour(deployed="deferred", deploy_reason="quota exceeded")
    with pytest.raises(NothingDeployed, match="quota exceeded"):
        world.call("run_onetime_crawler", Deploy(fence))
    assert (world.row().waiting_for, world.statuses()) == ("quota exceeded", ["QUEUED", "QUEUED"])
    assert [t.reason for t in world.tasks()] == ["quota exceeded"] * 2


@pytest.mark.parametrize("recorded", ["before", "after the offer"])
def test_nothing_is_deployed_under_a_stop(world: World, recorded: str) -> None:
    fence = world.created(2)
    if recorded == "after the offer":
        world.scheduler.faults.add(SchedulerUnavailable("away"))
        with pytest.raises(SchedulerUnavailable):
            world.call("run_onetime_crawler", Deploy(fence))
    world.call("record_stop", world.stop(fence))
    report = world.call("run_onetime_crawler", Deploy(fence))
    assert (report.offered, world.cluster._tasks) == (0, {})


def test_a_task_whose_deployment_may_be_on_its_way_is_not_cancelled_yet(world: World) -> None:
    fence = world.created()
    world.scheduler.faults.add(SchedulerUnavailable("no answer"))
    with pytest.raises(SchedulerUnavailable):
        world.call("run_onetime_crawler", Deploy(fence))
    world.call("record_stop", world.stop(fence))
    assert world.call("cancel_queued_tasks", fence).queued == 1
    world.forward(26)
    world.call("get_history_statuses_to_sync", world.poll(fence))
    assert world.call("cancel_queued_tasks", fence).queued == 1, (
        "void by our clock; the scheduler service has its own"
    )
    world.forward(10)
    assert world.call("cancel_queued_tasks", fence).queued == 1, (
        "the call is void, but what it made may be there"
    )
    world.call("get_history_statuses_to_sync", world.poll(fence))
    assert world.call("cancel_queued_tasks", fence).alive == 0


@pytest.mark.parametrize("tries", [1, 10, 20])
def test_the_main_task_waits_and_says_why(world: World, tries: int) -> None:
    """6 s for ten tries, then ever longer, and never an alarm."""
    world.cluster.behaviour = Behaviour(waits=1e6, wait_reason="waiting: 4 of 4 slots in use")
    fence = world.deployed()
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, attempt=tries)
    with pytest.raises(ApplicationError) as caught:
        environment.run(world.activities()["get_main_job_status"], MainJob(fence, 6))
    error = caught.value
    assert (error.type, error.category) == ("NotStarted", ApplicationErrorCategory.BENIGN)
    assert error.next_retry_delay is not None
    assert 6 <= error.next_retry_delay.total_seconds() <= 60
    assert (error.next_retry_delay.total_seconds() == 6) is (tries <= 10)
    assert world.row().waiting_for == "waiting: 4 of 4 slots in use"


def test_a_main_task_that_ended_before_it_was_polled_at_has_started(world: World) -> None:
    world.cluster.behaviour = Behaviour(executes=1)
    fence = world.deployed()
    world.forward(6)
    report = world.call("get_main_job_status", MainJob(fence, 6))
    assert report.ended
    assert world.statuses() == ["PENDING"], "its end is for a poll that fetches the evidence"


@pytest.mark.parametrize("activity", ["get_main_job_status", "get_history_statuses_to_sync"])
def test_a_cluster_that_is_away_is_no_observation(world: World, activity: str) -> None:
    fence = world.deployed(2)
    world.cluster.fail_with(ClusterUnavailable("the API server answered 503"))
    before = world.tables()
    main = activity == "get_main_job_status"
    with pytest.raises(ApplicationError if main else ClusterUnavailable, match="503"):
        world.call(activity, MainJob(fence, 6) if main else world.poll(fence))
    told = (
        {"run_history.waiting_for"}
        if main
        else {"run_history.look_error", "run_history.look_error_since"}
    )
    assert differences(before, world.tables()) - {"run_history.updated_at"} == told


def test_details_that_cannot_be_read_hold_nothing_up(world: World) -> None:
    """The truth about the end counts more than its log."""
    fence = world.started()
    world.forward(30)
    world.call("get_history_statuses_to_sync", world.poll(fence))
    world.cluster.vanish(1)
    assert world.call("get_bulk_task_history_data", fence) == 0
    assert world.call("reconcile_tasks", fence) == 1
    assert world.tasks()[0].exit_code == 0


def test_only_logs_of_ended_tasks_are_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands may begin between two polls, and each log is a call of the cluster."""
    world.cluster.behaviour = lambda run, index, attempt: Behaviour(
        executes=20 if index == 0 else None
    )
    fence, asked = world.deployed(3), list[int]()
    details = world.cluster.details

    def noted(run: Any, tasks: Any) -> Any:
        asked.extend(one.index for one in tasks)
        return details(run, tasks)

    monkeypatch.setattr(world.cluster, "details", noted)
    for seconds, began in ((1, 3), (30, 1)):
        world.forward(seconds)
        assert world.call("get_history_statuses_to_sync", world.poll(fence)).changed == began
        world.call("get_bulk_task_history_data", fence)
        world.call("sync_statuses", Sync(fence))
    assert asked == [0]


def test_a_run_with_living_tasks_gets_no_verdict(world: World) -> None:
    fence = world.started()
    before = world.tables()
    with pytest.raises(NotInThisState):
        world.call("update_run_status", fence)
    assert world.tables() == before


@pytest.mark.parametrize(
    ("activity", "sender"),
    [
        ("signal_pusher_started", "notifier"),
        ("signal_pusher_stopped", "notifier"),
        ("initiate_export_signal", "sink"),
    ],
)
def test_what_could_not_be_delivered_is_kept_with_every_try(
    world: World, activity: str, sender: str
) -> None:
    fence = world.ended()
    if activity == "signal_pusher_stopped":
        world.call("record_stop", world.stop(fence))
    world.call("update_run_status", fence)
    getattr(world, sender).faults.add(NotDelivered("connection refused"), times=2)
    for tries in (1, 2):
        with pytest.raises(NotDelivered):
            world.call(activity, fence)
        (delivery,) = world.tables()["outbox_delivery"]
        assert (delivery["status"], delivery["tries"], delivery["error"]) == (
            "failed",
            tries,
            "connection refused",
        )
    world.call(activity, fence)
    (delivery,) = world.tables()["outbox_delivery"]
    assert (delivery["status"], delivery["tries"], delivery["error"]) == ("delivered", 3, None)
    assert len({e.seq for e in world.notifier.pushed + world.sink.sent}) == 1


@pytest.mark.parametrize("fails", ["first", "second"])
@pytest.mark.parametrize("again", ["signal_pusher_started", "resend_pushes"])
def test_of_two_notifiers_only_the_one_that_failed_is_tried_again(
    world: World, fails: str, again: str
) -> None:
    fence = world.judged()
    one, other = world.notifier, FakeNotifier("second")
    world.more_notifiers.append(other)
    failing, well = (one, other) if fails == "first" else (other, one)
    failing.faults.add(NotDelivered("connection refused"))

    def records() -> dict[str, tuple[object, ...]]:
        rows = world.tables()["outbox_delivery"]
        return {row["sink"]: (row["status"], row["tries"], row["error"]) for row in rows}

    with pytest.raises(NotDelivered, match="connection refused"):
        world.call("signal_pusher_started", fence)
    delivered = ("delivered", 1, None)
    assert records() == {well.name: delivered, failing.name: ("failed", 1, "connection refused")}
    for _ in range(2):
        world.call(again, fence)
        assert records() == {well.name: delivered, failing.name: ("delivered", 2, None)}
    assert (len(one.pushed), len(other.pushed)) == (1, 1)


def test_two_notifiers_push_at_the_same_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tries of both then take as long as three tries of one.

    Each waits here for the other.
    """
    fence, together, other = world.judged(), threading.Barrier(2), FakeNotifier("second")
    world.more_notifiers.append(other)
    for notifier in (world.notifier, other):
        monkeypatch.setattr(notifier, "push", lambda event: together.wait(timeout=60) and None)
    world.call("signal_pusher_started", fence)
    assert [row["status"] for row in world.tables()["outbox_delivery"]] == ["delivered"] * 2


def test_a_notifier_that_hangs_fails_in_time_and_delays_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence, over, other = world.judged(), threading.Event(), FakeNotifier("second")
    world.more_notifiers.append(other)
    monkeypatch.setattr(other, "push", lambda event: over.wait(timeout=60) and None)
    try:
        with pytest.raises(NotDelivered, match=r"^no answer within 1\.4 s$"):
            world.call("signal_pusher_started", fence)
    finally:
        over.set()
    records = {
        row["sink"]: (row["status"], row["error"]) for row in world.tables()["outbox_delivery"]
    }
    assert records == {
        world.notifier.name: ("delivered", None),
        "second": ("failed", "no answer within 1.4 s"),
    }


def test_the_end_of_an_attempt_that_was_resumed_before_it_was_told_is_told_with_the_next(
    world: World,
) -> None:
    """Its verdict was committed, its worker died with the answer, and who resumed it was quicker
    than the next try.
    """
    world.judged()
    second = world.resumed(rerun=True)
    world.call("requeue_ended_tasks", Requeue(second, True))
    world.call("run_onetime_crawler", Deploy(second, None))
    world.forward(30)
    world.round(second)
    world.call("update_run_status", second)
    world.sink.faults.add(NotDelivered("connection refused"))
    world.call("initiate_export_signal", second)
    assert [(event.attempt, event.type) for event in world.sink.sent] == [(2, "run.ended")], (
        "on record, and no obstacle"
    )
    for _ in range(2):
        world.call("initiate_export_signal", second)
    told = [event.attempt for event in world.sink.sent]
    assert told == [2, 1, 2, 2], "what came through is not told again for it"
    statuses = {row["status"] for row in world.tables()["outbox_delivery"]}
    assert statuses == {"delivered"}


def test_an_archive_that_could_not_be_written_says_so_until_it_is(world: World) -> None:
    fence = world.judged()
    world.files(0)
    world.archive.faults.add(NotDelivered("no space"))
    with pytest.raises(NotDelivered):
        world.call("export_supporting_files", fence)
    assert [(e["status"], e["error"]) for e in world.store.exports.list_exports(1)] == [
        ("failed", "no space")
    ]
    world.call("export_supporting_files", fence)
    assert [(e["status"], e["error"]) for e in world.store.exports.list_exports(1)] == [
        ("exported", None)
    ]


def test_files_that_are_missing_are_on_record_beside_those_that_are_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = world.judged(2)
    world.files(0)
    there = FileSource("task-0", world.cluster.folders[1, 0])
    lost = FileSource("task-1", missing="nothing was uploaded")
    monkeypatch.setattr(world.cluster, "files", lambda run_id, tasks: [there, lost])
    result = world.call("export_supporting_files", fence)
    (record,) = world.store.exports.list_exports(1)
    assert (record["status"], record["url"]) == ("exported", result.url)
    assert "task-1: nothing was uploaded" in str(record["error"])
    assert record["error"] == result.note
    monkeypatch.setattr(world.cluster, "files", lambda run_id, tasks: [there])
    world.call("export_supporting_files", fence)
    assert [e["error"] for e in world.store.exports.list_exports(1)] == [None]


def test_files_that_are_gone_for_good_are_on_record_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster removed the files of an old run: no retry helps, and the archive of before stays
    on record.
    """
    fence = world.judged(1)
    world.files(0)
    world.call("export_supporting_files", fence)

    def removed(run_id: int, tasks: object) -> list[FileSource]:
        raise NotInThisState("the files were removed")

    monkeypatch.setattr(world.cluster, "files", removed)
    with pytest.raises(NotInThisState):
        world.call("export_supporting_files", fence)
    (record,) = world.store.exports.list_exports(1)
    assert (record["status"], record["error"]) == ("exported", "the files were removed")
    assert record["url"] == f"memory:///{archive_key(fence.run, 1)}"


def test_a_crawlers_own_limit_of_files_holds(world: World) -> None:
    crawler = world.catalogue.crawlers["books"]
    world.catalogue.crawlers["books"] = dataclasses.replace(crawler, files_max=1)
    fence = world.judged(2)
    world.files(0, 1)
    assert world.call("export_supporting_files", fence).files == 1


def test_an_archive_of_a_resumed_run_holds_what_earlier_attempts_left(world: World) -> None:
    """Their tasks are superseded; their files are not."""
    world.cluster.behaviour = Behaviour(executes=None)
    fence = world.stopping(2)
    world.call("k8_stop_task", fence)
    world.round(fence)
    world.call("update_run_status", fence)
    again = world.resumed()
    world.files(0, 1)
    world.call("export_supporting_files", again)
    (members,) = world.outside()["archives"].values()  # type: ignore[attr-defined]
    assert {"task-0/items.jsonl", "task-1/items.jsonl"} <= set(members)


def test_a_stop_after_the_verdict_changes_nothing(world: World) -> None:
    fence = world.judged()
    before = world.tables()
    world.call("record_stop", world.stop(fence))
    world.call("add_cancellation_log_to_db", world.stop(fence))
    assert world.tables() == before


def test_a_limit_leaves_no_row_in_the_cancellation_log(world: World) -> None:
    fence = world.started()
    order = world.stop(fence, None, requested_by=None, reason=None, limit="timed_out")
    assert world.call("record_stop", order).limit == "timed_out"
    world.call("add_cancellation_log_to_db", order)
    assert world.store.runs.cancellations(1) == []
    assert world.row().status == "STOPPING"


@pytest.mark.parametrize("untaken", [0, 2])
def test_a_heart_beats_while_a_call_blocks(untaken: int) -> None:
    """Also after beats that nobody took: the worker's event loop did not answer for ten seconds."""
    beats: list[object] = []
    enough = threading.Event()

    def beat(*details: object) -> None:
        beats.append(details)
        if len(beats) >= 4:
            enough.set()
        if len(beats) <= untaken:
            raise TimeoutError

    def activity() -> bool:
        alive()  # fails no step either
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
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str, target: object
) -> None:
    part = {"manager": world.store.managers, "graph": world.store.graphs}[kind]
    monkeypatch.setattr(part, "_most", {f"{kind}s": 0})
    spec = ScheduleSpec(every_s=60, **{kind: target})  # type: ignore[arg-type]
    world.store.schedules.put("nightly", spec.document(), "ann")
    answer = world.call("decide_due", DueOrder("nightly", START))
    assert (answer.decision, answer.begun, answer.begin) == (Decision.FAILED, None, False)
    line = world.store.schedules.get_due(answer.due_id)
    assert line.target is None
    assert f"at most 0 {kind}s may be open (LIFECYCLE_LIMITS__{kind.upper()}S)" in str(line.reason)
    assert (world.directory.managers_begun, world.directory.graphs_begun) == ({}, {})


def test_a_stop_is_recorded_also_where_the_cluster_does_not_answer(world: World) -> None:
    fence = world.started()
    world.cluster.fail_with(ClusterUnavailable("away"), "stop")
    assert world.call("record_stop", world.stop(fence)).requested_by == "ada"
    assert (world.row().status, world.statuses()) == ("STOPPING", ["RUNNING"])
    with pytest.raises(ClusterUnavailable, match="away"):
        world.call("k8_stop_task", fence)
    world.cluster.fail_with(None, "stop")
    assert world.call("k8_stop_task", fence).counts.active == 1
    assert world.statuses() == ["STOPPING"]
