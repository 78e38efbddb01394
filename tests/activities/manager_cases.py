"""The cases of the activities of a manager's workflow, and of what audits do about managers."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from crawler_lifecycle.activities.audits.settling import AuditPage
from crawler_lifecycle.activities.child_runs import Claim, RecordParentStop, StopRuns
from crawler_lifecycle.domain.audits.audit import OpenWorkflow, UnknownDecision
from crawler_lifecycle.domain.names import ended_key, manager_workflow_id
from crawler_lifecycle.domain.run import RunRequest, RunStatus, StopIntent
from crawler_lifecycle.features.managers.activities.managing import (
    AddManagerJobs,
    EndManager,
    NoteManager,
)
from crawler_lifecycle.features.managers.domain.manager import AddedJob, Decision, Job, PickedJob
from crawler_lifecycle.features.managers.ports import ManagerFence, ManagerRow, NewManager
from crawler_lifecycle.ports.runs import Owner
from tests.activities.cases import (
    DELIVERED_AGAIN,
    GONE,
    LATER_S,
    REPAIR,
    SEEN_AGAIN,
    Case,
    _after_grace,
    _nothing,
)
from tests.activities.harness import Harness

MANAGER = Owner(manager_workflow_id("stream", "f1"), "chain-of-the-manager")
CHANGED = frozenset({"manager.updated_at"})

PARENTS = AuditPage(repair=True, what="manager")


def _jobs(n: int) -> list[Job]:
    return [Job("books", {"shelf": str(k)}) for k in range(n)]


def _reserved(w: Harness) -> ManagerRow:
    w.store.managers.new_uid = lambda: "uid-of-the-manager"
    return w.store.managers.reserve_manager(
        NewManager("stream", "f1", "shop:Stream", requested_by="ada", project="shop-a")
    )[0]


def _order(w: Harness) -> Claim:
    return Claim(_reserved(w).manager_id, MANAGER)


def _claimed(w: Harness) -> ManagerFence:
    row = w.store.managers.claim_manager(_reserved(w).manager_id, MANAGER)
    return ManagerFence(row.manager_id, row.attempt, MANAGER.first_run_id)


def _picked(w: Harness, good: int = 2) -> ManagerFence:
    """A manager that picked jobs, one of which has arguments that its crawler does not accept."""
    fence = _claimed(w)
    w.store.managers.new_generation(fence, "print", 0)
    jobs = [*_jobs(good), Job("nobody")]
    added = [AddedJob(-n, job) for n, job in enumerate(jobs, 1)]
    picked = [PickedJob(-n, n, job) for n, job in enumerate(jobs, 1)]
    w.store.managers.commit_decision(fence, Decision(added=added, picked=picked))
    return fence


def _row(w: Harness) -> ManagerRow:
    row = w.store.managers.get_manager(1)
    assert row is not None
    return row


def _opened(w: Harness, answer: Any) -> None:
    assert (answer.name, answer.flow_id, answer.attempt, answer.stop) == ("stream", "f1", 1, None)
    assert _row(w).owner_run_id == MANAGER.first_run_id


def _runs_begun(w: Harness, answer: Any) -> None:
    runs = sorted(w.store.runs.list_runs(), key=lambda run: run.run_id)
    assert [run.request_id for run in runs] == ["manager/1/1", "manager/1/2"]
    assert {(run.parent, run.flow_id, run.project) for run in runs} == {
        ("manager/stream/f1", "f1", "shop-a")
    }
    assert sorted(w.directory.begun) == ["crawl/books/manager/1/1", "crawl/books/manager/1/2"]
    jobs = w.store.managers.list_jobs(1)
    assert [job.run_id for job in jobs] == [1, 2, None]
    assert "spider: 'nobody' is unknown" in str(jobs[2].error)
    assert (answer.begun, answer.refused, answer.more) == (2, 1, False)


def _begin_after_stop(w: Harness) -> ManagerFence:
    fence = _picked(w)
    w.store.managers.record_manager_stop(1, StopIntent(w.now))
    return fence


def _none_begun(w: Harness, answer: Any) -> None:
    assert answer.stopped
    assert (w.store.runs.list_runs(), w.directory.begun) == ([], {})


def _stop(w: Harness, *, lost: bool = False) -> StopRuns:
    w.call("begin_manager_runs", _picked(w, 1))
    if lost:
        w.directory.begun.clear()
    else:
        w.directory.open.add(Owner("crawl/books/manager/1/1", "chain-of-the-run"))
    intent = StopIntent(w.now, requested_by="ada")
    w.store.managers.record_manager_stop(1, intent)
    return StopRuns(1, intent)


def _runs_told(w: Harness, answer: Any) -> None:
    assert (answer.live, answer.trouble) == (1, None)
    assert [str(run.status) for run in w.store.runs.list_runs()] == ["STOPPING"]
    told = w.directory.stopped.get("crawl/books/manager/1/1", [])
    assert {stop.requested_by for stop in told} == ({"ada"} if w.directory.open else set())
    assert "crawl/books/manager/1/1" in w.directory.begun, "whoever begins sees what is on record"


def _noted(w: Harness, _: Any) -> None:
    assert (_row(w).waiting_for, _row(w).error) == ("a worker", "it raised")


def _jobs_added(w: Harness, answer: Any) -> None:
    assert answer == 3
    assert _row(w).counts.by_state["queued"] == 3


def _add(w: Harness) -> AddManagerJobs:
    _claimed(w)
    return AddManagerJobs(1, "page-1", [*_jobs(3), *_jobs(1)])


def _record(w: Harness) -> RecordParentStop:
    _claimed(w)
    return RecordParentStop(
        1, StopIntent(w.now + timedelta(seconds=1), requested_by="ada"), leave=True
    )


def _stop_recorded(w: Harness, answer: Any) -> None:
    row = _row(w)
    assert (row.status, row.leave, row.stop) == ("STOPPING", True, answer.stop)


def _ended(w: Harness, answer: Any) -> None:
    row = _row(w)
    assert (row.status, row.outcome, row.cause) == ("COMPLETED", "finished", "done")
    assert (answer.status, answer.outcome) == ("COMPLETED", "finished")
    assert w.directory.events == {ended_key("manager", row.manager_id, row.manager_uid, 1)}


def _over(w: Harness) -> str:
    """The manager has ended, but nobody was notified."""
    row = w.store.managers.end_manager(_claimed(w), RunStatus.COMPLETED, "finished", "done")
    return ended_key("manager", row.manager_id, row.manager_uid, row.attempt)


def _told(w: Harness, answer: None) -> None:
    (event,) = w.sink.sent
    assert (event.type, event.subject, event.body["outcome"]) == (
        "manager.ended",
        "managers/1",
        "finished",
    )


def _lost(w: Harness) -> AuditPage:
    _claimed(w)
    return _after_grace(w, "audit_parents", PARENTS)


def _taken_over(w: Harness, part: Any) -> None:
    assert (part.repaired, part.looked) == ({"no_workflow": 1}, 1)
    assert w.directory.managers_begun == {MANAGER.workflow_id: 1}


def _not_begun(w: Harness) -> AuditPage:
    _reserved(w)
    w.forward(LATER_S)
    return PARENTS


def _begun(w: Harness, part: Any) -> None:
    assert part.repaired == {"not_started": 1}
    assert w.directory.managers_begun == {MANAGER.workflow_id: 1}


def _rowless(w: Harness) -> AuditPage:
    w.directory.workflows = [OpenWorkflow("manager/nobody/f1", "chain-9", w.now, of_parent=True)]
    return replace(_after_grace(w, "audit_workflows"), unknown=UnknownDecision.END)


def _terminated(w: Harness, part: Any) -> None:
    assert part.repaired == {"no_row": 1}
    assert "manager that is not in the database" in w.directory.ended["manager/nobody/f1"]


def _uncounted(w: Harness) -> AuditPage:
    """The worker died after it had recorded the run and before it recorded the job. Another run
    only claims to belong to the manager.
    """
    _picked(w)
    for request_id in ("manager/1/1", "manager/1/77"):
        w.store.initiation.reserve_run(
            RunRequest(crawler="books", parent=MANAGER.workflow_id), request_id
        )
        w.directory.open.add(Owner(f"crawl/books/{request_id}", "chain-9"))
    w.directory.open.add(MANAGER)
    w.forward(LATER_S)
    return REPAIR


def _woken(w: Harness, part: Any) -> None:
    assert (part.found, part.repaired) == ({"not_counted": 2}, {"not_counted": 1})
    assert set(w.directory.woken) == {MANAGER.workflow_id}
    assert [finding.repair for finding in part.findings] == [
        "its manager was woken", "not changed: Stop ends the run (crawlctl stop 2)",
    ]  # fmt: skip


AUDITED = [
    Case(
        "audit_parents",
        "manager: no workflow",
        _lost,
        _taken_over,
        renews=SEEN_AGAIN | GONE,
        same=_nothing,
    ),
    Case(
        "audit_parents",
        "manager: reserved",
        _not_begun,
        _begun,
        renews=SEEN_AGAIN | GONE,
        same=_nothing,
    ),
    Case("audit_workflows", "no manager", _rowless, _terminated, renews=GONE, same=_nothing),
    Case("audit_runs", "not counted", _uncounted, _woken, renews=SEEN_AGAIN | GONE, same=_nothing),
]

MANAGING = [
    *AUDITED,
    Case("open_manager", "reserved", _order, _opened),
    Case("begin_manager_runs", "picked", _picked, _runs_begun, same=lambda answer: answer.more),
    Case("begin_manager_runs", "stopped", _begin_after_stop, _none_begun),
    Case(
        "note_manager",
        "waiting",
        lambda w: NoteManager(_claimed(w), "a worker", "it raised"),
        _noted,
        CHANGED,
    ),
    Case("add_manager_jobs", "page", _add, _jobs_added),
    Case("record_manager_stop", "leave", _record, _stop_recorded),
    Case("stop_manager_runs", "live", _stop, _runs_told, same=lambda answer: answer.live),
    Case(
        "stop_manager_runs",
        "lost",
        lambda w: _stop(w, lost=True),
        _runs_told,
        same=lambda answer: answer.live,
    ),
    Case(
        "end_manager",
        "over",
        lambda w: EndManager(_claimed(w), RunStatus.COMPLETED, "finished", "done"),
        _ended,
    ),
    Case("deliver_event", "manager", _over, _told, renews=DELIVERED_AGAIN),
]
