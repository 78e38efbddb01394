"""The stack of real processes with wake-ups and without: nobody waits for the polling schedule, and
nothing needs wake-ups.
"""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path

import pytest

from examples.story_checks import run_folder
from tests.e2e.harness import ENDLESS, Harness, Row, until

ROOT = Path(__file__).resolve().parents[2]
#: The polling schedule is ten hours long: a task that ends here was noticed by somebody.
NEVER = {"poll_minutes": [600], "limits": {"start_check_s": 0.3}}
SOME = {"max_pages": "12", "delay": "0.1"}


def wake_ups(harness: Harness, name: str = "worker") -> dict[str, object]:
    """Return what a worker's probe reports about its observer."""
    address = harness.stack.supervisor._kept[name].part.health
    assert address is not None
    with urllib.request.urlopen(address, timeout=30) as answer:
        found: dict[str, object] = json.load(answer).get("wake_ups", {})
    return found


def counted(harness: Harness, name: str) -> int:
    """Return how many changes this worker's observer has noticed."""
    return int(str(wake_ups(harness, name).get("noticed", 0)))


def woken(harness: Harness, run_id: int) -> int:
    """Return how many signals the run's workflow got."""
    ((workflow_id,),) = harness.query(
        "SELECT owner_workflow_id FROM run_history WHERE run_id = ?", run_id
    )
    history = json.loads(
        harness.temporal("workflow", "show", "--workflow-id", str(workflow_id)).stdout
    )
    return sum("workflowExecutionSignaledEventAttributes" in event for event in history["events"])


def started(harness: Harness, **keys: Row) -> list[int]:
    """Start a run of ``plain`` with these arguments for each key.

    None ends before its first poll is ten hours away, because an end during the start is found by
    the start itself, without a wake-up.
    """
    with harness.site_stands_still():
        requests = {key: {"crawler": "plain", "args": args, **NEVER} for key, args in keys.items()}
        run_ids = [
            int(harness.gateway.start(request, key)["run_id"]) for key, request in requests.items()
        ]
        until(
            lambda: all(harness.status(run_id) == "PROCESSING" for run_id in run_ids),
            "runs that have started",
        )
    return run_ids


def test_nobody_waits_for_the_ladder(harness: Harness) -> None:
    until(lambda: wake_ups(harness)["observer"] == "up", "an observer that sees")
    run_id, killed = started(harness, noticed=SOME, killed=ENDLESS)
    process = json.loads((run_folder(harness.folder, killed) / "0/1/process.json").read_text())
    os.kill(process["pid"], signal.SIGKILL)
    until(lambda: harness.closed([run_id, killed]), "the end of both runs")
    harness.prove(run_id, "COMPLETED", "finished")
    assert harness.status(killed) == "FAILED"
    assert harness.query("SELECT kind FROM correction WHERE run_id = ?", killed) == [("killed",)]
    assert harness.query("SELECT kind FROM correction WHERE run_id = ?", run_id) == []


def test_counters_are_on_record_between_polls(harness: Harness) -> None:
    """No poll is due for ten hours, but the counters move without an event or another poll."""
    (run_id,) = started(harness, counted={"max_pages": "100000", "delay": "0.2"})

    def moved() -> tuple[Row, Row] | None:
        first = harness.gateway.run(run_id)
        more = until(
            lambda: (run := harness.gateway.run(run_id))["pages"] != first["pages"] and run,
            "other counters",
        )
        # The poll for the run's own start may come between the two.
        return (
            (first, more)
            if first["pages"] and more["verified_at"] == first["verified_at"]
            else None
        )

    first, more = until(moved, "counters that move between polls")
    assert (more["status"], more["pages"] > first["pages"]) == ("PROCESSING", True)
    assert more["last_progress_at"] > more["verified_at"]
    assert more["pages_per_minute"] > 0
    ((pages,),) = harness.query("SELECT pages FROM task_history WHERE run_id = ?", run_id)
    assert pages >= more["pages"]
    harness.gateway.stop(run_id)
    until(lambda: harness.closed([run_id]), "the end of the run")


@pytest.mark.slow
def test_two_workers_notice_the_same_and_send_little(harness: Harness) -> None:
    harness.deploy(ROOT, "worker-2")
    try:
        both = ("worker", "worker-2")
        until(
            lambda: all(wake_ups(harness, name)["observer"] == "up" for name in both),
            "two observers that see",
        )
        before = sum(counted(harness, name) for name in both)
        run_ids = started(harness, **{f"two-{n}": SOME for n in range(3)})
        until(lambda: harness.closed(run_ids), "the end of the runs")
        for run_id in run_ids:
            harness.prove(run_id, "COMPLETED", "finished")
            assert woken(harness, run_id) >= 1
        noticed = sum(counted(harness, name) for name in both) - before
        assert sum(woken(harness, run_id) for run_id in run_ids) <= noticed, (
            "never without a change, never twice for one"
        )
        # A killed one is replaced by the other.
        harness.stack.supervisor.kill("worker", signal.SIGKILL)
        (run_id,) = started(harness, **{"one-left": SOME})
        until(lambda: harness.closed([run_id]), "the end of the run")
        harness.prove(run_id, "COMPLETED", "finished")
    finally:
        harness.undeploy("worker-2")
        harness.stack.supervisor.wait_healthy(["worker"])


def test_what_ended_while_no_worker_was_there_is_noticed_by_the_next(harness: Harness) -> None:
    (run_id,) = started(harness, unseen=ENDLESS)
    process = json.loads((run_folder(harness.folder, run_id) / "0/1/process.json").read_text())
    harness.undeploy()
    os.kill(process["pid"], signal.SIGKILL)
    until((run_folder(harness.folder, run_id) / "0/1/end.json").exists, "the end on file")
    harness.deploy(ROOT)
    until(lambda: harness.closed([run_id]), "the end of the run")
    assert harness.status(run_id) == "FAILED"


@pytest.mark.slow
def test_an_observer_of_its_own_wakes_for_workers_that_do_not_look_out(harness: Harness) -> None:
    harness.deploy(ROOT, LIFECYCLE_WORKER__WAKE_UPS="false")
    try:
        harness.deploy(ROOT, "observer", ["observer"], LIFECYCLE_WORKER__WAKE_UPS="false")
        assert wake_ups(harness) == {}
        until(lambda: wake_ups(harness, "observer")["observer"] == "up", "an observer that sees")
        (run_id,) = started(harness, apart=SOME)
        until(lambda: harness.closed([run_id]), "the end of the run")
        harness.prove(run_id, "COMPLETED", "finished")
        assert woken(harness, run_id) >= 1
    finally:
        harness.undeploy("observer")
        harness.deploy(ROOT)


def test_statuses_are_true_while_temporal_is_away(harness: Harness) -> None:
    """Verdicts wait for Temporal.

    The state of crawlers is recorded without it, and responses say what waits.
    """
    until(lambda: wake_ups(harness)["observer"] == "up", "an observer that sees")
    finished, killed = started(harness, away=SOME, away_killed=ENDLESS)
    process = json.loads((run_folder(harness.folder, killed) / "0/1/process.json").read_text())
    frozen = harness.freeze("temporal")
    try:
        os.kill(process["pid"], signal.SIGKILL)
        until(
            lambda: harness.tasks(killed) == {"FAILED": 1}, "the end of the killed crawl on record"
        )
        until(
            lambda: harness.tasks(finished) == {"SUCCEEDED": 1},
            "the end of the other crawl on record",
        )
        assert harness.query("SELECT exit_signal FROM task_history WHERE run_id = ?", killed) == [
            (9,)
        ]
        assert {harness.status(run_id) for run_id in (finished, killed)} == {"PROCESSING"}
        away = "Temporal has not answered since"
        until(
            lambda: away in (harness.gateway.run(finished)["waiting"] or ""),
            "a run that says what it waits for",
        )
    finally:
        os.kill(frozen, signal.SIGCONT)
    until(lambda: harness.closed([finished, killed]), "the end of both runs")
    harness.prove(finished, "COMPLETED", "finished")
    assert harness.status(killed) == "FAILED"
    assert harness.query("SELECT kind FROM correction WHERE run_id = ?", killed) == [("killed",)]
