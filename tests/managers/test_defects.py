"""Defects of the original that are not copied: rows S-D1 … S-D13 of the rules of managers."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from crawler_lifecycle.features.managers.domain.manager import DELAYED_MAX
from crawler_lifecycle.managers import GeneratorCrawlManager, JobParams
from crawler_lifecycle.managers.testing import Simulation, simulate
from tests.managers.support import generator, numbers, order, pages, tag


@pytest.mark.parametrize(
    ("given", "skipped"),
    [((1, 2, 3, 1, 2, 3), [4, 5, 6]), ((1, 1, 1), [2, 3]), ((1, 2, 3, 4, 5, 1, 2), [6, 7])],
)
def test_sd1_sd2_sd3_what_comes_again_is_skipped(
    given: tuple[int, ...], skipped: list[int]
) -> None:
    """In the same batch, at once, or in a later one."""
    record = simulate(generator(pages(*given), default_max_jobs=3))
    assert order(record) == numbers(record) == list(map(str, dict.fromkeys(given)))
    assert [position for position, _ in record.skipped] == skipped


def test_sd4_it_lives_while_delayed_jobs_wait() -> None:
    """This holds even when nothing runs: they start as soon as they may."""

    def can_schedule_job_with_params(self: GeneratorCrawlManager, params: Any) -> bool:
        return self._platform.now() % 1000 >= 500

    cls = generator(pages(1, 2), can_schedule_job_with_params=can_schedule_job_with_params)
    record = simulate(cls)
    assert order(record) == ["1", "2"]
    assert record.scheduled[0].at >= 500
    assert "2 jobs are waiting: can_schedule_job_with_params refused it for now" in record.waits


def test_sd5_a_predicate_that_refuses_everything_does_not_read_the_generator_dry() -> None:
    """The delayed list is bounded, and pauses the source when full; a job that may start again lets
    it continue.
    """
    taken = count(1)
    cls = generator(
        lambda: ({"page": next(taken)} for _ in count()),
        can_schedule_job_with_params=lambda self, params: bool(self.state),
        base_loop_tasks=lambda self: (
            self.state.update(go=1) or True if self._cycle.facts.now > 1_700_000_700 else True
        ),
        default_max_jobs=5,
    )
    simulation = Simulation(cls)
    record = simulation.run(cycles=10)
    assert record.scheduled == []
    assert next(taken) < 2 * DELAYED_MAX + 600
    assert record.waits[-1].endswith(
        f"with {DELAYED_MAX} delayed jobs, reading from its source pauses"
    )
    assert order(simulation.run(cycles=8))[:6] == ["1", "2", "3", "4", "5", "6"]


def test_sd6_a_cap_of_one_per_spider_holds_inside_of_a_cycle() -> None:
    items = [{"spider": spider, "page": n} for n, spider in enumerate("aaab")]
    counts: list[int] = []

    def can_schedule_job_with_params(self: GeneratorCrawlManager, params: Any) -> bool:
        counts.append(self.spider_running_count("a"))
        return self.spider_running_count(params["spider"]) < 1

    own = generator(
        items, default_max_jobs=3, can_schedule_job_with_params=can_schedule_job_with_params
    )
    for cls in (own, generator(items, default_max_jobs=3, max_jobs_per_spider=1)):
        assert [(job.spider, job.at) for job in simulate(cls).scheduled] == [
            ("a", 0),
            ("b", 0),
            ("a", 60),
            ("a", 120),
        ]
    assert counts[:4] == [0, 1, 1, 1]


def test_sd7_yields_that_share_a_list_are_two_jobs() -> None:
    shared = ["A=1"]
    record = simulate(generator([{"page": 1, "tags": shared}, {"page": 2, "tags": shared}]))
    assert [tag(job.tags, "JOBSEQ") for job in record.scheduled] == [["0000000001"], ["0000000002"]]
    assert shared == ["A=1"]


def test_sd7_a_dictionary_that_is_yielded_again_and_again_is_read_when_it_is_yielded() -> None:
    def one() -> Any:
        given: dict[str, Any] = {}
        for given["page"] in (1, 2, 3):
            yield given

    assert order(simulate(generator(one))) == ["1", "2", "3"]


def test_sd8_identities_are_those_of_the_effective_arguments() -> None:
    """With ``--spider-args``, a restart schedules nothing twice."""
    simulation = Simulation(
        generator(pages(1, 2, 3), default_max_jobs=2), ["--spider-args", '{"env": "prod"}']
    )
    simulation.run(until=lambda record: len(record.scheduled) == 2)
    simulation.restart()
    record = simulation.run()
    assert order(record) == ["1", "2", "3"]
    assert {job.spider_args["env"] for job in record.scheduled} == {"prod"}
    overridden = generator([{"page": 1}, {"page": 1, "env": "prod"}])
    assert len(simulate(overridden, ["--spider-args", '{"env": "prod"}']).scheduled) == 1


def test_sd9_an_end_while_the_manager_was_down_reaches_its_hook_once() -> None:
    simulation = Simulation(generator(pages(1, 2), MAX_RETRIES=1), outcomes={1: "failed"})
    simulation.run(cycles=1)
    simulation.clock += 1000
    simulation.restart()
    record = simulation.run()
    assert numbers(record) == ["1", "2", "1.r1"]
    assert [hook for hook in record.hooks if hook[0] == "bad_outcome_hook"] == [
        ("bad_outcome_hook", 1)
    ] * 2


def test_sd10_queued_jobs_survive_a_restart() -> None:
    """Retries that wait for their time, and jobs of ``add_job``."""

    def finished_ok_hook(
        self: GeneratorCrawlManager, spider: str, outcome: str, params: JobParams, key: str
    ) -> None:
        self.add_job("other", {"spider_args": {"page": "9"}})

    cls = generator(
        pages(1, 2),
        default_max_jobs=2,
        MAX_RETRIES=1,
        retry_delay=500,
        finished_ok_hook=finished_ok_hook,
    )
    simulation = Simulation(cls, outcomes={1: "failed"})
    simulation.run(cycles=1)
    simulation.cap = 0
    simulation.run(cycles=1)
    assert [row.state for row in simulation.rows[2:]] == ["queued", "queued"]
    simulation.restart()
    simulation.cap = None
    assert numbers(simulation.run()) == ["1", "2", "3", "1.r1"]


@pytest.mark.parametrize("loses", ["none", "raises"])
def test_sd12_a_job_whose_scheduling_answers_none_is_not_lost(loses: str) -> None:
    """It waits, keeps its place and uses no number; the manager reports this."""

    def schedule_spider_with_jobargs(self: Any, params: Any = None, spider: Any = None) -> Any:
        if params["spider_args"]["page"] == "1" and self._cycle.facts.now < 1_700_000_100:
            if loses == "raises":
                raise OSError("no way")
            return None
        return GeneratorCrawlManager.schedule_spider_with_jobargs(self, params, spider)

    cls = generator(
        pages(1, 2), schedule_spider_with_jobargs=schedule_spider_with_jobargs, default_max_jobs=1
    )
    record = simulate(cls)
    assert (order(record), numbers(record)) == (["2", "1"], ["1", "2"])
    assert (record.errors != []) == (loses == "raises")


def test_sd13_the_retry_budget_is_no_tag() -> None:
    """A hook that replaces the tags changes nothing."""

    def bad_outcome_hook(self: Any, spider: str, outcome: str, params: JobParams, key: str) -> None:
        params["tags"] = ["MINE=1"]
        GeneratorCrawlManager.bad_outcome_hook(self, spider, outcome, params, key)

    record = simulate(
        generator(pages(1), MAX_RETRIES=2, bad_outcome_hook=bad_outcome_hook), outcomes="failed"
    )
    assert numbers(record) == ["1", "1.r1", "1.r2"]
