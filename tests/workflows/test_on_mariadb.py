"""The workflow on MariaDB: a few tests always, all others if ``LIFECYCLE_TEST_DATABASE`` is
``mariadb``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.clock import utc_now
from tests.support.fakes.cluster import FINISHED, Behaviour
from tests.support.mariadb import MariaDb, running_mariadb
from tests.support.testbed import WorkflowHarness, open_testbed
from tests.workflows import test_faults, test_good_path, test_resume, test_stop

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: Where databases could differ: stops from two sides, takeovers of waves of tasks.
CHOSEN: list[Callable[[WorkflowHarness], Awaitable[None]]] = [
    test_stop.test_many_stops_are_one_stop_with_one_row_each,
    test_resume.test_a_terminated_run_goes_on_without_repeating_what_was_done,
]
#: The contract of the store tests their statements on MariaDB.
OTHERS: list[Callable[[WorkflowHarness], Awaitable[None]]] = [
    test_good_path.test_a_multi_process_run_goes_in_waves,
    test_good_path.test_a_single_process_run_ends_completed,
    test_good_path.test_more_tasks_than_one_page_are_all_deployed,
    test_good_path.test_debugging_information_is_on_record,
    test_faults.test_a_process_killed_behind_our_back_is_corrected_on_record,
    test_faults.test_what_vanished_is_lost_and_never_a_success,
    test_stop.test_every_task_of_a_multi_process_run_is_stopped_and_the_queued_ones_cancelled,
    test_resume.test_a_failed_run_gets_a_new_task_and_its_old_end_stays_on_record,
]


@pytest_asyncio.fixture(loop_scope="session")
async def mariadb_testbed(
    skipping: WorkflowEnvironment, mariadb: MariaDb, tmp_path: Path
) -> AsyncIterator[WorkflowHarness]:
    """The testbed on a MariaDB database."""
    with mariadb.database() as url:
        async with open_testbed(skipping.client, tmp_path, database=url) as testbed:
            yield testbed


@pytest.mark.parametrize(
    "chosen",
    [*CHOSEN, *(pytest.param(other, marks=pytest.mark.slow) for other in OTHERS)],
    ids=lambda test: test.__name__.removeprefix("test_"),
)
async def test_the_same(
    mariadb_testbed: WorkflowHarness, chosen: Callable[[WorkflowHarness], Awaitable[None]]
) -> None:
    await chosen(mariadb_testbed)


@pytest.mark.servers
@pytest.mark.slow
async def test_a_database_that_is_away_for_a_while_fails_no_run(
    unhurried: WorkflowEnvironment, tmp_path: Path
) -> None:
    """It is killed while runs are in every phase, and back after seconds: all continue and end with
    the truth.
    """
    with running_mariadb("--innodb-flush-log-at-trx-commit=2") as server, server.database() as url:
        async with open_testbed(unhurried.client, tmp_path, database=url, clock=utc_now) as testbed:
            testbed.cluster.behaviour = Behaviour(waits=0.5, executes=None)
            quick = {"crawler": "books", "poll_minutes": [0.02], "limits": {"start_check_s": 0.3}}
            handles = [await testbed.start(quick) for _ in range(4)]
            await testbed.until(
                lambda: len(testbed.store.runs.list_runs(status=["PROCESSING"])) >= 2
            )
            handles += [await testbed.start({**quick, "tasks": [{}] * 3}) for _ in range(4)]
            server.kill()
            await asyncio.sleep(4)
            server.restart()
            ends = asyncio.gather(*(testbed.ended(handle, 150) for handle in handles))
            while not ends.done():  # tasks that were still queued begin only now
                for key in testbed.cluster.alive():
                    testbed.cluster.end_now(*key, end=FINISHED)
                await asyncio.sleep(0.1)
            results = await ends
            assert {(r.status, r.outcome) for r in results} == {("COMPLETED", "finished")}
            assert sorted(r.tasks["SUCCEEDED"] for r in results) == [1, 1, 1, 1, 3, 3, 3, 3]
            assert len(testbed.store.runs.list_runs(status=["COMPLETED"])) == 8
            for result in results:
                changes = [
                    (t.task_id, t.to_status) for t in testbed.store.runs.transitions(result.run_id)
                ]
                assert len(changes) == len(set(changes)), "nothing happened twice"
