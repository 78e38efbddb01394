"""Bounds of numbers, times and texts from outside: one table for requests, one reader for crawlers'
reports.
"""

from __future__ import annotations

import math
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.bounds import LIMITS
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.names import TASKS_PER_RUN_MAX
from crawler_lifecycle.domain.resources import parse_cpu, parse_memory
from crawler_lifecycle.domain.run import Limits, RunRequest
from crawler_lifecycle.runner import contract

#: Invalid for every field of a request, whatever its unit.
ABSURD = (math.nan, math.inf, -math.inf, 1e308, 2**63, -1, -(2**63), True, "5", 10**400)
anything = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.lists(st.integers())
)


def request_with(name: str, value: object) -> RunRequest:
    """Return a request in which one field of the table has this value."""
    if name.startswith("limits."):
        return RunRequest(crawler="a", limits=Limits(**{name.removeprefix("limits."): value}))  # type: ignore[arg-type]
    given = {name: [value] if name == "poll_minutes" else value}
    return RunRequest(**{"crawler": "a", **given})  # type: ignore[arg-type]


def test_the_table_knows_every_number_of_a_request() -> None:
    asked = {f"limits.{one.name}" for one in fields(Limits)}
    asked |= {f.name for f in fields(RunRequest) if "int" in str(f.type) or "float" in str(f.type)}
    # Nobody sends the number of a canary.
    assert (asked | {"attempt"}) - {"canary"} == set(LIMITS)


@pytest.mark.parametrize("name", [name for name in LIMITS if name != "attempt"])
@pytest.mark.parametrize("value", ABSURD, ids=lambda value: repr(value)[:20])
def test_a_number_that_cannot_be_is_refused_with_field_value_and_fix(
    name: str, value: object
) -> None:
    with pytest.raises(
        InvalidRequest, match=rf"^{name}(\[0\])?: .+ is not allowed; give a "
    ) as caught:
        request_with(name, value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", [name for name in LIMITS if name != "attempt"])
def test_the_bounds_themselves_are_allowed_and_work(name: str) -> None:
    """Dates, timers and the wire format can represent the largest number."""
    bound = LIMITS[name]
    most = int(bound.most) if bound.whole else bound.most
    request_with(name, most)
    with pytest.raises(InvalidRequest):
        request_with(name, most + 1)
    if bound.unit:
        seconds = float(most) * (60 if bound.unit == "minutes" else 1)
        assert datetime(2099, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds) < datetime(
            2101, 1, 1, tzinfo=UTC
        )
        assert math.isfinite(seconds * 1e9)
        assert seconds * 1e9 < 2**63  # nanoseconds, as in Temporal's server
    if bound.above:
        with pytest.raises(InvalidRequest):
            request_with(name, bound.least)
        with pytest.raises(InvalidRequest):
            request_with(name, -0.0)
    else:
        request_with(name, bound.least)


@pytest.mark.parametrize("year", [1, 1969, 2101, 9999])
def test_a_due_time_lies_within_the_years_of_our_rows_and_names_its_zone(year: int) -> None:
    with pytest.raises(
        InvalidRequest, match=r"^due_at: .+ give a time in the years 1970 to 2100 with its zone"
    ):
        RunRequest(crawler="a", due_at=datetime(year, 1, 1, tzinfo=UTC))
    with pytest.raises(InvalidRequest, match=r"^due_at: "):
        RunRequest(crawler="a", due_at=datetime(2026, 1, 1))
    at = datetime(2100, 12, 31, tzinfo=timezone(timedelta(hours=14)))
    assert RunRequest(crawler="a", due_at=at).due_at == at


@pytest.mark.parametrize("text", ["1e308", "9e18Ki", "nan", "inf", "-1", "0", "1e400", str(2**63)])
def test_quantities_have_an_end(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^resources\.memory: "):
        parse_memory(text)


@pytest.mark.parametrize("text", ["1e308", "nan", "inf", "-1", "0", "100001", "1e9m"])
def test_processors_have_an_end(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^resources\.cpu: "):
        parse_cpu(text)


def test_a_catalogue_entry_asks_the_same_table() -> None:
    with pytest.raises(InvalidRequest, match=r"^limits\.run_timeout_s: 1e\+308"):
        CrawlerDefinition("a", project="p", limits={"run_timeout_s": 1e308})
    with pytest.raises(InvalidRequest, match=r"^limits\.stop_grace_s: None"):
        CrawlerDefinition("a", project="p", limits={"stop_grace_s": None})
    assert CrawlerDefinition("a", project="p", limits={"stall_timeout_s": None}).limits == {
        "stall_timeout_s": None
    }


# --- what a crawler says --------------------------------------------------------------------------


@given(anything)
def test_what_a_crawler_says_is_a_bounded_value_or_unknown(said: object) -> None:
    count, code, signal = bounds.count(said), bounds.exit_code(said), bounds.exit_signal(said)
    assert count is None or (count == said and 0 <= count * TASKS_PER_RUN_MAX < 2**63)
    assert code is None or (code == said and -(2**31) <= code < 2**31)
    assert signal is None or (signal == said and 0 < signal < 256)
    if isinstance(said, bool):
        assert (count, code, signal) == (None, None, None)


@given(
    st.text(
        alphabet=st.characters() | st.just("\0") | st.sampled_from("\ud800\udfff"), max_size=50
    ),
    st.integers(1, 40),
)
def test_a_text_is_short_enough_and_every_encoder_takes_it(said: str, most: int) -> None:
    text = bounds.words(said, most)
    assert text is None or (0 < len(text) <= most and "\0" not in text)
    assert text is None or text.encode().decode() == text


@given(
    st.datetimes(timezones=st.timezones() | st.none()).map(datetime.isoformat)
    | st.text(max_size=40)
)
def test_a_time_is_one_that_a_row_can_hold(said: str) -> None:
    at = bounds.moment(said)
    assert at is None or (at.tzinfo is UTC and 1970 <= at.year <= 2100)


@pytest.mark.parametrize(
    "said",
    [None, 5, "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "2026-01-01T00:00:00"],
)
def test_the_ends_of_the_calendar_and_times_without_a_zone_are_unknown(said: object) -> None:
    assert bounds.moment(said) is None


def test_the_counters_of_all_tasks_of_a_run_fit_into_a_column() -> None:
    assert bounds.COUNT_MAX == bounds.ID_MAX // TASKS_PER_RUN_MAX
    assert contract.valid_stats({"pages": bounds.COUNT_MAX}) == {"pages": bounds.COUNT_MAX}
    assert contract.valid_stats({"pages": bounds.COUNT_MAX + 1}) == {}
