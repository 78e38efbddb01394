"""The stall rule: only time that polls cover counts, and progress resets it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.stall import PUNCTUAL_SECONDS, Reading, quiet_time, stalled

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return T0 + timedelta(minutes=minutes)


def reading(
    minutes: float, *, executing: bool = True, moved: bool = False, counted: bool = True
) -> Reading:
    return Reading(at(minutes), executing, moved, counted)


def test_two_polls_vouch_for_the_time_between_them() -> None:
    assert quiet_time(timedelta(0), at(0), at(15), False, reading(15)) == timedelta(minutes=15)
    assert quiet_time(timedelta(minutes=15), at(15), at(30), False, reading(30)) == timedelta(
        minutes=30
    )


def test_a_first_poll_vouches_for_nothing() -> None:
    assert quiet_time(timedelta(0), None, None, False, reading(15)) == timedelta(0)


def test_progress_sets_it_back() -> None:
    assert quiet_time(
        timedelta(minutes=59), at(0), at(15), False, reading(15, moved=True)
    ) == timedelta(0)


def test_a_run_that_only_waits_or_cannot_be_read_is_not_quiet() -> None:
    assert quiet_time(
        timedelta(minutes=59), at(0), at(15), False, reading(15, executing=False)
    ) == timedelta(0)


def test_a_crawler_that_never_counted_never_stalls() -> None:
    assert quiet_time(
        timedelta(minutes=59), at(0), at(15), False, reading(15, counted=False)
    ) == timedelta(0)


def test_one_that_never_counted_is_as_quiet_as_its_crawlers() -> None:
    """But polls have to cover that time like any other, and clocks may be wrong."""

    def quiet(silent: float) -> timedelta:
        now = Reading(at(30), True, False, False, timedelta(minutes=silent))
        return quiet_time(timedelta(minutes=15), at(15), at(30), False, now)

    assert quiet(0) == timedelta(0)
    assert quiet(20) == timedelta(minutes=20)
    assert quiet(900) == timedelta(minutes=30)
    assert quiet(-5) == timedelta(0)


def test_one_that_counts_is_judged_by_its_counters_alone() -> None:
    """It prints every minute that nothing happens."""
    now = Reading(at(15), True, False, True, timedelta(0))
    assert quiet_time(timedelta(0), at(0), at(15), False, now) == timedelta(minutes=15)


def test_time_in_which_polls_failed_counts_for_nothing_and_takes_nothing_away() -> None:
    before = timedelta(minutes=40)
    assert quiet_time(before, at(0), at(15), True, reading(200)) == before


def test_time_in_which_nobody_polled_counts_as_far_as_it_was_planned() -> None:
    quiet = quiet_time(timedelta(0), at(0), at(15), False, reading(600))
    assert quiet == timedelta(minutes=15, seconds=PUNCTUAL_SECONDS)


def test_the_limit_is_reached_exactly_and_can_be_off() -> None:
    assert stalled(timedelta(hours=1), 3600.0)
    assert not stalled(timedelta(seconds=3599.999), 3600.0)
    assert not stalled(timedelta(days=900), None)


minutes = st.floats(min_value=0, max_value=10_000, allow_nan=False)


@given(
    st.lists(st.tuples(minutes, st.booleans(), st.booleans(), st.booleans()), max_size=30), minutes
)
def test_never_more_than_the_time_since_the_last_progress(
    polls: list[tuple[float, bool, bool, bool]], gap: float
) -> None:
    """Whatever polls come, with whatever clocks, it never exceeds the time since the last sign of
    life.
    """
    quiet, last, since = timedelta(0), None, None
    for when, executing, moved, failed in sorted(polls):
        now = Reading(at(when), executing, moved, True)
        planned = None if last is None else last + timedelta(minutes=gap)
        quiet = quiet_time(quiet, last, planned, failed, now)
        if since is None or moved or not executing:
            since = now.observed_at
        assert timedelta(0) <= quiet <= now.observed_at - since
        last = now.observed_at
