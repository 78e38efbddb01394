from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.clock import utc_now
from tests.support.auditing import AT_ONCE
from tests.support.lab import Lab, laboratory


@pytest_asyncio.fixture(loop_scope="session")
async def idle_lab(unhurried: WorkflowEnvironment, tmp_path: Path) -> AsyncIterator[Lab]:
    """Real activities and store over fakes, in real time, with audits that repair at once; no
    workers yet.
    """
    async with laboratory(unhurried.client, tmp_path, workers=False, clock=utc_now) as lab:
        lab.parts.audit = AT_ONCE
        yield lab


@pytest_asyncio.fixture(loop_scope="session")
async def lab(idle_lab: Lab) -> AsyncIterator[Lab]:
    """The same with its workers."""
    async with idle_lab.working():
        yield idle_lab
