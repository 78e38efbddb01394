"""Pruning of managers: their jobs and events go when they ended long ago, and a resume begins anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest

from crawler_lifecycle.domain.managers.manager import JobState
from crawler_lifecycle.domain.names import EVENT_MANAGER_ENDED, manager_subject
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.ports.runs import Fence
from crawler_lifecycle.store import Pruner, open_pruner
from tests.contracts.store.managing import NEXT, Managed, job, page
from tests.contracts.store.world import Clock, World

AGE = timedelta(days=90)
TABLES = ("outbox_event", "manager_item", "manager_addition")


@pytest.fixture
def pruner(store_url: str, clock: Clock) -> Iterator[Pruner]:
    with closing(open_pruner(store_url, clock=clock)) as pruner:
        yield pruner


def prune(pruner: Pruner, world: World) -> dict[str, int]:
    before, gone = world.clock.now - AGE, dict[str, int]()
    for table in TABLES:
        gone |= pruner.remove(table, pruner.look(table, before).goes, before)
    return {table: rows for table, rows in gone.items() if rows}


def left(world: World) -> Managed:
    """A manager with ended, buffered and queued jobs, and events."""
    managed = Managed.begun(world)
    world.store.managers.add_page(managed.fence, page([1, 2]))
    managed.pick(1)
    [fence] = managed.begin()
    world.finish(fence)
    managed.handle()
    world.store.managers.add_jobs(managed.id, [job(3)], "page-1")
    return managed


def test_only_what_ended_long_ago_goes(pruner: Pruner, world: World) -> None:
    managed = left(world)
    world.clock.forward(100 * 86_400)
    told = [event.seq for event in world.store.events.events_after(0, subject=manager_subject(managed.id))]
    assert prune(pruner, world).keys() == {"outbox_event"}, "run.changed of its run, which is old; the manager is live"
    assert [event.seq for event in world.store.events.events_after(0, subject=manager_subject(managed.id))] == told
    world.store.managers.end_manager(managed.fence, RunStatus.COMPLETED, "finished", "done")
    assert prune(pruner, world) == {}, "it ended just now"
    last = world.store.events.last_event_seq()
    world.clock.forward(91 * 86_400)
    gone = prune(pruner, world)
    assert (gone["manager_item"], gone["manager_addition"]) == (3, 1)
    assert prune(pruner, world) == {}
    [event] = world.store.events.events_after(0, subject=manager_subject(managed.id))
    assert (event.type, event.seq) == (EVENT_MANAGER_ENDED, last)
    row = managed.row
    assert row.pruned_through is not None
    assert row.pruned_through < last
    assert row.jobs_pruned_at == world.clock.now
    assert row.counts.by_state[JobState.ENDED] == 1, "what it did stays told"


def test_a_resume_after_it_begins_anew_and_says_so(pruner: Pruner, world: World) -> None:
    managed = left(world)
    world.store.managers.end_manager(managed.fence, RunStatus.COMPLETED, "finished", "done")
    world.clock.forward(100 * 86_400)
    before = world.clock.now - AGE
    found = pruner.look("manager_item", before).goes
    claimed = world.store.managers.claim_manager(managed.id, NEXT)
    assert pruner.remove("manager_item", found, before) == {}, "it was resumed meanwhile"
    assert claimed.jobs_pruned_at is None
    world.store.managers.end_manager(
        Managed.claimed(world, managed.id, NEXT).fence, RunStatus.COMPLETED, "finished", "done"
    )
    world.clock.forward(100 * 86_400)
    before = world.clock.now - AGE
    pruner.remove("manager_item", pruner.look("manager_item", before).goes[:2], before)  # and no more of them
    third = Managed.claimed(world, managed.id, NEXT.__class__(NEXT.workflow_id, "chain-m3"))
    third.check_counters()
    assert third.row.jobs_pruned_at == world.clock.now, "who reads it sees that they are new again"
    assert world.store.managers.add_page(third.fence, page([1, 2])) == 2
    third.pick(5)
    keys = [one.key for one in world.store.managers.starting_jobs(third.fence)]
    assert keys == [f"manager/{managed.id}/{n}" for n in (2, 3)], "a number is never given again"
    third.check_counters()


def test_a_run_that_was_resumed_after_its_job_went_holds_a_slot_and_ends_again(pruner: Pruner, world: World) -> None:
    managed, store = left(world), world.store
    store.managers.end_manager(managed.fence, RunStatus.COMPLETED, "finished", "done")
    [run] = store.runs.list_runs()
    world.clock.forward(100 * 86_400)
    before = world.clock.now - AGE
    pruner.remove("manager_item", pruner.look("manager_item", before).goes, before)
    resumed = world.resume(Fence(run.run_id, 1, run.owner_run_id or "", run.run_uid), rerun=True)
    world.deploy(resumed)
    world.execute(resumed)
    again = Managed.claimed(world, managed.id, NEXT)
    facts = store.managers.facts(again.fence, 100)
    assert (facts.live, facts.live_by_spider) == (1, {"services": 1})
    again.check_counters()
    [told] = again.jobs(JobState.STARTED)
    assert (told.run_id, told.seq, told.job and told.job.spider_args) == (run.run_id, 1, {"n": "1"})
    world.finish(resumed)
    [ended] = store.managers.facts(again.fence, 100).ended
    assert (ended.live.key, ended.attempt) == (str(run.run_id), 2)
    assert again.handle() == [run.run_id]
    assert store.managers.add_page(again.fence, page([1])) == 1, "it is like no other: the same job is new"
    again.check_counters()
