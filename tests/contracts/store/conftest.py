"""Every test of the contract runs on SQLite and on MariaDB."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler_lifecycle.adapters.database import SqlRunStore, open_store, upgrade
from tests.contracts.store.world import Clock, World
from tests.support.mariadb import MariaDb, mariadb

__all__ = ["mariadb"]


@pytest.fixture(scope="session")
def empty_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("store") / "empty.db"
    upgrade(f"sqlite:///{file}")
    return file


@pytest.fixture(params=["sqlite", "mariadb"])
def store_url(request: pytest.FixtureRequest, empty_sqlite: Path, tmp_path: Path) -> Iterator[str]:
    """The URL of a fresh database with the schema of this build."""
    if request.param == "sqlite":
        shutil.copy(empty_sqlite, tmp_path / "state.db")
        yield f"sqlite:///{tmp_path / 'state.db'}"
        return
    server: MariaDb = request.getfixturevalue("mariadb")
    with server.database() as url:
        upgrade(url)
        yield url


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(store_url: str, clock: Clock) -> Iterator[SqlRunStore]:
    store = open_store(store_url, pool_size=25, clock=clock)
    yield store
    store.close()


@pytest.fixture
def world(store: SqlRunStore, clock: Clock) -> World:
    return World(store, clock)
