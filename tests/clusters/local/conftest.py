from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.clusters.local import cluster
from tests.clusters.local.local_fixture import Fixture


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """People are warned when a starved machine takes long over a SIGKILL, but these tests do not
    check this.
    """
    monkeypatch.setattr(cluster, "KILL_SECONDS", 60.0)


@pytest.fixture
def make_fixture(tmp_path: Path) -> Iterator[Callable[..., Fixture]]:
    made: list[Fixture] = []

    def make(slots: int = 2, **options: Any) -> Fixture:
        made.append(Fixture(tmp_path, slots, **options))
        return made[-1]

    yield make
    for fixture in made:
        fixture.close()


@pytest.fixture
def fixture(make_fixture: Callable[..., Fixture]) -> Fixture:
    return make_fixture()
