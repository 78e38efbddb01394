"""Termination messages that a kubelet cut at any byte, because a pod has 12 KiB for all its
containers.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.clusters.kubernetes.polls.termination_message import Summary, read_summary
from crawler_lifecycle.domain.task import End, TaskStatus, read_end
from crawler_lifecycle.runner import contract

SAID: dict[str, Any] = {
    "runner": "1.0",
    "exit": 0,
    "finish_reason": "closespider_itemcount",
    "finished_at": "2026-11-25T10:00:00.123456+00:00",
    "resumable": False,
    "told_to_stop": True,
    "exit_code": 0,
    "own_exit": 0,
    "signal": 15,
    "pages": 1234567,
    "items": 7654321,
    "errors": 12,
    "bytes": 987654321,
    "resumed": True,
    "resume_note": 'It said: "go on", with \\ and ü',
    "peak_memory": 123456789,
    "started_at": "2026-11-25T09:00:00+00:00",
    "files": {"uploaded": False, "why": "w" * 300, "files": 12, "bytes": 34},
    "fields": {"items": 7654321, "shares": {"price": 0.41, 'ü, "': 1.0}},
    "message": 'The site, it says "no", {1, 2}: \\" ' * 25,
}


def flat(summary: Summary) -> dict[str, Any]:
    told = msgspec.structs.asdict(summary)
    told |= msgspec.structs.asdict(told.pop("progress"))
    for name in ("quiet", "code_wait"):  # only from lines in a log
        told.pop(name)
    return told | dataclasses.asdict(told.pop("counters"))


def check_every_cut(text: str) -> None:
    whole = flat(read_summary(text))
    assert whole["runner"]
    before: set[str] = set()
    for size in range(len(text)):
        cut = read_summary(text[:size])
        if not cut.runner:
            assert not before
            assert flat(cut) | {"message": None} == flat(Summary())
            continue
        told = {name: value for name, value in flat(cut).items() if value is not None}
        assert told.items() <= whole.items(), "a word is there as it was, or not at all"
        assert before <= told.keys(), "a longer piece says no less"
        before = set(told)


def test_what_is_whole_is_read_wherever_it_is_cut() -> None:
    text = contract.summary_text(SAID)
    check_every_cut(text)
    decided = {
        name
        for name, value in flat(read_summary(text[: contract.SHORT_MAX])).items()
        if value is not None
    }
    assert decided == flat(read_summary(text)).keys() - {"message", "blocked", "fields"}


@given(
    st.fixed_dictionaries(
        {
            "runner": st.just("1"),
            "exit": st.integers(0, 255),
            "finish_reason": st.text(min_size=1, max_size=200),
        },
        optional={
            "pages": st.integers(0, 10**12),
            "resumed": st.booleans(),
            "resume_note": st.text(max_size=20),
            "message": st.text(max_size=30),
        },
    )
)
def test_whatever_a_crawler_says_no_cut_makes_something_else_of_it(said: dict[str, Any]) -> None:
    check_every_cut(contract.summary_text(said))


_odd: Any = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(-1, 2)
    | st.text(st.characters(), max_size=5)
)
_odd |= st.sampled_from(
    ["2026-01-01t00:00:00z", "2026-01-01T00:00:00.1234567+02:00", "\ud800", 2**63, -1, 1.0, [], {}]
)
_shares = st.dictionaries(
    st.text(st.characters(), max_size=61), st.floats(0, 1) | _odd, max_size=40
)
_fields = st.fixed_dictionaries({"items": st.just(7) | _odd, "shares": _shares | _odd})


@given(st.fixed_dictionaries({}, optional={n: st.just(v) | _odd for n, v in SAID.items()}), _fields)
def test_one_unreadable_value_changes_no_other(
    said: dict[str, Any], fields: dict[str, Any]
) -> None:
    text = json.dumps({**said, "runner": "1", **({"fields": fields} if "fields" in said else {})})
    assert read_summary(text) == read_summary(f'{text[:-1]}, "unread": NaN}}')


@pytest.mark.parametrize("containers", [1, 4, 12])
def test_a_finished_crawl_is_one_beside_many_containers(containers: int) -> None:
    text = contract.summary_text({**SAID, "finish_reason": "finished", "message": "ü" * 1000})
    summary = read_summary(text[: min(4096, 12288 // containers)])
    assert (
        read_end(End(exit_code=0, finish_reason=summary.finish_reason)).status
        is TaskStatus.SUCCEEDED
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"runner": "1", [1]: 2, "exit"',
        '{"runner": "1",',
        '{"runner": ' + "[" * 4000,
        '{"runner": "1", 7: 8, "exit": 1',
    ],
)
def test_garbage_after_the_cut_is_nothing(text: str) -> None:
    assert read_summary(text).exit is None


def test_what_others_wrote_is_read_as_a_text() -> None:
    text = json.dumps({"exit": 0, "runner": "1"})
    assert read_summary(text[:-2]) == Summary(message=text[:-2])
