"""Slow classes: a cycle ends after some time, and the next one continues where that stopped."""

from __future__ import annotations

from typing import Any

import pytest

from crawler_lifecycle.managers import BaseLoopScript, CrawlManager
from crawler_lifecycle.managers.testing import Simulation
from tests.managers.support import generator, pages


class Timed(Simulation):
    """A manager whose class takes time, as its hooks say."""

    took = 0.0

    def __init__(self, cls: type[BaseLoopScript], **more: Any) -> None:
        super().__init__(cls, **more)
        self.read_clock = lambda: self.took

    def takes(self, seconds: float) -> None:
        self.took += seconds


def test_slow_hooks_of_jobs_that_end_together_run_over_several_cycles_each_once() -> None:
    called: list[int] = []

    def hook(self: Any, *args: Any) -> None:
        simulation.takes(2)
        called.append(args[-1])

    simulation = Timed(generator(pages(*range(7)), finished_ok_hook=hook))
    simulation.turn()
    simulation.turn()
    assert len(called) == 3, "those that begin within five seconds"
    first = simulation.clock
    simulation.turn()
    simulation.turn()
    assert (len(called), len(set(called)), simulation.clock) == (7, 7, first), (
        "the next cycle begins at once"
    )
    assert simulation.run().over


@pytest.mark.parametrize("loop_mode", [0, 60])
def test_a_manager_does_not_end_before_the_hooks_of_what_has_ended(loop_mode: int) -> None:
    """Its loop ends it with the first outcome, or it has one cycle and ends were waiting for it."""
    called: list[int] = []

    def hook(self: Any, *args: Any) -> None:
        simulation.takes(10)
        called.append(args[-1])

    def on_start(self: CrawlManager) -> None:
        for n in range(3):
            self.schedule_spider_with_jobargs({"spider_args": {"n": n}})

    members = {
        "name": "c",
        "spider": "s",
        "loop_mode": 60,
        "on_start": on_start,
        "finished_ok_hook": hook,
    }
    cls = type("C", (CrawlManager,), members)
    simulation = Timed(cls)
    simulation.turn()
    if not loop_mode:
        cls.loop_mode, cls.on_start = 0, lambda self: None
        simulation.restart()
        simulation.clock += 100
    record = simulation.run()
    assert (len(called), len(record.scheduled), record.left, record.failed) == (3, 3, 0, False)


def test_hooks_of_live_jobs_take_turns_and_hold_up_no_end() -> None:
    seen: list[str] = []

    def live(self: Any, jobkey: str) -> None:
        simulation.takes(1)
        seen.append(jobkey)

    def hook(self: Any, *args: Any) -> None:
        seen.append("end")

    cls = generator(pages(*range(6)), running_job_hook=live, finished_ok_hook=hook)
    simulation = Timed(cls, seconds=lambda job: 10 if job.seq == 6 else 10_000)
    simulation.run(cycles=3)
    assert seen[:4] == [*(f"manager/1/{n}" for n in (1, 2, 3)), "end"]
    assert set(seen[4:6]) == {"manager/1/4", "manager/1/5"}, "they come first in the next cycle"


def test_a_loop_that_takes_its_time_leaves_some_for_hooks() -> None:
    called: list[str] = []

    def base(self: Any) -> bool:
        simulation.takes(6)
        return True

    def hook(self: Any, *args: Any) -> None:
        simulation.takes(2)
        called.append(args[-1])

    simulation = Timed(generator(pages(*range(4)), base_loop_tasks=base, finished_ok_hook=hook))
    simulation.turn()
    simulation.turn()
    assert len(called) == 3


def test_a_predicate_that_takes_its_time_is_asked_again_in_the_next_cycle() -> None:
    asked: list[str] = []

    def may_start(self: Any, params: Any) -> bool:
        simulation.takes(20)
        asked.append(params["spider_args"]["page"])
        return True

    simulation = Timed(generator(pages(*range(4)), can_schedule_job_with_params=may_start))
    simulation.turn()
    assert asked == ["0", "1"]
    assert simulation.run().over
    assert asked == ["0", "1", "2", "3"]


def test_hooks_given_up_are_an_outcome_and_a_failure_unless_the_class_says_otherwise() -> None:
    def rubbish(self: Any, *args: Any) -> Any:
        return 17

    for on_hook_error, failed in (("fail", True), ("complete", False)):
        more = {"MAX_RETRIES": 1, "get_retry_override": rubbish, "on_hook_error": on_hook_error}
        record = Simulation(
            generator(pages(1, 2, 3), **more), outcomes={1: "failed", 2: "failed"}
        ).run()
        assert (record.close_reason, record.failed) == ("errors in hooks: 2", failed)


def test_with_acquire_all_jobs_live_jobs_of_other_flows_hold_slots() -> None:
    other = {
        "key": "17",
        "spider": "shops",
        "spider_args": {"n": "x"},
        "tags": ["FLOW_ID=other"],
        "state": "running",
    }
    simulation = Simulation(
        generator(pages(1, 2), acquire_all_jobs=True, default_max_jobs=1), others=[other]
    )
    simulation.turn()
    assert simulation.record.scheduled == []
    assert simulation.record.waits == ["all 1 slots are taken"]
    other["state"] = "finished"
    assert len(simulation.run().scheduled) == 2


def test_a_loop_that_reads_outcomes_gets_each_end_in_a_cycle_of_its_own() -> None:
    """What it makes of an outcome is committed with the hooks of that end, so no other hook can
    undo only one of them.
    """
    seen: list[list[str]] = []
    told: list[Any] = []

    def loop(self: Any) -> bool:
        seen.append(list(self.check_running_jobs()))
        self._start_waiting()
        return not self._cycle.window.over

    def did(done: Any) -> None:
        told.append(done)

    simulation = Simulation(
        generator(pages(1, 2, 3), workflow_loop=loop, finished_ok_hook=lambda self, *args: None)
    )
    simulation.did = did  # type: ignore[method-assign]
    simulation.run()
    assert [len(outcomes) for outcomes in seen if outcomes] == [1, 1, 1]
    assert told == []
