"""A stop needs keys and nothing else: whatever another hand wrote into the rows, tasks are asked to end, or killed."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from crawler_lifecycle.domain.errors import RowUnreadable
from crawler_lifecycle.store.runs.tables import run_history, task_history
from tests.activities.world import World

#: Values that no row of ours has, in columns that every look reads.
RUN = {
    "status": "BANANA",
    "stage": "lunch",
    "attempt": 0,
    "request": "[1]",
    "next_look_at": "9999-12-31 23:59:59",
    "verified_at": "yesterday",
    "pages": -1,
}
TASK = {
    "status": "BANANA",
    "status_since": "9999-12-31 23:59:59",
    "last_progress_at": "9999-01-01 00:00:00",
    "started_at": "long ago",
    "pages": 2**62,
    "args": "{",
    "node": b"\x00\xff",
    "missed_at": "0001-01-01 00:00:00",
}


@pytest.mark.parametrize("force", [False, True], ids=["stop", "kill"])
@pytest.mark.parametrize(
    ("table", "column", "value"),
    [*(("run_history", *one) for one in RUN.items()), *(("task_history", *one) for one in TASK.items())],
    ids=lambda value: str(value)[:20],
)
def test_no_row_keeps_a_stop_from_its_tasks(world: World, table: str, column: str, value: object, force: bool) -> None:
    fence = world.started(tasks=2)
    known = {"run_history": run_history, "task_history": task_history}[table]
    with world.store.database.writing() as conn:
        conn.execute(sa.text(f"UPDATE {known.name} SET {column} = :value"), {"value": value})
    try:
        world.call("record_stop", world.stop(fence, force=force))
    except RowUnreadable as error:
        assert column in str(error)  # noqa: PT017
    world.call("k8_stop_pod" if force else "k8_stop_task", fence)
    if force:
        assert world.cluster.alive() == []
    else:
        assert [world.cluster.signals(1, index) for index in range(2)] == [1, 1]
