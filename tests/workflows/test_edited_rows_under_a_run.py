"""Somebody edits the database during a run: it waits, says why, and continues when that is
repaired.
"""

from __future__ import annotations

import pytest
from sqlalchemy import text

from tests.support.fakes.cluster import Behaviour
from tests.support.testbed import WorkflowHarness

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.troubles]

REQUEST = {"crawler": "books", "limits": {"start_check_s": 0.1}, "poll_minutes": [0.005]}


def write(testbed: WorkflowHarness, statement: str) -> None:
    with testbed.store.database.writing() as conn:
        assert conn.execute(text(statement)).rowcount


EDITS = {
    "attempt": ("UPDATE run_history SET attempt = 7", "UPDATE run_history SET attempt = 1"),
    "owner": (
        "UPDATE run_history SET owner_run_id = 'x' || owner_run_id",
        "UPDATE run_history SET owner_run_id = substr(owner_run_id, 2)",
    ),
}  # fmt: skip


#: Each edit and each ending once; the other pairs are marked slow.
ENDS = ("mended", "stopped, then mended")
STORIES = [
    pytest.param(edit, end, marks=() if (n + m) % 2 == 0 else pytest.mark.slow)
    for n, edit in enumerate(EDITS)
    for m, end in enumerate(ENDS)
]


@pytest.mark.parametrize(("edit", "end"), STORIES)
async def test_the_run_waits_and_goes_on_when_the_row_is_mended(
    real_testbed: WorkflowHarness, edit: str, end: str
) -> None:
    testbed = real_testbed
    spoil, mend = EDITS[edit]
    testbed.cluster.behaviour = Behaviour(executes=None)
    handle = await testbed.start(REQUEST)
    await testbed.snapshot_where(handle, lambda s: s.stage == "reconciliation" and s.polls >= 1)
    write(testbed, spoil)
    if end == "mended":
        write(testbed, mend)
        polls = (await testbed.snapshot_where(handle, lambda s: True)).polls
        await testbed.snapshot_where(handle, lambda s: s.polls > polls + 1)
    await handle.signal("stop")
    if end != "mended":
        write(testbed, mend)
    result = await handle.result()
    assert (result.status, result.outcome, result.attempt) == ("FAILED", "cancelled", 1)
    assert testbed.cluster.alive() == []
