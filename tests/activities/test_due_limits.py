"""A due time for which there is no room: nothing begins, and its line says why. Nothing waits for an end."""

from __future__ import annotations

import pytest

from crawler_lifecycle.domain.schedules.decision import Decision
from crawler_lifecycle.domain.schedules.definition import ScheduleSpec
from crawler_lifecycle.ports.schedules import DueOrder
from tests.activities.due_cases import GRAPH, MANAGER
from tests.activities.world import START, World


@pytest.mark.parametrize(("kind", "target"), [("manager", MANAGER), ("graph", GRAPH)])
def test_one_too_many_is_on_record_as_that(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str, target: object
) -> None:
    part = {"manager": world.store.managers, "graph": world.store.graphs}[kind]
    monkeypatch.setattr(part, "_most", {f"{kind}s": 0})
    spec = ScheduleSpec(every_s=60, **{kind: target})  # type: ignore[arg-type]
    world.store.schedules.put_schedule("nightly", spec.document(), "ann")
    answer = world.call("decide_due", DueOrder("nightly", START))
    assert (answer.decision, answer.begun, answer.begin) == (Decision.FAILED, None, False)
    line = world.store.schedules.get_due(answer.due_id)
    assert line.target is None
    assert f"0 may be (LIFECYCLE_LIMITS__{kind.upper()}S)" in str(line.reason)
    assert (world.directory.managers_begun, world.directory.graphs_begun) == ({}, {})
