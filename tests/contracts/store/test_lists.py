"""The list of runs against a list of our own, and the deliveries of a run."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest

from crawler_lifecycle.adapters.database.reads.run_lists import CLOCK_SLACK
from crawler_lifecycle.domain.run import RunStatus, Stage, Trigger
from crawler_lifecycle.ports import RunRow
from tests.contracts.store.world import OWNER, START, World, request

RUNS = 60
TAGS = ["nightly", "Nightly", "a b", "zürich", "half \ud800", "spaced "]


@pytest.fixture
def many(world: World) -> list[RunRow]:
    """Runs that differ in everything that can be asked for; the clocks of their creators differ by minutes."""
    chosen = random.Random(7)
    for n in range(RUNS):
        world.clock.now = START + timedelta(minutes=10 * n) + CLOCK_SLACK * chosen.uniform(-0.49, 0.49)
        name = f"r{n}"
        fields: dict[str, Any] = {
            "crawler": chosen.choice(["services", "sitemap"]),
            "trigger": chosen.choice(list(Trigger)),
            "parent": chosen.choice(["parent-1", None]),
            "flow_id": chosen.choice([None, "flow-1", "flow-2"]),
            "tags": chosen.sample(TAGS, chosen.randrange(3)),
        }
        kind = chosen.randrange(5)
        if kind == 0:
            world.store.initiation.reserve_run(request(**fields), name)
            continue
        fence = world.deployed(name, **fields)
        if kind > 1:
            world.execute(fence)
        if kind > 2:
            world.finish(fence, failed=[0] if kind == 4 else [])
    rows = [row for n in range(RUNS) if (row := world.store.runs.find_run(f"r{n}")) is not None]
    return sorted(rows, key=lambda row: -row.run_id)


def fits(row: RunRow, wanted: Mapping[str, Any]) -> bool:
    plain = all(
        getattr(row, name) == wanted[name]
        for name in ("stage", "crawler", "trigger", "outcome", "flow_id", "parent")
        if name in wanted
    )
    tags = [tag.replace("\ud800", "?").rstrip() for tag in row.request["tags"]]  # type: ignore[attr-defined]
    return (
        plain
        and ("status" not in wanted or row.status.value in wanted["status"])
        and all(tag.replace("\ud800", "?").rstrip() in tags for tag in wanted.get("tags", ()))
        and ("created_from" not in wanted or row.created_at >= wanted["created_from"])
        and ("created_until" not in wanted or row.created_at < wanted["created_until"])
        and ("before_run_id" not in wanted or row.run_id < wanted["before_run_id"])
    )


def any_filter(chosen: random.Random, rows: list[RunRow]) -> dict[str, Any]:
    def moment() -> datetime:
        return chosen.choice(rows).created_at + timedelta(microseconds=chosen.choice([-1, 0, 1]))

    possible: dict[str, Any] = {
        "status": chosen.sample([status.value for status in RunStatus], chosen.randrange(1, 5)),
        "stage": chosen.choice(list(Stage)).value,
        "crawler": chosen.choice(["services", "sitemap", "nobody"]),
        "trigger": chosen.choice(list(Trigger)).value,
        "outcome": chosen.choice(["finished", "failed"]),
        "flow_id": chosen.choice(["flow-1", "Flow-1"]),
        "parent": chosen.choice(["parent-1", "Parent-1"]),
        "tags": chosen.sample(TAGS, chosen.choice([1, 1, 2])),
        "created_from": moment(),
        "created_until": moment(),
        "before_run_id": chosen.choice(rows).run_id,
    }
    return {name: possible[name] for name in chosen.sample(sorted(possible), chosen.choice([1, 1, 2, 2, 3, 4]))}


def test_every_combination_of_filters(world: World, many: list[RunRow]) -> None:
    chosen, found = random.Random(11), 0
    for _ in range(250):
        wanted, limit = any_filter(chosen, many), chosen.choice([3, 50])
        expected = [row for row in many if fits(row, wanted)][:limit]
        assert world.store.runs.list_runs(**wanted, limit=limit) == expected, wanted
        found += bool(expected)
    assert found > 100, "most filters found something"


def test_pages_of_a_filter_meet(world: World, many: list[RunRow]) -> None:
    wanted: dict[str, Any] = {"status": ["INITIALIZING", "PROCESSING", "COMPLETED"], "created_from": START}
    pages: list[RunRow] = []
    before = None
    while page := world.store.runs.list_runs(**wanted, limit=7, before_run_id=before):
        pages += page
        before = page[-1].run_id
    assert pages == [row for row in many if fits(row, wanted)]


def test_enumerations_are_taken_for_their_values(world: World, many: list[RunRow]) -> None:
    by_enum = world.store.runs.list_runs(status=[RunStatus.FAILED], stage=Stage.COMPLETION, trigger=Trigger.API)
    assert by_enum == world.store.runs.list_runs(status=["FAILED", "FAILED"], stage="completion", trigger="api")
    assert by_enum


def test_tags_that_one_database_takes_for_the_same(world: World) -> None:
    world.run(tags=["a", "a", "a ", "half \ud800", "half ?"])
    for tag in ("a", "a  ", "half \ud800", "half ?"):
        assert len(world.store.runs.list_runs(tags=[tag])) == 1
    assert world.store.runs.list_runs(tags=["A"]) == []


def test_a_stage_follows_its_run(world: World) -> None:
    fence = world.run()

    def listed(stage: str) -> int:
        return len(world.store.runs.list_runs(stage=stage))

    assert listed("initiation") == 1
    world.deploy(fence)
    assert (listed("initiation"), listed("deployment")) == (0, 1)
    world.execute(fence)
    assert listed("reconciliation") == 1
    world.finish(fence)
    assert listed("completion") == 1


# --- deliveries -------------------------------------------------------------------------------------------------


def test_nothing_to_deliver(world: World) -> None:
    fence = world.run()
    world.store.deployment.note_waiting(fence, "quota")
    assert world.store.events.deliveries(fence.run_id) == []
    assert world.store.events.deliveries(fence.run_id + 1000) == []


def test_deliveries_of_a_run(world: World) -> None:
    fence = world.deployed()
    other = world.deployed("r2")
    started = world.store.events.append_event(fence, "run.started", f"{fence.run}/1/run.started", {})
    world.execute(fence)
    world.finish(fence)
    world.finish(other)
    ended = world.store.events.find_event(f"{fence.run}/1/run.ended")
    assert ended is not None
    nobody: dict[str, object] = {"sink": None, "error": None, "delivered_at": None, "status": "pending", "tries": 0}
    start = {"seq": started.seq, "type": "run.started", "attempt": 1}
    end = {"seq": ended.seq, "type": "run.ended", "attempt": 1}
    assert world.store.events.deliveries(fence.run_id) == [start | nobody, end | nobody]

    world.store.events.record_delivery(started.seq, "pusher", "refused")
    world.store.events.record_delivery(started.seq, "pusher", "refused again")
    world.store.events.record_delivery(ended.seq, "events", "unreachable")
    world.clock.forward(5)
    world.store.events.record_delivery(ended.seq, "events", None)
    world.store.events.record_delivery(ended.seq, "pusher", None)
    done = {"status": "delivered", "error": None, "delivered_at": world.clock.now}
    assert world.store.events.deliveries(fence.run_id) == [
        start | {"sink": "pusher", "status": "failed", "tries": 2, "error": "refused again", "delivered_at": None},
        end | done | {"sink": "events", "tries": 2},
        end | done | {"sink": "pusher", "tries": 1},
    ]
    assert [one["status"] for one in world.store.events.deliveries(other.run_id)] == ["pending"]


def test_a_change_that_was_pushed_is_shown(world: World) -> None:
    fence = world.run()
    [changed] = [event for event in world.store.events.events_after(0) if event.type == "run.changed"]
    world.store.events.record_delivery(changed.seq, "pusher", "hung")
    [shown] = world.store.events.deliveries(fence.run_id)
    assert (shown["type"], shown["status"], shown["error"]) == ("run.changed", "failed", "hung")


def test_deliveries_of_every_attempt(world: World) -> None:
    fence = world.deployed(owner=OWNER)
    world.finish(fence, failed=[0])
    second = world.resume(fence)
    world.deploy(second)
    world.finish(second)
    assert [(one["attempt"], one["status"]) for one in world.store.events.deliveries(fence.run_id)] == [
        (1, "pending"),
        (2, "pending"),
    ]
