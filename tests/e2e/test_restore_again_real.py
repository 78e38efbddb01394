"""A second restore of the database from the same copy: every run gets a true outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import AUDITS, Harness, until
from tests.e2e.test_audit_real import crawlers_of
from tests.e2e.test_restore_real import catalogue, copied, put_back, started, uid

Again = Callable[[], Harness]


@pytest.fixture
def again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Again]:
    """Starts a stack in the same folder; the last one is ended with everything that executes."""
    monkeypatch.setenv("LIFECYCLE_CLUSTER__SLOTS", "8")
    for name, value in AUDITS.items():
        monkeypatch.setenv(name, value)
    file = catalogue(tmp_path)
    harnesses: list[Harness] = []

    def start() -> Harness:
        harness = Harness(tmp_path / "state", crawlers=file)
        harnesses.append(harness)
        harness.start()
        return harness

    try:
        yield start
    finally:
        harnesses[-1].end()


def halt(harness: Harness) -> None:
    """Stop only the services: crawls continue."""
    harness._open.close()
    harness.stack.stop()


def endless(harness: Harness) -> int:
    run_id = started(harness, 3600)
    until(lambda: harness.tasks(run_id) == {"RUNNING": 1}, "a task that runs")
    return run_id


def ended(harness: Harness) -> int:
    run_id = started(harness, 0)
    until(lambda: harness.closed([run_id]), "the end of a short run")
    assert harness.status(run_id) == "COMPLETED"
    return run_id


def stop(harness: Harness, *run_ids: int) -> None:
    """Check that they end like any stopped run, in the first attempt of their only task."""
    for run_id in run_ids:
        harness.gateway.stop(run_id)
    until(lambda: harness.closed(run_ids), "the ends of those that were stopped")
    for run_id in run_ids:
        run = harness.gateway.run(run_id)
        assert (run["status"], run["outcome"]) == ("FAILED", "cancelled")
        assert harness.query(
            "SELECT attempt, status FROM task_history WHERE run_id = ?", run_id
        ) == [(1, "CANCELLED")]
        assert crawlers_of(harness, run_id) == []


def audited(harness: Harness, unknown: str = "leave") -> dict[str, Any]:
    """Return the report of an audit that repairs what it may."""
    answer = harness.gateway.post("/v1/audit", {"repair": True, "unknown": unknown})
    report: dict[str, Any] = until(
        lambda: answer.get("report") or harness.gateway.audit_report(answer["audit_id"]),
        "the report of the audit",
    )
    assert report["troubles"] == []
    return report


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_second_restore_from_the_same_copy_is_as_the_first(again: Again, tmp_path: Path) -> None:
    """Runs in between get higher numbers than earlier ones, and none is taken for another."""
    harness = again()
    before, copy = ended(harness), tmp_path / "copy.db"
    database = harness.places.path("database")
    copied(database, copy)
    lost = {(one := endless(harness)): uid(harness, one)}
    given = [before, *lost]
    for _ in range(2):
        halt(harness)
        put_back(copy, database)
        harness = again()
        given.append(between := endless(harness))
        assert given == sorted(set(given)), "a number that was given is not given again"
        report = audited(harness)
        unknown = {f["run_id"] for f in report["findings"] if f["kind"] in ("orphan", "no_row")}
        assert unknown == set(lost), "what was begun since is not among them"
        assert not {"orphan", "no_row"} & report["repaired"].keys(), "nobody said so"
        assert audited(harness, "adopt")["left"] == 0
        lost[between] = uid(harness, between)
        assert {run_id: uid(harness, run_id) for run_id in lost} == lost
        assert len(set(lost.values())) == len(lost)
        until(
            lambda: all(harness.tasks(run_id) == {"RUNNING": 1} for run_id in lost),  # noqa: B023
            "all that run again",
            60,
        )
    assert all(len(crawlers_of(harness, run_id)) > 0 for run_id in lost), (
        "they executed all the time"
    )
    stop(harness, *lost)
    assert harness.query("SELECT kind FROM correction WHERE kind <> 'late'") == []
    assert (harness.status(before), harness.open_runs()) == ("COMPLETED", [])
    assert audited(harness)["left"] == 0
