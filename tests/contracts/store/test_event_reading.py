"""How the outbox is read: of all runs or of one, from any number on, and what was delivered of it."""

from __future__ import annotations

from tests.contracts.store.world import World


def test_the_events_of_one_run_are_found_among_all(world: World) -> None:
    assert world.store.events.last_event_seq() == 0
    one, two = world.deployed("r1"), world.deployed("r2")
    for n in range(6):
        world.store.events.append_event(one if n % 3 else two, "told", f"told-{n}", {"n": n})
    told = world.store.events.events_after(0)
    assert world.store.events.last_event_seq() == told[-1].seq == len(told)
    for fence in (one, two):
        mine = [event for event in told if event.run_id == fence.run_id]
        assert world.store.events.events_after(0, run_id=fence.run_id) == mine
        assert world.store.events.events_after(mine[0].seq, 1, fence.run_id) == mine[1:2]
        assert world.store.events.events_after(told[-1].seq, run_id=fence.run_id) == []


def test_deliveries_of_mere_news_can_be_left_out(world: World) -> None:
    fence = world.deployed()
    news = world.store.events.events_after(0)[-1]
    assert news.type == "run.changed"
    kept = world.store.events.append_event(fence, "told", "told", {})
    world.store.events.record_delivery(news.seq, "pusher", "refused")
    assert [row["seq"] for row in world.store.events.deliveries(fence.run_id)] == [news.seq, kept.seq]
    assert [(row["seq"], row["status"]) for row in world.store.events.deliveries(fence.run_id, keyed=True)] == [
        (kept.seq, "pending")
    ]
