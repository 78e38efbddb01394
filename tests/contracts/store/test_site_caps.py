"""Limits of sites: no site has more tasks than its limit, closed sites get none, and every run gets
its turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from sqlalchemy import select

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.pools import CALL_S, RECALL_S, Pool, Pools
from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Phase, TaskStatus
from crawler_lifecycle.features.sites.domain.site import SiteLimits
from crawler_lifecycle.features.sites.store.slots import tasks_of
from crawler_lifecycle.features.sites.store.tables import run_site, site, site_ticket
from crawler_lifecycle.ports.runs import Fence, Owner
from crawler_lifecycle.store.store import Store, open_store
from tests.contracts.store.harness import Clock, Harness, good_end, request, seen
from tests.support.servers import each_on_sqlite
from tests.support.sites import close, limit

SHOP = "shop.example"


def run(harness: Harness, name: str, tasks: int = 1, **fields: Any) -> Fence:
    """A run of its own workflow, accepted a second after the one before."""
    harness.clock.forward(1)
    owner = Owner(f"crawl/{name}", f"chain-{name}")
    return harness.run(name, tasks, owner=owner, **{"sites": [f"www.{SHOP}"], **fields})


def ask(harness: Harness, fence: Fence, most: int | None = None) -> int:
    until = harness.clock.now + timedelta(seconds=25)
    return len(harness.store.deployment.offer_tasks(fence, 100, most, until)[0])


def called(harness: Harness) -> list[str]:
    calls = harness.store.caps.call()
    return [workflow_id.removeprefix("crawl/") for workflow_id in calls.values()]


def rows(store: Store, table: Any) -> list[Mapping[Any, Any]]:
    with store.database.reading() as conn:
        return list(conn.execute(select(table)).mappings())


def words(harness: Harness, fence: Fence) -> str | None:
    return harness.store.caps.words(fence.run_id)


@pytest.mark.parametrize("entry", [SHOP, "*"])
def test_a_cap_is_exact_whoever_asks_at_once(harness: Harness, entry: str) -> None:
    """With the limits for all other sites, the first runs also create the row of their site."""
    limit(harness.store, entry, tasks=5)
    fences = {f"r{n}": run(harness, f"r{n}", tasks=3) for n in range(8)}
    with ThreadPoolExecutor(8) as threads:
        offered = list(threads.map(lambda fence: ask(harness, fence), fences.values()))
    assert sum(offered) <= 5
    calls = called(harness)
    while calls:
        offered += [ask(harness, fences[name]) for name in calls]
        calls = called(harness)
    assert sum(offered) == 5


def test_the_next_slot_goes_to_the_most_urgent_then_the_oldest(harness: Harness) -> None:
    limit(harness.store, SHOP, tasks=1)
    first = run(harness, "first")
    harness.begin(first)
    runs = {
        name: run(harness, name, priority=priority)
        for name, priority in (("old", 3), ("new", 3), ("late", 5), ("urgent", 1))
    }
    assert [ask(harness, fence) for fence in runs.values()] == [0, 0, 0, 0]
    assert harness.row(runs["old"]).waiting_for == f"a slot of site {SHOP}"
    assert harness.store.deployment.waits_for_slot(runs["old"].run_id)
    assert words(harness, runs["old"]) == f"{SHOP}: 1 of 1 task (run {first.run_id})"
    assert called(harness) == []
    harness.finish(first)
    order = []
    names = called(harness)
    while names:
        order += names
        assert ask(harness, runs[names[0]]) == 1
        harness.begin(runs[names[0]])
        harness.finish(runs[names[0]])
        names = called(harness)
    assert order == ["urgent", "old", "new", "late"]
    assert called(harness) == []
    assert rows(harness.store, site_ticket) == []
    assert not any(row["has_tickets"] for row in rows(harness.store, site))


def test_a_run_with_many_tasks_takes_turns_with_others(harness: Harness) -> None:
    limit(harness.store, SHOP, tasks=4)
    big, small = run(harness, "big", tasks=10), run(harness, "small", tasks=2)
    assert ask(harness, big) == 4
    assert ask(harness, small) == 0
    assert words(harness, small) == f"{SHOP}: 4 of 4 tasks (run {big.run_id})"
    harness.deploy(big)
    limit(harness.store, SHOP, tasks=6)
    assert set(called(harness)) == {"big", "small"}
    assert (ask(harness, small), ask(harness, big)) == (1, 1)


def test_hosts_of_one_site_share_its_limit_and_a_run_needs_all_of_its_sites(
    harness: Harness,
) -> None:
    limit(harness.store, SHOP, tasks=1)
    limit(harness.store, "*.blog.example", tasks=1)
    first = run(harness, "first", sites=[f"de.{SHOP}", f"fr.{SHOP}"])
    other = run(harness, "other", sites=["a.blog.example"])
    both = run(harness, "both", sites=["b.blog.example", SHOP, "free.example"])
    assert [ask(harness, fence) for fence in (first, other, both)] == [1, 1, 0]
    [ticket] = rows(harness.store, site_ticket)
    assert (ticket["run_id"], ticket["site"]) == (both.run_id, "*.blog.example")
    harness.begin(other)
    harness.finish(other)
    assert called(harness) == ["both"]
    assert ask(harness, both) == 0
    assert [ticket["site"] for ticket in rows(harness.store, site_ticket)] == [SHOP]
    harness.begin(first)
    harness.finish(first)
    assert called(harness) == ["both"]
    assert ask(harness, both) == 1


def test_a_closed_site_starts_no_task_then_one_probe(harness: Harness) -> None:
    first, *others = [run(harness, f"r{n}") for n in range(3)]
    close(harness.store, SHOP, 600, closed_by_run=first.run_id, closed_status=429)
    assert [ask(harness, fence) for fence in (first, *others)] == [0, 0, 0]
    said = words(harness, first)
    assert said is not None
    assert said.startswith(f"{SHOP}: closed until ")
    assert said.endswith(f" after 429 (run {first.run_id})")
    assert called(harness) == []
    close(harness.store, SHOP, -1)
    assert called(harness) == ["r0"]
    assert [ask(harness, fence) for fence in (others[0], first)] == [0, 1]
    assert words(harness, others[0]) == (
        f"{SHOP}: one task probes whether it answers again (run {first.run_id})"
    )
    assert called(harness) == []
    close(harness.store, SHOP, -1, closures=0)
    assert set(called(harness)) == {"r1", "r2"}
    assert [ask(harness, fence) for fence in others] == [1, 1]


def test_a_run_that_executes_says_that_its_site_is_closed(harness: Harness) -> None:
    first = run(harness, "first", sites=[f"www.{SHOP}", "other.example"])
    harness.begin(first)
    assert words(harness, first) is None
    harness.store.sites.close_site(SHOP, 600, "ann: a sale")
    said = words(harness, first)
    assert said is not None
    assert said.startswith(f"{SHOP}: 1 task (run {first.run_id}); closed until ")
    assert said.endswith(" by ann: a sale")
    with limited("another"):
        assert words(harness, first) is None


def test_no_task_starts_outside_of_the_hours(harness: Harness) -> None:
    now = datetime.now(UTC)
    begins = now + timedelta(hours=2)
    limit(harness.store, SHOP, tasks=2, hours=f"{begins:%H:%M}-{begins + timedelta(hours=1):%H:%M}")
    fence = run(harness, "r")
    assert ask(harness, fence) == 0
    assert words(harness, fence) == f"{SHOP}: 0 of 2 tasks; open from {begins:%H:%M} UTC"
    assert called(harness) == []
    limit(harness.store, SHOP, tasks=2, hours=f"{now:%H:%M}-{begins:%H:%M}")
    assert called(harness) == ["r"]
    assert ask(harness, fence) == 1


def test_changed_limits(harness: Harness) -> None:
    """Zero starts no tasks, a limit below the executing number starts none, and a removed limit
    lets all start.
    """
    limit(harness.store, SHOP, tasks=3)
    first = run(harness, "first", tasks=3)
    harness.begin(first)
    limit(harness.store, SHOP, tasks=1)
    other, third = run(harness, "other"), run(harness, "third")
    assert [ask(harness, other), ask(harness, third)] == [0, 0]
    harness.finish(first)
    assert called(harness) == ["other"]
    limit(harness.store, SHOP, tasks=0)
    assert ask(harness, other) == 0
    assert words(harness, other) == f"{SHOP}: 0 of 0 tasks"
    assert called(harness) == []
    limit(harness.store, SHOP)
    assert called(harness) == ["other", "third"]
    assert [ask(harness, other), ask(harness, third)] == [1, 1]


def test_a_run_belongs_to_its_new_site_after_a_change_of_entries(harness: Harness) -> None:
    limit(harness.store, SHOP, tasks=1)
    first = run(harness, "first", sites=[f"de.{SHOP}"])
    second = run(harness, "second", sites=[f"de.{SHOP}"])
    assert [ask(harness, first), ask(harness, second)] == [1, 0]
    harness.store.caps.adopt()
    limit(harness.store, f"de.{SHOP}", tasks=2)
    harness.store.caps.adopt()
    assert {row["site"] for row in rows(harness.store, run_site)} == {f"de.{SHOP}"}
    assert called(harness) == ["second"]
    assert ask(harness, second) == 1
    assert ask(harness, run(harness, "third", sites=[f"de.{SHOP}"])) == 0
    assert ask(harness, run(harness, "fourth")) == 1


def test_an_entry_that_another_gateway_removed_and_that_exists_again(
    harness: Harness, store_url: str
) -> None:
    name = f"de.{SHOP}"
    sites = harness.store.sites
    run(harness, "r", sites=[name])
    sites.set_limits(name, SiteLimits(tasks=1), None)
    harness.store.caps.adopt()
    with closing(open_store(store_url, clock=harness.clock)) as other:
        other.sites.remove_limits(name, None)
        other.caps.adopt()
    assert [row["site"] for row in rows(harness.store, run_site)] == [SHOP]
    harness.clock.forward(1)
    sites.set_limits(name, SiteLimits(tasks=1), None)
    harness.store.caps.adopt()
    assert [row["site"] for row in rows(harness.store, run_site)] == [name]


def test_a_run_that_does_not_come_is_passed_over_and_called_again(harness: Harness) -> None:
    limit(harness.store, SHOP, tasks=1)
    first = run(harness, "first")
    harness.begin(first)
    old, new = run(harness, "old"), run(harness, "new")
    assert [ask(harness, old), ask(harness, new)] == [0, 0]
    harness.finish(first)
    assert (called(harness), called(harness)) == (["old"], [])
    assert ask(harness, new) == 0, "the slot is kept for the older one"
    harness.clock.forward(CALL_S)
    assert called(harness) == ["new"]
    harness.clock.forward(RECALL_S - CALL_S)
    assert called(harness) == ["old"], "it is called again"
    assert ask(harness, old) == 1
    assert ask(harness, new) == 0
    harness.store.caps.uncall([new.run_id], gone=False)


def test_stops_ends_and_lost_workflows_leave_the_line(harness: Harness) -> None:
    limit(harness.store, SHOP, tasks=1)
    first = run(harness, "first")
    assert ask(harness, first) == 1
    stopped, gone = run(harness, "stopped"), run(harness, "gone")
    assert [ask(harness, stopped), ask(harness, gone)] == [0, 0]
    harness.store.stops.record_stop(stopped.run_id, harness.stop(), "s1")
    assert [ticket["run_id"] for ticket in rows(harness.store, site_ticket)] == [gone.run_id]
    harness.begin(first)
    harness.finish(first)
    assert called(harness) == ["gone"]
    harness.store.caps.uncall([gone.run_id], gone=True)
    assert rows(harness.store, site_ticket) == []


@pytest.mark.parametrize("queue", [None, "crawls"])
def test_a_site_limits_the_runs_of_pools_too(store_url: str, clock: Clock, queue: str) -> None:
    pools = Pools({"a": Pool(max=2, queue=queue)})
    with closing(open_store(store_url, clock=clock, pools=pools)) as store:
        harness = Harness(store, clock)
        limit(store, SHOP, tasks=1)
        first = run(harness, "first", tasks=2, pool="a")
        assert ask(harness, first) == 1
        free = run(harness, "free", tasks=2, pool="a", sites=[])
        assert ask(harness, free) == (1 if queue is None else 2)
        second = run(harness, "second", pool="a")
        assert ask(harness, second) == 0
        assert store.pools.in_line(second.run_id) is None
        assert harness.row(second).waiting_for == f"a slot of site {SHOP}"
        limit(store, SHOP, tasks=5)
        assert set(called(harness)) == {"first", "second"}
        assert ask(harness, second) == (0 if queue is None else 1)
        waits = f"{SHOP}: 1 of 5 tasks (run {first.run_id})" if queue is None else None
        assert words(harness, second) is None, "it waits for its pool"
        assert waits is None or store.pools.in_line(second.run_id) is not None


def test_runs_of_another_project_are_not_named(harness: Harness) -> None:
    limit(harness.store, SHOP, tasks=1)
    hidden = run(harness, "hidden", project="b")
    assert ask(harness, hidden) == 1
    mine = run(harness, "mine", project="a")
    close(harness.store, SHOP, 600, closed_by_run=hidden.run_id)
    assert ask(harness, mine) == 0
    with limited("a"):
        said = words(harness, mine)
        assert said is not None
        assert said.startswith(f"{SHOP}: at most 1 task; closed until ")
        assert "run" not in said
        assert words(harness, hidden) is None


def test_the_hosts_of_an_argument_decide_the_sites(harness: Harness) -> None:
    store = harness.store
    urls = {"start_url": f"https://DE.{SHOP}:8443/a"}
    run(harness, "one", sites=["{start_url}"], args=urls)
    assert [row["host"] for row in rows(store, run_site)] == [f"de.{SHOP}"]
    with pytest.raises(InvalidRequest, match=r"args.start_url: '://'"):
        run(harness, "bad", sites=["{start_url}"], args={"start_url": "://"})
    many = [{"start_url": f"https://{n}.example/"} for n in range(21)]
    wanted = request(sites=["{start_url}"])
    for tasks, hosts in ((many[:20], 20), (many, 0)):
        before = len(rows(store, run_site))
        store.initiation.reserve_run(wanted, f"many-{len(tasks)}", task_args=tasks)
        assert len(rows(store, run_site)) - before == hosts


def test_added_tasks_bring_their_hosts(harness: Harness) -> None:
    fence = run(harness, "r", sites=["{start_url}"])
    limit(harness.store, SHOP, tasks=0)
    assert ask(harness, fence) == 1
    for number, hosts in (("1", 1), ("2", 1), ("3", 1)):
        added = [{"start_url": f"https://{SHOP}/{number}"}]
        harness.store.additions.add_tasks(fence.run_id, number, added)
        assert len(rows(harness.store, run_site)) == hosts
    assert ask(harness, fence) == 1, "the task that was offered before"
    with pytest.raises(InvalidRequest, match=r"tasks\[0\].args.start_url: '://'"):
        harness.store.additions.add_tasks(fence.run_id, "4", [{"start_url": "://"}])


def test_a_deleted_run_has_no_hosts(harness: Harness) -> None:
    fence = run(harness, "r")
    harness.begin(fence)
    harness.finish(fence)
    store = harness.store
    store.deletion.delete_texts(RunRef(fence.run_id, fence.run_uid), lambda: None)
    assert rows(store, run_site) == []


class Fleet:
    """Runs on some sites, whose limits are compared with the tasks after each step."""

    NAMES = ("a.example", "b.example", "c.example")

    def __init__(self, harness: Harness, seed: int) -> None:
        self.harness = harness
        self.chance = Random(seed)
        self.most = dict[str, int]()
        self.open = dict[str, Fence]()
        for name in self.NAMES:
            self.limit(name, 2)

    def held(self) -> dict[str, Counter[int]]:
        with self.harness.store.database.reading() as conn:
            return tasks_of(conn, self.NAMES, self.harness.clock.now)

    def busy(self) -> list[str]:
        """Return the runs that have tasks."""
        run_ids = {run_id for tasks in self.held().values() for run_id in tasks}
        return [name for name, fence in self.open.items() if fence.run_id in run_ids]

    def begin(self, number: int) -> None:
        sites = self.chance.sample(self.NAMES, self.chance.choice([1, 1, 2]))
        tasks = self.chance.randint(1, 3)
        self.open[f"r{number}"] = run(self.harness, f"r{number}", tasks=tasks, sites=sites)

    def limit(self, name: str, tasks: int) -> None:
        limit(self.harness.store, name, tasks=tasks)
        self.most[name] = tasks

    def ask(self, name: str) -> None:
        before = self.held()
        self.harness.deploy(self.open[name])
        for site_name, tasks in self.held().items():
            assert tasks.total() <= max(self.most[site_name], before[site_name].total())

    def end(self, name: str) -> None:
        """Let all executing tasks end, and the run with its last task."""
        fence = self.open[name]
        now = self.harness.clock.forward(1)
        tasks = self.harness.store.polls.found_state(fence).tasks
        ends = [
            seen(task, Phase.ENDED, now, uid=task.uid, end=good_end(now))
            for task in tasks
            if task.status is not TaskStatus.QUEUED
        ]
        self.harness.poll(fence, ends)
        if not self.harness.store.tasks.count_tasks(fence.run_id).alive:
            self.harness.end(fence)
            del self.open[name]


@each_on_sqlite(range(2), [0])
def test_no_site_exceeds_its_limit_and_every_run_gets_its_turn(
    harness: Harness, value: int
) -> None:
    fleet = Fleet(harness, value)
    chance = fleet.chance
    for number in range(15):
        fleet.limit(chance.choice(fleet.NAMES), chance.randint(0, 3))
        fleet.begin(number)
        fleet.ask(f"r{number}")
        fleet.ask(chance.choice(sorted(fleet.open)))
        for name in chance.sample(fleet.busy(), min(1, len(fleet.busy()))):
            fleet.end(name)
    for name in fleet.NAMES:
        fleet.limit(name, 1)
    turns = 0
    while fleet.open:
        for name in called(harness):
            fleet.ask(name)
        for name in fleet.busy():
            fleet.end(name)
        turns += 1
        assert turns < 200, sorted(fleet.open)
    assert rows(harness.store, site_ticket) == []
