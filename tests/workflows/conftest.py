from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.clock import utc_now
from tests.support.temporal import in_real_time, temporal_server
from tests.support.testbed import WorkflowHarness, open_testbed


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def skipping() -> AsyncIterator[WorkflowEnvironment]:
    """A dev server on which each workflow has a virtual clock."""
    async with temporal_server(skipping=True) as env:
        yield env


@pytest_asyncio.fixture(loop_scope="session")
async def testbed(skipping: WorkflowEnvironment, tmp_path: Path) -> AsyncIterator[WorkflowHarness]:
    """Real activities and store with fakes, in virtual time; replays every history at the end."""
    async with open_testbed(skipping.client, tmp_path) as testbed:
        yield testbed


@pytest_asyncio.fixture(loop_scope="session")
async def testbed_without_workers(
    skipping: WorkflowEnvironment, tmp_path: Path
) -> AsyncIterator[WorkflowHarness]:
    """The same, without workers until the test starts some."""
    async with open_testbed(skipping.client, tmp_path, workers=False) as testbed:
        yield testbed


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def unhurried(skipping: WorkflowEnvironment) -> WorkflowEnvironment:
    """A namespace of the same server with real time."""
    return await in_real_time(skipping)


@pytest_asyncio.fixture(loop_scope="session")
async def real_testbed(
    unhurried: WorkflowEnvironment, tmp_path: Path
) -> AsyncIterator[WorkflowHarness]:
    """Real activities and store with fakes, in real time."""
    async with open_testbed(unhurried.client, tmp_path, clock=utc_now) as testbed:
        yield testbed


@pytest_asyncio.fixture(loop_scope="session")
async def real_testbed_without_workers(
    unhurried: WorkflowEnvironment, tmp_path: Path
) -> AsyncIterator[WorkflowHarness]:
    """The same, without workers until the test starts some."""
    async with open_testbed(unhurried.client, tmp_path, workers=False, clock=utc_now) as testbed:
        yield testbed
