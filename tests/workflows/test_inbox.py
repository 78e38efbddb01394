"""What reaches a run while nothing can be recorded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.workflows.state import HEARD_MAX, Inbox

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _stopped(count: int) -> Inbox:
    inbox = Inbox()
    for number in range(count):
        inbox.want_stop(StopIntent(NOW, requested_by=f"somebody {number}"), f"r{number}")
    return inbox


def test_every_stop_waits_for_its_row() -> None:
    inbox = _stopped(HEARD_MAX)
    assert [h.request_id for h in inbox.heard] == [f"r{n}" for n in range(HEARD_MAX)]
    assert inbox.notes == []


def test_a_flood_is_cut_and_said_once() -> None:
    inbox = _stopped(HEARD_MAX + 50)
    assert [h.request_id for h in inbox.heard] == [f"r{n}" for n in range(50, HEARD_MAX + 50)]
    assert len(inbox.notes) == 1
    assert "are not logged" in inbox.notes[0]
    assert inbox.stop is not None
    assert inbox.stop.requested_by == "somebody 0", "the first one is the stop"


def test_the_same_request_again_is_the_same() -> None:
    inbox = _stopped(3)
    inbox.want_stop(StopIntent(NOW), "r1")
    assert len(inbox.heard) == 3


def test_only_a_wish_that_adds_something_interrupts_and_an_earlier_time_adds_nothing() -> None:
    inbox = Inbox()
    inbox.want_stop(StopIntent(NOW), "first")
    with inbox.taken():
        assert not inbox.changed
    # Clocks of two gateways differ: what came second may have been asked for first.
    inbox.want_stop(StopIntent(NOW - timedelta(seconds=5)), "second")
    assert not inbox.changed
    inbox.want_stop(StopIntent(NOW, force=True), "third")
    assert inbox.changed
