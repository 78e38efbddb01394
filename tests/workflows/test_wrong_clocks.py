"""A worker whose clock is an hour wrong does not know the time, but everything else is right."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.clock import utc_now
from tests.support import testbed as testbeds
from tests.support.fakes.cluster import Behaviour
from tests.support.testbed import WorkflowHarness, open_testbed
from tests.workflows.test_wake_ups import QUICK, polled_at, too_close

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.troubles]


BEHIND, AHEAD = pytest.param(-3600, id="behind"), pytest.param(3600, id="ahead")


def slow(shift: Any) -> Any:
    return pytest.param(*shift.values, id=shift.id, marks=pytest.mark.slow)


@pytest_asyncio.fixture(loop_scope="session")
async def wrong_testbed(
    request: pytest.FixtureRequest,
    unhurried: WorkflowEnvironment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[WorkflowHarness]:
    """Activities record with a wrong clock; Temporal's clock is right."""

    def wrong() -> datetime:
        return utc_now() + timedelta(seconds=request.param)

    monkeypatch.setattr(testbeds, "workflow_clock", wrong)
    async with open_testbed(unhurried.client, tmp_path, clock=wrong) as testbed:
        if request.param > 0:  # otherwise the cluster would wait an hour to begin
            testbed.cluster.clock = utc_now
        yield testbed


#: By a fast clock, it would be forced at once.
@pytest.mark.parametrize("wrong_testbed", [slow(BEHIND), AHEAD], indirect=True)
async def test_it_is_polled_at_as_often_as_ever_and_force_comes_in_time(
    wrong_testbed: WorkflowHarness,
) -> None:
    testbed = wrong_testbed
    testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=2)
    handle = await testbed.start(
        QUICK | {"limits": {"start_check_s": 0.2, "force_stop_after_s": 60}}
    )
    await testbed.snapshot_where(handle, lambda s: s.stage == "reconciliation" and s.polls >= 3)
    polls = await polled_at(testbed, handle)
    assert not too_close(polls[2:]), "the start is looked for more often"
    testbed.cluster.clock = utc_now  # an end now has the time of its node
    await handle.signal("stop")
    assert (await handle.result()).outcome == "cancelled"
    assert testbed.cluster.calls["kill"] == 0, "it was forced at once"


#: By a slow clock, it would not be forced for an hour.
@pytest.mark.parametrize("wrong_testbed", [BEHIND, slow(AHEAD)], indirect=True)
async def test_force_comes_when_it_is_time_for_it(wrong_testbed: WorkflowHarness) -> None:
    testbed = wrong_testbed
    testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=None)
    handle = await testbed.start(
        QUICK | {"limits": {"start_check_s": 0.2, "force_stop_after_s": 1}}
    )
    await testbed.snapshot_where(handle, lambda s: s.stage == "reconciliation")
    testbed.cluster.clock = utc_now  # an end now has the time of its node
    await handle.signal("stop")
    assert (await handle.result()).outcome == "cancelled"
    assert (testbed.cluster.signals(1), testbed.cluster.calls["kill"]) == (1, 1)
    assert testbed.store.tasks.list_tasks(1)[0].outcome == "cancel_timeout"
