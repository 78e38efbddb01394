"""Cron expressions and clock changes, compared with a plain search of every minute."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.due_ids import due_of, due_request_id
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.features.schedules.domain.calendar import (
    ClockChange,
    ClockEffect,
    clock_changes,
    read_cron,
)
from crawler_lifecycle.features.schedules.domain.decision import (
    Circumstances,
    Decision,
    decide,
    too_many_failures,
)
from crawler_lifecycle.features.schedules.domain.definition import Overlap, ScheduleSpec

RUN = {"crawler": "books"}
ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    "America/Santiago",
    "Africa/Cairo",
    "UTC",
]


def fields(least: int, most: int) -> st.SearchStrategy[str]:
    number = st.integers(least, most)
    span = st.tuples(number, number).map(lambda two: f"{min(two)}-{max(two)}")
    part = st.one_of(
        number.map(str), span, st.builds("{}/{}".format, st.just("*") | span, st.integers(1, 70))
    )
    return st.just("*") | st.lists(part, min_size=1, max_size=3).map(",".join)


CRONS = st.tuples(fields(0, 59), fields(0, 23), fields(1, 28), fields(1, 12), fields(0, 7)).map(
    " ".join
)
#: Any times, half of them up to twelve hours before a clock change in one of the zones.
MOMENTS = st.datetimes(datetime(2026, 1, 1), datetime(2030, 1, 1)) | st.builds(
    lambda change, minutes: change - timedelta(minutes=minutes),
    st.sampled_from([datetime(2027, 3, 28, 1), datetime(2027, 11, 7, 6), datetime(2027, 4, 3, 15)]),
    st.integers(0, 720),
)


def values(text: str, least: int, most: int) -> set[int]:
    """Return the values of a field by another implementation."""
    found = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = (f"{least}-{most}" if span == "*" else span).partition("-")
        found |= {
            n
            for n in range(int(first), int(last or first) + 1)
            if (n - int(first)) % int(step or 1) == 0
        }
    return found


@given(CRONS, st.datetimes(datetime(2026, 1, 1), datetime(2030, 1, 1)))
def test_a_minute_is_due_when_its_fields_say_so(cron: str, at: datetime) -> None:
    minute, hour, day, month, weekday = cron.split()
    days, weekdays = values(day, 1, 31), {n % 7 for n in values(weekday, 0, 7)}
    on_day, on_weekday = at.day in days, at.isoweekday() % 7 in weekdays
    either = not day.startswith("*") and not weekday.startswith("*")
    wanted = (on_day or on_weekday) if either else (on_day and on_weekday)
    wanted = wanted and at.minute in values(minute, 0, 59) and at.hour in values(hour, 0, 23)
    wanted = wanted and at.month in values(month, 1, 12)
    assert any(one.has(at) for one in read_cron(cron)) == wanted


@given(CRONS, st.sampled_from(ZONES), MOMENTS)
def test_due_times_are_every_minute_that_is_due_and_temporal_fires_at_all(
    cron: str, zone: str, at: datetime
) -> None:
    spec, at = ScheduleSpec(run=RUN, cron=cron, time_zone=zone), at.replace(tzinfo=UTC, second=0)
    minutes = [at.replace(microsecond=0) + timedelta(minutes=n) for n in range(1, 720)]
    due = [minute for minute in minutes if spec.is_due(minute)]
    assert list(spec.due_times(at, minutes[-1])) == due
    fires = spec.firing(at)
    assert all(spec.fires(minute) and any(one.has(minute) for one in fires) for minute in due)


#: Both clock changes in three zones: UTC of each due time, written by hand.
CHANGES = [
    ("Europe/Berlin", "30 2 * * *", "2027-03-27", ["27T01:30", "29T00:30"]),
    ("Europe/Berlin", "30 2 * * *", "2027-10-30", ["30T00:30", "31T00:30", "31T01:30", "01T01:30"]),
    ("America/New_York", "30 2 * * *", "2027-03-13", ["13T07:30", "15T06:30"]),
    (
        "America/New_York",
        "30 1 * * *",
        "2027-11-06",
        ["06T05:30", "07T05:30", "07T06:30", "08T06:30"],
    ),
    ("Australia/Lord_Howe", "15 2 * * *", "2027-10-02", ["01T15:45", "03T15:15"]),
    (
        "Australia/Lord_Howe",
        "45 1 * * *",
        "2027-04-03",
        ["02T14:45", "03T14:45", "03T15:15", "04T15:15"],
    ),
]


@pytest.mark.parametrize(("zone", "cron", "day", "wanted"), CHANGES)
def test_a_clock_that_is_set_leaves_out_a_time_or_has_it_twice(
    zone: str, cron: str, day: str, wanted: list[str]
) -> None:
    spec = ScheduleSpec(run=RUN, cron=cron, time_zone=zone, jitter_s=60)
    start = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    found = list(spec.due_times(start, start + timedelta(days=3)))
    assert [f"{at:%dT%H:%M}" for at in found] == wanted
    twice = [
        one for one in spec.clock_changes(start) if one.day - start.date() <= timedelta(days=2)
    ]
    assert len(twice) == 1


@given(
    st.integers(10, 10**6),
    st.integers(0, 10**6),
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)),
)
def test_intervals_are_counted_from_1970(every: int, offset: int, at: datetime) -> None:
    spec, at = ScheduleSpec(run=RUN, every_s=every, offset_s=offset % every), at.replace(tzinfo=UTC)
    found = list(spec.due_times(at, at + timedelta(seconds=3 * every)))
    assert len(found) == 3
    assert all(
        (moment.timestamp() - offset % every) % every == 0 and spec.is_due(moment)
        for moment in found
    )
    ends = ScheduleSpec(
        run=RUN, every_s=every, offset_s=offset % every, start_at=found[1], end_at=found[1]
    )
    assert list(ends.due_times(at, found[2])) == [found[1]]


@given(st.sampled_from(ZONES), st.integers(0, 23), st.integers(0, 59), st.integers(0, 300))
def test_clock_changes_are_those_on_which_the_local_time_is_not_there_once(
    zone: str, hour: int, minute: int, days: int
) -> None:
    """Each local minute of the year is searched for in UTC."""
    key, start = ZoneInfo(zone), datetime(2027, 1, 1, tzinfo=UTC) + timedelta(days=days)
    found = clock_changes(read_cron(f"{minute} {hour} * * *"), key, start, 60)
    wanted = []
    for n in range(1, 59):
        local = (start + timedelta(days=n)).replace(hour=hour, minute=minute, tzinfo=None)
        times = {local.replace(tzinfo=key, fold=fold).astimezone(UTC) for fold in (0, 1)}
        real = [at for at in times if at.astimezone(key).replace(tzinfo=None) == local]
        if len(real) != 1:
            effect = ClockEffect.SKIPPED if not real else ClockEffect.TWICE
            wanted.append(ClockChange(local.date(), effect, f"{hour:02}:{minute:02}"))
    inner = {(start + timedelta(days=n)).date() for n in range(1, 59)}
    assert [one for one in found if one.day in inner] == wanted


def test_the_days_that_people_are_told_of() -> None:
    spec = ScheduleSpec(
        run=RUN, cron="30 2 * * *", time_zone="Europe/Berlin", excluded=["2027-10-31"]
    )
    after = datetime(2026, 11, 22, tzinfo=UTC)
    assert spec.clock_changes(after) == [
        ClockChange(date(2027, 3, 28), ClockEffect.SKIPPED, "02:30")
    ]
    assert ScheduleSpec(run=RUN, every_s=3600, time_zone="Europe/Berlin").clock_changes(after) == []
    read = ScheduleSpec.read(spec.document())
    assert read == spec
    at = datetime(2026, 11, 22, 3, tzinfo=ZoneInfo("Europe/Berlin"))
    assert due_request_id("n" * 80, at) == f"schedule/{'n' * 80}/2026-11-22T02:00:00Z"
    assert len(due_request_id("n" * 80, at)) <= 120


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"cron": "0 0 31 2 *"}, "no year has such a day"),
        ({"cron": "* * * * * *"}, "seconds cannot be chosen"),
        ({"cron": "@every 1s"}, "for intervals give every_s"),
        ({"cron": "@reboot"}, "give five fields .*, or @daily and the like"),
        (
            {"cron": "CRON_TZ=Asia/Tokyo 0 6 * * *"},
            "cron: .*; give the time zone in time_zone: Asia/Tokyo, and only",
        ),
        (
            {"cron": "TZ=UTC @daily"},
            "give the time zone in time_zone: UTC, and only the five fields here",
        ),
        ({"cron": "0 0 * * 5#2"}, "'5#2' is not a valid weekday"),
        (
            {"every_s": 60, "run": {"crawler": "books", "args": {"day": "{due:%c}"}}},
            "run.args.day: '{due:%c}' .*%Y-%m",
        ),
        (
            {"every_s": 60, "run": {"crawler": "books", "tasks": [{"args": {"d": "{due}"}}]}},
            r"run.tasks\[0\].args.d: ",
        ),
        (
            {"every_s": 60, "run": None, "manager": {"options": {"argv": ["-a", "d={due:%Y"]}}},
            r"options.argv\[1\]: ",
        ),
        ({"cron": "0 24 * * *"}, "'24' is not a valid hour; give 0 to 23"),
        ({"cron": "0 0 * * FRY"}, "'fry' is not a valid weekday; give 0 to 7, or SUN to SAT"),
        ({"cron": "0 0 * * FRI-MON"}, "a range must go upwards"),
        ({"cron": "*/0 * * * *"}, "in steps of at least 1"),
        ({"cron": "٣ * * * *"}, "is not a valid minute"),
        ({"cron": "0 0 * * *", "time_zone": "Europe/Atlantis"}, "zone of the IANA database"),
        ({"cron": "0 0 * * *", "time_zone": "../etc/passwd"}, "zone of the IANA database"),
        ({"cron": "0 0 * * *", "time_zone": "Europe"}, "zone of the IANA database"),
        ({"cron": "0 0 * * *", "time_zone": "localtime"}, "zone of the IANA database"),
        ({"cron": "0 0 * * *", "time_zone": "right/Europe/Berlin"}, "zone of the IANA database"),
        ({"cron": "0,5 * * * *", "jitter_s": 300}, "less than the 300 s"),
        ({"every_s": 60, "jitter_s": 60}, "less than the 60 s"),
        (
            {"every_s": 60, "offset_s": 60},
            "give it only with every_s, and make it smaller than every_s",
        ),
        ({"cron": "0 0 * * *", "offset_s": 5}, "give it only with every_s"),
        ({"every_s": 1}, "a whole number from 10"),
        ({"every_s": True}, "a whole number from 10"),
        ({}, "give either cron"),
        ({"cron": "0 0 * * *", "every_s": 60}, "not both"),
        ({"every_s": 60, "catch_up_s": 1}, "from 10"),
        ({"every_s": 60, "excluded": ["24.12.2026"]}, r"excluded\[0\]"),
        ({"every_s": 60, "start_at": datetime(2026, 1, 1)}, "with its zone"),
        ({"every_s": 60, "run": {"crawler": "books", "due_at": "x"}}, "run.due_at"),
        ({"every_s": 60, "graph": {}}, "exactly one of run, manager and graph"),
        ({"every_s": 60, "run": {"crawler": "x" * 140_000}}, "bytes are too many"),
    ],
)
def test_what_cannot_be_is_refused_with_its_fix(given: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        ScheduleSpec(**{"run": RUN, **given})  # type: ignore[arg-type]


@given(
    st.floats(0, 1e6),
    st.floats(10, 1e6),
    st.sampled_from(Overlap),
    st.booleans(),
    st.none() | st.just("a migration"),
    st.none() | st.just("2026-11-22T02:00:00Z"),
    st.booleans(),
)
def test_every_due_time_has_one_decision(
    late: float,
    allowed: float,
    overlap: Overlap,
    live: bool,
    paused: str | None,
    later: str | None,
    asked: bool,
) -> None:
    decision, reason = decide(Circumstances(late, allowed, overlap, live, paused, later, asked))
    assert (reason is None) == (decision is Decision.STARTED), (
        "whatever is not plainly begun says why"
    )
    assert (decision is Decision.PAUSED) == (paused is not None and not asked)
    assert not (decision is Decision.STARTED and live and overlap is not Overlap.ALLOW)
    assert not {"waits", "yet"} & set((reason or "").split()), "it is shown also when that is over"
    if not asked and paused is None:
        assert (decision is Decision.MISSED) == (late > allowed)
        if late <= allowed and later is not None and overlap is Overlap.STOP_PREVIOUS:
            assert decision is Decision.SKIPPED_OVERLAP


def test_sunday_ends_a_week_and_begins_one() -> None:
    assert [one.weekdays for one in read_cron("0 0 * * FRI-SUN")] == [(0, 5, 6)]
    assert [one.weekdays for one in read_cron("0 0 * * SUN-TUE")] == [(0, 1, 2)]
    assert [one.weekdays for one in read_cron("0 0 * * SUN")] == [(0,)]


def test_what_a_person_fires_is_told_from_other_rules_of_the_zone() -> None:
    """Temporal fires by the old rules until it gets the new ones; nobody requested those times."""
    spec = ScheduleSpec(run=RUN, cron="30 2 * * *", time_zone="Africa/Casablanca")
    for text, fires in (
        ("T00:30:00", True),
        ("T02:30:00", True),
        ("T02:31:00", False),
        ("T02:30:07", False),
    ):
        assert spec.fires(datetime.fromisoformat(f"2027-02-01{text}+00:00")) is fires, text


def test_failures_count_from_the_newest() -> None:
    assert too_many_failures([True, True, False], 2) is not None
    assert too_many_failures([True, False, True], 2) is None
    assert too_many_failures([True], 2) is None
    assert too_many_failures([True] * 9, None) is None


@pytest.mark.parametrize("times", [{"every_s": 10}, {"cron": "* * * * *"}])
def test_days_that_are_left_out_cost_nothing(times: dict[str, object]) -> None:
    """A year of them had three million due times of ten seconds, each of which was once read."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    asked = Asked((begin + timedelta(days=n)).date() for n in range(1, 366))
    spec = ScheduleSpec(
        run={}, excluded=[day.isoformat() for day in asked], time_zone="Europe/Berlin", **times
    )  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "crawler_lifecycle.features.schedules.domain.definition.set",
            lambda days: asked,
            raising=False,
        )
        due = spec.due_times(begin + timedelta(days=1), begin + timedelta(days=400))
        found = next(due)
    assert found.astimezone(ZoneInfo("Europe/Berlin")).isoformat() == "2027-01-02T00:00:00+01:00"
    assert asked.times < 10_000


class Asked(set[date]):
    """Days that count how often one is requested."""

    times = 0

    def __contains__(self, day: object) -> bool:
        self.times += 1
        return super().__contains__(day)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("@hourly", "0 * * * *"),
        (" @Daily ", "0 0 * * *"),
        ("@midnight # every night", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("0 6 * * *  # CRON_TZ=x, the shop opens at 7", "0 6 * * *"),
    ],
)
def test_names_and_comments_of_crontabs_are_read(text: str, fields: str) -> None:
    assert read_cron(text) == read_cron(fields)


def test_a_due_time_stands_in_the_target_in_the_zone_of_its_schedule() -> None:
    args = {
        "day": "{due:%Y-%m-%d}",
        "at": "at {due:%H:%M} of {due:%j}, {due:100%%}",
        "plain": "{50%}",
        "number": 5,
    }
    graph = {"steps": [{"job": {"args": args}}], "context": {"week": ["{due:%G-W%V-%u}"]}}
    spec = ScheduleSpec(graph=graph, cron="30 0 * * *", time_zone="Asia/Tokyo")
    assert spec.target_at(datetime(2026, 3, 1, 15, 30, tzinfo=UTC)) == {
        "steps": [
            {
                "job": {
                    "args": {
                        "day": "2026-03-02",
                        "at": "at 00:30 of 061, 100%",
                        "plain": "{50%}",
                        "number": 5,
                    }
                }
            }
        ],
        "context": {"week": ["2026-W10-1"]},
    }
    assert ScheduleSpec.read(spec.document()) == spec


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        (("nightly.2026-03-01T12:00:00Z",), True),
        (("graph/schedule.shop-a.nightly.2026-03-01T12:00:00Z",), True),
        (("0123.1", "graph/schedule.nightly.2026-03-01T12:00:00Z"), True),
        (("", None, "graph/nightly"), False),
        (("nightly.2026-13-01T12:00:00Z",), False),
        (("nightly.2026-03-01T12:00:00Z.again",), False),
    ],
)
def test_ids_that_a_schedule_made_have_its_due_time(
    ids: tuple[str | None, ...], found: bool
) -> None:
    assert due_of(*ids) == (datetime(2026, 3, 1, 12, tzinfo=UTC) if found else None)
