"""A manager keeps a window of runs going to the end of its source."""

from __future__ import annotations

import pytest

from tests.support.fakes.cluster import Behaviour
from tests.support.lab import Lab
from tests.support.managing import manager_lab, quick

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_window_of_three_over_ten_jobs(real_lab: Lab) -> None:
    real_lab.cluster.behaviour = Behaviour(executes=0)
    m = manager_lab(real_lab, source=[quick(n) for n in range(10)])
    async with m.plans():
        handle = await m.start(parent="nobody")
        result = await real_lab.ended(handle)
    assert (result.status, result.outcome, result.attempt) == ("COMPLETED", "finished", 1)
    row, runs = m.row(), m.runs()
    assert (row.status, row.outcome, row.counts.scheduled, row.counts.good) == ("COMPLETED", "finished", 10, 10)
    assert [run.request_id for run in runs] == [f"manager/1/{n}" for n in range(1, 11)]
    assert {run.parent for run in runs} == {"manager/stream/f1"}
    assert {run.request["args"]["n"] for run in runs} == {str(n) for n in range(10)}
    assert max(m.plan.lives) == 3
    assert sorted(m.plan.ends) == [(n, 0, 1, False) for n in range(1, 11)]
    at = sorted((moment, one) for run in runs for moment, one in ((run.created_at, 1), (run.ended_at, -1)))
    live = 0
    for _, one in at:
        live += one
        assert live <= 3
    events = sum(len(history.events) for history in await real_lab.chain(handle))
    assert events <= 10 * 20, "at most as many for a job as where jobs end one at a time"
