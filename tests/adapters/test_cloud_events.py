"""The document of an event: its ids, and what is removed when it is too large."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawler_lifecycle.cloudevents import (
    CAUSE_MAX,
    CORE,
    ENTRY_MAX,
    TEXT_MAX,
    bus_text,
    cloud_event,
    event_id,
    event_text,
)
from crawler_lifecycle.ports.runs import Event
from tests.support.examples import examples

UID = "0123456789abcdef" * 2
AT = datetime(2026, 11, 20, 12, 0, 0, 123456, tzinfo=UTC)


def _event(body: dict[str, Any], type: str = "run.ended", seq: int = 3) -> Event:
    return Event(seq, 7, UID, 2, type, body, AT, "runs/7")


def _data(event: Event, limit: int) -> dict[str, Any]:
    text = event_text(event, limit)
    assert len(text.encode()) <= limit
    data = json.loads(text)["data"]
    assert isinstance(data, dict)
    return data


@pytest.mark.parametrize("type", ["run.started", "run.stopped", "run.ended"])
def test_what_happens_once_in_an_attempt_has_one_id(type: str) -> None:
    assert (
        event_id(_event({}, type, seq=3))
        == event_id(_event({}, type, seq=4))
        == f"7-{UID}/2/{type}"
    )


def test_what_repeats_has_an_id_for_each_time() -> None:
    assert event_id(_event({}, "run.changed", seq=3)) == f"7-{UID}/2/run.changed/3"
    assert event_id(_event({}, "run.changed", seq=4)) == f"7-{UID}/2/run.changed/4"
    assert event_id(_event({}, "of.a.later.version", seq=5)).endswith("/5"), (
        "unknown types never share an id"
    )


def test_the_later_event_has_the_greater_sequence() -> None:
    numbers = [1, 9, 10, 99, 2**40, 2**63 - 1]
    texts = [str(cloud_event(_event({}, seq=n))["sequence"]) for n in numbers]
    assert texts == sorted(texts)
    assert len({len(text) for text in texts}) == 1


def test_what_fits_is_left_alone() -> None:
    body = {"run_id": 7, "cause": "x" * 5000}
    assert _data(_event(body), 10_000) == body


def test_the_cause_is_cut_first_then_texts_then_the_largest_fields_go() -> None:
    body = {"run_id": 7, "cause": "c" * 9000, "note": "n" * 900, "tasks": {"RUNNING": 2}}
    cut = _data(_event(body), 5000)
    assert (len(cut["cause"]), cut["cause"][-1], cut["note"]) == (CAUSE_MAX, "…", "n" * 900)
    assert cut["truncated"] is True
    cut = _data(_event(body), 2500)
    assert (len(cut["cause"]), len(cut["note"])) == (TEXT_MAX, TEXT_MAX)
    cut = _data(_event({**body, "big": list(range(1000))}), 2500)
    assert "big" not in cut
    assert cut["tasks"] == {"RUNNING": 2}
    cut = _data(_event({**body, "status": "FAILED", "outcome": "o" * 900}), 700)
    assert set(cut) == {"run_id", "status", "outcome", "truncated"}
    assert len(cut["outcome"]) == 100


_json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(), max_size=300),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=examples(150))
@given(
    body=st.dictionaries(st.sampled_from([*CORE, "cause", "tasks", "x", "y"]), _json_values),
    padding=st.integers(0, 3000),
    limit=st.integers(2500, 9000),
)
def test_any_body_fits_the_same_way_each_time(
    body: dict[str, Any], padding: int, limit: int
) -> None:
    event = _event({**body, "run_id": 7, "cause": "é" * padding})
    data = _data(event, limit)
    assert event_text(event, limit) == event_text(event, limit)
    assert data["run_id"] == 7
    if "truncated" not in data:
        assert data.keys() == event.body.keys()
    event_text(event, limit).encode("ascii")


def test_the_text_for_the_bus_makes_an_entry_of_exactly_what_is_allowed() -> None:
    # The rule of AWS: Time 14, and the bytes of Source, DetailType, Detail and each of Resources.
    around = 14 + len("crawler-lifecycle") + len("run.ended") + len("runs/7")
    room = ENTRY_MAX - 1 - around - len(bus_text(_event({"x": ""})))
    whole = bus_text(_event({"x": "y" * room}))
    assert len(whole) + around == ENTRY_MAX - 1
    assert "truncated" not in whole
    cut = json.loads(bus_text(_event({"x": "y" * (room + 1)})))
    assert cut["data"] == {"x": "y" * (TEXT_MAX - 1) + "…", "truncated": True}


def test_lone_surrogates_do_not_cost_the_document() -> None:
    data = cloud_event(_event({"a": ["\ud800x", {"\udfff": "\U0001f600"}]}))["data"]
    assert data == {"a": ["\ufffdx", {"\ufffd": "\U0001f600"}]}
    json.dumps(data, ensure_ascii=False).encode()


def test_what_is_no_json_is_refused() -> None:
    for value, error in ((object(), TypeError), (float("inf"), ValueError)):
        with pytest.raises(error):
            bus_text(_event({"x": value}))
