"""What becomes of a webhook that nothing gets through to."""

from __future__ import annotations

import pytest

from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.features.webhooks.activities import FAILED_MAX, PAGE, FollowEnd
from crawler_lifecycle.features.webhooks.domain.definition import GIVE_UP_S
from crawler_lifecycle.ports.runs import Fence, Owner
from tests.activities.webhook_cases import ORDER, fails_for, made, row
from tests.activities.world import World


def tell(world: World, fence: Fence, number: int) -> int:
    return world.store.events.append_event(fence, "run.changed", f"{fence.run_id}/{number}", {}).seq


def test_after_a_day_it_is_paused_with_the_reason(world: World) -> None:
    made(world)
    since = world.now
    assert fails_for(world, GIVE_UP_S).how is FollowEnd.PAUSED
    assert row(world).failing_since == since
    stuck = row(world).through_seq + 1
    assert (
        row(world).pause_reason
        == f"event {stuck} was not accepted for a day: the receiver answered 503: closed"
    )


def test_before_that_it_is_tried_again_and_then_forgiven(world: World) -> None:
    made(world)
    with pytest.raises(NotDelivered, match="503"):
        fails_for(world, GIVE_UP_S - 1)
    world.webhooks.fails = None
    assert world.call("follow_webhook", ORDER).how is FollowEnd.ON
    assert (row(world).failing_since, row(world).paused_at) == (None, None)
    assert world.call("follow_webhook", ORDER).how is FollowEnd.ON
    assert len(world.webhooks.sent) == len({one.seq for one in world.webhooks.sent})


def test_a_message_that_cannot_be_made_fails_alone(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a library raises about one message is of that message: others under way are not
    cancelled.
    """
    made(world)
    odd, well = (
        world.created(request_id=name, owner=Owner(f"crawl/books/{name}", f"chain-{name}"))
        for name in ("odd", "well")
    )
    tell(world, odd, 0)
    good = [tell(world, well, number) for number in range(3)]
    world.webhooks.fails, world.webhooks.fails_for = (
        RuntimeError("no header for it"),
        f"runs/{odd.run_id}",
    )
    found = world.call("follow_webhook", ORDER)
    assert (found.how, found.stuck_seq) == (FollowEnd.FAILING, found_of(world, odd)[0])
    assert set(good) <= {one.seq for one in world.webhooks.sent}
    [line] = [
        one
        for one in world.store.webhooks.list_webhook_deliveries(row(world).webhook_id)
        if one.error
    ]
    assert line.error == "the event cannot be sent: RuntimeError; see the worker's log"
    assert "no header for it" in caplog.text


def found_of(world: World, fence: Fence) -> list[int]:
    """The numbers of the events of a run."""
    return [
        one.seq
        for one in world.store.events.events_after(0)
        if one.subject == f"runs/{fence.run_id}"
    ]


def test_one_that_is_down_is_not_called_for_each_event(world: World) -> None:
    made(world)
    for number in range(20):
        world.created(
            request_id=f"more-{number}",
            owner=Owner(f"crawl/books/more-{number}", f"chain-{number}"),
        )
    world.webhooks.fails = NotDelivered("no answer within 10 s")
    with pytest.raises(NotDelivered):
        world.call("follow_webhook", ORDER)
    lines = world.store.webhooks.list_webhook_deliveries(row(world).webhook_id)
    assert FAILED_MAX <= len(lines) <= 8 + FAILED_MAX, "what was under way when it became clear"


def test_behind_one_that_is_never_taken_others_go_on_for_a_thousand_events(world: World) -> None:
    """Its run has more events than a page."""
    made(world)
    stuck, well = (
        world.created(request_id="stuck", owner=Owner("crawl/books/stuck", "c1")),
        world.created(request_id="well", owner=Owner("crawl/books/well", "c2")),
    )
    told = [tell(world, stuck, number) for number in range(2 * PAGE)]
    later = tell(world, well, 0)
    world.webhooks.fails = NotDelivered("the receiver answered 400: not that one")
    world.webhooks.fails_for, world.shift_s = f"runs/{stuck.run_id}", 600.0
    found = world.call("follow_webhook", ORDER)
    assert (found.how, row(world).through_seq) == (FollowEnd.FAILING, found.stuck_seq - 1)
    assert found.stuck_seq <= told[0], "events of its making are before them"
    assert later in {one.seq for one in world.webhooks.sent}
    world.webhooks.fails, world.shift_s = None, 0.0
    while row(world).through_seq < later:
        assert world.call("follow_webhook", ORDER).how is FollowEnd.ON
    seqs = [one.seq for one in world.webhooks.sent if one.subject == f"runs/{stuck.run_id}"]
    assert (seqs, seqs[-1]) == (sorted(seqs), told[-1])


def test_who_asks_for_time_gets_it(world: World) -> None:
    made(world)
    more = world.created(request_id="more", owner=Owner("crawl/books/more", "c1"))
    tell(world, more, 0)
    world.webhooks.fails, world.webhooks.fails_for = NotDelivered("429"), f"runs/{more.run_id}"
    world.webhooks.fails.retry_after_s = 30.0
    found = world.call("follow_webhook", ORDER)
    assert (found.how, found.wait_s) == (FollowEnd.FAILING, 30.0)
