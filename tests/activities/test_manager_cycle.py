"""One cycle of a manager over the real store: what is read, decided and committed, and what becomes
of bad classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from crawler_lifecycle.activities import run_files
from crawler_lifecycle.activities.archived import ArchivedFiles
from crawler_lifecycle.activities.run_files import FileReading, RunFiles
from crawler_lifecycle.domain.crawlers.arguments import Argument
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import Fenced, StoreUnavailable
from crawler_lifecycle.domain.projects import only
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.features.managers.activities import cycles as cycle
from crawler_lifecycle.features.managers.activities.cycles import (
    CycleAnswer,
    CycleOrder,
    ManagerActivities,
)
from crawler_lifecycle.features.managers.domain.manager import PAGE_ITEMS, Facts, Job, JobState
from crawler_lifecycle.features.managers.ports import (
    ManagerFence,
    ManagerRow,
    NewManager,
    UserCodeRow,
)
from crawler_lifecycle.managers import CrawlManager, GeneratorCrawlManager, WorkFlowManager, driver
from crawler_lifecycle.ports.protocols import FileArchive, UserCodeFailed
from crawler_lifecycle.ports.runs import Fence, Owner
from crawler_lifecycle.store.store import open_store
from tests.contracts.store.managing import FLOW, NAME, Managed
from tests.contracts.store.managing import MINE as OWNER
from tests.contracts.store.world import Clock, World
from tests.support.databases import make_tables
from tests.support.fakes.services import FakeArchive, FakeCatalogue
from tests.support.fakes.user_code import FakeHost, FakeHosts

PLAN = "shop.managers:M"


class Shops(GeneratorCrawlManager):
    name = NAME
    spider = "shop"
    default_max_jobs = 2
    loop_mode = 60

    def set_parameters_gen(self) -> Iterator[dict[str, Any]]:
        for page in range(5):
            yield {"page": page}


class Once(CrawlManager):
    name = NAME
    spider = "shop"
    loop_mode = 60


@dataclass
class Bench:
    """One manager, its class, and the worker that has it."""

    world: World
    hosts: FakeHosts = field(default_factory=lambda: FakeHosts({PLAN: Shops}))
    fences: dict[int, Fence] = field(default_factory=dict)
    archive: FileArchive = field(default_factory=FakeArchive)

    def __post_init__(self) -> None:
        row, _ = self.managers.reserve_manager(NewManager(NAME, FLOW, PLAN))
        self.managers.claim_manager(row.manager_id, OWNER)
        self.activities = ManagerActivities(
            self.managers,
            self.world.store.user_code,
            self.hosts,
            FakeCatalogue([CrawlerDefinition("shop", args={"page": Argument(default="0")})]),
            self.reading,
        )

    def reading(self, parent: str) -> FileReading:
        store = self.world.store
        files = RunFiles(store.tasks, store.exports, None, ArchivedFiles(self.archive), "nowhere")
        return FileReading(store.runs, files, parent, self.world.clock)

    @property
    def managers(self) -> Any:
        return self.world.store.managers

    @property
    def row(self) -> ManagerRow:
        row: ManagerRow = self.managers.find_manager(NAME, FLOW)
        return row

    def cycle(self, activities: ManagerActivities | None = None, **more: Any) -> CycleAnswer:
        """One cycle, and the runs of what it picked, which execute at once."""
        order = CycleOrder(self.row.manager_id, self.row.attempt, OWNER.first_run_id, **more)
        answer: CycleAnswer = ActivityEnvironment().run(
            (activities or self.activities).run_manager_cycle, order
        )
        fence = ManagerFence(self.row.manager_id, self.row.attempt, OWNER.first_run_id)
        for one in Managed(self.world, fence).begin():
            self.fences[one.run_id] = one
        return answer

    def end(self, run_id: int, failed: bool = False) -> None:
        self.world.finish(self.fences.pop(run_id), failed=[0] if failed else [])

    def other_worker(self) -> ManagerActivities:
        """One that has no process of the manager."""
        self.hosts = FakeHosts(self.hosts.classes)
        return replace(self.activities, hosts=self.hosts, reports={})

    def jobs(self, *states: JobState) -> list[tuple[int | None, int, str]]:
        """Number, retry and state of each job."""
        return [
            (job.seq, job.retry, str(job.state))
            for job in self.managers.list_jobs(self.row.manager_id, states=states)
        ]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    # However slow the machine is, a page holds as much as it may.
    monkeypatch.setattr(cycle, "READ_S", 600.0)
    monkeypatch.setattr(driver, "PAGE_S", 600.0)
    clock = Clock()
    store = open_store(make_tables(f"sqlite:///{tmp_path}/state.db"), pool_size=2, clock=clock)
    yield Bench(World(store, clock))
    store.close()


def test_a_manager_from_its_first_cycle_to_its_end(bench: Bench) -> None:
    first = bench.cycle()
    assert (first.queue, first.picked, first.live, first.over) == (bench.hosts.queue, 2, 2, False)
    assert first.again_s == 60
    assert bench.row.status is RunStatus.PROCESSING
    assert sorted(bench.fences) == [1, 2]
    bench.end(2)
    second = bench.cycle()
    assert (second.ended, second.picked, second.live) == (1, 1, 2)
    while bench.fences:
        bench.end(min(bench.fences))
        last = bench.cycle()
    assert (last.over, last.error, last.live) == (True, None, 0)
    assert [seq for seq, _, state in bench.jobs(JobState.ENDED)] == [1, 2, 3, 4, 5]
    assert bench.hosts.made == 1
    assert bench.cycle().over, "asked again after its answer was lost"


def test_its_class_is_called_within_its_project(bench: Bench) -> None:
    seen: list[str | None] = []

    class Asks(Shops):
        def on_start(self) -> None:
            seen.append(only())

    bench.hosts.classes = {PLAN: Asks}
    bench.cycle()
    assert (seen, only()) == (["default"], None)


def test_another_worker_goes_on_where_the_first_was_killed(bench: Bench) -> None:
    bench.cycle()
    bench.end(1)
    answer = bench.cycle(bench.other_worker())
    assert (answer.ended, answer.picked, answer.live) == (1, 1, 2)
    assert (bench.row.generation, bench.row.counts.duplicates) == (2, 0), (
        "read again, which counts nothing"
    )
    assert len(bench.jobs()) == 5


def test_what_an_older_process_decides_is_refused(bench: Bench) -> None:
    bench.cycle()
    old, order = bench.activities, CycleOrder(bench.row.manager_id, 1, OWNER.first_run_id)
    bench.end(1)

    class Slow(Shops):
        def workflow_loop(self) -> bool:
            if not taken:  # meanwhile another worker takes the manager
                taken.append(True)
                bench.cycle(bench.other_worker())
            return super().workflow_loop()

    taken: list[bool] = []
    bench.hosts.classes[PLAN] = Slow
    bench.hosts.drop(1)
    with pytest.raises(Fenced):
        ActivityEnvironment().run(old.run_manager_cycle, order)
    assert len(bench.jobs(JobState.STARTED)) == 2, "the cap holds"
    assert bench.row.generation == 3
    assert bench.cycle(old).live == 2, "the older one makes the object anew"
    assert bench.row.generation == 4


def test_a_decision_that_is_not_on_record_costs_the_process(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database was away while it committed: nothing is lost, nothing doubled."""
    with monkeypatch.context() as patch:

        def away(*args: Any) -> Any:
            raise StoreUnavailable("no connection")

        patch.setattr(bench.managers, "commit_decision", away)
        with pytest.raises(StoreUnavailable):
            bench.cycle()
    assert bench.cycle().picked == 2
    assert bench.hosts.made == 2
    assert [seq for seq, _, _ in bench.jobs(JobState.STARTED)] == [1, 2]


def test_a_hook_that_raises_is_called_three_times_and_the_window_goes_on(bench: Bench) -> None:
    called: list[str] = []

    class Bad(Shops):
        def bad_outcome_hook(self, outcome: str, *args: Any) -> None:
            called.append(outcome)
            raise RuntimeError("no connection to my service")

    bench.hosts.classes[PLAN] = Bad
    bench.cycle()
    bench.end(1, failed=True)
    waits = [bench.cycle().again_s for _ in range(3)]
    assert waits == [1.0, 5.0, 0.0]
    assert len(called) == 3
    assert "no connection to my service" in (bench.row.error or "")
    assert "given up after 3 tries" in (bench.row.error or "")
    answer = bench.cycle()
    assert (answer.ended, answer.picked, answer.live, len(called)) == (1, 1, 2, 3)
    assert "given up" in (bench.row.error or ""), "it stays to be seen"


@pytest.mark.parametrize("dies", [False, True])
def test_hooks_given_up_are_told_at_the_end_by_any_worker(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    class Bad(Shops):
        def set_parameters_gen(self) -> Iterator[dict[str, Any]]:
            yield {"page": 1}

        def finished_ok_hook(self, *args: Any) -> None:
            raise RuntimeError("no connection to my service")

    bench.hosts.classes[PLAN] = Bad
    bench.cycle()
    bench.end(1)
    with monkeypatch.context() as patch:
        if dies:

            def die(host: FakeHost, facts: Facts, answer: Any) -> None:
                raise UserCodeFailed("its process ended", item_id=facts.ended[0].live.item_id)

            patch.setattr(FakeHost, "cycle", die)
        for _ in range(3):
            assert not bench.cycle(replace(bench.activities, reports={})).over
    assert "given up after 3 tries" in (bench.row.error or "")
    for again in (False, True):
        answer = bench.cycle()
        assert (answer.over, answer.error, answer.hook_errors, answer.on_hook_error) == (
            True,
            None,
            1,
            "fail",
        ), again
        assert bench.row.over
        assert "given up after 3 tries" in (bench.row.error or "")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (
            {"set_parameters_gen": lambda self: (1 / 0 for _ in range(1))},
            "position 1: set_parameters_gen failed: Zero",
        ),
        (
            {"set_parameters_gen": lambda self: iter([{"spider": "books"}])},
            "position 1: spider: 'books' is unknown",
        ),
        (
            {"set_parameters_gen": lambda self: iter([{"project_id": 7}])},
            "position 1: project_id: '7' is not allowed",
        ),
        ({"on_start": lambda self: 1 / 0}, "on_start raised ZeroDivisionError"),
        ({"max_running_jobs": property(lambda self: "many")}, "max_running_jobs"),
    ],
)
def test_a_class_that_never_works_ends_and_says_why(
    bench: Bench, bad: dict[str, Any], said: str
) -> None:
    bench.hosts.classes[PLAN] = type("M", (Shops,), bad)
    for _ in range(4):
        answer = bench.cycle()
        if answer.over:
            break
        assert answer.again_s, "it does not spin"
    assert answer.over
    assert said in (answer.error or "")
    assert bench.row.error == answer.error
    assert not bench.fences


def test_an_item_that_cannot_be_a_job_lets_run_what_runs(bench: Bench) -> None:
    class Bad(Shops):
        def set_parameters_gen(self) -> Iterator[Any]:
            yield {"page": 1}
            yield {"page": 2, "spider": "nobody"}
            yield {"page": 3}

    bench.hosts.classes[PLAN] = Bad
    bench.cycle()
    assert "position 2: spider: 'nobody' is unknown" in (bench.row.source_error or "")
    while bench.fences:
        bench.end(min(bench.fences))
    answer = bench.cycle()
    assert answer.over
    assert "position 2" in (answer.error or "")


def test_or_it_is_skipped_counted_and_listed(bench: Bench) -> None:
    class Skips(Shops):
        on_item_error = "skip"

        def set_parameters_gen(self) -> Iterator[Any]:
            yield {"page": 1}
            yield {"page": 2, "spider": "nobody"}
            yield "no dict"
            yield {"page": 3}

    bench.hosts.classes[PLAN] = Skips
    assert bench.cycle().picked == 2
    assert bench.row.counts.skipped == 2
    skipped = bench.managers.list_jobs(bench.row.manager_id, states=[JobState.SKIPPED])
    assert [job.position for job in skipped] == [2, 3]
    assert skipped[0].error.startswith("position 2: spider: 'nobody' is unknown")


def test_ends_wait_for_one_page_of_the_source_and_for_no_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Shops):
        def set_parameters_gen(self) -> Iterator[dict[str, Any]]:
            for page in range(PAGE_ITEMS):
                yield {"page": page}
            bench.end(1)
            while True:  # nothing of it is new
                yield {"page": 0}

    bench.hosts.classes[PLAN] = Slow
    monkeypatch.setattr(cycle, "READ_S", 0.0)
    assert bench.cycle().picked == 2
    while_it_read = bench.cycle()
    assert (while_it_read.ended, while_it_read.picked, while_it_read.again_s) == (1, 1, 0.0)
    assert bench.row.position == 2 * PAGE_ITEMS


def test_a_class_that_fails_while_jobs_run_is_tried_again_and_told(bench: Bench) -> None:
    """A bad version is deployed, and mended."""
    bench.cycle()
    bench.hosts.drop(1)
    del bench.hosts.classes[PLAN]
    for _ in range(5):
        answer = bench.cycle()
        assert (answer.over, answer.again_s) == (False, 60.0)
    assert "there is no such class" in (bench.row.error or "")
    assert "tried again in 60 s" in (bench.row.waiting_for or "")
    bench.hosts.classes[PLAN] = Shops
    bench.end(1)
    assert bench.cycle().picked == 1
    assert bench.row.error is None


def test_without_running_jobs_it_is_over_and_their_ends_wait_for_a_resume(bench: Bench) -> None:
    bench.cycle()
    bench.end(1)
    bench.end(2)
    bench.hosts.drop(1)
    del bench.hosts.classes[PLAN]
    answer = bench.cycle()
    assert answer.over
    assert "there is no such class" in (answer.error or "")
    fence = ManagerFence(1, 1, OWNER.first_run_id)
    bench.managers.end_manager(fence, RunStatus.FAILED, "failed", answer.error)
    bench.hosts.classes[PLAN] = Shops
    bench.managers.claim_manager(1, Owner(OWNER.workflow_id, "chain-m2"))
    order = CycleOrder(1, 2, "chain-m2")
    resumed = ActivityEnvironment().run(bench.activities.run_manager_cycle, order)
    assert (resumed.ended, resumed.picked) == (2, 2)


def test_a_class_that_another_worker_has_is_tried_there_until_no_worker_has_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fleet in the middle of a rollout; the clock of the worker that has it is ten minutes
    late.
    """
    bench.world.clock.forward(-600)
    bench.world.store.user_code.register_user_code(
        "another", [UserCodeRow(PLAN, "manager", NAME, "", "f")]
    )
    bench.world.clock.forward(600)
    broken, good = bench.activities, bench.other_worker()
    broken.hosts = FakeHosts({})
    for again_s in (1, 5, 60, 60):
        answer = bench.cycle(broken)
        assert (answer.over, answer.queue, answer.again_s) == (False, None, again_s)
    assert "there is no such class" in (bench.row.error or "")
    assert "is tried on others in 60 s" in (bench.row.waiting_for or "")
    assert bench.cycle(good).picked == 2
    assert bench.row.error is None
    for run_id in sorted(bench.fences):
        bench.end(run_id)
    with pytest.raises(UserCodeFailed):
        bench.cycle(replace(broken, reports={}), closing=True)
    monkeypatch.setattr(cycle, "HEARD_S", 0.0)
    assert "on_close was not called" in str(bench.cycle(broken, closing=True).unclosed)
    answer = bench.cycle(broken)
    assert answer.over
    assert "no worker has this class: bring it back, and start this flow again" in (
        answer.error or ""
    )


@pytest.mark.parametrize(
    ("how", "pages_then"),
    [
        ("replay", ["0", "1", "first", "3", "4", "last"]),
        ("continue", ["0", "1", "2", "3", "4", "last"]),
    ],
)
def test_changed_code(bench: Bench, how: str, pages_then: list[str]) -> None:
    """The source was read to its end; the new one has an item before all others and one behind
    them, and gives one no longer. At ``replay`` nothing runs that the new code does not give; at
    ``continue`` only what is behind the position is read, also by the processes that follow."""

    class New(Shops):
        on_code_change = how

        def set_parameters_gen(self) -> Iterator[dict[str, Any]]:
            yield {"page": "first"}
            yield from ({"page": page} for page in (0, 1, 1 if how == "replay" else 2, 3, 4))
            yield {"page": "last"}

    bench.cycle()
    bench.hosts.drop(1)
    bench.hosts.fingerprints[PLAN] = "another one"
    bench.hosts.classes[PLAN] = New
    bench.end(1)
    assert bench.cycle().picked == 1
    assert bench.row.fingerprint == "another one"
    bench.cycle(bench.other_worker())
    pages = [job.job.spider_args["page"] for job in bench.managers.list_jobs(1)]
    assert pages == pages_then
    assert (bench.row.position, bench.row.exhausted) == (7, True)


def test_a_class_that_waits_for_files_is_tried_again_however_often(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Waits(WorkFlowManager):
        name, loop_mode = NAME, 60

        def on_start(self) -> None:
            self.schedule_spider("shop")

        def workflow_loop(self) -> bool:
            for job in self.get_finished_owned_jobs():
                list(self.items(job))
            return True

    monkeypatch.setattr(run_files, "WAIT_S", 0.0)
    bench.hosts.classes[PLAN] = Waits
    bench.cycle()
    bench.end(1)
    for _ in range(4):
        answer = bench.cycle()
        assert (answer.over, answer.again_s) == (False, 60.0)
        assert (answer.error or "").endswith("files of its jobs are not there yet")
    bench.world.clock.forward(25 * 3600)  # nobody delivers any more
    assert [bench.cycle().over for _ in range(3)] == [False, False, True]
    assert "cannot be read here" in (bench.row.error or "")


def test_changed_code_that_must_not_go_on(bench: Bench) -> None:
    bench.cycle()
    bench.end(1)
    bench.cycle()
    stats = bench.row.stats
    bench.hosts.drop(1)
    bench.hosts.fingerprints[PLAN] = "another one"
    bench.hosts.classes[PLAN] = type("M", (Shops,), {"on_code_change": "fail"})
    answer = bench.cycle()
    assert "on_code_change is fail" in (answer.error or "")
    for run_id in sorted(bench.fences):
        bench.end(run_id)
    answer = bench.cycle()
    assert answer.over
    assert (bench.row.stats, stats != {}) == (stats, True), "what it did stays told"
    bench.managers.end_manager(
        ManagerFence(1, 1, OWNER.first_run_id), RunStatus.FAILED, "failed", answer.error
    )
    assert bench.jobs(JobState.STARTED) == []
    assert len(bench.jobs(JobState.ENDED)) == bench.row.counts.by_state[JobState.ENDED] == 3


def test_a_crawl_manager_whose_last_answer_was_lost_does_not_crawl_again(bench: Bench) -> None:
    bench.hosts.classes[PLAN] = Once
    assert bench.cycle().picked == 1
    bench.end(1)
    assert bench.cycle().over
    assert bench.cycle(bench.other_worker()).over
    assert len(bench.jobs()) == 1


def test_on_close_alone_after_a_stop(bench: Bench) -> None:
    closed: list[str | None] = []

    class Closes(Shops):
        def on_close(self) -> None:
            closed.append(self.close_reason)
            self.state["closed"] = True
            self.schedule_spider_with_jobargs({"spider_args": {"page": "report"}})

    bench.hosts.classes[PLAN] = Closes
    bench.cycle()
    assert bench.cycle(closing=True).over
    assert closed == ["cancelled"]
    assert (bench.row.state, len(bench.jobs())) == ({"closed": True}, 5), (
        "after a stop nothing is scheduled"
    )


# --- classes that do what is odd ------------------------------------------------------------------


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


def test_jobs_of_other_flows_that_count_as_its_own_leave_no_hole_in_its_source(
    bench: Bench,
) -> None:
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
    assert (answer.over, answer.close_reason, answer.unclosed, answer.picked) == (
        True,
        "my own",
        None,
        1,
    )
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
