"""Searches in logs of any size, compared with a simple search of the whole log, split into lines."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain import log_search
from crawler_lifecycle.domain.last_words import is_loud
from crawler_lifecycle.domain.log_search import FoundLine, LineLevel, LogQuery

BEGIN = FoundLine(1, 0)
LINES = st.sampled_from(
    [
        b"",
        b"2026-03-01 [shop] INFO: page 7 of http://shop.example/Error",
        b"2026-03-01 [shop] ERROR: no price",
        b"2026-03-01 [shop] WARNING: slow",
        b"Traceback (most recent call last):",
        b"KeyError: 'price'",
        b'{"level":50,"msg":"bad"}',
        b'{"level":40,"msg":"odd"}',
        b'{"level":"info","msg":"error is only a word here"}',
        b"E1129 10:00:00.123456 1 main.go:12] refused",
        b"bash: scrape: command not found",
        b"\xff\xfe\x00 \x1b[31mERROR\x1b[0m red",
        b"x" * 70,
    ]
)
LOGS = st.lists(LINES, max_size=30).flatmap(
    lambda lines: st.sampled_from([b"\n".join(lines), b"\n".join([*lines, b""])])
)
QUERIES = st.builds(
    LogQuery,
    st.sampled_from([None, "price", "PRICE", "error", "shop.example", "x" * 70, "é"]),
    st.sampled_from([None, *LineLevel]),
).filter(lambda query: query.text or query.level)


def reading(log: bytes) -> log_search.Read:
    return lambda at, most: log[at : at + most]


def whole_search(log: bytes, query: LogQuery, first: FoundLine = BEGIN) -> list[FoundLine]:
    """Return all matching lines, in pages of two."""
    found: list[FoundLine] = []
    at: FoundLine | None = first
    while at is not None:
        lines, at = log_search.search(reading(log), len(log), query, at, 2)
        assert len(lines) <= 2
        found += lines
    return found


def naive(log: bytes, query: LogQuery) -> list[FoundLine]:
    """Return the matching lines, by testing each."""
    found, at = [], 0
    for number, line in enumerate(log.split(b"\n"), 1):
        text = line.decode("utf-8", "replace")
        has = query.text is None or query.text.encode().lower() in line.lower()
        loud = query.level is None or is_loud(text, warnings=query.level is LineLevel.WARNING)
        if has and loud:
            found.append(FoundLine(number, at, line))
        at += len(line) + 1
    return found


@pytest.mark.parametrize("window", [80, 1024 * 1024])
@given(log=LOGS, query=QUERIES)
def test_a_search_finds_what_a_look_at_each_line_finds(
    window: int, log: bytes, query: LogQuery
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_search, "WINDOW", window)
        found = whole_search(log, query)
    assert found == naive(log, query)


@given(log=LOGS, query=QUERIES)
def test_a_search_without_time_advances_by_a_line_or_more(log: bytes, query: LogQuery) -> None:
    """It continues as the gateway does, which knows only the number of the line."""
    found: list[FoundLine] = []
    number: int | None = 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_search, "WINDOW", 80)
        while number is not None:
            first = log_search.line_of(reading(log), len(log), number)
            lines, at = log_search.search(reading(log), len(log), query, first, 100, lambda: True)
            assert at is None or at.number > number
            found += lines
            number = None if at is None else at.number
    assert found == naive(log, query)


@given(log=LOGS, data=st.data())
def test_a_search_continues_at_any_line(log: bytes, data: st.DataObject) -> None:
    query = LogQuery("price")
    number = data.draw(st.integers(1, log.count(b"\n") + 1))
    first = log_search.line_of(reading(log), len(log), number)
    assert first.number == number
    found = whole_search(log, query, first)
    assert found == [one for one in naive(log, query) if one.number >= number]


@pytest.mark.parametrize("window", [7, 1024 * 1024])
@given(log=LOGS, data=st.data())
def test_numbers_and_offsets_agree(window: int, log: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(log)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_search, "WINDOW", window)
        line = log_search.line_at(reading(log), at)
        assert (line.number, line.at) == (
            log[:at].count(b"\n") + 1,
            log.rfind(b"\n", 0, at) + 1,
        )
        assert log_search.line_of(reading(log), len(log), line.number) == line
        beyond = log_search.line_of(reading(log), len(log), 10**9)
        assert beyond.number == log.count(b"\n") + 1


@given(log=LOGS, data=st.data(), before=st.integers(0, 5), after=st.integers(0, 5))
def test_the_lines_around_a_line(log: bytes, data: st.DataObject, before: int, after: int) -> None:
    lines = log.split(b"\n")
    number = data.draw(st.integers(1, len(lines)))
    line = log_search.line_of(reading(log), len(log), number)
    found = log_search.lines_around(reading(log), len(log), line, before, after)
    first = max(1, number - before)
    assert found.number == first
    assert found.data.rstrip(b"\n") == b"\n".join(lines[first - 1 : number + after]).rstrip(b"\n")
    assert log[found.at :].startswith(found.data)


def test_only_lines_with_a_mark_of_their_level_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = []

    def judge(line: str, *, warnings: bool) -> bool:
        judged.append(line)
        return is_loud(line, warnings=warnings)

    monkeypatch.setattr(log_search, "is_loud", judge)
    log = b"[shop] INFO: page\n" * 1000 + b"[shop] ERROR: no price\n[site] ERROR: refused\n"
    found = whole_search(log, LogQuery("shop", LineLevel.ERROR))
    assert [(line.number, line.data) for line in found] == [(1001, b"[shop] ERROR: no price")]
    assert judged == ["[shop] ERROR: no price"]


def test_a_line_longer_than_a_window_is_searched_in_pieces() -> None:
    log = b"a" * 3_000_000 + b"price" + b"a" * 3_000_000 + b"\nprice\n"
    found = whole_search(log, LogQuery("price"))
    assert (found[-1].number, found[-1].at) == (2, 6_000_006)
    assert {one.number for one in found} == {1, 2}


def test_a_log_that_is_cut_while_it_is_searched_ends_the_search() -> None:
    log = b"price\n" * 10
    answers = itertools.chain([log], itertools.repeat(b""))
    found, next_line = log_search.search(
        lambda at, most: next(answers), 10**9, LogQuery("price"), BEGIN, 100
    )
    assert (len(found), next_line) == (10, FoundLine(11, 60))


@pytest.mark.parametrize(
    ("line", "loud", "warns"),
    [
        ("2026 [a] ERROR: no", True, True),
        ("2026 [a] WARNING: slow", False, True),
        ("2026 [a] INFO: ERROR: quoted", False, False),
        ("ValueError: 3", True, True),
        ('{"severity":"warn","message":"odd"}', False, True),
        ('{"level":40,"msg":"odd"}', False, True),
        ("W1129 10:00:00.123456 1 main.go:12] slow", False, True),
        ("plain", False, False),
    ],
)
def test_the_level_of_a_line(line: str, loud: bool, warns: bool) -> None:
    assert (is_loud(line), is_loud(line, warnings=True)) == (loud, warns)
