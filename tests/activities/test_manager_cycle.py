"""One cycle of a manager over the real store: reads, decisions, commits, and the handling of bad
classes.
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
from tests.contracts.store.harness import Clock, Harness
from tests.contracts.store.managing import FLOW, NAME, Managed
from tests.contracts.store.managing import MINE as OWNER
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
class Fixture:
    """One manager, its class, and the worker that loads it."""

    harness: Harness
    hosts: FakeHosts = field(default_factory=lambda: FakeHosts({PLAN: Shops}))
    fences: dict[int, Fence] = field(default_factory=dict)
    archive: FileArchive = field(default_factory=FakeArchive)

    def __post_init__(self) -> None:
        row, _ = self.managers.reserve_manager(NewManager(NAME, FLOW, PLAN))
        self.managers.claim_manager(row.manager_id, OWNER)
        self.activities = ManagerActivities(
            self.managers,
            self.harness.store.user_code,
            self.hosts,
            FakeCatalogue([CrawlerDefinition("shop", args={"page": Argument(default="0")})]),
            self.reading,
        )

    def reading(self, parent: str) -> FileReading:
        store = self.harness.store
        files = RunFiles(store.tasks, store.exports, None, ArchivedFiles(self.archive), "nowhere")
        return FileReading(store.runs, files, parent, self.harness.clock)

    @property
    def managers(self) -> Any:
        return self.harness.store.managers

    @property
    def row(self) -> ManagerRow:
        row: ManagerRow = self.managers.find_manager(NAME, FLOW)
        return row

    def cycle(self, activities: ManagerActivities | None = None, **more: Any) -> CycleAnswer:
        """Execute one cycle, and start the runs of the jobs that it picked."""
        order = CycleOrder(self.row.manager_id, self.row.attempt, OWNER.first_run_id, **more)
        answer: CycleAnswer = ActivityEnvironment().run(
            (activities or self.activities).run_manager_cycle, order
        )
        fence = ManagerFence(self.row.manager_id, self.row.attempt, OWNER.first_run_id)
        for one in Managed(self.harness, fence).begin():
            self.fences[one.run_id] = one
        return answer

    def end(self, run_id: int, failed: bool = False) -> None:
        self.harness.finish(self.fences.pop(run_id), failed=[0] if failed else [])

    def other_worker(self) -> ManagerActivities:
        """Return another worker, which has no process of the manager."""
        self.hosts = FakeHosts(self.hosts.classes)
        return replace(self.activities, hosts=self.hosts, reports={})

    def jobs(self, *states: JobState) -> list[tuple[int | None, int, str]]:
        """Return the number, retry and state of each job."""
        return [
            (job.seq, job.retry, str(job.state))
            for job in self.managers.list_jobs(self.row.manager_id, states=states)
        ]


@pytest.fixture
def fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fixture]:
    # However slow the machine is, a page is filled to its limit.
    monkeypatch.setattr(cycle, "READ_S", 600.0)
    monkeypatch.setattr(driver, "PAGE_S", 600.0)
    clock = Clock()
    store = open_store(make_tables(f"sqlite:///{tmp_path}/state.db"), pool_size=2, clock=clock)
    yield Fixture(Harness(store, clock))
    store.close()


def test_a_manager_from_its_first_cycle_to_its_end(fixture: Fixture) -> None:
    first = fixture.cycle()
    assert (first.queue, first.picked, first.live, first.over) == (fixture.hosts.queue, 2, 2, False)
    assert first.again_s == 60
    assert fixture.row.status is RunStatus.PROCESSING
    assert sorted(fixture.fences) == [1, 2]
    fixture.end(2)
    second = fixture.cycle()
    assert (second.ended, second.picked, second.live) == (1, 1, 2)
    while fixture.fences:
        fixture.end(min(fixture.fences))
        last = fixture.cycle()
    assert (last.over, last.error, last.live) == (True, None, 0)
    assert [seq for seq, _, state in fixture.jobs(JobState.ENDED)] == [1, 2, 3, 4, 5]
    assert fixture.hosts.made == 1
    assert fixture.cycle().over, "asked again after its answer was lost"


def test_its_class_is_called_within_its_project(fixture: Fixture) -> None:
    seen: list[str | None] = []

    class Asks(Shops):
        def on_start(self) -> None:
            seen.append(only())

    fixture.hosts.classes = {PLAN: Asks}
    fixture.cycle()
    assert (seen, only()) == (["default"], None)


def test_another_worker_goes_on_where_the_first_was_killed(fixture: Fixture) -> None:
    fixture.cycle()
    fixture.end(1)
    answer = fixture.cycle(fixture.other_worker())
    assert (answer.ended, answer.picked, answer.live) == (1, 1, 2)
    assert (fixture.row.generation, fixture.row.counts.duplicates) == (2, 0), (
        "read again, which counts nothing"
    )
    assert len(fixture.jobs()) == 5


def test_what_an_older_process_decides_is_refused(fixture: Fixture) -> None:
    fixture.cycle()
    old, order = fixture.activities, CycleOrder(fixture.row.manager_id, 1, OWNER.first_run_id)
    fixture.end(1)

    class Slow(Shops):
        def workflow_loop(self) -> bool:
            if not taken:  # meanwhile another worker takes the manager
                taken.append(True)
                fixture.cycle(fixture.other_worker())
            return super().workflow_loop()

    taken: list[bool] = []
    fixture.hosts.classes[PLAN] = Slow
    fixture.hosts.drop(1)
    with pytest.raises(Fenced):
        ActivityEnvironment().run(old.run_manager_cycle, order)
    assert len(fixture.jobs(JobState.STARTED)) == 2, "the cap holds"
    assert fixture.row.generation == 3
    assert fixture.cycle(old).live == 2, "the older one makes the object anew"
    assert fixture.row.generation == 4


def test_a_decision_that_is_not_on_record_costs_the_process(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database was unavailable during the commit: nothing is lost or done twice."""
    with monkeypatch.context() as patch:

        def away(*args: Any) -> Any:
            raise StoreUnavailable("no connection")

        patch.setattr(fixture.managers, "commit_decision", away)
        with pytest.raises(StoreUnavailable):
            fixture.cycle()
    assert fixture.cycle().picked == 2
    assert fixture.hosts.made == 2
    assert [seq for seq, _, _ in fixture.jobs(JobState.STARTED)] == [1, 2]


def test_a_hook_that_raises_is_called_three_times_and_the_window_goes_on(fixture: Fixture) -> None:
    called: list[str] = []

    class Bad(Shops):
        def bad_outcome_hook(self, outcome: str, *args: Any) -> None:
            called.append(outcome)
            raise RuntimeError("no connection to my service")

    fixture.hosts.classes[PLAN] = Bad
    fixture.cycle()
    fixture.end(1, failed=True)
    waits = [fixture.cycle().again_s for _ in range(3)]
    assert waits == [1.0, 5.0, 0.0]
    assert len(called) == 3
    assert "no connection to my service" in (fixture.row.error or "")
    assert "given up after 3 tries" in (fixture.row.error or "")
    answer = fixture.cycle()
    assert (answer.ended, answer.picked, answer.live, len(called)) == (1, 1, 2, 3)
    assert "given up" in (fixture.row.error or ""), "it stays to be seen"


@pytest.mark.parametrize("dies", [False, True])
def test_hooks_given_up_are_told_at_the_end_by_any_worker(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    class Bad(Shops):
        def set_parameters_gen(self) -> Iterator[dict[str, Any]]:
            yield {"page": 1}

        def finished_ok_hook(self, *args: Any) -> None:
            raise RuntimeError("no connection to my service")

    fixture.hosts.classes[PLAN] = Bad
    fixture.cycle()
    fixture.end(1)
    with monkeypatch.context() as patch:
        if dies:

            def die(host: FakeHost, facts: Facts, answer: Any) -> None:
                raise UserCodeFailed("its process ended", item_id=facts.ended[0].live.item_id)

            patch.setattr(FakeHost, "cycle", die)
        for _ in range(3):
            assert not fixture.cycle(replace(fixture.activities, reports={})).over
    assert "given up after 3 tries" in (fixture.row.error or "")
    for again in (False, True):
        answer = fixture.cycle()
        assert (answer.over, answer.error, answer.hook_errors, answer.on_hook_error) == (
            True,
            None,
            1,
            "fail",
        ), again
        assert fixture.row.over
        assert "given up after 3 tries" in (fixture.row.error or "")


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
    fixture: Fixture, bad: dict[str, Any], said: str
) -> None:
    fixture.hosts.classes[PLAN] = type("M", (Shops,), bad)
    for _ in range(4):
        answer = fixture.cycle()
        if answer.over:
            break
        assert answer.again_s, "it does not spin"
    assert answer.over
    assert said in (answer.error or "")
    assert fixture.row.error == answer.error
    assert not fixture.fences


def test_an_item_that_cannot_be_a_job_lets_run_what_runs(fixture: Fixture) -> None:
    class Bad(Shops):
        def set_parameters_gen(self) -> Iterator[Any]:
            yield {"page": 1}
            yield {"page": 2, "spider": "nobody"}
            yield {"page": 3}

    fixture.hosts.classes[PLAN] = Bad
    fixture.cycle()
    assert "position 2: spider: 'nobody' is unknown" in (fixture.row.source_error or "")
    while fixture.fences:
        fixture.end(min(fixture.fences))
    answer = fixture.cycle()
    assert answer.over
    assert "position 2" in (answer.error or "")


def test_or_it_is_skipped_counted_and_listed(fixture: Fixture) -> None:
    class Skips(Shops):
        on_item_error = "skip"

        def set_parameters_gen(self) -> Iterator[Any]:
            yield {"page": 1}
            yield {"page": 2, "spider": "nobody"}
            yield "no dict"
            yield {"page": 3}

    fixture.hosts.classes[PLAN] = Skips
    assert fixture.cycle().picked == 2
    assert fixture.row.counts.skipped == 2
    skipped = fixture.managers.list_jobs(fixture.row.manager_id, states=[JobState.SKIPPED])
    assert [job.position for job in skipped] == [2, 3]
    assert skipped[0].error.startswith("position 2: spider: 'nobody' is unknown")


def test_ends_wait_for_one_page_of_the_source_and_for_no_more(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Shops):
        def set_parameters_gen(self) -> Iterator[dict[str, Any]]:
            for page in range(PAGE_ITEMS):
                yield {"page": page}
            fixture.end(1)
            while True:  # none of it is new
                yield {"page": 0}

    fixture.hosts.classes[PLAN] = Slow
    monkeypatch.setattr(cycle, "READ_S", 0.0)
    assert fixture.cycle().picked == 2
    while_it_read = fixture.cycle()
    assert (while_it_read.ended, while_it_read.picked, while_it_read.again_s) == (1, 1, 0.0)
    assert fixture.row.position == 2 * PAGE_ITEMS


def test_a_class_that_fails_while_jobs_run_is_tried_again_and_told(fixture: Fixture) -> None:
    """A bad version is deployed, and then fixed."""
    fixture.cycle()
    fixture.hosts.drop(1)
    del fixture.hosts.classes[PLAN]
    for _ in range(5):
        answer = fixture.cycle()
        assert (answer.over, answer.again_s) == (False, 60.0)
    assert "there is no such class" in (fixture.row.error or "")
    assert "retried in 60 s" in (fixture.row.waiting_for or "")
    fixture.hosts.classes[PLAN] = Shops
    fixture.end(1)
    assert fixture.cycle().picked == 1
    assert fixture.row.error is None


def test_without_running_jobs_it_is_over_and_their_ends_wait_for_a_resume(fixture: Fixture) -> None:
    fixture.cycle()
    fixture.end(1)
    fixture.end(2)
    fixture.hosts.drop(1)
    del fixture.hosts.classes[PLAN]
    answer = fixture.cycle()
    assert answer.over
    assert "there is no such class" in (answer.error or "")
    fence = ManagerFence(1, 1, OWNER.first_run_id)
    fixture.managers.end_manager(fence, RunStatus.FAILED, "failed", answer.error)
    fixture.hosts.classes[PLAN] = Shops
    fixture.managers.claim_manager(1, Owner(OWNER.workflow_id, "chain-m2"))
    order = CycleOrder(1, 2, "chain-m2")
    resumed = ActivityEnvironment().run(fixture.activities.run_manager_cycle, order)
    assert (resumed.ended, resumed.picked) == (2, 2)


def test_a_class_that_another_worker_has_is_tried_there_until_no_worker_has_it(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a rollout, the clock of the worker that has the class is ten minutes slow."""
    fixture.harness.clock.forward(-600)
    fixture.harness.store.user_code.register_user_code(
        "another", [UserCodeRow(PLAN, "manager", NAME, "", "f")]
    )
    fixture.harness.clock.forward(600)
    broken, good = fixture.activities, fixture.other_worker()
    broken.hosts = FakeHosts({})
    for again_s in (1, 5, 60, 60):
        answer = fixture.cycle(broken)
        assert (answer.over, answer.queue, answer.again_s) == (False, None, again_s)
    assert "there is no such class" in (fixture.row.error or "")
    assert "is tried on others in 60 s" in (fixture.row.waiting_for or "")
    assert fixture.cycle(good).picked == 2
    assert fixture.row.error is None
    for run_id in sorted(fixture.fences):
        fixture.end(run_id)
    with pytest.raises(UserCodeFailed):
        fixture.cycle(replace(broken, reports={}), closing=True)
    monkeypatch.setattr(cycle, "HEARD_S", 0.0)
    assert "on_close was not called" in str(fixture.cycle(broken, closing=True).unclosed)
    answer = fixture.cycle(broken)
    assert answer.over
    assert "no worker has this class: restore it, and start this flow again" in (answer.error or "")


@pytest.mark.parametrize(
    ("how", "pages_then"),
    [
        ("replay", ["0", "1", "first", "3", "4", "last"]),
        ("continue", ["0", "1", "2", "3", "4", "last"]),
    ],
)
def test_changed_code(fixture: Fixture, how: str, pages_then: list[str]) -> None:
    """The source was read to its end. The new code adds an item at the beginning and one at the
    end, and omits one. With ``replay``, nothing runs that the new code does not yield. With
    ``continue``, only items behind the position are read, also by later processes.
    """

    class New(Shops):
        on_code_change = how

        def set_parameters_gen(self) -> Iterator[dict[str, Any]]:
            yield {"page": "first"}
            yield from ({"page": page} for page in (0, 1, 1 if how == "replay" else 2, 3, 4))
            yield {"page": "last"}

    fixture.cycle()
    fixture.hosts.drop(1)
    fixture.hosts.fingerprints[PLAN] = "another one"
    fixture.hosts.classes[PLAN] = New
    fixture.end(1)
    assert fixture.cycle().picked == 1
    assert fixture.row.fingerprint == "another one"
    fixture.cycle(fixture.other_worker())
    pages = [job.job.spider_args["page"] for job in fixture.managers.list_jobs(1)]
    assert pages == pages_then
    assert (fixture.row.position, fixture.row.exhausted) == (7, True)


def test_a_class_that_waits_for_files_is_tried_again_however_often(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
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
    fixture.hosts.classes[PLAN] = Waits
    fixture.cycle()
    fixture.end(1)
    for _ in range(4):
        answer = fixture.cycle()
        assert (answer.over, answer.again_s) == (False, 60.0)
        assert (answer.error or "").endswith("files of its jobs have not arrived yet")
    fixture.harness.clock.forward(25 * 3600)  # deliveries are no longer tried
    assert [fixture.cycle().over for _ in range(3)] == [False, False, True]
    assert "cannot be read here" in (fixture.row.error or "")


def test_changed_code_that_must_not_go_on(fixture: Fixture) -> None:
    fixture.cycle()
    fixture.end(1)
    fixture.cycle()
    stats = fixture.row.stats
    fixture.hosts.drop(1)
    fixture.hosts.fingerprints[PLAN] = "another one"
    fixture.hosts.classes[PLAN] = type("M", (Shops,), {"on_code_change": "fail"})
    answer = fixture.cycle()
    assert "on_code_change is fail" in (answer.error or "")
    for run_id in sorted(fixture.fences):
        fixture.end(run_id)
    answer = fixture.cycle()
    assert answer.over
    assert (fixture.row.stats, stats != {}) == (stats, True), "what it did stays told"
    fixture.managers.end_manager(
        ManagerFence(1, 1, OWNER.first_run_id), RunStatus.FAILED, "failed", answer.error
    )
    assert fixture.jobs(JobState.STARTED) == []
    assert len(fixture.jobs(JobState.ENDED)) == fixture.row.counts.by_state[JobState.ENDED] == 3


def test_a_crawl_manager_whose_last_answer_was_lost_does_not_crawl_again(fixture: Fixture) -> None:
    fixture.hosts.classes[PLAN] = Once
    assert fixture.cycle().picked == 1
    fixture.end(1)
    assert fixture.cycle().over
    assert fixture.cycle(fixture.other_worker()).over
    assert len(fixture.jobs()) == 1


def test_on_close_alone_after_a_stop(fixture: Fixture) -> None:
    closed: list[str | None] = []

    class Closes(Shops):
        def on_close(self) -> None:
            closed.append(self.close_reason)
            self.state["closed"] = True
            self.schedule_spider_with_jobargs({"spider_args": {"page": "report"}})

    fixture.hosts.classes[PLAN] = Closes
    fixture.cycle()
    assert fixture.cycle(closing=True).over
    assert closed == ["cancelled"]
    assert (fixture.row.state, len(fixture.jobs())) == ({"closed": True}, 5), (
        "after a stop nothing is scheduled"
    )


# --- classes that do what is odd ------------------------------------------------------------------


def to_end(fixture: Fixture, cls: type) -> CycleAnswer:
    """Execute cycles until the class wants no further one; every run ends as soon as it exists."""
    fixture.hosts.classes[PLAN] = cls
    for _ in range(20):
        answer = fixture.cycle()
        if answer.over:
            return answer
        for run_id in sorted(fixture.fences):
            fixture.end(run_id)
    raise AssertionError(answer)


def test_jobs_of_other_flows_that_count_as_its_own_leave_no_hole_in_its_source(
    fixture: Fixture,
) -> None:
    """S-20, through the store, which rejects a page that skips positions."""

    class Acquires(Shops):
        def on_start(self) -> None:
            super().on_start()
            self._acquired = {Job("shop", {"page": page}).identity for page in ("0", "3", "4")}

    answer = to_end(fixture, Acquires)
    assert (answer.error, len(fixture.jobs(JobState.ENDED))) == (None, 2)
    counts = fixture.row.counts
    assert (counts.yields, counts.duplicates) == (5, 3)


def test_failed_outcomes_of_the_object_itself_also_when_the_answer_was_lost(
    fixture: Fixture,
) -> None:
    class Poor(Once):
        def __init__(self) -> None:
            super().__init__()
            self.failed_outcomes.append("too few items")

        def finished_ok_hook(self, *args: Any) -> None:
            self.set_close_reason("too few items")

    answer = to_end(fixture, Poor)
    assert (answer.close_reason, answer.failed) == ("too few items", True)
    again = fixture.cycle(fixture.other_worker())
    assert (again.close_reason, again.failed) == ("too few items", True)


def test_a_manager_without_hooks_gives_the_slots_of_its_jobs_back(fixture: Fixture) -> None:
    class Two(WorkFlowManager):
        name, loop_mode, default_max_jobs = NAME, 60, 1

        def workflow_loop(self) -> bool:
            if not self.state:
                self.state["keys"] = [self.schedule_spider("shop", page=page) for page in (1, 2)]
                return True
            return any(self.is_finished(key) is None for key in self.state["keys"])

    answer = to_end(fixture, Two)
    assert (answer.over, answer.error, answer.live) == (True, None, 0)
    assert fixture.jobs() == [(1, 0, "ended"), (2, 0, "ended")]
    assert (fixture.row.counts.good, fixture.row.counts.live) == (2, 0)


def test_what_on_close_did_wrong_is_told(fixture: Fixture) -> None:
    class Closes(Shops):
        def on_close(self) -> None:
            self.state["half"] = 1
            raise OSError("no room")

    answer = to_end(fixture, Closes)
    assert answer.unclosed is not None
    assert answer.unclosed.startswith("on_close failed: ")
    assert "no room" in answer.unclosed
    assert (answer.hook_errors, fixture.cycle().hook_errors) == (1, 1), "also for who asks again"
    assert "half" not in fixture.row.state, "nothing of it counts"


def test_what_on_close_does_through_the_manager_is_on_record_once(fixture: Fixture) -> None:
    """This includes a job that it schedules, which starts like any other and runs while the manager
    ends.
    """

    class Closes(Shops):
        def on_close(self) -> None:
            self.state["closed"] = self.state.get("closed", 0) + 1
            self.stats.inc_value("closed")
            self.schedule_spider_with_jobargs({"spider_args": {"page": "report"}})
            self.set_close_reason("my own")

    answer = to_end(fixture, Closes)
    assert (answer.over, answer.close_reason, answer.unclosed, answer.picked) == (
        True,
        "my own",
        None,
        1,
    )
    again = fixture.cycle(fixture.other_worker())
    assert (again.over, again.close_reason) == (True, "my own")
    assert (fixture.row.state, fixture.row.stats["closed"], len(fixture.jobs())) == (
        {"closed": 1},
        1,
        6,
    )


def test_why_on_close_was_not_called_is_told(fixture: Fixture) -> None:
    fixture.cycle()
    fixture.hosts.classes.clear()
    stopped = fixture.cycle(fixture.other_worker(), closing=True)
    assert stopped.unclosed == f"on_close was not called: {PLAN}: there is no such class"


def test_a_source_without_end_of_which_nothing_may_start_comes_to_rest(fixture: Fixture) -> None:
    class Never(Shops):
        def set_parameters_gen(self) -> Iterator[dict[str, Any]]:
            page = 0
            while True:
                yield {"page": page}
                page += 1

        def can_schedule_job_with_params(self, params: Any) -> bool:
            return False

    fixture.hosts.classes[PLAN] = Never
    answers = [fixture.cycle() for _ in range(4)]
    assert [answer.again_s for answer in answers] == [0, 0, 60, 60]
    assert fixture.row.position == 1000
