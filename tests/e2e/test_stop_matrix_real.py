"""Cells of the stop matrix (stopping.md) on a stack of real processes over SQLite; a stop that
outlives all of them; and a stop that the rest of a worker's work cannot delay.
"""

from __future__ import annotations

import time

import pytest

from tests.e2e.harness import until
from tests.e2e.stop_drill import Matrix, cells_of
from tests.e2e.stopping import QUICK, StopHarness
from tests.support.builds import ROOT
from tests.support.stop_table import Cell

THREADS = 2
#: The roles whose queues runs use while no stop is in progress. The main one comes last, because it
#: brings work to the others.
ORDINARY = ("export", "cluster", "workflows")


@pytest.fixture(scope="module")
def matrix(request: pytest.FixtureRequest, stack: StopHarness) -> Matrix:
    stack.healthy()
    return Matrix.of(request, stack)


@pytest.mark.parametrize("cell", cells_of("sqlite"))
def test_a_stop_ends_as_the_table_says(matrix: Matrix, cell: Cell) -> None:
    matrix.drill(cell).prove()


def test_an_acknowledged_stop_survives_everybody(matrix: Matrix) -> None:
    """No worker is running, and gateway and Temporal are killed as soon as the stop is
    acknowledged.
    """
    harness = matrix.harness
    run_id = int(
        harness.gateway.start({"crawler": "patient", "args": {}, **QUICK}, "survivor")["run_id"]
    )
    until(lambda: harness.tasks(run_id).get("RUNNING"), "a task that runs")
    (folder,) = harness.task_folders(run_id)
    until(lambda: harness.begun(folder), "a crawler that listens")
    harness.kill("worker")
    told = harness.gateway.stop(run_id, requested_by="ada", request_id="promised")
    harness.kill("gateway", "temporal")
    assert told["status"] == "STOPPING"
    rows = harness.query(
        "SELECT request_id, acted_at FROM cancellation_log WHERE run_id = ?", run_id
    )
    assert rows == [("promised", None)]
    harness.bring_back("temporal", "gateway", "worker")
    until(lambda: harness.closed([run_id]), "the end of the stop")
    assert (harness.status(run_id), harness.tasks(run_id)) == ("FAILED", {"CANCELLED": 1})
    assert len(harness.signals(folder)) == 1
    sql = "SELECT request_id, acted_at IS NOT NULL FROM cancellation_log WHERE run_id = ?"
    assert harness.query(sql, run_id) == [("promised", 1)]
    assert harness.query(
        "SELECT COUNT(*) FROM outbox_event WHERE type = 'run.stopped' AND run_id = ?", run_id
    ) == [(1,)]


def start(harness: StopHarness, name: str, **args: str) -> int:
    return int(harness.gateway.start({"crawler": "patient", "args": args, **QUICK}, name)["run_id"])


def use_up(harness: StopHarness, role: str) -> None:
    """Fill every activity slot of this role's queue with a call that does not return."""
    harness.points.hold("any", f"{role}.any.any.before")
    if role == "workflows":
        for n in range(THREADS):
            start(harness, f"one-more-{n}")
    until(lambda: stuck(harness, role) == THREADS, f"that the queue of {role} is stuck")


def waits_for_a_step(harness: StopHarness, name: str) -> bool:
    """Return whether an activity of this run is in a queue, or was taken out of it."""
    (described,) = harness.talk(
        lambda client: client.get_workflow_handle(f"crawl/patient/{name}").describe()
    )
    return bool(described.raw_description.pending_activities)


def stuck(harness: StopHarness, role: str) -> int:
    return len(harness.points.held("*", f"{role}.*"))


def test_a_stop_passes_queues_that_are_stuck(harness: StopHarness) -> None:
    """One run is between two polls, and one waits for a step on a stuck queue.

    This test comes last, because the worker is replaced by one with so few threads that few calls
    use them up.
    """
    harness.deploy(ROOT, LIFECYCLE_WORKER__THREADS=str(THREADS))
    crawling = start(harness, "crawling")
    polling = [start(harness, f"looking-{n}") for n in range(THREADS)]
    # Before there is anything to export, because short exports would end before all slots are
    # taken.
    harness.points.hold("any", "export.any.any.before")
    exporting = [start(harness, f"exporting-{n}", seconds="0.1") for n in range(THREADS)]
    until(
        lambda: all(harness.tasks(run_id).get("RUNNING") for run_id in [crawling, *polling]),
        "tasks that run",
    )
    harness.freeze("worker")
    starting = start(harness, "starting")
    harness.points.hold(starting, "workflows.store.mark_started.after")
    harness.thaw("worker")
    until(lambda: harness.points.held(starting), "a run that has just started")
    until(
        lambda: all(harness.status(run_id) == "COMPLETED" for run_id in exporting),
        "the ends of some runs",
    )
    for role in ORDINARY:
        use_up(harness, role)
    # All calls that replace it are already waiting: what the run itself does next comes after them.
    until(
        lambda: all(waits_for_a_step(harness, f"one-more-{n}") for n in range(THREADS)),
        "that others wait",
    )
    harness.points.release(starting)
    until(
        lambda: not harness.points.held(starting) and stuck(harness, "workflows") == THREADS,
        "that others take its place",
    )
    unheard = start(harness, "unheard")

    stopped = [crawling, starting]
    folders = [folder for run_id in stopped for folder in harness.task_folders(run_id)]
    until(lambda: all(harness.begun(folder) for folder in folders), "crawlers that listen")
    asked = time.time()
    for run_id in stopped:
        harness.gateway.stop(run_id, requested_by="ada", request_id="past-the-stuck")
    until(lambda: all(harness.signals(folder) for folder in folders), "the stop signals")
    until(
        lambda: all(harness.status(run_id) == "FAILED" for run_id in stopped),
        "the proofs and the verdicts",
        150,
    )
    proved = time.time()
    got = [harness.signals(folder) for folder in folders]
    assert {role: stuck(harness, role) for role in ORDINARY} == dict.fromkeys(ORDINARY, THREADS), (
        "as before"
    )
    assert harness.status(unheard) == "INITIALIZING", "nobody else got on"
    late = max(at for (at,) in got) - asked
    print(f"\nwith stuck queues: SIGTERM after {late:.2f} s, verdict after {proved - asked:.2f} s")

    harness.points.release()
    until(lambda: harness.status(unheard) == "PROCESSING", "that everybody else goes on")
    until(lambda: harness.closed([*stopped, *exporting]), "what follows the verdicts")
    assert [harness.signals(folder) for folder in folders] == got, "one signal each, ever"
    log = "SELECT run_id, request_id, acted_at IS NOT NULL FROM cancellation_log WHERE run_id >= ? ORDER BY run_id"
    assert harness.query(log, crawling) == [
        (run_id, "past-the-stuck", 1) for run_id in sorted(stopped)
    ]
