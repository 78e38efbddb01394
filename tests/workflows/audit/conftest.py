from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.clock import utc_now
from tests.support.auditing import AT_ONCE
from tests.support.testbed import WorkflowHarness, open_testbed


@pytest_asyncio.fixture(loop_scope="session")
async def idle_testbed(
    unhurried: WorkflowEnvironment, tmp_path: Path
) -> AsyncIterator[WorkflowHarness]:
    """Real activities and store with fakes, in real time, with audits that repair at once, and
    without workers.
    """
    async with open_testbed(unhurried.client, tmp_path, workers=False, clock=utc_now) as testbed:
        testbed.parts.audit = AT_ONCE
        yield testbed


@pytest_asyncio.fixture(loop_scope="session")
async def testbed(idle_testbed: WorkflowHarness) -> AsyncIterator[WorkflowHarness]:
    """The same with its workers."""
    async with idle_testbed.working():
        yield idle_testbed
