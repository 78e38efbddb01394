"""Helpers for tests of managers: one manager of the test's own, its jobs, and their runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from crawler_lifecycle.domain.names import manager_workflow_id
from crawler_lifecycle.features.managers.domain.manager import (
    AddedJob,
    Decision,
    HookReport,
    Job,
    JobState,
    Page,
    PickedJob,
    SourceItem,
)
from crawler_lifecycle.features.managers.ports import (
    JobRow,
    ManagerCommit,
    ManagerFence,
    ManagerRow,
    NewManager,
)
from crawler_lifecycle.ports.runs import Fence, Owner
from tests.contracts.store.harness import Harness, request

NAME, FLOW = "shops", "flow-1"
MINE = Owner(manager_workflow_id(NAME, FLOW), "chain-m1")
NEXT = Owner(manager_workflow_id(NAME, FLOW), "chain-m2")
NEW = NewManager(
    NAME, FLOW, "plans:Shops", {"argv": ["--max-running-jobs", "2"]}, requested_by="ann"
)


def job(n: int, spider: str = "services", **fields: object) -> Job:
    return Job(spider, {"n": str(n)}, **fields)  # type: ignore[arg-type]


def page(numbers: Sequence[int], after: int = 0, **fields: object) -> Page:
    """Yield jobs with these numbers, from the position behind ``after``."""
    items = [SourceItem(after + place, job(n)) for place, n in enumerate(numbers, 1)]
    return Page(items, after + len(items), **fields)  # type: ignore[arg-type]


#: Impossible decisions for a manager with one waiting job.
NONSENSE = [
    Decision(picked=[PickedJob(10**9, 1, job(1))]),
    Decision(picked=[PickedJob(-5, 1, job(1))]),
    Decision(added=[AddedJob(1, job(7))]),
    Decision(added=[AddedJob(-1, job(7)), AddedJob(-1, job(8))]),
    Decision(added=[AddedJob(-1, job(7), seq=99, retry=1)]),
    Decision(added=[AddedJob(-1, job(7), seq=2)]),
    Decision(picked=[PickedJob(1, 2, job(1))]),
    Decision(added=[AddedJob(-1, job(7), not_before=1e30)]),
    Decision(hooked=[HookReport(10**9, 1, False)]),
    Decision(delayed=[10**9]),
]


@dataclass
class Managed:
    """A manager that is driven through the port, as the activities do it."""

    harness: Harness
    fence: ManagerFence

    @classmethod
    def begun(cls, harness: Harness, new: NewManager = NEW, owner: Owner = MINE) -> Managed:
        """Give the manager a process."""
        row, _ = harness.store.managers.reserve_manager(new)
        return cls.claimed(harness, row.manager_id, owner)

    @classmethod
    def claimed(cls, harness: Harness, manager_id: int, owner: Owner = MINE) -> Managed:
        managers = harness.store.managers
        row = managers.claim_manager(manager_id, owner)
        fence = ManagerFence(row.manager_id, row.attempt, owner.first_run_id)
        generation = managers.new_generation(fence, "f1", 0).generation
        return cls(harness, replace(fence, generation=generation))

    @property
    def id(self) -> int:
        return self.fence.manager_id

    @property
    def row(self) -> ManagerRow:
        row = self.harness.store.managers.get_manager(self.id)
        assert row is not None
        return row

    def jobs(self, *states: JobState) -> list[JobRow]:
        return self.harness.store.managers.list_jobs(self.id, states=states)

    def commit(self, **fields: object) -> ManagerCommit:
        return self.harness.store.managers.commit_decision(self.fence, Decision(**fields))  # type: ignore[arg-type]

    def pick(self, most: int, state: JobState = JobState.BUFFERED) -> ManagerCommit:
        """Let the oldest jobs in this state take slots."""
        managers = self.harness.store.managers
        number = count(managers.facts(self.fence, 0).next_seq)
        waiting = managers.waiting_jobs(self.id, state, limit=most)
        picks = [
            PickedJob(one.item_id, next(number) if one.seq is None else one.seq, one.job)
            for one in waiting
        ]
        return self.commit(picked=picks)

    def executing(self, numbers: Sequence[int], most: int, **fields: object) -> list[Fence]:
        """Yield these jobs; let some of them take slots, and start their runs."""
        self.harness.store.managers.add_page(self.fence, page(numbers, **fields))
        self.pick(most)
        return self.begin()

    def begin(self) -> list[Fence]:
        """Start the run of every job that was picked."""
        fences = []
        for live in self.harness.store.managers.starting_jobs(self.fence):
            tags = {"parent": MINE.workflow_id, "flow_id": FLOW}
            asked = request(crawler=live.job.spider, args=dict(live.job.spider_args), **tags)
            row, _ = self.harness.store.initiation.reserve_run(asked, live.key)
            self.harness.store.managers.job_started(self.fence, live.item_id, row.run_id)
            owner = Owner(f"crawl/{row.request_id}", f"chain-{row.run_id}")
            again = replace(asked, run_id=row.run_id)
            handle = self.harness.store.initiation.claim_run(again, owner, lambda _: False)
            fence = Fence(row.run_id, handle.attempt, owner.first_run_id, row.run_uid)
            self.harness.deploy(fence)
            self.harness.execute(fence)
            fences.append(fence)
        return fences

    def handle(self, ends: int = 100) -> list[int]:
        """Call the hooks for ended runs. Return these runs."""
        facts = self.harness.store.managers.facts(self.fence, ends)
        self.commit(
            hooked=[HookReport(one.live.item_id, one.attempt, one.bad) for one in facts.ended]
        )
        return [int(one.live.key) for one in facts.ended if one.live.key.isdecimal()]

    def add(self, *jobs: Job, **fields: object) -> ManagerCommit:
        """Call ``add_job`` for each of them."""
        added = [AddedJob(-n, one, **fields) for n, one in enumerate(jobs, 1)]  # type: ignore[arg-type]
        return self.commit(added=added)

    def counted(self) -> dict[str, int]:
        """Return the jobs by state, counted one by one."""
        found: dict[str, int] = {}
        for one in self.jobs():
            found[str(one.state)] = found.get(str(one.state), 0) + 1
        return found

    def check_counters(self) -> None:
        """Check that the counters in the row agree with the jobs."""
        told = {state: n for state, n in self.row.counts.by_state.items() if n}
        assert told == self.counted()
