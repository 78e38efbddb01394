"""The cases of the activities that delete a run."""

from __future__ import annotations

from typing import Any

from crawler_lifecycle.domain.audits.audit import OpenWorkflow
from crawler_lifecycle.domain.run_ref import RunRef
from tests.activities.cases import Case
from tests.activities.harness import START, Harness


def asked(w: Harness) -> RunRef:
    """An exported run that has ended and is about to be deleted, although one of its workflows is
    still open.
    """
    w.files(0)
    fence = w.judged()
    w.call("export_supporting_files", fence)
    w.directory.workflows = [OpenWorkflow("w", "chain", START, fence.run_id, fence.run_uid)]
    w.store.deletion.ask_deletion(fence.run_id, "ada")
    return fence.run


def _report(w: Harness) -> dict[str, Any]:
    found = dict(w.row().deletion or {})
    assert (found["requested_by"], found["left"]) == ("ada", {})
    return dict(found["gone"])


def _texts(w: Harness, _: Any) -> None:
    assert (w.row().cause, [task.args for task in w.tasks()], w.row().status) == (
        None,
        [{}],
        "COMPLETED",
    )
    assert _report(w)["strings in task_history"] == 1


def _histories(w: Harness, _: Any) -> None:
    assert (w.directory.workflows, _report(w)) == ([], {"Temporal histories": None})


def histories_gone(w: Harness) -> RunRef:
    run = asked(w)
    w.call("delete_run_histories", run)
    return run


def _first_files(w: Harness, answer: Any) -> None:
    assert (w.archive.stored, _report(w), answer) == ({}, {"archives": None, "rows": None}, False)
    assert w.row().deletion_ended_at is None


def _files(w: Harness, _: Any) -> None:
    assert (w.archive.stored, _report(w).keys()) == ({}, {"archives", "rows", "Temporal histories"})
    assert w.row().deletion_ended_at == w.now


DELETION = [
    Case("delete_run_texts", "asked", asked, _texts),
    Case("delete_run_histories", "asked", asked, _histories),
    Case("delete_run_files", "asked", asked, _first_files),
    Case("delete_run_files", "histories gone", histories_gone, _files),
]
