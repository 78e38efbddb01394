"""Which entry applies to a host, and when a site may be visited."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.features.sites.domain.hours import OpenHours
from crawler_lifecycle.features.sites.domain.site import SiteLimits, site_name, site_of

ENTRIES = {"shop.example": 1, "*.blogs.example": 2, "a.blogs.example": 3, "*.deep.blogs.example": 4}


@pytest.mark.parametrize(
    ("host", "site"),
    [
        ("shop.example", "shop.example"),
        ("www.shop.example", "shop.example"),
        ("blogs.example", "*.blogs.example"),
        ("b.blogs.example", "*.blogs.example"),
        ("a.blogs.example", "a.blogs.example"),
        ("x.a.blogs.example", "*.blogs.example"),
        ("x.deep.blogs.example", "*.deep.blogs.example"),
        ("www.other.co.uk", "other.co.uk"),
        ("10.0.0.1", "10.0.0.1"),
    ],
)
def test_the_closest_entry_holds_for_a_host(host: str, site: str) -> None:
    assert site_of(host, ENTRIES) == site


@pytest.mark.parametrize(
    ("text", "name"),
    [("*", "*"), (" *.Shop.example ", "*.shop.example"), ("Shop.example:80", "shop.example")],
)
def test_an_entry_has_one_name(text: str, name: str) -> None:
    assert site_name(text) == name


@pytest.mark.parametrize("text", ["*.", "*.127.0.0.1", "*.[::1]"])
def test_a_pattern_needs_a_host_with_a_name(text: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        site_name(text)
    assert str(raised.value).startswith(f"site: {text!r} is not allowed; give a host after *.")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"tasks": -1}, "tasks: -1"),
        ({"tasks": 1.5}, "tasks: 1.5"),
        ({"requests_per_s": 0}, "requests_per_s: 0"),
        ({"connections": 0}, "connections: 0"),
        ({"rest_s": 0}, "rest_s: 0"),
        ({"hours": "25:00-06:00"}, "hours: '25:00-06:00'"),
        ({"hours": "22:00-06:00 Mars/Base"}, "hours: '22:00-06:00 Mars/Base'"),
        ({"not": "0-3"}, "not: '0-3'"),
        ({"not": "1," * 50 + "2"}, "not: '1,1,"),
        ({"requests_per_s": 1e-300}, "requests_per_s: 1e-300"),
        ({"not": "1-31"}, "not: '1-31'.*leave at least one"),
        ({"request_per_s": 1}, "request_per_s: unknown; known: tasks, .*not"),
    ],
)
def test_a_wrong_entry_names_key_value_and_fix(entry: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        SiteLimits.from_json(entry)


def test_an_entry_is_read_as_it_was_written() -> None:
    entry = {"tasks": 2, "rest_s": 600, "hours": "22:00-06:00 Europe/Berlin", "not": "1-10"}
    assert SiteLimits.from_json(entry).to_json() == entry


@pytest.mark.parametrize(
    ("hours", "days_off", "now", "opens"),
    [
        ("22:00-06:00 Europe/Berlin", None, "2026-11-30T12:00", "2026-11-30T21:00"),
        ("22:00-06:00 Europe/Berlin", None, "2026-11-30T23:30", "2026-11-30T23:30"),
        ("22:00-06:00 Europe/Berlin", None, "2026-12-01T04:59", "2026-12-01T04:59"),
        ("09:00-17:00", "1-10 of the month", "2026-11-30T18:00", "2026-12-11T09:00"),
        (None, "1-10", "2026-12-01T00:00", "2026-12-11T00:00"),
        # The night in which these hours do not exist, and the one in which they occur twice.
        ("02:30-03:30 Europe/Berlin", None, "2026-03-28T12:00", "2026-03-30T00:30"),
        ("02:30-03:30 Europe/Berlin", None, "2026-10-24T12:00", "2026-10-25T00:30"),
    ],
)
def test_when_a_site_may_be_visited(
    hours: str | None, days_off: str | None, now: str, opens: str
) -> None:
    open_hours = OpenHours.read(hours, days_off)
    assert open_hours is not None
    found = open_hours.next(datetime.fromisoformat(now).replace(tzinfo=UTC))
    assert found == datetime.fromisoformat(opens).replace(tzinfo=UTC)


TIMES = st.datetimes(datetime(2026, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))


@given(
    st.tuples(st.integers(0, 23), st.integers(0, 59), st.integers(0, 23), st.integers(0, 59)),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
    st.sampled_from([None, "1-10", "1,15,31", "1-27"]),
    TIMES,
)
def test_a_site_opens_once_and_is_then_open(
    hours: tuple[int, int, int, int], zone: str, days_off: str | None, now: datetime
) -> None:
    text = "{:02}:{:02}-{:02}:{:02} {}".format(*hours, zone)
    open_hours = OpenHours.read(text, days_off)
    assert open_hours is not None
    opens = open_hours.next(now)
    assert now <= opens <= now + timedelta(days=63)
    assert open_hours.next(opens) == opens
