"""Cells of the stop matrix (stopping.md) on a stack of real processes over SQLite, and a stop that outlives it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.stop_drill import Matrix, cells_of
from tests.e2e.stopping import QUICK, StopWorld
from tests.e2e.world import until
from tests.support.stop_table import Cell


@pytest.fixture(scope="module")
def matrix(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    with StopWorld.up(tmp_path_factory.mktemp("stops") / "state") as world:
        yield Matrix.of(request, world)


@pytest.mark.parametrize("cell", cells_of("sqlite"))
def test_a_stop_ends_as_the_table_says(matrix: Matrix, cell: Cell) -> None:
    matrix.drill(cell).prove()


def test_an_acknowledged_stop_survives_everybody(matrix: Matrix) -> None:
    """No worker is up, and gateway and Temporal are killed as soon as the stop is acknowledged."""
    world = matrix.world
    run_id = int(world.gateway.start({"crawler": "patient", "args": {}, **QUICK}, "survivor")["run_id"])
    until(lambda: world.tasks(run_id).get("RUNNING"), "a task that runs")
    (folder,) = world.task_folders(run_id)
    until(lambda: world.begun(folder), "a crawler that listens")
    world.kill("worker")
    told = world.gateway.stop(run_id, requested_by="ada", request_id="promised")
    world.kill("gateway", "temporal")
    assert told["status"] == "STOPPING"
    rows = world.query("SELECT request_id, acted_at FROM cancellation_log WHERE run_id = ?", run_id)
    assert rows == [("promised", None)]
    world.bring_back("temporal", "gateway", "worker")
    until(lambda: world.closed([run_id]), "the end of the stop")
    assert (world.status(run_id), world.tasks(run_id)) == ("FAILED", {"CANCELLED": 1})
    assert len(world.signals(folder)) == 1
    sql = "SELECT request_id, acted_at IS NOT NULL FROM cancellation_log WHERE run_id = ?"
    assert world.query(sql, run_id) == [("promised", 1)]
    assert world.query("SELECT COUNT(*) FROM outbox_event WHERE type = 'run.stopped' AND run_id = ?", run_id) == [(1,)]
