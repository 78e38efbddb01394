"""Managers: who owns one, the states of its jobs, and what each of its writers may not do."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from crawler_lifecycle.domain.coverage import ExpectedCoverage
from crawler_lifecycle.domain.errors import (
    DuplicateRequest,
    Fenced,
    InvalidRequest,
    NotInThisState,
    Overtaken,
    RowUnreadable,
    RunIsLive,
    RunNotFound,
)
from crawler_lifecycle.domain.names import (
    EVENT_MANAGER_CHANGED,
    EVENT_MANAGER_ENDED,
    manager_subject,
)
from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.features.managers.domain.manager import (
    OUTPUT_BYTES,
    AddedJob,
    Decision,
    HookFailed,
    HookReport,
    JobState,
    Page,
    PickedJob,
    SourceItem,
)
from crawler_lifecycle.features.managers.ports import (
    CODE_READING,
    HEARD_S,
    ManagerFence,
    UserCodeRow,
)
from crawler_lifecycle.ports.runs import Fence, Owner
from crawler_lifecycle.store.base import search
from tests.contracts.store.graphing import Graphed, step
from tests.contracts.store.harness import Harness, request
from tests.contracts.store.managing import MINE, NAME, NEW, NEXT, NONSENSE, Managed, job, page


@pytest.fixture
def managed(harness: Harness) -> Managed:
    return Managed.begun(harness)


# --- rows and owners


def test_a_start_that_is_repeated_is_one_manager(harness: Harness) -> None:
    managers = harness.store.managers
    row, new = managers.reserve_manager(NEW)
    assert new
    assert row.status is RunStatus.INITIALIZING
    again, second = managers.reserve_manager(NEW)
    assert not second
    assert (
        again
        == row
        == managers.find_manager(NAME, NEW.flow_id)
        == managers.get_manager(row.manager_id)
    )
    with pytest.raises(DuplicateRequest, match="another class or other options"):
        managers.reserve_manager(replace(NEW, options={}))
    other, new = managers.reserve_manager(replace(NEW, flow_id="flow-2"))
    assert new
    assert [one.manager_id for one in managers.newest()] == [other.manager_id, row.manager_id]
    assert managers.newest(other.manager_id, states=["INITIALIZING"], name=NAME) == [row]
    assert managers.newest(states=["FAILED"]) == managers.newest(name="x") == []
    assert managers.get_manager(2**63) is None
    assert managers.find_manager(None, "flow-2") == other
    assert managers.find_manager(NAME, "x") is managers.find_manager(None, "x") is None


def test_managers_are_found_by_a_text_put_in_order_and_counted(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers = harness.store.managers

    def found(text: str | None, sort: str | None = None, **wanted: Any) -> list[int]:
        return [row.manager_id for row in managers.search(text, sort, **wanted)[0]]

    first, second, third = (
        managers.reserve_manager(
            replace(
                NEW,
                name=name,
                flow_id=f"Flow {n}",
                tags=[f"Ö{n}"],
                options={"argv": ["plain", f"--shop={n}%"]},
            )
        )[0].manager_id
        for n, name in enumerate(("beta", "alpha", "Gamma"))
    )
    managed = Managed.claimed(harness, second)
    managed.add(job(1), job(2))
    every = [third, second, first]
    for text, ids in {
        **{"ALPH": [second], "flow 2": [third], "ö": every, "--SHOP=1": [second], "PLAIN": every},
        **{"%": every, "_": [], "\\": [], '"': [], "argv": [], NEW.plan.upper(): every},
    }.items():
        assert found(text) == ids, text
    assert found("shop", states=["INITIALIZING"], limit=1) == [third]
    for sort, ids in {
        **{
            "name": [third, second, first],
            "-name": [first, second, third],
            "-wait": [second, third, first],
        },
        **{
            "outcome": [third, second, first],
            "-flow_id": [third, second, first],
            "live": [third, second, first],
        },
    }.items():
        assert found(None, sort) == ids, sort
    assert found("shop", "name", offset=1, limit=1) == [second]
    assert [managers.count_listed(most) for most in (2, 9)] == [2, 3]
    assert managers.count_listed(9, states=["FAILED", "INITIALIZING"]) == 2
    monkeypatch.setattr(search, "WINDOW", 1)
    assert (found("ALPH"), found("shop"), found(str(first))) == ([second], [third], [first])
    rows, reach = managers.search("x")
    assert (rows, reach.whole, reach.left) == ([], False, ["arguments", "classes", "flows", "tags"])
    with limited("default"):  # names have no index for one project
        assert managers.search("ALPH")[1].left[-1] == "names"
    assert found("a", "name") == [third]


def test_a_manager_has_one_owner_and_a_former_one_never_comes_back(harness: Harness) -> None:
    managed = Managed.begun(harness)
    managers = harness.store.managers
    first = managed.row
    assert managers.claim_manager(managed.id, MINE) == first
    with pytest.raises(RunIsLive):
        managers.claim_manager(managed.id, Owner("manager/other/x", "chain-9"))
    taken = managers.claim_manager(managed.id, NEXT)
    assert (taken.attempt, taken.status) == (2, RunStatus.PROCESSING)
    with pytest.raises(Fenced):
        managers.claim_manager(managed.id, MINE)
    with pytest.raises(Fenced):
        managed.commit(close_reason="late")
    with pytest.raises(RunNotFound):
        managers.claim_manager(managed.id + 1, MINE)


WRITES: list[Callable[[Harness, ManagerFence], object]] = [
    lambda w, f: w.store.managers.add_page(f, page([1])),
    lambda w, f: w.store.managers.facts(f, 10),
    lambda w, f: w.store.managers.commit_decision(f, Decision(close_reason="late")),
    lambda w, f: w.store.managers.note_error(f, "late"),
    lambda w, f: w.store.managers.starting_jobs(f),
    lambda w, f: w.store.managers.job_started(f, 1, 1),
    lambda w, f: w.store.managers.end_manager(f, RunStatus.COMPLETED, "finished", "late"),
]


def test_every_writer_is_fenced_by_attempt_owner_and_generation(managed: Managed) -> None:
    before = managed.row
    for write in WRITES:
        for change in ({"attempt": 2}, {"owner_run_id": "chain-9"}, {"generation": 0}):
            with pytest.raises(Fenced):
                write(managed.harness, replace(managed.fence, **change))  # type: ignore[arg-type]
    assert managed.row == before


def test_a_new_process_replays_the_source_and_shuts_the_old_one_out(managed: Managed) -> None:
    managers = managed.harness.store.managers
    managers.add_page(managed.fence, page([1, 2, 2], exhausted=True))
    row = managers.new_generation(replace(managed.fence, generation=None), "f2", 0)
    assert (row.generation, row.position, row.exhausted, row.fingerprint) == (2, 0, False, "f2")
    with pytest.raises(Fenced):
        managers.add_page(managed.fence, page([3]))
    now = replace(managed.fence, generation=2)
    assert managers.add_page(now, page([1, 2, 2, 3], exhausted=True)) == 3
    counts = managed.row.counts
    assert (counts.yields, counts.duplicates) == (4, 1), "what a pass reads again counts once"
    row = managers.new_generation(now, "f3", None)
    assert (row.position, row.exhausted) == (4, True)
    row = managers.new_generation(now, "f4", 4)
    assert (row.position, row.exhausted) == (4, False), "new code may have more behind the position"


# --- the source


def test_a_page_again_adds_nothing_and_one_with_a_gap_is_refused(managed: Managed) -> None:
    managers = managed.harness.store.managers
    items = Page([*page([1, 2]).items, SourceItem(3, None, "no dict")], 3)
    assert managers.add_page(managed.fence, items) == 2
    before = managed.row, managed.jobs()
    assert managers.add_page(managed.fence, items) == 2
    assert (managed.row, managed.jobs()) == before
    with pytest.raises(InvalidRequest, match="position 3"):
        managers.add_page(managed.fence, page([7], after=4))
    [skipped] = managed.jobs(JobState.SKIPPED)
    assert (skipped.position, skipped.error, skipped.job) == (3, "no dict", None)
    managed.check_counters()


def test_identical_yields_are_one_job_in_one_page_and_across_pages(managed: Managed) -> None:
    """S-D1, S-D2, S-D3."""
    managers = managed.harness.store.managers
    assert managers.add_page(managed.fence, page([1, 1, 1, 2, 3])) == 3
    assert managers.add_page(managed.fence, page([2, 4, 1], after=5, exhausted=True)) == 4
    assert [one.job and one.job.spider_args["n"] for one in managed.jobs()] == ["1", "2", "3", "4"]
    assert managed.row.counts.duplicates == 4
    known = {job(n).identity for n in (1, 2, 3, 4)}
    assert managers.known_identities(managed.id, {*known, job(5).identity}) == known
    same = job(1, tags=["x"], units=3, job_settings={"A": "1"}, project_id="9")
    managed.add(same, job(6))
    assert len(managed.jobs()) == 5, (
        "S-54, S-56: units, tags, settings and project make no other job"
    )


# --- cycles


def test_a_job_from_the_source_to_its_end(managed: Managed) -> None:
    harness, managers = managed.harness, managed.harness.store.managers
    managers.add_page(managed.fence, page([1, 2, 3], exhausted=True))
    done = managed.pick(2)
    assert (done.starting, done.live, done.dropped) == (2, 2, 0)
    facts = managers.facts(managed.fence, 10)
    assert (facts.live, facts.buffered, facts.next_seq, facts.live_by_spider) == (
        2,
        1,
        3,
        {"services": 2},
    )
    assert [one.key for one in managers.starting_jobs(managed.fence)] == [
        f"manager/{managed.id}/{n}" for n in (1, 2)
    ]
    first, second = managed.begin()
    assert managers.starting_jobs(managed.fence) == []
    assert [one.key for one in managers.live_jobs(managed.id)] == [
        str(first.run_id),
        str(second.run_id),
    ]
    assert [run.run_id for run in managers.live_runs(managed.id)] == [first.run_id, second.run_id]
    assert [run.run_id for run in managers.live_runs(managed.id, first.run_id)] == [second.run_id]
    harness.clock.forward(5)
    harness.finish(second, failed=[0])
    facts = managers.facts(managed.fence, 10)
    [end] = facts.ended
    expected = (str(second.run_id), 1, True, "failed", True)
    assert (end.live.key, end.attempt, end.bad, end.outcome, end.retryable) == expected
    assert (end.metadata["state"], end.metadata["spider_args"], end.metadata["items"]) == (
        "finished",
        {"n": "2"},
        5,
    )
    assert facts.live == 1, "its own slot is free in this cycle"
    assert managed.handle() == [second.run_id]
    assert managers.facts(managed.fence, 10).ended == []
    counts = managed.row.counts
    assert (counts.bad, counts.good, counts.scheduled, counts.live) == (1, 0, 2, 1)
    managed.check_counters()


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("final", [True, False])
def test_an_exit_code_that_is_final_is_not_retried(
    managed: Managed, tasks: int, final: bool
) -> None:
    harness, managers = managed.harness, managed.harness.store.managers
    [fence] = managed.executing([1], 1, exhausted=True)
    if tasks > 1:
        harness.store.additions.add_tasks(fence.run_id, "more", [{"n": "2"}], fence)
    harness.see_ends(fence, failed=[0])
    why = "exit 4 is final" if final else "failed is not in retries.on"
    harness.store.retries.retry_ended(fence, lambda end, used: why, 0)
    harness.end(fence)
    [end] = managers.facts(managed.fence, 10).ended
    assert (end.bad, end.retryable) == (True, not final)


def test_hooks_of_an_end_are_committed_once(managed: Managed) -> None:
    harness, managers = managed.harness, managed.harness.store.managers
    [fence] = managed.executing([1], 1, exhausted=True)
    [one] = managers.live_jobs(managed.id)
    with pytest.raises(InvalidRequest, match="has not ended"):
        managed.commit(hooked=[HookReport(one.item_id, 1, False)])
    harness.finish(fence)
    decision = Decision(hooked=[HookReport(one.item_id, 1, False)], added=[AddedJob(-1, job(9))])
    managers.commit_decision(managed.fence, decision)
    before = managed.row, managed.jobs()
    with pytest.raises(Overtaken):
        managers.commit_decision(managed.fence, decision)
    assert (managed.row, managed.jobs()) == before
    assert before[0].counts.good == 1


def test_a_run_that_a_person_resumed_holds_its_slot_again_and_its_hooks_run_for_that_end(
    managed: Managed,
) -> None:
    harness, managers = managed.harness, managed.harness.store.managers
    [fence] = managed.executing([1], 1, exhausted=True)
    harness.finish(fence, failed=[0])
    managed.handle()
    assert managers.facts(managed.fence, 10).live == 0
    again = harness.resume(fence)
    assert managers.facts(managed.fence, 10).live == 1
    harness.begin(again)
    harness.finish(again)
    [end] = managers.facts(managed.fence, 10).ended
    assert (end.attempt, end.bad) == (2, False)
    assert managed.handle() == [fence.run_id]
    assert managers.facts(managed.fence, 10).ended == []
    assert (managed.row.counts.bad, managed.row.counts.good) == (1, 1)
    managed.check_counters()


def test_a_run_that_was_resumed_between_the_facts_and_the_commit_keeps_its_slot(
    managed: Managed,
) -> None:
    harness, managers = managed.harness, managed.harness.store.managers
    [fence] = managed.executing([1], 1, exhausted=True)
    harness.finish(fence, failed=[0])
    [end] = managers.facts(managed.fence, 10).ended
    harness.resume(fence)
    managed.commit(hooked=[HookReport(end.live.item_id, end.attempt, end.bad)])
    assert managers.facts(managed.fence, 10).live == 1
    managed.check_counters()


def test_a_job_whose_run_brought_too_little_may_be_tried_again(managed: Managed) -> None:
    harness, managers = managed.harness, managed.harness.store.managers
    [fence] = managed.executing([1], 1, exhausted=True)
    harness.see_ends(fence)
    row = harness.end(fence, ExpectedCoverage(numbers={"items": {"min": 100}}, fail=True))
    assert (row.status, row.ended_by) == ("FAILED", "service")
    [end] = managers.facts(managed.fence, 10).ended
    assert (end.bad, end.outcome, end.retryable) == (True, "unmet", True)


def test_a_job_whose_run_cannot_be_begun_ends_badly(managed: Managed) -> None:
    managers = managed.harness.store.managers
    managers.add_page(managed.fence, page([1], exhausted=True))
    managed.pick(1)
    [one] = managers.starting_jobs(managed.fence)
    for _ in range(2):
        managers.job_started(managed.fence, one.item_id, None, "there is no crawler 'services'")
    [end] = managers.facts(managed.fence, 10).ended
    assert (end.bad, end.outcome, end.retryable, end.attempt) == (True, "deploy_failed", False, 1)
    assert end.metadata["cause"] == "there is no crawler 'services'"
    managed.handle()
    assert managed.row.counts.bad == 1
    assert managers.facts(managed.fence, 10).live == 0
    with pytest.raises(InvalidRequest):
        managers.job_started(managed.fence, one.item_id + 1, 1)
    managed.check_counters()


def test_a_retry_keeps_its_number_and_is_made_once(managed: Managed) -> None:
    managers = managed.harness.store.managers
    managers.add_page(managed.fence, page([1, 2], exhausted=True))
    managed.pick(1)
    late = managed.harness.clock.now + timedelta(seconds=60)
    retry = AddedJob(
        -1,
        job(1, tags=["RETRIED_FROM=5"]),
        unique=False,
        seq=1,
        retry=1,
        retry_of="5",
        not_before=late.timestamp(),
    )
    managed.commit(added=[retry])
    managed.commit(added=[retry])
    [waits] = managers.waiting_jobs(managed.id, JobState.QUEUED)
    assert (waits.seq, waits.retry, waits.retry_of, waits.not_before) == (
        1,
        1,
        "5",
        late.timestamp(),
    )
    with pytest.raises(InvalidRequest):
        managed.commit(picked=[PickedJob(waits.item_id, 2, waits.job)])
    [other] = managers.waiting_jobs(managed.id, JobState.BUFFERED)
    managed.commit(
        picked=[PickedJob(waits.item_id, 1, waits.job), PickedJob(other.item_id, 2, other.job)]
    )
    keys = [one.key for one in managers.starting_jobs(managed.fence)]
    assert keys == [
        f"manager/{managed.id}/1",
        f"manager/{managed.id}/2",
        f"manager/{managed.id}/1.r1",
    ]
    counts = managed.row.counts
    assert (counts.scheduled, counts.retried) == (2, 1)
    managed.check_counters()


def test_a_process_out_of_control_changes_nothing(managed: Managed) -> None:
    managed.harness.store.managers.add_page(managed.fence, page([1], exhausted=True))
    before = managed.row, managed.jobs()
    for decision in NONSENSE:
        with pytest.raises(InvalidRequest):
            managed.harness.store.managers.commit_decision(
                managed.fence, replace(decision, close_reason="x")
            )
        assert (managed.row, managed.jobs()) == before


def test_numbers_and_rows_that_another_commit_took_are_not_taken_again(managed: Managed) -> None:
    managers = managed.harness.store.managers
    managers.add_page(managed.fence, page([1, 2], exhausted=True))
    one, two = managers.waiting_jobs(managed.id, JobState.BUFFERED)
    managed.commit(picked=[PickedJob(one.item_id, 1, one.job)])
    before = managed.row, managed.jobs()
    for stale in (
        Decision(picked=[PickedJob(two.item_id, 1, two.job)]),
        Decision(picked=[PickedJob(one.item_id, 1, one.job)]),
        Decision(delayed=[one.item_id]),
    ):
        with pytest.raises(Overtaken):
            managers.commit_decision(managed.fence, stale)
    assert (managed.row, managed.jobs()) == before


def test_added_and_picked_at_once_in_the_order_of_the_picks(managed: Managed) -> None:
    managers = managed.harness.store.managers
    managers.add_page(managed.fence, page([1, 2], exhausted=True))
    one, two = managers.waiting_jobs(managed.id, JobState.BUFFERED)
    added = [
        AddedJob(-1, job(3)),
        AddedJob(-2, job(1)),
        AddedJob(-3, job(4), unique=False),
        AddedJob(-4, job(4), unique=False),
    ]
    picks = [
        PickedJob(one.item_id, 1, one.job), PickedJob(-3, 2, job(4, tags=["a"])), PickedJob(-2, 3, job(1)),
        PickedJob(two.item_id, 4, two.job, cap_key="d"), PickedJob(-4, 5, job(4, tags=["b"])),
    ]  # fmt: skip
    done = managed.commit(added=added, picked=picks)
    assert (done.starting, done.dropped) == (4, 1)
    told = {one.seq: one.job.spider_args["n"] for one in managers.live_jobs(managed.id)}
    assert told == {1: "1", 2: "4", 4: "2", 5: "4"}, (
        "the job that is known already consumed its number"
    )
    assert [one.job for one in managers.waiting_jobs(managed.id, JobState.QUEUED)] == [job(3)]
    facts = managers.facts(managed.fence, 0)
    assert (facts.next_seq, facts.live_by_key, facts.queued) == (6, {"d": 1}, 1)
    managed.check_counters()


def test_delayed_jobs_wait_by_themselves(managed: Managed) -> None:
    managers = managed.harness.store.managers
    managers.add_page(managed.fence, page([1, 2]))
    one, _ = managers.waiting_jobs(managed.id, JobState.BUFFERED)
    managed.commit(delayed=[one.item_id])
    facts = managers.facts(managed.fence, 0)
    assert (facts.delayed, facts.buffered, facts.delayed_by_spider) == (1, 1, {"services": 1})
    assert managed.pick(1, JobState.DELAYED).live == 1
    managed.check_counters()


def test_what_a_class_says_of_itself_is_kept(managed: Managed) -> None:
    managed.commit(
        flow_tags=["b", "a"],
        state={"n": 1},
        stats={"x/total": 2.5},
        close_reason="odd",
        waiting="cap",
        over=True,
    )
    managed.commit(flow_tags=["a", "c"], stats={"x/total": 3.5}, close_reason="odd", waiting=None)
    row = managed.row
    assert row.flow_tags == ["b", "a", "c"]
    assert (row.tags, row.state, row.stats, row.close_reason) == (
        ["a", "b", "c"],
        {"n": 1},
        {"x/total": 3.5},
        "odd",
    )
    assert row.over
    assert row.waiting_for is None
    managed.harness.store.managers.note_error(managed.fence, "position 5: no dict", "error")
    assert (managed.row.error, managed.row.waiting_for) == ("position 5: no dict", "error")


def test_a_page_that_stops_the_source_says_why_until_the_next_pass(managed: Managed) -> None:
    managers = managed.harness.store.managers
    managers.add_page(managed.fence, page([1]))
    managers.add_page(managed.fence, Page([], 1, error="position 2: no dict; mend it"))
    assert (
        managers.facts(managed.fence, 0).source_error
        == managed.row.source_error
        == "position 2: no dict; mend it"
    )
    assert managers.add_page(managed.fence, Page([], 0, exhausted=True)) == 1
    assert managed.row.source_error is not None
    assert managers.new_generation(managed.fence, "f2", 0).source_error is None


def test_a_number_that_is_taken_without_a_slot(managed: Managed) -> None:
    """``schedule_spider_with_jobargs`` while all slots are taken uses up the number, and the job
    waits with it.
    """
    managers = managed.harness.store.managers
    managed.commit(
        added=[AddedJob(-1, job(1), unique=False), AddedJob(-2, job(1), unique=False, seq=2)],
        picked=[PickedJob(-1, 1, job(1))],
    )
    assert managers.facts(managed.fence, 0).next_seq == 3
    [waits] = managers.waiting_jobs(managed.id, JobState.QUEUED)
    assert waits.seq == 2
    at = managed.harness.clock.forward(30)
    managed.commit(picked=[PickedJob(waits.item_id, 2, waits.job)])
    assert managers.facts(managed.fence, 0).last_pick == at.timestamp()
    managed.check_counters()


def test_jobs_as_scrapy_cloud_has_them(managed: Managed) -> None:
    harness, managers = managed.harness, managed.harness.store.managers
    wanted = [job(1, units=2, project_id="7"), job(2), job(3, spider="other"), job(4)]
    managed.commit(added=[AddedJob(-n, one) for n, one in enumerate(wanted, 1)])
    managed.pick(4, JobState.QUEUED)
    [one, *_] = managers.starting_jobs(managed.fence)
    before = managers.job_metadata(managed.id, one.key)
    assert (before["state"], before["key"], before["spider_args"]) == (
        "pending",
        one.key,
        {"n": "1"},
    )
    runs = managed.begin()
    for fence in runs[:3]:
        harness.clock.forward(10)
        harness.finish(fence)
    told = managers.job_metadata(managed.id, one.key)
    assert told == managers.job_metadata(managed.id, str(runs[0].run_id))
    assert (told["state"], told["close_reason"], told["units"], told["project_id"]) == (
        "finished",
        "finished",
        2,
        "7",
    )
    assert (told["key"], told["items"], told["scrapystats"]["item_scraped_count"]) == (
        str(runs[0].run_id),
        5,
        5,
    )
    stranger = harness.run("stranger")
    assert (managers.job_metadata(managed.id, "stranger") or {})["key"] == str(stranger.run_id)
    for key in (
        "",
        "0",
        "99999",
        "x" * 500,
        f"manager/{managed.id}/9",
        f"manager/{managed.id}/1.r",
        "9" * 30,
    ):
        assert managers.job_metadata(managed.id, key) is None
    ended = [str(fence.run_id) for fence in reversed(runs[:3])]
    found, after = managers.owned_jobs(managed.id, ["finished"])
    assert ([one["key"] for one in found], after) == (ended, None)
    keys, after = list[str](), None
    while True:
        found, after = managers.owned_jobs(
            managed.id, ["finished", "running", "pending"], after=after, limit=1
        )
        keys += [one["key"] for one in found]
        if after is None:
            break
    assert keys == [str(runs[3].run_id), *ended]
    assert [
        one["key"] for one in managers.owned_jobs(managed.id, ["finished"], spider="other")[0]
    ] == ended[:1]
    assert [
        one["key"] for one in managers.owned_jobs(managed.id, ["finished"], project_id="7")[0]
    ] == ended[2:]
    other = Managed.begun(
        harness, replace(NEW, flow_id="flow-2"), Owner("manager/shops/flow-2", "chain-x")
    )
    assert managers.owned_jobs(other.id, ["finished"])[0] == []
    assert len(managers.owned_jobs(other.id, ["finished"], all_flows=True)[0]) == 3
    for odd in ("live", "ended:x:1", "live:x", "odd:1"):
        with pytest.raises(InvalidRequest, match="after"):
            managers.owned_jobs(managed.id, ["finished"], after=odd)
    with pytest.raises(InvalidRequest, match="state"):
        managers.owned_jobs(managed.id, ["odd"])


def test_no_commit_goes_above_the_cap_whatever_a_person_does_meanwhile(managed: Managed) -> None:
    """The class has a limit of 3.

    Between its facts and its commit, runs are resumed and the limit is set.
    """
    harness, managers, chosen = managed.harness, managed.harness.store.managers, random.Random(1)
    cap, live, over, number = 3, dict[int, Fence](), list[Fence](), count(1000)
    managers.add_page(managed.fence, page(range(40), exhausted=True))
    for _ in range(15):
        facts = managers.facts(managed.fence, chosen.randrange(4))
        chosen.shuffle(over)
        for _ in range(min(len(over), chosen.choice([0, 0, 1, 2]))):
            ended = over.pop()
            again = harness.resume(
                ended, Owner(f"crawl/{ended.run_id}", f"chain-{next(number)}"), rerun=True
            )
            harness.begin(again)
            live[again.run_id] = again
        if chosen.random() < 0.2:
            cap = managers.steer_manager(managed.id, cap=chosen.randrange(1, 6)).cap or 0
        free = max((facts.cap or 3) - facts.live, 0)
        waiting = managers.waiting_jobs(managed.id, JobState.BUFFERED, limit=free)
        picks = [
            PickedJob(one.item_id, n, one.job) for n, one in enumerate(waiting, facts.next_seq)
        ]
        done = managed.commit(
            hooked=[HookReport(e.live.item_id, e.attempt, e.bad) for e in facts.ended], picked=picks
        )
        taken = len(picks) - done.dropped
        assert taken == 0 or len(live) + taken <= cap
        live |= {fence.run_id: fence for fence in managed.begin()}
        for run_id in chosen.sample(sorted(live), min(len(live), chosen.randrange(3))):
            over.append(live.pop(run_id))
            harness.finish(over[-1], failed=[0] if chosen.random() < 0.5 else [])
    while live or managers.facts(managed.fence, 1).ended:
        managed.handle()
        for run_id in list(live):
            harness.finish(live.pop(run_id))
    assert managed.row.counts.live == 0
    managed.check_counters()


def test_any_cycles_in_any_order_agree_with_a_plain_model(managed: Managed) -> None:
    """Pages with repetitions, ``add_job``, picks, ends, and repeated decisions: each job once."""
    harness, managers, chosen = managed.harness, managed.harness.store.managers, random.Random(1)
    order: list[int] = []  # numbers of jobs, in the order in which they became known
    yielded, live = 0, dict[int, Fence]()
    for _ in range(12):
        numbers = [chosen.randrange(25) for _ in range(chosen.randrange(8))]
        if chosen.random() < 0.5:
            one = page(numbers, after=yielded)
            yielded += len(numbers)
            for _ in range(2):
                managers.add_page(managed.fence, one)
        elif chosen.random() < 0.5:
            managed.add(*(job(n) for n in numbers))
        else:
            for _ in range(2):
                managers.add_jobs(
                    managed.id,
                    [job(n) for n in numbers],
                    f"p{len(order)}-{yielded}-{harness.clock.now}",
                )
            harness.clock.forward(1)
        order += [n for n in dict.fromkeys(numbers) if n not in order]
        managed.pick(chosen.randrange(3), chosen.choice([JobState.BUFFERED, JobState.QUEUED]))
        live |= {fence.run_id: fence for fence in managed.begin()}
        for run_id in chosen.sample(sorted(live), min(len(live), chosen.randrange(3))):
            harness.finish(live.pop(run_id), failed=[0] if chosen.random() < 0.3 else [])
        facts = managers.facts(managed.fence, chosen.randrange(1, 4))
        decision = Decision(
            hooked=[HookReport(end.live.item_id, end.attempt, end.bad) for end in facts.ended]
        )
        managers.commit_decision(managed.fence, decision)
        if decision.hooked:
            with pytest.raises(Overtaken):
                managers.commit_decision(managed.fence, decision)
        managed.handle()
        assert managers.facts(managed.fence, 5).live == len(live) == managed.row.counts.live
        assert {int(one.key) for one in managers.live_jobs(managed.id)} == live.keys()
        managed.check_counters()
    jobs = managed.jobs()
    assert sorted(int(one.job.spider_args["n"]) for one in jobs if one.job) == sorted(order)
    given = sorted(one.seq for one in jobs if one.seq is not None)
    assert given == list(range(1, managed.row.next_seq)), "numbers without a gap, each once"
    counts = managed.row.counts
    assert (counts.yields, counts.scheduled) == (yielded, len(given))
    assert counts.good + counts.bad == len(given) - len(live)
    assert {run.run_id for run in managers.live_runs(managed.id)} == live.keys()


# --- from outside


@pytest.mark.parametrize("what", ["pause", "cap", "stop"])
def test_what_a_person_said_meanwhile_keeps_picks_back(managed: Managed, what: str) -> None:
    managers = managed.harness.store.managers
    managers.add_page(managed.fence, page([1, 2], exhausted=True))
    waiting = managers.waiting_jobs(managed.id, JobState.BUFFERED)
    if what == "pause":
        assert managers.steer_manager(managed.id, paused=True).paused
    elif what == "cap":
        assert managers.steer_manager(managed.id, cap=1).cap == 1
    else:
        assert (
            managers.record_manager_stop(managed.id, managed.harness.stop()).status
            is RunStatus.STOPPING
        )
    picks = [PickedJob(one.item_id, n, one.job) for n, one in enumerate(waiting, 1)]
    done = managed.commit(added=[AddedJob(-1, job(9))], picked=[*picks, PickedJob(-1, 3, job(9))])
    left = 1 if what == "cap" else 0
    assert (done.live, done.dropped) == (left, 3 - left)
    facts = managers.facts(managed.fence, 0)
    assert (facts.next_seq, facts.buffered, facts.queued) == (1 + left, 2 - left, 1)
    assert managers.steer_manager(managed.id, paused=False, cap=0).cap is None
    managed.check_counters()


def test_jobs_from_outside_come_once_for_each_key(managed: Managed) -> None:
    managers = managed.harness.store.managers
    managers.add_page(managed.fence, page([1]))
    assert managers.add_jobs(managed.id, [job(1), job(2), job(2), job(3)], "page-1") == 2
    assert managers.add_jobs(managed.id, [job(1), job(2), job(2), job(3)], "page-1", seal=True) == 2
    assert not managed.row.sealed, "a repeat changes nothing"
    with pytest.raises(DuplicateRequest):
        managers.add_jobs(managed.id, [job(4)], "page-1")
    assert managers.add_jobs(managed.id, [], None, seal=True) == 0
    assert managed.row.sealed
    assert managed.row.counts.by_state["queued"] == 2
    managers.record_manager_stop(managed.id, managed.harness.stop())
    assert managers.add_jobs(managed.id, [job(1), job(2), job(2), job(3)], "page-1") == 2
    with pytest.raises(NotInThisState):
        managers.add_jobs(managed.id, [job(5)], "page-2")
    with pytest.raises(InvalidRequest):
        managers.add_jobs(managed.id, [job(5)], "x" * 121)
    managed.check_counters()


def test_a_resume_stays_sealed_and_a_new_start_has_more_to_give(managed: Managed) -> None:
    managers = managed.harness.store.managers
    managers.add_jobs(managed.id, [job(1)], None, seal=True)
    managers.end_manager(managed.fence, RunStatus.FAILED, "failed", "over")
    assert managers.claim_manager(managed.id, NEXT).sealed
    managers.end_manager(
        replace(managed.fence, attempt=2, owner_run_id=NEXT.first_run_id),
        RunStatus.FAILED,
        "x",
        "y",
    )
    row, new = managers.reserve_manager(NEW)
    assert (row.sealed, new) == (False, False)


# --- stop, end, resume


def test_a_stop_outlives_repeats_and_an_end_waits_for_the_runs(managed: Managed) -> None:
    harness, managers = managed.harness, managed.harness.store.managers
    [fence] = managed.executing([1, 2, 3], 1, exhausted=True)
    managed.pick(1)  # no run yet
    first = managers.record_manager_stop(managed.id, harness.stop(reason="enough"))
    harness.clock.forward(10)
    again = managers.record_manager_stop(managed.id, harness.stop(by="bob", force=True), leave=True)
    assert again.stop
    assert first.stop
    expected = (first.stop.requested_at, "ann", True)
    assert (again.stop.requested_at, again.stop.requested_by, again.stop.force) == expected
    assert not again.leave
    with pytest.raises(NotInThisState, match="runs that have not ended"):
        managers.end_manager(managed.fence, RunStatus.FAILED, "cancelled", "Stopped by ann")
    harness.finish(fence, failed=[0])
    ended = managers.end_manager(managed.fence, RunStatus.FAILED, "cancelled", "Stopped by ann")
    assert (ended.status, ended.outcome, ended.ended_at) == (
        RunStatus.FAILED,
        "cancelled",
        harness.clock.now,
    )
    assert managers.end_manager(managed.fence, RunStatus.COMPLETED, "x", "y") == ended
    assert managers.record_manager_stop(managed.id, harness.stop()) == ended
    with pytest.raises(NotInThisState):
        managers.steer_manager(managed.id, paused=True)
    managed.check_counters()

    resumed = Managed.claimed(harness, managed.id, NEXT)
    assert (resumed.row.attempt, resumed.row.status, resumed.row.stop) == (
        2,
        RunStatus.PROCESSING,
        None,
    )
    assert resumed.handle() == [fence.run_id], (
        "S-D9: an end that came while nobody polled has its hooks"
    )
    [waits] = managers.waiting_jobs(managed.id, JobState.QUEUED)
    assert waits.seq == 2, "what was picked and not begun keeps its number"
    assert resumed.pick(5, JobState.QUEUED).live == 1
    managed.check_counters()


def test_an_end_that_leaves_its_runs(managed: Managed) -> None:
    managers = managed.harness.store.managers
    [fence] = managed.executing([1, 2], 1, exhausted=True)
    managed.pick(1)
    managers.record_manager_stop(managed.id, managed.harness.stop(), leave=True)
    assert managers.end_manager(managed.fence, RunStatus.FAILED, "cancelled", "left").leave
    assert [run.run_id for run in managers.live_runs(managed.id)] == [fence.run_id]
    assert (managed.row.counts.live, managed.counted()) == (1, {"queued": 1, "started": 1})
    with pytest.raises(InvalidRequest):
        managers.end_manager(managed.fence, RunStatus.STOPPING, "x", "y")


def test_an_end_finds_the_run_of_a_job_that_nobody_had_noted(managed: Managed) -> None:
    harness, managers = managed.harness, managed.harness.store.managers
    managers.add_page(managed.fence, page([1], exhausted=True))
    managed.pick(1)
    [one] = managers.starting_jobs(managed.fence)
    asked = request(parent=MINE.workflow_id)
    run, _ = harness.store.initiation.reserve_run(asked, one.key)
    stranger, _ = harness.store.initiation.reserve_run(asked, "of-somebody-else")
    assert [row.run_id for row in managers.live_runs(managed.id)] == [run.run_id], (
        "foreign runs are never touched"
    )
    with pytest.raises(NotInThisState, match=f"such as {run.run_id}"):
        managers.end_manager(managed.fence, RunStatus.COMPLETED, "finished", "done")
    assert managers.end_manager(
        managed.fence, RunStatus.COMPLETED, "finished", "done", leave=True
    ).status.terminal
    assert [one.run_id for one in managed.jobs(JobState.STARTED)] == [run.run_id]
    managed.check_counters()
    assert stranger.run_id != run.run_id


@pytest.mark.parametrize("leave", [False, True])
def test_a_job_has_ended_with_its_run_when_its_manager_has(managed: Managed, leave: bool) -> None:
    """However the manager ended, its hooks wait for a resume, and no job stays started for ever."""
    harness, managers = managed.harness, managed.harness.store.managers
    first, second = managed.executing([1, 2, 3], 2)
    harness.finish(first, failed=[0])
    if not leave:
        harness.finish(second)
    managers.end_manager(
        managed.fence, RunStatus.FAILED, "failed", "its code has changed", leave=leave
    )
    [event] = [
        one for one in harness.store.events.events_after(0) if one.type == EVENT_MANAGER_ENDED
    ]
    assert event.body["jobs"].get("started", 0) == int(leave)
    managed.check_counters()
    assert [one.run_id for one in managed.jobs(JobState.STARTED)] == (
        [second.run_id] if leave else []
    )
    if leave:
        harness.finish(second)
    told = [(one.run_id, one.outcome) for one in managed.jobs(JobState.ENDED)]
    assert told == [(first.run_id, "failed"), (second.run_id, "finished")]
    assert managers.newest()[0].counts.by_state == managed.row.counts.by_state
    managed.check_counters()
    again = Managed.claimed(harness, managed.id, NEXT)
    again.check_counters()
    assert sorted(again.handle()) == [first.run_id, second.run_id]


def test_tries_of_hooks_stand_with_the_job_and_those_that_fail_come_last(managed: Managed) -> None:
    harness, managers = managed.harness, managed.harness.store.managers
    managers.add_page(managed.fence, page([1, 2, 3]))
    managed.pick(3)
    for fence in managed.begin():
        harness.finish(fence)
    first = managers.facts(managed.fence, 100).ended[0].live.item_id
    assert [managers.note_try(managed.fence, first) for _ in range(2)] == [1, 2]
    managed.commit(failed=[HookFailed(first, 1, "no connection")])
    ended = managers.facts(managed.fence, 100).ended
    assert [end.tries for end in ended] == [0, 0, 3]
    assert (ended[2].live.item_id, ended[2].given_up) == (first, True)
    assert [managers.note_try(managed.fence) for _ in range(2)] == [1, 2]
    managed.handle()
    assert (managed.row.hook_errors, managed.row.tries) == (1, 0)
    managed.commit(hook_errors=1, over=True)
    assert managed.row.hook_errors == 2
    managers.end_manager(managed.fence, RunStatus.FAILED, "errors in hooks: 2", "x")
    assert Managed.claimed(harness, managed.id, NEXT).row.hook_errors == 0


def test_what_former_code_gave_and_nobody_began_is_forgotten(managed: Managed) -> None:
    managers = managed.harness.store.managers
    managers.add_page(managed.fence, page([1, 2, 3, 4]))
    managed.add(job(5))
    managed.pick(1)
    managed.commit(delayed=[managers.waiting_jobs(managed.id, JobState.BUFFERED)[0].item_id])
    assert (
        managers.new_generation(managed.fence, "f1", 0).counts.by_state[JobState.BUFFERED] == 2
    ), "the same code"
    row = managers.new_generation(managed.fence, "f2", 0)
    managed.fence = replace(managed.fence, generation=row.generation)
    assert managed.counted() == {"queued": 1, "starting": 1}
    assert managers.add_page(managed.fence, page([1, 4])) == 1, (
        "what it gives again is new, unless it was begun"
    )
    managed.check_counters()


def test_a_resume_may_be_asked_for_differently_but_a_fresh_one_never_resumes(
    managed: Managed,
) -> None:
    managers = managed.harness.store.managers
    managers.end_manager(managed.fence, RunStatus.COMPLETED, "finished", "done")
    wanted = replace(NEW, options={"argv": []}, requested_by="bob")
    with pytest.raises(DuplicateRequest):
        managers.reserve_manager(replace(wanted, fresh=True))
    row, new = managers.reserve_manager(wanted)
    assert not new
    assert (row.options, row.requested_by, row.status) == ({"argv": []}, "bob", RunStatus.COMPLETED)
    assert managers.claim_manager(row.manager_id, NEXT).options == {"argv": []}


def test_events_tell_of_every_change_and_once_of_the_end(managed: Managed) -> None:
    harness, managers = managed.harness, managed.harness.store.managers
    run = harness.run("someone")
    managers.add_page(managed.fence, page([1], exhausted=True))
    managed.pick(1)
    managed.commit(waiting="full")
    managers.job_started(
        managed.fence, managers.starting_jobs(managed.fence)[0].item_id, None, "no"
    )
    managed.handle()
    for _ in range(2):
        managers.end_manager(managed.fence, RunStatus.COMPLETED, "finished", "done")
    told = harness.store.events.events_after(0, subject=manager_subject(managed.id))
    assert {event.type for event in told[:-1]} == {EVENT_MANAGER_CHANGED}
    assert told[-1].type == EVENT_MANAGER_ENDED
    assert {(event.subject, event.run_id) for event in told} == {(f"managers/{managed.id}", None)}
    body = told[-1].body
    expected = ("COMPLETED", "finished", {"ended": 1}, NAME)
    assert (body["status"], body["outcome"], body["jobs"], body["name"]) == expected
    assert told[-1].key == f"managers/{managed.id}-{managed.row.manager_uid}/1/manager.ended"
    assert harness.store.events.find_event(told[-1].key) == told[-1]
    of_run = harness.store.events.events_after(0, run_id=run.run_id)
    assert {event.subject for event in of_run} == {f"runs/{run.run_id}"}
    assert len(harness.store.events.events_after(0)) == len(told) + len(of_run)


# --- plans


def test_plans_are_those_that_workers_say_they_serve(harness: Harness) -> None:
    user_code = harness.store.user_code
    one = UserCodeRow(
        "shops:Shops", "manager", "shops", "Shops of the town", "f1", [{"name": "--units"}]
    )
    two = UserCodeRow("shops:Odd", "manager", None, "", "f1", [], "it has no name")
    now = harness.clock.now
    user_code.register_user_code("w1", [one, two])
    user_code.register_user_code("w2", [replace(one, fingerprint="f2")])
    assert user_code.list_user_code() == [
        replace(two, seen_at=now), replace(one, fingerprint="f2", seen_at=now), replace(one, seen_at=now)
    ]  # fmt: skip
    user_code.register_user_code("w1", [])
    found = user_code.list_user_code()
    assert found == [replace(one, fingerprint="f2", seen_at=now)], (
        "what nobody could use goes with who said so"
    )
    assert user_code.get_user_code("shops:Shops") == found[0]
    assert user_code.get_user_code("SHOPS:shops") is None
    user_code.register_user_code("w2", [])
    assert user_code.list_user_code() == [replace(one, fingerprint="f2")], (
        "that it was there stays to be seen"
    )


def test_in_a_rollout_the_newer_code_is_told_from_its_first_word_on(harness: Harness) -> None:
    """Old and new workers report in turns; which one reports last is random."""
    user_code = harness.store.user_code
    old = UserCodeRow("shops:Shops", "manager", "shops", "", "old")
    new = replace(old, fingerprint="new")

    def told() -> str:
        harness.clock.now += timedelta(seconds=60)
        return " ".join(row.fingerprint for row in user_code.list_user_code())

    user_code.register_user_code("z", [old])
    user_code.register_user_code("b", [old])
    assert told() == "old"
    user_code.register_user_code("a", [new])
    assert told() == "new old", "both are served, and the newer one goes first"
    user_code.register_user_code("z", [old])
    assert told() == "new old"
    assert user_code.get_user_code("shops:Shops") == user_code.list_user_code()[0]
    user_code.register_user_code("z", [])
    user_code.register_user_code("a", [new])
    assert told() == "new", "b is not heard any more"
    user_code.register_user_code("a", [])
    user_code.register_user_code("b", [old])
    assert told() == "old", "the new one was taken back, and the others never ceased to serve it"
    assert user_code.list_user_code()[0].seen_at == harness.clock.now - timedelta(seconds=60)


def test_each_pool_has_modules_of_its_own(harness: Harness) -> None:
    user_code, now = harness.store.user_code, harness.clock.now
    common = UserCodeRow("shop.steps", "module", None, "", "f1", [], "ImportError: torch")
    gpu = replace(common, fingerprint="f2", error=None, queue="gpu")
    user_code.register_user_code("w1", [common])
    user_code.register_user_code("w2", [gpu])
    assert user_code.list_user_code() == [replace(common, seen_at=now), replace(gpu, seen_at=now)]
    assert user_code.get_user_code("shop.steps") == replace(common, seen_at=now)
    assert user_code.get_user_code("shop.steps", "gpu") == replace(gpu, seen_at=now)
    assert user_code.get_user_code("shop.steps", "small") is None


def test_what_counts_only_while_somebody_says_it_goes_with_whoever_said_it(
    harness: Harness,
) -> None:
    """Such as a module that cannot be used or is being loaded.

    Nobody cleans up after a worker that died.
    """
    user_code = harness.store.user_code
    broken = UserCodeRow("shop.n", "module", None, "", "", error="ImportError: shop.n")
    reading = UserCodeRow("shop.m", CODE_READING, None, "", "")
    good = UserCodeRow("shop.m", "module", None, "", "f1")
    user_code.register_user_code("w1", [broken, reading])
    assert [(row.plan, row.kind) for row in user_code.list_user_code()] == [
        ("shop.m", "reading"),
        ("shop.n", "module"),
    ]
    user_code.register_user_code("w2", [good])
    assert [row.kind for row in user_code.list_user_code()] == ["module", "module"], (
        "who serves it goes before who reads it"
    )
    harness.clock.now += timedelta(seconds=HEARD_S + 1)
    assert [(row.plan, row.kind) for row in user_code.list_user_code()] == [("shop.m", "module")]
    user_code.register_user_code("w3", [reading])
    assert [(row.plan, row.kind) for row in user_code.list_user_code()] == [("shop.m", "reading")]
    user_code.register_user_code("w3", [])
    user_code.register_user_code("w1", [])
    assert user_code.list_user_code() == []


def test_what_one_worker_cannot_use_does_not_hide_that_another_one_can(harness: Harness) -> None:
    user_code = harness.store.user_code
    good, bad = (
        UserCodeRow("shops:Shops", "manager", "shops", "", "f1"),
        UserCodeRow("shops:Shops", "manager", None, "", ""),
    )
    bad = replace(bad, error="the new build has no such module")
    user_code.register_user_code("old", [good])
    user_code.register_user_code("new", [bad])
    assert [row.error for row in user_code.list_user_code()] == [None]
    harness.clock.now += timedelta(seconds=HEARD_S + 1)  # the old one has expired
    user_code.register_user_code("new", [bad])
    assert [row.error for row in user_code.list_user_code()] == [bad.error]
    user_code.register_user_code("old", [good])
    user_code.register_user_code("old", [bad])
    assert [row.error for row in user_code.list_user_code()] == [bad.error]
    harness.clock.now += timedelta(
        seconds=HEARD_S + 1
    )  # both are gone, and their problem with them
    user_code.register_user_code("third", [replace(good, plan="books:Books")])
    assert [row.plan for row in user_code.list_user_code()] == ["books:Books"]


# --- rows that another hand wrote


def test_a_job_that_another_hand_spoilt_is_named_and_lists_go_on(managed: Managed) -> None:
    managers = managed.harness.store.managers
    managers.add_page(managed.fence, page([1, 2]))
    first, second = managed.jobs()
    statement = "UPDATE manager_item SET params = :odd WHERE item_id = :id"
    managed.harness.write(statement, odd='{"spider": 7}', id=first.item_id)
    with pytest.raises(
        RowUnreadable, match=rf"item_id {first.item_id}, .*: params is .*spider of the job"
    ):
        managers.waiting_jobs(managed.id, JobState.BUFFERED)
    told, whole = managed.jobs()
    assert told.job is None
    assert "spider" in str(told.unreadable)
    assert whole == second


def test_the_end_of_what_a_class_or_a_function_printed_is_kept(harness: Harness) -> None:
    managers, graphs = harness.store.managers, harness.store.graphs
    of_manager, of_graph = Managed.begun(harness).id, Graphed.made(harness, [step("a")]).id
    for keep, output, id in (
        (managers.keep_output, managers.output, of_manager),
        (graphs.keep_output, graphs.output, of_graph),
    ):
        assert output(id) == ""
        keep(id, "first\n")
        keep(id, "second \ud800\n")
        assert output(id) == "first\nsecond ?\n"
        keep(id, "ä" * OUTPUT_BYTES + "!")
        assert output(id) == "ä" * (OUTPUT_BYTES // 2 - 1) + "!"
