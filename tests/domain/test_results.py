"""Good runs, their durations, and a crawler whose results silently decrease."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from crawler_lifecycle.domain.results import (
    EARLIER,
    brought_less,
    comparable,
    is_good,
    run_seconds,
    usual,
)
from crawler_lifecycle.ports.runs import RecentRun

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def recent(
    items: int | None,
    status: str = "COMPLETED",
    lacks: str | None = None,
    began: datetime | None = NOW,
    ended: datetime | None = NOW,
    work: str | None = "same",
) -> RecentRun:
    return RecentRun(
        7, "plain", status, None, items, None, lacks, NOW, work, began, ended, None, None
    )


def test_less_than_its_runs_before() -> None:
    for items, less in [
        (
            [100, 200, 190, 210],
            "run 7 produced 100 items; good runs with the same arguments produce 200 (median)",
        ),
        ([140, 200, 190, 210], None),
        ([0, 1, 1, 1], "run 7 produced 0 items; good runs with the same arguments produce 1"),
        ([0, 0, 0, 0], None),
        ([100, 200, 200], None),
        ([], None),
        ([100, None, 200, 190, 210], "produce 200"),
        ([None, 200, 190, 210], None),
    ]:
        said = brought_less([recent(count) for count in items])
        assert list(said) == ([] if less is None else [7]), items
        assert less is None or less in said[7]


def test_only_the_last_twenty_runs_with_the_same_arguments_say_what_is_usual() -> None:
    newest = recent(1)
    others = [recent(200, work="other"), recent(200, work=None)] * 5
    alike = [recent(190), recent(200), recent(210)]
    assert brought_less([newest, *others]) == {}
    assert comparable(recent(1, work=None), [recent(200, work=None)] * 5) == []
    assert usual(comparable(newest, [*others, *alike])) == 200
    failed = [recent(0, "FAILED")] * (EARLIER - 3)
    assert usual(comparable(newest, [*failed, *alike])) == 200
    assert usual(comparable(newest, [*failed, recent(0, "FAILED"), *alike])) is None
    live = [recent(3, "PROCESSING")] * EARLIER
    assert usual(comparable(newest, [*live, *alike])) == 200
    later = NOW + timedelta(seconds=60)
    assert usual([recent(1, ended=later)] * 3, "duration") == 60


def test_runs_that_failed_or_go_on_say_nothing_about_items() -> None:
    others = [recent(0, "FAILED"), recent(3, "PROCESSING")]
    assert brought_less([*others, *(recent(n) for n in (200, 190, 210, 205))]) == {}
    assert "run 7 produced 1 items" in str(
        brought_less([*others, *(recent(n) for n in (1, 190, *[0] * 2, 210, 205, 203))])
    )


def test_only_a_run_that_met_all_expectations_is_good() -> None:
    assert is_good(recent(0))
    assert not is_good(recent(9, lacks="coverage"))
    assert not is_good(recent(9, "FAILED"))
    assert not is_good(recent(9, "PROCESSING"))


def test_a_duration_is_known_from_the_start_and_never_negative() -> None:
    later = NOW + timedelta(minutes=4)
    assert run_seconds(recent(1, ended=later)) == 240
    assert run_seconds(recent(1, began=later)) == 0
    assert run_seconds(recent(1, ended=None)) is None
    assert run_seconds(recent(1, ended=None), later) == 240
    assert run_seconds(recent(1, began=None, ended=None), later) is None
