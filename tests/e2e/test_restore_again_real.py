"""A second restore of the database from the same copy: everything comes to a true end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_audit_real import crawlers_of
from tests.e2e.test_restore_real import catalogue, copied, put_back, started, uid
from tests.e2e.world import AUDITS, World, until

Again = Callable[[], World]


@pytest.fixture
def again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Again]:
    """Starts a stack over one and the same folder; the last one is ended with all that executes."""
    monkeypatch.setenv("LIFECYCLE_CLUSTER__SLOTS", "8")
    for name, value in AUDITS.items():
        monkeypatch.setenv(name, value)
    file = catalogue(tmp_path)
    worlds: list[World] = []

    def start() -> World:
        world = World(tmp_path / "state", crawlers=file)
        worlds.append(world)
        world.start()
        return world

    try:
        yield start
    finally:
        worlds[-1].end()


def halt(world: World) -> None:
    """Services only: what is crawled goes on."""
    world._open.close()
    world.stack.stop()


def endless(world: World) -> int:
    run_id = started(world, 3600)
    until(lambda: world.tasks(run_id) == {"RUNNING": 1}, "a task that runs")
    return run_id


def ended(world: World) -> int:
    run_id = started(world, 0)
    until(lambda: world.closed([run_id]), "the end of a short run")
    assert world.status(run_id) == "COMPLETED"
    return run_id


def stop(world: World, *run_ids: int) -> None:
    """They end as any run that is stopped, in the first attempt of their one task."""
    for run_id in run_ids:
        world.gateway.stop(run_id)
    until(lambda: world.closed(run_ids), "the ends of those that were stopped")
    for run_id in run_ids:
        run = world.gateway.run(run_id)
        assert (run["status"], run["outcome"]) == ("FAILED", "cancelled")
        assert world.query("SELECT attempt, status FROM task_history WHERE run_id = ?", run_id) == [
            (1, "CANCELLED")
        ]
        assert crawlers_of(world, run_id) == []


def audited(world: World, unknown: str = "leave") -> dict[str, Any]:
    """The report of an audit that repairs what it may."""
    answer = world.gateway.post("/v1/audit", {"repair": True, "unknown": unknown})
    report: dict[str, Any] = until(
        lambda: answer.get("report") or world.gateway.audit_report(answer["audit_id"]),
        "the report of the audit",
    )
    assert report["troubles"] == []
    return report


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_second_restore_from_the_same_copy_is_as_the_first(again: Again, tmp_path: Path) -> None:
    """Runs in between are above those of before it, and none of either is taken for another."""
    world = again()
    before, copy = ended(world), tmp_path / "copy.db"
    database = world.places.path("database")
    copied(database, copy)
    lost = {(one := endless(world)): uid(world, one)}
    given = [before, *lost]
    for _ in range(2):
        halt(world)
        put_back(copy, database)
        world = again()
        given.append(between := endless(world))
        assert given == sorted(set(given)), "a number that was given is not given again"
        report = audited(world)
        unknown = {f["run_id"] for f in report["findings"] if f["kind"] in ("orphan", "no_row")}
        assert unknown == set(lost), "what was begun since is not among them"
        assert not {"orphan", "no_row"} & report["repaired"].keys(), "nobody said so"
        assert audited(world, "adopt")["left"] == 0
        lost[between] = uid(world, between)
        assert {run_id: uid(world, run_id) for run_id in lost} == lost
        assert len(set(lost.values())) == len(lost)
        until(
            lambda: all(world.tasks(run_id) == {"RUNNING": 1} for run_id in lost),  # noqa: B023
            "all that run again",
            60,
        )
    assert all(len(crawlers_of(world, run_id)) > 0 for run_id in lost), "they executed all the time"
    stop(world, *lost)
    assert world.query("SELECT kind FROM correction WHERE kind <> 'late'") == []
    assert (world.status(before), world.open_runs()) == ("COMPLETED", [])
    assert audited(world)["left"] == 0
