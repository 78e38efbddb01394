"""The normalized line of a cause, and its fingerprint."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crawler_lifecycle.domain.conditions import LINE_MAX, fingerprint, normalised

LINES = st.text(st.sampled_from("aB1.:/-_#~…'\"`, \n@\\é٣"), max_size=80) | st.text(max_size=200)
NUMBERS = st.integers(0, 10**12)
HOSTS = st.from_regex(
    r"[a-z]{1,8}(-[a-z]{1,4})?(\.[a-z]{1,8}){0,2}\.(com|de|io|example)", fullmatch=True
)


@given(LINES)
@example("1'b'")
@example("a.bc 'x.de' \"1\"")
def test_a_normalised_line_stays_as_it_is(line: str) -> None:
    once = normalised(line)
    assert normalised(once) == once
    assert len(once) <= len(line)


@given(NUMBERS, NUMBERS, HOSTS, HOSTS, st.uuids(), st.uuids())
def test_numbers_hosts_and_ids_make_no_other_cause(
    one: int, two: int, here: str, there: str, id: object, other: object
) -> None:
    line = "ConnectError: {host}:{port} refused page {n} of https://{host}/p/{n}?q={id} ({id})"
    first = line.format(host=here, port=one % 65536, n=one, id=id)
    second = line.format(host=there, port=two % 65536, n=two, id=other)
    assert normalised(first) == normalised(second)
    assert fingerprint("shop", first) == fingerprint("shop", second)


@pytest.mark.parametrize(
    ("line", "normal"),
    [
        ("KeyError: 'price_eur' in item 7", "KeyError: … in item #"),
        ("shop.errors.PriceError: 12,99", "shop.errors.PriceError: #"),
        ("HTTP 503 from api.shop.example:8080", "HTTP # from ~"),
        ("at 0x7f00ab, 10.0.0.1, 2026-11-29 20:05:37", "at #"),
        ("can't open /data/run-7/out.jsonl", "can't open /data/run-#/~"),
    ],
)
def test_what_is_left_of_a_line(line: str, normal: str) -> None:
    assert normalised(line) == normal


def test_other_errors_of_one_crawler_and_the_same_of_another_are_other_causes() -> None:
    found = {
        fingerprint(crawler, cause)
        for crawler in ("shop", "news")
        for cause in ("shop.errors.PriceError: 1", "shop.errors.ParseError: 1")
    }
    assert len(found) == 4


@pytest.mark.parametrize("piece", ["a", "a.", "a-", "1", "#", "'", '"', "://", "a://", "f-", "# "])
def test_no_line_takes_long(piece: str) -> None:
    """Only the first of a million characters are read, and no pattern backtracks over them."""
    began = time.process_time()
    found = normalised(piece * 1_000_000)
    assert time.process_time() - began < 1.0
    assert len(found) <= LINE_MAX
