"""The policy of retries: which outcomes are retried, when, and with what."""

from __future__ import annotations

import dataclasses
import re
from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crawler_lifecycle.clusters.kubernetes.jobs.container import _memory_text as memory_text
from crawler_lifecycle.domain.code import CodeVersions
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, completed
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.ends import Ends, reading
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.resources import Resources, parse_memory
from crawler_lifecycle.domain.retries import (
    DEFAULT,
    NEVER,
    WORDS,
    EndedTry,
    NextTry,
    OtherNodes,
    Retries,
    budget_of,
    resolved,
)
from crawler_lifecycle.domain.retries import next_try as whole_next_try
from crawler_lifecycle.domain.run import OUTCOMES, RunRequest
from crawler_lifecycle.store.runs.tables import crawler_memory, task_history

ALL = Retries(on=list(WORDS))


def next_try(policy: Retries, ended: EndedTry, used: int, budget: int) -> NextTry | str:
    how = reading(Ends(final=[4], retry=[75]))
    return whole_next_try(resolved(policy, None, Retries()), ended, used, budget, how)


#: Who ended a task with one of our outcomes, unless something else says so.
ENDED_BY = {outcome: ended_by for ended_by, outcome in WORDS.values() if outcome}
ENDED_BY |= dict.fromkeys(("cancelled", "cancel_timeout"), EndedBy.PERSON)
ENDED_BY |= dict.fromkeys(("start_timeout", "timed_out", "cancelled (stalled)"), EndedBy.LIMIT)
ENDED_BY |= {"deploy_failed": EndedBy.SERVICE}
ENDED = [outcome for outcome, by in ENDED_BY.items() if (by, outcome) not in WORDS.values()]


def end(
    outcome: str, code: int | None = None, retry: int = 0, memory: str | None = None
) -> EndedTry:
    return EndedTry(
        outcome, code, retry, f"run/0/{retry}", ENDED_BY.get(outcome, EndedBy.CRAWLER), memory
    )


@pytest.mark.parametrize("outcome", sorted(OUTCOMES - {"banned", *NEVER}))
def test_a_word_of_a_crawler_is_a_failure_of_its_own_and_no_other(outcome: str) -> None:
    said = EndedTry(outcome, 1, 0, "run/0/0", EndedBy.CRAWLER)
    assert isinstance(next_try(Retries(on=["failed"]), said, 0, 10), NextTry)
    every_other = Retries(on=[word for word in WORDS if word != "failed"])
    assert next_try(every_other, said, 0, 10) == "failed is not in retries.on"


@pytest.mark.parametrize("ended_by", [EndedBy.PERSON, EndedBy.SERVICE])
@pytest.mark.parametrize("outcome", sorted(OUTCOMES))
def test_what_a_person_or_we_ended_is_never_retried(outcome: str, ended_by: EndedBy) -> None:
    assert (
        next_try(ALL, EndedTry(outcome, 1, 0, "run/0/0", ended_by), 0, 10)
        == f"{outcome} is never retried"
    )


def test_an_end_that_an_older_build_recorded_is_retried_by_its_outcome() -> None:
    assert isinstance(
        next_try(DEFAULT, EndedTry("evicted", 137, 0, "run/0/0", None), 0, 10), NextTry
    )


@pytest.mark.parametrize(
    ("policy", "ended", "why"),
    [
        (DEFAULT, end("interrupted"), None),
        (DEFAULT, end("evicted", retry=2), None),
        (DEFAULT, end("lost"), None),
        (DEFAULT, end("evicted", retry=3), "3 of 3 tries made"),
        (DEFAULT, end("failed", 1), "failed is not in retries.on"),
        (DEFAULT, end("killed by oom"), "oom is not in retries.on"),
        (DEFAULT, end("a word of the crawler"), "failed is not in retries.on"),
        (ALL, end("a word of the crawler", 1), None),
        (ALL, end("failed", 1), None),
        (ALL, end("failed", 4), "exit 4 is final"),
        (ALL, end("failed", 127), "exit 127 is final"),
        (DEFAULT, end("failed", 4), "exit 4 is final"),
        (ALL, end("interrupted", 4), None),
        (DEFAULT, end("failed", 75), None),
        (DEFAULT, end("a word of the crawler", 75), None),
        (DEFAULT, end("failed", 75, retry=3), "3 of 3 tries made"),
        (DEFAULT, end("timed_out", 75), "timed_out is never retried"),
        (ALL, end("failed", 17), None),
        (dataclasses.replace(ALL, final_exits=[9]), end("interrupted", 9), "exit 9 is final"),
        *((ALL, end(outcome), f"{outcome} is never retried") for outcome in [*ENDED, *NEVER]),
        (Retries(max=0), end("lost"), "retries.max is 0"),
    ],
)
def test_an_end_is_retried_or_the_reason_is_told(
    policy: Retries, ended: EndedTry, why: str | None
) -> None:
    found = next_try(policy, ended, used=0, budget=10)
    assert isinstance(found, NextTry) if why is None else found == why


def test_the_budget_of_a_run_bounds_all_its_tries() -> None:
    assert (
        next_try(DEFAULT, end("lost"), used=10, budget=10)
        == "the run's budget of 10 tries is used up"
    )
    assert [budget_of(DEFAULT, tasks) for tasks in (1, 5, 500)] == [10, 10, 1000]
    assert budget_of(Retries(budget=50), 500) == 50


@given(
    backoff=st.floats(0, 1000), factor=st.floats(1, 10), cap=st.floats(0, 5000), jitter=st.floats(0, 1),
    retry=st.integers(0, 99),
)  # fmt: skip
def test_waits_grow_to_the_cap_and_are_the_same_for_the_same_try(
    backoff: float, factor: float, cap: float, jitter: float, retry: int
) -> None:
    policy = Retries(max=100, backoff_s=backoff, factor=factor, cap_s=cap, jitter=jitter)
    first, again = (next_try(policy, end("lost", retry=retry), 0, 1000) for _ in range(2))
    assert isinstance(first, NextTry)
    assert first == again
    plain = min(cap, backoff * factor**retry)
    assert plain * (1 - jitter) - 1e-6 <= first.wait_s <= plain * (1 + jitter) + 1e-6


@pytest.mark.parametrize(
    ("memory", "cap", "after"),
    [
        ("512Mi", None, "768Mi"),
        ("512Mi", "600Mi", "600Mi"),
        (None, "1Gi", None),
        ("1000k", None, "2Mi"),
    ],
)
def test_after_oom_the_next_try_has_more_memory(
    memory: str | None, cap: str | None, after: str | None
) -> None:
    found = next_try(
        Retries(on=["oom"], memory_cap=cap), end("killed by oom", memory=memory), 0, 10
    )
    assert found == NextTry(found.wait_s if isinstance(found, NextTry) else 0, after)


def test_a_task_that_had_all_its_memory_is_not_tried_again() -> None:
    found = next_try(
        Retries(on=["oom"], memory_cap="1Gi"), end("killed by oom", memory="1Gi"), 0, 10
    )
    assert found == "it already had all the memory that retries.memory_cap allows (1Gi)"


@pytest.mark.parametrize(
    ("given", "field", "fix"),
    [
        ({"max": 101}, "retries.max", "from 0 to 100"),
        ({"max": -1}, "retries.max", "from 0 to 100"),
        ({"max": True}, "retries.max", "from 0 to 100"),
        ({"on": ["lost"] * 7}, "retries.on", "each of these words at most once"),
        (
            {"on": ["evicted", "sad"]},
            "retries.on",
            "interrupted, evicted, lost, oom, banned, failed",
        ),
        ({"backoff_s": -1}, "retries.backoff_s", "from 0"),
        ({"factor": 0}, "retries.factor", "from 1"),
        ({"cap_s": float("inf")}, "retries.cap_s", "from 0"),
        ({"jitter": 2}, "retries.jitter", "from 0 to 1"),
        ({"budget": -1}, "retries.budget", "from 0"),
        ({"memory_factor": 1}, "retries.memory_factor", "above 1"),
        ({"memory_cap": "lots"}, "retries.memory_cap", "512Mi"),
        ({"final_exits": [256]}, "retries.final_exits", "from 1 to 255"),
        ({"final_exits": [1] * 51}, "retries.final_exits", "at most 50"),
    ],
)
def test_a_wrong_key_is_refused_by_name(given: dict[str, object], field: str, fix: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Retries(**given)  # type: ignore[arg-type]
    assert str(refused.value).startswith(f"{field}: ")
    assert fix in str(refused.value)


@pytest.mark.parametrize(
    ("policy", "memory", "field"),
    [
        (Retries(budget=2), None, "retries.budget"),
        (Retries(max=5, budget=4), None, "retries.budget"),
        (Retries(cap_s=10), None, "retries.cap_s"),
        (Retries(memory_cap="256Mi"), "512Mi", "retries.memory_cap"),
    ],
)
def test_keys_that_contradict_each_other_are_refused_at_each_api(
    policy: Retries, memory: str | None, field: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"books: {field}: "):
        CrawlerDefinition("books", retries=policy, resources=Resources(memory=memory))
    with pytest.raises(InvalidRequest, match=f"^{field}: "):
        completed(
            RunRequest(crawler="books", retries=policy),
            CrawlerDefinition("books", resources=Resources(memory=memory)),
            cast(CodeVersions, None),  # no entry has a package
        )


@pytest.mark.parametrize("given", [{"after": 0}, {"node_selector": {}}])
def test_other_nodes_need_labels_and_a_number(given: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match=r"^retries\.retry_on\."):
        OtherNodes(**{"node_selector": {"a": "b"}, **given})  # type: ignore[arg-type]


def test_labels_of_nodes_are_checked_where_operators_give_them() -> None:
    with pytest.raises(
        InvalidRequest,
        match=r"^books: retries\.retry_on\.node_selector: 'a b' is not a valid name of a label",
    ):
        CrawlerDefinition("books", retries=Retries(retry_on=OtherNodes({"a b": "c"})))


def test_a_request_chooses_no_nodes() -> None:
    with pytest.raises(InvalidRequest, match=r"^retries\.retry_on: .* in the crawler's entry"):
        RunRequest(crawler="books", retries=Retries(retry_on=OtherNodes({"a": "b"})))


def test_each_key_comes_from_the_nearest_place_that_gives_it() -> None:
    request, crawler, installation = (
        Retries(max=7),
        Retries(max=6, on=["banned"]),
        Retries(max=5, cap_s=60),
    )
    found = resolved(request, crawler, installation)
    assert (found.max, found.on, found.cap_s, found.backoff_s) == (
        7,
        ["banned"],
        60,
        DEFAULT.backoff_s,
    )
    assert resolved(None, None, Retries()) == DEFAULT


def test_memory_grows_until_the_cap_and_then_the_tries_are_over() -> None:
    policy, memory, seen = Retries(max=100, on=["oom"], memory_cap="2Gi"), "512Mi", list[int]()
    while isinstance(
        found := next_try(policy, end("killed by oom", memory=memory), 0, 100), NextTry
    ):
        assert found.memory is not None
        memory = found.memory
        seen.append((parse_memory(memory) or 0) // 2**20)
    assert seen == [768, 1152, 1728, 2048]


_NUMBERS = st.one_of(
    st.integers(1, 2**63 - 1).map(str),
    st.decimals(min_value="0.001", max_value=10**6, places=9).map(str),
    st.integers(1, 10**6).map(lambda n: f"{n:030d}"),
    st.sampled_from(["1e9", "1.5E3", "0.1", "1_000", " 7"]),
)
_UNITS = st.sampled_from(["", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])


def _valid(text: str) -> bool:
    try:
        return (parse_memory(text) or 0) > 0
    except InvalidRequest:
        return False


MEMORY = st.tuples(_NUMBERS, _UNITS).map("".join).filter(_valid)


@given(memory=MEMORY, cap=st.none() | MEMORY, factor=st.floats(1, 10, exclude_min=True))
@example(memory="7Ei", cap=None, factor=10)
@example(memory="512Mi", cap=f"{1:0200d}Gi", factor=3)
@example(memory="4Mi", cap="1Gi", factor=1.0000000000000002)
def test_the_text_of_more_memory_fits_its_column_and_no_cap_is_passed(
    memory: str, cap: str | None, factor: float
) -> None:
    policy = Retries(max=100, on=["oom"], memory_cap=cap, memory_factor=factor)
    given, most = memory, parse_memory(cap) or 2**62
    for _ in range(100):
        found = next_try(policy, end("killed by oom", memory=given), 0, 1000)
        if not isinstance(found, NextTry):
            assert (parse_memory(given) or 0) >= most, found
            break
        assert found.memory is not None
        for column in (task_history.c.memory, crawler_memory.c.memory):
            assert len(found.memory) <= column.type.length  # type: ignore[attr-defined]
        size, before = parse_memory(found.memory) or 0, parse_memory(given) or 0
        assert before < size <= most, "it grows, up to the cap"
        assert size == most or size <= before * factor * 1.000001 + 2**20
        assert re.fullmatch(r"\d+(\.\d+)?([KMGTPE]i|[kMGTPE])?", memory_text(found.memory))
        given = found.memory
