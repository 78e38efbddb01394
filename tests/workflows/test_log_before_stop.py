"""On a cluster where logs go with their tasks, the log is read before the stop, and the stop waits
for nobody.
"""

from __future__ import annotations

from typing import Any

import pytest

from crawler_lifecycle.domain.errors import ClusterUnavailable
from tests.support.fakes.cluster import Behaviour
from tests.support.lab import Lab

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def _stopped(lab: Lab) -> Any:
    lab.cluster.behaviour = Behaviour(executes=None, log="what it printed\n")
    handle = await lab.start({"crawler": "books"})
    await lab.snapshot_where(handle, lambda s: s.stage == "reconciliation" and s.polls >= 1)
    return handle


async def _log(lab: Lab) -> str | None:
    [task] = lab.store.tasks.list_tasks(1)
    text: str | None = lab.store.tasks.log_tail(task.task_id)
    return text


async def test_the_log_outlives_its_task(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.cluster.log_fades = True
    handle = await _stopped(lab)
    stop = lab.cluster.stop

    def stopping(*args: Any) -> None:
        stop(*args)
        monkeypatch.setattr(lab.cluster, "details", lambda *_: [])  # from now on there is none

    monkeypatch.setattr(lab.cluster, "stop", stopping)
    await handle.signal("stop", {"request_id": "s1"})
    result = await lab.ended(handle)
    assert result.tasks == {"CANCELLED": 1}
    assert await _log(lab) == "what it printed\n"


@pytest.mark.troubles
async def test_a_log_that_cannot_be_read_keeps_no_task_from_its_stop(lab: Lab) -> None:
    lab.cluster.log_fades = True
    handle = await _stopped(lab)
    lab.cluster.fail_with(ClusterUnavailable("its node does not answer"), "details")
    await handle.signal("stop", {"request_id": "s1"})
    await lab.until(lambda: lab.cluster.signals(1) == 1)
    lab.cluster.fail_with(None, "details")
    assert (await lab.ended(handle)).tasks == {"CANCELLED": 1}
