"""Notes that processes leave for each other, on each database."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from crawler_lifecycle.store.notes import LOGIN, SETTINGS
from crawler_lifecycle.store.store import Store
from tests.contracts.store.harness import Harness
from tests.contracts.store.test_writers import together


def test_a_note_counts_until_its_time_and_is_replaced_by_name(
    harness: Harness, store: Store
) -> None:
    now = harness.clock.now
    leave = store.notes.leave_note
    leave(LOGIN, "a", "", now + timedelta(seconds=10))
    leave(LOGIN, "b", "1", now + timedelta(seconds=20))
    leave(LOGIN, "b", "2", now + timedelta(seconds=30))
    leave(SETTINGS, "a", "x" * 2000, now + timedelta(seconds=10))
    found = [
        (note["name"], note["note"], note["ends_at"]) for note in store.notes.live_notes(LOGIN)
    ]
    assert found == [
        ("a", "", now + timedelta(seconds=10)),
        ("b", "2", now + timedelta(seconds=30)),
    ]
    harness.clock.forward(10)
    assert [note["name"] for note in store.notes.live_notes(LOGIN)] == ["b"]
    assert store.notes.live_notes(SETTINGS) == []


def test_what_is_over_leaves_with_the_next_note(harness: Harness, store: Store) -> None:
    now = harness.clock.now
    store.notes.leave_note(LOGIN, "a", "", now)
    store.notes.leave_note(SETTINGS, "a", "", now)
    harness.clock.forward(1)
    store.notes.leave_note(LOGIN, "b", "", now + timedelta(hours=1))
    harness.clock.forward(-10)
    assert [note["name"] for note in store.notes.live_notes(LOGIN)] == ["b"], (
        "the other one is gone, and not hidden"
    )


def test_many_leave_one_note_at_once(harness: Harness, store: Store) -> None:
    ends_at = harness.clock.now + timedelta(hours=1)
    made = together(
        *(partial(store.notes.leave_note, LOGIN, "a", str(n), ends_at) for n in range(6))
    )
    assert made == [None] * 6
    made = together(
        *(partial(store.notes.leave_note, LOGIN, str(n), "", ends_at) for n in range(6))
    )
    assert made == [None] * 6
    assert len(store.notes.live_notes(LOGIN)) == 7
