"""Webhooks whose receiver does not accept anything."""

from __future__ import annotations

import pytest

from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.features.webhooks.activities import FAILED_MAX, PAGE, FollowEnd
from crawler_lifecycle.features.webhooks.domain.definition import GIVE_UP_S
from crawler_lifecycle.ports.runs import Fence, Owner
from tests.activities.harness import Harness
from tests.activities.webhook_cases import ORDER, fails_for, made, row


def tell(harness: Harness, fence: Fence, number: int) -> int:
    return harness.store.events.append_event(
        fence, "run.changed", f"{fence.run_id}/{number}", {}
    ).seq


def test_after_a_day_it_is_paused_with_the_reason(harness: Harness) -> None:
    made(harness)
    since = harness.now
    assert fails_for(harness, GIVE_UP_S).how is FollowEnd.PAUSED
    assert row(harness).failing_since == since
    stuck = row(harness).through_seq + 1
    assert (
        row(harness).pause_reason
        == f"event {stuck} was not accepted for a day: the receiver returned 503: closed"
    )


def test_before_that_it_is_tried_again_and_then_forgiven(harness: Harness) -> None:
    made(harness)
    with pytest.raises(NotDelivered, match="503"):
        fails_for(harness, GIVE_UP_S - 1)
    harness.webhooks.fails = None
    assert harness.call("follow_webhook", ORDER).how is FollowEnd.ON
    assert (row(harness).failing_since, row(harness).paused_at) == (None, None)
    assert harness.call("follow_webhook", ORDER).how is FollowEnd.ON
    assert len(harness.webhooks.sent) == len({one.seq for one in harness.webhooks.sent})


def test_a_message_that_cannot_be_made_fails_alone(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that a library raises for one message affects only this message; others in progress
    are not cancelled.
    """
    made(harness)
    odd, well = (
        harness.created(request_id=name, owner=Owner(f"crawl/books/{name}", f"chain-{name}"))
        for name in ("odd", "well")
    )
    tell(harness, odd, 0)
    good = [tell(harness, well, number) for number in range(3)]
    harness.webhooks.fails, harness.webhooks.fails_for = (
        RuntimeError("no header for it"),
        f"runs/{odd.run_id}",
    )
    found = harness.call("follow_webhook", ORDER)
    assert (found.how, found.stuck_seq) == (FollowEnd.FAILING, found_of(harness, odd)[0])
    assert set(good) <= {one.seq for one in harness.webhooks.sent}
    [line] = [
        one
        for one in harness.store.webhooks.list_webhook_deliveries(row(harness).webhook_id)
        if one.error
    ]
    assert line.error == "the event cannot be sent: RuntimeError; see the worker's log"
    assert "no header for it" in caplog.text


def found_of(harness: Harness, fence: Fence) -> list[int]:
    """Return the numbers of the run's events."""
    return [
        one.seq
        for one in harness.store.events.events_after(0)
        if one.subject == f"runs/{fence.run_id}"
    ]


def test_one_that_is_down_is_not_called_for_each_event(harness: Harness) -> None:
    made(harness)
    for number in range(20):
        harness.created(
            request_id=f"more-{number}",
            owner=Owner(f"crawl/books/more-{number}", f"chain-{number}"),
        )
    harness.webhooks.fails = NotDelivered("no response within 10 s")
    with pytest.raises(NotDelivered):
        harness.call("follow_webhook", ORDER)
    lines = harness.store.webhooks.list_webhook_deliveries(row(harness).webhook_id)
    assert FAILED_MAX <= len(lines) <= 8 + FAILED_MAX, "what was under way when it became clear"


def test_behind_one_that_is_never_taken_others_go_on_for_a_thousand_events(
    harness: Harness,
) -> None:
    """The failing run has more events than fit on a page."""
    made(harness)
    stuck, well = (
        harness.created(request_id="stuck", owner=Owner("crawl/books/stuck", "c1")),
        harness.created(request_id="well", owner=Owner("crawl/books/well", "c2")),
    )
    told = [tell(harness, stuck, number) for number in range(2 * PAGE)]
    later = tell(harness, well, 0)
    harness.webhooks.fails = NotDelivered("the receiver returned 400: not that one")
    harness.webhooks.fails_for, harness.shift_s = f"runs/{stuck.run_id}", 600.0
    found = harness.call("follow_webhook", ORDER)
    assert (found.how, row(harness).through_seq) == (FollowEnd.FAILING, found.stuck_seq - 1)
    assert found.stuck_seq <= told[0], "events of its making are before them"
    assert later in {one.seq for one in harness.webhooks.sent}
    harness.webhooks.fails, harness.shift_s = None, 0.0
    while row(harness).through_seq < later:
        assert harness.call("follow_webhook", ORDER).how is FollowEnd.ON
    seqs = [one.seq for one in harness.webhooks.sent if one.subject == f"runs/{stuck.run_id}"]
    assert (seqs, seqs[-1]) == (sorted(seqs), told[-1])


def test_who_asks_for_time_gets_it(harness: Harness) -> None:
    made(harness)
    more = harness.created(request_id="more", owner=Owner("crawl/books/more", "c1"))
    tell(harness, more, 0)
    harness.webhooks.fails, harness.webhooks.fails_for = NotDelivered("429"), f"runs/{more.run_id}"
    harness.webhooks.fails.retry_after_s = 30.0
    found = harness.call("follow_webhook", ORDER)
    assert (found.how, found.wait_s) == (FollowEnd.FAILING, 30.0)
