"""Classes as people move them over: unusual, but valid in the original."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from crawler_lifecycle.features.user_code import loading, wire
from crawler_lifecycle.managers import CrawlManager, GeneratorCrawlManager, WorkFlowManager
from crawler_lifecycle.managers.testing import simulate
from tests.managers.support import generator, order, pages


class Slots(CrawlManager):
    """Has its own loop, which checks no jobs and schedules one for each slot of a frontier."""

    name, loop_mode, default_max_jobs = "slots", 120, 2

    def add_argparser_options(self) -> None:
        super().add_argparser_options()
        self.argparser.add_argument("frontier", help="100 %% of a frontier")
        self.argparser.add_argument("--settings-json", default="{}")

    def workflow_loop(self) -> bool:
        for slot in (f"{self.args.frontier}{n}" for n in range(5)):
            if slot not in self.state:
                settings = {"FRONTIER": self.args.settings_json}
                override: Any = {
                    "spider_args": {"slot": slot},
                    "job_settings": settings,
                    "tags": [f"SLOT={slot}"],
                }
                self.state[slot] = self.schedule_spider_with_jobargs(override)
        return bool(
            list(self.get_owned_jobs(spider=self.spider, state=["running", "pending"]))
            or not self.stats_of()
        )

    def stats_of(self) -> list[Any]:
        return list(self.get_finished_owned_jobs())


def test_a_loop_of_its_own_that_checks_no_jobs() -> None:
    """Jobs that found no slot start when one is free, and ended ones keep none."""
    record = simulate(Slots, ["books", "f"], outcomes={2: "failed"}, cycles=50)
    assert [job.spider_args["slot"] for job in record.scheduled] == ["f0", "f1", "f2", "f3", "f4"]
    assert (record.over, record.most_live, record.close_reason) == (True, 2, "failed")


class Stages(WorkFlowManager):
    """Schedules jobs and asks for their ends itself, without hooks."""

    name, loop_mode = "stages", 10

    def workflow_loop(self) -> bool:
        if "first" not in self.state:
            self.state["first"] = [
                self.schedule_spider("a", tags=["X"], units=2, n=str(n)) for n in range(3)
            ]
        elif "second" not in self.state:
            if self.wait_for(self.state["first"], interval=5, timeout=20):
                self.state["second"] = self.schedule_spider("b", spider_args={"after": 3})
        elif (outcome := self.is_finished(self.state["second"])) is not None:
            self.set_close_reason(outcome)
            return False
        return True


def test_a_workflow_manager_under_a_cap() -> None:
    """Nobody checks its jobs, but they keep no slot after their end."""
    record = simulate(Stages, ["--max-running-jobs", "1"], outcomes={4: "my own"}, cycles=200)
    assert [(job.spider, job.seq) for job in record.scheduled] == [
        ("a", 1),
        ("a", 2),
        ("a", 3),
        ("b", 4),
    ]
    assert (record.over, record.most_live, record.close_reason) == (True, 1, "my own")


def test_a_cap_that_is_a_subtraction() -> None:
    members = {"max_running_jobs": property(lambda self: 2 - len(self.state))}

    def base_loop_tasks(self: Any) -> bool:
        now = len(self.state)
        self.state.update({str(n): n for n in range(5)} if not now else {})
        if now:
            self.state.clear()
        return True

    record = simulate(generator(pages(1, 2), base_loop_tasks=base_loop_tasks, **members))
    assert (order(record), record.errors) == (["1", "2"], [])
    assert "its cap is 0: no job may start" in record.waits


def test_a_mixin_in_front_and_super_everywhere() -> None:
    class Mixin:
        def add_argparser_options(self) -> None:
            super().add_argparser_options()  # type: ignore[misc]
            self.argparser.add_argument("--category", action="append", default=[])  # type: ignore[attr-defined]

        def on_close(self) -> None:
            self.stats.inc_value("closed")  # type: ignore[attr-defined]
            super().on_close()  # type: ignore[misc]

    class Shops(Mixin, GeneratorCrawlManager):
        loop_mode, spider, MAX_RETRIES = 60, "", 2
        default_max_jobs = float("inf")

        def __init__(self) -> None:
            super().__init__()
            self.failed_outcomes += ["no_items"]

        def on_start(self) -> None:
            super().on_start()
            self.append_flow_tag(f"CATEGORIES={len(self.args.category)}")

        def set_parameters_gen(self) -> Iterator[dict[str, Any]]:
            for category in self.args.category:
                yield {"spider": category, "units": 1}

        def get_retry_override(
            self, spider: str, outcome: str, job_args_override: Any, jobkey: str
        ) -> Any:
            override: Any = super().get_retry_override(spider, outcome, job_args_override, jobkey)
            return {**override, "units": job_args_override["units"] * 2}

        def finished_ok_hook(
            self, spider: str, outcome: str, job_args_override: Any, jobkey: str
        ) -> None:
            super().finished_ok_hook(spider, outcome, job_args_override, jobkey)
            if spider != "report":
                self.schedule_spider_with_jobargs({"spider_args": {"of": jobkey}}, spider="report")

    argv = ["named", "--category", "a", "--category", "b", "--spider-args", '{"depth": 1}']
    record = simulate(Shops, argv, outcomes={1: "no_items"})
    begun = [(job.spider, job.seq, job.retry, job.units) for job in record.scheduled]
    assert begun == [
        *[("a", 1, 0, 1), ("b", 2, 0, 1), ("report", 3, 0, None)],
        *[("a", 1, n, 2**n) for n in (1, 2)],
    ]
    assert {job.spider_args["depth"] for job in record.scheduled} == {"1"}
    assert all("CATEGORIES=2" in job.tags for job in record.scheduled)
    assert record.stats["closed"] == 1
    assert b'"inf"' in wire.encode({"options": loading.options(Shops)}), (
        "a worker can tell what it takes"
    )
