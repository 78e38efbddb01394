"""What robots.txt and tdmrep.json say, and the limits that follow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.features.sites.domain.lanes import lane_count, timetable_of
from crawler_lifecycle.features.sites.domain.robots import (
    DELAY_RANGE_S,
    FILE_MAX,
    TdmReservation,
    crawl_delay,
    is_known,
    origin_of,
    tdm_reservation,
)
from crawler_lifecycle.features.sites.domain.site import SiteLimits

AGENT = "Scrapy/2.19 (+https://scrapy.org)"
GROUPS = b"\n".join(b"User-agent: bot%d\nCrawl-delay: 9\n" % number for number in range(10_000))


@pytest.mark.parametrize(
    ("body", "delay"),
    [
        (b"User-agent: *\nCrawl-delay: 5\n", 5.0),
        (b"\xef\xbb\xbfuser-agent: *\ncrawl-delay: 0.5 # polite\n", 0.5),
        (b"User-agent: *\nCrawl-delay: 5\nUser-agent: scrapy\nCrawl-delay: 7\n", 7.0),
        (b"User-agent: other\nCrawl-delay: 7\n", None),
        (b"User-agent: *\nCrawl-delay: 1e9\n", 60.0),
        (b"User-agent: *\nCrawl-delay: -1\n", None),
        (b"User-agent: *\nCrawl-delay: nan\n", None),
        (b"User-agent: *\nCrawl-delay: inf\n", None),
        (b"User-agent: *\nCrawl-delay: 0\n", None),
        (b"User-agent: *\nCrawl-delay: " + b"9" * 20, 60.0),
        (b"", None),
        (b"<html>not found</html>", None),
        (b"\x00\xff" * (FILE_MAX // 2), None),
        (b":" * FILE_MAX, None),
        (GROUPS[:FILE_MAX], None),
    ],
)
def test_crawl_delay(body: bytes, delay: float | None) -> None:
    assert crawl_delay(body, AGENT) == delay


@given(st.binary(max_size=300), st.text(min_size=1, max_size=30))
def test_any_file_has_a_delay_in_its_range_or_none(body: bytes, agent: str) -> None:
    for text in (body, b"User-agent: *\nCrawl-delay: " + body):
        delay = crawl_delay(text, agent)
        assert delay is None or DELAY_RANGE_S[0] <= delay <= DELAY_RANGE_S[1]


_RATES = st.none() | st.floats(0.001, 1000)
_CONNECTIONS = st.none() | st.integers(1, 1000)


@given(_RATES, _CONNECTIONS, st.floats(*DELAY_RANGE_S))
def test_a_crawl_delay_only_lowers_the_rate(
    rate: float | None, connections: int | None, delay: float
) -> None:
    own = SiteLimits(requests_per_s=rate, connections=connections)
    limits = own.with_delay(delay)
    assert limits.leased
    assert limits.requests_per_s is not None
    assert limits.requests_per_s <= min(rate or float("inf"), 1 / delay) * (1 + 1e-9)
    assert limits.connections == connections
    assert limits.with_delay(delay) == limits
    lanes = lane_count(limits)
    every_s = timetable_of(limits, 0, 1e9).every_s
    assert lanes / every_s <= 1 / delay, "all lanes together"
    assert (own.delay_s(delay) is None) == (limits == own)
    ignoring = SiteLimits(requests_per_s=rate, connections=connections, crawl_delay="ignore")
    assert ignoring.with_delay(delay) == ignoring
    assert own.with_delay(None) == own


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'[{"location": "/", "tdm-reservation": 0}]', TdmReservation(False)),
        (b'[{"location": "/a", "tdm-reservation": 1}]', TdmReservation(True)),
        (b'[{"tdm-reservation": 1, "tdm-policy": "javascript:x"}]', TdmReservation(True)),
        (
            b'[{"tdm-reservation": 1, "tdm-policy": "https://a/p"}]',
            TdmReservation(True, "https://a/p"),
        ),
        (b"[]", TdmReservation(False)),
        (b"{}", None),
        (b"[1]", None),
        (b"\x00", None),
        (b"[" * 100_000, None),
    ],
)
def test_tdm_reservation(body: bytes, found: TdmReservation | None) -> None:
    assert tdm_reservation(body) == found


@pytest.mark.parametrize(
    ("text", "origin", "host"),
    [
        ("HTTPS://Shop.example:443/", "https://shop.example", "shop.example"),
        ("http://me:pw@shop.example:8080", "http://shop.example:8080", "shop.example"),
        ("http://[::1]:80", "http://[::1]", "::1"),
        ("https://b\u00fccher.example", "https://xn--bcher-kva.example", "xn--bcher-kva.example"),
    ],
)
def test_an_origin_has_one_form(text: str, origin: str, host: str) -> None:
    assert origin_of(text) == (origin, host)


def test_which_statuses_are_known() -> None:
    known = [status for status in (200, 204, 301, 403, 404, 429, 500, 503) if is_known(status)]
    assert known == [200, 204, 403, 404]
    assert not is_known(None)


def test_an_entry_obeys_or_ignores() -> None:
    with pytest.raises(InvalidRequest, match=r"crawl_delay.*give obey or ignore"):
        SiteLimits.from_json({"crawl_delay": "sometimes"})
    assert SiteLimits.from_json({"crawl_delay": "obey"}).to_json() == SiteLimits().to_json()
    assert SiteLimits(crawl_delay="ignore").to_json()["crawl_delay"] == "ignore"
