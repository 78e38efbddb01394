"""A worker whose clock is an hour off: what it cannot know is when, and nothing else follows from
that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.clock import utc_now
from tests.support import lab as laboratories
from tests.support.fakes.cluster import Behaviour
from tests.support.lab import Lab, laboratory
from tests.workflows.test_wake_ups import QUICK, polled_at, too_close

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.troubles]


BEHIND, AHEAD = pytest.param(-3600, id="behind"), pytest.param(3600, id="ahead")


def slow(shift: Any) -> Any:
    return pytest.param(*shift.values, id=shift.id, marks=pytest.mark.slow)


@pytest_asyncio.fixture(loop_scope="session")
async def wrong_lab(
    request: pytest.FixtureRequest,
    unhurried: WorkflowEnvironment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Lab]:
    """Activities, and what they write down, by a clock that is wrong; that of Temporal is right."""

    def wrong() -> datetime:
        return utc_now() + timedelta(seconds=request.param)

    monkeypatch.setattr(laboratories, "workflow_clock", wrong)
    async with laboratory(unhurried.client, tmp_path, clock=wrong) as lab:
        if request.param > 0:  # or the cluster would wait for an hour to begin
            lab.cluster.clock = utc_now
        yield lab


#: By a clock that is ahead it would be forced at once.
@pytest.mark.parametrize("wrong_lab", [slow(BEHIND), AHEAD], indirect=True)
async def test_it_is_polled_at_as_often_as_ever_and_force_comes_in_time(wrong_lab: Lab) -> None:
    lab = wrong_lab
    lab.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=2)
    handle = await lab.start(QUICK | {"limits": {"start_check_s": 0.2, "force_stop_after_s": 60}})
    await lab.snapshot_where(handle, lambda s: s.stage == "reconciliation" and s.polls >= 3)
    polls = await polled_at(lab, handle)
    assert not too_close(polls[2:]), "the start is looked for more often"
    lab.cluster.clock = utc_now  # what ends now has the time of its node
    await handle.signal("stop")
    assert (await handle.result()).outcome == "cancelled"
    assert lab.cluster.calls["kill"] == 0, "it was forced at once"


#: By a clock that is behind it would not be forced for an hour.
@pytest.mark.parametrize("wrong_lab", [BEHIND, slow(AHEAD)], indirect=True)
async def test_force_comes_when_it_is_time_for_it(wrong_lab: Lab) -> None:
    lab = wrong_lab
    lab.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=None)
    handle = await lab.start(QUICK | {"limits": {"start_check_s": 0.2, "force_stop_after_s": 1}})
    await lab.snapshot_where(handle, lambda s: s.stage == "reconciliation")
    lab.cluster.clock = utc_now  # what ends now has the time of its node
    await handle.signal("stop")
    assert (await handle.result()).outcome == "cancelled"
    assert (lab.cluster.signals(1), lab.cluster.calls["kill"]) == (1, 1)
    assert lab.store.tasks.list_tasks(1)[0].outcome == "cancel_timeout"
