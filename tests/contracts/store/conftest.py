"""Every test of the contract runs on SQLite and on MariaDB."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from crawler_lifecycle.adapters.database import SqlRunStore, open_store, upgrade
from crawler_lifecycle.adapters.database.schema.tables import metadata
from tests.contracts.store.world import Clock, World
from tests.support.databases import wait_patiently
from tests.support.mariadb import MariaDb, mariadb

__all__ = ["mariadb"]


@pytest.fixture(autouse=True, scope="module")
def patience() -> Iterator[None]:
    """Dozens of writers at once: all come to their turn."""
    with pytest.MonkeyPatch.context() as patch:
        wait_patiently(patch)
        yield


@pytest.fixture(scope="session")
def empty_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("store") / "empty.db"
    upgrade(f"sqlite:///{file}")
    return file


@pytest.fixture(scope="session")
def migrated_mariadb(mariadb: MariaDb) -> Iterator[str]:
    with mariadb.database() as url:
        upgrade(url)
        yield url


@pytest.fixture
def emptied_mariadb(mariadb: MariaDb, migrated_mariadb: str) -> str:
    """One database for all tests, emptied before each: making the tables again would take longer than most tests."""
    connection = mariadb.connect(migrated_mariadb.rpartition("/")[2])
    with closing(connection), connection.cursor() as cursor:
        for table in reversed(metadata.sorted_tables):
            if table.name == "schema_compatibility":  # says which builds the schema serves, like its version
                continue
            cursor.execute(f"DELETE FROM {table.name}")
        cursor.execute("INSERT INTO outbox_counter (id, seq) VALUES (1, 0)")
    return migrated_mariadb


@pytest.fixture(params=["sqlite", "mariadb"])
def store_url(request: pytest.FixtureRequest, empty_sqlite: Path, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database with the schema of this build."""
    if request.param == "sqlite":
        shutil.copy(empty_sqlite, tmp_path / "state.db")
        yield f"sqlite:///{tmp_path / 'state.db'}"
        return
    yield request.getfixturevalue("emptied_mariadb")


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
