from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.clusters.local import cluster
from tests.clusters.local.local_bench import Bench


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """That a starved machine takes long over a SIGKILL is for people to be told, and nothing that
    is claimed here.
    """
    monkeypatch.setattr(cluster, "KILL_SECONDS", 60.0)


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(slots: int = 2, **options: Any) -> Bench:
        made.append(Bench(tmp_path, slots, **options))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()
