"""``CrawlManager`` and ``PeriodicCrawlManager``: rows S-30 … S-40 of the rules of managers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from crawler_lifecycle.managers import (
    CrawlManager,
    GeneratorCrawlManager,
    JobParams,
    PeriodicCrawlManager,
    WorkFlowManager,
)
from crawler_lifecycle.managers.driver import parser_of
from crawler_lifecycle.managers.testing import Simulation, simulate
from crawler_lifecycle.managers.types import ClassError
from tests.managers.support import generator, order, pages


def manager(base: type[CrawlManager] = CrawlManager, **members: Any) -> type[CrawlManager]:
    return type("Crawl", (base,), {"name": "crawl", "spider": "shops", "loop_mode": 60, **members})


def test_s30_the_spider_is_an_attribute_or_the_argument_behind_the_name() -> None:
    argv = ["--spider-args", '{"page": 1}', "--job-settings", '{"X": 1}', "--units", "2"]
    job = simulate(manager(spider=None, name=""), ["named", "positional", *argv]).scheduled[0]
    assert (job.spider, job.spider_args, job.job_settings, job.units) == (
        "positional",
        {"page": "1"},
        {"X": "1"},
        2,
    )
    assert " spider" not in parser_of(manager()).format_usage()
    assert simulate(manager()).scheduled[0].spider == "shops"


def test_s31_what_goes_before_what() -> None:
    """Arguments: options, other keys of the override, its ``spider_args``.

    Settings and units: options, override.
    """

    def workflow_loop(self: CrawlManager) -> bool:
        override: Any = {
            "a": "top",
            "b": "top",
            "spider_args": {"b": "deep"},
            "job_settings": {"S": "job"},
            "units": 5,
        }
        override |= {"priority": 1, "pool": "shop-a"}
        self.schedule_spider_with_jobargs(override)
        self.schedule_spider_with_jobargs(spider="other")
        assert self.get_job_settings({"S": "job"}) == {"S": "job", "T": "options"}
        return False

    options = [
        "--spider-args",
        '{"a": "options", "b": "options", "c": "options"}',
        "--units",
        "3",
        "--priority",
        "4",
    ]
    options += ["--pool", "shop-b"]
    settings = ["--job-settings", '{"S": "options", "T": "options"}']
    first, second = simulate(manager(workflow_loop=workflow_loop), [*options, *settings]).scheduled
    assert first.spider_args == {"a": "top", "b": "deep", "c": "options"}
    assert (first.job_settings, first.units) == ({"S": "job", "T": "options"}, 5)
    assert (second.spider, second.spider_args["a"], second.units) == ("other", "options", 3)
    assert (first.priority, second.priority) == (1, 4)
    assert (first.pool, second.pool, "pool" in first.spider_args) == ("shop-a", "shop-b", False)
    assert simulate(manager()).scheduled[0].units is None


def test_s32_it_schedules_once_and_ends_with_its_job() -> None:
    record = simulate(manager(), seconds=130)
    assert ([job.at for job in record.scheduled], record.seconds, record.over) == ([0], 130, True)


def test_s32_any_outcome_ends_it_whatever_else_runs() -> None:
    def on_start(self: CrawlManager) -> None:
        for n in (1, 2):
            self.schedule_spider_with_jobargs({"spider_args": {"page": str(n)}})

    record = simulate(manager(on_start=on_start), seconds=lambda job: 50 * job.seq)
    assert (order(record), record.seconds, record.left) == (["1", "2"], 50, 1)


class Hooks(CrawlManager):
    """Records which hooks run, and what they see."""

    name, spider, loop_mode = "hooks", "shops", 60

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def finished_metadata_hook(self, jobkey: str, metadata: dict[str, Any]) -> None:
        self.seen.append(("metadata", jobkey, metadata["close_reason"], metadata["spider_args"]))
        metadata.clear()

    def bad_outcome_hook(
        self, spider: str, outcome: str, job_args_override: JobParams, jobkey: str
    ) -> None:
        self.seen.append(
            ("bad", spider, outcome, jobkey, self.stats.get_value("item_scraped_count/total"))
        )
        self.set_close_reason("my own")

    def finished_ok_hook(
        self, spider: str, outcome: str, job_args_override: JobParams, jobkey: str
    ) -> None:
        self.seen.append(
            ("ok", spider, outcome, jobkey, self.stats.get_value("item_scraped_count/total"))
        )

    def on_close(self) -> None:
        self.state["seen"] = self.seen


@pytest.mark.parametrize(
    ("outcome", "hook"), [("killed by oom", "bad"), ("finished", "ok"), ("odd", "ok")]
)
def test_s33_metadata_first_then_exactly_one_of_bad_and_ok_then_the_statistics(
    outcome: str, hook: str
) -> None:
    record = simulate(
        Hooks, ["--spider-args", '{"a": 1}'], outcomes=outcome, stats={"item_scraped_count": 4}
    )
    key = "manager/1/1"
    assert record.state["seen"] == [
        ["metadata", key, outcome, {"a": "1"}],
        [hook, "shops", outcome, key, None],
    ]
    assert record.stats["item_scraped_count/total"] == 4


def test_s33_a_hook_sees_its_job_gone_and_gets_a_copy_of_everything() -> None:
    """Nested lists are copies as well, which the original shares between tries."""
    counts: list[int] = []

    def bad_outcome_hook(self: Any, spider: str, outcome: str, params: JobParams, key: str) -> None:
        counts.append(self.spider_running_count(spider))
        GeneratorCrawlManager.bad_outcome_hook(self, spider, outcome, params, key)
        params["tags"].append("spoilt")
        params["spider_args"]["page"] = "spoilt"

    cls = generator(pages(1), MAX_RETRIES=2, bad_outcome_hook=bad_outcome_hook)
    record = simulate(cls, outcomes="failed")
    assert counts == [0, 0, 0]
    assert order(record) == ["1", "1", "1"]
    assert not any("spoilt" in job.tags for job in record.scheduled)


def test_a_hook_has_a_key_for_what_it_does_outside_that_is_the_same_when_it_is_called_again() -> (
    None
):
    keys: list[str | None] = []

    def bad_outcome_hook(self: Any, *args: Any) -> None:
        keys.append(self.hook_key)
        if len(keys) == 1:
            raise OSError("the service is away")
        GeneratorCrawlManager.bad_outcome_hook(self, *args)

    cls = generator(pages(1), MAX_RETRIES=1, bad_outcome_hook=bad_outcome_hook)
    simulate(cls, outcomes="failed")
    assert keys == ["manager/1/1/1", "manager/1/1/1", "manager/1/1.r1/1"]
    assert cls.hook_key is None


def test_s33_a_live_job_is_shown_by_its_key() -> None:
    seen: list[str] = []
    simulate(manager(running_job_hook=lambda self, jobkey: seen.append(jobkey)), seconds=150)
    assert seen == ["manager/1/1"] * 2


@pytest.mark.parametrize("newest_first", [False, True])
def test_s34_jobs_are_checked_by_their_start(newest_first: bool) -> None:
    """In alphabetical order, ten would come before two; live and ended ones are mixed."""
    seen: list[str] = []

    def noted(self: Any, jobkey: str, *rest: Any) -> None:
        seen.append(jobkey.rpartition("/")[2])

    def by_hook(self: Any, spider: str, outcome: str, params: Any, jobkey: str) -> None:
        seen.append(jobkey.rpartition("/")[2])

    cls = generator(
        pages(*range(12)),
        running_jobs_reverse_check=newest_first,
        running_job_hook=noted,
        finished_ok_hook=by_hook,
    )
    Simulation(cls, seconds=lambda job: 50 if job.seq % 2 else 500).run(cycles=2)
    assert seen == [str(n) for n in (range(12, 0, -1) if newest_first else range(1, 13))]


def test_s35_the_outcome_of_the_first_bad_job_is_the_end_of_the_manager() -> None:
    record = simulate(manager(), outcomes="memusage_exceeded")
    assert (record.close_reason, record.failed) == ("memusage_exceeded", True)
    assert (
        simulate(manager(base_failed_outcomes=["o" * 200]), outcomes="o" * 200).close_reason
        == "o" * 200
    )
    good = simulate(manager(), outcomes="odd")
    assert (good.close_reason, good.failed) == ("finished", False)


def test_s36_a_retry_after_a_restart_keeps_everything() -> None:
    """Units, settings, project and tags are recorded with the job."""
    given = {"page": 1, "units": 4, "job_settings": {"X": "1"}, "project_id": "p", "tags": ["A=1"]}
    simulation = Simulation(generator([given], MAX_RETRIES=1), outcomes="failed")
    simulation.run(cycles=1)
    simulation.restart()
    first, second = simulation.run().scheduled
    assert (second.units, second.job_settings, second.project_id) == (4, {"X": "1"}, "p")
    assert "A=1" in second.tags
    assert second.spider_args == {**first.spider_args, "retry_num": "1"}


def test_s40_a_periodic_manager_goes_on_for_ever_with_the_same_job() -> None:
    """After success or failure, in the same cycle, and without de-duplication."""
    record = simulate(
        manager(PeriodicCrawlManager),
        ["--spider-args", '{"a": 1}'],
        outcomes="failed",
        cycles=9,
        seconds=90,
    )
    assert [job.at for job in record.scheduled] == [0, 90, 180, 270, 360]
    assert {str(job.spider_args) for job in record.scheduled} == {"{'a': '1'}"}
    assert not record.over
    assert record.close_reason is None


def test_s40_a_job_that_ends_at_once_is_not_started_without_end() -> None:
    """At most one start in ``loop_mode`` seconds, even across a restart."""
    simulation = Simulation(manager(PeriodicCrawlManager), seconds=1)
    for _ in range(4):
        record = simulation.run(cycles=3)
        simulation.restart()
    starts = [job.at for job in record.scheduled]
    assert len(starts) > 3
    assert all(later - earlier >= 60 for earlier, later in pairwise(starts))


def test_a_job_that_finds_no_slot_waits_under_its_key() -> None:
    """A direct call over the limit is queued, not lost: limits are exact."""
    keys: list[Any] = []

    def on_start(self: CrawlManager) -> None:
        keys.extend(
            self.schedule_spider_with_jobargs({"spider_args": {"page": str(n)}}) for n in range(3)
        )

    cls = manager(
        on_start=on_start,
        check_running_jobs=lambda self: CrawlManager.check_running_jobs(self) and {},
    )
    record = simulate(cls, ["--max-running-jobs", "1"], cycles=6)
    assert (
        [job.key for job in record.scheduled[:3]] == keys == [f"manager/1/{n}" for n in (1, 2, 3)]
    )
    assert record.most_live == 1


def test_a_paused_manager_schedules_nothing_and_loses_nothing() -> None:
    simulation = Simulation(manager())
    simulation.paused = True
    for _ in range(3):
        assert simulation.run(cycles=1).scheduled == []
    simulation.paused = False
    assert len(simulation.run().scheduled) == 1


def test_a_class_without_a_loop_of_its_own() -> None:
    with pytest.raises(ClassError, match="Half has no workflow_loop"):
        simulate(type("Half", (WorkFlowManager,), {"name": "half"}))
