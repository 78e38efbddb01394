"""Many managers, and many writers of one: each job once, and no deadlock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from crawler_lifecycle.domain.names import manager_workflow_id
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.features.managers.domain.manager import JobState
from crawler_lifecycle.features.managers.ports import UserCodeRow
from crawler_lifecycle.ports.runs import Owner
from tests.contracts.store.harness import Harness
from tests.contracts.store.managing import NAME, NEW, Managed, job, page


def test_two_writers_at_once_make_every_job_once(harness: Harness) -> None:
    managed, managers = Managed.begun(harness), harness.store.managers

    def add(part: int) -> int:
        if part % 2:
            return managers.add_jobs(
                managed.id, [job(n) for n in range(part, part + 20)], f"p{part}"
            )
        managed.add(*(job(n) for n in range(part, part + 20)))
        return 0

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(12)))
    jobs = managed.jobs()
    assert sorted(int(one.job.spider_args["n"]) for one in jobs if one.job) == list(range(31))
    managed.check_counters()


def test_ten_managers_and_workers_at_once_never_wait_in_a_circle(harness: Harness) -> None:
    managers, user_code = (
        harness.store.managers,
        [UserCodeRow(f"a:M{n}", "manager", "m", "", "f") for n in range(8)],
    )

    def live(n: int) -> Managed:
        flow = f"flow-{n}"
        managed = Managed.begun(
            harness,
            replace(NEW, flow_id=flow),
            Owner(manager_workflow_id(NAME, flow), f"chain-{n}"),
        )
        for part in range(2):
            managers.add_page(managed.fence, page(range(12 * part, 12 * part + 12), 12 * part))
            managed.pick(4)
            for one in managers.starting_jobs(managed.fence):
                managers.job_started(managed.fence, one.item_id, None, "no")
            managed.handle()
            managers.add_jobs(managed.id, [job(100 + part)], f"page-{part}")
            harness.store.user_code.register_user_code(f"w{n}", user_code[n % 5 + part : n % 5 + 3])
        managers.end_manager(managed.fence, RunStatus.COMPLETED, "finished", "done")
        return managed

    with ThreadPoolExecutor(10) as pool:
        for managed in pool.map(live, range(10)):
            managed.check_counters()
            assert managed.row.counts.by_state[JobState.ENDED] == 8
