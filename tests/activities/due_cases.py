"""The cases of the activities that handle a due time."""

from __future__ import annotations

from typing import Any

from sqlalchemy import update

from crawler_lifecycle.activities.audits.settling import AuditPage
from crawler_lifecycle.domain.due_ids import due_of_workflow, due_request_id
from crawler_lifecycle.features.managers.ports import NewManager
from crawler_lifecycle.features.schedules.domain.decision import Decision
from crawler_lifecycle.features.schedules.domain.definition import ScheduleSpec
from crawler_lifecycle.features.schedules.ports import DueOrder, DueRow
from crawler_lifecycle.features.schedules.store.tables import schedule_due
from crawler_lifecycle.ports.runs import Owner
from tests.activities.cases import GONE, LATER_S, REPAIR, SEEN_AGAIN, Case, _nothing
from tests.activities.harness import START, Harness

RUN = {"crawler": "books", "args": {"shelf": "b"}}
GRAPH = {"steps": [{"path": "one", "kind": "crawl", "job": RUN}]}
MANAGER = {"name": "stream", "plan": "shop:Stream", "options": {"argv": []}}


def _made(w: Harness, **fields: Any) -> None:
    w.store.managers.new_uid = lambda: "uid-of-the-manager"
    w.store.graphs.new_uid = lambda: "uid-of-the-graph"
    target = {} if {"graph", "manager"} & set(fields) else {"run": RUN}
    spec = ScheduleSpec(every_s=60, **{**target, **fields})
    w.store.schedules.put("nightly", spec.document(), "ann", "shop-a")


def _decide(w: Harness, **fields: Any) -> DueOrder:
    _made(w, **fields)
    return DueOrder("nightly", START)


def _decided(w: Harness, **fields: Any) -> int:
    _made(w, **fields)
    line = w.store.schedules.decide_due("nightly", START)
    assert line is not None
    return line.due_id


def _line(w: Harness, due_id: int = 1) -> DueRow:
    found: DueRow = w.store.schedules.get_due(due_id)
    return found


def _started(w: Harness, answer: Any) -> None:
    assert (answer.decision, answer.begin, answer.stop) == (Decision.STARTED, False, False)
    _begun(w, answer.begun)


def _waiting(w: Harness) -> DueOrder:
    """The next due time has come while the run of the previous one is still executing."""
    w.call("decide_due", _decide(w, overlap="stop_previous"))
    w.now = START.replace(minute=1)
    return DueOrder("nightly", w.now)


def _waits(w: Harness, answer: Any) -> None:
    assert (answer.decision, answer.begin, answer.stop, answer.begun) == (
        Decision.QUEUED,
        True,
        True,
        None,
    )
    assert len(w.store.runs.list_runs()) == 1


def _never(w: Harness, answer: Any) -> None:
    assert (answer.decision, answer.begin, answer.begun) == (Decision.FAILED, False, None)
    _refused(w, None)


def _begun(w: Harness, answer: Any) -> None:
    [run] = w.store.runs.list_runs()
    assert (run.request_id, run.trigger, run.parent) == (
        due_request_id("nightly", START),
        "scheduled",
        None,
    )
    assert (run.request["args"], run.project) == ({"shelf": "b"}, "shop-a")
    assert list(w.directory.begun) == [f"crawl/books/{run.request_id}"]
    assert (answer, answer.id) == (_line(w).target, run.run_id)


def _graph_begun(w: Harness, answer: Any) -> None:
    row = w.store.graphs.get_graph(answer.id)
    assert row is not None
    assert (row.key, row.state, row.project) == (
        "schedule.nightly.2026-03-01T12:00:00Z",
        "executing",
        "shop-a",
    )
    assert _line(w).target == answer


def _manager_begun(w: Harness, answer: Any) -> None:
    row = w.store.managers.get_manager(answer.id)
    assert row is not None
    assert (row.name, row.flow_id, row.project) == (
        "stream",
        "nightly.2026-03-01T12:00:00Z",
        "shop-a",
    )
    assert list(w.directory.managers_begun) == ["manager/stream/nightly.2026-03-01T12:00:00Z"]
    assert _line(w).target == answer


def _refused(w: Harness, answer: Any) -> None:
    assert answer is None
    assert (w.store.runs.list_runs(), w.directory.begun) == ([], {})
    line = _line(w)
    assert line.decision is Decision.FAILED
    assert "'gone' is unknown" in str(line.reason)


def _second(w: Harness, **fields: Any) -> int:
    """A due time whose predecessor started a run that is still executing."""
    w.call("begin_due", _decided(w, overlap="stop_previous", **fields))
    w.directory.open |= {
        Owner(id, "chain") for id in (*w.directory.begun, *w.directory.managers_begun)
    }
    w.now = START.replace(minute=1)
    line = w.store.schedules.decide_due("nightly", w.now)
    assert line is not None
    assert line.decision is Decision.QUEUED
    return int(line.due_id)


def _of_another(w: Harness) -> int:
    """After a restore, the number of a firing that had stopped others belongs to a firing that does
    not.
    """
    w.call("begin_due", _decided(w, overlap="queue"))
    w.now = START.replace(minute=1)
    line = w.store.schedules.decide_due("nightly", w.now)
    assert line is not None
    return int(line.due_id)


def _not_stopped(w: Harness, answer: Any) -> None:
    [run] = w.store.runs.list_runs()
    assert (answer, run.stop, w.directory.stopped) == (True, None, {})


def _run_stopped(w: Harness, answer: Any) -> None:
    assert answer is False
    [run] = w.store.runs.list_runs()
    assert (run.status, run.stop.requested_by if run.stop else None) == (
        "STOPPING",
        "schedule nightly",
    )
    assert list(w.directory.stopped) == [f"crawl/books/{run.request_id}"]


def _manager_stopped(w: Harness, answer: Any) -> None:
    row = w.store.managers.get_manager(1)
    assert row is not None
    assert (answer, row.status, row.stop is not None) == (False, "STOPPING", True)


def _graph_stopped(w: Harness, answer: Any) -> None:
    row = w.store.graphs.get_graph(1)
    assert row is not None
    assert (answer, row.stop is not None) == (False, True)


def _deleted(w: Harness) -> int:
    due_id = _decided(w)
    w.store.schedules.delete("nightly")
    return due_id


def _came_to_nothing(w: Harness, answer: Any) -> None:
    assert answer is None
    assert (w.store.runs.list_runs(), _line(w).decision) == ([], Decision.FAILED)
    assert "was deleted before it began" in str(_line(w).reason)


def _begun_in_silence(w: Harness, **fields: Any) -> int:
    """The firing started its target, but its worker died before it recorded this."""
    due_id = _decided(w, **fields)
    w.call("begin_due", due_id)
    with w.store.database.writing() as conn:
        conn.execute(update(schedule_due).values(target_id=None, begun_at=None))
    return due_id


def _changed(w: Harness, **fields: Any) -> int:
    """The schedule was then changed to start a run."""
    due_id = _begun_in_silence(w, **fields)
    w.store.schedules.put("nightly", ScheduleSpec(every_s=60, run=RUN).document(), "ann")
    return due_id


def _renamed(w: Harness) -> int:
    """The schedule was then changed to start another manager."""
    due_id = _begun_in_silence(w, manager=MANAGER)
    other = ScheduleSpec(every_s=60, manager=MANAGER | {"name": "other"})
    w.store.schedules.put("nightly", other.document(), "ann")
    return due_id


def _begun_and_deleted(w: Harness) -> DueOrder:
    _begun_in_silence(w, manager=MANAGER)
    w.store.schedules.delete("nightly")
    return DueOrder("nightly", START)


def _graph_begun_and_deleted(w: Harness) -> int:
    """A waiting firing started a graph, but its worker died before it recorded this. Then the
    schedule was deleted and created again.
    """
    due_id = _decided(w, graph=GRAPH)
    w.call("begin_due", due_id)
    with w.store.database.writing() as conn:
        conn.execute(update(schedule_due).values(target_id=None, begun_at=None, decision="queued"))
    w.store.schedules.delete("nightly")
    assert _line(w).decision is Decision.FAILED
    w.store.schedules.put("nightly", ScheduleSpec(every_s=60, run=RUN).document(), "ann")
    return due_id


def _found(w: Harness, answer: Any) -> None:
    assert (answer.kind, w.store.runs.list_runs()) == ("graph", [])
    assert (_line(w).target, _line(w).decision) == (answer, Decision.STARTED)


def _manager_found(w: Harness, answer: Any) -> None:
    assert w.store.runs.list_runs() == []
    assert [row.name for row in w.store.managers.newest()] == ["stream"]
    _manager_begun(w, getattr(answer, "begun", answer))


def _superseded(w: Harness) -> int:
    """The firing is waiting for proof that a run has stopped when the next due time comes."""
    w.call("begin_due", _decided(w, overlap="stop_previous"))
    times = [START.replace(minute=n) for n in (1, 2)]
    for w.now in times:
        line = w.store.schedules.decide_due("nightly", w.now)
        assert line is not None
        assert line.decision is Decision.QUEUED
    return 2


def _given_way(w: Harness) -> int:
    """The firing yielded earlier.

    A manager of another project has the flow id of its target.
    """
    due_id = _superseded(w)
    w.call("begin_due", due_id)
    w.store.managers.reserve_manager(
        NewManager("stream", "nightly.2026-03-01T12:01:00Z", "x:Y", project="shop-b")
    )
    return due_id


def _gave_way(w: Harness, answer: Any) -> None:
    assert (answer, _line(w, 2).decision, len(w.store.runs.list_runs())) == (
        None,
        Decision.SKIPPED_OVERLAP,
        1,
    )
    assert "it was due again, at 2026-03-01T12:02:00Z" in str(_line(w, 2).reason)


def _unfired(w: Harness) -> AuditPage:
    """Temporal could not be reached for an hour."""
    _made(w)
    w.store.schedules.decide_due("nightly", START.replace(minute=7))
    w.forward(3600)
    return REPAIR


def _noted(w: Harness, part: Any) -> None:
    assert (part.found, part.repaired) == ({"not_fired": 1, "not_told": 1}, {"not_fired": 1})
    # Ten minutes are caught up, and one is for its workflow.
    assert part.findings[0].detail.startswith(
        "schedule 'nightly' was due 2026-03-01T12:01:00+00:00 to 2026-03-01T12:49:00+00:00 (48 times)"
    )
    lines = w.store.schedules.list_firings(1)
    assert sorted({one.due_at.minute for one in lines}) == list(range(1, 50))
    assert [one.due_at.minute for one in lines if one.decision is not Decision.MISSED] == [7]


def _not_begun(w: Harness) -> AuditPage:
    _decided(w)
    w.forward(LATER_S)
    return AuditPage(repair=True, what="due time")


def _begun_again(w: Harness, part: Any) -> None:
    assert part.repaired == {"not_started": 1}
    assert list(w.directory.due_begun) == ["crawl-due/nightly-2026-03-01T12:00:00Z"]
    assert due_of_workflow("crawl-due/nightly-2026-03-01T12:00:00Z") == ("nightly", START)


def _asked_and_deleted(w: Harness) -> DueOrder:
    """A person triggers the schedule, and deletes it before a worker is available."""
    _made(w)
    w.store.schedules.ask_due("nightly", [START], "ann", "triggered by ann")
    w.store.schedules.delete("nightly")
    return DueOrder("nightly", START)


def _begun_all_the_same(w: Harness, answer: Any) -> None:
    assert (answer.decision, answer.begun) == (Decision.STARTED, _line(w).target)
    assert [run.request_id for run in w.store.runs.list_runs()] == [
        due_request_id("nightly", START)
    ]


def _started_and_deleted(w: Harness) -> DueOrder:
    """Temporal fired, and the worker died after it had inserted the row and before it started the
    target.
    """
    _decided(w)
    w.store.schedules.delete("nightly")
    return DueOrder("nightly", START)


def _settled_as_nothing(w: Harness, answer: Any) -> None:
    assert (answer.decision, answer.begun, answer.begin) == (Decision.FAILED, None, False)
    assert "was deleted before it began" in str(_line(w).reason)


DUE = [
    Case("decide_due", "asked for, then deleted", _asked_and_deleted, _begun_all_the_same),
    Case("decide_due", "started, then deleted", _started_and_deleted, _settled_as_nothing),
    Case("begin_due", "superseded", _superseded, _gave_way),
    Case("begin_due", "given way", _given_way, _gave_way),
    Case("audit_schedules", "not fired", _unfired, _noted, renews=SEEN_AGAIN | GONE, same=_nothing),
    Case(
        "audit_parents",
        "due time: not begun",
        _not_begun,
        _begun_again,
        renews=SEEN_AGAIN | GONE,
        same=_nothing,
    ),
    Case("decide_due", "first", _decide, _started),
    Case("decide_due", "waits", _waiting, _waits),
    Case("decide_due", "refused", lambda w: _decide(w, run={"crawler": "gone"}), _never),
    Case("begin_due", "run", _decided, _begun),
    Case("begin_due", "graph", lambda w: _decided(w, graph=GRAPH), _graph_begun),
    Case("begin_due", "manager", lambda w: _decided(w, manager=MANAGER), _manager_begun),
    Case("begin_due", "refused", lambda w: _decided(w, run={"crawler": "gone"}), _refused),
    Case("begin_due", "deleted", _deleted, _came_to_nothing),
    Case("begin_due", "changed", lambda w: _changed(w, graph=GRAPH), _found),
    Case("begin_due", "a manager, changed", lambda w: _changed(w, manager=MANAGER), _manager_found),
    Case("begin_due", "another manager", _renamed, _manager_found),
    Case("decide_due", "a manager, then deleted", _begun_and_deleted, _manager_found),
    Case("begin_due", "begun, then deleted", _graph_begun_and_deleted, _found),
    Case("stop_previous_due", "run", _second, _run_stopped),
    Case("stop_previous_due", "another line", _of_another, _not_stopped),
    Case("stop_previous_due", "manager", lambda w: _second(w, manager=MANAGER), _manager_stopped),
    Case("stop_previous_due", "graph", lambda w: _second(w, graph=GRAPH), _graph_stopped),
]
