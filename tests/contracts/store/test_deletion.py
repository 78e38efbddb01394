"""Deletion of a run in the database: afterwards no row contains a planted word, and a stub of the
run remains.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa

from crawler_lifecycle.domain.audits.audit import AuditFinding, FindingKind
from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.errors import Fenced, NotInThisState, RunDeleted, RunNotFound
from crawler_lifecycle.domain.names import EVENT_RUN_ENDED, event_key
from crawler_lifecycle.domain.retention import RetentionState
from crawler_lifecycle.domain.run import ExportResult, RunRequest, RunStatus
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import End, Phase
from crawler_lifecycle.features.managers.domain.manager import Job, JobState
from crawler_lifecycle.ports.polls import Correction, Details
from crawler_lifecycle.ports.runs import Fence
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.store.tables import metadata
from tests.contracts.store.graphing import KEY, Graphed, crawl
from tests.contracts.store.harness import OTHER, Harness, closed, seen
from tests.contracts.store.managing import Managed, job

WORD = "planted-canary"


def planted(harness: Harness, name: str = "r1", *, stop: bool = False, **more: object) -> Fence:
    """A run that has ended, with the word wherever a person or a crawler may write."""
    store, clock = harness.store, harness.clock
    fence = harness.deployed(name, 2, args={"q": WORD}, settings={"A": WORD}, tags=[WORD], **more)
    harness.execute(fence)
    if stop:
        store.stops.record_stop(fence.run_id, harness.stop(reason=WORD), f"{name}-stop", fence)
    tasks = store.polls.found_state(fence).tasks
    details = [Details(t.task_id, f"log {WORD}", statistics={WORD: 1}) for t in tasks]
    store.polls.save_details(fence, details)
    end = End(exit_code=1, finish_reason=WORD, message=WORD, finished_at=clock.forward(60))
    found = {"end": end, "reason": WORD, "resume_note": WORD, "resumed": False}
    harness.poll(fence, [seen(t, Phase.ENDED, clock.now, uid=t.uid, **found) for t in tasks])
    harness.end(fence)
    store.exports.record_export(
        fence, "exported", ExportResult(f"file:///{WORD}", 1, 1, "0" * 64, WORD), WORD
    )
    wrong = Correction(
        CorrectionKind.LATE_EVIDENCE,
        "FAILED",
        "SUCCEEDED",
        tasks[0].task_id,
        evidence={"cause": WORD},
    )
    store.corrections.record_corrections(fence.run_id, [wrong])
    event = store.events.find_event(event_key(fence.run, 1, EVENT_RUN_ENDED))
    assert event is not None
    store.events.record_delivery(event.seq, "bus", f"503 {WORD}")
    store.findings.note_findings(
        [
            AuditFinding(
                f"late_evidence/task/{name}", FindingKind.LATE_EVIDENCE, WORD, run_id=fence.run_id
            )
        ]
    )
    return fence


def where(store: Store, word: str = WORD) -> set[str]:
    """Return the columns that contain the word."""
    found = set()
    with store.database.reading() as conn:
        for table in metadata.sorted_tables:
            for row in conn.execute(sa.select(table)).mappings():
                found |= {
                    f"{table.name}.{name}" for name, value in row.items() if word in str(value)
                }
    return found


def delete(store: Store, run: RunRef) -> None:
    store.deletion.ask_deletion(run.run_id, "ada")
    store.deletion.delete_texts(run, lambda: None)


def test_a_planted_word_is_in_no_row_afterwards(harness: Harness) -> None:
    store, fence = harness.store, planted(harness)
    planted_there = where(store)
    assert len(planted_there) > 15, planted_there
    other = planted(harness, "r2", stop=True)
    delete(store, other.run)
    assert where(store) == planted_there, "those of another run stay"
    delete(store, fence.run)
    assert where(store) == set()
    first, second = (store.deletion.delete_texts(fence.run, lambda: None) for _ in range(2))
    assert first == second
    assert first["task_history"] == 2


def test_a_stub_stays_and_ledgers_add_up(harness: Harness) -> None:
    store, fence = harness.store, planted(harness)
    (row,) = store.runs.list_runs()
    counts = store.tasks.count_tasks(fence.run_id)
    ledger = [
        (t.from_status, t.to_status, t.committed_at) for t in store.runs.transitions(fence.run_id)
    ]
    events = [(e.seq, e.type, e.key) for e in store.events.events_after(0, run_id=fence.run_id)]
    wrong = [(c.id, c.kind) for c in store.corrections.list_corrections(fence.run_id)]
    harness.clock.forward(10)
    delete(store, fence.run)
    stub = store.runs.get_run(fence.run_id)
    assert stub is not None
    for name in (
        "run_id",
        "run_uid",
        "request_id",
        "crawler",
        "status",
        "stage",
        "attempt",
        "created_at",
        "ended_at",
    ):
        assert getattr(stub, name) == getattr(row, name)
    assert (stub.deleted_at, stub.deletion_ended_at) == (harness.clock.now, None)
    assert store.tasks.count_tasks(fence.run_id) == counts
    assert [
        (t.from_status, t.to_status, t.committed_at) for t in store.runs.transitions(fence.run_id)
    ] == ledger
    assert [(e.seq, e.type, e.key) for e in store.events.events_after(0, run_id=fence.run_id)][
        :-1
    ] == events
    assert [(c.id, c.kind) for c in store.corrections.list_corrections(fence.run_id)] == wrong
    assert store.audits.ended_runs(harness.clock.now - timedelta(days=1)) == [], (
        "no audit calls it a difference"
    )
    assert store.audits.ended_run(fence.run_id) is None
    again, fresh = store.initiation.reserve_run(
        RunRequest("services", args={"q": WORD}, settings={"A": WORD}, tags=[WORD]),
        "r1",
        [{"part": "0"}, {"part": "1"}],
    )
    assert (again.run_id, fresh) == (fence.run_id, False), "the same request again finds the stub"


def test_the_report_grows_and_forgets_what_is_no_longer_left(harness: Harness) -> None:
    store, fence = harness.store, planted(harness, parent="somebody")
    store.deletion.ask_deletion(fence.run_id, "ada")
    told = {"somebody": "it keeps the definition of the run, with its arguments"}
    deletion, run = store.deletion, fence.run
    deletion.note_deletion(run, {"histories": 3}, {"archives": "no bucket"})
    deletion.note_deletion(run, {"histories": 1, "files": None}, {"archives": None})
    deletion.note_deletion(run, {"histories": 0}, {}, ended=True)
    row = store.runs.get_run(fence.run_id)
    assert row is not None
    assert row.deletion == {
        "requested_by": "ada",
        "gone": {"histories": 3, "files": None},
        "left": told,
    }
    assert row.deletion_ended_at == harness.clock.now
    with pytest.raises(Fenced):
        deletion.note_deletion(RunRef(fence.run_id, "f" * 32), {}, {})


def test_what_is_deleted_is_neither_resumed_nor_written(harness: Harness) -> None:
    store, fence = harness.store, planted(harness)
    row, fresh = store.deletion.ask_deletion(fence.run_id, "ada")
    assert fresh
    assert store.deletion.ask_deletion(fence.run_id, "eve")[1] is False
    assert row.deletion is not None
    assert row.deletion["requested_by"] == "ada"
    again = RunRequest(run_id=fence.run_id, rerun=True)
    for write in (
        lambda: store.initiation.resume_run(again, "w", 1),
        lambda: store.initiation.claim_run(again, OTHER, closed),
        lambda: store.exports.begin_export(fence),
        lambda: store.exports.record_export(fence, "exported", None, None),
        lambda: store.polls.save_details(fence, []),
        lambda: store.events.append_event(fence, "run.started", "key", {}),
    ):
        with pytest.raises(RunDeleted, match="start a new one"):
            write()


def test_only_what_has_ended_is_deleted(harness: Harness) -> None:
    fence = harness.deployed()
    with pytest.raises(
        NotInThisState, match=rf"is INITIALIZING; stop it first \(crawlctl stop {fence.run_id}\)"
    ):
        harness.store.deletion.ask_deletion(fence.run_id, None)
    with pytest.raises(RunNotFound):
        harness.store.deletion.ask_deletion(99, None)
    assert harness.store.runs.get_run(fence.run_id).deleted_at is None  # type: ignore[union-attr]


def test_open_deletions_are_found_until_their_end(harness: Harness) -> None:
    store, fence = harness.store, planted(harness)
    store.deletion.ask_deletion(fence.run_id, None)
    due = harness.clock.forward(60)
    assert [row.run_id for row in store.deletion.open_deletions(due)] == [fence.run_id]
    assert store.deletion.open_deletions(due - timedelta(seconds=60)) == []
    store.deletion.note_deletion(fence.run, {}, {}, ended=True)
    assert store.deletion.open_deletions(due) == []


def test_crawlctl_cluster_gc_can_carry_its_files_out(harness: Harness) -> None:
    """Where only this command may write to the volume, it removes the files at once, however young
    the run is.
    """
    store, fence = harness.store, planted(harness)
    store.deletion.ask_deletion(fence.run_id, None)
    before = harness.clock.now - timedelta(days=14)
    assert store.file_retention.give_up_files(fence.run_id, before, lambda: None) == (
        RetentionState.OLD,
        1,
        1,
    )
    store.file_retention.note_files_removed(fence.run_id, 1)
    assert [run.removed for run in store.file_retention.kept_runs([fence.run_id])] == [True]
    assert RunStatus(store.runs.get_run(fence.run_id).status).terminal  # type: ignore[union-attr]


def test_a_manager_handles_an_end_first_and_then_forgets_its_arguments(harness: Harness) -> None:
    store, managed = harness.store, Managed.begun(harness)
    managed.add(Job("services", {"q": WORD}), job(2))
    managed.pick(2, JobState.QUEUED)
    fence, other = managed.begin()
    harness.finish(fence)
    with pytest.raises(
        NotInThisState,
        match=f"manager {managed.id} has not handled the end of run {fence.run_id} yet",
    ):
        store.deletion.ask_deletion(fence.run_id, None)
    managed.handle()
    delete(store, fence.run)
    assert where(store) == set()
    first, second = managed.jobs()
    assert (first.state, first.job, first.run_id) == (JobState.ENDED, None, fence.run_id)
    assert (second.job is not None, second.run_id) == (True, other.run_id)
    managed.check_counters()


def test_a_graph_ends_first_and_a_retry_of_its_step_makes_a_new_run(harness: Harness) -> None:
    store, graphed = harness.store, Graphed.made(harness, [crawl("a")])
    graphed.advance()
    (fence,) = graphed.begin_runs().values()
    harness.finish(fence)
    store.exports.record_export(fence, "empty", None, None)
    with pytest.raises(
        NotInThisState, match=rf"graph {KEY} is still executing.*\(crawlctl graph stop {KEY}\)"
    ):
        store.deletion.ask_deletion(fence.run_id, None)
    graphed.advance()
    store.graphs.end_graph(graphed.fence, None)
    delete(store, fence.run)
    step = graphed.step("a")
    assert (step.state, step.run_id, step.reason) == (
        "completed",
        None,
        f"run {fence.run_id} was deleted",
    )
    assert list(store.graphs.result(graphed.id, step.number)) == []
    told = store.runs.get_run(fence.run_id).deletion  # type: ignore[union-attr]
    assert told is not None
    assert list(told["left"]) == ["graph/nightly/shops"]
