"""Values of steps: what goes in comes out with the same type, and what cannot be sent is refused
with its position.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.values import (
    RESULT_PART,
    NoValue,
    decode,
    encode,
    of_json,
    packed,
    to_json,
    unpacked,
)
from crawler_lifecycle.features.graphs.domain.checks import check
from crawler_lifecycle.features.graphs.domain.spec import GraphSpec, StepKind, StepSpec

ZONES = st.sampled_from(
    [UTC, timezone(timedelta(hours=-3, minutes=-30)), timezone(timedelta(seconds=61))]
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(10**4000), max_value=10**4000),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.datetimes(timezones=st.one_of(st.none(), ZONES)),
    st.dates(),
    st.times(timezones=st.one_of(st.none(), ZONES)),
    st.timedeltas(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.uuids(),
    st.binary(max_size=40),
)
KEYS = st.one_of(st.text(), st.sampled_from(["$date", "$$date", "$", "$nobody", "$bytes"]))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=30,
)


def exact(value: Any) -> Any:
    """Distinguish values that Python considers equal: 1, 1.0, True; 0.0, -0.0; 1.0 and 1.00 as
    decimals.
    """
    if isinstance(value, dict):
        return {key: exact(one) for key, one in value.items()}
    if isinstance(value, list):
        return [exact(one) for one in value]
    return (type(value), repr(value) if isinstance(value, float | Decimal) else value)


@given(VALUES)
def test_what_goes_in_comes_out_as_what_it_was(value: Any) -> None:
    data = encode(value)
    assert exact(decode(data)) == exact(value)
    assert data.isascii()
    assert b"\n" not in data
    assert exact(of_json(json.loads(json.dumps(to_json(value))))) == exact(value)


@given(st.lists(st.binary(max_size=2000)))
def test_packed_parts_come_out_whole_or_not_at_all(chunks: list[bytes]) -> None:
    parts = list(packed(chunks))
    assert b"".join(unpacked(parts)) == b"".join(chunks)
    with pytest.raises(NoValue, match="missing"):
        b"".join(unpacked([*parts[:-1], parts[-1][:-1]]))


def test_large_values_are_stored_in_parts() -> None:
    import random

    data = random.Random(1).randbytes(3 * RESULT_PART)
    parts = list(packed([data]))
    assert len(parts) == 4
    assert max(map(len, parts)) == RESULT_PART
    assert b"".join(unpacked(parts)) == data
    with pytest.raises(NoValue, match="damaged"):
        b"".join(unpacked([parts[0], parts[2], parts[1], parts[3]]))


def test_moments_of_a_named_zone_keep_their_offset() -> None:
    moment = datetime(2026, 11, 22, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    found = decode(encode(moment))
    assert found == moment
    assert found.utcoffset() == timedelta(hours=1)


HOLDS_ITSELF: list[Any] = [1]
HOLDS_ITSELF.append({"again": HOLDS_ITSELF})
DEEP: list[Any] = []
for _ in range(150):
    DEEP = [DEEP]
WIDE: list[Any] = [1]
for _ in range(50):
    WIDE = [WIDE, WIDE]

REFUSED: dict[str, tuple[object, str]] = {
    "NaN": ({"a": [1, math.nan]}, r"value\['a'\]\[1\]: nan is not a number in JSON; give None"),
    "infinity": (-math.inf, "-inf is not a number"),
    "decimal NaN": (Decimal("sNaN"), "sNaN is not a number"),
    "recursive": (HOLDS_ITSELF, r"value\[1\]\['again'\]: it contains itself"),
    "deep": (DEEP, "more than 100 levels of lists and dictionaries"),
    "the same again and again": (WIDE, r"more than \d+ bytes"),
    "key": ({"a": {1: 2}}, r"value\['a'\]: the key 1 is not a string; give str\(key\)"),
    "set": ({1}, "a set cannot be encoded; give a sorted list"),
    "object": (object(), "an object cannot be encoded; give a dictionary or a string"),
    "half of a pair": ("\ud800", "lone surrogate"),
    "digits": (10**5000, "more than 4,000 digits"),
    "time of a zone": (time(12, tzinfo=ZoneInfo("Europe/Berlin")), "give a datetime"),
    "size": ("x" * 100_001, "more than 100000"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_travel_is_refused_with_its_place(case: str) -> None:
    value, said = REFUSED[case]
    with pytest.raises(NoValue, match=said):
        encode(value, limit=100_000)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"$date": 7}',
        b'{"$nobody": 1}',
        b"NaN",
        b"[" * 100_000,
        b'{"$bytes": "?"}',
        b"\xff",
        b'{"$uuid":"x"}',
    ],
)
def test_what_nobody_encoded_is_refused(data: bytes) -> None:
    with pytest.raises(NoValue):
        decode(data)


def test_forms_that_people_write_down_by_hand() -> None:
    said = b'{"day": {"$date": "2026-11-22"}, "id": {"$uuid": "00000000-0000-0000-0000-000000000001"}, "m": {"$$x": 1}}'
    assert decode(said) == {"day": date(2026, 11, 22), "id": UUID(int=1), "m": {"$x": 1}}


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"args": {"day": {"$date": "today"}}}, r"args: \{'\$date': 'today'\} is not a value"),
        ({"args": {"$date": "2026-11-22"}}, "args: .* give an object with names and values"),
        ({"style": "item", "item": [{"$nobody": 1}]}, r"item: \{'\$nobody': 1\} is not a value"),
    ],
)
def test_a_step_with_values_that_nobody_can_read_is_refused(job: dict[str, Any], said: str) -> None:
    spec = GraphSpec([StepSpec("a", StepKind.FUNCTION, {"call": "m:f", **job})])
    with pytest.raises(InvalidRequest, match=f'step "a": {said}'):
        check(spec)


def test_a_context_that_nobody_can_read_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"graph: context: .*is not a value"):
        check(GraphSpec([], context={"at": {"$datetime": "now"}}))
