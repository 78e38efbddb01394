"""What reaches a run while nothing can be recorded."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.features.managers.workflows.manager_state import ManagerInbox
from crawler_lifecycle.workflows.calls import StepInterrupted
from crawler_lifecycle.workflows.state import HEARD_MAX, Inbox

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ADA = StopIntent(NOW, requested_by="ada", reason="enough")
EVE = StopIntent(NOW + timedelta(seconds=1), requested_by="eve", reason="no more")
STALLED = StopIntent(NOW, limit="cancelled (stalled)")


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
    # Clocks of two gateways differ: the second stop may have the earlier time.
    inbox.want_stop(StopIntent(NOW - timedelta(seconds=5)), "second")
    assert not inbox.changed
    inbox.want_stop(StopIntent(NOW, force=True), "third")
    assert inbox.changed


@pytest.mark.parametrize(
    ("before", "later", "adds"),
    [
        (ADA, ADA, False),
        (ADA, EVE, False),
        (EVE, ADA, False),
        (ADA, StopIntent(NOW), False),
        (ADA, STALLED, False),
        (ADA, replace(EVE, force=True), True),
        (replace(ADA, force=True), EVE, False),
        (replace(ADA, force=True), replace(EVE, force=True), False),
        (ADA, replace(ADA, force=True, escalated=True), True),
        (replace(ADA, force=True, escalated=True), replace(EVE, force=True), False),
        (STALLED, ADA, True),
        (STALLED, STALLED, False),
        (STALLED, replace(STALLED, limit="timed_out"), False),
        (STALLED, replace(STALLED, force=True, escalated=True), True),
    ],
)
@pytest.mark.parametrize("owner", ["run", "manager"])
def test_force_and_a_person_after_a_limit_add_something_and_other_words_do_not(
    owner: str, before: StopIntent, later: StopIntent, adds: bool
) -> None:
    inbox = Inbox() if owner == "run" else ManagerInbox()

    def want(stop: StopIntent) -> None:
        if isinstance(inbox, ManagerInbox):
            inbox.want(stop)
        else:
            inbox.want_stop(stop, None)

    want(before)
    assert inbox.changed
    inbox.changed = False
    want(later)
    assert inbox.changed is adds


def test_what_could_not_be_recorded_waits_and_is_still_news() -> None:
    inbox = _stopped(1)

    def interrupted() -> None:
        with inbox.taken():
            inbox.want_stop(EVE, "r1")
            raise StepInterrupted

    with pytest.raises(StepInterrupted):
        interrupted()
    assert [h.request_id for h in inbox.heard] == ["r0", "r1"]
    assert inbox.changed


def test_a_manager_s_stop_that_leaves_its_runs_no_longer_adds_something() -> None:
    inbox = ManagerInbox()
    for leave, adds in ((True, True), (True, False), (False, True), (False, False), (True, False)):
        inbox.changed = False
        inbox.want(ADA, leave=leave)
        assert inbox.changed is adds


def test_force_that_the_database_knew_first_adds_something_once() -> None:
    """The gateway records a stop before it sends the signal: a poll may read it in between."""
    inbox = Inbox()
    inbox.recorded_stop(ADA)
    assert not inbox.changed, "the first of all is carried out as it is"
    inbox.recorded_stop(EVE)
    assert not inbox.changed
    inbox.recorded_stop(replace(ADA, force=True))
    assert inbox.changed
    inbox.changed = False
    inbox.recorded_stop(replace(ADA, force=True))
    inbox.want_stop(replace(ADA, force=True), "s2")
    assert not inbox.changed
