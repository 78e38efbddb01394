"""Every test of the contract runs on SQLite, MariaDB and MySQL."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from crawler_lifecycle.store import Pruner, Store, open_pruner, open_store
from crawler_lifecycle.store.tables import metadata
from tests.contracts.store.world import Clock, World
from tests.support.databases import make_tables, wait_patiently
from tests.support.servers import DATABASES, shared_server


@pytest.fixture(autouse=True, scope="module")
def patience() -> Iterator[None]:
    """Dozens of writers at once: all come to their turn."""
    with pytest.MonkeyPatch.context() as patch:
        wait_patiently(patch)
        yield


@functools.cache
def _migrated(kind: str) -> str:
    """The URL of one database for all tests: making its tables again would take longer than most of them."""
    server = shared_server(kind)
    server.execute("CREATE DATABASE contract")
    return make_tables(server.url_of("contract"))


def _empty(kind: str) -> str:
    """The URL of the same database without any row of a test before."""
    url = _migrated(kind)
    connection = shared_server(kind).connect("contract")
    with closing(connection), connection.cursor() as cursor:
        for table in reversed(metadata.sorted_tables):
            if table.name == "schema_compatibility":  # says which builds the schema serves, like its version
                continue
            cursor.execute(f"DELETE FROM {table.name}")
        cursor.execute("INSERT INTO outbox_counter (id, seq) VALUES (1, 0)")
        cursor.execute("INSERT INTO pool_gate (id, state) VALUES (1, '{}')")
    return url


@pytest.fixture(params=DATABASES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database with the schema of this build."""
    if request.param == "sqlite":
        return make_tables(f"sqlite:///{tmp_path}/state.db")
    return _empty(request.param)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(store_url: str, clock: Clock) -> Iterator[Store]:
    store = open_store(store_url, pool_size=25, clock=clock)
    yield store
    store.close()


@pytest.fixture
def world(store: Store, clock: Clock) -> World:
    return World(store, clock)


@pytest.fixture
def pruner(store_url: str, clock: Clock) -> Iterator[Pruner]:
    with closing(open_pruner(store_url, clock=clock)) as pruner:
        yield pruner
