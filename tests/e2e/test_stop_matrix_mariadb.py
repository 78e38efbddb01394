"""Cells of the stop matrix (tests/support/stopping.md) on a stack of real processes over
MariaDB.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.stop_drill import Matrix, cells_of
from tests.e2e.stopping import StopHarness
from tests.support.mariadb import running_mariadb
from tests.support.stop_table import Cell

pytestmark = [pytest.mark.slow, pytest.mark.servers]


@pytest.fixture(scope="module")
def matrix(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Matrix]:
    """The matrix with a server of its own, which dies and comes back: committed data must survive
    that.
    """
    with (
        running_mariadb("--innodb-flush-log-at-trx-commit=2") as server,
        server.database() as url,
        StopHarness.up(tmp_path_factory.mktemp("stops") / "state", url) as harness,
    ):
        harness.server = server
        yield Matrix.of(request, harness)


@pytest.mark.parametrize("cell", cells_of("mariadb"))
def test_a_stop_ends_as_the_table_says(matrix: Matrix, cell: Cell) -> None:
    matrix.drill(cell).prove()
