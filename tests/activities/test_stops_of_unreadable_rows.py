"""A stop needs only keys: tasks are stopped or killed, whatever somebody wrote into the rows."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.activities.harness import Harness

#: Documents that none of our rows has, and that no constraint of the database refuses.
ODD = [("run_history", "request", '{"crawler": 7}'), ("task_history", "args", '{"a": {"b": 1}}')]


@pytest.mark.parametrize("force", [False, True], ids=["stop", "kill"])
@pytest.mark.parametrize(("table", "column", "value"), ODD)
def test_no_row_keeps_a_stop_from_its_tasks(
    harness: Harness, table: str, column: str, value: object, force: bool
) -> None:
    fence = harness.started(tasks=2)
    with harness.store.database.writing() as conn:
        conn.execute(sa.text(f"UPDATE {table} SET {column} = :value"), {"value": value})
    harness.call("record_stop", harness.stop(fence, force=force))
    harness.call("k8_stop_pod" if force else "k8_stop_task", fence)
    if force:
        assert harness.cluster.alive() == []
    else:
        assert [harness.cluster.signals(1, index) for index in range(2)] == [1, 1]
