"""The workflow on MariaDB: some tests always, and all others too when ``LIFECYCLE_TEST_DATABASE`` is ``mariadb``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.testing import WorkflowEnvironment

from tests.support.lab import Lab, laboratory
from tests.support.mariadb import MariaDb
from tests.workflows import test_faults, test_good_path, test_resume, test_stop

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: What a database could do differently: waves and pages of tasks, corrections, stops from two sides, takeovers.
CHOSEN: list[Callable[[Lab], Awaitable[None]]] = [
    test_good_path.test_a_single_process_run_ends_completed,
    test_good_path.test_a_multi_process_run_goes_in_waves,
    test_good_path.test_more_tasks_than_one_page_are_all_deployed,
    test_good_path.test_debugging_information_is_on_record,
    test_faults.test_a_process_killed_behind_our_back_is_corrected_on_record,
    test_faults.test_what_vanished_is_lost_and_never_a_success,
    test_stop.test_every_task_of_a_multi_process_run_is_stopped_and_the_queued_ones_cancelled,
    test_stop.test_many_stops_are_one_stop_with_one_row_each,
    test_resume.test_a_terminated_run_goes_on_without_repeating_what_was_done,
    test_resume.test_a_failed_run_gets_a_new_task_and_its_old_end_stays_on_record,
]


@pytest_asyncio.fixture(loop_scope="session")
async def mariadb_lab(skipping: WorkflowEnvironment, mariadb: MariaDb, tmp_path: Path) -> AsyncIterator[Lab]:
    """The lab on a database of MariaDB."""
    with mariadb.database() as url:
        async with laboratory(skipping.client, tmp_path, database=url) as lab:
            yield lab


@pytest.mark.parametrize("chosen", CHOSEN, ids=lambda test: test.__name__.removeprefix("test_"))
async def test_the_same(mariadb_lab: Lab, chosen: Callable[[Lab], Awaitable[None]]) -> None:
    await chosen(mariadb_lab)
