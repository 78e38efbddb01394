"""The list of runs compared with a plain Python list, and the deliveries of a run."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest

from crawler_lifecycle.domain.coverage import Coverage, ExpectedCoverage
from crawler_lifecycle.domain.due_ids import due_request_id
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.run import RunStatus, Stage, Trigger
from crawler_lifecycle.domain.waiting import Wait
from crawler_lifecycle.ports.runs import BriefRun, Fence, RunRow, ShortRun
from crawler_lifecycle.store.runs.lists import CLOCK_SLACK
from crawler_lifecycle.store.runs.search import SORTS
from tests.contracts.store.harness import START, Harness, request

RUNS = 40
TAGS = ["nightly", "Nightly", "a b", "zürich", "half ?", "spaced "]


@pytest.fixture
def many(harness: Harness) -> list[RunRow]:
    """Runs that differ in every filter; the clocks of their creators differ by minutes."""
    chosen = random.Random(7)
    for n in range(RUNS):
        harness.clock.now = (
            START + timedelta(minutes=10 * n) + CLOCK_SLACK * chosen.uniform(-0.49, 0.49)
        )
        name = f"r{n}"
        fields: dict[str, Any] = {
            "crawler": chosen.choice(["services", "sitemap"]),
            "trigger": chosen.choice(list(Trigger)),
            "parent": chosen.choice(["parent-1", None]),
            "flow_id": chosen.choice([None, "flow-1", "flow-2"]),
            "tags": chosen.sample(TAGS, chosen.randrange(3)),
        }
        kind = chosen.randrange(5)
        if kind == 0:
            harness.store.initiation.reserve_run(request(**fields), name)
            continue
        fence = harness.deployed(name, **fields)
        if kind > 1:
            harness.execute(fence)
        if kind > 2:
            harness.finish(fence, failed=[0] if kind == 4 else [])
    rows = [row for n in range(RUNS) if (row := harness.store.runs.find_run(f"r{n}")) is not None]
    return sorted(rows, key=lambda row: -row.run_id)


def fits(row: RunRow, wanted: Mapping[str, Any]) -> bool:
    plain = all(
        getattr(row, name) == wanted[name]
        for name in ("stage", "crawler", "trigger", "outcome", "ended_by", "flow_id", "parent")
        if name in wanted
    )
    tags = [tag.replace("\ud800", "?").rstrip() for tag in row.request["tags"]]  # type: ignore[attr-defined]
    return (
        plain
        and ("status" not in wanted or row.status.value in wanted["status"])
        and all(tag.replace("\ud800", "?").rstrip() in tags for tag in wanted.get("tags", ()))
        and ("created_from" not in wanted or row.created_at >= wanted["created_from"])
        and ("created_until" not in wanted or row.created_at < wanted["created_until"])
        and ("before_run_id" not in wanted or row.run_id < wanted["before_run_id"])
    )


def any_filter(chosen: random.Random, rows: list[RunRow]) -> dict[str, Any]:
    def moment() -> datetime:
        return chosen.choice(rows).created_at + timedelta(microseconds=chosen.choice([-1, 0, 1]))

    possible: dict[str, Any] = {
        "status": chosen.sample([status.value for status in RunStatus], chosen.randrange(1, 5)),
        "stage": chosen.choice(list(Stage)).value,
        "crawler": chosen.choice(["services", "sitemap", "nobody"]),
        "trigger": chosen.choice(list(Trigger)).value,
        "outcome": chosen.choice(["finished", "failed"]),
        "ended_by": chosen.choice(["crawler", "person", "cluster"]),
        "flow_id": chosen.choice(["flow-1", "Flow-1"]),
        "parent": chosen.choice(["parent-1", "Parent-1"]),
        "tags": chosen.sample(TAGS, chosen.choice([1, 1, 2])),
        "created_from": moment(),
        "created_until": moment(),
        "before_run_id": chosen.choice(rows).run_id,
    }
    return {
        name: possible[name]
        for name in chosen.sample(sorted(possible), chosen.choice([1, 1, 2, 2, 3, 4]))
    }


def every_combination_of_filters(harness: Harness, many: list[RunRow]) -> None:
    chosen, found = random.Random(11), 0
    for _ in range(150):
        wanted, limit = any_filter(chosen, many), chosen.choice([3, 50])
        expected = [row for row in many if fits(row, wanted)][:limit]
        assert harness.store.runs.list_runs(**wanted, limit=limit) == expected, wanted
        found += bool(expected)
    assert found > 60, "most filters found something"


def pages_of_a_filter_meet(harness: Harness, many: list[RunRow]) -> None:
    wanted: dict[str, Any] = {
        "status": ["INITIALIZING", "PROCESSING", "COMPLETED"],
        "created_from": START,
    }
    pages: list[RunRow] = []
    before = None
    while page := harness.store.runs.list_runs(**wanted, limit=7, before_run_id=before):
        pages += page
        before = page[-1].run_id
    assert pages == [row for row in many if fits(row, wanted)]


def enumerations_are_taken_for_their_values(harness: Harness, many: list[RunRow]) -> None:
    by_enum = harness.store.runs.list_runs(
        status=[RunStatus.FAILED], stage=Stage.COMPLETION, trigger=Trigger.API
    )
    assert by_enum == harness.store.runs.list_runs(
        status=["FAILED", "FAILED"], stage="completion", trigger="api"
    )
    assert by_enum


def runs_are_counted_up_to_a_bound(harness: Harness, many: list[RunRow]) -> None:
    for statuses in (
        [],
        [RunStatus.FAILED],
        [RunStatus.COMPLETED, RunStatus.FAILED],
        [RunStatus.FAILED] * 2,
    ):
        there = sum(row.status in statuses for row in many)
        for most in (0, 1, there, there + 1, 10**6):
            assert harness.store.runs.count_runs(statuses, most) == min(there, most)


def runs_are_counted_by_their_end(harness: Harness, many: list[RunRow]) -> None:
    for since in (START - CLOCK_SLACK, *(row.created_at for row in many[::7])):
        expected = Counter[str]()
        for row in many:
            if row.created_at >= since:
                stopped = "stopped" if row.ended_by == EndedBy.PERSON else "failed"
                expected[{"COMPLETED": "completed", "FAILED": stopped}.get(row.status, "open")] += 1
        assert harness.store.runs.runs_since(since) == expected
        assert expected.total()


def the_ends_of_a_crawler_are_counted(harness: Harness, many: list[RunRow]) -> None:
    for since in (
        START - CLOCK_SLACK,
        *(row.created_at + timedelta(microseconds=1) for row in many[::7]),
    ):
        mine = [row for row in many if row.crawler == "services" and row.created_at >= since]
        failed = [row for row in mine if row.status is RunStatus.FAILED]
        told = Counter(
            (row.outcome, row.ended_by) for row in failed if row.ended_by != EndedBy.PERSON
        )
        found = harness.store.runs.ends_of("services", since, 9)
        assert (found.completed, found.failed) == (
            sum(row.status == "COMPLETED" for row in mine),
            len(failed),
        )
        assert found.stopped == found.failed - told.total()
        assert Counter({(one.outcome, one.ended_by): runs for runs, one in found.failures}) == told
        for _, one in found.failures:
            newest = next(
                row for row in failed if (row.outcome, row.ended_by) == (one.outcome, one.ended_by)
            )
            assert (one.run_id, one.cause) == (newest.run_id, newest.cause)
    assert harness.store.runs.ends_of("services", START - CLOCK_SLACK, 0).failures == []


def what_live_runs_wait_for_is_counted_and_listed(harness: Harness, many: list[RunRow]) -> None:
    runs = harness.store.runs
    found = runs.live_runs(99)
    live = Counter(row.crawler for row in many if not row.status.terminal)
    assert sum((Counter({one.crawler: one.runs}) for one in found), Counter[str]()) == live
    for one in found:
        if one.wait is not None:
            about = {"waits": one.wait, "pool": one.pool, "crawler": one.crawler}
            assert len(runs.list_runs(**about, limit=99)) == one.runs  # type: ignore[arg-type]
    assert {one.wait for one in found} - {None} == {Wait.WORKER, Wait.START}
    assert runs.list_runs(waits=Wait.WORKER, status=["COMPLETED"]) == []
    assert runs.list_runs(waits=Wait.WORKER, attention=True) == []
    statuses = {row.status for row in many if not row.status.terminal}
    assert sum(one.runs for one in runs.live_runs(1)) == len(statuses)


def good_shares_are_those_of_the_ends(harness: Harness, many: list[RunRow]) -> None:
    runs = harness.store.runs
    since = START - CLOCK_SLACK
    names = {row.crawler for row in many}
    expected = {}
    for name in names:
        ends = runs.ends_of(name, since, 0)
        if ended := ends.completed + ends.failed - ends.stopped:
            expected[name] = ends.completed / ended
    assert runs.good_shares(names, since) == expected
    assert runs.good_shares([], since) == {}
    newest = {row.crawler: row.run_id for row in reversed(many)}
    assert {run.crawler: run.run_id for run in runs.newest_runs(99)} == newest
    assert len(runs.newest_runs(1)) == 1


def runs_are_put_in_order(harness: Harness, many: list[RunRow]) -> None:
    def took(row: RunRow) -> timedelta | None:
        return row.started_at and (row.ended_at or harness.clock.now) - row.started_at

    for name in SORTS:
        value = took if name == "took" else lambda row, name=name: getattr(row, name)
        known = [row for row in many if value(row) is not None]
        for sort, reverse in ((name, False), (f"-{name}", True)):
            ordered = [
                *sorted(known, key=value, reverse=reverse),
                *(row for row in many if value(row) is None),
            ]  # type: ignore[arg-type]
            assert (
                harness.store.runs.search_runs(None, sort, offset=3, limit=20)[0] == ordered[3:23]
            ), sort
            services = [row for row in ordered if row.crawler == "services"]
            assert harness.store.runs.search_runs("SERV", sort, limit=20)[0] == services[:20], sort


def found_runs_are_counted_and_values_known(harness: Harness, many: list[RunRow]) -> None:
    for wanted in (
        {},
        {"status": ["COMPLETED", "FAILED"]},
        {"tags": ["a b"], "crawler": "sitemap"},
    ):
        there = sum(fits(row, wanted) for row in many)
        assert [harness.store.runs.count_found(most, **wanted) for most in (3, 1_000)] == [
            min(there, 3),
            there,
        ]
    known = harness.store.runs.known_values(99)
    assert known["crawler"] == sorted({row.crawler for row in many})
    assert set(known["flow_id"]) == {row.flow_id for row in many if row.flow_id}
    assert set(known["tag"]) == {tag.rstrip() for row in many for tag in row.request["tags"]}  # type: ignore[attr-defined]
    assert len(harness.store.runs.known_values(1)["tag"]) == 1


def the_last_runs_of_each_crawler(harness: Harness, many: list[RunRow]) -> None:
    stopping = harness.deployed("stopping", crawler="sitemap")
    harness.store.stops.record_stop(stopping.run_id, harness.stop(), "s")
    many = [harness.row(stopping), *many]
    assert many[0].status is RunStatus.STOPPING
    found = harness.store.runs.recent_runs(["sitemap", "services", "services", "nobody"], 3)
    expected = [
        row
        for name in ("services", "sitemap")
        for row in [r for r in many if r.crawler == name][:3]
    ]
    assert [row.run_id for row in found] == sorted((row.run_id for row in expected), reverse=True)
    row = next(one for one in many if one.run_id == found[0].run_id)
    assert all(
        getattr(row, name) == getattr(found[0], name)
        for name in ShortRun.__dataclass_fields__.keys() - {"work_hash"}
    )
    assert harness.store.runs.recent_runs([], 3) == []
    brief = harness.store.runs.brief_runs(3, crawler="services")
    assert [one.run_id for one in brief] == [
        row.run_id for row in many if row.crawler == "services"
    ][:3]
    assert all(
        getattr(row, name) == getattr(brief[0], name)
        for row in many
        if row.run_id == brief[0].run_id
        for name in BriefRun.__dataclass_fields__.keys() - {"work_hash"}
    )
    earlier = harness.store.runs.brief_runs(2, crawler="services", before_id=brief[0].run_id)
    assert earlier == brief[1:]
    assert len({run.work_hash for run in brief}) == 1
    harness.store.initiation.reserve_run(request(crawler="services", args={"n": "9"}), "other")
    [other] = harness.store.runs.brief_runs(1, crawler="services")
    assert other.work_hash not in (None, brief[0].work_hash)
    elsewhere = request(crawler="services", args={"n": "9"}, project="another")
    harness.store.initiation.reserve_run(elsewhere, "elsewhere")
    [of_another] = harness.store.runs.brief_runs(1, crawler="services")
    assert of_another.work_hash != other.work_hash, "projects are not compared with each other"


def test_many_runs_are_listed_as_in_a_list_of_our_own(harness: Harness, many: list[RunRow]) -> None:
    """All checks use the same runs, because creating them takes longer than reading them in every
    way.
    """
    every_combination_of_filters(harness, many)
    pages_of_a_filter_meet(harness, many)
    enumerations_are_taken_for_their_values(harness, many)
    runs_are_put_in_order(harness, many)
    found_runs_are_counted_and_values_known(harness, many)
    runs_are_counted_up_to_a_bound(harness, many)
    runs_are_counted_by_their_end(harness, many)
    the_ends_of_a_crawler_are_counted(harness, many)
    what_live_runs_wait_for_is_counted_and_listed(harness, many)
    good_shares_are_those_of_the_ends(harness, many)
    the_last_runs_of_each_crawler(harness, many)


def test_tags_that_one_database_takes_for_the_same(harness: Harness) -> None:
    harness.run(tags=["a", "a", "a ", "half ?"])
    for tag in ("a", "a  ", "half \ud800", "half ?"):
        assert len(harness.store.runs.list_runs(tags=[tag])) == 1
    assert harness.store.runs.list_runs(tags=["A"]) == []


# --- what needs attention -------------------------------------------------------------------------


def test_what_needs_attention(harness: Harness) -> None:
    """Compared with a plain list: many runs of few kinds, some resumed, some ended by a person."""
    chosen = random.Random(3)
    rows: dict[int, str] = {}
    work: dict[int, set[object]] = {}
    for n in range(40):
        crawler, part, asked = (
            chosen.choice(["a", "b"]),
            chosen.choice("12"),
            chosen.choice(["n", "m", None]),
        )
        # A schedule may get other arguments.
        args = {"part": part if asked is None else str(n)}
        due = START + timedelta(days=n)
        request_id = f"r{n}" if asked is None else due_request_id(asked, due)
        fence = harness.deployed(request_id, crawler=crawler, args=args, requested_by=f"p{n}")
        end = chosen.choice(["COMPLETED", "FAILED", "FAILED", "stopped", "live"])
        if end in ("COMPLETED", "FAILED"):
            harness.execute(fence)
            harness.finish(fence, failed=[0] if end == "FAILED" else [])
        elif end == "stopped":
            harness.store.stops.record_stop(fence.run_id, harness.stop(), f"s{n}")
            end = harness.finish(fence, failed=[0]).outcome or ""
            assert end == "cancelled"
        rows[fence.run_id] = end
        work[fence.run_id] = {(crawler, *args.items()), asked or f"alone {n}"}
    resumed = chosen.choice([run_id for run_id, end in rows.items() if end == "FAILED"])
    row = harness.store.runs.get_run(resumed)
    harness.resume(Fence(resumed, 1, row.owner_run_id or "", row.run_uid))
    rows[resumed] = "live"
    good = [run_id for run_id, end in rows.items() if end == "COMPLETED"]
    expected = [
        run_id
        for run_id, end in sorted(rows.items(), reverse=True)
        if end == "FAILED"
        and not any(later > run_id and work[later] & work[run_id] for later in good)
    ]
    assert 3 < len(expected) < sum(end == "FAILED" for end in rows.values()), (
        "some are followed, some are not"
    )
    found = harness.store.runs.list_runs(attention=True)
    assert [one.run_id for one in found] == expected
    harness.clock.forward(31 * 86_400)
    assert harness.store.runs.list_runs(attention=True) == []
    assert harness.store.runs.list_runs(attention=True, created_from=START) == found
    harness.clock.forward(-31 * 86_400)
    page = harness.store.runs.list_runs(
        attention=True, crawler="a", limit=2, before_run_id=expected[0]
    )
    assert [one.run_id for one in page] == [one.run_id for one in found[1:] if one.crawler == "a"][
        :2
    ]


def test_work_is_what_is_crawled_and_not_who_asked(harness: Harness) -> None:
    def failed(request_id: str, **fields: Any) -> None:
        fence = harness.executing(request_id, **fields)
        harness.finish(fence, failed=[0])

    for n, tasks in enumerate([None, 1, 2]):
        failed(
            f"r{n}",
            tasks=tasks,
            args={"a": "1"},
            tags=["x"],
            requested_by="ann",
            trigger=Trigger.SCHEDULED,
        )
    again = harness.deployed("again", tasks=2, args={"a": "1"}, requested_by="bob", priority=5)
    assert len(harness.store.runs.list_runs(attention=True)) == 3, (
        "a run that executes has done nothing well yet"
    )
    harness.execute(again)
    harness.finish(again)
    assert [row.request_id for row in harness.store.runs.list_runs(attention=True)] == ["r1", "r0"]


def test_runs_that_lack_fields_need_attention_until_a_later_one_of_their_work(
    harness: Harness,
) -> None:
    good, less, expected = (
        Coverage(10, {"price": 1.0}),
        Coverage(10, {"price": 0.5}),
        ExpectedCoverage({"price": 0.9}),
    )
    for n in range(3):
        harness.brings(f"good-{n}", good, expected=expected)
    failed = harness.executing("failed", args={"a": "2"})
    harness.finish(failed, failed=[0])
    for n, part in enumerate("112"):
        harness.brings(f"less-{n}", less, expected=expected, args={"part": part})
    rows = harness.store.runs.list_runs(attention=True)
    assert [row.request_id for row in rows] == ["less-2", "less-1", "less-0", "failed"], (
        "a poor run resolves nothing"
    )
    assert [row.request_id for row in harness.store.runs.list_runs(attention=True, limit=2)] == [
        "less-2",
        "less-1",
    ]
    assert {
        row.outcome for row in harness.store.runs.list_runs(attention=True, status=["COMPLETED"])
    } == {"coverage"}
    assert harness.store.runs.list_runs(attention=True, status=["FAILED"]) == rows[3:]
    harness.brings("again", good, expected=expected, args={"part": "2"})
    assert [row.request_id for row in harness.store.runs.list_runs(attention=True)] == [
        "less-1",
        "less-0",
        "failed",
    ]


# --- deliveries -----------------------------------------------------------------------------------


def test_deliveries_of_a_run(harness: Harness) -> None:
    fence = harness.deployed()
    other = harness.deployed("r2")
    started = harness.store.events.append_event(
        fence, "run.started", f"{fence.run}/1/run.started", {}
    )
    harness.execute(fence)
    harness.finish(fence)
    harness.finish(other)
    ended = harness.store.events.find_event(f"{fence.run}/1/run.ended")
    assert ended is not None
    nobody: dict[str, object] = {
        "sink": None,
        "error": None,
        "delivered_at": None,
        "status": "pending",
        "tries": 0,
    }
    start = {"seq": started.seq, "type": "run.started", "attempt": 1}
    end = {"seq": ended.seq, "type": "run.ended", "attempt": 1}
    assert harness.store.events.deliveries(fence.run_id) == [start | nobody, end | nobody]

    harness.store.events.record_delivery(started.seq, "pusher", "refused")
    harness.store.events.record_delivery(started.seq, "pusher", "refused again")
    harness.store.events.record_delivery(ended.seq, "events", "unreachable")
    harness.clock.forward(5)
    harness.store.events.record_delivery(ended.seq, "events", None)
    harness.store.events.record_delivery(ended.seq, "pusher", None)
    done = {"status": "delivered", "error": None, "delivered_at": harness.clock.now}
    assert harness.store.events.deliveries(fence.run_id) == [
        start
        | {
            "sink": "pusher",
            "status": "failed",
            "tries": 2,
            "error": "refused again",
            "delivered_at": None,
        },
        end | done | {"sink": "events", "tries": 2},
        end | done | {"sink": "pusher", "tries": 1},
    ]
    again = harness.resume(other, rerun=True)
    harness.deploy(again)
    harness.finish(again)
    told = [
        (one["attempt"], one["status"]) for one in harness.store.events.deliveries(other.run_id)
    ]
    assert told == [(1, "pending"), (2, "pending")]


def test_a_change_that_was_pushed_is_shown(harness: Harness) -> None:
    fence = harness.run()
    assert (
        harness.store.events.deliveries(fence.run_id)
        == harness.store.events.deliveries(fence.run_id + 1000)
        == []
    )
    [changed] = [
        event for event in harness.store.events.events_after(0) if event.type == "run.changed"
    ]
    harness.store.events.record_delivery(changed.seq, "pusher", "hung")
    [shown] = harness.store.events.deliveries(fence.run_id)
    assert (shown["type"], shown["status"], shown["error"]) == ("run.changed", "failed", "hung")


# --- events


def test_the_events_of_one_run_are_found_among_all(harness: Harness) -> None:
    assert harness.store.events.last_event_seq() == 0
    one, two = harness.deployed("r1"), harness.deployed("r2")
    for n in range(6):
        harness.store.events.append_event(one if n % 3 else two, "told", f"told-{n}", {"n": n})
    told = harness.store.events.events_after(0)
    assert harness.store.events.last_event_seq() == told[-1].seq == len(told)
    for fence in (one, two):
        mine = [event for event in told if event.run_id == fence.run_id]
        assert harness.store.events.events_after(0, run_id=fence.run_id) == mine
        assert harness.store.events.events_after(mine[0].seq, 1, fence.run_id) == mine[1:2]
        assert harness.store.events.events_after(told[-1].seq, run_id=fence.run_id) == []


def test_deliveries_of_mere_news_can_be_left_out(harness: Harness) -> None:
    fence = harness.deployed()
    news = harness.store.events.events_after(0)[-1]
    assert news.type == "run.changed"
    kept = harness.store.events.append_event(fence, "told", "told", {})
    harness.store.events.record_delivery(news.seq, "pusher", "refused")
    assert [row["seq"] for row in harness.store.events.deliveries(fence.run_id)] == [
        news.seq,
        kept.seq,
    ]
    assert [
        (row["seq"], row["status"])
        for row in harness.store.events.deliveries(fence.run_id, keyed=True)
    ] == [(kept.seq, "pending")]
