"""Every test of the contract runs on SQLite, MariaDB and MySQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from crawler_lifecycle.store.retention.pruning import Pruner, open_pruner
from crawler_lifecycle.store.store import Store, open_store
from tests.contracts.store.harness import Clock, Harness
from tests.support.databases import empty_tables, wait_patiently
from tests.support.servers import DATABASES


@pytest.fixture(autouse=True, scope="module")
def patience() -> Iterator[None]:
    """With dozens of concurrent writers, each gets its turn."""
    with pytest.MonkeyPatch.context() as patch:
        wait_patiently(patch)
        yield


@pytest.fixture(params=DATABASES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database with the schema of this build."""
    return empty_tables(request.param, tmp_path / "state.db")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(store_url: str, clock: Clock) -> Iterator[Store]:
    store = open_store(store_url, pool_size=25, clock=clock)
    yield store
    store.close()


@pytest.fixture
def harness(store: Store, clock: Clock) -> Harness:
    return Harness(store, clock)


@pytest.fixture
def pruner(store_url: str, clock: Clock) -> Iterator[Pruner]:
    with closing(open_pruner(store_url, clock=clock)) as pruner:
        yield pruner
