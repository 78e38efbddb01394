"""How runs become incidents: opened, counted, closed, reopened and reported, compared with a simple
model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from crawler_lifecycle.domain.conditions import IncidentCondition
from crawler_lifecycle.domain.incident import IncidentRow
from crawler_lifecycle.domain.results import EARLIER
from crawler_lifecycle.features.incidents.domain.crawlers import (
    FAILS,
    JudgedRun,
    crawler_conditions,
    is_well,
)
from crawler_lifecycle.features.incidents.domain.rules import (
    RECOVERED,
    IncidentChange,
    changes_of,
    closing,
    key_of,
)
from crawler_lifecycle.features.incidents.domain.workers import (
    SILENT_S,
    WorkerNote,
    WorkerWatch,
    is_replaced,
)
from crawler_lifecycle.features.incidents.gateway.conditions import RUNS
from tests.support.examples import examples

START = datetime(2026, 11, 1, tzinfo=UTC)
#: Possible runs: status, outcome, who ended it, what it lacks, and its cause.
ENDS = {
    "good": ("COMPLETED", "finished", "crawler", None, "The task succeeded"),
    "few": ("COMPLETED", "finished", "crawler", None, "The task succeeded"),
    "a": ("FAILED", "failed", "crawler", None, "PriceError: no price on page {n}"),
    "b": ("FAILED", "banned", "crawler", None, "HTTP 403 from shop-{n}.example"),
    "stopped": ("FAILED", "cancelled", "person", None, "Stopped by anna"),
    "limit": ("FAILED", "timed_out", "limit", None, "It took longer than 60 s"),
    "less": ("COMPLETED", "finished", "service", "dropped", "{n} items, usual are 400"),
}


def run_of(number: int, word: str, at: datetime | None = None) -> JudgedRun:
    status, outcome, ended_by, lacks, cause = ENDS[word]
    at = at or START + timedelta(minutes=number)
    items = 10 if word == "few" else 100
    cause = cause.format(n=number)
    return JudgedRun(number, status, outcome, ended_by, lacks, cause, at, items, "same")


@dataclass
class Record:
    """The table in memory, and the reports."""

    rows: list[IncidentRow] = field(default_factory=list)
    events: list[tuple[str, int]] = field(default_factory=list)
    told: list[tuple[int, str]] = field(default_factory=list)
    """The number of the incident and the type of each event."""

    def round(
        self, conditions: Sequence[IncidentCondition], now: datetime, *, well: bool = True
    ) -> None:
        closed = {key_of(row): row for row in self.rows if row.state == "closed"}
        still = [row for row in self.rows if row.state == "open"]
        for change in changes_of(conditions, still, closed, lambda row: well, now):
            self.write(change)

    def write(self, change: IncidentChange) -> None:
        row = change.row
        if row is None:
            first: dict[str, Any] = {
                **{
                    "incident_id": len(self.rows),
                    "incident_uid": "",
                    "state": "open",
                    "level": "bad",
                },
                **change.values,
            }
            row = IncidentRow(**first)
            self.rows.append(row)
        else:
            self.rows[row.incident_id] = row = replace(row, **change.values)
        if change.event is not None:
            word = change.event.partition(".")[2]
            self.events.append((word, row.count))
            self.told.append((row.incident_id, word))

    def play(self, runs: Sequence[JudgedRun], each: int = 1) -> None:
        """Judge the runs as they end, ``each`` of them between two rounds."""
        for last in range(each, len(runs) + each, each):
            self.judge(runs[:last], each)

    def judge(self, runs: Sequence[JudgedRun], each: int = 1) -> None:
        """Make one round, after ``each`` runs have ended since the last one."""
        there = sorted(runs, key=lambda run: run.ended_at, reverse=True)[: RUNS + each]
        found = crawler_conditions("default", "shop", there)
        self.round(found, there[0].ended_at, well=is_well(there))

    def open(self, kind: str = "crawler_failing") -> list[IncidentRow]:
        return [row for row in self.rows if row.state == "open" and row.kind == kind]


@settings(max_examples=examples(100))
@given(st.lists(st.sampled_from(sorted(ENDS)), max_size=40))
def test_a_crawler_fails_as_a_naive_model_counts(words: list[str]) -> None:
    record = Record()
    record.play([run_of(number, word) for number, word in enumerate(words, 1)])
    bad = since_good([word for word in words if word not in ("stopped", "limit")])
    counts = {("a" if "Price" in row.cause else "b"): row.count for row in record.open()}
    for word in ("a", "b"):
        often = bad.count(word) >= FAILS
        assert word not in counts or often or len(bad) > FAILS
        if len(words) < RUNS:
            assert not often or counts[word] >= bad.count(word)
    assert "less" not in bad or record.open("crawler_less")
    assert {row.closed_by for row in record.rows if row.state == "closed"} <= {RECOVERED}


def since_good(words: list[str]) -> list[str]:
    """Return what followed the last good run."""
    good = [n for n, word in enumerate(words, 1) if word in ("good", "few")]
    return words[max(good, default=0) :]


@settings(max_examples=examples(100))
@given(st.lists(st.sampled_from([*sorted(ENDS), "mute", "close", "unmute"]), max_size=60))
@example(["a"] * 3 + ["stopped"] * 25)
@example(["a"] * 3 + ["b"] * 25)
@example(["a", "a", "good", "a", "a", "good"])
@example(["a", "a", "mute", "good", "a", "a", "unmute", "stopped"])
@example(["good"] * 4 + ["few", "stopped", "few", "good"])
def test_only_a_good_result_ends_incidents_and_each_turn_is_reported_once(words: list[str]) -> None:
    """People mute all open incidents, end the mutes, or close all, between runs that end."""
    record = Record()
    runs: list[JudgedRun] = []
    for number, word in enumerate(words, 1):
        now = START + timedelta(minutes=number)
        before = {row.incident_id: row for row in record.rows}
        told = len(record.told)
        match word:
            case "mute":
                replace_open(record, muted_until=now + timedelta(minutes=7))
            case "unmute":
                replace_open(record, muted_until=None)
            case "close":
                for row in [row for row in record.rows if row.state == "open"]:
                    record.write(closing(row, "anna", now))
            case _:
                runs.append(run_of(number, word))
                record.judge(runs)
        for row in record.rows:
            was = before.get(row.incident_id)
            was_open = was is not None and was.state == "open"
            events = [event for number_, event in record.told[told:] if number_ == row.incident_id]
            if row.state == "open":
                unheard = row.muted_until is None and row.notices == 0
                assert not unheard or word in ("mute", "unmute", "close"), "silent for ever"
                assert was_open or row.is_muted(now) or events == ["opened"]
            elif was is not None and was_open:
                assert word in ("good", "few", "close")
                heard = was.notices > 0 and not row.is_muted(now)
                assert events == ["closed"] * heard
            assert len(events) <= 1
            assert not (events and row.is_muted(now))


def replace_open(record: Record, **values: Any) -> None:
    """Change all open incidents as a person does."""
    for row in [row for row in record.rows if row.state == "open"]:
        record.rows[row.incident_id] = replace(row, **values)


@settings(max_examples=examples(20))
@given(st.integers(1, 40), st.integers(20, 120))
@example(50, 500)
def test_however_many_failures_of_one_cause_make_two_messages(each: int, failures: int) -> None:
    record = Record()
    runs = [run_of(n, "a", START + timedelta(seconds=n)) for n in range(1, failures + 1)]
    record.play(runs, each)
    [row] = record.rows
    assert row.count == failures
    assert [word for word, _ in record.events] in (["opened", "grew"], ["opened"])
    good = run_of(9_999, "good", START + timedelta(seconds=failures + 1))
    record.play([*runs, good], len(runs) + 1)
    assert record.events[-1] == ("closed", failures)
    assert record.events[0][0] == "opened"
    assert len(record.events) <= 3


def test_a_good_run_with_other_arguments_does_not_end_what_a_run_missed() -> None:
    """Two sets of arguments take turns: the second one is always good."""
    record = Record()
    runs: list[JudgedRun] = []
    for number in range(1, 31):
        word = "less" if number % 2 else "good"
        runs.append(run_of(number, word)._replace(work_hash=str(number % 2)))
        record.judge(runs)
    [row] = record.rows
    assert (row.kind, row.state, row.reopened, row.count) == ("crawler_less", "open", 0, 15)
    met = run_of(31, "good")._replace(work_hash="1")
    record.judge([*runs, met])
    assert [row.state for row in record.rows] == ["closed"]


def test_what_a_run_missed_is_over_when_its_arguments_are_no_longer_used() -> None:
    record = Record()
    runs = [run_of(1, "less")._replace(work_hash="former")]
    for number in range(2, EARLIER + 3):
        runs.append(run_of(number, "good"))
        record.judge(runs)
        assert record.rows[0].state == ("open" if number <= EARLIER else "closed")


def test_fifty_one_runs_of_eight_causes_are_eight_incidents() -> None:
    record = Record()
    for crawler in range(8):
        runs = [run_of(crawler * 10 + n, "a") for n in range(7 if crawler < 3 else 6)]
        record.round(crawler_conditions("default", f"shop-{crawler}", runs[::-1]), START)
        record.rows[-1] = replace(record.rows[-1], state="elsewhere")
    assert sorted(row.count for row in record.rows) == [6] * 5 + [7] * 3


def test_a_cause_that_comes_back_within_an_hour_is_the_same_incident() -> None:
    record = Record()
    record.play([run_of(1, "a"), run_of(2, "a"), run_of(3, "good")])
    again = [run_of(n, "a", START + timedelta(minutes=30 + n)) for n in (4, 5)]
    record.play([run_of(1, "a"), run_of(2, "a"), run_of(3, "good"), *again], 5)
    [row] = record.rows
    assert (row.state, row.reopened, row.count) == ("open", 1, 4)
    assert [word for word, _ in record.events] == ["opened", "closed", "opened"]
    later = [run_of(n, "a", START + timedelta(hours=9, minutes=n)) for n in (7, 8)]
    good = run_of(6, "good", START + timedelta(hours=7))
    record.play([*again, good], 3)
    record.play([*again, good, *later], 5)
    assert [row.state for row in record.rows] == ["closed", "open"]
    assert [word for word, _ in record.events] == ["opened", "closed"] * 2 + ["opened"]


def condition(at: datetime, **more: Any) -> IncidentCondition:
    return IncidentCondition("webhook_paused", "webhooks/ops", "default", "410", START, at, **more)


def test_what_a_person_closed_comes_back_only_by_something_newer() -> None:
    record = Record()
    record.round([condition(START)], START)
    [row] = record.rows
    record.write(closing(row, "anna", START + timedelta(minutes=1)))
    for minutes in (2, 300):
        record.round([condition(START)], START + timedelta(minutes=minutes))
        assert [row.state for row in record.rows] == ["closed"]
    newer = START + timedelta(minutes=301)
    record.round([condition(newer)], newer)
    assert [row.state for row in record.rows] == ["closed", "open"]


def test_a_muted_incident_reports_nothing_and_its_mute_outlives_it() -> None:
    record = Record()
    record.round([condition(START)], START)
    until = START + timedelta(days=1)
    record.rows[0] = replace(record.rows[0], muted_until=until)
    times = tuple(START + timedelta(minutes=n) for n in range(50))
    record.round([condition(times[-1], times=times, count=50)], times[-1])
    record.round([], START + timedelta(hours=1))
    back = START + timedelta(hours=5)
    record.round([condition(back)], back)
    assert [row.muted_until for row in record.rows] == [until, until]
    assert [word for word, _ in record.events] == ["opened"]
    record.round([condition(until, times=(until,), count=1)], until)
    assert record.events[1:] == [("opened", 2)], "when the mute is over and it occurs again"


def test_what_is_old_opens_nothing_and_what_is_not_asked_for_closes_nothing() -> None:
    record = Record()
    record.round([condition(START)], START + timedelta(days=31))
    assert record.rows == []
    record.round([condition(START)], START)
    assert changes_of([], record.rows, {}, lambda row: False, START) == []


def test_runs_that_a_person_or_a_limit_stopped_are_no_failures() -> None:
    runs = [run_of(n, word) for n, word in enumerate(["stopped", "limit"] * 10)]
    assert crawler_conditions("default", "shop", runs[::-1]) == []


def test_a_flaky_crawler_stays_one_when_one_more_run_fails() -> None:
    words = ["good", "a", "good", "b", "good", "a", "good"]
    for more, kinds in (([], ["crawler_flaky"]), (["a"], ["crawler_flaky"])):
        runs = [run_of(n, word) for n, word in enumerate([*words, *more])]
        assert [one.kind for one in crawler_conditions("p", "shop", runs[::-1])] == kinds


@settings(max_examples=examples(50))
@given(st.lists(st.sampled_from(["few", "good", "a"]), min_size=1, max_size=EARLIER - 6))
@example(["few", "good", "few", "good"])
def test_good_runs_with_other_arguments_do_not_end_that_a_crawler_brings_less(
    words: list[str],
) -> None:
    record = Record()
    runs = [*(run_of(n, "good") for n in range(1, 5)), run_of(5, "few")]
    poor = 1
    for number, word in enumerate(words, 6):
        poor += word == "few"
        if poor > 3:  # then few items are usual
            break
        runs.append(run_of(number, word)._replace(work_hash="same" if word == "few" else "other"))
        record.judge(runs)
        [row] = record.open("crawler_less")
        last = max(run.run_id for run in runs if run.items == 10)
        assert (row.last_run_id, row.reopened) == (last, 0)
    record.judge([*runs, run_of(99, "good")])
    assert record.open("crawler_less") == []


def test_arguments_that_are_no_longer_used_do_not_bring_less_for_ever() -> None:
    record = Record()
    runs = [*(run_of(n, "good") for n in range(1, 5)), run_of(5, "few")]
    others = [run_of(n, "good")._replace(work_hash="other") for n in range(6, 6 + EARLIER)]
    record.judge([*runs, *others[:-1]])
    assert len(record.open("crawler_less")) == 1
    record.judge([*runs, *others])
    assert record.open("crawler_less") == []


def test_ever_other_causes_are_one_incident() -> None:
    runs = [
        run_of(n, "a")._replace(cause=f"{letter * 3}Error: it failed")
        for n, letter in enumerate("ABCDE")
    ]
    [found] = crawler_conditions("default", "shop", runs[::-1])
    assert (found.kind, found.count, found.fingerprint) == ("crawler_failing", 5, "")


def test_ever_other_causes_are_reported_next_to_what_a_run_missed() -> None:
    for words in ("less good X Y Z", "less X Y Z", "X Y Z less"):
        runs = [
            run_of(n, word)._replace(work_hash=word)
            if word in ENDS
            else run_of(n, "a")._replace(cause=f"{word * 3}Error: it failed")
            for n, word in enumerate(words.split())
        ]
        found = crawler_conditions("default", "shop", runs[::-1])
        counts = {condition.kind: condition.count for condition in found}
        assert counts == {"crawler_less": 1, "crawler_failing": 3}, words


def test_a_worker_without_new_notes_is_silent_until_it_leaves_one() -> None:
    watch = WorkerWatch()
    one = WorkerNote("cluster", 0.0, 100.0)
    assert watch.silent({"host/1": one}, 10.0) == {}
    assert watch.silent({"host/1": one}, 11.0 + SILENT_S) == {"host/1": SILENT_S + 1}
    assert watch.silent({"host/1": one._replace(at=102.0)}, 22.0) == {}


def test_a_worker_that_began_later_with_the_same_roles_replaces_a_silent_one() -> None:
    gone = WorkerNote("cluster", 0.0, 100.0)
    notes = {
        "gone": gone,
        "older": WorkerNote("cluster", 50.0, 110.0),
        "other": WorkerNote("audit", 101.0, 110.0),
    }
    assert not is_replaced("gone", notes, ["gone"])
    newer = notes | {"newer": WorkerNote("cluster", 101.0, 110.0)}
    assert is_replaced("gone", newer, ["gone"])
    assert not is_replaced("gone", newer, ["gone", "newer"])
