"""Cycles of managers whose classes do what is odd: real classes over the real store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from crawler_lifecycle.activities.managers.cycles import CycleAnswer
from crawler_lifecycle.domain.managers.manager import Job, JobState
from crawler_lifecycle.managers import CrawlManager, WorkFlowManager
from tests.activities.test_manager_cycle import PLAN, Bench, Shops, bench, empty
from tests.contracts.store.managing import NAME

__all__ = ["bench", "empty"]


class Once(CrawlManager):
    name = NAME
    spider = "shop"
    loop_mode = 60


def to_end(bench: Bench, cls: type) -> CycleAnswer:
    """Cycles until the class wants no further one; every run ends as soon as it is there."""
    bench.hosts.classes[PLAN] = cls
    for _ in range(20):
        answer = bench.cycle()
        if answer.over:
            return answer
        for run_id in sorted(bench.fences):
            bench.end(run_id)
    raise AssertionError(answer)


def test_jobs_of_other_flows_that_count_as_its_own_leave_no_hole_in_its_source(bench: Bench) -> None:
    """S-20, through the store, which takes no page with positions left out."""

    class Acquires(Shops):
        def on_start(self) -> None:
            super().on_start()
            self._acquired = {Job("shop", {"page": page}).identity for page in ("0", "3", "4")}

    answer = to_end(bench, Acquires)
    assert (answer.error, len(bench.jobs(JobState.ENDED))) == (None, 2)
    counts = bench.row.counts
    assert (counts.yields, counts.duplicates) == (5, 3)


def test_failed_outcomes_of_the_object_itself_also_when_the_answer_was_lost(bench: Bench) -> None:
    class Poor(Once):
        def __init__(self) -> None:
            super().__init__()
            self.failed_outcomes.append("too few items")

        def finished_ok_hook(self, *args: Any) -> None:
            self.set_close_reason("too few items")

    answer = to_end(bench, Poor)
    assert (answer.close_reason, answer.failed) == ("too few items", True)
    again = bench.cycle(bench.other_worker())
    assert (again.close_reason, again.failed) == ("too few items", True)


def test_a_manager_without_hooks_gives_the_slots_of_its_jobs_back(bench: Bench) -> None:
    class Two(WorkFlowManager):
        name, loop_mode, default_max_jobs = NAME, 60, 1

        def workflow_loop(self) -> bool:
            if not self.state:
                self.state["keys"] = [self.schedule_spider("shop", page=page) for page in (1, 2)]
                return True
            return any(self.is_finished(key) is None for key in self.state["keys"])

    answer = to_end(bench, Two)
    assert (answer.over, answer.error, answer.live) == (True, None, 0)
    assert bench.jobs() == [(1, 0, "ended"), (2, 0, "ended")]
    assert (bench.row.counts.good, bench.row.counts.live) == (2, 0)


def test_what_on_close_did_wrong_is_told(bench: Bench) -> None:
    class Closes(Shops):
        def on_close(self) -> None:
            self.state["half"] = 1
            raise OSError("no room")

    answer = to_end(bench, Closes)
    assert answer.unclosed is not None
    assert answer.unclosed.startswith("on_close failed: ")
    assert "no room" in answer.unclosed
    assert (answer.hook_errors, bench.cycle().hook_errors) == (1, 1), "also for who asks again"
    assert "half" not in bench.row.state, "nothing of it counts"


def test_what_on_close_does_through_the_manager_is_on_record_once(bench: Bench) -> None:
    """Also a job that it schedules: it begins like any other, and the manager ends beside it."""

    class Closes(Shops):
        def on_close(self) -> None:
            self.state["closed"] = self.state.get("closed", 0) + 1
            self.stats.inc_value("closed")
            self.schedule_spider_with_jobargs({"spider_args": {"page": "report"}})
            self.set_close_reason("my own")

    answer = to_end(bench, Closes)
    assert (answer.over, answer.close_reason, answer.unclosed, answer.picked) == (True, "my own", None, 1)
    again = bench.cycle(bench.other_worker())
    assert (again.over, again.close_reason) == (True, "my own")
    assert (bench.row.state, bench.row.stats["closed"], len(bench.jobs())) == ({"closed": 1}, 1, 6)


def test_why_on_close_was_not_called_is_told(bench: Bench) -> None:
    bench.cycle()
    bench.hosts.classes.clear()
    stopped = bench.cycle(bench.other_worker(), closing=True)
    assert stopped.unclosed == f"on_close was not called: {PLAN}: there is no such class"


def test_a_source_without_end_of_which_nothing_may_start_comes_to_rest(bench: Bench) -> None:
    class Never(Shops):
        def set_parameters_gen(self) -> Iterator[dict[str, Any]]:
            page = 0
            while True:
                yield {"page": page}
                page += 1

        def can_schedule_job_with_params(self, params: Any) -> bool:
            return False

    bench.hosts.classes[PLAN] = Never
    answers = [bench.cycle() for _ in range(4)]
    assert [answer.again_s for answer in answers] == [0, 0, 60, 60]
    assert bench.row.position == 1000
