from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.clock import utc_now
from tests.support.lab import Lab, laboratory
from tests.support.temporal import in_real_time, temporal_server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def skipping() -> AsyncIterator[WorkflowEnvironment]:
    """A dev server on which each workflow has a virtual clock."""
    async with temporal_server(skipping=True) as env:
        yield env


@pytest_asyncio.fixture(loop_scope="session")
async def lab(skipping: WorkflowEnvironment, tmp_path: Path) -> AsyncIterator[Lab]:
    """Real activities and store over fakes, in virtual time; replays every history at the end."""
    async with laboratory(skipping.client, tmp_path) as lab:
        yield lab


@pytest_asyncio.fixture(loop_scope="session")
async def lab_without_workers(skipping: WorkflowEnvironment, tmp_path: Path) -> AsyncIterator[Lab]:
    """The same, with nobody listening until the test starts workers itself."""
    async with laboratory(skipping.client, tmp_path, workers=False) as lab:
        yield lab


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def unhurried(skipping: WorkflowEnvironment) -> WorkflowEnvironment:
    """A namespace of the same server in which time passes as it does."""
    return await in_real_time(skipping)


@pytest_asyncio.fixture(loop_scope="session")
async def real_lab(unhurried: WorkflowEnvironment, tmp_path: Path) -> AsyncIterator[Lab]:
    """Real activities and store over fakes, in real time."""
    async with laboratory(unhurried.client, tmp_path, clock=utc_now) as lab:
        yield lab


@pytest_asyncio.fixture(loop_scope="session")
async def real_lab_without_workers(
    unhurried: WorkflowEnvironment, tmp_path: Path
) -> AsyncIterator[Lab]:
    """The same, with nobody listening until the test starts workers itself."""
    async with laboratory(unhurried.client, tmp_path, workers=False, clock=utc_now) as lab:
        yield lab
