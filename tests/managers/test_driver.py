"""The driver: pages of the source, what precedes the first cycle, and the contents of a decision."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from crawler_lifecycle.features.managers.domain.jobs import (
    JobDefaults,
    merged,
    override_of,
    params_of,
    params_of_yield,
    retry_delay,
)
from crawler_lifecycle.features.managers.domain.manager import PAGE_BYTES, PAGE_ITEMS, Facts, Page
from crawler_lifecycle.managers import CrawlManager, WorkFlowManager
from crawler_lifecycle.managers.driver import PAGE_S, Driver
from crawler_lifecycle.managers.testing import Simulation, simulate
from tests.managers.support import generator, order, pages
from tests.support.examples import examples


def _driver(cls: type[WorkFlowManager], argv: Sequence[str] = (), **more: Any) -> Driver:
    return Driver(cls, Simulation(cls, argv), **more)


def _pages(page: Page) -> list[str]:
    return [item.job.spider_args["page"] for item in page.items if item.job is not None]


def test_pages_follow_positions() -> None:
    """The same page again is the same; an earlier one restarts the generator, and a later one
    skips.
    """
    made = count()
    driver = _driver(generator(lambda: [next(made)] and pages(*range(1200))))
    first = driver.page(0)
    assert (len(first.items), first.position, first.exhausted) == (PAGE_ITEMS, 500, False)
    second = driver.page(500)
    assert (_pages(second)[0], second.items[0].position, next(made)) == ("500", 501, 1)
    assert driver.page(0) == first
    assert driver.page(500) == second
    last = driver.page(1000)
    assert (len(last.items), last.position, last.exhausted) == (200, 1200, True)
    assert driver.page(1200) == Page(position=1200, exhausted=True)
    shorter = _driver(generator(pages(1, 2)))
    assert shorter.page(10) == Page(position=10, exhausted=True), "a generator that has less now"


def test_a_page_ends_at_its_bytes_and_at_its_time() -> None:
    driver = _driver(generator({"page": n, "text": "x" * 10_000} for n in range(100)))
    page = driver.page(0)
    sent = json.dumps(
        [[item.position, params_of(item.job)] for item in page.items if item.job is not None]
    )
    assert PAGE_BYTES - 11_000 < len(sent) < PAGE_BYTES + 11_000
    for loop_mode, most in ((60, 3), (0, 100)):  # its only cycle must be enough
        clock = count(0.0, PAGE_S / 4)
        many = generator(pages(*range(100)), loop_mode=loop_mode)
        assert len(_driver(many, clock=lambda clock=clock: next(clock)).page(0).items) == most


def test_a_manager_of_one_job_has_no_source() -> None:
    cls = type("C", (CrawlManager,), {"name": "c", "spider": "s"})
    assert _driver(cls).page(0) == Page(exhausted=True)


def test_what_comes_before_the_first_cycle_is_decided_in_it() -> None:
    """What ``on_start`` adds and schedules comes first; after a restart, this is not done twice."""

    def on_start(self: Any) -> None:
        self.add_job("shops", {"spider_args": {"page": "added"}})
        self.state["key"] = self.schedule_spider_with_jobargs({"spider_args": {"page": "direct"}})
        self.append_flow_tag("FROM=start")

    simulation = Simulation(generator(pages(1), on_start=on_start))
    record = simulation.run(cycles=1)
    assert order(record) == ["added", "direct", "1"]
    assert record.state["key"] == "manager/1/1" == record.scheduled[1].key
    assert all("FROM=start" in job.tags for job in record.scheduled)
    simulation.restart()
    assert order(simulation.run()) == ["added", "direct", "1"]
    assert simulation.record.state["key"] is None, "the job is known: nothing was scheduled"


def test_what_on_start_schedules_and_the_source_yields_are_two_jobs() -> None:
    def on_start(self: Any) -> None:
        self.schedule_spider_with_jobargs({"spider_args": {"page": "1"}})
        self.add_job("shops", {"spider_args": {"page": "2"}})

    assert sorted(order(simulate(generator(pages(1, 2), on_start=on_start)))) == ["1", "1", "2"]


def test_a_decision_has_the_state_only_when_it_changed() -> None:
    driver = _driver(
        type(
            "L",
            (WorkFlowManager,),
            {"name": "l", "loop_mode": 9, "workflow_loop": lambda self: True},
        )
    )
    driver.begin()
    facts = Facts(1, 1, 0.0, 1, exhausted=True)
    assert driver.cycle(facts).state is None
    driver.script.state["seen"] = {"deep": [1]}
    assert driver.cycle(facts).state == {"seen": {"deep": [1]}}
    assert driver.cycle(facts).state is None
    driver.script.state["seen"]["deep"].append(2)
    decision = driver.cycle(facts)
    assert decision.state == {"seen": {"deep": [1, 2]}}
    assert (decision.again_s, decision.over) == (9, False)


def test_coroutines_of_a_class_share_one_event_loop() -> None:
    loops: list[Any] = []

    async def noted(self: Any) -> bool:
        import asyncio

        loops.append(asyncio.get_running_loop())
        return len(loops) < 4

    members = {
        "on_start": noted,
        "base_loop_tasks": lambda self: True,
        "workflow_loop": noted,
        "on_close": noted,
    }
    record = simulate(type("L", (WorkFlowManager,), {"name": "l", "loop_mode": 9, **members}))
    assert record.over
    assert len(set(map(id, loops))) == 1
    assert len(loops) == 5


def test_jobs_of_other_flows_count_as_its_own_on_request() -> None:
    """S-20: ``acquire_all_jobs``; with ``dont_acquire_finished_jobs``, ended ones do not count."""
    same = {"spider": "shops", "tags": ["FLOW_ID=old"], "finished_time": 0}
    states = {"1": "finished", "2": "running"}
    others = [
        {**same, "key": f"7{n}", "state": state, "spider_args": {"page": n}}
        for n, state in states.items()
    ]
    for members, wanted in (
        ({}, ["1", "2", "3"]),
        ({"acquire_all_jobs": True}, ["3"]),
        ({"acquire_all_jobs": True, "dont_acquire_finished_jobs": True}, ["1", "3"]),
    ):
        assert (
            order(Simulation(generator(pages(1, 2, 3), **members), others=others).run(cycles=9))
            == wanted
        )


LETTERS = st.characters(codec="utf-8", exclude_characters="\0")
VALUES = st.integers() | st.text(LETTERS, max_size=5) | st.booleans()
TEXTS = st.dictionaries(st.text(LETTERS, min_size=1, max_size=5), VALUES, max_size=4)
OVERRIDES = st.fixed_dictionaries(
    {},
    optional={
        "spider_args": TEXTS,
        "job_settings": TEXTS,
        "tags": st.lists(
            st.sampled_from(["A=1", "B", "JOBSEQ=0000000007", "FLOW_ID=x", "GIVEN"]), max_size=4
        ),
        "units": st.integers(1, 9),
        "project_id": st.integers(1, 9) | st.text("pq", min_size=1),
        "page": st.integers(),
    },
)


@settings(max_examples=examples(100), deadline=None)
@given(
    override=OVERRIDES, spider_args=TEXTS, job_settings=TEXTS, units=st.none() | st.integers(1, 9)
)
def test_merging_again_changes_nothing(
    override: Any, spider_args: Any, job_settings: Any, units: Any
) -> None:
    """A hook may pass its job back into ``add_job`` unchanged: the job and its identity stay the
    same (S-31, S-54).
    """
    defaults = JobDefaults("shops", spider_args, job_settings, units, None, ["GIVEN"])
    job = merged(override, None, defaults)
    assert merged(params_of(job), None, defaults) == job
    assert merged(override_of(params_of(job)), job.spider, defaults).identity == job.identity
    assert merged(params_of_yield(params_of(job)), job.spider, defaults) == job
    assert not {"GIVEN", "FLOW_ID=x", "JOBSEQ=0000000007"}.intersection(job.tags)


def test_the_delay_of_a_retry_is_bounded() -> None:
    assert [retry_delay(10, 2, 35, n) for n in (1, 2, 3, 4)] == [10, 20, 35, 35]
    assert retry_delay(10, 2, 3600, 5000) == 3600
    assert (
        retry_delay(1e18, 2, float("inf"), 1)
        == retry_delay(10, 2, float("inf"), 5000)
        == 366 * 86_400
    )
    assert retry_delay(0, 2, 3600, 3) == 0
