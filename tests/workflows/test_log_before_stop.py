"""On a cluster where logs disappear with their tasks, the log is read before the stop, and the stop
waits for nobody.
"""

from __future__ import annotations

from typing import Any

import pytest

from crawler_lifecycle.domain.errors import ClusterUnavailable
from tests.support.fakes.cluster import Behaviour
from tests.support.testbed import WorkflowHarness

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def _stopped(testbed: WorkflowHarness) -> Any:
    testbed.cluster.behaviour = Behaviour(executes=None, log="what it printed\n")
    handle = await testbed.start({"crawler": "books"})
    await testbed.snapshot_where(handle, lambda s: s.stage == "reconciliation" and s.polls >= 1)
    return handle


async def _log(testbed: WorkflowHarness) -> str | None:
    [task] = testbed.store.tasks.list_tasks(1)
    text: str | None = testbed.store.tasks.log_tail(task.task_id)
    return text


async def test_the_log_outlives_its_task(
    testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    testbed.cluster.log_fades = True
    handle = await _stopped(testbed)
    stop = testbed.cluster.stop

    def stopping(*args: Any) -> None:
        stop(*args)
        monkeypatch.setattr(testbed.cluster, "details", lambda *_: [])  # from now on there is none

    monkeypatch.setattr(testbed.cluster, "stop", stopping)
    await handle.signal("stop", {"request_id": "s1"})
    result = await testbed.ended(handle)
    assert result.tasks == {"CANCELLED": 1}
    assert await _log(testbed) == "what it printed\n"


@pytest.mark.troubles
async def test_a_log_that_cannot_be_read_keeps_no_task_from_its_stop(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.log_fades = True
    handle = await _stopped(testbed)
    testbed.cluster.fail_with(ClusterUnavailable("its node does not answer"), "details")
    await handle.signal("stop", {"request_id": "s1"})
    await testbed.until(lambda: testbed.cluster.signals(1) == 1)
    testbed.cluster.fail_with(None, "details")
    assert (await testbed.ended(handle)).tasks == {"CANCELLED": 1}
