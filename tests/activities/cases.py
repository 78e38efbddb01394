"""The cases of all activities: the state before the call, its expected effect, and what a
repetition may change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from crawler_lifecycle.activities.audits.audit import CloseAudit
from crawler_lifecycle.activities.audits.settling import AuditPage
from crawler_lifecycle.activities.cancellation import RecordStop
from crawler_lifecycle.activities.deployment import Deploy, MainJob, Requeue, StartReport
from crawler_lifecycle.activities.initiation import AddToRun, AddWorkflowId
from crawler_lifecycle.activities.reconciliation import Sync
from crawler_lifecycle.domain.audits.audit import (
    AuditFinding,
    AuditReport,
    FindingKind,
    OpenWorkflow,
    UnknownDecision,
)
from crawler_lifecycle.domain.coverage import Coverage
from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.names import archive_key, event_key
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import ChildTask, Limits, RunRequest, RunStatus, Trigger
from crawler_lifecycle.domain.task import End
from crawler_lifecycle.features.managers.activities.cycles import CycleAnswer
from crawler_lifecycle.ports.runs import Deployment, Fence, QueuedTask
from tests.activities.harness import CRAWLERS, OTHER, OWNER, Harness
from tests.support.fakes.cluster import KILLED, Behaviour
from tests.support.run_refs import run_ref

UNTIL_STOPPED = Behaviour(executes=None)
FAILS = Behaviour(end=End(exit_code=1, reason="Error"))


@dataclass(frozen=True)
class Case:
    """``prepare`` returns the activity's input; ``effect`` checks what one execution did and
    returned.
    """

    activity: str
    title: str
    prepare: Callable[[Harness], Any]
    effect: Callable[[Harness, Any], None]
    renews: frozenset[str] = frozenset()
    """What a second execution seven seconds later may write again, as ``table.column``."""
    same: Callable[[Any], Any] = lambda answer: answer
    """The part of the answer that must be the same the second time."""

    void_s: float | None = None
    """After so many seconds what a first execution, which crashed, asked of others is void: until
    then it waits.
    """

    def __str__(self) -> str:
        return f"{self.activity}-{self.title}"


#: What a second poll of a continuing crawl changes because of its counters.
COUNTED_ON = frozenset(
    f"{table}.{name}"
    for table in ("run_history", "task_history")
    for name in ("pages", "items", "last_progress_at")
)
#: A repeated poll has a later time.
POLLED_AGAIN = frozenset(
    f"run_history.{name}"
    for name in (
        "verified_at",
        "next_look_at",
        "updated_at",
        "look_ordered_at",
        "look_revision",
        "look_gap_ms",
    )
)
#: Every try of a delivery is on record; whatever was delivered stays delivered.
DELIVERED_AGAIN = frozenset({"outbox_delivery.tries"})


#: Shows that a deployment call waited until an earlier one had expired, and looked for its tasks.
WAITED = POLLED_AGAIN | {
    *(
        "run_history.waiting_for",
        "run_history.waiting_since",
        "task_history.status_since",
        "task_history.ended_at",
    ),
    *("outbox_event.body", "outbox_event.created_at"),
    *("status_transition.committed_at", "status_transition.lag_ms"),
}


def _counts(report: Any) -> Any:
    return report.counts


def _poll_found(answer: Any) -> Any:
    return (answer.changed, answer.active, answer.queued, answer.stop)


# --- 1. initiation --------------------------------------------------------------------------------


def _created(w: Harness, handle: Any) -> None:
    row = w.row(handle.run_id)
    assert (handle.run_id, handle.attempt, handle.resumed, handle.multi) == (1, 1, False, True)
    assert (row.status, row.stage, row.request_id, row.owner_run_id) == (
        "INITIALIZING", "initiation", "r1", OWNER.first_run_id,
    )  # fmt: skip
    assert [(t.status, t.args) for t in w.tasks()] == [
        ("QUEUED", {"shelf": str(n)}) for n in range(3)
    ]
    assert handle.request.limits.run_timeout_s == 7200, "the crawler's own limit"
    assert len(w.store.runs.transitions(1)) == 1


def _claimed(w: Harness, handle: Any) -> None:
    assert (handle.run_id, handle.attempt, handle.resumed) == (1, 2, True)
    assert (w.row().attempt, w.row().owner_run_id, w.row().status) == (
        2,
        OTHER.first_run_id,
        "INITIALIZING",
    )
    assert w.statuses() == ["FAILED"], "new rows are another step"
    assert [(t.from_status, t.to_status, t.source) for t in w.store.runs.transitions(1)][-1] == (
        "FAILED", "INITIALIZING", "resume",
    )  # fmt: skip


def _prepare_claim(w: Harness) -> Any:
    w.cluster.behaviour = FAILS
    w.judged()
    return w.order(None, "", OTHER, crawler=None, run_id=1)


def _prepare_takeover(w: Harness) -> Any:
    """The previous workflow closed in the middle of the run, and the directory is asked about it."""
    w.cluster.behaviour = UNTIL_STOPPED
    w.started()
    return w.order(None, "", OTHER, crawler=None, run_id=1)


def _taken_over(w: Harness, handle: Any) -> None:
    assert (handle.attempt, handle.resumed) == (2, True)
    assert w.statuses() == ["RUNNING"], "what executes is untouched"
    assert [(t.attempt, t.cluster_uid is not None) for t in w.tasks()] == [(1, True)]


def _prepare_reserved(w: Harness) -> Any:
    order = w.order(2)
    w.store.initiation.reserve_run(order.request, "r1")
    return w.order(None, "", crawler=None, run_id=1)


def _reserved_is_claimed(w: Harness, handle: Any) -> None:
    assert (handle.attempt, handle.resumed, w.row().owner_run_id) == (1, False, OWNER.first_run_id)
    assert w.statuses() == ["QUEUED", "QUEUED"]


def _prepare_property(w: Harness) -> Any:
    handle = w.call("create_history_id", w.order())
    return AddWorkflowId(handle.run_id, handle.attempt, "crawl/books/r1")


def _property(w: Harness, _: Any) -> None:
    (found,) = w.store.runs.properties(1)
    assert (found["attempt"], found["name"], found["value"]) == (1, "workflow_id", "crawl/books/r1")


def _prepare_more(w: Harness) -> AddToRun:
    w.cluster.behaviour = UNTIL_STOPPED
    return AddToRun(w.started(), "more", [ChildTask({"shelf": "8"}), ChildTask({"shelf": "9"})])


def _more(w: Harness, added: Any) -> None:
    tasks = w.tasks()
    assert [(t.task_index, t.status, t.args) for t in tasks[1:]] == [
        (1, "QUEUED", {"shelf": "8"}), (2, "QUEUED", {"shelf": "9"}),
    ]  # fmt: skip
    assert (added.run_id, [(t.task_id, t.index) for t in added.tasks]) == (
        1,
        [(t.task_id, t.task_index) for t in tasks[1:]],
    )
    assert w.row().multi, "a stop ends each task of it now"


INITIATION = [
    Case("add_tasks", "to a single-process run", _prepare_more, _more),
    Case("create_history_id", "new", lambda w: w.order(3), _created),
    Case("create_history_id", "resume", _prepare_claim, _claimed),
    Case("create_history_id", "takeover", _prepare_takeover, _taken_over),
    Case("create_history_id", "reserved", _prepare_reserved, _reserved_is_claimed),
    Case("add_workflow_id", "new", _prepare_property, _property),
]


# --- 2. deployment --------------------------------------------------------------------------------


def _first_wave(w: Harness, report: Any) -> None:
    assert w.statuses() == ["PENDING", "PENDING", "QUEUED"]
    assert (report.counts.active, report.counts.queued, report.offered) == (2, 1, 2)
    assert len(w.cluster._tasks) == 2
    assert w.scheduler.calls[0].args == {"shelf": "b"}
    assert [t.cluster_name for t in w.tasks()] == ["crawl-1-0-1", "crawl-1-1-1", None]


def _scheduled_wave(w: Harness, report: Any) -> None:
    _first_wave(w, report)
    assert w.scheduler.calls[0].scheduled


def _onetime_wave(w: Harness, report: Any) -> None:
    _first_wave(w, report)
    assert not w.scheduler.calls[0].scheduled
    assert (w.scheduler.calls[0].expires_at - w.now).total_seconds() == 25


def _prepare_second_wave(w: Harness) -> Any:
    w.cluster.behaviour = lambda run, index, attempt: Behaviour() if index == 0 else UNTIL_STOPPED
    fence = w.started(4, max_parallel=2)
    w.forward(30)
    w.round(fence)
    return Deploy(fence, 2)


def _second_wave(w: Harness, report: Any) -> None:
    assert w.statuses() == ["SUCCEEDED", "RUNNING", "PENDING", "QUEUED"]
    assert (report.counts.active, report.offered) == (2, 1)


def _prepare_refusal(w: Harness) -> Any:
    fence = w.created(2, crawler="nobody")
    return Deploy(fence)


def _refused(w: Harness, report: Any) -> None:
    assert w.statuses() == ["FAILED", "FAILED"]
    assert {t.outcome for t in w.tasks()} == {"deploy_failed"}
    assert "'nobody' is unknown" in (w.tasks()[0].cause or "")
    assert w.cluster._tasks == {}
    assert report.counts.alive == 0


def _prepare_main(w: Harness) -> Any:
    w.cluster.behaviour = UNTIL_STOPPED
    fence = w.deployed(3)
    w.store.deployment.note_waiting(fence, "waiting: 4 of 4 slots in use")
    w.forward(0.5)
    return MainJob(fence, 6)


def _main_runs(w: Harness, report: Any) -> None:
    assert report.ended is False
    assert report.started_at is not None
    assert w.statuses() == ["RUNNING"] * 3, (
        "no task that executes stays PENDING for the first minute"
    )


def _started(w: Harness, status: Any) -> None:
    assert status == RunStatus.PROCESSING == w.row().status
    assert (w.row().stage, w.row().waiting_for) == ("reconciliation", None)
    assert w.row().started_at is not None
    assert w.row().next_look_at is not None


def _prepare_start(w: Harness) -> Any:
    fence = w.deployed()
    w.store.deployment.note_waiting(fence, "waiting: 4 of 4 slots in use")
    return StartReport(fence, w.now, w.now + timedelta(minutes=1))


def _told_started(w: Harness, _: Any) -> None:
    (event,) = w.notifier.pushed
    assert (event.type, event.body["started"], event.body["run_id"]) == ("run.started", True, 1)
    assert w.store.events.find_event(event_key(w.row().ref, 1, "run.started")) is not None


def _told_not_started(w: Harness, _: Any) -> None:
    (event,) = w.notifier.pushed
    assert event.body["started"] is False
    assert "'nobody' is unknown" in str(event.body["cause"])


def _prepare_failed_start(w: Harness) -> Any:
    fence = w.created(crawler="nobody")
    w.call("run_onetime_crawler", Deploy(fence))
    return fence


def _prepare_requeue(w: Harness) -> Any:
    w.cluster.behaviour = lambda run, index, attempt: Behaviour() if index == 0 else FAILS
    w.judged(3)
    return Requeue(w.resumed())


def _requeued(w: Harness, counts: Any) -> None:
    assert (counts.queued, counts.by_status) == (2, {"SUCCEEDED": 1, "QUEUED": 2})
    rows = w.store.tasks.list_tasks(1, superseded=True)
    assert [(t.task_index, t.attempt) for t in rows] == [(0, 1), (1, 1), (2, 1), (1, 2), (2, 2)]
    assert [t.superseded_by for t in rows[1:3]] == [t.task_id for t in rows[3:]]


def _prepare_retry(w: Harness) -> Any:
    fence = w.started()
    w.cluster.vanish(1, 0)
    w.forward(60)
    w.round(fence)
    w.forward(600)
    w.round(fence)
    return fence


def _retried(w: Harness, report: Any) -> None:
    assert (report.counts.by_status, report.ended, report.resting.tasks) == ({"QUEUED": 1}, 0, 1)
    first, second = [t for t in w.store.tasks.list_tasks(1, superseded=True) if t.task_index == 0]
    assert (first.status, first.superseded_by, second.attempt, second.retry) == (
        "LOST",
        second.task_id,
        2,
        1,
    )
    assert "retrying at " in (w.row().waiting_for or "")


DEPLOYMENT = [
    Case(
        "run_onetime_crawler", "first wave", lambda w: Deploy(w.created(3, args={"shelf": "b"}), 2), _onetime_wave,
        same=_counts,
    ),
    Case(
        "run_scheduled_crawler", "first wave",
        lambda w: Deploy(w.created(3, args={"shelf": "b"}, trigger=Trigger.SCHEDULED), 2), _scheduled_wave,
        same=_counts,
    ),
    Case("deploy_queued_tasks", "second wave", _prepare_second_wave, _second_wave, same=_counts),
    Case("run_onetime_crawler", "refused", _prepare_refusal, _refused, same=_counts, void_s=36),
    Case("get_main_job_status", "executes", _prepare_main, _main_runs, renews=POLLED_AGAIN | COUNTED_ON),
    Case("update_run_started", "first", _prepare_start, _started),
    Case("signal_pusher_started", "started", lambda w: w.started(), _told_started, renews=DELIVERED_AGAIN),
    Case("signal_pusher_started", "refused", _prepare_failed_start, _told_not_started, renews=DELIVERED_AGAIN),
    Case("requeue_ended_tasks", "resume", _prepare_requeue, _requeued),
    Case("retry_ended_tasks", "lost", _prepare_retry, _retried, same=_counts),
]  # fmt: skip


# --- 3. reconciliation ----------------------------------------------------------------------------


def _prepare_poll(w: Harness) -> Any:
    """One of three tasks has finished, one was killed from outside, and one is still executing."""
    goes_on = Behaviour(executes=None, counts_for=20)
    w.cluster.behaviour = lambda run, index, attempt: (
        Behaviour(executes=20) if index == 0 else goes_on
    )
    fence = w.started(3)
    w.forward(30)
    w.cluster.end_now(1, 1, end=KILLED)
    return w.poll(fence)


def _polled(w: Harness, answer: Any) -> None:
    assert (answer.changed, answer.active) == (2, 3)
    assert w.statuses() == ["RUNNING"] * 3, "findings are staged until sync_statuses"
    assert (w.row().verified_at, w.row().next_look_at) == (answer.observed_at, answer.next_look_at)


def _prepare_details(w: Harness) -> Fence:
    order = _prepare_poll(w)
    w.call("get_history_statuses_to_sync", order)
    return order.fence


def _details_staged(w: Harness, fetched: Any) -> None:
    assert fetched == 2
    assert [bool(row["details"]) for row in w.tables()["task_observation"]] == [True, True]
    assert w.store.tasks.log_tail(1) is None


def _prepare_reconcile(w: Harness) -> Fence:
    fence = _prepare_details(w)
    w.call("get_bulk_task_history_data", fence)
    return fence


def _details_written(w: Harness, written: Any) -> None:
    assert written == 2
    assert w.store.tasks.log_tail(1) == w.store.tasks.log_tail(2) == "a line of log\n"
    assert [t.exit_code for t in w.tasks()] == [0, 137, None]
    assert w.tasks()[0].items == 100


def _prepare_sync(w: Harness) -> Sync:
    fence = _prepare_reconcile(w)
    w.call("reconcile_tasks", fence)
    return Sync(fence)


def _synced(w: Harness, counts: Any) -> None:
    assert counts.by_status == {"SUCCEEDED": 1, "FAILED": 1, "RUNNING": 1}
    assert w.statuses() == ["SUCCEEDED", "FAILED", "RUNNING"]
    assert [
        (c.kind, c.task_id, c.believed, c.truth) for c in w.store.corrections.list_corrections(1)
    ] == [("killed", 2, "RUNNING", "FAILED")]
    assert [t.to_status for t in w.store.runs.transitions(1)][-2:] == ["SUCCEEDED", "FAILED"]
    assert w.tables()["task_observation"] == []


def _alive(w: Harness, counts: Any) -> None:
    assert (counts.alive, counts.active, counts.queued) == (3, 2, 1)


def _told_changed(w: Harness, _: Any) -> None:
    (pushed,) = w.notifier.pushed
    assert pushed == w.store.events.last_event(1, "run.changed")
    assert pushed.body["status"] == "PROCESSING"


RECONCILIATION = [
    Case(
        "get_active_running_tasks", "counts", lambda w: w.started(3, 2).run_id,
        lambda w, report: _alive(w, report.counts),
    ),
    Case(
        "get_history_statuses_to_sync", "changes", _prepare_poll, _polled, renews=POLLED_AGAIN
        | {"task_history.last_progress_at", "run_history.last_progress_at", "run_history.quiet_ms"}
        | {"task_observation.finding", "task_finding.evidence"},
        same=_poll_found,
    ),
    Case("get_bulk_task_history_data", "changes", _prepare_details, _details_staged),
    Case("reconcile_tasks", "changes", _prepare_reconcile, _details_written),
    Case("sync_statuses", "changes", _prepare_sync, _synced),
    Case("signal_pusher_changed", "changes", lambda w: w.started(3, 2), _told_changed, renews=DELIVERED_AGAIN),
    Case("count_alive_tasks", "alive", lambda w: w.started(3, 2).run_id, _alive),
]  # fmt: skip


# --- stop -----------------------------------------------------------------------------------------


def _stopping(w: Harness) -> Fence:
    w.cluster.behaviour = UNTIL_STOPPED
    return w.stopping(3, 2)


def _prepare_stop(w: Harness) -> RecordStop:
    w.cluster.behaviour = UNTIL_STOPPED
    return w.stop(w.started())


def _stop_recorded(w: Harness, intent: Any) -> None:
    assert (intent.requested_by, intent.force) == ("ada", False)
    assert (w.row().status, w.row().stop) == ("STOPPING", intent)
    (entry,) = w.store.runs.cancellations(1)
    assert (entry["request_id"], entry["acted_at"]) == ("s1", None)
    assert (w.cluster.signals(1), w.statuses()) == (1, ["STOPPING"]), "it is asked at once"


def _queued_cancelled(w: Harness, counts: Any) -> None:
    assert counts.by_status == {"RUNNING": 2, "CANCELLED": 1}
    assert w.tasks()[2].outcome == "cancelled"


def _asked(w: Harness, report: Any) -> None:
    assert (report.left, report.more, report.counts.active) == (0, False, 2)
    assert [w.cluster.signals(1, index) for index in (0, 1)] == [1, 1]
    assert w.statuses() == ["STOPPING", "STOPPING", "QUEUED"]


def _killed(w: Harness, _: Any) -> None:
    assert w.cluster.alive() == []
    assert w.statuses() == ["STOPPING", "STOPPING", "QUEUED"], "the end is for a poll to find"


def _logged(w: Harness, _: Any) -> None:
    assert [(c["request_id"], c["acted_at"]) for c in w.store.runs.cancellations(1)] == [
        ("s1", w.now),
        ("s2", w.now),
    ]


def _prepare_log(w: Harness) -> RecordStop:
    """One of two stops already has its row; the other arrived later."""
    fence = _stopping(w)
    first = w.stop(fence)
    w.forward(1)
    return RecordStop(fence, first.heard + w.stop(fence, "s2", force=True).heard)


def _prepare_told(w: Harness) -> Fence:
    fence = _stopping(w)
    w.call("cancel_queued_tasks", fence)
    w.call("k8_stop_task", fence)
    w.round(fence)
    w.call("update_run_status", fence)
    return fence


def _told_stopped(w: Harness, _: Any) -> None:
    (event,) = w.notifier.pushed
    assert (event.type, event.body["status"], event.body["outcome"]) == (
        "run.stopped",
        "FAILED",
        "cancelled",
    )


CANCELLATION = [
    Case("record_stop", "person", _prepare_stop, _stop_recorded),
    Case("cancel_queued_tasks", "one queued", _stopping, _queued_cancelled),
    Case("k8_stop_task", "running", _stopping, _asked),
    Case("k8_stop_pod", "running", _stopping, _killed),
    Case("add_cancellation_log_to_db", "two stops", _prepare_log, _logged),
    Case("signal_pusher_stopped", "stopped", _prepare_told, _told_stopped, renews=DELIVERED_AGAIN),
]


# --- 4. completion --------------------------------------------------------------------------------


def _prepare_verdict(w: Harness) -> Fence:
    w.cluster.behaviour = lambda run, index, attempt: FAILS if index == 1 else Behaviour()
    return w.ended(3, crawler="shops")


def _verdict(w: Harness, ended: Any) -> None:
    assert (ended.status, ended.outcome, ended.tasks) == (
        "COMPLETED",
        "partial",
        {"SUCCEEDED": 2, "FAILED": 1},
    )
    assert (w.row().status, w.row().stage, w.row().outcome) == (
        "COMPLETED",
        "completion",
        "partial",
    )
    assert ended.items == w.row().items is not None
    assert w.row().ended_at is not None


def _prepare_less(w: Harness) -> Fence:
    """A run whose items have fewer prices than those of three earlier runs. An audit let another
    workflow take it over.
    """
    shares = [0.98, 1.0, 0.96, 0.41]
    w.cluster.behaviour = lambda run, index, attempt: Behaviour(
        fields=Coverage(600, {"price": shares[run - 1]})
    )
    for n in range(3):
        w.judged(request_id=f"before-{n}", crawler="prices")
    w.ended(2, crawler="prices")
    return w.resumed(4)


def _less(w: Harness, ended: Any) -> None:
    said = "price: 41 % of 1,200 items have it, the usual share is 98 % (median of 3 runs), expected at least 93 %"
    assert (ended.status, ended.outcome, ended.cause) == ("FAILED", "coverage", said)
    assert (w.row(4).status, w.row(4).cause, w.row(4).fields) == (
        "FAILED",
        said,
        Coverage(1200, {"price": 0.41}),
    )
    event = w.store.events.find_event(event_key(w.row(4).ref, w.row(4).attempt, "run.ended"))
    assert event is not None
    assert (event.body["outcome"], event.body["cause"]) == ("coverage", said)


def _signalled(w: Harness, seq: Any) -> None:
    (event,) = w.sink.sent
    assert (event.seq, event.type) == (seq, "run.ended")
    assert event.body["status"] == "COMPLETED"
    assert event.body["supporting_files"] == archive_key(w.row().ref, 1)
    assert w.store.events.find_event(event_key(w.row().ref, 1, "run.ended")) is not None


def _prepare_export(w: Harness) -> Fence:
    fence = w.judged(2)
    w.files(0, 1)
    return fence


def _exported(w: Harness, result: Any) -> None:
    assert set(w.archive.stored) == {result.url} == {f"memory:///{archive_key(w.row().ref, 1)}"}
    (record,) = w.store.exports.list_exports(1)
    assert (record["status"], record["files"], record["url"]) == ("exported", 2, result.url)


def _nothing_exported(w: Harness, result: Any) -> None:
    assert result is None
    assert w.archive.stored == {}
    assert [e["status"] for e in w.store.exports.list_exports(1)] == ["empty"]


def _prepare_untold(w: Harness) -> Fence:
    """A run whose start could not be pushed."""
    fence = w.judged()
    w.notifier.faults.add(NotDelivered("nobody answers"))
    with contextlib.suppress(NotDelivered):
        w.call("signal_pusher_started", fence)
    return fence


def _told_at_last(w: Harness, sent: Any) -> None:
    assert sent in (0, 1)
    assert [e.type for e in w.notifier.pushed] == ["run.started"]
    assert [d["status"] for d in w.store.events.deliveries(1) if d["sink"] == w.notifier.name] == [
        "delivered"
    ]


COMPLETION = [
    Case("resend_pushes", "one failed", _prepare_untold, _told_at_last, same=lambda sent: None),
    Case("update_run_status", "partial", _prepare_verdict, _verdict),
    Case("update_run_status", "coverage", _prepare_less, _less),
    Case("initiate_export_signal", "completed", lambda w: w.judged(), _signalled, renews=DELIVERED_AGAIN),
    Case(
        "export_supporting_files", "files", _prepare_export, _exported, renews=frozenset({"export_record.at"}),
        same=lambda result: (result.url, result.files),
    ),
    Case(
        "export_supporting_files", "empty", lambda w: w.judged(), _nothing_exported,
        renews=frozenset({"export_record.at"}),
    ),
]  # fmt: skip


# --- the audit ------------------------------------------------------------------------------------

#: Far beyond every grace period.
LATER_S = 1000
#: What is found again is seen again, and a repeated repair is recorded.
SEEN_AGAIN = frozenset(
    f"audit_finding.{name}" for name in ("first_seen", "last_seen", "repaired_at")
)
#: What a dead try ended is missing for the next one, which does not know that we ended it.
GONE = frozenset(
    f"audit_finding.{name}" for name in ("status", "repair", "repaired_at", "first_seen")
)
REPAIR = AuditPage(repair=True)


def _after_grace(w: Harness, activity: str, page: AuditPage = REPAIR) -> AuditPage:
    """The finding was seen once, and again after its grace period."""
    first = w.call(activity, page)
    assert (sum(first.found.values()), first.repaired) == (1, {})
    w.forward(LATER_S)
    return page


def _prepare_ghost(w: Harness) -> AuditPage:
    w.cluster.behaviour = UNTIL_STOPPED
    task = QueuedTask(7, 0, {})
    soon = w.now + timedelta(minutes=1)
    w.cluster.deploy(
        Deployment(run_ref(77), 1, "books", {}, {}, [task], Resources(), Limits(), soon),
        CRAWLERS[0],
    )
    return replace(_after_grace(w, "audit_cluster"), unknown=UnknownDecision.END)


def _ghost_ended(w: Harness, part: Any) -> None:
    assert (part.found, part.repaired, part.looked) == ({"orphan": 1}, {"orphan": 1}, 1)
    assert w.cluster.alive() == []
    assert w.cluster.signals(77) == 1


def _prepare_undead(w: Harness) -> AuditPage:
    w.judged()
    task = w.cluster._tasks[1, 0, 1]
    task.ended, task.behaviour = None, UNTIL_STOPPED
    return _after_grace(w, "audit_cluster")


def _undead_ended(w: Harness, part: Any) -> None:
    assert part.repaired == {"still_alive": 1}
    (correction,) = w.store.corrections.list_corrections(1)
    assert (correction.kind, correction.believed, correction.truth) == (
        "still_alive",
        "SUCCEEDED",
        "RUNNING",
    )
    assert w.statuses() == ["SUCCEEDED"]
    assert w.cluster.alive() == []


def _prepare_lost(w: Harness) -> AuditPage:
    w.cluster.behaviour = UNTIL_STOPPED
    w.started()
    return _after_grace(w, "audit_runs")


def _taken_over(w: Harness, part: Any) -> None:
    assert part.repaired == {"no_workflow": 1}
    assert w.directory.begun == {"crawl/books/r1/2": (RunRequest(crawler="books", run_id=1), True)}
    assert [(c.kind, c.truth) for c in w.store.corrections.list_corrections(1)] == [
        ("repair", "no workflow")
    ]


def _prepare_reserved(w: Harness) -> AuditPage:
    w.store.initiation.reserve_run(RunRequest(crawler="books"), "res")
    w.forward(LATER_S)
    return REPAIR


def _begun(w: Harness, part: Any) -> None:
    assert part.repaired == {"not_started": 1}
    assert w.directory.begun == {"crawl/books/res": (RunRequest(crawler="books", run_id=1), True)}
    assert w.store.corrections.list_corrections(1) == []


def _prepare_rowless(w: Harness) -> AuditPage:
    w.directory.workflows = [OpenWorkflow("cli/x", "chain-9", w.now, 99, "u")]
    return replace(_after_grace(w, "audit_workflows"), unknown=UnknownDecision.END)


def _terminated(w: Harness, part: Any) -> None:
    assert part.repaired == {"no_row": 1}
    assert "run 99, which is not in the database" in w.directory.ended["cli/x"]


def _prepare_undelivered(w: Harness) -> AuditPage:
    w.judged()
    w.forward(LATER_S)
    return REPAIR


def _ordered_again(w: Harness, part: Any) -> None:
    assert part.repaired == {"undelivered": 1}
    assert w.directory.delivered == {Fence(1, 1, OWNER.first_run_id, w.row().run_uid): (True, True)}


def _prepare_evidence(w: Harness) -> AuditPage:
    w.cluster.behaviour = UNTIL_STOPPED
    fence = w.started(2)
    w.cluster.vanish(1, 0)
    w.round(fence)
    w.cluster._tasks[1, 0, 1].gone = False
    w.cluster.end_now(1, 0)
    w.directory.open.add(OWNER)
    return REPAIR


def _evidence_kept(w: Harness, part: Any) -> None:
    assert part.repaired == {"late_evidence": 1}
    assert w.statuses()[0] == "LOST"
    kinds = [(c.kind, c.believed, c.truth) for c in w.store.corrections.list_corrections(1)]
    assert kinds == [("vanished", "RUNNING", "LOST"), ("late_evidence", "LOST", "FAILED")]


def _prepare_close(w: Harness) -> CloseAudit:
    w.store.findings.note_findings([AuditFinding("orphan/1", FindingKind.ORPHAN, "it executed", 1)])
    w.forward(60)
    return CloseAudit(
        AuditReport("a1", w.now, w.now, repair=True, found={"no_row": 1}), [FindingKind.ORPHAN]
    )


def _closed(w: Harness, gone: Any) -> None:
    assert gone in (0, 1)
    assert [row.subject for row in w.store.findings.audit_findings("gone")] == ["orphan/1"]
    report = w.store.findings.last_audit()
    assert report is not None
    assert (report.audit_id, report.left) == ("a1", 1)


def _nothing(_: Any) -> None:
    return None


AUDIT = [
    Case("audit_cluster", "orphan", _prepare_ghost, _ghost_ended, renews=GONE, same=_nothing),
    Case(
        "audit_cluster", "still alive", _prepare_undead, _undead_ended, renews=GONE, same=_nothing
    ),
    Case(
        "audit_runs",
        "no workflow",
        _prepare_lost,
        _taken_over,
        renews=SEEN_AGAIN | GONE,
        same=_nothing,
    ),
    Case(
        "audit_runs", "reserved", _prepare_reserved, _begun, renews=SEEN_AGAIN | GONE, same=_nothing
    ),
    Case(
        "audit_runs",
        "late evidence",
        _prepare_evidence,
        _evidence_kept,
        renews=SEEN_AGAIN,
        same=_nothing,
    ),
    Case("audit_workflows", "no row", _prepare_rowless, _terminated, renews=GONE, same=_nothing),
    Case(
        "audit_ended",
        "undelivered",
        _prepare_undelivered,
        _ordered_again,
        renews=SEEN_AGAIN | GONE,
        same=_nothing,
    ),
    Case("close_audit", "one gone", _prepare_close, _closed, same=_nothing),
]

# --- managers -------------------------------------------------------------------------------------


def _cycled(w: Harness, answer: CycleAnswer) -> None:
    assert (answer.picked, answer.live, answer.over) == (2, 2, False)
    states = [(str(job.state), job.seq) for job in w.store.managers.list_jobs(1)]
    assert states == [("starting", 1), ("starting", 2), ("buffered", None)]


#: After a crash, another process with a higher generation decides, and each generation is an event.
ANOTHER_PROCESS = frozenset(
    {
        *("manager.generation", "outbox_event", "outbox_counter.seq"),
        *("graph_step.attempt", "graph_step.tries", "graph_step.errors"),
    }
)
#: Each cycle records what it decided.
DECIDED_AGAIN = ANOTHER_PROCESS | {
    *("manager.updated_at", "manager.waiting_for", "manager.stats", "manager.state"),
    *("outbox_event.body", "outbox_event.created_at", "outbox_event.seq"),
}

MANAGERS = [
    Case(
        "run_manager_cycle",
        "first",
        lambda w: w.managed(),
        _cycled,
        renews=DECIDED_AGAIN,
        same=lambda answer: (answer.picked, answer.live, answer.over, answer.queue),
    ),
]

CASES = INITIATION + DEPLOYMENT + RECONCILIATION + CANCELLATION + COMPLETION + AUDIT + MANAGERS
