"""Cells of the stop matrix (docs/stopping.md) on a stack of real processes over SQLite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.stop_drill import Matrix, cells_of
from tests.e2e.stopping import StopWorld
from tests.support.stop_table import Cell


@pytest.fixture(scope="module")
def matrix(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    with StopWorld.up(tmp_path_factory.mktemp("stops") / "state") as world:
        yield Matrix.of(request, world)


@pytest.mark.parametrize("cell", cells_of("sqlite"))
def test_a_stop_ends_as_the_table_says(matrix: Matrix, cell: Cell) -> None:
    matrix.drill(cell).prove()
