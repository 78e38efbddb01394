"""Who is to be woken, and what their last look saw."""

from __future__ import annotations

from datetime import timedelta

from tests.contracts.store.world import OWNER, World, request


def test_a_run_tells_owner_state_and_last_look(world: World) -> None:
    reserved, _ = world.store.initiation.reserve_run(request(), "reserved")
    young = world.run("young")
    running = world.deployed("running")
    world.execute(running)
    looked_at = world.clock.now
    world.clock.forward(60)
    ended = world.deployed("ended")
    world.execute(ended)
    world.finish(ended)
    stopping = world.deployed("stopping")
    world.store.stops.record_stop(stopping.run_id, world.stop(), "s1")

    asked = [running.run_id, ended.run_id, reserved.run_id, young.run_id, stopping.run_id, 999_999]
    found = {t.run_id: t for t in world.store.wake_ups.wake_targets(asked)}
    assert sorted(found) == sorted(asked[:-1])
    assert [found[r].workflow_id for r in asked[:-1]] == [OWNER.workflow_id] * 2 + [None] + [OWNER.workflow_id] * 2
    assert [found[r].ended for r in asked[:-1]] == [False, True, False, False, False]
    assert found[running.run_id].verified_at == looked_at
    assert found[ended.run_id].verified_at == looked_at + timedelta(seconds=60)
    assert found[young.run_id].verified_at is None


def test_nothing_asked_is_nothing_answered(world: World) -> None:
    assert world.store.wake_ups.wake_targets([]) == []
