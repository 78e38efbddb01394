"""Somebody writes into the database while a run is under way: it waits, says why, and goes on when that is mended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from crawler_lifecycle.domain.errors import RowUnreadable
from tests.support.fakes.cluster import Behaviour
from tests.support.lab import Lab

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.troubles]

REQUEST = {"crawler": "books", "limits": {"start_check_s": 0.1}, "poll_minutes": [0.005]}


def write(lab: Lab, statement: str) -> None:
    with lab.store.database.writing() as conn:
        assert conn.execute(text(statement)).rowcount


def unreadable(lab: Lab) -> bool:
    try:
        lab.store.runs.get_run(1)
    except RowUnreadable:
        return True
    return False


def told(column: str) -> Callable[[Lab], Any]:
    return lambda lab: (row := lab.store.runs.get_run(1)) and "set one of QUEUED" in str(getattr(row, column))


EDITS: dict[str, tuple[str, str, Callable[[Lab], Any]]] = {
    "status of the run": (
        "UPDATE run_history SET status = 'BANANA'", "UPDATE run_history SET status = 'PROCESSING'", unreadable,
    ),
    "stopping without a stop": (
        "UPDATE run_history SET status = 'STOPPING'", "UPDATE run_history SET status = 'PROCESSING'", unreadable,
    ),
    "attempt": ("UPDATE run_history SET attempt = 7", "UPDATE run_history SET attempt = 1", lambda lab: True),
    "owner": (
        "UPDATE run_history SET owner_run_id = 'x' || owner_run_id",
        "UPDATE run_history SET owner_run_id = substr(owner_run_id, 2)",
        lambda lab: True,
    ),
    "status of a task": (
        "UPDATE task_history SET status = 'BANANA'", "UPDATE task_history SET status = 'RUNNING'", told("look_error"),
    ),
}  # fmt: skip


#: Each edit and each end of the story; the other pairs are marked slow.
ENDS = ("mended", "stopped, then mended")
STORIES = [
    pytest.param(edit, end, marks=() if (n + m) % 2 == 0 else pytest.mark.slow)
    for n, edit in enumerate(EDITS)
    for m, end in enumerate(ENDS)
]


@pytest.mark.parametrize(("edit", "end"), STORIES)
async def test_the_run_waits_and_goes_on_when_the_row_is_mended(real_lab: Lab, edit: str, end: str) -> None:
    lab = real_lab
    spoil, mend, seen = EDITS[edit]
    lab.cluster.behaviour = Behaviour(executes=None)
    handle = await lab.start(REQUEST)
    await lab.snapshot_where(handle, lambda s: s.stage == "reconciliation" and s.looks >= 1)
    write(lab, spoil)
    await lab.until(lambda: seen(lab))
    if end == "mended":
        write(lab, mend)
        looks = (await lab.snapshot_where(handle, lambda s: True)).looks
        await lab.snapshot_where(handle, lambda s: s.looks > looks + 1)
    await handle.signal("stop")
    if end != "mended":
        write(lab, mend)
    result = await handle.result()
    assert (result.status, result.outcome, result.attempt) == ("FAILED", "cancelled", 1)
    assert lab.cluster.alive() == []
    assert lab.store.runs.get_run(1).unreadable is None


async def test_force_does_not_wait_for_a_stop_that_cannot_be_recorded(real_lab: Lab) -> None:
    lab = real_lab
    lab.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=None)
    handle = await lab.start(REQUEST)
    await lab.snapshot_where(handle, lambda s: s.stage == "reconciliation" and s.looks >= 1)
    write(lab, "UPDATE run_history SET status = 'BANANA'")
    await handle.signal("stop")
    await lab.until(lambda: lab.cluster.signals(1, 0) > 0)
    assert lab.cluster.alive()
    await handle.signal("force_stop")
    await lab.until(lambda: lab.cluster.alive() == [])
    assert unreadable(lab)
    write(lab, "UPDATE run_history SET status = 'PROCESSING'")
    result = await handle.result()
    assert (result.status, result.outcome) == ("FAILED", "cancelled")
    assert [bool(one["force"]) for one in lab.store.runs.cancellations(1)] == [False, True]
