"""The record of incidents, and the queries from which they are derived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from crawler_lifecycle.domain.conditions import IncidentCondition, fingerprint
from crawler_lifecycle.domain.errors import RunNotFound
from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.features.incidents.domain.crawlers import crawler_conditions
from crawler_lifecycle.features.incidents.store.incidents import CHANGES_MAX
from crawler_lifecycle.store.notes import WORKER
from crawler_lifecycle.store.retention.pruning import Pruner
from crawler_lifecycle.store.store import Store
from tests.contracts.store.harness import START, Harness
from tests.support.servers import each_on_sqlite


def failing(name: str = "shop", minute: int = 0, **more: Any) -> IncidentCondition:
    at = START + timedelta(minutes=minute)
    values: dict[str, Any] = {"fingerprint": fingerprint("boom"), "times": (at,), **more}
    return IncidentCondition(
        "crawler_failing", f"crawlers/{name}", "default", "boom", START, at, **values
    )


def record(store: Store, *conditions: IncidentCondition) -> int:
    return store.incidents.record_conditions(conditions, lambda row: True)


def events(store: Store) -> list[tuple[str, object]]:
    found = store.events.events_after(0, 1000)
    return [(one.type, one.body["count"]) for one in found if one.type.startswith("incident.")]


def test_a_cause_is_opened_once_counted_closed_and_opened_again(harness: Harness) -> None:
    store = harness.store
    assert [record(store, failing()) for _ in range(2)] == [1, 0]
    for minute in range(1, 12):
        harness.clock.forward(60)
        record(store, failing(minute=minute))
    harness.clock.forward(240)
    [row] = store.incidents.open_incidents(10)
    assert (row.count, row.opened_at, row.last_at, row.notices) == (
        12,
        START,
        START + timedelta(minutes=11),
        2,
    )
    assert record(store) == 1
    assert store.incidents.open_incidents(10) == []
    [closed] = store.incidents.list_incidents(state="closed")
    assert (closed.closed_by, closed.closed_at) == ("recovered", harness.clock.now)
    record(store, failing(minute=12))
    [again] = store.incidents.open_incidents(10)
    assert (again.incident_id, again.reopened, again.count) == (row.incident_id, 1, 13)
    assert events(store) == [
        ("incident.opened", 1),
        ("incident.grew", 10),
        ("incident.closed", 12),
        ("incident.opened", 13),
    ]
    ended = store.events.events_after(0, 1000)[-2]
    assert (ended.subject, ended.body["crawler"]) == (f"incidents/{row.incident_id}", "shop")
    assert ended.body["duration_s"] == 900


@each_on_sqlite([2, 3, 9], [3])
def test_a_problem_that_comes_and_goes_is_reported_every_quarter_of_an_hour(
    harness: Harness, value: int
) -> None:
    """Every ``value``-th round does not find it."""
    store = harness.store
    for number in range(241):  # an hour
        harness.clock.forward(15)
        record(store, *([failing(minute=number)] if number % value else []))
    harness.clock.forward(900)
    record(store, failing(minute=241))
    [row] = store.incidents.open_incidents(10)
    found = store.events.events_after(0, 1000)
    opened = [event.created_at for event in found if event.type == "incident.opened"]
    assert row.notices > 0, "the last opening is reported, although late"
    assert len(opened) == 5 or len(opened) == 6
    assert all(b - a >= timedelta(minutes=15) for a, b in pairwise(opened))
    harness.clock.forward(15)
    record(store)
    types = [event.type for event in store.events.events_after(0, 1000)]
    assert types.count("incident.closed") == len(opened), "each reported opening has its end"


def test_hundreds_at_once_are_all_recorded_with_their_events(harness: Harness) -> None:
    store = harness.store
    many = CHANGES_MAX + 5
    worst, *others = [failing(f"shop-{n}") for n in range(many)]
    conditions = [worst, *(replace(one, kind="crawler_flaky") for one in others)]
    assert record(store, *conditions) == many
    assert store.incidents.open_counts() == {"crawler_failing": 1, "crawler_flaky": many - 1}
    [row] = store.incidents.open_incidents(1)
    assert (row.level, row.name) == ("bad", "shop-0")
    assert len(events(store)) == many
    assert store.incidents.record_conditions([], lambda row: row.name == "shop-0") == 1
    assert store.incidents.open_counts() == {"crawler_flaky": many - 1}


def test_people_close_mute_assign_and_comment(harness: Harness) -> None:
    store = harness.store
    record(store, failing())
    [row] = store.incidents.open_incidents(10)
    harness.clock.forward(60)
    changes = {
        "muted_until": harness.clock.now + timedelta(days=1),
        "assignee": "anna" * 100,
        "comment": "a\ud800 new layout",
    }
    store.incidents.change_incident(row.incident_id, **changes)
    assert (store.incidents.open_counts(heard=True), len(store.incidents.open_counts())) == ({}, 1)
    there = store.incidents.get_incident(row.incident_id)
    assert there is not None
    assert (len(there.assignee or ""), there.comment) == (100, "a? new layout")
    closed = store.incidents.close_incident(row.incident_id, "anna")
    assert store.incidents.close_incident(row.incident_id, "bob") == closed
    assert (closed.state, closed.closed_by) == ("closed", "anna")
    assert record(store, failing()) == 0, "the same occurrence"
    assert [type for type, _ in events(store)] == ["incident.opened"], "it is muted"
    with pytest.raises(RunNotFound, match="There is no incident 4711"):
        store.incidents.close_incident(4711, "anna")


def test_a_list_has_what_fits_its_filters(harness: Harness) -> None:
    store = harness.store
    record(store, *(failing(f"shop-{n}") for n in range(6)))
    ids = [row.incident_id for row in store.incidents.list_incidents()]
    assert ids == sorted(ids, reverse=True)
    store.incidents.change_incident(ids[0], assignee="anna")
    store.incidents.change_incident(ids[1], muted_until=harness.clock.now + timedelta(hours=1))
    store.incidents.close_incident(ids[2], "anna")

    def listed(**filters: Any) -> list[int]:
        return [row.incident_id for row in store.incidents.list_incidents(**filters)]

    assert listed() == [*ids[:2], *ids[3:]]
    assert listed(state="closed") == [ids[2]]
    assert listed(state="all", limit=2, before_id=ids[1]) == ids[2:4]
    assert listed(assignee="anna", kind="crawler_failing") == [ids[0]]
    assert listed(muted=True) == [ids[1]]
    assert ids[1] not in listed(muted=False)
    assert listed(subject="crawlers/shop-0") == [ids[5]]
    assert listed(kind="pool_full") == []


def test_a_caller_of_a_project_sees_its_own_and_no_parts(harness: Harness) -> None:
    store = harness.store
    part = replace(failing(), kind="part_unwell", subject="parts/temporal", project="*")
    record(store, failing(), replace(failing(), project="other"), part)
    assert store.incidents.open_counts() == {"crawler_failing": 2, "part_unwell": 1}
    with limited("other"):
        [row] = store.incidents.open_incidents(10)
        assert (row.project, store.incidents.open_counts()) == ("other", {"crawler_failing": 1})
        assert store.incidents.list_incidents() == [row]
    with limited("default"):
        assert store.incidents.get_incident(row.incident_id) is None
        with pytest.raises(RunNotFound):
            store.incidents.change_incident(row.incident_id, comment="mine")


def failed_runs(harness: Harness, crawler: str, runs: int, good: Sequence[int] = ()) -> None:
    for n in range(runs):
        fence = harness.executing(f"{crawler}-{n}", crawler=crawler)
        harness.clock.forward(10)
        harness.finish(fence, failed=() if n in good else [0])


def test_crawlers_and_their_last_ends_are_read_by_indexes(harness: Harness) -> None:
    store = harness.store
    failed_runs(harness, "alpha", 4, good=[1])
    seq = store.events.last_event_seq()
    failed_runs(harness, "beta", 3)
    harness.executing("live", crawler="gamma")
    names = [("default", name) for name in ("alpha", "beta", "gamma")]
    assert store.incidents.all_crawlers() == names
    ended, last = store.incidents.crawlers_ended_after(0)
    assert ended == Counter({names[0]: 4, names[1]: 3})
    assert store.incidents.crawlers_ended_after(seq) == (Counter({names[1]: 3}), last)
    assert store.incidents.crawlers_ended_after(last) == (Counter(), last)
    runs = store.incidents.ended_runs(names, 3)
    assert list(runs) == names
    statuses = [run.status for run in runs[names[0]]]
    assert statuses == ["FAILED", "FAILED", "COMPLETED", "FAILED"], "at most three of each status"
    assert runs[names[2]] == []
    [found] = crawler_conditions(*names[1], runs[names[1]])
    assert (found.kind, found.count, found.subject) == ("crawler_failing", 3, "crawlers/beta")
    record(store, found)
    [row] = store.incidents.open_incidents(1)
    assert row.first_run_id is not None
    assert row.last_run_id == row.first_run_id + 2


def test_one_process_has_the_turn_until_its_time_is_over(harness: Harness) -> None:
    notes = harness.store.notes

    def take(holder: str) -> bool:
        return notes.take_turn("incidents", holder, harness.clock.now + timedelta(seconds=10))

    assert [take("one"), take("two"), take("one")] == [True, False, True]
    harness.clock.forward(11)
    assert [take("two"), take("one")] == [True, False]


def test_a_note_is_removed_by_who_left_it(harness: Harness) -> None:
    notes = harness.store.notes
    notes.leave_note(WORKER, "host/1", "{}", harness.clock.now + timedelta(hours=1))
    notes.leave_note(WORKER, "host/2", "{}", harness.clock.now + timedelta(hours=1))
    notes.remove_note("host/1")
    notes.remove_note("host/1")
    assert [row["name"] for row in notes.live_notes(WORKER)] == ["host/2"]


def test_incidents_that_were_closed_long_ago_are_removed(harness: Harness, pruner: Pruner) -> None:
    store = harness.store
    record(store, failing("old"), failing("open"))
    store.incidents.record_conditions([], lambda row: row.name == "old")
    harness.clock.forward(91 * 86_400)
    store.incidents.record_conditions(
        [failing("new", minute=91 * 1440)], lambda row: row.name == "new"
    )
    before = harness.clock.now - timedelta(days=90)
    chunk = pruner.poll("incident", before)
    assert pruner.remove("incident", chunk.goes, before) == {"incident": 1}
    names = {row.name for row in store.incidents.list_incidents(state="all")}
    assert names == {"open", "new"}
